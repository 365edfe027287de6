"""Zip and tar archives, read without unpacking: their names never become paths."""

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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from evergrow.core.errors import EvergrowError, FileFormatError, InputError
from evergrow.core.escaping import one_line, printable
from evergrow.data.folders import Walk, counts_text, images_below, is_hidden
from evergrow.data.items import Dataset
from evergrow.data.readers import (
    ARCHIVE_SUFFIXES,
    DataOptions,
    read_folder,
    reader_of_folder,
    register_reader,
)
from evergrow.data.storage import RATIO, ROOM, Tree
from evergrow.data.tables import TABLE_SUFFIXES

MOST_FILES = 2_000_000
"""Maximum number of files in an archive."""

LARGEST_FILE = 512 * 2**20
"""Maximum unpacked size of a file in an archive, in bytes."""

_OPENERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZ": bz2.open,
    b"\xfd7": lzma.open,
}
_BLOCK = 65536
"""Bytes of a remote archive that are fetched at a time while it is listed."""

_LONGEST_NAME = 4096
_DEEPEST_NAME = 64
"""Limits of names in characters and folders."""

_BOUNDED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods of compression that :mod:`zipfile` unpacks in pieces of bounded size."""

# Bytes of the end record of a zip, of the zip64 records before it, and of a directory
# entry without the file name.
_ZIP_END = 22
_ZIP64_END = 76
_ZIP_ENTRY = 46


class TooManyFilesError(FileFormatError):
    """An archive holds more files than allowed."""


@contextmanager
def wrap_format_errors(title: str, what: str) -> Iterator[None]:
    """Convert any error of a damaged file to :class:`FileFormatError` with its name."""
    try:
        yield
    except (EvergrowError, MemoryError):
        raise
    except Exception as error:  # zipfile, tarfile, numpy and arrow differ in types
        reason = one_line(str(error))
        if isinstance(error, struct.error):
            reason = "a number is cut off"
        raise FileFormatError(f"{title} must be an intact {what}: {reason}") from error


class Member(NamedTuple):
    """A file in an archive.

    Parameters
    ----------
    name : str
        Normalised name.
    start, stop : int
        Position of its header, and of the next header.
    data : int
        Position of its bytes.
    size : int
        Unpacked size in bytes.
    tag : str
        Modification time (tar), or checksum and original name (zip).
    """

    name: str
    start: int
    stop: int
    data: int
    size: int
    tag: str


def name_inside(title: str, name: str) -> str:
    """Return the normalised name of a file in an archive.

    Raises
    ------
    FileFormatError
        If the name leads out of the archive, is too long or has too many folders.
    """
    plain = name.replace("\\", "/")
    if len(plain) > _LONGEST_NAME or plain.count("/") > _DEEPEST_NAME:
        raise FileFormatError(
            f"{title} must hold names of at most {_LONGEST_NAME:,} characters and "
            f"{_DEEPEST_NAME} folders, got {printable(plain[:80])!r}..."
        )
    if (
        plain.startswith("/")
        or ".." in plain.split("/")
        or "\0" in plain
        or (len(plain) > 1 and plain[1] == ":")
    ):
        raise FileFormatError(
            f"{title} is not read: it holds {printable(name)!r}, which leads out of it."
        )
    return posixpath.normpath(plain)


def tar_members(
    file: IO[bytes],
    title: str,
    size: int,
    *,
    skipped: Counter[str] | None = None,
    complete: bool = True,
) -> Iterator[Member]:
    """Yield the files of a tar from its headers. Contents are not read.

    Parameters
    ----------
    file : file object
        The tar, or a range of it that begins with a header.
    title : str
        The tar, for messages.
    size : int
        Size in bytes.
    skipped : Counter, optional
        Counts links and special files. Without it, they are refused.
    complete : bool
        Whether the end marker of a tar is required. A range of a tar has none.

    Raises
    ------
    FileFormatError
        If it is truncated, or a name leads out of it.
    """
    with (
        wrap_format_errors(title, "tar archive"),
        tarfile.open(fileobj=file, mode="r:") as archive,
    ):
        # The offset of an empty tar is 0, and then next() fails in Python 3.10.
        while archive.offset and (info := archive.next()) is not None:
            # tarfile keeps every member, which takes a gigabyte for a million.
            archive.members.clear()  # type: ignore[attr-defined]
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                kind = "special files"
                if info.issym() or info.islnk():
                    kind = "links"
                if skipped is None:
                    raise FileFormatError(
                        f"{title} must hold plain files only, got {kind}: "
                        f"{printable(info.name)}"
                    )
                skipped[kind] += 1
                continue
            if info.size < 0 or info.offset_data + info.size > size:
                raise EOFError(f"{printable(info.name)} goes beyond the end of it")
            name = name_inside(title, info.name)
            yield Member(
                name,
                info.offset,
                archive.offset,
                info.offset_data,
                info.size,
                str(int(info.mtime)),
            )
        # tarfile treats a damaged header like the end of the archive.
        file.seek(archive.offset)
        block = file.read(512)
        if block.strip(b"\0") or (complete and len(block) < 512):
            problem = "there is no valid header" if block else "it is cut off"
            raise EOFError(f"at byte {archive.offset} {problem}")


def open_zip(file: IO[bytes], title: str, most: int) -> zipfile.ZipFile:
    """Open a zip with at most ``most`` entries.

    The entries are counted before the directory is parsed, because
    :class:`zipfile.ZipFile` creates an object for every entry: a million take seconds
    and hundreds of megabytes.

    Raises
    ------
    TooManyFilesError
        If the zip has more entries.
    zipfile.BadZipFile
        If the file is not a zip.
    """
    length = file.seek(0, os.SEEK_END)
    tail, at = _zip_tail(file, length)
    # Number of entries and bytes of the directory, as the end record states them.
    count, size = struct.unpack_from("<10xHI", tail, at)
    zip64 = at - _ZIP64_END
    # A large zip has two zip64 records before the end record, which count instead.
    if zip64 >= 0 and tail[at - 20 : at].startswith(b"PK\6\7"):
        record_size, count, size = struct.unpack_from("<4xQ20xQQ", tail, zip64)
        if not tail[zip64:].startswith(b"PK\6\6") or record_size != 44:
            raise zipfile.BadZipFile("its zip64 records are not standard")
    most_that_fit = size // (_ZIP_ENTRY + 1)  # if every name has one character
    if max(count, most_that_fit) > most:
        # A large directory can also hold few entries with long names. So count the
        # signatures of entries, unless the size is far too large.
        is_plausible = count <= most and size <= min(1024 * most, length)
        file.seek(max(length - len(tail) - size, 0))
        if not is_plausible or file.read().count(b"PK\1\2") > most:
            raise TooManyFilesError(
                f"{title} must hold at most {most:,} files, got more"
            )
    return zipfile.ZipFile(file)


def _zip_tail(file: IO[bytes], length: int) -> tuple[bytes, int]:
    """Return the last bytes of a zip, and the position of its end record in them."""
    for comment in (0, 2**16):
        file.seek(max(length - comment - _ZIP_END - _ZIP64_END, 0))
        tail = file.read()
        at = len(tail) - _ZIP_END
        if not tail[-_ZIP_END:].startswith(b"PK\5\6"):
            at = tail.rfind(b"PK\5\6")
        if at >= 0:
            if len(tail) < at + _ZIP_END:
                break
            return tail, at
    raise zipfile.BadZipFile("it has no end record")


class DataArchive:
    """A zip or tar as a store of files.

    Its attribute ``sizes`` has the unpacked size of each file by name, ``members`` the
    positions, and ``skipped`` the number of entries left out by reason. Only compressed
    tars are unpacked, to one temporary file. Every process opens the archive itself.

    Parameters
    ----------
    tree : Tree
        Folder of the archive.
    name : str
        Name of the archive in the folder.
    most : int, optional
        Maximum number of files; :data:`MOST_FILES` by default.

    Raises
    ------
    FileFormatError
        If it is damaged, a name leads out of it, or it unpacks to far more than images
        do.
    """

    def __init__(self, tree: Tree, name: str, most: int | None = None) -> None:
        self._tree = tree
        self._name = name
        self.title = tree.display_name(name)
        self._most = MOST_FILES if most is None else most
        self.skipped: Counter[str] = Counter()
        self._opened: tuple[int, Any, threading.Lock] | None = None
        self._is_zip = name.lower().endswith(".zip")
        left = RATIO * tree.size(name) + ROOM  # bytes that it may still unpack to
        opener = None
        if not self._is_zip:
            opener = _OPENERS.get(tree.read(name, 0, 2))
        if opener is not None:
            self._unpack(opener, left)
        # Of several files with the same name the last one counts, as in unpacking.
        self.members: dict[str, Member] = {}
        for member in self._list_members():
            previous = self.members.get(member.name)
            if previous is not None:
                self.skipped["files replaced by a later one of the same name"] += 1
                left += previous.size
            left -= member.size
            self.members[member.name] = member
            self._check_limits(member, left)
        self.sizes = {member.name: member.size for member in self.members.values()}

    def _check_limits(self, member: Member, left: int) -> None:
        """Raise if there are too many files, or they unpack to too many bytes."""
        if len(self.members) > self._most:
            raise TooManyFilesError(
                f"{self.title} must hold at most {self._most:,} files, got more"
            )
        if member.size > LARGEST_FILE:
            raise FileFormatError(
                f"{self.title} must hold files of at most {LARGEST_FILE // 2**20} MiB, "
                f"got {printable(member.name)}"
            )
        if left < 0:
            raise FileFormatError(
                f"{self.title} must unpack to at most {RATIO} times its size, got more"
            )

    def _unpack(self, opener: Any, left: int) -> None:
        """Unpack a compressed tar to a temporary file, and read that one from now on.

        It is deleted with this object. More than ``left`` bytes are refused.
        """
        with tempfile.NamedTemporaryFile(
            prefix="evergrow-", suffix=".tar", delete=False
        ) as target:
            weakref.finalize(self, _remove, target.name, os.getpid())
            with (
                wrap_format_errors(self.title, "compressed tar archive"),
                opener(self._tree.open(self._name, _BLOCK), "rb") as source,
            ):
                while block := source.read(2**20):
                    left -= len(block)
                    if left < 0:
                        raise ValueError(
                            f"it must unpack to at most {RATIO} times its size and "
                            "64 MiB"
                        )
                    target.write(block)
        self._tree = Tree(Path(target.name).parent)
        self._name = Path(target.name).name

    def _list_members(self) -> Iterator[Member]:
        """Yield the files of the archive, and count the entries left out."""
        with self._tree.open(self._name, _BLOCK) as file:
            if not self._is_zip:
                yield from tar_members(
                    file, self.title, self._tree.size(self._name), skipped=self.skipped
                )
                return
            with (
                wrap_format_errors(self.title, "zip archive"),
                open_zip(file, self.title, self._most) as archive,
            ):
                for info in archive.infolist():
                    if info.is_dir():
                        continue
                    reason = _unreadable_entry(info)
                    if reason:
                        self.skipped[reason] += 1
                        continue
                    name = name_inside(self.title, info.filename)
                    # Files of a zip are found by the name in the tag, not by position.
                    tag = f"{info.CRC:08x}\0{info.filename}"
                    yield Member(name, info.header_offset, 0, 0, info.file_size, tag)

    def read(self, key: str) -> bytes:
        """Return the content of a file; raise :class:`FileFormatError` if damaged."""
        member = self.members[key]
        with wrap_format_errors(
            self.title, f"archive, but {printable(key)} cannot be read"
        ):
            if self._is_zip:
                body = self._unzipped(member)
            else:
                body = self._tree.read(
                    self._name, member.data, member.data + member.size
                )
            if len(body) != member.size:
                raise EOFError(f"{len(body)} bytes instead of {member.size}")
        return body

    def _unzipped(self, member: Member) -> bytes:
        """Return the content of a file, of which at most one byte too many is read."""
        # A forked process must not share the position in the file.
        if self._opened is None or self._opened[0] != os.getpid():
            archive = open_zip(
                self._tree.open(self._name, _BLOCK), self.title, self._most
            )
            self._opened = (os.getpid(), archive, threading.Lock())
        _, archive, lock = self._opened
        with lock, archive.open(member.tag.partition("\0")[2]) as file:
            return bytes(file.read(member.size + 1))

    def mark(self, key: str, *, times: bool) -> str:
        """Return name, size and tag of a file, with times also the archive status."""
        member = self.members[key]
        changed = ""
        if times and self._tree.on_disk:
            status = os.stat(self._tree.root / self._name)
            changed = f"\0{status.st_size}\0{status.st_mtime_ns}"
        return f"{member.name}\0{member.size}\0{member.tag}{changed}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def _unreadable_entry(info: zipfile.ZipInfo) -> str:
    """Return the reason why an entry of a zip is not read, or ""."""
    if stat.S_ISLNK(info.external_attr >> 16):
        return "links"
    if info.flag_bits & 1:
        return "encrypted files"
    if info.compress_type not in _BOUNDED_METHODS:
        return "files neither stored nor deflated"
    return ""


def _remove(path: str, owner: int) -> None:
    """Delete a file, but only in the process that created it, not in forks of it."""
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)


# -- the reader ------------------------------------------------------------------------


@register_reader("archive", suffixes=ARCHIVE_SUFFIXES)
def read_packed_folder(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read an archive like the folder that it would unpack to; nothing is unpacked.

    Raises
    ------
    InputError
        If its layout cannot be read from an archive.
    """
    archive = DataArchive(tree, name)
    inside = Tree(tree.display_name(name), archive=archive)
    while (inner := _wrapper_folder(inside)) is not None:
        inside = inside.below(inner)
    if not options.labelled:
        return images_below(inside)
    layout = options.layout
    if layout in ("auto", "archive"):
        layout = reader_of_folder(inside)
    found = read_folder(layout, inside, options)
    if not isinstance(found, Dataset):
        raise InputError(
            f"{inside.display_name()} must be unpacked to be read as {layout!r}"
        )
    if not archive.skipped:
        return found
    caution = f"entries of the archive left out: {counts_text(archive.skipped)}"
    return replace(found, cautions=(*found.cautions, caution))


def _wrapper_folder(tree: Tree) -> str | None:
    """Return the only folder of a tree if it wraps a data set, or else None.

    It does if it holds a table or folders; otherwise it is the folder of one class.
    """
    visible = [(name, kind) for name, kind in tree.entries() if not is_hidden(name)]
    if len(visible) != 1 or visible[0][1] != "folder":
        return None
    name = visible[0][0]
    below = tree.below(name)
    has_table = any(file.lower().endswith(TABLE_SUFFIXES) for file in below.files())
    return name if has_table or Walk(below).subfolders() else None
