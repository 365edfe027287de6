"""A model in a file that many changes go through: each is whole or not there, one at a time, and can be undone.

``model.evg`` is always a complete model. Beside it ``model.evg.history`` holds the latest revisions as
``<number>.evg`` (hard links, so that the current one takes no room twice; copies where there are no links) and
``log.json``, which records what was rolled back and redone. A change is written to the history first and then put in
the model's place in one step, so that a crash at any moment leaves the old model or the new one.

Each model names the revisions before it with their checksums; nothing else in the history is ever put in its place. A
link to a model stays a link: model, history and lock are those of the file that it leads to. The history is open to
nobody who may not read the model.
"""

from __future__ import annotations

import dataclasses
import errno
import getpass
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors

from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import BusyError, EvergrowError, ParameterError, PathError
from evergrow.core.errors import ModelNotFoundError as ModelNotFoundError
from evergrow.core.files import atomic_path, check_replaceable, existing_model, link_or_copy, locked, real_path
from evergrow.core.validation import check_number
from evergrow.learner.history import Header, History, Undone
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Change, Event, Lineage, Snapshot

KEEP = 10
"""Earlier revisions kept, unless another number is asked for."""

_held: dict[Path, int] = {}
_guard = threading.Lock()


class ModelWriteError(EvergrowError, OSError):
    """A model could not be written; what was there before still is."""


def open_model(path: str | os.PathLike[str], **settings: Any) -> Learner:
    """Load a model; whoever changes it later is checked against what it is now.

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
        If it is no model, is damaged or was altered.
    """
    model = existing_model(path)
    archive = read_archive(model)
    learner = Learner.load(archive, name=os.fspath(path), **settings)
    learner._origin = (model, archive.digest)
    return learner


@contextmanager
def locked_model(path: str | os.PathLike[str], *, wait: bool = False, **settings: Any) -> Iterator[Learner]:
    """Load a model and keep other writers out until the block ends; changes are written by :func:`commit`.

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
    >>> from evergrow.learner.learner import Learner
    >>> from evergrow.learner.modelfile import commit, history, locked_model, rollback
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 4
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.evg"
    ...     _ = commit(path, Learner(options={"n_units": 20}).fit((X[y < 3], y[y < 3])))
    ...     with locked_model(path) as learner:
    ...         _ = commit(path, learner.partial_fit((X, y)), "one more class")
    ...     before = [(change.what, change.note) for change in history(path)]
    ...     _ = rollback(path)
    ...     after = [change.what for change in history(path)]
    >>> before, after
    ([('fit', ''), ('update', 'one more class')], ['fit', 'rollback'])
    """
    model = _changeable(path)
    with _hold(model, wait=wait):
        yield open_model(path, **settings)


def commit(
    path: str | os.PathLike[str],
    learner: Learner,
    change: Change | str | None = None,
    *,
    keep: int = KEEP,
    wait: bool = False,
    who: str | None = None,
) -> int:
    """Make what a learner knows the next revision of a model file.

    All changes that the learner went through since it was loaded become one revision. Where nothing changed, nothing is
    written.

    Parameters
    ----------
    path : path-like
        The model file; a new one or an existing model, which is kept in the history.
    learner : Learner
        What to write. Its ``revision_`` becomes that of the file.
    change : Change or str, optional
        A note on the latest change, or a change whose note and further fields (``extra``) are taken.
    keep : int
        Earlier revisions to keep.
    wait : bool
        Whether to wait for another writer instead of raising.
    who : str, optional
        Whose change it is; by default the user (:func:`author`).

    Returns
    -------
    int
        The revision of the file.

    Raises
    ------
    BusyError
        If another process is changing the model, or has changed it since the learner was loaded from it.
    ModelWriteError
        If it cannot be written, for example because the disk is full; the model is as it was.
    """
    check_number("keep", keep, low=0, integer=True)
    model = _writable(path)
    remark = change if isinstance(change, Change) else Change("update", "", 0, note=change or "")
    before = learner._state()
    with _hold(model, wait=wait):
        place = History(model)
        place.clean()
        current = Header.read(model) if model.exists() else None
        _check_origin(model, learner, current)
        lineage = Lineage()
        if current is not None:
            with _writing(model):
                place.restrict()
                lineage = place.adopt(current)
        fresh = len(before.history) - _written(before, current)
        if not fresh and current is not None and learner._origin == (model, current.digest):
            return lineage.number
        number = max([*place.numbers(), lineage.number, before.lineage.number]) + 1
        entries = _renumbered(before.history, max(fresh, 1), number, remark, author() if who is None else who)
        following = Lineage(number) if current is None else lineage.next(number, current.digest)
        learner._snapshot = dataclasses.replace(before, history=entries, lineage=following)
        try:
            with _writing(model):
                digest = write_archive(place.file(number), learner.to_archive(), like=model)
                _publish(place.file(number), model)
        except BaseException:
            learner._snapshot = before
            raise
        learner._origin = (model, digest)
        place.prune(following, keep)
    return number


