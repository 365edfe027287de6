"""Files that are whole or not there: writing in one step, locks that die with their process, and links followed first.

A file is replaced where it really lies: a link that leads to it stays a link. It keeps
its mode and, as far as the system allows, its owner; one that nobody may write is left
alone, whoever asks.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from evergrow.core.errors import BusyError, ModelNotFoundError, PathError

_LOCK = ".lock"
PARTIAL = ".part"
"""Ending of the hidden folders that files are written in; what a killed process leaves behind has it too."""

_ABANDONED = 3600.0
"""Seconds after which what has that ending is a leftover, where no lock tells."""


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return where a file lies, or will lie, with all links followed.

    Parameters
    ----------
    path : path-like
        The file, or a link (or a chain of them) to it.

    Raises
    ------
    PathError
        If it is a link that leads nowhere.

    Examples
    --------
    >>> import os, pathlib, tempfile
    >>> from evergrow.core.files import real_path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = pathlib.Path(folder, "v3.evg")
    ...     model.touch()
    ...     os.symlink("v3.evg", pathlib.Path(folder, "latest.evg"))
    ...     real_path(pathlib.Path(folder, "latest.evg")).name
    'v3.evg'
    """
    if os.path.islink(path) and not os.path.exists(path):
        raise PathError(
            f"{os.fspath(path)} must lead to a file, but it is a link to nothing"
        )
    return Path(os.path.realpath(path))


def existing_model(path: str | os.PathLike[str]) -> Path:
    """Return where a model lies, all links followed, or raise :class:`ModelNotFoundError`.

    Examples
    --------
    >>> from evergrow.core.files import existing_model
    >>> existing_model("nowhere.evg")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ModelNotFoundError: No model 'nowhere.evg' here. Make one with fit.
    """
    if not os.path.isfile(path):
        if os.path.islink(path):
            raise ModelNotFoundError(f"{os.fspath(path)} is a link to nothing")
        raise ModelNotFoundError(
            f"No model {os.fspath(path)!r} here. Make one with fit."
        )
    return Path(os.path.realpath(path))


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise :class:`PathError` if there is something that must not be replaced: a read-only file, or no file at all.

    The mode decides, not what the system would let this user do: read-only is read-only
    for an administrator too.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise PathError(
            f"{os.fspath(path)} must be an ordinary file to be replaced, got a folder or a device"
        )
    if not mode & 0o222:
        raise PathError(
            f"{os.fspath(path)} must be writable, but it is read-only (mode {stat.S_IMODE(mode):04o})"
        )


def check_writable_folder(folder: str | os.PathLike[str]) -> None:
    """Raise :class:`PathError` unless files can be made in a folder.

    Nothing is written. The answer is that of the system for the user of this process:
    an administrator may write nearly everywhere but on a read-only file system.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.core.files import check_writable_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_writable_folder(folder)
    >>> check_writable_folder("/nowhere")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.PathError: there is no folder '/nowhere'
    """
    name = os.fspath(folder)
    if not os.path.isdir(folder):
        raise PathError(f"there is no folder {name!r}")
    is_allowed = os.access(
        folder,
        os.W_OK | os.X_OK,
        effective_ids=os.access in os.supports_effective_ids,
    )
    if not is_allowed:
        raise PathError(f"you may not write to the folder {name!r}")


@contextmanager
def atomic_path(
    path: str | os.PathLike[str], *, like: str | os.PathLike[str] | None = None
) -> Iterator[Path]:
    """Yield a temporary path in a hidden folder beside a file and move it there in one step if the block succeeds.

    A crash or an error leaves the old file or the new one, never half; the new file is
    on disk before it takes the old one's place, and has its mode and owner.

    Parameters
    ----------
    path : path-like
        Target; its folder must exist. Where it is a link, the file that it leads to is
        replaced.
    like : path-like, optional
        A file whose mode and owner a new file gets; by default the umask decides.

    Raises
    ------
    PathError
        If the target is read-only, is no ordinary file, or is a link to nothing.

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
    target = real_path(path)
    check_replaceable(target)
    # A folder, since libraries that write files may put temporary ones of their own
    # beside them.
    with partial_folder(target.parent, target.name) as folder:
        temporary = folder / target.name
        # The system applies the umask to a new file. Python reads the umask only by
        # changing it for all threads. Nobody else can enter the folder meanwhile.
        temporary.touch(0o666)
        new_mode = stat.S_IMODE(temporary.stat().st_mode)
        temporary.chmod(0o600)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        model = target
        if like is not None and not target.exists():
            model = Path(like)
        _take_access(temporary, model, new_mode)
        os.replace(temporary, target)
    _sync_folder(target.parent)


@contextmanager
def partial_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a hidden folder of some name and remove it at the end; :func:`remove_leftovers` does after a kill."""
    with ExitStack() as stack:
        while True:
            folder = Path(
                tempfile.mkdtemp(dir=parent, prefix=f".{name}.", suffix=PARTIAL)
            )
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            with suppress(
                BusyError, FileNotFoundError
            ):  # taken for a leftover before it was locked
                stack.enter_context(locked(folder))
                break
        yield folder


