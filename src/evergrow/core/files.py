"""Files that are whole or not there: writing in one step, and locks that die with their process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evergrow.core.errors import BusyError

PARTIAL = ".part"
"""Ending of files that are being written; what a killed process leaves behind has it too."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` and move it there in one step if the block succeeds.

    A crash or an error leaves the old file or the new one, never half; the new file is on disk before it takes
    the old one's place, and has its mode.

    Parameters
    ----------
    path : path-like
        Target; its folder must exist.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from evergrow.core.files import atomic_path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = pathlib.Path(folder, "note.txt")
    ...     with atomic_path(target) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     target.read_text()
    'whole'
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=PARTIAL)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        _copy_mode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _copy_mode(target: Path, temporary: Path) -> None:
    """Give the new file the mode of the one it replaces, or the one the umask gives new files."""
    if target.exists():
        mode = target.stat().st_mode & 0o777
    else:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    os.chmod(temporary, mode)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system allows a folder to be synced."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold a folder or an existing file for this process; the system lets go even if the process is killed.

    Parameters
    ----------
    path : path-like
        What to hold. Others can still read and write it: only those who ask for the lock respect it.
    wait : bool
        Whether to wait for another holder instead of raising.

    Raises
    ------
    BusyError
        If another process holds it and ``wait`` is false.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.core.files import locked
    >>> with tempfile.TemporaryDirectory() as folder, locked(folder):
    ...     pass
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such locks; files are still written in one step
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise BusyError(f"{os.fspath(path)} must not be in use, but another process is writing there") from error
        except OSError:  # a file system without locks (some network shares)
            pass
        yield
    finally:
        os.close(handle)
