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
import stat
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
from evergrow.learner.labels import as_labels, can_read
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, locked_model, open_model
from evergrow.learner.snapshot import Change

BATCH = 500
"""Files that become one change at most."""

JOURNAL = "watched"
"""Field of a change that has the hashes of the files it learned, by class."""

_LONGEST_TEXT = 1_000_000


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
                remove_leftovers(self.root / DONE, "**/.*")
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
    >>> from evergrow.learner.watching import odd_name
    >>> odd_name("cat.jpg"), odd_name("cat\x1b[2J")
    ('', 'its name has characters that cannot be shown')
    """
    if not name.isprintable():
        return "its name has characters that cannot be shown"
    return "" if name.strip() == name else "its name begins or ends with a blank"


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


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
    >>> from evergrow.learner.watching import WatchedFolder
    >>> from evergrow.learner.watching import watch_once
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
    _learn_arrivals(model, folder, done, wait, settings)
    _answer_arrivals(model, folder, done, false_alarm, settings)
    done.waiting = folder.is_waiting()
    return done


# -- learning -------------------------------------------------------------------------------------------------------


def _learn_arrivals(model: Any, folder: WatchedFolder, done: Watched, wait: bool, settings: dict[str, Any]) -> None:
    left = folder.working()
    fresh = [arrival for label in folder.labels() for arrival in folder.arrivals(label)]
    if not left and not fresh:
        done.refused += [(name, reason) for name, reason in folder.odd_folders().items()]
        return
    with locked_model(model, wait=wait, **settings) as learner:
        taken = [*left, *_taken(folder, learner, fresh, done)]
        known = learned_files(learner.history_)
        todo: list[tuple[Arrival, str]] = []
        for arrival in taken:
            digest, same = arrival.digest(), known.setdefault(str(arrival.label), set())
            if digest in same:
                folder.put_away(arrival)
                done.again += 1
            else:
                same.add(digest)
                todo.append((arrival, digest))
        for start in range(0, len(todo), BATCH):
            _learn_batch(model, learner, folder, todo[start : start + BATCH], done)


def _taken(folder: WatchedFolder, learner: Learner, fresh: Iterable[Arrival], done: Watched) -> list[Arrival]:
    """Move what can be learned out of its class folder, and set aside what never can be."""
    taken = []
    odd = folder.odd_folders()
    kind, announced = learner._state().label_kind, learner._state().announced
    for arrival in fresh:
        label = str(arrival.label)
        if label in odd:
            continue
        if not can_read(kind, label) or (announced is not None and label not in announced):
            odd[label] = "the model has no labels of that kind" if announced is None else "it was not announced"
            continue
        try:
            reason = odd_file(arrival.path)
        except FileNotFoundError:  # whoever put it there took it away again
            continue
        if reason:
            _refuse(folder, arrival, reason, done)
        else:
            taken.append(folder.take(arrival))
    done.refused += list(odd.items())
    return taken


def _learn_batch(
    model: Any, learner: Learner, folder: WatchedFolder, batch: Sequence[tuple[Arrival, str]], done: Watched
) -> None:
    """Learn files as one change, and put them away; the commit decides whether they were."""
    found = _vectors(learner, [arrival.path for arrival, _ in batch])
    read = [(arrival, digest, X) for (arrival, digest), X in zip(batch, found, strict=True) if not isinstance(X, str)]
    if read:
        labels = [str(arrival.label) for arrival, _, X in read for _ in X]
        X = np.concatenate([X for _, _, X in read])
        learner.partial_fit(Features(X, np.arange(len(X))), as_labels(labels, learner._state().label_kind))
        files: dict[str, list[str]] = {}
        for arrival, digest, _ in read:
            files.setdefault(str(arrival.label), []).append(digest)
        note = f"watched {len(read)} file{'s' * (len(read) != 1)}"
        done.revision = commit(model, learner, Change("update", "", 0, note=note, extra={JOURNAL: files}))
        done.learned += len(read)
    for (arrival, _), vectors in zip(batch, found, strict=True):
        if isinstance(vectors, str):
            _refuse(folder, arrival, vectors, done)
        else:
            folder.put_away(arrival)


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
        for name, digests in _journal(change).items():
            held.setdefault(name, set()).update(digests)
    return held


def _journal(change: Change) -> dict[str, list[str]]:
    """Return the hashes that a change has, as far as they are such: a file may say anything."""
    found = change.extra.get(JOURNAL)
    if not isinstance(found, dict):
        return {}
    return {
        str(name): [digest for digest in digests if isinstance(digest, str)]
        for name, digests in found.items()
        if isinstance(digests, list)
    }


def _refuse(folder: WatchedFolder, arrival: Arrival, reason: str, done: Watched) -> None:
    name = arrival.path.name if arrival.label is None else f"{arrival.label}/{arrival.path.name}"
    folder.refuse(arrival, reason)
    done.refused.append((name, reason))


# -- reading --------------------------------------------------------------------------------------------------------


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
    if kind == "text":
        if path.suffix.lower() != ".txt" or path.stat().st_size > _LONGEST_TEXT:
            raise InputError(f"{path.name} must be a .txt file of one text, of at most {_LONGEST_TEXT:,} bytes")
        try:
            text = " ".join(path.read_text(encoding="utf-8").split())
        except UnicodeDecodeError as error:
            raise InputError(f"{path.name} must be UTF-8: {error}") from error
        if not text:
            raise InputError(f"{path.name} must hold a text, got none")
        return [text]
    if path.suffix.lower() != ".npy":
        raise InputError(f"{path.name} must be an .npy file of feature vectors")
    return list(np.asarray(read_items(path, "features").features))


# -- answering ------------------------------------------------------------------------------------------------------


def _answer_arrivals(
    model: Any, folder: WatchedFolder, done: Watched, false_alarm: float | None, settings: dict[str, Any]
) -> None:
    asked = list(folder.arrivals(None))
    learner = open_model(model, **settings) if asked else None
    for arrival in asked:
        found: NDArray[Any] | str = odd_file(arrival.path)
        if learner is not None and not len(found):
            found = _vectors(learner, [arrival.path])[0]
        if learner is None or isinstance(found, str):
            _refuse(folder, arrival, str(found), done)
        else:
            folder.answered(arrival, json.dumps(_answer(learner, arrival.path.name, found, false_alarm)))
            done.answered += 1


def _answer(learner: Learner, name: str, X: NDArray[Any], false_alarm: float | None) -> dict[str, Any]:
    """Return the answer about one file: of its only vector, or one for each."""
    usable = false_alarm if learner.info()["novelty"] else None
    found = learner.ask(Features(X, np.arange(len(X))), false_alarm=usable)
    rows = []
    for row, values in enumerate(found.values):
        order = np.argsort(-values, kind="stable")[:5]
        top = [{"class": str(found.classes[column]), found.measure: float(values[column])} for column in order]
        unknown = None if found.unknown is None else bool(found.unknown[row])
        entry: dict[str, Any] = {"class": None if unknown else top[0]["class"], found.measure: top[0][found.measure]}
        if found.novelty is not None:
            entry |= {"unknown": unknown, "novelty": float(found.novelty[row])}
        rows.append({**entry, "top": top})
    about = {"item": name, "revision": learner.revision_}
    return {**about, **rows[0]} if len(rows) == 1 else {**about, "answers": rows}