def rollback(
    path: str | os.PathLike[str],
    n: int = 1,
    *,
    wait: bool = False,
    who: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Change:
    """Undo the last changes of a model: the file is again, byte for byte, what it was before them.

    Parameters
    ----------
    path : path-like
        The model file.
    n : int
        How many revisions to go back.
    wait : bool
        Whether to wait for another writer instead of raising.
    who : str, optional
        Whose change it is; by default the user (:func:`author`).
    extra : mapping, optional
        Further plain fields of the record.

    Returns
    -------
    Change
        The record of it, as :func:`history` lists it from now on. :func:`redo` takes it back.

    Raises
    ------
    ParameterError
        If not as many earlier revisions are kept.
    FileFormatError
        If what is kept is damaged, was altered, or is no revision of this model.
    """
    check_number("n", n, low=1, integer=True)
    model = _changeable(path)
    with _hold(model, wait=wait):
        place, current = History(model), Header.read(model)
        place.clean()
        with _writing(model):
            place.restrict()
            lineage = place.adopt(current)
        kept = [entry for entry in lineage.ancestors if place.is_kept(entry)]
        if not kept:
            raise ParameterError(_nothing_to_undo(model, lineage, place))
        if n > len(lineage.ancestors) or lineage.ancestors[-n] not in kept:
            raise ParameterError(f"n must be at most {len(kept)}, the number of revisions kept, got {n}")
        ancestor = lineage.ancestors[-n]
        header = place.verified(ancestor.revision, ancestor.digest)
        undone = [entry for entry in current.history if entry.revision > header.revision]
        note, samples = f"undid {', '.join(entry.what for entry in undone)}", sum(entry.samples for entry in undone)
        change = _step("rollback", samples, note, header.revision, who, extra)
        with _writing(model):
            place.record(Undone(change, current.digest, header.digest))
            _publish(place.file(ancestor.revision), model)
    return change


def redo(
    path: str | os.PathLike[str],
    n: int = 1,
    *,
    wait: bool = False,
    who: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Change:
    """Take rollbacks back: the file is again, byte for byte, what it was before them.

    Parameters
    ----------
    path : path-like
        The model file.
    n : int
        How many rollbacks to take back, the latest first.
    wait : bool
        Whether to wait for another writer instead of raising.
    who : str, optional
        Whose change it is; by default the user (:func:`author`).
    extra : mapping, optional
        Further plain fields of the record.

    Returns
    -------
    Change
        The record of the last one, as :func:`history` lists it from now on.

    Raises
    ------
    ParameterError
        If not as many rollbacks can be taken back: there were none, or something else was learned since.
    FileFormatError
        If what is kept is damaged, or is not what was undone.
    """
    check_number("n", n, low=1, integer=True)
    model = _changeable(path)
    with _hold(model, wait=wait):
        place, digest = History(model), Header.read(model).digest
        place.clean()
        steps = [(entry, place.find(entry.before)) for entry in place.redoable(digest)[:n]]
        if not steps:
            raise ParameterError(f"nothing to redo: the latest change of {model} is no rollback")
        lost = next((entry for entry, number in steps if number is None), None)
        if lost is not None:
            raise ParameterError(
                f"nothing to redo: what was undone ({lost.change.note}) is no longer kept in {place.folder}"
            )
        if n > len(steps):
            raise ParameterError(f"n must be at most {len(steps)}, the number of rollbacks to take back, got {n}")
        for entry, number in steps:
            header = place.verified(number or 0, entry.before)
            note = f"redid {entry.change.note.removeprefix('undid ')}"
            change = _step("redo", entry.change.samples, note, header.revision, who, extra)
            with _writing(model):
                place.restrict()
                place.record(Undone(change, entry.after, entry.before))
                _publish(place.file(number or 0), model)
    return change


def _step(
    what: Event, samples: int, note: str, revision: int, who: str | None, extra: Mapping[str, Any] | None
) -> Change:
    """Return the record of a rollback or a redo."""
    change = Change.now(what, samples, note=note).numbered(revision).by(author() if who is None else who)
    return dataclasses.replace(change, extra={**change.extra, **(extra or {})})


def _nothing_to_undo(model: Path, lineage: Lineage, place: History) -> str:
    if lineage.ancestors:
        return f"nothing to undo: none of the earlier states of {model} is kept in {place.folder}"
    return f"nothing to undo: {model} is as it was first written; earlier states would lie in {place.folder}"


def history(path: str | os.PathLike[str]) -> list[Change]:
    """Return all changes that led to a model, and what was rolled back on the way, the oldest first.

    Parameters
    ----------
    path : path-like
        The model file; its tensors are not read.
    """
    model = existing_model(path)
    header = Header.read(model)
    undone = [entry.change for entry in History(model).happened(header.digest)]
    return sorted([*header.history, *undone], key=lambda entry: entry.when)


def open_revision(path: str | os.PathLike[str], number: int, **settings: Any) -> Learner:
    """Load an earlier state of a model from its history, to be asked and not to be changed.

    Parameters
    ----------
    path : path-like
        The model file.
    number : int
        The revision, as :func:`history` lists it; that of the model itself is the model.
    **settings
        As for :func:`open_model`.

    Raises
    ------
    ParameterError
        If it is not kept.
    FileFormatError
        If it is damaged, was altered, or is no revision of this model.
    """
    model = existing_model(path)
    place, current = History(model), Header.read(model)
    if number in (current.revision, current.lineage.number):
        return open_model(path, **settings)
    ancestor = next((entry for entry in current.lineage.ancestors if entry.revision == number), None)
    if number not in place.numbers():
        kept = sorted({*place.numbers(), current.revision})
        shown = f"kept is {kept[0]}" if len(kept) == 1 else f"kept are {kept[0]} to {kept[-1]}"
        raise ParameterError(f"Revision {number} is not kept; {shown}.")
    if ancestor is not None:
        place.verified(ancestor.revision, ancestor.digest)
    else:
        undone = {entry.before for entry in place.happened(current.digest)}
        place.verified(number, next((digest for digest in undone if place.find(digest) == number), ""))
    return Learner.load(place.file(number), name=f"{os.fspath(path)}@{number}", **settings)


def author() -> str:
    """Return who changes models here: ``$EVERGROW_AUTHOR`` where it is set, else the name of the user.

    An empty variable names nobody.
    """
    named = os.environ.get("EVERGROW_AUTHOR")
    if named is not None:
        return named.strip()
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run under a number without a name
        return ""


def kept_revisions(path: str | os.PathLike[str]) -> list[int]:
    """Return the revisions that :func:`rollback` can go back to, the oldest first; ``n`` counts from the end.

    Parameters
    ----------
    path : path-like
        The model file; nothing is changed.
    """
    model = existing_model(path)
    header, place = Header.read(model), History(model)
    if header.lineage.number < header.revision:  # saved by hand: what led to it lies elsewhere
        return []
    return [entry.revision for entry in header.lineage.ancestors if place.is_kept(entry)]


# -- one writer at a time -----------------------------------------------------------------------------------


@contextmanager
def _hold(model: Path, *, wait: bool) -> Iterator[None]:
    """Keep other writers out; whoever holds the model already in this thread goes on."""
    me, place = threading.get_ident(), History(model)
    with _guard:
        nested = _held.get(model) == me
    if nested:
        yield
        return
    with _writing(model):
        place.make_folder()
    holding = locked(place.folder, wait=wait)  # the folder, since the file itself is another one after every change
    try:
        holding.__enter__()
    except BusyError as error:
        raise BusyError(f"{model} must not be in use, but another process is changing it; try again later") from error
    try:
        with _guard:
            _held[model] = me
        yield
    finally:
        with _guard:
            _held.pop(model, None)
        holding.__exit__(None, None, None)


def _check_origin(model: Path, learner: Learner, current: Header | None) -> None:
    """Refuse to overwrite what another process wrote after the learner was loaded."""
    if learner._origin is None or learner._origin[0] != model:
        return
    if current is None or current.digest != learner._origin[1]:
        raise BusyError(
            f"{model} must be as it was when the learner was loaded, but it was changed since: load it again"
        )


# -- writing ------------------------------------------------------------------------------------------------


def _written(before: Snapshot, current: Header | None) -> int:
    """Return how many changes of a learner are in a file already and keep their numbers."""
    if current is not None and before.history[: len(current.history)] == current.history:
        return len(current.history)
    return sum(entry.revision <= before.lineage.number for entry in before.history)


def _renumbered(entries: tuple[Change, ...], fresh: int, number: int, remark: Change, who: str) -> tuple[Change, ...]:
    old, new = entries[:-fresh], [entry.numbered(number).by(who) for entry in entries[-fresh:]]
    if new:
        last = new[-1]
        new[-1] = dataclasses.replace(last, note=remark.note or last.note, extra={**last.extra, **remark.extra})
    return (*old, *new)


def _publish(source: Path, model: Path) -> None:
    """Put a revision in the model's place in one step."""
    with atomic_path(model, like=source) as temporary:
        link_or_copy(source, temporary)


def _changeable(path: str | os.PathLike[str]) -> Path:
    """Return where a model lies that is about to be changed."""
    existing_model(path)
    return _writable(path)


def _writable(path: str | os.PathLike[str]) -> Path:
    """Return where a model lies, or will lie, that may be written."""
    try:
        model = real_path(path)
        if not model.parent.is_dir():
            raise ModelWriteError(f"No folder {str(model.parent)!r} to write a model to.")
        check_replaceable(model)
    except PathError as error:
        raise ModelWriteError(f"The model cannot be written: {error}") from error
    if model.exists() and not os.access(model, os.W_OK):
        raise ModelWriteError(f"The model cannot be written: you may not write {os.fspath(path)!r}")
    return model


@contextmanager
def _writing(model: Path) -> Iterator[None]:
    try:
        yield
    except EvergrowError:
        raise
    except (OSError, safetensors.SafetensorError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise ModelWriteError(f"No space left on {model.parent}; the model was not changed.") from error
        raise ModelWriteError(f"{model} could not be written; the model was not changed: {error}") from error
