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
from evergrow.data.items import Images, Stored

if TYPE_CHECKING:
    from evergrow.data.archives import DataArchive

RATIO = 100
"""Compressed data may unpack to this many times its size plus :data:`ROOM` bytes."""

ROOM = 64 * 2**20

LARGEST_IMAGE = 256 * 2**20
"""Largest size of an image file in a shard, in bytes."""

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
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
    """Files and folders below a root.

    Names are relative to the root, with forward slashes; "" is the root itself.

    Parameters
    ----------
    address : str or path-like
        The root: a path, or an address of fsspec.
    archive : DataArchive, optional
        An archive that holds the files; then the root is its address.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.storage import Tree
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.txt").write_text("whole")
    ...     Tree(folder).listing(), Tree(folder).read("a.txt", 1, 3)
    ({'a.txt': 5}, b'ho')
    """

    def __init__(
        self, address: str | os.PathLike[str], archive: DataArchive | None = None
    ) -> None:
        text = os.fspath(address)
        self.archive = archive
        self.base = ""
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
        """The folder on disk."""
        return Path(self.address, self.base)

    def display_name(self, name: str = "") -> str:
        """Return the path or address of a file or folder for messages."""
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

        fsspec caches one file system per process.
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
        """Return the tree whose root is a folder of this one."""
        inner = copy.copy(self)
        inner.base = self._full(folder)
        return inner

    # -- listing -----------------------------------------------------------------------

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes of all files at the address or in the archive, by name.

        Names are relative to the address, not to the root. The first access lists a
        remote address. From then on, other methods answer from this list.

        Raises
        ------
        DatasetNotFoundError
            If there are no files.
        """
        if self.archive is not None:
            return self.archive.sizes
        # A tree whose root is the address.
        outer = copy.copy(self)
        outer.base = ""
        found = outer.listing()
        if not found:
            raise DatasetNotFoundError(
                f"{self.display_name()} must hold files, got none"
            )
        return found

    def listing(self, *, deep: bool = True) -> dict[str, int]:
        """Return names and sizes of files, sorted by name.

        These are the files in the root, or with ``deep`` all files below it. Links to
        folders are not followed.
        """
        with self._reaching(""):
            found = self._remote_listing(deep) if self.remote else self._listing(deep)
        return dict(sorted(found.items()))

    def _remote_listing(self, deep: bool) -> dict[str, int]:
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
    def _children(self) -> dict[str, dict[str, EntryKind]]:
        """Names and kinds of the entries of every folder of an address or archive.

        Folders are relative to the address, not to the root.
        """
        folders: dict[str, dict[str, EntryKind]] = {"": {}}
        for full in self.sizes:
            path = full
            kind: EntryKind = "file"
            while path:
                parent, name = posixpath.split(path)
                entries = folders.setdefault(parent, {})
                if entries.setdefault(name, kind) != kind:
                    raise FileFormatError(
                        f"{self.address} must hold a file or a folder, got both: "
                        f"{full!r}"
                    )
                path = parent
                kind = "folder"
        return folders

    def entries(self, folder: str = "") -> Iterator[tuple[str, EntryKind]]:
        """Yield name and kind of the entries of a folder; links are followed."""
        if not self.on_disk:
            yield from self._children.get(self._full(folder), {}).items()
            return
        with self._reaching(folder), os.scandir(self.root / folder) as entries:
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

    def folders(self, folder: str = "") -> dict[str, str]:
        """Return the names of the folders in a folder, by their lower case."""
        return {
            name.lower(): name
            for name, kind in self.entries(folder)
            if kind == "folder"
        }

    def is_file(self, name: str) -> bool:
        """Return whether a file exists; a remote storage is queried unless listed."""
        if self.on_disk:
            return os.path.isfile(self.root / name)
        if self.archive is not None or "sizes" in self.__dict__:
            return self._full(name) in self.sizes
        system, path = self._remote_path(name)
        with self._reaching(name):
            system.invalidate_cache()
            return bool(system.isfile(path))

    # -- reading -----------------------------------------------------------------------

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        if self.archive is not None or "sizes" in self.__dict__:
            return self.sizes[self._full(name)]
        with self._reaching(name):
            if not self.remote:
                return os.stat(self.root / name).st_size
            system, path = self._remote_path(name)
            about = system.info(path)
            if about.get("type") != "file":
                raise FileNotFoundError(name)
            return int(about.get("size") or 0)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read the bytes of a file from ``start`` to ``stop``."""
        if self.archive is not None:
            if not self.is_file(name):
                raise DatasetNotFoundError(
                    f"{self.address} must hold a file {printable(name)}, "
                    "but it does not"
                )
            return self.archive.read(self._full(name))[start:stop]
        with self._reaching(name):
            if not self.remote:
                with open(self.root / name, "rb") as file:
                    file.seek(start)
                    if stop is None:
                        return file.read()
                    return file.read(max(stop - start, 0))
            end = self.size(name) if stop is None else stop
            if end <= start:
                return b""
            system, path = self._remote_path(name)
            return bytes(system.cat_file(path, start=start, end=end))

    def text(self, name: str) -> str:
        """Return the text of a UTF-8 file, with or without a byte order mark."""
        return decoded_text(self.read(name), self.display_name(name))

    def open(self, name: str, block: int = 0) -> IO[bytes]:
        """Open a file for reading and seeking.

        Of a remote file, ``block`` bytes are fetched at a time, or exactly the
        requested bytes if it is 0.
        """
        with self._reaching(name):
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
        """Return remote image files, requested in parallel; an error if one fails."""
        if not names:
            return []
        system, _ = self._connection()
        with self._reaching(""):
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
        """Return images by their names without reading them."""
        if self.on_disk:
            return Images(tuple(names), root=self.root)
        store = self.archive or self
        keys = tuple(names)
        if self.archive is not None:
            keys = tuple(self._full(name) for name in names)
        return Images(tuple(Stored(store, key) for key in keys), keys)

    def mark(self, name: str, *, times: bool) -> str:
        """Return name and size of a remote file, which identify it."""
        return f"{name}\0{self.sizes.get(self._full(name), 0)}"

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        """Convert errors of drivers to one line with the address."""
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
    """Decode UTF-8, with or without a byte order mark; an error names the line."""
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
    """Raise :class:`ParameterError` for an address with a secret.

    The message does not repeat the secret.
    """
    if is_remote(address) and _PASSWORD.search(address):
        raise ParameterError(
            "an address must not hold a password, which belongs in the environment"
        )
    if address.lower().startswith(("http://", "https://")) and "?" in address:
        raise ParameterError(
            "an address must not hold a query, which can be a signature"
        )
