"""Where a model lies: found, or missed with advice, before anything heavy is imported to read it."""

from __future__ import annotations

import os
from pathlib import Path

from evergrow.core.errors import EvergrowError
from evergrow.core.wording import action, setting


class ModelNotFoundError(EvergrowError, FileNotFoundError):
    """There is no model where one was looked for."""


def existing_model(path: str | os.PathLike[str]) -> Path:
    """Return where a model lies, all links followed, or raise :class:`ModelNotFoundError`.

    Examples
    --------
    >>> from evergrow.learner.places import existing_model
    >>> existing_model("nowhere.evg")
    Traceback (most recent call last):
        ...
    evergrow.learner.places.ModelNotFoundError: model must be an existing file, got 'nowhere.evg': make one with fit()
    """
    if not os.path.isfile(path):
        where = f"{os.fspath(path)!r}"
        got = f"{where}, a link to nothing" if os.path.islink(path) else f"{where}: make one with {action('fit')}"
        raise ModelNotFoundError(f"{setting('model')} must be an existing file, got {got}")
    return Path(os.path.realpath(path))
