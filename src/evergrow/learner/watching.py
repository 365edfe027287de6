"""Learning what appears in a folder, each file exactly once, also after a kill at any moment.

The change that a batch of files makes is written to the model's file together with hashes of these files, in one step.
A file is put away once the model names it, as :mod:`evergrow.learner.filing` puts files: after a crash in between the
next look only puts it away. Undoing that change undoes the list with it.

    FOLDER/<class>/cat.jpg              arrives, to be learned
    FOLDER/done/learned/<class>/...     learned
    FOLDER/done/refused/<class>/...     could not be read
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, EvergrowError, InputError
from evergrow.core.files import PARTIAL, locked
from evergrow.data.intake import read_items
from evergrow.features import Features
from evergrow.learner.filing import free_name, holds, odd_file, odd_name, own_folder, put_file
from evergrow.learner.labels import as_labels, can_read
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, locked_model
from evergrow.learner.snapshot import Change

BATCH = 500
"""Files that become one change at most."""

JOURNAL = "watched"
"""Field of a change that has the hashes of the files it learned, by class."""

DONE = "done"
"""The folder that is no class."""
_ENDINGS = {"text": ".txt", "features": ".npy"}
_LONGEST_TEXT = 1_000_000
_UNFINISHED = (PARTIAL, ".tmp", ".crdownload", ".partial", ".download", ".filepart")


@dataclass
class Watched:
    """What looks at a folder led to.

    Parameters
    ----------
    learned : int
        Files learned.
    again : int
        Files that the model had learned before; they were only put away.
    refused : dict of str to str
        Files and folders that were not taken, with the reason.
    waiting : bool
        Whether files are there that may still be written to.
    """

    learned: int = 0
    again: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    waiting: bool = False

    def add(self, other: Watched) -> None:
        """Add what a later look led to."""
        self.learned, self.again = self.learned + other.learned, self.again + other.again
        self.refused |= other.refused
        self.waiting = other.waiting


def watch_once(
    model: str | os.PathLike[str], folder: Path, *, quiet: float = 2.0, wait: bool = False, **settings: Any
) -> Watched:
    """Learn what has arrived in the class folders of a folder.

    Parameters
    ----------
    model : path-like
        The model file.
    folder : Path
        A folder with a subfolder for each class.
    quiet : float
        Seconds for which a file must not have changed to count as whole.
    wait : bool
        Whether to wait for another process that changes the model, or looks at the folder.
    **settings
        For :func:`~evergrow.learner.modelfile.open_model`.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    BusyError
        If another process changes the model or looks at the folder, and ``wait`` is false.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner.watching import watch_once
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)) + 5 * np.eye(5)[np.arange(40) % 2], np.arange(40) % 2
    >>> with tempfile.TemporaryDirectory() as place:
    ...     model, root = f"{place}/model.evg", Path(place, "new")
    ...     Learner(options={"n_units": 20}).fit(X, [f"class {label}" for label in y]).save(model)
    ...     (root / "class 2").mkdir(parents=True)
    ...     np.save(root / "class 2" / "seven.npy", X[:7] - 5)
    ...     print(watch_once(model, root, quiet=0).learned, watch_once(model, root, quiet=0).learned)
    1 0
    """
    if not folder.is_dir():
        raise DatasetNotFoundError(f"No folder {os.fspath(folder)!r} to watch here.")
    done = Watched()
    fresh = _arrivals(folder, quiet, done)
    if not fresh:
        return done
    settings = {**settings, "cache": False, "extract": {**(settings.get("extract") or {}), "on_error": "raise"}}
    with locked(own_folder(folder, DONE), wait=wait), locked_model(model, wait=wait, **settings) as learner:
        todo = _to_learn(learner, fresh, done)
        for start in range(0, len(todo), BATCH):
            _learn(model, learner, todo[start : start + BATCH], done)
    return done


def _arrivals(folder: Path, quiet: float, done: Watched) -> list[Path]:
    """Return the files of class folders that have arrived whole."""
    found = []
    for place in sorted(filter(Path.is_dir, folder.iterdir())):  # a link that leads in a circle is no folder
        if place.name == DONE or place.name.startswith("."):
            continue
        if reason := "it is a link" if place.is_symlink() else odd_name(place.name):
            done.refused[place.name] = reason
            continue
        for path in sorted(place.iterdir()):
            if path.name.startswith(".") or path.name.lower().endswith(_UNFINISHED):
                continue
            with suppress(FileNotFoundError):  # whoever put it there took it away again
                if reason := odd_file(path):
                    done.refused[_name(path)] = reason
                elif abs(time.time() - os.lstat(path).st_mtime) < quiet:
                    done.waiting = True
                else:
                    found.append(path)
    return found


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _to_learn(learner: Learner, fresh: Iterable[Path], done: Watched) -> list[tuple[Path, str]]:
    """Return the files that the model has not learned, with hashes; the others are put away."""
    known, todo = learned_files(learner.history_), []
    for path in fresh:
        label, digest = path.parent.name, _digest(path)
        if not can_read(learner._state().label_kind, label):
            done.refused[label] = "the model has no labels of that kind"
        elif digest in known.setdefault(label, set()):
            _put_away(path, "learned")
            done.again += 1
        elif digest:
            known[label].add(digest)
            todo.append((path, digest))
    return todo


def _learn(model: Any, learner: Learner, batch: list[tuple[Path, str]], done: Watched) -> None:
    """Learn files as one change, and put them away; the commit decides whether they were learned."""
    rows: list[tuple[Path, NDArray[Any]]] = []
    files: dict[str, list[str]] = {}
    for (path, digest), X in zip(batch, _vectors(learner, [path for path, _ in batch]), strict=True):
        if isinstance(X, str):
            done.refused[_name(path)] = X
            _put_away(path, "refused")
        elif _digest(path) == digest:  # else it was changed meanwhile, and the next look takes it
            rows.append((path, X))
            files.setdefault(path.parent.name, []).append(digest)
    if rows:
        X, labels = np.concatenate([X for _, X in rows]), [path.parent.name for path, X in rows for _ in X]
        learner.partial_fit(Features(X, np.arange(len(X))), as_labels(labels, learner._state().label_kind))
        note = f"watched {len(rows)} file{'s' * (len(rows) != 1)}"
        commit(model, learner, Change("update", "", 0, note=note, extra={JOURNAL: files}))
        done.learned += len(rows)
    for path, _ in rows:
        _put_away(path, "learned")


def _digest(path: Path) -> str:
    """Return a hash of a file; nothing where it is no longer there."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
    except FileNotFoundError:
        return ""


