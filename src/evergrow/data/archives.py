"""Zip and tar archives read as they are: no name in them ever becomes a path on disk."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import posixpath
import stat
import struct
import tarfile
import tempfile
import threading
import weakref
import zipfile
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.core.wording import setting
from evergrow.data.folders import Walk, is_hidden
from evergrow.data.labelled import LabelledItems, listed, shown
from evergrow.data.options import DataOptions
from evergrow.data.readers import LAYOUTS, list_layouts, register_file_format
from evergrow.data.stored import ImageStore, StoredImages
from evergrow.data.tables import TABLE_SUFFIXES
from evergrow.data.trees import EntryKind, FileTree, folder_entries

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

MOST_FILES = 1_000_000
"""Files that an archive may hold."""

LARGEST_FILE = 512 * 2**20
"""Bytes that one file in an archive may unpack to."""

_RATIO, _ROOM = 100, 64 * 2**20
"""All files together may unpack to so many times the archive, and so many bytes; images do not come near."""

_DAMAGE = (
    *(ValueError, TypeError, OSError, EOFError, KeyError, IndexError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tarfile.TarError, lzma.LZMAError),
)
"""What the readers of archives raise where bytes are not what they should be."""


@dataclass(frozen=True)
class Member:
    """A file in an archive.

    Parameters
    ----------
    name : str
        Its name, with forward slashes, inside the archive.
    size : int
        Bytes when unpacked.
    tag : str
        Checksum or time of change, as the archive has it.
    at : object
        Where the archive keeps it.
    """

    name: str
    size: int
    tag: str
    at: Any


class ArchiveFile(ImageStore):
    """An archive as a store of files; every process opens it for itself.

    Parameters
    ----------
    path : Path
        The archive.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped: Counter[str] = Counter()
        self._handle: Any = None
        self._owner = 0
        self._lock = threading.Lock()
        limit = _RATIO * _size(path) + _ROOM
        self.members: list[Member] = []
        for member in _unique(self._listed(), self.skipped):
            _check_bounds(path, member, len(self.members), limit)
            limit -= member.size
            self.members.append(member)
        self.members.sort(key=lambda member: member.name)
        self.number = {member.name: row for row, member in enumerate(self.members)}

    @abstractmethod
    def _listed(self) -> Iterator[Member]:
        """Yield all files; links and special files are counted as skipped."""

    @abstractmethod
    def _opened(self) -> Any:
        """Return the archive opened for reading."""

    @abstractmethod
    def _content(self, handle: Any, member: Member) -> bytes:
        """Return the bytes of a file."""

    def name(self, row: int) -> str:
        """Return the name of a file in the archive."""
        return self.members[row].name

    def key(self, row: int) -> str:
        """Return name, size and checksum or time of a file."""
        member = self.members[row]
        return f"{member.name}\0{member.size}\0{member.tag}"

    def read(self, row: int) -> bytes:
        """Return the content of a file."""
        member = self.members[row]
        if self._owner != os.getpid():  # a forked process shares neither the position in the file nor a held lock
            self._handle, self._lock, self._owner = None, threading.Lock(), os.getpid()
        try:
            with self._lock:
                if self._handle is None:
                    self._handle = self._opened()
                body = self._content(self._handle, member)
            if len(body) != member.size:
                raise EOFError(f"{len(body)} bytes instead of {member.size}")
        except _DAMAGE as error:
            raise FileFormatError(
                f"{self.path} must be a whole archive, but {shown(member.name)} cannot be read: {error}"
            ) from error
        return body

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_lock": threading.Lock()})


class ZipArchive(ArchiveFile):
    """A zip archive."""

    def _listed(self) -> Iterator[Member]:
        with _whole(self.path, "zip"), zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                if info.is_dir():
                    continue
                if stat.S_ISLNK(mode):
                    self.skipped["links"] += 1
                elif info.flag_bits & 1:
                    self.skipped["encrypted files"] += 1
                else:
                    yield Member(
                        name_inside(self.path, info.filename), info.file_size, f"{info.CRC:08x}", info.filename
                    )

    def _opened(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path)

    def _content(self, handle: zipfile.ZipFile, member: Member) -> bytes:
        with handle.open(member.at) as file:
            return file.read(member.size + 1)


