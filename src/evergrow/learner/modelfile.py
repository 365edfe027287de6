"""Model files: atomic commits with a history, rollback and redo.

``model.evg`` is always a complete model. The folder ``model.evg.history`` beside it
holds earlier states (:mod:`evergrow.learner.history`). A commit copies the current
model into the history and then replaces the model file in one step. A crash at any
moment leaves either the old model or the new one. The next writer removes partial files
of killed processes.

Each model stores the checksums of the revisions before it. A rollback restores only
files with these checksums. A symbolic link to a model stays a link: model, history and
lock are those of its target. Only users who may read the model may read its history.
"""

from __future__ import annotations

import dataclasses
import getpass
import glob
import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from evergrow.core import files
from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import BusyError, EvergrowError, ParameterError, PathError
from evergrow.core.files import StrPath, existing_model
from evergrow.core.validation import check_integer
from evergrow.learner.history import (
    KEEP,
    Header,
    History,
    LogEntry,
    default_history_bytes,
)
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Ancestor, Change, Lineage, Snapshot

_locked: dict[Path, int] = {}
"""The thread that locked each model, of all models locked by this process."""


class ModelWriteError(EvergrowError, OSError):
    """A model could not be written; the file is unchanged."""


class Committed(int):
    """The new revision number; ``dropped`` lists revisions removed from the history."""

    dropped: tuple[int, ...] = ()


def open_model(path: StrPath, **settings: Any) -> Learner:
    """Load a model; :func:`commit` later checks that the file has not changed since.

    Parameters
    ----------
    path : path-like
        The model file.
    **settings
        For :meth:`evergrow.Learner.load`: ``backbone``, ``weights``, ``device``.

    Raises
    ------
    ModelNotFoundError
        If there is no such file.
    FileFormatError
        If it is not a model, is damaged or was altered.
    """
    model = existing_model(path)
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read_archive, model)
        if not settings.get("lazy"):  # import the head while the file is read
            importlib.import_module("evergrow.head.classifier")
        archive = reading.result()
    learner = Learner.load(archive, name=os.fspath(path), **settings)
    learner.state_ = dataclasses.replace(learner.state_, origin=(model, archive.digest))
    return learner


@contextmanager
def locked_model(
    path: StrPath, *, wait: bool = False, **settings: Any
) -> Iterator[Learner]:
    """Load a model and lock it until the block ends; :func:`commit` writes changes.

    Parameters
    ----------
    path : path-like
        The model file.
    wait : bool
        Whether to wait for another writer instead of raising.
    **settings
        As for :func:`open_model`.

    Raises
    ------
    BusyError
        If another process is changing the model and ``wait`` is false.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner.modelfile import commit, history, locked_model, rollback
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 4
    >>> learner = Learner(options={"n_units": 20}).fit((X[y < 3], y[y < 3]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.evg"
    ...     _ = commit(path, learner)
    ...     with locked_model(path) as learner:
    ...         _ = commit(path, learner.partial_fit((X, y)), "one more class")
    ...     before = [(change.what, change.note) for change in history(path)]
    ...     _ = rollback(path)
    ...     after = [change.what for change in history(path)]
    >>> before, after
    ([('fit', ''), ('update', 'one more class')], ['fit', 'update', 'rollback'])
    """
    with _lock(path, wait):
        yield open_model(path, **settings)


