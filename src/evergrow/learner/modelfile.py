"""A model in a file that many changes go through: each is whole or not there, one at a time, and can be undone.

``model.evg`` is always a complete model. Beside it ``model.evg.history`` holds the
states before it (:mod:`evergrow.learner.history`). The model as it is goes into the
history first; then the next one takes its place in one step, so that a crash at any
moment leaves the old model or the new one. Partial files that a killed process left are
removed by the next one that changes the model.

Each model names the revisions before it with their checksums; nothing else in the
history is ever put in its place. A link to a model stays a link: model, history and
lock are those of the file that it leads to. The history is open to nobody who may not
read the model.
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
from evergrow.core.files import existing_model
from evergrow.core.validation import check_number
from evergrow.learner.history import KEEP, Header, History, Undone, default_room
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Ancestor, Change, Lineage

_held: dict[Path, int] = {}  # models that are being changed here, and by which thread


class ModelWriteError(EvergrowError, OSError):
    """A model could not be written; what was there before still is."""


class Committed(int):
    """The revision that a change made; ``dropped`` lists the earlier ones that fell out of the history for it."""

    dropped: tuple[int, ...] = ()


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
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read_archive, model)
        if not settings.get(
            "lazy"
        ):  # what a head takes to import is imported while the file is read
            importlib.import_module("evergrow.head.classifier")
        archive = reading.result()
    learner = Learner.load(archive, name=os.fspath(path), **settings)
    learner.state_ = dataclasses.replace(learner.state_, origin=(model, archive.digest))
    return learner


@contextmanager
def locked_model(
    path: str | os.PathLike[str], *, wait: bool = False, **settings: Any
) -> Iterator[Learner]:
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
    ([('fit', ''), ('update', 'one more class')], ['fit', 'update', 'rollback'])
    """
    with _hold(path, wait):
        yield open_model(path, **settings)


