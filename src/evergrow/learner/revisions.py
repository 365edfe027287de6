"""The history of a model file: which revisions there are, what is theirs, and what was undone."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from typing_extensions import Self

from evergrow.core.archive import SCHEMA_VERSION
from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.files import PARTIAL, atomic_path
from evergrow.learner.changes import Change
from evergrow.learner.snapshot import KIND

_OLD = 3600.0  # seconds after which a partial file cannot be one that another process is writing


@dataclass(frozen=True)
class Header:
    """What a model file says of itself, read without its numbers.

    Parameters
    ----------
    digest : str
        Checksum of its contents.
    revision : int
        Its number.
    trail : tuple of int
        Numbers of the revisions that led to it, itself last.
    history : tuple of Change
        Changes that led to it.
    """

    digest: str
    revision: int
    trail: tuple[int, ...]
    history: tuple[Change, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a model file, or raise :class:`FileFormatError`."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                head = json.loads((file.metadata() or {})["evergrow"])
            kind, schema = head["kind"], int(head["schema"])
            if schema > SCHEMA_VERSION:
                raise NewerSchemaError(
                    f"{path} must have schema {SCHEMA_VERSION} or older, got {schema}: it was written by a newer "
                    "evergrow; upgrade with 'pip install -U evergrow'"
                )
            if kind != KIND:
                raise FileFormatError(f"{path} must hold a {KIND}, got {kind!r}")
            meta: dict[str, Any] = json.loads(head["meta"])
            history = tuple(Change.from_dict(values) for values in meta["history"])
            trail = tuple(int(number) for number in meta["trail"])
            return cls(str(head["digest"]), int(meta["revision"]), trail, history)
        except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(
                f"{path} must be a whole evergrow model, got another or a damaged one: {error}"
            ) from error


@dataclass(frozen=True)
class Undone:
    """A rollback, as the log holds it.

    Parameters
    ----------
    change : Change
        The record for people.
    before, after : str
        Checksums of the model before and after. The entry is written first; as long as the model is still what it was
        before, the rollback did not happen.
    """

    change: Change
    before: str
    after: str


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
        return sorted(int(file.stem) for file in self.folder.glob("*.evg") if file.stem.isdecimal())

    def adopt(self, current: Header) -> tuple[int, ...]:
        """See that the model as it is now is in the history, and return the trail that leads to it."""
        digests = {number: self._digest(number) for number in self.numbers()}
        if current.revision > 0 and digests.get(current.revision, current.digest) == current.digest:
            number = current.revision
        else:
            same = [number for number, digest in digests.items() if digest == current.digest]
            number = same[0] if same else max([*digests, 0]) + 1
        if number not in digests:
            self._keep(number)
        return current.trail if current.trail[-1:] == (number,) else (number,)

    def _digest(self, number: int) -> str:
        try:
            return Header.read(self.file(number)).digest
        except FileFormatError:  # a damaged revision is no reason not to go on
            return ""

    def _keep(self, number: int) -> None:
        with atomic_path(self.file(number)) as temporary:
            temporary.unlink()
            try:
                os.link(self.model, temporary)
            except OSError:  # no hard links here
                shutil.copyfile(self.model, temporary)

    def prune(self, trail: Sequence[int], keep: int) -> None:
        """Remove revisions beyond the latest ones: first those that were undone, then the oldest."""
        kept = self.numbers()
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

    def undone(self) -> list[Undone]:
        """Return all rollbacks, the oldest first."""
        try:
            entries = json.loads(self._log.read_text(encoding="utf-8"))
            return [Undone(Change.from_dict(item["change"]), item["before"], item["after"]) for item in entries]
        except FileNotFoundError:
            return []
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{self._log} must be a list of rollbacks, got a damaged one: {error}") from error

    def record(self, entry: Undone) -> None:
        """Write down a rollback that is about to happen."""
        self._write([*self.undone(), entry])

    def _write(self, entries: Sequence[Undone]) -> None:
        plain = [{"change": entry.change.to_dict(), "before": entry.before, "after": entry.after} for entry in entries]
        with atomic_path(self._log) as temporary:
            temporary.write_text(json.dumps(plain, indent=1), encoding="utf-8")


def _escaped(name: str) -> str:
    """Return a file name for use in a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