class TarArchive(ArchiveFile):
    """A tar archive; a compressed one is unpacked once, as one file, to a place of its own that goes with it."""

    def __init__(self, path: Path) -> None:
        self._plain = path
        opener = _OPENERS.get(_magic(path))
        if opener is not None:
            with _whole(path, "compressed tar"):
                self._plain = _unpacked(path, opener)
            weakref.finalize(self, _remove, self._plain, os.getpid())
        super().__init__(path)

    def _listed(self) -> Iterator[Member]:
        end = _size(self._plain)
        with _whole(self.path, "tar"), tarfile.open(self._plain, "r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all: a gigabyte for a million
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    self.skipped["links" if info.issym() or info.islnk() else "special files"] += 1
                    continue
                if info.size < 0 or info.offset_data + info.size > end:
                    raise EOFError(f"{shown(info.name)} goes beyond the end of it")
                yield Member(name_inside(self.path, info.name), info.size, str(int(info.mtime)), info.offset_data)
            self._check_end(archive.offset)

    def _check_end(self, offset: int) -> None:
        """Refuse an archive that is damaged in its middle, which tarfile takes for its end."""
        with open(self._plain, "rb") as file:
            file.seek(offset)
            if file.read(512).strip(b"\0"):
                raise ValueError(f"what comes at byte {offset} is no header")

    def _opened(self) -> IO[bytes]:
        return open(self._plain, "rb")

    def _content(self, handle: IO[bytes], member: Member) -> bytes:
        handle.seek(member.at)
        return handle.read(member.size)


_OPENERS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}


def _magic(path: Path) -> bytes:
    with _whole(path, "tar"), open(path, "rb") as file:
        return file.read(2)


def _unpacked(path: Path, opener: Any) -> Path:
    """Return the plain tar of a compressed one, in a temporary file; one that grows without bounds is refused."""
    limit = _RATIO * _size(path) + _ROOM
    with tempfile.NamedTemporaryFile(prefix="evergrow-", suffix=".tar", delete=False) as target:
        try:
            with opener(path, "rb") as source:
                while block := source.read(2**20):
                    limit -= len(block)
                    if limit < 0:
                        raise ValueError(f"it must unpack to at most {_RATIO} times its size and 64 MiB")
                    target.write(block)
        except BaseException:
            os.unlink(target.name)
            raise
    return Path(target.name)


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        path.unlink(missing_ok=True)


