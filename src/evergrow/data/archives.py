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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from evergrow.core.errors import EvergrowError, FileFormatError
from evergrow.core.escaping import one_line, printable
from evergrow.data.items import shown
from evergrow.data.storage import RATIO, ROOM, Tree

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

MOST_FILES = 10_000_000
"""Files that an archive may hold."""

LARGEST_FILE = 512 * 2**20
"""Bytes that one file in an archive may unpack to."""

DAMAGE = (
    *(ValueError, TypeError, OSError, EOFError, KeyError, IndexError, RuntimeError, OverflowError, RecursionError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tarfile.TarError, lzma.LZMAError),
)
"""What readers of archives and headers raise where bytes are not what they should be."""

_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
_BLOCK = 65536


@contextmanager
def sound(title: str, what: str) -> Iterator[None]:
    """Turn whatever damaged bytes raise into an error with the file's name."""
    try:
        yield
    except (EvergrowError, MemoryError):
        raise
    except Exception as error:  # zipfile, tarfile, numpy and arrow each have errors of their own
        reason = "a number is cut off" if isinstance(error, struct.error) else one_line(str(error))
        raise FileFormatError(f"{title} must be a whole {what}: {reason}") from error


class Member(NamedTuple):
    """A file in an archive: its name, where its header begins and ends, where its bytes are, its size, and a mark."""

    name: str
    start: int
    stop: int
    data: int
    size: int
    tag: str


def name_inside(title: str, name: str) -> str:
    """Return the name of a file in an archive in one spelling; names that lead out of it are refused."""
    plain = name.replace("\\", "/")
    if plain.startswith("/") or ".." in plain.split("/") or "\0" in plain or (len(plain) > 1 and plain[1] == ":"):
        raise FileFormatError(f"{title} must hold files inside of it, got {shown(name)!r}, which leads out; not read")
    return posixpath.normpath(plain)


