"""A model in a file that many changes go through: each is whole or not there, one at a time, and can be undone.

``model.evg`` is always a complete model. Beside it ``model.evg.history`` holds the latest revisions as
``<number>.evg`` (hard links, so that the current one takes no room twice; copies where there are no links) and
``log.json``, which records what was rolled back and redone. A change is written to the history first and then put in
the model's place in one step, so that a crash at any moment leaves the old model or the new one. Partial files that a
killed process left are removed by the next one that changes the model.

Each model names the revisions before it with their checksums; nothing else in the history is ever put in its place. A
link to a model stays a link: model, history and lock are those of the file that it leads to. The history is open to
nobody who may not read the model.
"""

from __future__ import annotations

import dataclasses
import filecmp
import getpass
import glob
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from evergrow.core import files
from evergrow.core.archive import Archive, parse_json, read_archive, read_header, write_archive
from evergrow.core.errors import BusyError, EvergrowError, FileFormatError, NewerSchemaError, ParameterError, PathError
from evergrow.core.files import existing_model
from evergrow.core.record import UNWRITTEN, from_values, to_values
from evergrow.core.validation import check_number
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Ancestor, Change, Lineage, check_history

KEEP = 10
"""Earlier revisions kept, unless another number is asked for."""

_DIGITS = 9  # of a revision's number: no model gets beyond it, and a foreign file must not push the count there
_held: dict[Path, int] = {}  # models that are being changed here, and by which thread


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
    learner.origin_ = (model, archive.digest)
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
    with _hold(path, wait):
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
    remark = change if isinstance(change, Change) else Change("update", "", 0, note=change or "")
    before = learner._state()
    with _hold(path, wait, new=True) as place, _writing(place.model):
        model, current, lineage = place.model, None, Lineage()
        if model.exists():
            current = Header.read(model)
        digest = "" if current is None else current.digest
        origin = learner.origin_ if learner.origin_ is not None and learner.origin_[0] == model else None
        if origin is not None and origin[1] != digest:
            raise BusyError(
                f"{model} must be as it was when the learner was loaded, but it was changed since: load it again"
            )
        if current is not None:
            lineage = place.adopt(current)
        # Changes that are in the file already keep their numbers; the others, one at least, become this revision.
        if current is not None and before.history[: len(current.history)] == current.history:
            old = len(current.history)
        else:
            old = sum(entry.revision <= before.lineage.number for entry in before.history)
        if old == len(before.history) and origin is not None:
            return lineage.number
        old = max(min(old, len(before.history) - 1), 0)
        number = max([*place.numbers(), lineage.number, before.lineage.number]) + 1
        who = author() if who is None else who
        fresh = [dataclasses.replace(entry, revision=number, who=entry.who or who) for entry in before.history[old:]]
        for entry in fresh[-1:]:
            note, extra = remark.note or entry.note, {**entry.extra, **remark.extra}
            fresh[-1] = dataclasses.replace(entry, note=note, extra=extra)
        ancestors = () if current is None else (*lineage.ancestors, Ancestor(lineage.number, digest))
        following = Lineage(number, ancestors)
        now = dataclasses.replace(before, history=(*before.history[:old], *fresh), lineage=following)
        digest = write_archive(place.file(number), now.to_archive(), like=model)
        _publish(place.file(number), model)
        learner._snapshot, learner.origin_ = now, (model, digest)
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
    who, extra = author() if who is None else who, dict(extra or {})
    with _hold(path, wait) as place, _writing(place.model):
        current = Header.read(place.model)
        place.adopt(current)
        kept, ancestors = place.kept(current), current.lineage.ancestors
        if not kept:
            raise ParameterError(f"nothing to undo: no earlier state of {place.model} is kept in {place.folder}")
        if n > len(ancestors) or ancestors[-n] not in kept:
            raise ParameterError(f"n must be at most {len(kept)}, the number of revisions kept, got {n}")
        place.verified(ancestors[-n].revision, ancestors[-n].digest)
        target = Header.read(place.file(ancestors[-n].revision))
        undone = [entry for entry in current.history if entry.revision > target.revision]
        note, samples = f"undid {', '.join(entry.what for entry in undone)}", sum(entry.samples for entry in undone)
        change = Change.now("rollback", samples, note=note, revision=target.revision, who=who, extra=extra)
        place.restore(ancestors[-n].revision, Undone(change, current.digest, target.digest))
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
    who, extra = author() if who is None else who, dict(extra or {})
    with _hold(path, wait) as place, _writing(place.model):
        steps = place.redoable(Header.read(place.model).digest)[:n]
        if not steps:
            raise ParameterError(f"nothing to redo: the latest change of {place.model} is no rollback")
        numbers = [place.find(entry.before) for entry in steps]
        if None in numbers:
            note = steps[numbers.index(None)].change.note
            raise ParameterError(f"nothing to redo: what was undone ({note}) is no longer kept in {place.folder}")
        if n > len(steps):
            raise ParameterError(f"n must be at most {len(steps)}, the number of rollbacks to take back, got {n}")
        for entry, number in zip(steps, numbers, strict=True):
            note = f"redid {entry.change.note.removeprefix('undid ')}"
            place.verified(number or 0, entry.before)
            revision = Header.read(place.file(number or 0)).revision
            change = Change.now("redo", entry.change.samples, note=note, revision=revision, who=who, extra=extra)
            place.restore(number or 0, Undone(change, entry.after, entry.before))
    return change


