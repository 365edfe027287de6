"""Archives that others keep in a model's file: written, rolled back and copied with it, and not looked at."""

from __future__ import annotations

import dataclasses

from evergrow.core.archive import Archive
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Extra


def attached_part(learner: Learner, name: str) -> Archive | None:
    """Return what was attached under a name; None where nothing was.

    Parameters
    ----------
    learner : Learner
        Whose file it lies in.
    name : str
        What it was attached as.
    """
    return learner._state().extra.parts.get(name)


def attach_part(learner: Learner, name: str, part: Archive) -> None:
    """Keep an archive in the model's file from the next change on.

    Parameters
    ----------
    learner : Learner
        What to attach it to.
    name : str
        A name that no part of a learner has.
    part : Archive
        Plain values and tensors.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.core.archive import Archive
    >>> from evergrow.learner.attached import attach_part, attached_part
    >>> from evergrow.learner.learner import Learner
    >>> learner = Learner(options={"n_units": 20}).fit((np.random.default_rng(0).normal(size=(8, 3)), list("aabb") * 2))
    >>> attach_part(learner, "notes", Archive("docs/notes", {"seen": 3}))
    >>> attached_part(learner.copy(), "notes").meta
    {'seen': 3}
    """
    now = learner._state()
    extra = Extra(now.extra.meta, {**now.extra.parts, name: part})
    learner._snapshot = dataclasses.replace(now, extra=extra)
