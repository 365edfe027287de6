"""The history of a model: the folder ``model.evg.history`` beside it, with earlier states and a log of rollbacks."""

from __future__ import annotations

import dataclasses
import filecmp
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Self

from evergrow.core import files
from evergrow.core.archive import Archive, parse_json, read_archive, read_header
from evergrow.core.errors import FileFormatError, NewerSchemaError, PathError
from evergrow.core.record import UNWRITTEN, from_values, to_values
from evergrow.learner.snapshot import Ancestor, Change, Lineage, check_history

_DIGITS = 9  # of a revision's number: no model gets beyond it, and a foreign file must not push the count there


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
        publish(self.file(number), self.model)

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


def publish(source: Path, model: Path) -> None:
    """Put a revision in the model's place in one step."""
    with files.atomic_path(model, like=source) as temporary:
        files.link_or_copy(source, temporary)