def history(path: str | os.PathLike[str]) -> list[Change]:
    """Return all changes that led to a model, and what was rolled back on the way, the oldest first.

    Parameters
    ----------
    path : path-like
        The model file; its tensors are not read.
    """
    model = existing_model(path)
    header = Header.read(model)
    undone = [entry.change for entry in History(model).undone(header.digest)]
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
    if number not in place.numbers():
        kept = sorted({*place.numbers(), current.revision})
        shown = f"kept is {kept[0]}" if len(kept) == 1 else f"kept are {kept[0]} to {kept[-1]}"
        raise ParameterError(f"Revision {number} is not kept; {shown}.")
    digests = {entry.revision: entry.digest for entry in current.lineage.ancestors}
    if number not in digests:  # it was undone, and the log has its checksum
        undone = {entry.before for entry in place.undone(current.digest)}
        digests[number] = next((digest for digest in undone if place.find(digest) == number), "")
    return Learner.load(place.verified(number, digests[number]), name=f"{os.fspath(path)}@{number}", **settings)


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
    return [entry.revision for entry in History(model).kept(Header.read(model))]


def clean_folder(folder: Path) -> None:
    """Remove what killed processes left of models in a folder, except of those that another process is changing.

    Parameters
    ----------
    folder : Path
        Where the models lie.
    """
    partial = [file.name[1:].rsplit(".", 2)[0] for file in folder.glob(f".*.evg.*{files.PARTIAL}")]
    kept = [place.name.removesuffix(".history") for place in folder.glob("*.evg.history")]
    for name in {*partial, *kept}:
        with suppress(EvergrowError), _hold(folder / name, wait=False, new=True):
            pass


# -- the files of the history -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """What a model file says of itself, read without its numbers.

    Parameters
    ----------
    lineage : Lineage
        The revisions that led to it.
    history : tuple of Change
        Changes that led to it.
    digest : str
        Checksum of its contents.
    """

    lineage: Lineage
    history: tuple[Change, ...] = ()
    digest: str = field(default="", metadata=UNWRITTEN)

    @property
    def revision(self) -> int:
        """Number of the latest change."""
        return self.history[-1].revision if self.history else 0

    @property
    def is_saved_by_hand(self) -> bool:
        """Whether changes were made since it was a revision, so that its history lies elsewhere."""
        return self.lineage.number < self.revision

    def check(self) -> None:
        """Raise :class:`FileFormatError` where changes and revisions do not go together."""
        check_history(self.history, self.lineage)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a model file, or raise :class:`FileFormatError`."""
        try:
            archive = read_header(path)
            if archive.kind != "learner":
                raise FileFormatError(f"it holds {archive.kind!r}")
            return dataclasses.replace(from_values(cls, archive.meta, str(path)), digest=archive.digest)
        except NewerSchemaError:
            raise
        except (FileFormatError, OSError) as error:
            raise FileFormatError(f"{path} is no whole evergrow model: {error}") from error


