"""The history of a model: earlier states, and a log of rollbacks.

The folder ``model.evg.history`` lies beside the model. ``<number>.json`` is a state:
the list of pieces of its model file. A piece is a tensor, a part of a large tensor, or
the bytes between two tensors. Its file ``<hash>.piece`` is named after its content, so
that states with equal tensors share it. ``log.json`` records rollbacks and redos. The
current model is not in its history; it is added before it is replaced.

Pieces are written before the state that lists them, and removed after it. A crash
leaves at most unlisted pieces, which the next writer removes. The folder is not
trusted: a state is restored only if each piece has its hash and the whole has the
checksum stored in the model or in the log.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated

from typing_extensions import Self

from evergrow.core import files
from evergrow.core.archive import Archive, parse_json, read_archive, read_header
from evergrow.core.errors import FileFormatError, NewerSchemaError, PathError
from evergrow.core.record import (
    UNWRITTEN,
    Between,
    from_document,
    from_values,
    record,
    require,
    to_values,
    write_document,
)
from evergrow.learner.snapshot import Ancestor, Change, Lineage, check_history

KEEP = 10
"""Default number of earlier states to keep."""

SIZE_FACTOR = 5
EXTRA_BYTES = 20_000_000
"""By default, model and history together have at most SIZE_FACTOR times the bytes of
the model plus EXTRA_BYTES."""

_MAX_DIGITS = 9  # of a revision number in a file name
_MAX_PIECE_BYTES = 4 * 2**20  # larger pieces are not read
_MIN_OWN_PIECE_BYTES = 2**16  # smaller tensors share a piece with their neighbours
_MAX_LIST_BYTES = 8 * 2**20  # enough for a model of hundreds of gigabytes
# Against small files that unpack to huge models: a state that lists a piece repeatedly
# has at most _MAX_REPETITION times the bytes of its pieces, plus _REPETITION_SLACK.
_MAX_REPETITION = 100
_REPETITION_SLACK = 64 * 2**20
# The file may be replaced by a link or a pipe before it is opened.
_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_HASH = re.compile(r"[0-9a-f]{64}")


def default_history_bytes(*model_bytes: int) -> int:
    """Return the default size limit of a history, given model sizes before and after.

    The larger size counts, so that a change that shrinks a model can be undone.

    Examples
    --------
    >>> from evergrow.learner.history import default_history_bytes
    >>> default_history_bytes(12_000_000, 10_000_000)
    68000000
    """
    return (SIZE_FACTOR - 1) * max(model_bytes) + EXTRA_BYTES


@dataclass(frozen=True)
class Header:
    """The metadata of a model file, read without its tensors.

    Parameters
    ----------
    lineage : Lineage
        Its revisions.
    history : tuple of Change
        Its changes.
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
        """Whether `save` wrote it after its last commit; its history lies elsewhere."""
        return self.lineage.number < self.revision

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless changes and revisions agree."""
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
        """Return the header of an archive, or raise :class:`FileFormatError`."""
        if archive.kind != "learner":
            raise FileFormatError(f"{path} is not a model; it holds {archive.kind!r}.")
        return dataclasses.replace(
            from_values(cls, archive.meta, str(path)), digest=archive.digest
        )


@dataclass(frozen=True)
class LogEntry:
    """A rollback or a redo in the log.

    Parameters
    ----------
    change : Change
        The record shown by :func:`~evergrow.learner.modelfile.history`.
    before, after : str
        Checksums of the model before and after. The entry is written before the model
        is replaced: if the model still has the checksum ``before`` of the latest entry,
        a crash prevented it.
    undone : tuple of Change
        For a rollback, the undone changes; the restored model does not list them.
    """

    change: Change
    before: str
    after: str
    undone: tuple[Change, ...] = ()


@dataclass(frozen=True)
class _Log:
    """The contents of ``log.json``, oldest entry first."""

    entries: tuple[LogEntry, ...] = ()


@record("revision")
@dataclass(frozen=True)
class State:
    """An earlier state of a model: the list of its pieces.

    Parameters
    ----------
    digest : str
        Checksum of the model.
    hashes, sizes : tuple of str, tuple of int
        Hash and size of each piece, in order.
    """

    digest: str
    hashes: tuple[str, ...]
    sizes: tuple[Annotated[int, Between(1, _MAX_PIECE_BYTES)], ...]

    def check(self) -> None:
        """Raise :class:`FileFormatError` for an invalid or too repetitive list."""
        require(
            len(self.hashes) == len(self.sizes),
            "its numbers of hashes and sizes differ",
        )
        require(
            all(map(_HASH.fullmatch, self.hashes)),
            "the names of its pieces are not hashes",
        )
        require(
            sum(self.sizes)
            <= _MAX_REPETITION * total_bytes([self]) + _REPETITION_SLACK,
            "it lists the same pieces too often",
        )

    @classmethod
    def of(cls, data: bytes, digest: str) -> Self:
        """Return the state of a model from the bytes of its file."""
        sizes = _piece_sizes(data)
        ends = accumulate(sizes, initial=0)
        hashes = tuple(
            _hash(memoryview(data)[start:stop]) for start, stop in pairwise(ends)
        )
        return cls(digest, hashes, tuple(sizes))


def total_bytes(states: Iterable[State]) -> int:
    """Return the bytes of all pieces of some states; shared pieces count once."""
    sizes: dict[str, int] = {}
    for state in states:
        sizes.update(zip(state.hashes, state.sizes, strict=True))
    return sum(sizes.values())


def _hash(body: bytes | memoryview) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def _piece_sizes(data: bytes) -> list[int]:
    """Return the sizes of the pieces of a model file in the safetensors format.

    Large tensors begin and end a piece, so that states share the unchanged ones. A
    damaged file is cut at fixed sizes.
    """
    edges = {0, len(data)}
    with suppress(ValueError, KeyError, TypeError, AttributeError, struct.error):
        (header_bytes,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + header_bytes])
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = entry["data_offsets"]
                if stop - start >= _MIN_OWN_PIECE_BYTES:
                    edges |= {8 + header_bytes + start, 8 + header_bytes + stop}
    inside = sorted(edge for edge in edges if 0 <= edge <= len(data))
    return [
        min(_MAX_PIECE_BYTES, stop - at)
        for start, stop in pairwise(inside)
        for at in range(start, stop, _MAX_PIECE_BYTES)
    ]


def _read_file(path: Path, largest: int) -> bytes:
    """Read a regular file of at most `largest` bytes.

    Raises
    ------
    FileFormatError
        If it is missing, too large, or a link or device.
    PathError
        If it cannot be read.
    """
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
            raise FileFormatError(
                f"{path} must be a regular file of at most {largest} bytes"
            )
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | _OPEN_FLAGS)
        ) as file:
            return file.read(largest)
    except FileNotFoundError as error:
        raise FileFormatError(f"{path} is missing") from error
    except OSError as error:  # for example without permission
        raise PathError(f"{path} cannot be read: {error.strerror}") from error


def _unlink(path: Path) -> None:
    """Remove a file or a link, but no folder."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)


