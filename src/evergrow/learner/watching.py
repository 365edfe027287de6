"""Learning what appears in a folder, each file exactly once, also after a kill at any moment.

The change that a batch of files makes is written to the model's file together with hashes of these files, in one step.
After a crash a file that was taken up is learned if the model does not name it, and only put away if it does. Undoing
that change undoes the list with it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DataWarning, EvergrowError, InputError
from evergrow.data.intake import read_items
from evergrow.features import Features
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.labels import as_labels, can_read
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, locked_model, open_model
from evergrow.learner.snapshot import Change
from evergrow.learner.watched_folder import Arrival, WatchedFolder, odd_file

BATCH = 500
"""Files that become one change at most."""

JOURNAL = "watched"
"""Field of a change that has the hashes of the files it learned, by class."""

_LONGEST_TEXT = 1_000_000


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
    >>> from evergrow.learner.watched_folder import WatchedFolder
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
    settings = {**settings, "cache": False, "extract": {**(settings.get("extract") or {}), "on_error": "skip"}}
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
    X, owners, refused = _vectors(learner, [arrival for arrival, _ in batch])
    if len(owners):
        labels = [str(batch[owner][0].label) for owner in owners.tolist()]
        learner.partial_fit(_as_features(X), as_labels(labels, learner._state().label_kind))
        files: dict[str, list[str]] = {}
        for owner in sorted(set(owners.tolist())):
            files.setdefault(str(batch[owner][0].label), []).append(batch[owner][1])
        _note(learner, files)
        number = sum(map(len, files.values()))
        done.revision = commit(model, learner, f"watched {number} file{'s' * (number != 1)}")
        done.learned += number
    for place, (arrival, _) in enumerate(batch):
        if place in refused:
            _refuse(folder, arrival, refused[place], done)
        else:
            folder.put_away(arrival)


def _note(learner: Learner, files: dict[str, list[str]]) -> None:
    """Write into the latest change which files it learned."""
    now = learner._state()
    last = now.history[-1]
    last = dataclasses.replace(last, extra={**last.extra, JOURNAL: files})
    learner._snapshot = dataclasses.replace(now, history=(*now.history[:-1], last))


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


def _vectors(learner: Learner, files: Sequence[Arrival]) -> tuple[NDArray[Any], NDArray[np.int64], dict[int, str]]:
    """Return feature vectors, the file that each belongs to, and why others could not be read."""
    items: list[Any] = []
    owners: list[int] = []
    refused: dict[int, str] = {}
    for place, arrival in enumerate(files):
        read = _items_or_reason(arrival.path, learner.kind_)
        if isinstance(read, str):
            refused[place] = read
            continue
        items += read
        owners += [place] * len(read)
    found: list[NDArray[Any]] = []
    kept: list[int] = []
    for start in range(0, len(items), 256):
        X, rows, failed = _encoded(learner, items[start : start + 256])
        if len(rows):
            found.append(X)
        kept += [owners[start + row] for row in rows]
        refused |= {owners[start + row]: reason for row, reason in failed.items()}
    whole = np.concatenate(found) if found else np.empty((0, 0))
    return whole, np.asarray(kept, dtype=np.int64), refused


def _items_or_reason(path: Path, kind: str) -> list[Any] | str:
    """Return what a file holds, or why it cannot be read."""
    try:
        return _items(path, kind)
    except (EvergrowError, OSError) as error:
        return str(error)


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


def _as_features(X: NDArray[Any]) -> Features:
    """Return what the model's own backbone made as what needs not be made again."""
    return Features(X, np.arange(len(X)))


def _encoded(learner: Learner, items: list[Any]) -> tuple[NDArray[Any], list[int], dict[int, str]]:
    """Return features of what can be read, its rows, and why the rest cannot."""
    try:
        with warnings.catch_warnings():  # what is left out is told file by file
            warnings.simplefilter("ignore", DataWarning)
            found = learner.features(items)
        rows = found.rows.tolist()
        missing = [row for row in range(len(items)) if row not in set(rows)]
        return found.X, rows, {row: why for row, (_, why) in zip(missing, found.failures, strict=True)}
    except EvergrowError as error:
        if len(items) == 1:
            return np.empty((0, 0)), [], {0: str(error)}
    parts = [_encoded(learner, [item]) for item in items]  # one that is refused as a whole must not take others along
    kept = [row for row, (_, rows, _) in enumerate(parts) if rows]
    X = np.concatenate([parts[row][0] for row in kept]) if kept else np.empty((0, 0))
    return X, kept, {row: failed[0] for row, (_, _, failed) in enumerate(parts) if failed}


# -- answering ------------------------------------------------------------------------------------------------------


def _answer_arrivals(
    model: Any, folder: WatchedFolder, done: Watched, false_alarm: float | None, settings: dict[str, Any]
) -> None:
    asked = list(folder.arrivals(None))
    learner = open_model(model, **settings) if asked else None
    for arrival in asked:
        if learner is None:
            return
        reason = odd_file(arrival.path)
        answer = None
        if not reason:
            X, owners, refused = _vectors(learner, [arrival])
            reason = refused.get(0, "")
            if len(owners):
                answer = json.dumps(_answer(learner, arrival.path.name, X, false_alarm))
        if answer is None:
            _refuse(folder, arrival, reason, done)
        else:
            folder.answered(arrival, answer)
            done.answered += 1


def _answer(learner: Learner, name: str, X: NDArray[Any], false_alarm: float | None) -> dict[str, Any]:
    """Return the answer about one file: of its only vector, or one for each."""
    usable = false_alarm if hasattr(learner.head_, "novelty_score") and learner._state().calibration.n else None
    found = learner.ask(_as_features(X), false_alarm=usable)
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
