"""Files on disk, in buckets and on the Hub, by fsspec: trees of files by names relative to a root.

Keys and other settings of a storage are fsspec's own: in its configuration, in
``FSSPEC_...`` or in what its drivers take from the environment. An address holds none.
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
from typing import IO, TYPE_CHECKING, Any, Literal, cast

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
ROOM = 64 * 2**20
"""Packed data of strangers may unpack to so many times their size, and so many bytes; real data do not come near."""

LARGEST_IMAGE = 256 * 2**20
"""Bytes that one image file in a shard may have."""

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")

EntryKind = Literal["folder", "file", "broken"]


def is_remote(address: str) -> bool:
    """Return whether an address is of a bucket, a hub or the like; ``file://`` and plain paths are not.

    Examples
    --------
    >>> from evergrow.data.storage import is_remote
    >>> is_remote("s3://bucket/data"), is_remote("data/train"), is_remote("file:///data")
    (True, False, False)
    """
    return bool(_REMOTE.match(address)) and not address.lower().startswith("file://")


class Tree:
    """Files and folders by names relative to a root, with forward slashes; the empty name is the root itself.

    Parameters
    ----------
    address : str or path-like
        The root: a path, or an address that fsspec knows.
    archive : DataArchive, optional
        An archive that holds the files, whose address the root is.

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
            if plain.endswith(":"):
                self.address = f"{plain}//"
            else:
                self.address = plain
            self._connection()  # so that a scheme that nobody knows is said at once
        else:
            self.address = os.path.abspath(
                text.removeprefix("file://")
            )  # workers may run in another folder

    @property
    def on_disk(self) -> bool:
        """Whether the files are plain files on this machine."""
        return not self.remote and self.archive is None

    @property
    def root(self) -> Path:
        """The folder on disk."""
        return Path(self.address, self.base)

    def place(self, name: str = "") -> str:
        """Return the address of a file or folder, for messages."""
        if name:
            inside = posixpath.join(self.base, name)
        else:
            inside = self.base
        if self.on_disk:
            return printable(str(Path(self.address, inside)))
        return printable(
            f"{self.address.rstrip('/')}/{inside}" if inside else self.address
        )

    def _full(self, name: str) -> str:
        full = posixpath.normpath(posixpath.join(self.base, name))
        return "" if full == "." else full

    def _connection(self) -> tuple[Any, str]:
        """Return the file system, of which fsspec keeps one in every process, and the path of the root in it."""
        try:
            import fsspec.core  # type: ignore[import-untyped]

            system, root = fsspec.core.url_to_fs(self.address)
        except ImportError as error:
            scheme = self.address.partition("://")[0].lower()
            extra = ""
            if scheme in _EXTRAS:
                extra = f" (pip install 'evergrow[{_EXTRAS[scheme]}]')"
            raise MissingExtraError(
                f"reading {self.address} must have a driver installed, but: {one_line(str(error))}{extra}"
            ) from error
        except (ValueError, TypeError) as error:
            raise ParameterError(
                f"an address must be one that fsspec knows, got {self.address}: {_said(error)}"
            ) from error
        return system, str(root).rstrip("/")

    def _at(self, name: str) -> tuple[Any, str]:
        """Return the file system of a storage, and the path of a file or folder in it."""
        system, root = self._connection()
        full = self._full(name)
        return system, f"{root}/{full}" if full else root

    def below(self, folder: str) -> Tree:
        """Return the tree whose root is a folder of this one."""
        inner = copy.copy(self)
        inner.base = self._full(folder)
        return inner

    # -- what is there -----------------------------------------------------------------

    @cached_property
    def sizes(self) -> dict[str, int]:
        """All files below the address in a bucket or an archive, with their sizes; a storage is asked once."""
        if self.archive is not None:
            return self.archive.sizes
        outer = copy.copy(self)
        outer.base = ""
        found = outer.listing()
        if not found:
            raise DatasetNotFoundError(f"{self.place()} must hold files, got none")
        return found

    def listing(self, *, deep: bool = True) -> dict[str, int]:
        """Return names and sizes of the files in the root, or, if deep, of all below it, sorted by name.

        Links to folders are not followed.
        """
        found: dict[str, int] = {}
        with self._reaching(""):
            if self.remote:
                system, path = self._at("")
                system.invalidate_cache()
                for entry in (
                    system.find(path, detail=True).values()
                    if deep
                    else system.ls(path, detail=True)
                ):
                    name = str(entry["name"]).removeprefix(path).lstrip("/")
                    plain = name and all(
                        part not in ("", ".", "..") for part in name.split("/")
                    )
                    if (
                        entry.get("type") == "file" and plain
                    ):  # a key may stand for a folder
                        found[name] = int(entry.get("size") or 0)
                return dict(sorted(found.items()))
            pending = [""]
            while pending:
                folder = pending.pop()
                for name, kind in self.entries(folder):
                    path = posixpath.join(folder, name)
                    if kind == "file":
                        found[path] = os.stat(self.root / path).st_size
                    elif (
                        deep
                        and kind == "folder"
                        and not os.path.islink(self.root / path)
                    ):
                        pending.append(path)
        return dict(sorted(found.items()))

    @cached_property
    def _children(self) -> dict[str, dict[str, EntryKind]]:
        """What every folder of a bucket or an archive holds; the empty name is the root."""
        folders: dict[str, dict[str, EntryKind]] = {"": {}}
        for full in self.sizes:
            parent = full
            kind = "file"
            while parent:
                parent, name = posixpath.split(parent)
                if (
                    folders.setdefault(parent, {}).setdefault(
                        name, cast(EntryKind, kind)
                    )
                    != kind
                ):
                    raise FileFormatError(
                        f"{self.address} must hold a file or a folder, got both: {full!r}"
                    )
                kind = "folder"
        return folders

    def entries(self, folder: str = "") -> Iterator[tuple[str, EntryKind]]:
        """Yield the names in a folder, and what each is; links on disk are followed."""
        if not self.on_disk:
            yield from self._children.get(self._full(folder), {}).items()
            return
        with self._reaching(folder), os.scandir(self.root / folder) as entries:
            for entry in entries:
                if entry.is_symlink():  # which may lead to itself
                    is_folder = os.path.isdir(entry.path)
                    is_file = os.path.isfile(entry.path)
                else:  # without asking for the status
                    is_folder = entry.is_dir()
                    is_file = entry.is_file()
                yield (
                    entry.name,
                    "folder" if is_folder else "file" if is_file else "broken",
                )

    def files(self, folder: str = "") -> list[str]:
        """Return the names of the files in a folder, sorted; hidden ones are left out."""
        found = [
            name
            for name, kind in self.entries(folder)
            if kind == "file" and not name.startswith(".")
        ]
        return sorted(posixpath.join(folder, name) for name in found)

    def folders(self, folder: str = "") -> dict[str, str]:
        """Return the names of the folders in a folder by their lower case."""
        return {
            name.lower(): name
            for name, kind in self.entries(folder)
            if kind == "folder"
        }

    def is_file(self, name: str) -> bool:
        """Return whether there is a file of that name; a storage that was not listed is asked for this one."""
        if self.on_disk:
            return os.path.isfile(self.root / name)
        if self.archive is not None or "sizes" in self.__dict__:
            return self._full(name) in self.sizes
        system, path = self._at(name)
        with self._reaching(name):
            system.invalidate_cache()
            return bool(system.isfile(path))

    # -- reading -----------------------------------------------------------------------

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        if self.archive is not None or "sizes" in self.__dict__:
            return self.sizes[self._full(name)]
        with self._reaching(name):
            if not self.remote:
                return os.stat(self.root / name).st_size
            system, path = self._at(name)
            about = system.info(path)
            if about.get("type") != "file":
                raise FileNotFoundError(name)
            return int(about.get("size") or 0)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a file, or a range of its bytes as far as it goes; nothing else of it is read."""
        if self.archive is not None:
            if not self.is_file(name):
                raise DatasetNotFoundError(
                    f"{self.address} must hold a file {printable(name)}, but it does not"
                )
            return self.archive.read(self._full(name))[start:stop]
        with self._reaching(name):
            if not self.remote:
                with open(self.root / name, "rb") as file:
                    file.seek(start)
                    if stop is None:
                        return file.read()
                    return file.read(max(stop - start, 0))
            if stop is None:
                stop = self.size(name)
            else:
                stop = stop
            system, path = self._at(name)
            if stop > start:
                return bytes(system.cat_file(path, start=start, end=stop))
            return b""

    def text(self, name: str) -> str:
        """Return the text of a file in UTF-8, with or without a byte order mark."""
        return decoded_text(self.read(name), self.place(name))

    def open(self, name: str, block: int = 0) -> IO[bytes]:
        """Return a file to seek in; of a bucket a block is fetched at a time, or without one what is asked for."""
        with self._reaching(name):
            if not self.remote:
                return open(self.root / name, "rb")
            system, path = self._at(name)
            if block:
                how = {"cache_type": "readahead", "block_size": block}
            else:
                how = {"cache_type": "none"}
            file: IO[bytes] = system.open(path, "rb", **how)
            return file

    def read_all(
        self, names: Sequence[str], sizes: Sequence[int]
    ) -> list[bytes | ImageError]:
        """Return image files of a bucket, asked for at once, and an error in the place of one that cannot be had."""
        system, _ = self._connection()
        with self._reaching(""):
            paths = [self._at(name)[1] for name in names]
            if paths:
                bodies = system.cat_ranges(
                    paths, [0] * len(paths), list(sizes), on_error="return"
                )
            else:
                bodies = []
        for row, body in enumerate(bodies):
            if isinstance(body, BaseException):
                bodies[row] = ImageError(
                    f"image must be a readable file, got {names[row]}: {_said(body)}"
                )
        return list(bodies)

    def images(self, names: Sequence[str]) -> Images:
        """Return images by their names; none is read."""
        if self.on_disk:
            return Images(tuple(names), root=self.root)
        if self.archive is None:
            shown_names = tuple(names)
        else:
            shown_names = tuple(self._full(name) for name in names)
        return Images(
            tuple(Stored(self.archive or self, name) for name in shown_names),
            shown_names,
        )

    def mark(self, name: str, *, times: bool) -> str:
        """Return what tells a file of a bucket from others."""
        return f"{name}\0{self.sizes.get(self._full(name), 0)}"

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        """Turn what drivers raise into one line with the address."""
        try:
            yield
        except (EvergrowError, MemoryError):
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetNotFoundError(
                f"{self.place(name)} must exist, but there is no such file or folder"
            ) from error
        except Exception as error:  # every driver has errors of its own, and all mean that nothing could be had
            said = f"{self.place(name)} must be within reach, but: {_said(error)}"
            if not self.remote and isinstance(error, OSError):
                raise DatasetNotFoundError(said) from error
            refused = isinstance(error, PermissionError)
            raise EngineError(
                f"{said}; credentials are taken from the environment"
                if refused
                else said
            ) from error


def _said(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__


def decoded_text(body: bytes, title: str) -> str:
    """Return bytes in UTF-8, with or without a byte order mark, as text, or say which line is not."""
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
    """Raise :class:`ParameterError` for an address with a secret in it; the message does not repeat it."""
    if is_remote(address) and _PASSWORD.search(address):
        raise ParameterError(
            "an address must hold no password, which belongs into the environment, got one that does"
        )
    if address.lower().startswith(("http://", "https://")) and "?" in address:
        raise ParameterError(
            "an address must hold no query, which may be a signature, got one that does"
        )
