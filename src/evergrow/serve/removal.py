"""Deleting a model: it is gone in one step, and what is left of it then is removed, also after a crash in between."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from evergrow.core.errors import BusyError
from evergrow.core.files import locked
from evergrow.learner.history import History
from evergrow.learner.modelfile import ModelWriteError

_PREFIX = ".deleted."


def remove_model(path: Path, draft: Path) -> None:
    """Delete a model file with its history, or a draft.

    Parameters
    ----------
    path : Path
        The file, where it really lies.
    draft : Path
        The draft of it, which there may be instead.

    Raises
    ------
    BusyError
        If another process is changing the model.
    ModelWriteError
        If it may not be moved; the model is as it was.
    """
    history = History(path).folder
    with ExitStack() as stack:
        if history.is_dir() and not history.is_symlink():
            try:
                stack.enter_context(locked(history))
            except BusyError as error:
                raise BusyError(f"{path.name} must not be in use, but another process is changing it") from error
        stack.enter_context(locked(path.parent, wait=True))
        away = None
        try:
            away = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=path.parent))
            if path.exists():
                draft.unlink(missing_ok=True)  # what a crash left beside it must not come back in its place
            there = path if path.exists() else draft
            os.rename(there, away / path.name)
        except OSError as error:
            if away is not None:
                away.rmdir()
            raise ModelWriteError(f"{path.name} must be a file that may be removed: {error.strerror}") from error
        _clear(away)


def finish_removals(folder: Path) -> None:
    """Remove what is left of models that were deleted just before a crash."""
    for away in folder.glob(f"{_PREFIX}*"):
        if away.is_dir() and not away.is_symlink():
            _clear(away)


def _clear(away: Path) -> None:
    """Remove what was moved away, and the histories of models that lie there and have no other in their place."""
    for entry in list(away.iterdir()):
        model = away.parent / entry.name
        history = History(model).folder
        if not model.exists() and history.is_dir() and not history.is_symlink():
            with suppress(OSError):  # a crash before this line leaves it to the next start
                os.rename(history, away / history.name)
    shutil.rmtree(away, ignore_errors=True)