def commit(
    path: StrPath,
    learner: Learner,
    change: Change | str | None = None,
    *,
    keep: int = KEEP,
    keep_bytes: int | None = None,
    wait: bool = False,
    who: str | None = None,
) -> Committed:
    """Write a learner as the next revision of a model file.

    All changes since the learner was loaded become one revision. If nothing changed,
    nothing is written.

    Parameters
    ----------
    path : path-like
        The model file, new or existing. An existing model is kept in the history.
    learner : Learner
        The model to write. Its ``state_`` gets the revision of the file.
    change : Change or str, optional
        A note for the latest change, or a change whose note and ``extra`` fields are
        used.
    keep : int
        Number of earlier revisions to keep. With 0 they are removed after the new model
        is on disk and before it replaces the old one, so that they are gone
        even if the process is killed. It counts as 0 if the change unlearned samples
        with ``for_good=True``.
    keep_bytes : int, optional
        Maximum size of the history; shared pieces count once. By default model and
        history together take at most five times the model plus 20 MB.
    wait : bool, default=False
        Whether to wait for another writer instead of raising.
    who : str, optional
        Author of the change; by default the user (:func:`author`).

    Returns
    -------
    Committed
        The revision of the file, an ``int``. ``dropped`` lists the revisions removed
        from the history.

    Raises
    ------
    BusyError
        If another process is changing the model, or has changed it since the learner
        was loaded from it.
    ModelWriteError
        If it cannot be written, for example because the disk is full. The model is
        unchanged.
    """
    check_integer("keep", keep, low=0)
    if keep_bytes is not None:
        check_integer("keep_bytes", keep_bytes, low=0)
    if isinstance(change, Change):
        remark = change
    else:
        remark = Change("update", "", 0, note=change or "")
    state = learner.state_
    with _lock(path, wait, new=True) as past, _report_write_errors(past.model):
        model = past.model
        current = Header.read(model) if model.exists() else None
        old_size = 0 if current is None else model.stat().st_size
        is_loaded_here = _check_unchanged(state, current, model)
        lineage = Lineage() if current is None else past.lineage_of(current)
        n_written = _count_written(state, current)
        if is_loaded_here and n_written == len(state.history):
            return Committed(lineage.number)

        if any(change.for_good for change in state.history[n_written:]):
            keep = 0
        state = _next_revision(state, n_written, past, current, lineage, remark, who)
        if current is not None:
            past.append_log(current.digest)
            if keep:
                past.add_model(current)
        removed = [] if keep else past.numbers()
        digest = write_archive(
            model, state.to_archive(), written=lambda: past.remove(removed)
        )
        learner.state_ = dataclasses.replace(state, origin=(model, digest))
        if keep_bytes is None:
            keep_bytes = default_history_bytes(old_size, model.stat().st_size)
        committed = Committed(state.lineage.number)
        pruned = past.prune(state.lineage, keep, keep_bytes)
        committed.dropped = (*removed, *pruned)
    return committed


def _check_unchanged(state: Snapshot, current: Header | None, model: Path) -> bool:
    """Return whether a learner was loaded from this file, or last written to it.

    Raises
    ------
    BusyError
        If it was, and the file has changed since.
    """
    if state.origin is None or state.origin[0] != model:
        return False
    digest = "" if current is None else current.digest
    if state.origin[1] != digest:
        raise BusyError(
            f"{model} must be as it was when the learner was loaded, but it was "
            "changed since: load it again"
        )
    return True


def _count_written(state: Snapshot, current: Header | None) -> int:
    """Return how many changes of a learner are in the model file already.

    Without a file, or in one with another history, these are the changes of earlier
    commits to some file.
    """
    if current is not None:
        n = len(current.history)
        if state.history[:n] == current.history:
            return n
    return sum(change.revision <= state.lineage.number for change in state.history)


def _next_revision(
    state: Snapshot,
    n_written: int,
    past: History,
    current: Header | None,
    lineage: Lineage,
    remark: Change,
    who: str | None,
) -> Snapshot:
    """Return the state to write, whose new changes have one new revision number.

    Parameters
    ----------
    state : Snapshot
        The state of the learner.
    n_written : int
        Number of its changes that are written already. If these are all, the last one
        gets the new number nevertheless.
    past, current, lineage : History, Header or None, Lineage
        The history of the file, its present header if it exists, and its lineage.
    remark : Change
        Its note and ``extra`` fields are added to the last change.
    who : str or None
        Author of changes without one; None means :func:`author`.
    """
    n_written = max(min(n_written, len(state.history) - 1), 0)
    number = max([*past.numbers(), lineage.number, state.lineage.number]) + 1
    if who is None:
        who = author()
    new = [
        dataclasses.replace(change, revision=number, who=change.who or who)
        for change in state.history[n_written:]
    ]
    if new:
        note = remark.note or new[-1].note
        extra = {**new[-1].extra, **remark.extra}
        new[-1] = dataclasses.replace(new[-1], note=note, extra=extra)
    ancestors: tuple[Ancestor, ...] = ()
    if current is not None:
        parent = Ancestor(lineage.number, current.digest)
        ancestors = (*lineage.ancestors, parent)
    return dataclasses.replace(
        state,
        history=(*state.history[:n_written], *new),
        lineage=Lineage(number, ancestors),
    )