def _put_away(path: Path, where: str) -> None:
    """Move a file of a class to a folder of ``done``; a name that another file has gets a number."""
    root = path.parent.parent
    place = own_folder(root, DONE, where, path.parent.name)

    def taken(name: str) -> bool:
        return os.path.lexists(place / name) and not holds(path, place / name, "move")

    with suppress(FileNotFoundError):  # whoever put it there took it away again
        put_file(path, place / free_name(path.name, taken), "move", own_folder(root, DONE, ".moving"))


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
    except (EvergrowError, OSError, UnicodeError) as error:
        if len(paths) == 1:
            return [str(error)]
    middle = len(paths) // 2  # one that is refused must not take others along
    return _vectors(learner, paths[:middle]) + _vectors(learner, paths[middle:])


def _items(path: Path, kind: str) -> list[Any]:
    """Return what a file holds for a model of this kind: an image, a text, or feature vectors."""
    if kind == "image":
        return [path]
    if path.suffix.lower() != _ENDINGS[kind]:
        raise InputError(f"{path.name} must be a file of kind {_ENDINGS[kind]} for a model of {kind}")
    if kind == "features":
        return list(np.asarray(read_items(path, kind).features))
    with open(path, encoding="utf-8") as file:
        text = " ".join(file.read(_LONGEST_TEXT).split())
    if not text:
        raise InputError(f"{path.name} must hold a text, got none")
    return [text]
