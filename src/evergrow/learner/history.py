"""The files of a model's history: which revisions there are, which of them can be trusted, and what was undone."""

from __future__ import annotations

import dataclasses
import filecmp
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Self

from evergrow.core.archive import Archive, parse_json, read_archive, read_header
from evergrow.core.errors import FileFormatError, NewerSchemaError, PathError
from evergrow.core.files import PARTIAL, atomic_path, link_or_copy, restrict, take_owner
from evergrow.core.record import UNWRITTEN, from_values, to_values
from evergrow.learner.snapshot import Ancestor, Change, Lineage, check_history

_OLD = 3600.0  # seconds after which a partial file cannot be one that another process is writing
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

    def check(self) -> None:
        """Raise :class:`FileFormatError` where changes and revisions do not go together."""
        check_history(self.history, self.lineage)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a model file, or raise :class:`FileFormatError`."""
        try:
            return cls.of(read_header(path), str(path))
        except NewerSchemaError:
            raise
        except (FileFormatError, OSError) as error:
            raise FileFormatError(f"{path} is no whole evergrow model: {error}") from error

    @classmethod
    def of(cls, archive: Archive, name: str) -> Self:
        """Return the header of a model that was read."""
        if archive.kind != "learner":
            raise FileFormatError(f"{name} holds {archive.kind!r}, not a model")
        return dataclasses.replace(from_values(cls, archive.meta, name), digest=archive.digest)


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

    def make_folder(self) -> None:
        """See that there is a folder, of the model's owner and open to nobody who may not read the model."""
        if self.folder.is_symlink():
            raise PathError(f"{self.folder} must be a folder beside the model, but it is a link")
        new = not self.folder.exists()
        self.folder.mkdir(exist_ok=True)
        if self.model.exists():
            if new:
                take_owner(self.folder, self.model)
            with suppress(PermissionError):  # somebody else's folder, which they opened to this user
                restrict(self.folder, self.model.stat().st_mode)

    def restrict(self) -> None:
        """Close what is kept to everybody who may not read the model any more."""
        mode = self.model.stat().st_mode
        for file in (self._log, *map(self.file, self.numbers())):
            if file.is_file() and not file.is_symlink():
                with suppress(PermissionError):
                    restrict(file, mode)

    def adopt(self, current: Header) -> Lineage:
        """See that the model as it is now is in the history, and return its place there."""
        number, taken = current.revision, self.numbers()
        if number == 0 or (number in taken and not self._is_model(number, current)):
            same = (other for other in taken if self._is_model(other, current))
            number = next(same, max([*taken, 0]) + 1)
        if number not in taken:
            with atomic_path(self.file(number), like=self.model) as temporary:
                link_or_copy(self.model, temporary)
        if current.lineage.number < current.revision:  # saved by hand: what led to it lies elsewhere
            return Lineage(number)
        return dataclasses.replace(current.lineage, number=number)

    def _is_model(self, number: int, current: Header) -> bool:
        """Return whether a revision is the model as it is now; what it says of itself is not enough."""
        file = self.file(number)
        if file.is_symlink() or not file.is_file():
            return False
        if os.path.samefile(file, self.model):
            return True
        try:
            same = Header.read(file).digest == current.digest
        except FileFormatError:  # a damaged revision is no reason not to go on
            return False
        return same and filecmp.cmp(file, self.model, shallow=False)

    def is_kept(self, ancestor: Ancestor) -> bool:
        """Return whether there is something where a revision should lie."""
        return os.path.lexists(self.file(ancestor.revision))

    def verified(self, number: int, digest: str) -> Header:
        """Return the header of a revision after making sure that it is whole and has the checksum that is known of it.

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
        return Header.of(archive, str(file))

    def prune(self, lineage: Lineage, keep: int) -> None:
        """Remove revisions beyond the latest ones: first those that were undone, then the oldest."""
        kept, trail = self.numbers(), {lineage.number, *(entry.revision for entry in lineage.ancestors)}
        undone = [number for number in kept if number not in trail]
        order = [*undone, *(number for number in kept if number in trail)]
        for number in order[: max(len(order) - keep - 1, 0)]:
            self.file(number).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what killed processes left behind: partial files, and the record of a rollback that did not happen."""
        for file in self.folder.glob(f".*{PARTIAL}"):
            file.unlink(missing_ok=True)
        for file in self.model.parent.glob(f".{_escaped(self.model.name)}.*{PARTIAL}"):
            status = file.stat()
            # Somebody may be saving to the same name without asking for the model: what may be theirs stays a while.
            if status.st_nlink > 1 or status.st_size == 0 or time.time() - status.st_mtime > _OLD:
                file.unlink(missing_ok=True)
        entries = self.undone()
        if entries and self.model.exists() and entries[-1].before == Header.read(self.model).digest:
            self._write(entries[:-1])

    def happened(self, digest: str) -> list[Undone]:
        """Return the rollbacks and redos of a model that has a checksum now, without one that a crash cut short."""
        entries = self.undone()
        return entries[:-1] if entries and entries[-1].before == digest else entries

    def redoable(self, digest: str) -> list[Undone]:
        """Return the rollbacks that can be taken back one after the other, the next one first.

        Parameters
        ----------
        digest : str
            Checksum of the model as it is now. Where it learned something else since, nothing can be taken back.
        """
        stack: list[Undone] = []
        for entry in self.happened(digest):
            if entry.change.what != "redo":
                stack.append(entry)
            elif stack:
                stack.pop()
        chain: list[Undone] = []
        while stack and stack[-1].after == digest:
            chain.append(stack.pop())
            digest = chain[-1].before
        return chain

    def find(self, digest: str) -> int | None:
        """Return the revision that has a checksum, by what it says of itself; None where it is not kept."""
        for number in reversed(self.numbers()):
            file = self.file(number)
            try:
                if not file.is_symlink() and Header.read(file).digest == digest:
                    return number
            except FileFormatError:  # another revision that is damaged is no reason not to go on
                continue
        return None

    def undone(self) -> list[Undone]:
        """Return all rollbacks and redos, the oldest first."""
        try:
            if self._log.is_symlink():
                raise FileFormatError("it is a link")
            return list(from_values(_Log, {"entries": parse_json(self._log.read_bytes(), "it")}, "it").entries)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{self._log} must be a list of rollbacks, got a damaged one: {error}; the model is as it was, and can "
                "be used again once that file is mended or moved away"
            ) from error

    def record(self, entry: Undone) -> None:
        """Write down a rollback that is about to happen."""
        self._write([*self.undone(), entry])

    def _write(self, entries: Sequence[Undone]) -> None:
        with atomic_path(self._log, like=self.model) as temporary:
            temporary.write_text(json.dumps(to_values(list(entries)), indent=1), encoding="utf-8")


def _escaped(name: str) -> str:
    """Return a file name for use in a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
