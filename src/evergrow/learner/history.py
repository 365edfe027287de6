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

TIMES = 5
ROOM = 20_000_000
"""Default size limit of model and history: TIMES times the model plus ROOM bytes."""

_DIGITS = 9  # longest revision number accepted from a file name
_PIECE = 4 * 2**20  # maximum bytes of a piece; larger files are not read
_SMALL = 2**16  # tensors with fewer bytes share a piece with their neighbours
_LONGEST_LIST = 8 * 2**20  # bytes; enough for a model of hundreds of gigabytes
# A state that lists pieces repeatedly may have at most _RATIO times their bytes plus
# _SLACK.
_RATIO = 100
_SLACK = 64 * 2**20
# The file may be replaced by a link or a pipe before it is opened.
_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_HASH = re.compile(r"[0-9a-f]{64}")


def default_room(*sizes: int) -> int:
    """Return the default maximum size of a history, given model sizes before and after.

    The larger size counts, so that a change that shrinks a model can be undone.

    Examples
    --------
    >>> from evergrow.learner.history import default_room
    >>> default_room(12_000_000, 10_000_000)
    68000000
    """
    return (TIMES - 1) * max(sizes) + ROOM


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
class Undone:
    """A rollback or redo in the log.

    Parameters
    ----------
    change : Change
        The record shown by :func:`~evergrow.learner.modelfile.history`.
    before, after : str
        Checksums of the model before and after. The entry is written first: if the
        model still has the checksum ``before`` of the latest entry, a crash prevented
        it.
    undone : tuple of Change
        The undone changes; the restored model does not list them.
    """

    change: Change
    before: str
    after: str
    undone: tuple[Change, ...] = ()


@dataclass(frozen=True)
class _Log:
    entries: tuple[Undone, ...] = ()


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
    sizes: tuple[Annotated[int, Between(1, _PIECE)], ...]

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
            sum(self.sizes) <= _RATIO * weight([self]) + _SLACK,
            "it lists the same pieces too often",
        )

    @classmethod
    def of(cls, data: bytes, digest: str) -> Self:
        """Return the state of a model from the bytes of its file."""
        sizes = _cut(data)
        ends = accumulate(sizes, initial=0)
        hashes = tuple(
            _hash(memoryview(data)[start:stop]) for start, stop in pairwise(ends)
        )
        return cls(digest, hashes, tuple(sizes))


def weight(states: Iterable[State]) -> int:
    """Return the total bytes of all pieces of states; shared pieces count once."""
    sizes: dict[str, int] = {}
    for state in states:
        sizes.update(zip(state.hashes, state.sizes, strict=True))
    return sum(sizes.values())


def _hash(body: bytes | memoryview) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def _cut(data: bytes) -> list[int]:
    """Return the sizes of the pieces of a model file in the safetensors format."""
    large: list[int] = []
    # A damaged model is stored too.
    with suppress(ValueError, KeyError, TypeError, AttributeError, struct.error):
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        tensors = [
            entry["data_offsets"]
            for name, entry in header.items()
            if name != "__metadata__"
        ]
        large = [
            8 + length + edge
            for start, stop in tensors
            if stop - start >= _SMALL
            for edge in (start, stop)
        ]
    edges = sorted({0, *(edge for edge in large if 0 < edge < len(data)), len(data)})
    return [
        min(_PIECE, stop - at)
        for start, stop in pairwise(edges)
        for at in range(start, stop, _PIECE)
    ]


