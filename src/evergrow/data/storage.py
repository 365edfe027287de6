"""Trees of files on disk, in archives, in buckets and on the Hub.

Remote files are read with fsspec. Keys and other settings of a storage belong in the
configuration of fsspec, in ``FSSPEC_...`` or in the environment variables of its
drivers. An address must not hold them.
"""

from __future__ import annotations

import copy
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from evergrow.core.errors import (
    DatasetNotFoundError,
    EngineError,
    EvergrowError,
    FileFormatError,
    ImageError,
    MissingExtraError,
    ParameterError,
)
from evergrow.core.escaping import one_line, printable
from evergrow.core.files import StrPath
from evergrow.data.items import Images, StoredImage

if TYPE_CHECKING:
    from evergrow.data.archives import DataArchive

RATIO = 100
"""Compressed data may unpack to this many times its size plus :data:`ROOM` bytes."""

ROOM = 64 * 2**20
"""Bytes that any compressed data may unpack to, however small they are."""

LARGEST_IMAGE = 256 * 2**20
"""Largest size of an image file in a shard, in bytes."""

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""The extra of evergrow that installs the driver of a scheme."""

_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")

EntryKind = Literal["folder", "file", "broken"]


def is_remote(address: str) -> bool:
    """Return whether an address is remote; ``file://`` and plain paths are not.

    Examples
    --------
    >>> from evergrow.data.storage import is_remote
    >>> is_remote("s3://bucket/data"), is_remote("data/train"), is_remote("file:///data")
    (True, False, False)
    """
    return bool(_REMOTE.match(address)) and not address.lower().startswith("file://")


class Tree:
    """Files and folders below a root: on disk, at a remote address or in an archive.

    Names of files and folders are relative to the root, with forward slashes; "" is
    the root itself. The root is the address at first; :meth:`below` moves it to a
    folder of the address.

    Parameters
    ----------
    address : str or path-like
        A path, or a remote address of fsspec.
    archive : DataArchive, optional
        The archive that holds the files. The address is then its name in messages.

    Raises
    ------
    ParameterError
        If fsspec does not know the address, or the address holds a secret.
    MissingExtraError
        If the driver of a remote address is not installed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.storage import Tree
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.txt").write_text("whole")
    ...     Tree(folder).listing(), Tree(folder).read("a.txt", 1, 3)
    ({'a.txt': 5}, b'ho')
    """

    def __init__(self, address: StrPath, archive: DataArchive | None = None) -> None:
        text = os.fspath(address)
        self.archive = archive
        self.base = ""
        """Path of the root relative to the address."""
        self._sizes = None if archive is None else archive.sizes
        """Sizes of all files by name relative to the address, None if not listed."""
        self.remote = is_remote(text)
        if archive is not None:
            self.address = text
        elif self.remote:
            check_address(text)
            plain = text.rstrip("/")
            self.address = f"{plain}//" if plain.endswith(":") else plain
            self._connection()  # raises for an unknown scheme
        else:
            # Workers can run in another folder, so the path must be absolute.
            self.address = os.path.abspath(text.removeprefix("file://"))

    @property
    def on_disk(self) -> bool:
        """Whether the files are plain files on this machine."""
        return not self.remote and self.archive is None

    @property
    def root(self) -> Path:
        """The root as a path, of a tree on disk."""
        return Path(self.address, self.base)

    def display_name(self, name: str = "") -> str:
        """Return the full path or address of a file or folder for messages."""
        full = posixpath.join(self.base, name) if name else self.base
        if self.on_disk:
            return printable(str(Path(self.address, full)))
        if not full:
            return printable(self.address)
        return printable(f"{self.address.rstrip('/')}/{full}")

    def _full(self, name: str) -> str:
        """Return a name relative to the address instead of the root."""
        full = posixpath.normpath(posixpath.join(self.base, name))
        return "" if full == "." else full

    def _connection(self) -> tuple[Any, str]:
        """Return the fsspec file system, and the path of the address in it.

        They are not kept, so that the tree can be pickled; fsspec caches file systems.
        """
        try:
            import fsspec.core  # type: ignore[import-untyped]

            system, root = fsspec.core.url_to_fs(self.address)
        except ImportError as error:
            scheme = self.address.partition("://")[0].lower()
            install = ""
            if scheme in _EXTRAS:
                install = f" (pip install 'evergrow[{_EXTRAS[scheme]}]')"
            raise MissingExtraError(
                f"reading {self.address} must have a driver installed, but: "
                f"{one_line(str(error))}{install}"
            ) from error
        except (ValueError, TypeError) as error:
            raise ParameterError(
                f"an address must be one that fsspec knows, got {self.address}: "
                f"{_reason(error)}"
            ) from error
        return system, str(root).rstrip("/")

    def _remote_path(self, name: str) -> tuple[Any, str]:
        """Return the fsspec file system, and the path of a file or folder in it."""
        system, root = self._connection()
        full = self._full(name)
        return system, f"{root}/{full}" if full else root

    def below(self, folder: str) -> Tree:
        """Return a tree of the same address whose root is a folder of this one."""
        inner = copy.copy(self)
        inner.base = self._full(folder)
        return inner

    # -- listing -----------------------------------------------------------------------

    def list_once(self) -> dict[str, int]:
        """Return the sizes of all files at a remote address or in an archive.

        The first call lists a remote address completely. From then on, this tree, and
        trees that :meth:`below` makes of it, answer from the list instead of asking
        the storage. Keys are names relative to the address, not to the root.

        Raises
        ------
        DatasetNotFoundError
            If there are no files.
        """
        if self._sizes is None:
            whole = copy.copy(self)
            whole.base = ""
            found = whole.listing()
            if not found:
                raise DatasetNotFoundError(
                    f"{self.display_name()} must hold files, got none"
                )
            self._sizes = found
        return self._sizes

    def listing(self, *, deep: bool = True) -> dict[str, int]:
        """List files on disk or in a remote storage: their sizes by name, sorted.

        These are the files in the root, or with ``deep`` all files below it. Links to
        folders are not followed. A remote storage is always asked.
        """
        with self._wrap_errors(""):
            found = self._remote_listing(deep) if self.remote else self._listing(deep)
        return dict(sorted(found.items()))

    def _remote_listing(self, deep: bool) -> dict[str, int]:
        """Ask the storage for the sizes of files, by name relative to the root."""
        system, path = self._remote_path("")
        system.invalidate_cache()
        if deep:
            entries = system.find(path, detail=True).values()
        else:
            entries = system.ls(path, detail=True)
        found: dict[str, int] = {}
        for entry in entries:
            name = str(entry["name"]).removeprefix(path).lstrip("/")
            is_plain = all(step not in ("", ".", "..") for step in name.split("/"))
            # An entry of another type is a key that stands for a folder.
            if entry.get("type") == "file" and is_plain:
                found[name] = int(entry.get("size") or 0)
        return found

    def _listing(self, deep: bool) -> dict[str, int]:
        """Return the sizes of files on disk, by name relative to the root."""
        found: dict[str, int] = {}
        pending = [""]
        while pending:
            folder = pending.pop()
            for name, kind in self.entries(folder):
                path = posixpath.join(folder, name)
                if kind == "file":
                    found[path] = os.stat(self.root / path).st_size
                elif deep and kind == "folder" and not os.path.islink(self.root / path):
                    pending.append(path)
        return found

    @cached_property
    def _entries_of(self) -> dict[str, dict[str, EntryKind]]:
        """Kinds of the entries of each folder of a remote address or an archive.

        Keys are the folder's path relative to the address, and the entry's name.
        """
        folders: dict[str, dict[str, EntryKind]] = {"": {}}
        for file in self.list_once():
            path = file
            kind: EntryKind = "file"
            while path:
                parent, name = posixpath.split(path)
                entries = folders.setdefault(parent, {})
                if entries.setdefault(name, kind) != kind:
                    raise FileFormatError(
                        f"{self.address}: {path!r} is both a file and a folder"
                    )
                path = parent
                kind = "folder"
        return folders

    def entries(self, folder: str = "") -> Iterator[tuple[str, EntryKind]]:
        """Yield name and kind of the entries of a folder; links are followed.

        A remote address is listed once, see :meth:`list_once`.
        """
        if not self.on_disk:
            yield from self._entries_of.get(self._full(folder), {}).items()
            return
        with self._wrap_errors(folder), os.scandir(self.root / folder) as entries:
            for entry in entries:
                if _is_folder(entry):
                    yield entry.name, "folder"
                elif _is_file(entry):
                    yield entry.name, "file"
                else:
                    yield entry.name, "broken"

    def files(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files in a folder, without hidden ones."""
        found = [
            name
            for name, kind in self.entries(folder)
            if kind == "file" and not name.startswith(".")
        ]
        return sorted(posixpath.join(folder, name) for name in found)

    def folders(self) -> dict[str, str]:
        """Return the names of the folders in the root, by name in lower case."""
        return {name.lower(): name for name, kind in self.entries() if kind == "folder"}

    def is_file(self, name: str) -> bool:
        """Return whether a file exists; asks a storage that was not listed."""
        if self.on_disk:
            return os.path.isfile(self.root / name)
        if self._sizes is not None:
            return self._full(name) in self._sizes
        system, path = self._remote_path(name)
        with self._wrap_errors(name):
            system.invalidate_cache()
            return bool(system.isfile(path))

    # -- reading -----------------------------------------------------------------------

    def size(self, name: str) -> int:
        """Return the size of a file in bytes; asks a storage that was not listed."""
        if self._sizes is not None:
            return self._sizes[self._full(name)]
        with self._wrap_errors(name):
            if not self.remote:
                return os.stat(self.root / name).st_size
            system, path = self._remote_path(name)
            about = system.info(path)
            if about.get("type") != "file":
                raise FileNotFoundError(name)  # converted by _wrap_errors
            return int(about.get("size") or 0)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read the bytes of a file from ``start`` up to ``stop``, or up to its end.

        A missing file raises :class:`DatasetNotFoundError`.
        """
        if self.archive is not None:
            if not self.is_file(name):
                raise DatasetNotFoundError(
                    f"{self.address} must hold a file {printable(name)}, "
                    "but it does not"
                )
            return self.archive.read(self._full(name))[start:stop]
        with self._wrap_errors(name):
            if not self.remote:
                n_bytes = -1 if stop is None else max(stop - start, 0)
                with open(self.root / name, "rb") as file:
                    file.seek(start)
                    return file.read(n_bytes)
            end = self.size(name) if stop is None else stop
            if end <= start:
                return b""
            system, path = self._remote_path(name)
            return bytes(system.cat_file(path, start=start, end=end))

    def text(self, name: str) -> str:
        """Return the text of a UTF-8 file, with or without a byte order mark."""
        return decoded_text(self.read(name), self.display_name(name))

    def open(self, name: str, block: int = 0) -> IO[bytes]:
        """Open a file for reading and seeking, unless it is in an archive.

        Of a remote file, ``block`` bytes are fetched at a time, or exactly the
        requested bytes if it is 0.
        """
        with self._wrap_errors(name):
            if not self.remote:
                return open(self.root / name, "rb")
            system, path = self._remote_path(name)
            cache: dict[str, Any] = {"cache_type": "none"}
            if block:
                cache = {"cache_type": "readahead", "block_size": block}
            file: IO[bytes] = system.open(path, "rb", **cache)
            return file

    def read_all(
        self, names: Sequence[str], sizes: Sequence[int]
    ) -> list[bytes | ImageError]:
        """Return the bytes of remote image files, requested in parallel.

        An error takes the place of a file that cannot be read.
        """
        if not names:
            return []
        system, _ = self._connection()
        with self._wrap_errors(""):
            paths = [self._remote_path(name)[1] for name in names]
            starts = [0] * len(paths)
            bodies = system.cat_ranges(paths, starts, list(sizes), on_error="return")
        return [
            ImageError(f"image must be a readable file, got {name}: {_reason(body)}")
            if isinstance(body, BaseException)
            else body
            for name, body in zip(names, bodies, strict=True)
        ]

    def images(self, names: Sequence[str]) -> Images:
        """Return images by reference to their files. Nothing is read."""
        if self.on_disk:
            return Images(tuple(names), root=self.root)
        store = self.archive or self
        keys = tuple(names)
        if self.archive is not None:
            keys = tuple(self._full(name) for name in names)
        return Images(tuple(StoredImage(store, key) for key in keys), keys)

    def mark(self, name: str, *, times: bool) -> str:
        """Return name and size of a remote file, which identify it.

        ``times`` has no effect. The address is listed once, see :meth:`list_once`.
        """
        return f"{name}\0{self.list_once().get(self._full(name), 0)}"

    @contextmanager
    def _wrap_errors(self, name: str) -> Iterator[None]:
        """Convert errors of drivers to one line with the address.

        Missing files, and all errors of the local disk, become
        :class:`DatasetNotFoundError`; other errors become :class:`EngineError`.
        """
        try:
            yield
        except (EvergrowError, MemoryError):
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetNotFoundError(
                f"{self.display_name(name)} must exist, but there is no such file or "
                "folder"
            ) from error
        except Exception as error:  # every driver has its own exception types
            message = (
                f"{self.display_name(name)} must be within reach, but: {_reason(error)}"
            )
            if not self.remote and isinstance(error, OSError):
                raise DatasetNotFoundError(message) from error
            if isinstance(error, PermissionError):
                message += "; credentials are taken from the environment"
            raise EngineError(message) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # os.path.isdir returns False for a link to itself, and DirEntry.is_dir raises.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _is_file(entry: os.DirEntry[str]) -> bool:
    return os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file()


def _reason(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__


def decoded_text(body: bytes, title: str) -> str:
    """Decode UTF-8, with or without a byte order mark.

    Raises
    ------
    FileFormatError
        If it is not UTF-8. The message names the file (``title``) and the line.
    """
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        hint = ""
        if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = "; it looks like UTF-16"
        raise FileFormatError(
            f"{title} must be text in UTF-8, but line {line} is not{hint}"
        ) from error


def check_address(address: str) -> None:
    """Raise :class:`ParameterError` for a password, or a query, in a remote address.

    The message does not repeat them.
    """
    if is_remote(address) and _PASSWORD.search(address):
        raise ParameterError(
            "an address must not hold a password, which belongs in the environment"
        )
    if address.lower().startswith(("http://", "https://")) and "?" in address:
        raise ParameterError(
            "an address must not hold a query, which can be a signature"
        )