@dataclass(frozen=True)
class Undone:
    """A rollback or a redo, as the log holds it.

    Parameters
    ----------
    change : Change
        The record for people.
    before, after : str
        Checksums of the model before and after. The entry is written first; as long as the model is still what it was
        before the latest entry, that did not happen.
    """

    change: Change
    before: str
    after: str


@dataclass(frozen=True)
class _Log:
    entries: tuple[Undone, ...] = ()


class History:
    """The folder beside a model file; to be changed only while the model is held.

    Parameters
    ----------
    model : Path
        The model file.
    """

    def __init__(self, model: Path) -> None:
        self.model = model
        self.folder = model.with_name(f"{model.name}.history")
        self._log = self.folder / "log.json"

    def file(self, number: int) -> Path:
        """Return the file of a revision, whether or not it is kept."""
        return self.folder / f"{number}.evg"

    def numbers(self) -> list[int]:
        """Return the revisions that are kept, ascending."""
        if not self.folder.is_dir():
            return []
        stems = (file.stem for file in self.folder.glob("*.evg"))
        return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal() and len(stem) <= _DIGITS)

    def secure(self) -> None:
        """See that there is a folder, which is the model's owner's, and close it to all who may not read the model."""
        if self.folder.is_symlink():
            raise PathError(f"{self.folder} must be a folder beside the model, but it is a link")
        new = not self.folder.exists()
        self.folder.mkdir(exist_ok=True)
        if not self.model.exists():
            return
        if new:
            files.take_owner(self.folder, self.model)
        mode = self.model.stat().st_mode
        for place in (self.folder, self._log, *map(self.file, self.numbers())):
            if not place.is_symlink():
                with suppress(FileNotFoundError, PermissionError):  # gone, or somebody else's
                    files.restrict(place, mode)

    def adopt(self, current: Header) -> Lineage:
        """See that the model as it is now is in the history, and return its place there."""
        happened = self.undone(current.digest)
        if happened != self.undone():
            self._write(happened)
        number, taken = current.revision, self.numbers()
        if number == 0 or (number in taken and not self._is_model(number)):
            number = next(filter(self._is_model, taken), max([*taken, 0]) + 1)
        if number not in taken:
            with files.atomic_path(self.file(number), like=self.model) as temporary:
                files.link_or_copy(self.model, temporary)
        return Lineage(number) if current.is_saved_by_hand else dataclasses.replace(current.lineage, number=number)

    def _is_model(self, number: int) -> bool:
        """Return whether a revision is the model as it is now; what it says of itself is not enough."""
        file = self.file(number)
        if file.is_symlink() or not file.is_file():
            return False
        return os.path.samefile(file, self.model) or filecmp.cmp(file, self.model, shallow=False)

    def kept(self, current: Header) -> list[Ancestor]:
        """Return the revisions before the model for which there is something where they should lie."""
        ancestors = () if current.is_saved_by_hand else current.lineage.ancestors
        return [entry for entry in ancestors if os.path.lexists(self.file(entry.revision))]

    def verified(self, number: int, digest: str) -> Archive:
        """Read a revision, and make sure that it is whole and has the checksum that is known of it.

        Raises
        ------
        FileFormatError
            If it is damaged, was altered, or was put there by somebody else.
        """
        file = self.file(number)
        if file.is_symlink() or not file.is_file():
            raise FileFormatError(f"{file} must be an ordinary file to be a revision of {self.model.name}, got a link")
        archive = read_archive(file)
        if archive.digest != digest:
            raise FileFormatError(
                f"{file} must be a revision of {self.model.name}, but it is another model or was altered; nothing was "
                "changed"
            )
        return archive

    def restore(self, number: int, entry: Undone) -> None:
        """Put a revision that was verified in the model's place; the log has it first."""
        self._write([*self.undone(entry.before), entry])
        _publish(self.file(number), self.model)

    def prune(self, lineage: Lineage, keep: int) -> None:
        """Remove revisions beyond the latest ones: first those that were undone, then the oldest."""
        kept, trail = self.numbers(), {lineage.number, *(entry.revision for entry in lineage.ancestors)}
        undone = [number for number in kept if number not in trail]
        order = [*undone, *(number for number in kept if number in trail)]
        for number in order[: max(len(order) - keep - 1, 0)]:
            self.file(number).unlink(missing_ok=True)

    def redoable(self, digest: str) -> list[Undone]:
        """Return the rollbacks that can be taken back one after the other, the next one first.

        Parameters
        ----------
        digest : str
            Checksum of the model as it is now. Where it learned something else since, nothing can be taken back.
        """
        stack: list[Undone] = []
        for entry in self.undone(digest):
            stack = stack[:-1] if entry.change.what == "redo" else [*stack, entry]
        chain: list[Undone] = []
        while stack and stack[-1].after == digest:
            chain.append(stack.pop())
            digest = chain[-1].before
        return chain

    def find(self, digest: str) -> int | None:
        """Return the revision that has a checksum, by what it says of itself; None where it is not kept."""
        for number in reversed(self.numbers()):
            with suppress(FileFormatError):  # another revision that is damaged is no reason not to go on
                if not self.file(number).is_symlink() and Header.read(self.file(number)).digest == digest:
                    return number
        return None

    def undone(self, digest: str = "") -> list[Undone]:
        """Return all rollbacks and redos, the oldest first.

        Parameters
        ----------
        digest : str
            Checksum of the model as it is now, to leave out a rollback that a crash cut short.
        """
        try:
            if self._log.is_symlink():
                raise FileFormatError("it is a link")
            found = from_values(_Log, {"entries": parse_json(self._log.read_bytes(), "it")}, "it").entries
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{self._log} must be a list of rollbacks, got a damaged one: {error}; the model is as it was, and can "
                "be used again once that file is mended or moved away"
            ) from error
        return list(found[:-1] if found and found[-1].before == digest else found)

    def _write(self, entries: Sequence[Undone]) -> None:
        with files.atomic_path(self._log, like=self.model) as temporary:
            temporary.write_text(json.dumps(to_values(list(entries)), indent=1), encoding="utf-8")


# -- one writer at a time -----------------------------------------------------------------------------------


def _target(path: str | os.PathLike[str], *, new: bool = False) -> Path:
    """Return where a model lies, or a new one will lie, or raise an error if it must not be written."""
    if not new:
        existing_model(path)
    try:
        model = files.real_path(path)
        if not model.parent.is_dir():
            raise ModelWriteError(f"No folder {str(model.parent)!r} to write a model to.")
        files.check_replaceable(model)
    except PathError as error:
        raise ModelWriteError(f"The model cannot be written: {error}") from error
    if model.exists() and not os.access(model, os.W_OK):
        raise ModelWriteError(f"The model cannot be written: you may not write {os.fspath(path)!r}")
    return model


@contextmanager
def _hold(path: str | os.PathLike[str], wait: bool, *, new: bool = False) -> Iterator[History]:
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
            files.remove_leftovers(place.folder)
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
        raise ModelWriteError(f"{model} could not be written, and is as it was: {error}") from error


def _publish(source: Path, model: Path) -> None:
    """Put a revision in the model's place in one step."""
    with files.atomic_path(model, like=source) as temporary:
        files.link_or_copy(source, temporary)