def commit(
    path: str | os.PathLike[str],
    learner: Learner,
    change: Change | str | None = None,
    *,
    keep: int = KEEP,
    keep_bytes: int | None = None,
    wait: bool = False,
    who: str | None = None,
) -> Committed:
    """Make what a learner knows the next revision of a model file.

    All changes that the learner went through since it was loaded become one revision.
    Where nothing changed, nothing is written.

    Parameters
    ----------
    path : path-like
        The model file; a new one or an existing model, which is kept in the history.
    learner : Learner
        What to write. Its ``state_`` gets the revision of the file.
    change : Change or str, optional
        A note on the latest change, or a change whose note and further fields
        (``extra``) are taken.
    keep : int
        Earlier revisions to keep. With 0 they are removed once the model is on disk and
        before it takes its place: nothing of them stays, also after a kill.
    keep_bytes : int, optional
        Bytes that they may take; what they have in common counts once. By default model
        and history together take at most five times the model plus 20 MB.
    wait : bool
        Whether to wait for another writer instead of raising.
    who : str, optional
        Whose change it is; by default the user (:func:`author`).

    Returns
    -------
    Committed
        The revision of the file, an ``int``. Its ``dropped`` lists the revisions that
        fell out of the history.

    Raises
    ------
    BusyError
        If another process is changing the model, or has changed it since the learner
        was loaded from it.
    ModelWriteError
        If it cannot be written, for example because the disk is full; the model is as
        it was.
    """
    check_number("keep", keep, low=0, integer=True)
    check_number(
        "keep_bytes", 0 if keep_bytes is None else keep_bytes, low=0, integer=True
    )
    if isinstance(change, Change):
        remark = change
    else:
        remark = Change("update", "", 0, note=change or "")
    before = learner.state_
    with _hold(path, wait, new=True) as place, _writing(place.model):
        model = place.model
        current = None
        if model.exists():
            current = Header.read(model)
        digest, size = (
            ("", 0) if current is None else (current.digest, model.stat().st_size)
        )
        if current is None:
            lineage = Lineage()
        else:
            lineage = place.position(current)
        loaded_here = before.origin is not None and before.origin[0] == model
        if loaded_here and before.origin != (model, digest):
            raise BusyError(
                f"{model} must be as it was when the learner was loaded, but it was changed since: load it again"
            )
        # Changes that are in the file already keep their numbers; the others, one at
        # least, become this revision.
        if (
            current is not None
            and before.history[: len(current.history)] == current.history
        ):
            old = len(current.history)
        else:
            old = sum(
                entry.revision <= before.lineage.number for entry in before.history
            )
        if old == len(before.history) and loaded_here:
            return Committed(lineage.number)
        old = max(min(old, len(before.history) - 1), 0)
        number = max([*place.numbers(), lineage.number, before.lineage.number]) + 1
        if who is None:
            who = author()
        else:
            who = who
        fresh = [
            dataclasses.replace(entry, revision=number, who=entry.who or who)
            for entry in before.history[old:]
        ]
        for entry in fresh[-1:]:
            note = remark.note or entry.note
            extra = {**entry.extra, **remark.extra}
            fresh[-1] = dataclasses.replace(entry, note=note, extra=extra)
        if current is None:
            ancestors = ()
        else:
            ancestors = (*lineage.ancestors, Ancestor(lineage.number, digest))
        following = Lineage(number, ancestors)
        now = dataclasses.replace(
            before, history=(*before.history[:old], *fresh), lineage=following
        )
        if current is not None:
            place.log(current.digest)
            if keep:
                place.adopt(current)
        if keep:
            gone = []
        else:
            gone = place.numbers()
        digest = write_archive(
            model, now.to_archive(), written=lambda: place.remove(gone)
        )
        learner.state_ = dataclasses.replace(now, origin=(model, digest))
        if keep_bytes is None:
            room = default_room(size, model.stat().st_size)
        else:
            room = keep_bytes
        done = Committed(number)
        done.dropped = (*gone, *place.prune(following, keep, room))
    return done


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
        The record of it, as :func:`history` lists it from now on. :func:`redo` takes it
        back.

    Raises
    ------
    ParameterError
        If not as many earlier revisions are kept.
    FileFormatError
        If what is kept is damaged, was altered, or is no revision of this model.
    """
    check_number("n", n, low=1, integer=True)
    if who is None:
        who = author()
    else:
        who = who
    extra = dict(extra or {})
    with _hold(path, wait) as place, _writing(place.model):
        current = Header.read(place.model)
        place.undone()  # a broken log is said before anything else
        kept = place.kept(current)
        ancestors = current.lineage.ancestors
        if not kept:
            raise ParameterError(
                f"nothing to undo: no earlier state of {place.model} is kept in {place.folder}"
            )
        if n > len(ancestors) or ancestors[-n] not in kept:
            raise ParameterError(
                f"n must be at most {len(kept)}, the number of revisions kept, got {n}"
            )
        archive, body = place.verified(ancestors[-n].revision, ancestors[-n].digest)
        target = Header.of(archive, place.model)
        undone = [
            entry for entry in current.history if entry.revision > target.revision
        ]
        note = f"undid {', '.join(entry.what for entry in undone)}"
        samples = sum(entry.samples for entry in undone)
        change = Change.now(
            "rollback",
            samples,
            note=note,
            revision=target.revision,
            who=who,
            extra=extra,
        )
        entry = Undone(change, current.digest, target.digest, tuple(undone))
        place.restore(ancestors[-n].revision, body, entry)
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
        If not as many rollbacks can be taken back: there were none, or something else
        was learned since.
    FileFormatError
        If what is kept is damaged, or is not what was undone.
    """
    check_number("n", n, low=1, integer=True)
    if who is None:
        who = author()
    else:
        who = who
    extra = dict(extra or {})
    with _hold(path, wait) as place, _writing(place.model):
        steps = place.redoable(Header.read(place.model).digest)[:n]
        if not steps:
            raise ParameterError(
                f"nothing to redo: the latest change of {place.model} is no rollback"
            )
        numbers = [place.find(entry.before) for entry in steps]
        if None in numbers:
            note = steps[numbers.index(None)].change.note
            raise ParameterError(
                f"nothing to redo: what was undone ({note}) is no longer kept in {place.folder}"
            )
        if n > len(steps):
            raise ParameterError(
                f"n must be at most {len(steps)}, the number of rollbacks to take back, got {n}"
            )
        for entry, number in zip(steps, numbers, strict=True):
            note = f"redid {entry.change.note.removeprefix('undid ')}"
            archive, body = place.verified(number or 0, entry.before)
            revision = Header.of(archive, place.model).revision
            change = Change.now(
                "redo",
                entry.change.samples,
                note=note,
                revision=revision,
                who=who,
                extra=extra,
            )
            place.restore(number or 0, body, Undone(change, entry.after, entry.before))
    return change


def history(path: str | os.PathLike[str]) -> list[Change]:
    """Return all changes that a model went through, also those that were rolled back and that, the oldest first.

    Parameters
    ----------
    path : path-like
        The model file; its tensors are not read.
    """
    model = existing_model(path)
    header = Header.read(model)
    log = History(model).undone(header.digest)
    told = [
        *header.history,
        *(change for entry in log for change in (*entry.undone, entry.change)),
    ]
    once = {
        (change.what, change.when, change.revision): change for change in told
    }  # what was redone is there twice
    return sorted(once.values(), key=lambda change: change.when)