def _contents(path: Path, largest: int) -> bytes:
    """Read a regular file; links, devices and larger files raise an error."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
            raise FileFormatError(
                f"{path} must be a regular file of at most {largest} bytes"
            )
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | _UNFOLLOWED)
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
            if stem.isascii() and stem.isdecimal() and len(stem) <= _DIGITS
        )

    def secure(self) -> None:
        """Create the folder; only users who may read the model may read it."""
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

    def tidy(self) -> None:
        """Remove partial files of killed writers, and unlisted pieces."""
        files.remove_leftovers(self.folder)
        self.remove([])

    def position(self, current: Header) -> Lineage:
        """Return the lineage of the current model, with a revision number."""
        number = current.revision
        taken = self.numbers()
        if number == 0 or number in taken:  # compare contents, not only checksums
            state = State.of(self.model.read_bytes(), current.digest)
            if number == 0 or self._state(number) != state:
                number = next(
                    (other for other in taken if self._state(other) == state),
                    max([*taken, 0]) + 1,
                )
        if current.is_saved_by_hand:
            return Lineage(number)
        return dataclasses.replace(current.lineage, number=number)

    def adopt(self, current: Header) -> None:
        """Add the current model to the history, unless it is there."""
        number = self.position(current).number
        data = self.model.read_bytes()
        state = State.of(data, current.digest)
        ends = accumulate(state.sizes, initial=0)
        for name, (start, stop) in zip(state.hashes, pairwise(ends), strict=True):
            self._put(name, data[start:stop])
        if self._state(number) != state:
            write_document(self.file(number), state, like=self.model)

    def _put(self, name: str, body: bytes) -> None:
        """Write a piece, unless it is there and intact."""
        path = self.piece(name)
        with suppress(FileFormatError):
            if _contents(path, len(body)) == body:
                return
        if path.is_symlink():
            path.unlink()
        with files.atomic_path(path, like=self.model) as temporary:
            temporary.write_bytes(body)

    def _state(self, number: int) -> State | None:
        """Return a kept state; None if its list is damaged."""
        try:
            return self._listed(number)
        except NewerSchemaError:
            raise
        except FileFormatError:
            return None

    def _listed(self, number: int) -> State:
        file = self.file(number)
        return from_document(
            State, parse_json(_contents(file, _LONGEST_LIST), str(file)), str(file)
        )

    def kept(self, current: Header) -> list[Ancestor]:
        """Return the ancestors of the current model that have a state file."""
        if current.is_saved_by_hand:
            return []
        return [
            entry
            for entry in current.lineage.ancestors
            if os.path.lexists(self.file(entry.revision))
        ]

    def verified(self, number: int, digest: str) -> tuple[Archive, bytes]:
        """Read a revision and verify its pieces and its checksum.

        Raises
        ------
        FileFormatError
            If it is damaged, was altered, or belongs to another model.
        """
        state = self._listed(number)
        pieces = [
            _contents(self.piece(name), size)
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

    def restore(self, number: int, body: bytes, entry: Undone) -> None:
        """Replace the model by a verified revision; the history keeps the model."""
        self.adopt(Header.read(self.model))
        self.log(entry.before, entry)
        publish(body, self.model)
        self.remove([number])

    def prune(self, lineage: Lineage, keep: int, room: int) -> list[int]:
        """Remove revisions beyond a number or size: undone ones first, then the oldest.

        Parameters
        ----------
        lineage : Lineage
            Lineage of the model.
        keep, room : int
            Maximum number of revisions, and of bytes of all their pieces.

        Returns
        -------
        list of int
            The removed revisions.
        """
        kept = self.numbers()
        trail = {entry.revision for entry in lineage.ancestors}
        order = [
            *(number for number in kept if number not in trail),
            *(number for number in kept if number in trail),
        ]
        states = [self._state(number) for number in order]
        first = max(len(order) - keep, 0)
        while (
            first < len(order)
            and weight(state for state in states[first:] if state is not None) > room
        ):
            first += 1
        self.remove(order[:first])
        return sorted(order[:first])

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove revisions, and all pieces that no other revision has."""
        for number in numbers:
            _unlink(self.file(number))
        states = [self._state(number) for number in self.numbers()]
        used = {name for state in states if state is not None for name in state.hashes}
        for piece in self.folder.glob("*.piece"):
            if piece.stem not in used:
                _unlink(piece)

    def redoable(self, digest: str) -> list[Undone]:
        """Return the rollbacks that can be undone, in that order.

        Parameters
        ----------
        digest : str
            Checksum of the current model. If it learned since, nothing can be undone.
        """
        stack: list[Undone] = []
        for entry in self.undone(digest):
            if entry.change.what == "redo":
                stack = stack[:-1]
            else:
                stack = [*stack, entry]
        chain: list[Undone] = []
        while stack and stack[-1].after == digest:
            chain.append(stack.pop())
            digest = chain[-1].before
        return chain

    def find(self, digest: str) -> int | None:
        """Return the kept revision with this checksum (not verified), or None."""
        states = ((number, self._state(number)) for number in reversed(self.numbers()))
        return next(
            (
                number
                for number, state in states
                if state is not None and state.digest == digest
            ),
            None,
        )

    def undone(self, digest: str = "") -> list[Undone]:
        """Return all rollbacks and redos, the oldest first.

        Parameters
        ----------
        digest : str
            Checksum of the current model, to leave out a rollback that a crash
            prevented.
        """
        try:
            if self._log.is_symlink():
                raise FileFormatError("it is a link")
            found = from_values(
                _Log, {"entries": parse_json(self._log.read_bytes(), "it")}, "it"
            ).entries
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{self._log} must be a list of rollbacks, got a damaged one: {error}; "
                "the model is as it was, and can be used again once that file is "
                "mended or moved away"
            ) from error
        return list(found[:-1] if found and found[-1].before == digest else found)

    def log(self, digest: str, *entries: Undone) -> None:
        """Add entries to the log, and drop an entry that a crash prevented."""
        known = self.undone()
        happened = self.undone(digest)
        if not entries and happened == known:
            return
        with files.atomic_path(self._log, like=self.model) as temporary:
            temporary.write_text(
                json.dumps(to_values([*happened, *entries]), indent=1), encoding="utf-8"
            )


def publish(body: bytes, model: Path) -> None:
    """Replace the model file in one step."""
    with files.atomic_path(model) as temporary:
        temporary.write_bytes(body)