def remove_leftovers(folder: Path, pattern: str = ".*") -> int:
    """Remove what killed processes left half-written and return how much; what a living process writes stays.

    Parameters
    ----------
    folder : Path
        Where files were to be written.
    pattern : str
        Which ones, as a pattern of names without their ending :data:`PARTIAL`;
        ``"**/.*"`` looks in all folders below.
    """
    removed = 0
    for leftover in folder.glob(f"{pattern}{PARTIAL}"):
        with suppress(
            OSError, BusyError
        ):  # it is being written, was just finished, or is somebody else's
            if leftover.is_dir() and not leftover.is_symlink():
                since = time.time() - leftover.stat().st_mtime
                with locked(leftover) as held:
                    pass
                if held or since > _ABANDONED:
                    shutil.rmtree(leftover)
                    removed += 1
            else:
                leftover.unlink()
                removed += 1
    return removed


def restrict(path: Path, mode: int) -> None:
    """Take away from a file, or a folder, what a file of this mode does not allow; its owner keeps the use of it."""
    is_folder = path.is_dir()
    if is_folder:
        allowed = mode | (mode & 0o444) >> 2 | 0o700
    else:
        allowed = mode | 0o600
    now = stat.S_IMODE(path.stat().st_mode)
    if now & ~allowed & 0o777:
        os.chmod(path, now & allowed)


def take_owner(path: Path, like: Path) -> bool:
    """Give a file or folder the owner and group of another as far as allowed; return whether the group is the same."""
    wanted = os.stat(like)
    for owner, group in ((wanted.st_uid, -1), (-1, wanted.st_gid)):
        with suppress(
            PermissionError, AttributeError
        ):  # only an administrator may give a file away; nobody on Windows
            os.chown(path, owner, group)
    return os.stat(path).st_gid == wanted.st_gid


def _take_access(path: Path, like: Path, new_mode: int) -> None:
    """Copy owner and mode of ``like``; give ``new_mode`` if it does not exist."""
    if not like.exists():
        os.chmod(path, new_mode)
        return
    mode = stat.S_IMODE(like.stat().st_mode) & 0o777
    same_group = take_owner(path, like)
    os.chmod(
        path, mode if same_group else mode & ~0o070
    )  # what was for one group is not for another


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
def locked(folder: str | os.PathLike[str], *, wait: bool = False) -> Iterator[bool]:
    """Hold a folder for this process, by a hidden file in it; the system lets go even if the process is killed.

    Yields whether it is held: some file systems have no locks.

    Parameters
    ----------
    folder : path-like
        What to hold. Others can still read and write it: only those who ask for the
        lock respect it.
    wait : bool
        Whether to wait for another holder instead of raising.

    Raises
    ------
    BusyError
        If another process holds it and ``wait`` is false.
    FileNotFoundError
        If there is no such folder.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.core.files import locked
    >>> with tempfile.TemporaryDirectory() as folder, locked(folder):
    ...     pass
    """
    from filelock import FileLock, Timeout

    os.stat(folder)
    lock = FileLock(os.path.join(folder, _LOCK))
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout as error:
        raise BusyError(
            f"{os.fspath(folder)} must not be in use, but another process is writing there"
        ) from error
    except (
        OSError,
        NotImplementedError,
    ):  # a file system without locks, or a folder that is only read
        pass
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            with suppress(
                OSError
            ):  # Windows keeps an open file; the lock itself removes it there
                os.unlink(lock.lock_file)
            lock.release()