class _whole:  # noqa: N801  reads as a phrase: with _whole(path, "zip")
    """Turn whatever a reader of archives raises into an error with the archive's name."""

    def __init__(self, path: Path, form: str) -> None:
        self.path, self.form = path, form

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, _DAMAGE) and not isinstance(error, (FileFormatError, InputError)):
            raise FileFormatError(f"{self.path} must be a whole {self.form} archive: {error}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetNotFoundError(f"file must be readable, got {path}: {error}") from error


def name_inside(path: Path | str, name: str) -> str:
    """Return the name of a file in an archive in one spelling; names that lead out of it are refused."""
    plain = name.replace("\\", "/")
    parts = plain.split("/")
    if plain.startswith("/") or ".." in parts or "\0" in plain or (len(plain) > 1 and plain[1] == ":"):
        raise FileFormatError(f"{path} must hold files inside of it, got {shown(name)!r}, which leads out; not read")
    return posixpath.normpath(plain)


def _unique(members: Iterator[Member], skipped: Counter[str]) -> list[Member]:
    """Return the last file of every name, as unpacking would leave it."""
    last: dict[str, Member] = {}
    for member in members:
        if member.name in last:
            skipped["files replaced by a later one of the same name"] += 1
        elif len(last) >= MOST_FILES:
            raise FileFormatError(f"archive must hold at most {MOST_FILES:,} files, got more")
        last[member.name] = member
    return list(last.values())


def _check_bounds(path: Path, member: Member, count: int, left: int) -> None:
    if member.size > LARGEST_FILE:
        raise FileFormatError(
            f"{path} must hold files of at most {LARGEST_FILE // 2**20} MiB, got {shown(member.name)} of "
            f"{member.size // 2**20} MiB"
        )
    if member.size > left:
        raise FileFormatError(
            f"{path} must unpack to at most {_RATIO} times its size and {_ROOM // 2**20} MiB, got more in its first "
            f"{count + 1} files"
        )


@dataclass(frozen=True)
class ArchiveTree(FileTree):
    """The files of an archive, or of a folder in it.

    Parameters
    ----------
    archive : ArchiveFile
        The archive.
    base : str
        Folder in it that is the root.
    children : dict
        What every folder of the archive holds.
    """

    archive: ArchiveFile
    base: str = ""
    children: dict[str, dict[str, EntryKind]] = field(default_factory=dict)

    @classmethod
    def of(cls, archive: ArchiveFile) -> ArchiveTree:
        """Return the tree of a whole archive."""
        children = folder_entries((member.name for member in archive.members), str(archive.path))
        return cls(archive, "", children)

    @property
    def title(self) -> str:
        """The archive and the folder in it."""
        return posixpath.join(str(self.archive.path), self.base) if self.base else str(self.archive.path)

    def entries(self, folder: str) -> Iterator[tuple[str, EntryKind]]:
        """Yield what a folder holds."""
        yield from self.children.get(self._full(folder), {}).items()

    def identity(self, folder: str) -> Hashable:
        """Return the name: there are no links."""
        return self._full(folder)

    def is_file(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return self._full(name) in self.archive.number

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        if not self.is_file(name):
            raise DatasetNotFoundError(f"{self.archive.path} must hold a file {shown(name)}, but it does not")
        return self.archive.read(self.archive.number[self._full(name)])

    def images(self, names: list[str]) -> StoredImages:
        """Return images in the archive."""
        rows = np.array([self.archive.number[self._full(name)] for name in names], dtype=np.int64)
        return StoredImages(self.archive, rows)

    def below(self, folder: str) -> ArchiveTree:
        """Return the tree of a folder in this one."""
        return ArchiveTree(self.archive, self._full(folder), self.children)

    def _full(self, name: str) -> str:
        full = posixpath.normpath(posixpath.join(self.base, name))
        return "" if full == "." else full


def open_archive(path: Path) -> ArchiveTree:
    """Return the files of an archive; a single folder that holds all others is stepped into.

    Raises
    ------
    FileFormatError
        If it is damaged, holds names that lead out of it, or unpacks to far more than images do.
    """
    tree = ArchiveTree.of(ZipArchive(path) if path.name.lower().endswith(".zip") else TarArchive(path))
    while (inner := _only_folder(tree)) is not None:
        tree = tree.below(inner)
    return tree


def _only_folder(tree: ArchiveTree) -> str | None:
    """Return the one folder that everything is in, unless images alone are: then it is a class."""
    visible = [(name, kind) for name, kind in tree.entries("") if not is_hidden(name)]
    if len(visible) != 1 or visible[0][1] != "folder":
        return None
    below = tree.below(visible[0][0])
    data = any(name.lower().endswith((*TABLE_SUFFIXES, ".json")) for name in below.files())
    return visible[0][0] if data or Walk(below).subfolders() else None


@register_file_format("archive", ARCHIVE_SUFFIXES, by_name="last")
def read_archive(path: Path, options: DataOptions) -> LabelledItems:
    """Read an archive as the folder would be read that it unpacks to; nothing is unpacked.

    Raises
    ------
    InputError
        If its layout is one that can only be read from disk.
    """
    tree = open_archive(path)
    labelled = _read_tree(tree, options)
    if tree.archive.skipped:
        said = ", ".join(f"{reason}: {count}" for reason, count in sorted(tree.archive.skipped.items()))
        labelled.cautions.append(f"entries of the archive left out: {said}")
    return labelled


def _read_tree(tree: ArchiveTree, options: DataOptions) -> LabelledItems:
    if options.layout != "auto":
        layout = LAYOUTS[options.layout].in_archive
        if layout is None:
            raise InputError(
                f"{setting('layout')} must be one of {listed(_readable())} in an archive, got {options.layout!r}"
            )
        return layout[1](tree, options)
    for name in list_layouts():
        layout = LAYOUTS[name].in_archive
        if layout is not None and layout[0](tree):
            return layout[1](tree, options)
    raise InputError(f"{tree.title} must be laid out like one of {listed(_readable())}, got another; unpack it")


def _readable() -> list[str]:
    return [name for name in list_layouts() if LAYOUTS[name].in_archive is not None]