def rollback(
    path: StrPath,
    n: int = 1,
    *,
    wait: bool = False,
    who: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Change:
    """Undo the last changes; restores the earlier file byte for byte.

    Parameters
    ----------
    path : path-like
        The model file.
    n : int
        How many revisions to go back.
    wait : bool
        Whether to wait for another writer instead of raising.
    who : str, optional
        Author of the change; by default the user (:func:`author`).
    extra : mapping, optional
        Further fields of the record, as plain values.

    Returns
    -------
    Change
        The record of the rollback, listed by :func:`history`. :func:`redo` undoes it.

    Raises
    ------
    ParameterError
        If fewer than `n` earlier revisions are kept.
    FileFormatError
        If a kept revision is damaged, was altered, or belongs to another model.
    """
    check_integer("n", n)
    if who is None:
        who = author()
    with _lock(path, wait) as past, _report_write_errors(past.model):
        current = Header.read(past.model)
        past.log_entries()  # raises an error if the log is damaged
        restorable = past.restorable(current)
        ancestors = current.lineage.ancestors
        if not restorable:
            raise ParameterError(
                f"nothing to undo: no earlier state of {past.model} is kept in "
                f"{past.folder}"
            )
        if n > len(ancestors) or ancestors[-n] not in restorable:
            raise ParameterError(
                f"n must be at most {len(restorable)}, the number of revisions kept, "
                f"got {n}"
            )
        ancestor = ancestors[-n]
        archive, body = past.verified(ancestor.revision, ancestor.digest)
        target = Header.of(archive, past.model)
        undone = [
            entry for entry in current.history if entry.revision > target.revision
        ]
        change = Change.now(
            "rollback",
            sum(entry.samples for entry in undone),
            note=f"undid {', '.join(entry.what for entry in undone)}",
            revision=target.revision,
            who=who,
            extra=dict(extra or {}),
        )
        entry = LogEntry(change, current.digest, target.digest, tuple(undone))
        past.restore(ancestor.revision, body, entry)
    return change


def redo(
    path: StrPath,
    n: int = 1,
    *,
    wait: bool = False,
    who: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Change:
    """Undo rollbacks; restores the later file byte for byte.

    Parameters
    ----------
    path : path-like
        The model file.
    n : int
        Number of rollbacks to undo, the latest first.
    wait : bool
        Whether to wait for another writer instead of raising.
    who : str, optional
        Author of the change; by default the user (:func:`author`).
    extra : mapping, optional
        Further fields of the record, as plain values.

    Returns
    -------
    Change
        The record of the last redo, listed by :func:`history`.

    Raises
    ------
    ParameterError
        If fewer than `n` rollbacks can be undone: there were none, or the model has
        learned since.
    FileFormatError
        If a kept revision is damaged, or is not the one that was undone.
    """
    check_integer("n", n)
    if who is None:
        who = author()
    with _lock(path, wait) as past, _report_write_errors(past.model):
        steps = past.redoable(Header.read(past.model).digest)[:n]
        if not steps:
            raise ParameterError(
                f"nothing to redo: the latest change of {past.model} is not a rollback"
            )
        numbers = [past.find_revision(entry.before) for entry in steps]
        if None in numbers:
            note = steps[numbers.index(None)].change.note
            raise ParameterError(
                f"nothing to redo: the undone revision ({note}) is no longer kept in "
                f"{past.folder}"
            )
        if n > len(steps):
            raise ParameterError(
                f"n must be at most {len(steps)}, the number of rollbacks, got {n}"
            )
        for entry, number in zip(steps, numbers, strict=True):
            assert number is not None
            archive, body = past.verified(number, entry.before)
            change = Change.now(
                "redo",
                entry.change.samples,
                note=f"redid {entry.change.note.removeprefix('undid ')}",
                revision=Header.of(archive, past.model).revision,
                who=who,
                extra=dict(extra or {}),
            )
            past.restore(number, body, LogEntry(change, entry.after, entry.before))
    return change


def history(path: StrPath) -> list[Change]:
    """Return all changes of a model, including undone ones and rollbacks, oldest first.

    Parameters
    ----------
    path : path-like
        The model file; its tensors are not read.
    """
    model = existing_model(path)
    header = Header.read(model)
    log = History(model).log_entries(header.digest)
    changes = list(header.history)
    for entry in log:
        changes += [*entry.undone, entry.change]
    # Redone changes are listed twice.
    unique = {(change.what, change.when, change.revision): change for change in changes}
    return sorted(unique.values(), key=lambda change: change.when)


def open_revision(path: StrPath, number: int, **settings: Any) -> Learner:
    """Load an earlier state of a model from its history, for prediction only.

    Parameters
    ----------
    path : path-like
        The model file.
    number : int
        The revision, as listed by :func:`history`. The current revision loads the
        model itself.
    **settings
        As for :func:`open_model`.

    Raises
    ------
    ParameterError
        If the revision is not kept.
    FileFormatError
        If it is damaged, was altered, or belongs to another model.
    """
    model = existing_model(path)
    past = History(model)
    current = Header.read(model)
    if number in (current.revision, current.lineage.number):
        return open_model(path, **settings)
    if number not in past.numbers():
        kept = sorted({*past.numbers(), current.revision})
        shown = f"kept are {kept[0]} to {kept[-1]}"
        if len(kept) == 1:
            shown = f"kept is {kept[0]}"
        raise ParameterError(f"Revision {number} is not kept; {shown}.")
    digests = {entry.revision: entry.digest for entry in current.lineage.ancestors}
    if number not in digests:  # a rollback undid it; the log has its checksum
        for entry in past.log_entries(current.digest):
            if past.find_revision(entry.before) == number:
                digests[number] = entry.before
    archive, _ = past.verified(number, digests.get(number, ""))
    return Learner.load(
        archive,
        name=f"{os.fspath(path)}@{number}",
        **settings,
    )


def author() -> str:
    """Return ``$EVERGROW_AUTHOR``, or the name of the user if it is not set.

    If the variable is empty, changes are anonymous.
    """
    named = os.environ.get("EVERGROW_AUTHOR")
    if named is not None:
        return named.strip()
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""  # in a container, the user may have no name


def kept_revisions(path: StrPath) -> list[int]:
    """Return the revisions that :func:`rollback` can restore, oldest first.

    Parameters
    ----------
    path : path-like
        The model file; nothing is changed.
    """
    model = existing_model(path)
    return [entry.revision for entry in History(model).restorable(Header.read(model))]


def dropped_revisions(path: StrPath) -> list[int]:
    """Return the revisions no longer kept in the history, oldest first.

    Parameters
    ----------
    path : path-like
        The model file; nothing is changed.
    """
    kept = kept_revisions(path)
    ancestors = Header.read(existing_model(path)).lineage.ancestors
    return [entry.revision for entry in ancestors if entry.revision not in kept]


def clean_folder(folder: Path) -> None:
    """Remove files left by killed processes from a folder of models.

    Locking a model removes them. Models that another process is changing are skipped.

    Parameters
    ----------
    folder : Path
        The folder of the models.
    """
    partial = [
        file.name[1:].rsplit(".", 2)[0]
        for file in folder.glob(f".*.evg.*{files.PARTIAL}")
    ]
    with_history = [
        path.name.removesuffix(".history") for path in folder.glob("*.evg.history")
    ]
    for name in {*partial, *with_history}:
        with suppress(EvergrowError), _lock(folder / name, wait=False, new=True):
            pass


# -- locking --


def _writable_path(path: StrPath, new: bool) -> Path:
    """Return the file of a model, behind all links, after a check that it is writable.

    Raises
    ------
    ModelNotFoundError
        If the file is missing and need not be `new`.
    ModelWriteError
        If the file or its folder cannot be written.
    """
    if not new:
        existing_model(path)
    try:
        model = files.real_path(path)
        if not model.parent.is_dir():
            raise ModelWriteError(
                f"No folder {str(model.parent)!r} to write a model to."
            )
        files.check_replaceable(model)
        files.check_writable_folder(model.parent)
    except PathError as error:
        raise ModelWriteError(f"The model cannot be written: {error}") from error
    if model.exists() and not os.access(model, os.W_OK):
        raise ModelWriteError(
            f"The model cannot be written: you may not write {os.fspath(path)!r}"
        )
    return model


@contextmanager
def _lock(path: StrPath, wait: bool, *, new: bool = False) -> Iterator[History]:
    """Lock a model against other writers, and yield its history.

    Creates the history folder, and removes files of killed processes. A thread can lock
    a model again that it has locked.

    Raises
    ------
    BusyError
        If another process holds the lock and `wait` is false.
    """
    model = _writable_path(path, new)
    past = History(model)
    if _locked.get(model) == threading.get_ident():
        yield past
        return
    with ExitStack() as stack:
        with _report_write_errors(model):
            past.create_folder()
            try:  # lock the folder, because every commit replaces the file
                stack.enter_context(files.locked(past.folder, wait=wait))
            except BusyError as error:
                raise BusyError(
                    f"{model} must not be in use, but another process is changing it; "
                    "try again later"
                ) from error
            files.remove_leftovers(model.parent, f".{glob.escape(model.name)}.*")
            past.clean()
        _locked[model] = threading.get_ident()
        stack.callback(_locked.pop, model, None)
        yield past


@contextmanager
def _report_write_errors(model: Path) -> Iterator[None]:
    """Turn any ``OSError`` of the block into :class:`ModelWriteError`."""
    try:
        yield
    except EvergrowError:
        raise
    except OSError as error:
        # Libraries that write files may not set `errno`.
        if "No space left" in str(error):
            raise ModelWriteError(
                f"No space left on the disk of {model}; the model was not changed."
            ) from error
        raise ModelWriteError(
            f"{model} could not be written; the model was not changed: {error}"
        ) from error
