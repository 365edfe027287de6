"""A folder that is watched: what has arrived whole, and where it goes; a crash neither loses nor doubles a file.

    FOLDER/<class>/cat.jpg              arrives, to be learned
    FOLDER/inbox/what.jpg               arrives, to be answered
    FOLDER/done/working/<class>/...     taken up, not learned yet, or learned and not put away yet
    FOLDER/done/learned/<class>/...     learned
    FOLDER/done/answered/what.jpg       answered, with what.jpg.json beside it
    FOLDER/done/refused/...             set aside, with the reason in <name>.reason.txt

A file moves by one rename each time. Whether one in ``working`` was learned is not for the folder to say: the model's
own file tells (:mod:`evergrow.learner.watching`).
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from evergrow.core.errors import BusyError, DatasetNotFoundError, InputError, PathError
from evergrow.core.files import PARTIAL, atomic_path, locked

INBOX, DONE = "inbox", "done"
"""Folders that are no classes."""

LARGEST = 256 * 2**20
"""Bytes of a file that is still looked at."""

_UNFINISHED = (PARTIAL, ".tmp", ".crdownload", ".partial", ".download", ".filepart")
_REASON, _ANSWER = ".reason.txt", ".json"


@dataclass(frozen=True)
class Arrival:
    """A file in a watched folder.

    Parameters
    ----------
    label : str or None
        Its class; None for one to be answered.
    path : Path
        Where it lies.
    """

    label: str | None
    path: Path

    def digest(self) -> str:
        """Return a hash of the content, by which a file is known again whatever it is called."""
        found = hashlib.blake2b(digest_size=12)
        with open(self.path, "rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
        return found.hexdigest()


@dataclass
class WatchedFolder:
    """The folder, while one process watches it.

    Parameters
    ----------
    root : Path
        The folder.
    quiet : float
        Seconds for which a file must not have changed to count as whole.
    """

    root: Path
    quiet: float = 2.0
    _seen: dict[Path, tuple[int, int, float]] = field(default_factory=dict)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other watchers out of the folder.

        Raises
        ------
        DatasetNotFoundError
            If there is no such folder.
        BusyError
            If another process watches it.
        """
        if not self.root.is_dir():
            raise DatasetNotFoundError(f"folder to watch must exist, got {str(self.root)!r}")
        for part in (DONE, f"{DONE}/working"):
            place = self.root / part
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                raise InputError(f"{place} must be a folder of its own, got a link or a file")
            place.mkdir(exist_ok=True)
        try:
            with locked(self.root / DONE):
                for path in [
                    *self.root.glob(f"{DONE}/answered/.*{PARTIAL}"),
                    *self.root.glob(f"{DONE}/refused/**/.*{PARTIAL}"),
                ]:
                    path.unlink()  # of a process that was killed, since nobody else writes there
                yield
        except BusyError as error:
            raise BusyError(f"{self.root} must be watched by one process, but another one does already") from error

    # -- what has arrived -------------------------------------------------------------------------------------------

    def labels(self) -> list[str]:
        """Return the names of the folders that stand for classes, sorted."""
        with os.scandir(self.root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(name for name in names if name not in (INBOX, DONE) and not name.startswith("."))

    def odd_folders(self) -> dict[str, str]:
        """Return folders that cannot be classes, with the reason."""
        found = {name: reason for name in self.labels() if (reason := odd_name(name))}
        with os.scandir(self.root) as entries:
            found |= {entry.name: "it is a link" for entry in entries if entry.is_symlink() and entry.is_dir()}
        return found

    def working(self) -> list[Arrival]:
        """Return files that were taken up before and not put away."""
        place = self.root / DONE / "working"
        return [Arrival(folder.name, path) for folder in _sorted(place) if folder.is_dir() for path in _sorted(folder)]

    def arrivals(self, label: str | None) -> Iterator[Arrival]:
        """Yield the files of a class, or of the inbox, that have arrived whole or can never be taken."""
        folder = self.root / (INBOX if label is None else label)
        if not folder.is_dir() or folder.is_symlink():
            return
        for path in _sorted(folder):
            if path.name.startswith(".") or path.name.lower().endswith(_UNFINISHED):
                continue
            with suppress(FileNotFoundError):  # whoever put it there took it away again
                if odd_file(path) or self._is_whole(path):
                    yield Arrival(label, path)

    def is_waiting(self) -> bool:
        """Return whether files were seen that may still be written to."""
        self._seen = {path: seen for path, seen in self._seen.items() if os.path.lexists(path)}
        return bool(self._seen)

    def _is_whole(self, path: Path) -> bool:
        """Return whether a file has kept size and time of change for long enough, by the clock of this process.

        What has not changed for ten times as long by its own time is taken at the first look.
        """
        status, now = os.lstat(path), time.monotonic()
        size, changed, first = self._seen.get(path, (-1, -1, now))
        if (size, changed) != (status.st_size, status.st_mtime_ns):
            first = now
        if now - first >= self.quiet or time.time() - status.st_mtime >= 10 * self.quiet:
            self._seen.pop(path, None)
            return True
        self._seen[path] = (status.st_size, status.st_mtime_ns, first)
        return False

    # -- where it goes ----------------------------------------------------------------------------------------------

    def take(self, arrival: Arrival) -> Arrival:
        """Move a file to where nobody but this process works on it."""
        return Arrival(arrival.label, self._move(arrival.path, f"working/{arrival.label}"))

    def put_away(self, arrival: Arrival) -> Path:
        """Move a file that was learned."""
        return self._move(arrival.path, f"learned/{arrival.label}")

    def refuse(self, arrival: Arrival, reason: str) -> Path:
        """Set a file aside; the reason is written beside it first."""
        target = self._target("refused" if arrival.label is None else f"refused/{arrival.label}", arrival.path.name)
        with atomic_path(target.with_name(target.name + _REASON)) as temporary:
            temporary.write_text(reason + "\n", encoding="utf-8", errors="backslashreplace")
        _rename(arrival.path, target)
        return target

    def answered(self, arrival: Arrival, answer: str) -> Path:
        """Write the answer about a file, then move the file beside it: one gone from the inbox has its answer."""
        target = self._target("answered", arrival.path.name)
        with atomic_path(target.with_name(target.name + _ANSWER)) as temporary:
            temporary.write_text(answer + "\n", encoding="utf-8")
        _rename(arrival.path, target)
        return target

    def _move(self, path: Path, folder: str) -> Path:
        target = self._target(folder, path.name)
        _rename(path, target)
        return target

    def _target(self, folder: str, name: str) -> Path:
        """Return a free place; one process alone moves files there."""
        place = self.root / DONE / folder
        place.mkdir(parents=True, exist_ok=True)
        stem, suffix = os.path.splitext(name)
        target, number = place / name, 1
        while os.path.lexists(target):
            number += 1
            target = place / f"{stem}-{number}{suffix}"
        return target


def _rename(path: Path, target: Path) -> None:
    try:
        os.rename(path, target)
    except OSError as error:
        raise PathError(f"{path} must be a file that may be moved to {target.parent}, but {error}") from error


def odd_file(path: Path) -> str:
    """Return why a file can never be looked at; nothing where it can."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "it is a link: links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "it is no ordinary file"
    if status.st_size > LARGEST:
        return f"it has {status.st_size:,} bytes, more than {LARGEST:,}"
    return odd_name(path.name)


def odd_name(name: str) -> str:
    r"""Return why a name of a file or class is refused; nothing where it is an ordinary one.

    Examples
    --------
    >>> from evergrow.learner.watched_folder import odd_name
    >>> odd_name("cat.jpg"), odd_name("cat\x1b[2J")
    ('', 'its name has characters that cannot be shown')
    """
    if not name.isprintable():
        return "its name has characters that cannot be shown"
    return "" if name.strip() == name else "its name begins or ends with a blank"


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
