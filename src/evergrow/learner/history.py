"""The history of a model: earlier states as whole files, and a log of rollbacks.

The folder ``model.evg.history`` lies beside the model. ``<number>.evg`` is the model's file as it was at that revision;
``log.json`` records what was rolled back and redone. The model itself is not in its history: whoever replaces it puts
it there first.

Nothing in the folder is believed: a state is put in the model's place only if it is whole and has the checksum that the
model, or the log, knows of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Self

from evergrow.core import files
from evergrow.core.archive import Archive, parse_json, read_archive, read_header
from evergrow.core.errors import FileFormatError, NewerSchemaError, PathError
from evergrow.core.record import UNWRITTEN, from_values, to_values
from evergrow.learner.snapshot import Ancestor, Change, Lineage, check_history

KEEP = 10
"""Earlier states kept, unless another number is asked for."""

TIMES, ROOM = 5, 20_000_000
"""A model and its history take at most so many times the model, and so many bytes, unless another size is asked for."""

_DIGITS = 9  # of a revision's number: no model gets beyond it, and a foreign file must not push the count there
_RATIO, _SLACK = 100, 2**30  # a state with more bytes than so many times the model, and so many, is not read
_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # should it become a link or a pipe meanwhile


def default_room(*sizes: int) -> int:
    """Return the bytes that a history may take beside a model, by the sizes that the model had and has.

    The larger counts, so that a change that makes a model small can be undone.

    Examples
    --------
    >>> from evergrow.learner.history import default_room
    >>> default_room(12_000_000, 10_000_000)
    68000000
    """
    return (TIMES - 1) * max(sizes) + ROOM


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
            return cls.of(read_header(path), path)
        except FileFormatError:
            raise
        except OSError as error:
            raise FileFormatError(f"{path} cannot be read: {error}") from error

    @classmethod
    def of(cls, archive: Archive, path: Path) -> Self:
        """Return what an archive says of itself, or raise :class:`FileFormatError`."""
        if archive.kind != "learner":
            raise FileFormatError(f"{path} is no model; it holds {archive.kind!r}.")
        return dataclasses.replace(from_values(cls, archive.meta, str(path)), digest=archive.digest)


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
    undone : tuple of Change
        What a rollback took back: the model's own file tells of it no more.
    """

    change: Change
    before: str
    after: str
    undone: tuple[Change, ...] = ()


@dataclass(frozen=True)
class _Log:
    entries: tuple[Undone, ...] = ()


def _contents(path: Path, largest: int) -> bytes:
    """Return the bytes of an ordinary file; a link, a device or a larger file is refused unread."""
    try:
        _require_ordinary(path, largest)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _UNFOLLOWED)) as file:
            return file.read(largest)
    except FileNotFoundError as error:
        raise FileFormatError(f"{path} is missing") from error
    except OSError as error:  # it may be whole, and somebody else's
        raise PathError(f"{path} cannot be read: {error.strerror}") from error


def _require_ordinary(path: Path, largest: int) -> None:
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
        raise FileFormatError(f"{path} must be an ordinary file of at most {largest} bytes, got another")


def _unlink(path: Path) -> None:
    """Remove a file or a link; what is a folder is none of ours."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)


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
        for place in (self.folder, *self.folder.iterdir()):
            with suppress(FileNotFoundError, PermissionError):  # gone, or somebody else's
                if not place.is_symlink() and (place.is_dir() or place.stat().st_nlink == 1):
                    files.restrict(place, mode)

    def position(self, current: Header) -> Lineage:
        """Return the place of the model as it is now in its history."""
        number, taken = current.revision, self.numbers()
        if number == 0 or (number in taken and self._digest(number) != current.digest):
            known = (other for other in taken if self._digest(other) == current.digest)
            number = next(known, max([*taken, 0]) + 1)
        return Lineage(number) if current.is_saved_by_hand else dataclasses.replace(current.lineage, number=number)

    def adopt(self, current: Header) -> None:
        """See that the model as it is now is in the history."""
        file = self.file(self.position(current).number)
        with suppress(FileFormatError):
            if _contents(file, self._largest) == self.model.read_bytes():  # what a state says of itself is not enough
                return
        if file.is_symlink():
            file.unlink()
        with files.atomic_path(file, like=self.model) as temporary:
            shutil.copyfile(self.model, temporary)

    @property
    def _largest(self) -> int:
        return _RATIO * self.model.stat().st_size + _SLACK

    def _digest(self, number: int) -> str:
        """Return the checksum that a state says it has; empty where it is damaged. A newer one is refused."""
        try:
            _require_ordinary(self.file(number), self._largest)
            return read_header(self.file(number)).digest
        except NewerSchemaError:
            raise
        except (FileFormatError, OSError):
            return ""

    def kept(self, current: Header) -> list[Ancestor]:
        """Return the revisions before the model for which there is something where they should lie."""
        ancestors = () if current.is_saved_by_hand else current.lineage.ancestors
        return [entry for entry in ancestors if os.path.lexists(self.file(entry.revision))]

    def verified(self, number: int, digest: str) -> tuple[Archive, bytes]:
        """Read a revision and its file, and make sure that it is whole and has the checksum that is known of it.

        Raises
        ------
        FileFormatError
            If it is damaged, was altered, or was put there by somebody else.
        """
        body = _contents(self.file(number), self._largest)
        archive = read_archive(self.file(number), data=body)
        if archive.digest != digest:
            raise FileFormatError(
                f"{self.file(number)} must be a revision of {self.model.name}, but it is another model or was altered; "
                "nothing was changed"
            )
        return archive, body

    def restore(self, number: int, body: bytes, entry: Undone) -> None:
        """Put a revision that was verified in the model's place; the log has it first, and the history the model."""
        self.adopt(Header.read(self.model))
        self.log(entry.before, entry)
        publish(body, self.model)
        self.remove([number])

    def prune(self, lineage: Lineage, keep: int, room: int) -> list[int]:
        """Remove the revisions beyond a number or a size, first those that were undone, then the oldest; return them.

        Parameters
        ----------
        lineage : Lineage
            That of the model.
        keep, room : int
            Revisions, and bytes of all of them, that may stay.
        """
        kept, trail = self.numbers(), {entry.revision for entry in lineage.ancestors}
        order = [*(number for number in kept if number not in trail), *(number for number in kept if number in trail)]
        found = [os.lstat(self.file(number)).st_size for number in order]
        sizes = [size if size <= self._largest else 0 for size in found]  # what is no state pushes none out
        first = max(len(order) - keep, 0)
        while sum(sizes[first:]) > room:
            first += 1
        self.remove(order[:first])
        return sorted(order[:first])

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove revisions."""
        for number in numbers:
            _unlink(self.file(number))

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
        return next((number for number in reversed(self.numbers()) if self._digest(number) == digest), None)

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

    def log(self, digest: str, *entries: Undone) -> None:
        """Add entries to the log, and leave out one that a crash cut short; the checksum is that of the model now."""
        known, happened = self.undone(), self.undone(digest)
        if not entries and happened == known:
            return
        with files.atomic_path(self._log, like=self.model) as temporary:
            temporary.write_text(json.dumps(to_values([*happened, *entries]), indent=1), encoding="utf-8")


def publish(body: bytes, model: Path) -> None:
    """Put the file of a revision in the model's place in one step."""
    with files.atomic_path(model) as temporary:
        temporary.write_bytes(body)