class History:
    """The history folder of a model; change it only while the model is locked.

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
        """Return the path of the state of a revision, kept or not."""
        return self.folder / f"{number}.json"

    def piece(self, name: str) -> Path:
        """Return the file of a piece."""
        return self.folder / f"{name}.piece"

    def numbers(self) -> list[int]:
        """Return the kept revisions, ascending."""
        if not self.folder.is_dir():
            return []
        stems = (file.stem for file in self.folder.glob("*.json"))
        return sorted(
            int(stem)
            for stem in stems
            if stem.isascii() and stem.isdecimal() and len(stem) <= _MAX_DIGITS
        )

    def create_folder(self) -> None:
        """Create the folder if needed; only users who may read the model may read it.

        Raises
        ------
        PathError
            If a link has its name.
        """
        if self.folder.is_symlink():
            raise PathError(
                f"{self.folder} must be a folder beside the model, but it is a link"
            )
        new = not self.folder.exists()
        self.folder.mkdir(exist_ok=True)
        if not self.model.exists():
            return
        if new:
            files.take_owner(self.folder, self.model)
        mode = self.model.stat().st_mode
        for place in (self.folder, *self.folder.iterdir()):
            # A file may be gone, or belong to another user.
            with suppress(FileNotFoundError, PermissionError):
                if not place.is_symlink() and (
                    place.is_dir() or place.stat().st_nlink == 1
                ):
                    files.restrict(place, mode)

    def clean(self) -> None:
        """Remove partial files of killed writers, and unlisted pieces."""
        files.remove_leftovers(self.folder)
        self.remove([])

    def lineage_of(self, current: Header) -> Lineage:
        """Return the lineage of the current model, with its revision number.

        A file written by :meth:`evergrow.Learner.save` may have no number, or that of
        another revision in the history. It gets the number of the kept state with equal
        contents, or a new one.
        """
        number = current.revision
        kept = self.numbers()
        if number == 0 or number in kept:  # compare contents, not only checksums
            state = State.of(self.model.read_bytes(), current.digest)
            if number == 0 or self._state(number) != state:
                same = (other for other in kept if self._state(other) == state)
                number = next(same, max([*kept, 0]) + 1)
        if current.is_saved_by_hand:
            return Lineage(number)
        return dataclasses.replace(current.lineage, number=number)

    def add_model(self, current: Header) -> None:
        """Add the current model to the history, unless it is there."""
        number = self.lineage_of(current).number
        data = self.model.read_bytes()
        state = State.of(data, current.digest)
        ends = accumulate(state.sizes, initial=0)
        for name, (start, stop) in zip(state.hashes, pairwise(ends), strict=True):
            self._write_piece(name, data[start:stop])
        if self._state(number) != state:
            write_document(self.file(number), state, like=self.model)

    def _write_piece(self, name: str, body: bytes) -> None:
        """Write a piece, unless it is there and intact."""
        path = self.piece(name)
        with suppress(FileFormatError):
            if _read_file(path, len(body)) == body:
                return
        if path.is_symlink():
            path.unlink()
        with files.atomic_path(path, like=self.model) as temporary:
            temporary.write_bytes(body)

    def _state(self, number: int) -> State | None:
        """Return a kept state; None if its file is missing or damaged."""
        try:
            return self._read_state(number)
        except NewerSchemaError:
            raise
        except FileFormatError:
            return None

    def _read_state(self, number: int) -> State:
        file = self.file(number)
        return from_document(
            State, parse_json(_read_file(file, _MAX_LIST_BYTES), str(file)), str(file)
        )

    def restorable(self, current: Header) -> list[Ancestor]:
        """Return the ancestors of the current model that have a state file.

        There are none if the file was not written by a commit.
        """
        if current.is_saved_by_hand:
            return []
        return [
            entry
            for entry in current.lineage.ancestors
            if os.path.lexists(self.file(entry.revision))
        ]

    def verified(self, number: int, digest: str) -> tuple[Archive, bytes]:
        """Return a revision and the bytes of its file, after a check of all checksums.

        Raises
        ------
        FileFormatError
            If it is damaged, was altered, or belongs to another model.
        """
        state = self._read_state(number)
        pieces = [
            _read_file(self.piece(name), size)
            for name, size in zip(state.hashes, state.sizes, strict=True)
        ]
        for name, piece in zip(state.hashes, pieces, strict=True):
            if _hash(piece) != name:
                raise FileFormatError(
                    f"{self.piece(name)} is damaged or was altered; nothing was changed"
                )
        body = b"".join(pieces)
        archive = read_archive(self.file(number), data=body)
        if archive.digest != digest:
            raise FileFormatError(
                f"{self.file(number)} must be a revision of {self.model.name}, but it "
                "is another model or was altered; nothing was changed"
            )
        return archive, body

    def restore(self, number: int, body: bytes, entry: LogEntry) -> None:
        """Replace the model by a verified revision, and move the model to the history.

        Parameters
        ----------
        number, body : int, bytes
            The revision, which leaves the history, and the bytes of its file.
        entry : LogEntry
            Added to the log before the model is replaced.
        """
        self.add_model(Header.read(self.model))
        self.append_log(entry.before, entry)
        publish(body, self.model)
        self.remove([number])

    def prune(self, lineage: Lineage, keep: int, keep_bytes: int) -> list[int]:
        """Remove revisions beyond a number or size: undone ones first, then the oldest.

        Parameters
        ----------
        lineage : Lineage
            Lineage of the model.
        keep, keep_bytes : int
            Maximum number of revisions, and of bytes of all their pieces.

        Returns
        -------
        list of int
            The removed revisions.
        """
        ancestors = {entry.revision for entry in lineage.ancestors}
        order = sorted(self.numbers(), key=lambda number: (number in ancestors, number))
        states = [self._state(number) for number in order]
        n_removed = max(len(order) - keep, 0)
        while total_bytes(filter(None, states[n_removed:])) > keep_bytes:
            n_removed += 1
        self.remove(order[:n_removed])
        return sorted(order[:n_removed])

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove revisions, and all pieces that no other revision has."""
        for number in numbers:
            _unlink(self.file(number))
        states = [self._state(number) for number in self.numbers()]
        used = {name for state in states if state is not None for name in state.hashes}
        for piece in self.folder.glob("*.piece"):
            if piece.stem not in used:
                _unlink(piece)

    def redoable(self, digest: str) -> list[LogEntry]:
        """Return the rollbacks that led to the current model, the latest first.

        Parameters
        ----------
        digest : str
            Checksum of the current model. If it learned since, nothing can be undone.
        """
        stack: list[LogEntry] = []
        for entry in self.log_entries(digest):
            if entry.change.what != "redo":
                stack.append(entry)
            elif stack:
                stack.pop()
        chain: list[LogEntry] = []
        while stack and stack[-1].after == digest:
            chain.append(stack.pop())
            digest = chain[-1].before
        return chain

    def find_revision(self, digest: str) -> int | None:
        """Return the latest kept revision with this checksum (unverified), or None."""
        for number in reversed(self.numbers()):
            state = self._state(number)
            if state is not None and state.digest == digest:
                return number
        return None

    def log_entries(self, digest: str = "") -> list[LogEntry]:
        """Return all rollbacks and redos, the oldest first.

        Parameters
        ----------
        digest : str
            Checksum of the current model, to leave out an entry that a crash prevented.
            By default, such an entry is returned too.

        Raises
        ------
        FileFormatError
            If the log is damaged.
        """
        try:
            if self._log.is_symlink():
                raise FileFormatError("it is a link")
            values = {"entries": parse_json(self._log.read_bytes(), "it")}
            entries = from_values(_Log, values, "it").entries
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{self._log} must be a list of rollbacks, got a damaged one: {error}; "
                "the model is as it was, and can be used again once that file is "
                "mended or moved away"
            ) from error
        if entries and entries[-1].before == digest:
            entries = entries[:-1]
        return list(entries)

    def append_log(self, digest: str, *new: LogEntry) -> None:
        """Append entries to the log file, and drop an entry that a crash prevented.

        Parameters
        ----------
        digest : str
            Checksum of the current model.
        *new : LogEntry
            The new entries. Without any, the file is only cleaned.
        """
        entries = [*self.log_entries(digest), *new]
        if entries == self.log_entries():
            return
        with files.atomic_path(self._log, like=self.model) as temporary:
            text = json.dumps(to_values(entries), indent=1)
            temporary.write_text(text, encoding="utf-8")


def publish(body: bytes, model: Path) -> None:
    """Replace the model file in one step."""
    with files.atomic_path(model) as temporary:
        temporary.write_bytes(body)