def open_revision(
    path: str | os.PathLike[str], number: int, **settings: Any
) -> Learner:
    """Load an earlier state of a model from its history, to be asked and not to be changed.

    Parameters
    ----------
    path : path-like
        The model file.
    number : int
        The revision, as :func:`history` lists it; that of the model itself is the
        model.
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
    place = History(model)
    current = Header.read(model)
    if number in (current.revision, current.lineage.number):
        return open_model(path, **settings)
    if number not in place.numbers():
        kept = sorted({*place.numbers(), current.revision})
        if len(kept) == 1:
            shown = f"kept is {kept[0]}"
        else:
            shown = f"kept are {kept[0]} to {kept[-1]}"
        raise ParameterError(f"Revision {number} is not kept; {shown}.")
    digests = {entry.revision: entry.digest for entry in current.lineage.ancestors}
    if number not in digests:  # it was undone, and the log has its checksum
        undone = {entry.before for entry in place.undone(current.digest)}
        digests[number] = next(
            (digest for digest in undone if place.find(digest) == number), ""
        )
    return Learner.load(
        place.verified(number, digests[number])[0],
        name=f"{os.fspath(path)}@{number}",
        **settings,
    )


def author() -> str:
    """Return who changes models here: ``$EVERGROW_AUTHOR`` where it is set, else the name of the user.

    An empty variable names nobody.
    """
    named = os.environ.get("EVERGROW_AUTHOR")
    if named is not None:
        return named.strip()
    try:
        return getpass.getuser()
    except (
        OSError,
        KeyError,
        ImportError,
    ):  # a container may run under a number without a name
        return ""


def kept_revisions(path: str | os.PathLike[str]) -> list[int]:
    """Return the revisions that :func:`rollback` can go back to, the oldest first; ``n`` counts from the end.

    Parameters
    ----------
    path : path-like
        The model file; nothing is changed.
    """
    model = existing_model(path)
    return [entry.revision for entry in History(model).kept(Header.read(model))]


def dropped_revisions(path: str | os.PathLike[str]) -> list[int]:
    """Return the revisions that led to a model and are no longer kept in its history, the oldest first.

    Parameters
    ----------
    path : path-like
        The model file; nothing is changed.
    """
    kept = kept_revisions(path)
    ancestors = Header.read(existing_model(path)).lineage.ancestors
    return [entry.revision for entry in ancestors if entry.revision not in kept]


def clean_folder(folder: Path) -> None:
    """Remove what killed processes left of models in a folder, except of those that another process is changing.

    Parameters
    ----------
    folder : Path
        Where the models lie.
    """
    partial = [
        file.name[1:].rsplit(".", 2)[0]
        for file in folder.glob(f".*.evg.*{files.PARTIAL}")
    ]
    kept = [
        place.name.removesuffix(".history") for place in folder.glob("*.evg.history")
    ]
    for name in {*partial, *kept}:
        with suppress(EvergrowError), _hold(folder / name, wait=False, new=True):
            pass


# -- one writer at a time --------------------------------------------------------------


def _target(path: str | os.PathLike[str], *, new: bool = False) -> Path:
    """Return where a model lies, or a new one will lie, or raise an error if it must not be written."""
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
def _hold(
    path: str | os.PathLike[str], wait: bool, *, new: bool = False
) -> Iterator[History]:
    """Keep other writers out; whoever holds the model already in this thread goes on."""
    model = _target(path, new=new)
    place = History(model)
    if _held.get(model) == threading.get_ident():
        yield place
        return
    with ExitStack() as stack:
        with _writing(model):
            place.secure()
            try:  # the folder, since the file itself is another one after every change
                stack.enter_context(files.locked(place.folder, wait=wait))
            except BusyError as error:
                raise BusyError(
                    f"{model} must not be in use, but another process is changing it; try again later"
                ) from error
            files.remove_leftovers(model.parent, f".{glob.escape(model.name)}.*")
            place.tidy()
        _held[model] = threading.get_ident()
        stack.callback(_held.pop, model, None)
        yield place


@contextmanager
def _writing(model: Path) -> Iterator[None]:
    try:
        yield
    except EvergrowError:
        raise
    except OSError as error:
        if "No space left" in str(
            error
        ):  # libraries that write files keep no number of an error
            raise ModelWriteError(
                f"No space left on the disk of {model}; the model was not changed."
            ) from error
        raise ModelWriteError(
            f"{model} could not be written; the model was not changed: {error}"
        ) from error
