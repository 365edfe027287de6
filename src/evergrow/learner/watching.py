"""Learning what appears in a folder, each file exactly once, also after a kill at any moment.

The change that a batch of files makes is written to the model's file together with hashes of these files, in one step.
After a crash a file that was taken up is learned if the model does not name it, and only put away if it does. Undoing
that change undoes the list with it.

    FOLDER/<class>/cat.jpg              arrives, to be learned
    FOLDER/inbox/what.jpg               arrives, to be answered
    FOLDER/done/working/<class>/...     taken up, not learned yet, or learned and not put away yet
    FOLDER/done/learned/<class>/...     learned
    FOLDER/done/answered/what.jpg       answered, with what.jpg.json beside it
    FOLDER/done/refused/...             set aside, with the reason in <name>.reason.txt

A file moves by one rename each time. Whether one in ``working`` was learned the model's own file tells.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import BusyError, DatasetNotFoundError, EvergrowError, InputError, PathError
from evergrow.core.files import PARTIAL, atomic_path, locked, remove_leftovers
from evergrow.data.intake import read_items
from evergrow.features import Features
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.filing import free_name, odd_file, odd_name, own_folder
from evergrow.learner.labels import as_labels, can_read
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, locked_model, open_model
from evergrow.learner.snapshot import Change

BATCH = 500
"""Files that become one change at most."""

JOURNAL = "watched"
"""Field of a change that has the hashes of the files it learned, by class."""

INBOX, DONE = "inbox", "done"
"""Folders that are no classes."""
_LONGEST_TEXT = 1_000_000
_UNFINISHED = (PARTIAL, ".tmp", ".crdownload", ".partial", ".download", ".filepart")


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
        self._own("working")
        try:
            with locked(self.root / DONE):
                remove_leftovers(self.root / DONE, "**/.*")
                yield
        except BusyError as error:
            raise BusyError(f"{self.root} must be watched by one process, but another one does already") from error

    def _own(self, folder: str) -> Path:
        """Return a folder below ``done``, made if need be; what is written there must not land anywhere else."""
        return own_folder(self.root, DONE, *Path(folder).parts)

    def working(self) -> Iterator[Path]:
        """Yield what was taken up and not put away yet."""
        for name in sorted(os.listdir(self._own("working"))):
            yield from sorted(self._own(f"working/{name}").iterdir())

    def classes(self) -> tuple[list[str], dict[str, str]]:
        """Return the folders that stand for classes, sorted, and those that cannot, with the reason."""
        names, odd = [], {}
        for place in sorted(filter(Path.is_dir, self.root.iterdir())):  # a link that leads in a circle is no folder
            if reason := "it is a link" if place.is_symlink() else odd_name(place.name):
                odd[place.name] = reason
            elif place.name not in (INBOX, DONE) and not place.name.startswith("."):
                names.append(place.name)
        return names, odd

    def arrivals(self, name: str) -> Iterator[Path]:
        """Yield the files of a class folder, or of the inbox, that have arrived whole or can never be taken."""
        folder = self.root / name
        if not folder.is_dir() or folder.is_symlink():
            return
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.name.lower().endswith(_UNFINISHED):
                continue
            with suppress(FileNotFoundError):  # whoever put it there took it away again
                if odd_file(path) or self._is_whole(path):
                    yield path

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

    def is_waiting(self) -> bool:
        """Return whether files were seen that may still be written to."""
        self._seen = {path: seen for path, seen in self._seen.items() if os.path.lexists(path)}
        return bool(self._seen)

    def put(self, path: Path, folder: str, ending: str = "", text: str = "") -> Path:
        """Move a file to a folder of ``done`` and return where it lies now.

        Parameters
        ----------
        path : Path
            The file.
        folder : str
            Where to, below ``done``; one process alone moves files there. A name that is taken gets a number.
        ending, text : str
            What is written first to a file of the same name with this ending, so that no moved file is without it.
        """
        place = self._own(folder)

        def taken(name: str) -> bool:
            return os.path.lexists(place / name) or os.path.lexists(place / f"{name}{ending}")

        target = place / free_name(path.name, taken)
        if ending:
            with atomic_path(target.with_name(target.name + ending)) as temporary:
                temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        try:
            os.rename(path, target)
        except OSError as error:
            raise PathError(f"{path} must be a file that may be moved to {target.parent}, but {error}") from error
        return target


@dataclass
class Watched:
    """What one look at a folder led to.

    Parameters
    ----------
    learned, answered : int
        Files learned and answered.
    again : int
        Files that the model had learned before; they were only put away.
    refused : list of (str, str)
        Files and folders that were not taken, with the reason.
    waiting : bool
        Whether files are there that may still be written to.
    revision : int or None
        Of the model, where it changed.
    """

    learned: int = 0
    answered: int = 0
    again: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    waiting: bool = False
    revision: int | None = None

    def refuse(self, folder: WatchedFolder, path: Path, label: str, reason: str) -> None:
        """Set a file of a class, or of the inbox, aside; the reason lies beside it."""
        self.refused.append((f"{label}/{path.name}" if label else path.name, reason))
        folder.put(path, f"refused/{label}", ".reason.txt", reason)

    @property
    def anything(self) -> bool:
        """Whether anything happened."""
        return bool(self.learned or self.answered or self.again or self.refused)

    def add(self, other: Watched) -> None:
        """Add what a later look led to."""
        self.learned, self.answered = self.learned + other.learned, self.answered + other.answered
        self.again, self.waiting = self.again + other.again, other.waiting
        self.refused += other.refused
        self.revision = other.revision if other.revision is not None else self.revision


def watch_once(
    model: str | os.PathLike[str],
    folder: WatchedFolder,
    *,
    false_alarm: float | None = FALSE_ALARM,
    wait: bool = False,
    **settings: Any,
) -> Watched:
    """Learn and answer what has arrived in a folder that is held.

    Parameters
    ----------
    model : path-like
        The model file.
    folder : WatchedFolder
        The folder, inside its :meth:`~WatchedFolder.held`.
    false_alarm : float or None
        Share of known things that may be called unknown in answers; None calls nothing so.
    wait : bool
        Whether to wait for another writer of the model.
    **settings
        For :func:`~evergrow.learner.modelfile.open_model`.

    Raises
    ------
    BusyError
        If another process is changing the model and ``wait`` is false; what was taken up is learned the next time.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner.watching import WatchedFolder, watch_once
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)) + 5 * np.eye(5)[np.arange(40) % 2], np.arange(40) % 2
    >>> with tempfile.TemporaryDirectory() as place:
    ...     model, root = f"{place}/model.evg", Path(place, "new")
    ...     Learner(options={"n_units": 20}).fit(X, [f"class {label}" for label in y]).save(model)
    ...     (root / "class 2").mkdir(parents=True)
    ...     np.save(root / "class 2" / "seven.npy", X[:7] - 5)
    ...     folder = WatchedFolder(root, quiet=0.0)
    ...     with folder.held():
    ...         print(watch_once(model, folder).learned, watch_once(model, folder).learned)
    1 0
    """
    done = Watched()
    settings = {**settings, "cache": False, "extract": {**(settings.get("extract") or {}), "on_error": "raise"}}
    working = list(folder.working())
    names, odd = folder.classes()
    fresh = [path for name in names for path in folder.arrivals(name)]
    if working or fresh:
        with locked_model(model, wait=wait, **settings) as learner:
            todo = _taken_up(learner, folder, working, fresh, odd, done)
            for start in range(0, len(todo), BATCH):
                _learn(model, learner, folder, todo[start : start + BATCH], done)
    done.refused += list(odd.items())
    asked = list(folder.arrivals(INBOX))
    if asked:
        _answer(open_model(model, **settings), folder, asked, false_alarm, done)
    done.waiting = folder.is_waiting()
    return done


def _taken_up(
    learner: Learner, folder: WatchedFolder, taken: list[Path], fresh: list[Path], odd: dict[str, str], done: Watched
) -> list[tuple[Path, str]]:
    """Take up fresh files and return what there is to learn, with hashes: these, and those taken up before."""
    for path in fresh:
        label = path.parent.name
        if not can_read(learner._state().label_kind, label):
            odd[label] = "the model has no labels of that kind"
            continue
        with suppress(FileNotFoundError):  # whoever put it there took it away again
            if reason := odd_file(path):
                done.refuse(folder, path, label, reason)
            else:
                taken.append(folder.put(path, f"working/{label}"))
    known = learned_files(learner.history_)
    todo: list[tuple[Path, str]] = []
    for path in taken:
        if reason := odd_file(path):
            done.refuse(folder, path, path.parent.name, reason)
            continue
        digest = hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
        same = known.setdefault(path.parent.name, set())
        if digest in same:
            folder.put(path, f"learned/{path.parent.name}")
            done.again += 1
        else:
            same.add(digest)
            todo.append((path, digest))
    return todo


def _learn(model: Any, learner: Learner, folder: WatchedFolder, batch: list[tuple[Path, str]], done: Watched) -> None:
    """Learn files as one change, and put them away; the class of a file is the name of its folder.

    The commit decides whether they were learned.
    """
    rows: list[tuple[Path, NDArray[Any]]] = []
    files: dict[str, list[str]] = {}
    for (path, digest), X in zip(batch, _vectors(learner, [path for path, _ in batch]), strict=True):
        if isinstance(X, str):
            done.refuse(folder, path, path.parent.name, X)
        else:
            rows.append((path, X))
            files.setdefault(path.parent.name, []).append(digest)
    if rows:
        X, labels = np.concatenate([X for _, X in rows]), [path.parent.name for path, X in rows for _ in X]
        learner.partial_fit(Features(X, np.arange(len(X))), as_labels(labels, learner._state().label_kind))
        note = f"watched {len(rows)} file{'s' * (len(rows) != 1)}"
        done.revision = commit(model, learner, Change("update", "", 0, note=note, extra={JOURNAL: files}))
        done.learned += len(rows)
    for path, _ in rows:
        folder.put(path, f"learned/{path.parent.name}")


def learned_files(history: Iterable[Change]) -> dict[str, set[str]]:
    """Return hashes of the files that a model has learned from watched folders, by the class that they are of now.

    What was forgotten with its class may be learned again; a class that got another name has its files under that.
    """
    held: dict[str, set[str]] = {}
    for change in history:
        if change.what == "fit":
            held = {}
        elif change.what == "forget":
            held = {name: files for name, files in held.items() if name not in change.classes}
        elif change.what in ("rename", "merge-classes"):
            before, held = held, {}
            for name, files in before.items():
                held.setdefault(change.names.get(name, name), set()).update(files)
        journal = change.extra.get(JOURNAL)  # a file may say anything
        for name, digests in journal.items() if isinstance(journal, dict) else ():
            if isinstance(digests, list):
                held.setdefault(name, set()).update(digest for digest in digests if isinstance(digest, str))
    return held


def _vectors(learner: Learner, paths: Sequence[Path]) -> list[NDArray[Any] | str]:
    """Return the feature vectors of each file, or why it cannot be read."""
    try:
        items = [_items(path, learner.kind_) for path in paths]
        X = learner.features([item for part in items for item in part]).X
        return list(np.split(X, np.cumsum([len(part) for part in items])[:-1]))
    except (EvergrowError, OSError) as error:
        if len(paths) == 1:
            return [str(error)]
    middle = len(paths) // 2  # one that is refused must not take others along
    return _vectors(learner, paths[:middle]) + _vectors(learner, paths[middle:])


def _items(path: Path, kind: str) -> list[Any]:
    """Return what a file holds for a model of this kind: an image, a text, or feature vectors."""
    if kind == "image":
        return [path]
    if kind == "features":
        if path.suffix.lower() != ".npy":
            raise InputError(f"{path.name} must be an .npy file of feature vectors")
        return list(np.asarray(read_items(path, "features").features))
    if path.suffix.lower() != ".txt" or path.stat().st_size > _LONGEST_TEXT:
        raise InputError(f"{path.name} must be a .txt file of one text, of at most {_LONGEST_TEXT:,} bytes")
    try:
        text = " ".join(path.read_text(encoding="utf-8").split())
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} must be UTF-8: {error}") from error
    if not text:
        raise InputError(f"{path.name} must hold a text, got none")
    return [text]


def _answer(
    learner: Learner, folder: WatchedFolder, asked: Iterable[Path], false_alarm: float | None, done: Watched
) -> None:
    """Answer files, and move each beside its answer: about its only vector, or one for each."""
    usable = false_alarm if learner.info()["novelty"] else None
    for path in asked:
        X = odd_file(path) or _vectors(learner, [path])[0]
        if isinstance(X, str):
            done.refuse(folder, path, "", X)
            continue
        found = learner.ask(Features(X, np.arange(len(X))), false_alarm=usable)
        rows = []
        for row, order in enumerate(found.ranked(5)):
            values = found.values[row]
            top = [{"class": str(found.classes[column]), found.measure: float(values[column])} for column in order]
            unknown = None if found.unknown is None else bool(found.unknown[row])
            entry = {"class": None if unknown else top[0]["class"], found.measure: top[0][found.measure]}
            if found.novelty is not None:
                entry |= {"unknown": unknown, "novelty": float(found.novelty[row])}
            rows.append({**entry, "top": top})
        about = {"item": path.name, "revision": learner.revision_}
        answer = {**about, **rows[0]} if len(rows) == 1 else {**about, "answers": rows}
        folder.put(path, "answered", ".json", json.dumps(answer))
        done.answered += 1