def tar_members(
    file: IO[bytes], title: str, size: int, *, skipped: Counter[str] | None = None, whole: bool = True
) -> Iterator[Member]:
    """Yield the files of a tar by its headers; no file is read.

    Parameters
    ----------
    file : file object
        The tar, or a range of it that begins with a header.
    title : str
        The tar, for messages.
    size : int
        Bytes of it.
    skipped : Counter, optional
        Counts links and special files, which are refused without it.
    whole : bool
        Whether it must end as a tar does.

    Raises
    ------
    FileFormatError
        If it is cut off, or holds names that lead out of it.
    """
    with sound(title, "tar archive"), tarfile.open(fileobj=file, mode="r:") as archive:
        # The offset is 0 where there is no member, and then Python 3.10 fails to look for the next one.
        while archive.offset and (info := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all: a gigabyte for a million
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                kind = "links" if info.issym() or info.islnk() else "special files"
                if skipped is None:
                    raise FileFormatError(f"{title} must hold plain files only, got {kind}: {printable(info.name)}")
                skipped[kind] += 1
                continue
            if info.size < 0 or info.offset_data + info.size > size:
                raise EOFError(f"{printable(info.name)} goes beyond the end of it")
            name = name_inside(title, info.name)
            yield Member(name, info.offset, archive.offset, info.offset_data, info.size, str(int(info.mtime)))
        file.seek(archive.offset)
        block = file.read(512)
        if block.strip(b"\0") or (whole and len(block) < 512):  # tarfile takes damage in the middle for the end
            what = "what comes is no header" if block else "it is cut off"
            raise EOFError(f"at byte {archive.offset} {what}")


class Archive:
    """A zip or tar as a store of files; every process opens it for itself, and nothing is unpacked but a packed tar.

    Parameters
    ----------
    tree : Tree
        Where it is.
    name : str
        Its name there.

    Raises
    ------
    FileFormatError
        If it is damaged, holds names that lead out of it, or unpacks to far more than images do.
    """

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree, self._name, self.title = tree, name, tree.place(name)
        self.skipped: Counter[str] = Counter()
        self._opened: tuple[int, Any, threading.Lock] | None = None
        self._is_zip = name.lower().endswith(".zip")
        size = tree.size(name)
        if not self._is_zip:
            opener = _OPENERS.get(tree.read(name, 0, 2))
            if opener is not None:
                self._tree, self._name = self._unpacked(opener, RATIO * size + ROOM)
        self.members = self._checked(RATIO * size + ROOM)
        self.sizes = {member.name: member.size for member in self.members.values()}

    def _unpacked(self, opener: Any, left: int) -> tuple[Tree, str]:
        """Return the plain tar of a packed one, as a temporary file that goes with the archive."""
        with tempfile.NamedTemporaryFile(prefix="evergrow-", suffix=".tar", delete=False) as target:
            weakref.finalize(self, _remove, target.name, os.getpid())
            with (
                sound(self.title, "compressed tar archive"),
                opener(self._tree.open(self._name, _BLOCK), "rb") as source,
            ):
                while block := source.read(2**20):
                    left -= len(block)
                    if left < 0:
                        raise ValueError(f"it must unpack to at most {RATIO} times its size and 64 MiB")
                    target.write(block)
        return Tree(Path(target.name).parent), Path(target.name).name

    def _checked(self, left: int) -> dict[str, Member]:
        """Return the files by name, the last of every name as unpacking would leave it."""
        found: dict[str, Member] = {}
        for member in self._zipped() if self._is_zip else self._tarred():
            if member.name in found:
                self.skipped["files replaced by a later one of the same name"] += 1
                left += found[member.name].size
            elif len(found) >= MOST_FILES:
                raise FileFormatError(f"{self.title} must hold at most {MOST_FILES:,} files, got more")
            if member.size > LARGEST_FILE:
                raise FileFormatError(
                    f"{self.title} must hold files of at most {LARGEST_FILE // 2**20} MiB, got {shown(member.name)} of "
                    f"{member.size // 2**20} MiB"
                )
            left -= member.size
            if left < 0:
                raise FileFormatError(
                    f"{self.title} must unpack to at most {RATIO} times its size and {ROOM // 2**20} MiB, got more in "
                    f"its first {len(found) + 1} files"
                )
            found[member.name] = member
        return found

    def _zipped(self) -> Iterator[Member]:
        with (
            sound(self.title, "zip archive"),
            self._tree.open(self._name, _BLOCK) as file,
            zipfile.ZipFile(file) as archive,
        ):
            for info in archive.infolist():
                if info.is_dir():
                    continue
                if stat.S_ISLNK(info.external_attr >> 16):
                    self.skipped["links"] += 1
                elif info.flag_bits & 1:
                    self.skipped["encrypted files"] += 1
                else:
                    name = name_inside(self.title, info.filename)
                    yield Member(name, info.header_offset, 0, 0, info.file_size, f"{info.CRC:08x}\0{info.filename}")

    def _tarred(self) -> Iterator[Member]:
        with self._tree.open(self._name, _BLOCK) as file:
            yield from tar_members(file, self.title, self._tree.size(self._name), skipped=self.skipped)

    def read(self, key: str) -> bytes:
        """Return the content of a file."""
        member = self.members[key]
        with sound(self.title, f"archive, but {shown(key)} cannot be read"):
            if self._is_zip:
                body = self._unzipped(member)
            else:
                body = self._tree.read(self._name, member.data, member.data + member.size)
            if len(body) != member.size:
                raise EOFError(f"{len(body)} bytes instead of {member.size}")
        return body

    def _unzipped(self, member: Member) -> bytes:
        if self._opened is None or self._opened[0] != os.getpid():  # a forked process shares no position in a file
            archive = zipfile.ZipFile(self._tree.open(self._name, _BLOCK))
            self._opened = (os.getpid(), archive, threading.Lock())
        _, archive, lock = self._opened
        with lock, archive.open(member.tag.partition("\0")[2]) as file:
            return bytes(file.read(member.size + 1))

    def mark(self, key: str, *, times: bool) -> str:
        """Return name, size and checksum or time of a file, and with times those of the archive."""
        member = self.members[key]
        changed = ""
        if times and self._tree.on_disk:
            status = os.stat(self._tree.root / self._name)
            changed = f"\0{status.st_size}\0{status.st_mtime_ns}"
        return f"{member.name}\0{member.size}\0{member.tag}{changed}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
