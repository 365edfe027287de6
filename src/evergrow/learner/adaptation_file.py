"""Files with an adapted backbone, to be used by models on other machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergrow.core.archive import read_header, write_archive
from evergrow.core.errors import FileFormatError, NotFittedError
from evergrow.core.files import StrPath

if TYPE_CHECKING:
    from evergrow.adapt.adapted import Adaptation
    from evergrow.learner.learner import Learner

_KIND = "adaptation"


def save_adaptation(learner: Learner, path: StrPath) -> None:
    """Write the adaptation of a learner's backbone to a file, without the model.

    Another learner uses it with ``Learner(weights=path)``.

    Parameters
    ----------
    learner : Learner
        A learner that was fitted with ``adapt``.
    path : path-like
        The file to write. It ends in ``.safetensors``.

    Raises
    ------
    NotFittedError
        If the backbone of the learner was not adapted.
    OSError
        If the file cannot be written. An existing file is unchanged.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.adapt import FineTuneConfig
    >>> from evergrow.features import create_backbone
    >>> from evergrow.learner.adaptation_file import save_adaptation
    >>> tiny = create_backbone("test_vit", weights="random", device="cpu")
    >>> shape = (12, 32, 32, 3)
    >>> pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    >>> config = FineTuneConfig().changed(epochs=1)
    >>> learner = Learner(tiny, adapt=config, options={"n_units": 20}, cache=False)
    >>> _ = learner.fit(pixels, np.arange(12) % 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tuned = f"{folder}/tuned.safetensors"
    ...     save_adaptation(learner, tuned)
    ...     other = Learner(tiny, weights=tuned, options={"n_units": 20}, cache=False)
    ...     _ = other.fit(pixels, np.arange(12) % 3)
    >>> other.backbone_().spec.name
    'test_vit+full'
    """
    adaptation = learner.state_.adaptation
    if adaptation is None:
        raise NotFittedError(
            "this learner has no adapted backbone: fit it with adapt='auto' or 'full'"
        )
    write_archive(path, adaptation)


def is_adaptation_file(weights: Any) -> bool:
    """Return whether an argument `weights` names a file of :func:`save_adaptation`.

    Only the header of the file is read.

    Examples
    --------
    >>> from evergrow.learner.adaptation_file import is_adaptation_file
    >>> is_adaptation_file("bundled"), is_adaptation_file(None)
    (False, False)
    """
    if not isinstance(weights, (str, os.PathLike)) or not Path(weights).is_file():
        return False
    try:
        return read_header(weights).kind == _KIND
    except FileFormatError:
        return False


def read_adaptation_file(path: StrPath) -> Adaptation:
    """Read a file of :func:`save_adaptation`, and check it.

    Raises
    ------
    FileFormatError
        If the file is damaged or was altered.
    """
    from evergrow.adapt.adapted import Adaptation  # slow to import
    from evergrow.core.record import read_record

    return read_record(Adaptation, path)
