"""Sort a folder of images continuously: ``evergrow sort --watch``.

Every pass is a call of :func:`~evergrow.tools.sorting.sort_folder`, so the table, undo
and all checks of files are the same. The watcher only decides when to call it, and
which files are still being written.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from evergrow.core.errors import BusyError, DatasetNotFoundError, InputError
from evergrow.core.imports import import_extra
from evergrow.learner.learner import Learner
from evergrow.tools.file_moves import How
from evergrow.tools.sort_source import SortSource
from evergrow.tools.sorting import SortedFile, sort_folder

SETTLED_SECONDS = 2.0
"""A file is complete if it did not change for this time."""

RESCAN_SECONDS = 60.0
"""The folder is listed this often without any event, because network folders and full
event queues lose events."""

_TICK_MS = 500
"""Time to wait for events before the clocks are looked at."""


class _FileState(NamedTuple):
    """Size, modification time and inode of a file. They change while it is written."""

    size: int
    modified: int
    inode: int


class Arrivals:
    """Detects when files are complete and no longer being written.

    Parameters
    ----------
    settled : float
        Seconds without a change after which a file is complete.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    unsettled : set of str
        Files that changed too recently, as of the last call of :meth:`look`.

    Examples
    --------
    >>> from evergrow.tools.watching import Arrivals
    >>> now = 0.0
    >>> arrivals = Arrivals(2.0, lambda: now)
    >>> arrivals.look({"a.jpg": (10, 0, 1)})
    False
    >>> now = 3.0
    >>> arrivals.look({"a.jpg": (10, 0, 1), "b.jpg": (5, 3, 2)}), arrivals.unsettled
    (True, {'b.jpg'})
    """

    def __init__(
        self, settled: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.unsettled: set[str] = set()
        self._settled = settled
        self._clock = clock
        self._states: dict[str, tuple[Any, float]] = {}
        self._tried: dict[str, Any] = {}

    def look(self, files: Mapping[str, Any]) -> bool:
        """Take in the present files, and return whether a new one is complete.

        Parameters
        ----------
        files : mapping of str to object
            State of each file by name. Files with equal states did not change.
        """
        now = self._clock()
        states = {}
        for name, state in files.items():
            before = self._states.get(name)
            if before is None or before[0] != state:
                states[name] = (state, now)
            else:
                states[name] = before
        self._states = states
        self._tried = {
            name: state
            for name, state in self._tried.items()
            if files.get(name) == state
        }
        self.unsettled = {
            name for name, (_, since) in states.items() if now - since < self._settled
        }
        return any(
            name not in self.unsettled and name not in self._tried for name in files
        )

    def mark_tried(self) -> None:
        """Note that the complete files were sorted or left, until they change."""
        for name, (state, _) in self._states.items():
            if name not in self.unsettled:
                self._tried[name] = state


def sort_continuously(
    load: Callable[[], Learner],
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    how: How,
    *,
    settled: float = SETTLED_SECONDS,
    stop: Any = None,
    **settings: Any,
) -> Iterator[list[SortedFile]]:
    """Sort the images of a folder, and then new images as they arrive.

    A file is sorted when it did not change for some seconds. Links, hidden files, pipes
    and other special files stay, and no link is followed. The iterator can be ended at
    any moment, also by a kill: the next one goes on with what was not sorted.

    Parameters
    ----------
    load : callable
        Returns the learner to sort with. Called before every pass, so that a model that
        was changed meanwhile can be loaded again.
    folder : path-like
        Folder of images, including subfolders. An archive cannot be watched.
    out : path-like
        Folder for the folders of the classes.
    how : {"move", "copy", "link"}
        How to put files into the folders.
    settled : float, default=2.0
        Seconds without a change after which a file is complete.
    stop : threading.Event, optional
        Ends the iterator when it is set.
    **settings
        Passed to :func:`~evergrow.tools.sorting.plan_sort`.

    Yields
    ------
    list of SortedFile
        The rows of one pass, as :func:`~evergrow.tools.sorting.sort_folder` returns
        them.

    Raises
    ------
    MissingExtraError
        If ``watchfiles`` is not installed.
    DatasetNotFoundError
        If the folder is gone.
    InputError, FileFormatError, PathError
        As for :func:`~evergrow.tools.sorting.sort_folder`.
    """
    watchfiles = import_extra("watchfiles", extra="watch", purpose="watching a folder")
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(out))
    if root.is_file():
        raise InputError(f"{os.fspath(folder)} must be a folder to be watched.")
    arrivals = Arrivals(settled)
    while stop is None or not stop.is_set():
        watched = _own_folders(root, target)
        look_at = time.monotonic()
        for has_events in _events(watchfiles, watched, stop):
            is_due = time.monotonic() >= look_at
            if not (has_events or arrivals.unsettled or is_due):
                continue
            look_at = time.monotonic() + RESCAN_SECONDS
            if arrivals.look(_file_states(root, target)):
                try:
                    rows = sort_folder(
                        load(), root, out, how, skip=arrivals.unsettled, **settings
                    )
                except BusyError:  # another process sorts into the same folder
                    look_at = time.monotonic()
                    continue
                arrivals.mark_tried()
                yield rows
            if _own_folders(root, target) != watched:
                break


def _events(watchfiles: Any, folders: list[Path], stop: Any) -> Iterator[bool]:
    """Yield twice a second whether anything happened in folders, until one is gone."""
    with suppress(FileNotFoundError):
        for changes in watchfiles.watch(
            *folders,
            watch_filter=None,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            stop_event=stop,
            raise_interrupt=True,
            ignore_permission_denied=True,
            recursive=False,  # which would follow links
        ):
            yield bool(changes)


def _own_folders(root: Path, out: Path) -> list[Path]:
    """Return a folder and the folders below it, without hidden ones, links and `out`.

    Raises
    ------
    DatasetNotFoundError
        If the folder is gone, or was replaced by a link.
    """
    if not root.is_dir() or os.path.realpath(root) != str(root):
        raise DatasetNotFoundError(f"The folder {root} is gone.")
    found = [root]
    for parent, names, _ in os.walk(root):
        names[:] = [
            name
            for name in names
            if not name.startswith(".")
            and Path(parent, name) != out
            and not os.path.islink(os.path.join(parent, name))
        ]
        found += [Path(parent, name) for name in names]
    return sorted(found)


def _file_states(root: Path, out: Path) -> dict[str, _FileState]:
    """Return the state of every regular image file below a folder."""
    states = {}
    for name in SortSource(root).sizes(out):
        with suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(root / name)
            if stat.S_ISREG(status.st_mode):
                states[name] = _FileState(
                    status.st_size, status.st_mtime_ns, status.st_ino
                )
    return states
