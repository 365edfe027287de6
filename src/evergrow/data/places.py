"""Files by address, on disk or in a bucket: listed, read by ranges of bytes, and written whole.

A path needs nothing but the standard library. An address with a scheme (``s3://``, ``gs://``, ``hf://``, ``memory://``)
goes through fsspec. Keys and passwords never leave the process: descriptions leave them out, and messages do not show
them; other machines take them from their own environment.
"""

from __future__ import annotations

import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evergrow.core.errors import DatasetNotFoundError, EngineError, EvergrowError, MissingExtraError, ParameterError
from evergrow.core.escaping import one_line, printable
from evergrow.core.files import atomic_path
from evergrow.core.optional import require
from evergrow.data.ranged_file import RangedFile

Piece = tuple[str, int, int]
"""A range of bytes: name of a file, first byte, and the byte after the last."""

PUBLIC_STORAGE = frozenset(
    {"anon", "endpoint_url", "region_name", "requester_pays", "project", "use_ssl", "default_block_size", "revision"}
)
"""Settings of a storage that are no secrets, and so may be written to a manifest."""

_AT_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "oci", "r2", "hf", "memory"})
"""Storages on which one upload appears whole or not at all."""

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "datasets"}
_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


def is_remote(address: str) -> bool:
    """Return whether an address is one of fsspec; ``file://`` and plain paths are not.

    Examples
    --------
    >>> from evergrow.data.places import is_remote
    >>> is_remote("s3://bucket/data"), is_remote("data/train"), is_remote("file:///data")
    (True, False, False)
    """
    return bool(_REMOTE.match(address)) and not address.lower().startswith("file://")


class Place(ABC):
    """A folder whose files are known by names relative to it, with forward slashes.

    Attributes
    ----------
    address : str
        Its address, without a slash at its end.
    """

    address: str

    @abstractmethod
    def listing(self, *, deep: bool) -> dict[str, int]:
        """Return names and sizes of the files in the folder, or, if deep, of all below it; sorted by name."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the bytes of a file."""

    @abstractmethod
    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return a range of bytes, all of it or as far as the file goes; nothing else of the file is read."""

    @abstractmethod
    def write(self, name: str, body: bytes) -> None:
        """Write a file in one step: others see the old one or the new one, never half."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""

    @abstractmethod
    def below(self, folder: str) -> Place:
        """Return a folder in this one."""

    def title(self, name: str = "") -> str:
        """Return the address of a file for messages."""
        return printable(f"{self.address.rstrip('/')}/{name}" if name else self.address)

    def read_all(self, pieces: Sequence[Piece]) -> list[bytes | EvergrowError]:
        """Return several ranges at once, and the error in the place of one that cannot be had."""
        found: list[bytes | EvergrowError] = []
        for piece in pieces:
            try:
                found.append(self.read(*piece))
            except EvergrowError as error:  # noqa: PERF203  one that is missing leaves the others
                found.append(error)
        return found

    def open(self, name: str, size: int | None = None, *, window: int = 0) -> RangedFile:
        """Return a file that reads what is asked of it, and at least so many bytes at a time."""
        return RangedFile(self, name, self.size(name) if size is None else size, window)


class DiskPlace(Place):
    """A folder on disk.

    Parameters
    ----------
    root : Path
        The folder.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.data.places import open_place
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = open_place(folder)
    ...     place.write("a.txt", b"whole")
    ...     place.listing(deep=False), place.read("a.txt", 1, 3)
    ({'a.txt': 5}, b'ho')
    """

    def __init__(self, root: Path) -> None:
        self.root, self.address = root, str(root)

    def listing(self, *, deep: bool) -> dict[str, int]:
        """Return names and sizes; links to folders are not followed."""
        found: dict[str, int] = {}
        with self._reaching(""):
            pending = [""]
            while pending:
                folder = pending.pop()
                with os.scandir(self.root / folder) as entries:
                    for entry in entries:
                        name = f"{folder}/{entry.name}" if folder else entry.name
                        if entry.is_file():
                            found[name] = entry.stat().st_size
                        elif deep and entry.is_dir(follow_symlinks=False):
                            pending.append(name)
        return dict(sorted(found.items()))

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        with self._reaching(name):
            return os.stat(self.root / name).st_size

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return a range of bytes."""
        with self._reaching(name), open(self.root / name, "rb", buffering=0) as file:
            file.seek(start)
            parts = []
            while start < stop and (body := file.read(min(stop - start, 1 << 30))):
                parts.append(body)
                start += len(body)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, name: str, body: bytes) -> None:
        """Write a file in one step; folders that are not there are made."""
        target = self.root / name
        with self._reaching(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(target) as temporary:
                temporary.write_bytes(body)

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return os.path.isfile(self.root / name)

    def below(self, folder: str) -> DiskPlace:
        """Return a folder in this one."""
        return DiskPlace(self.root / folder)

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        try:
            yield
        except EvergrowError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetNotFoundError(f"{self.title(name)} must exist, but it does not") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise EngineError(f"{self.title(name)} must be readable, but: {one_line(reason)}") from error


class RemotePlace(Place):
    """A folder that fsspec reaches.

    Parameters
    ----------
    address : str
        Its address.
    storage : mapping
        Settings of the storage, as fsspec takes them; may hold keys.
    """

    def __init__(self, address: str, storage: Mapping[str, Any]) -> None:
        plain = address.rstrip("/")
        self.address = f"{plain}//" if plain.endswith(":") else plain  # "memory://" is a folder too
        self._storage = dict(storage)
        self._owner = 0
        self._opened: tuple[Any, str] | None = None
        self._connection()  # so that a scheme that nobody knows is said at once

    def _connection(self) -> tuple[Any, str]:
        """Return the file system and the path of the folder in it; a forked process opens its own."""
        if self._opened is None or self._owner != os.getpid():
            core = require("fsspec.core", extra="engine", purpose=f"reading {self.address}")
            try:
                system, root = core.url_to_fs(self.address, **self._storage)
            except ImportError as error:
                extra = _EXTRAS.get(self.scheme, "engine")
                raise MissingExtraError(
                    f"reading {self.address} must have a driver installed, but: {one_line(str(error))} "
                    f"(pip install 'evergrow[{extra}]')"
                ) from error
            except (ValueError, TypeError) as error:
                raise ParameterError(
                    f"an address must be one that fsspec knows, got {self.address}: {self._plain(error)}"
                ) from error
            self._opened, self._owner = (system, str(root).rstrip("/")), os.getpid()
        return self._opened

    @property
    def scheme(self) -> str:
        """What comes before ``://``."""
        return self.address.partition("://")[0].lower()

    def _path(self, name: str) -> str:
        root = self._connection()[1]
        return f"{root}/{name}" if name else root

    def listing(self, *, deep: bool) -> dict[str, int]:
        """Return names and sizes; keys that stand for folders, or are in no usual spelling, are left out."""
        system, root = self._connection()
        with self._reaching(""):
            system.invalidate_cache()
            if deep:
                entries = list(system.find(root, detail=True).values())
            else:
                entries = system.ls(root, detail=True)
        found = {}
        for entry in entries:
            name = str(entry["name"]).removeprefix(root).lstrip("/")
            if entry.get("type") == "file" and name and all(part not in ("", ".", "..") for part in name.split("/")):
                found[name] = int(entry.get("size") or 0)
        return dict(sorted(found.items()))

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        with self._reaching(name):
            about = self._connection()[0].info(self._path(name))
            if about.get("type") != "file":
                raise FileNotFoundError(name)
            return int(about.get("size") or 0)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return a range of bytes, in one request."""
        if stop <= start:
            return b""
        with self._reaching(name):
            return bytes(self._connection()[0].cat_file(self._path(name), start=start, end=stop))

    def read_all(self, pieces: Sequence[Piece]) -> list[bytes | EvergrowError]:
        """Return several ranges, asked for at once."""
        system = self._connection()[0]
        wanted = [piece for piece in pieces if piece[2] > piece[1]]
        with self._reaching(""):
            paths = [self._path(name) for name, _, _ in wanted]
            starts, stops = [start for _, start, _ in wanted], [stop for _, _, stop in wanted]
            bodies = system.cat_ranges(paths, starts, stops, on_error="return") if wanted else []
        answers = iter(bodies)
        return [self._answer(name, next(answers)) if stop > start else b"" for name, start, stop in pieces]

    def _answer(self, name: str, answer: Any) -> bytes | EvergrowError:
        if not isinstance(answer, BaseException):
            return bytes(answer)
        try:
            with self._reaching(name):
                raise answer
        except EvergrowError as error:
            return error

    def write(self, name: str, body: bytes) -> None:
        """Write a file in one step: by one upload where that is one, else under another name that is then moved."""
        system = self._connection()[0]
        path = self._path(name)
        with self._reaching(name):
            if self.scheme in _AT_ONCE:
                system.pipe_file(path, body)
                return
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            temporary = f"{path}.{uuid.uuid4().hex}.part"
            try:
                system.pipe_file(temporary, body)
                system.mv(temporary, path)
            except BaseException:
                if system.exists(temporary):
                    system.rm_file(temporary)
                raise

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        system = self._connection()[0]
        with self._reaching(name):
            system.invalidate_cache()
            return bool(system.isfile(self._path(name)))

    def below(self, folder: str) -> RemotePlace:
        """Return a folder in this one, reached in the same way."""
        return RemotePlace(f"{self.address.rstrip('/')}/{folder}", self._storage)

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        """Turn what drivers raise into one line with the address, and without keys."""
        try:
            yield
        except (EvergrowError, MemoryError):
            raise
        except FileNotFoundError as error:
            raise DatasetNotFoundError(
                f"{self.title(name)} must exist, but there is no such bucket, folder or file"
            ) from error
        except PermissionError as error:
            raise EngineError(
                f"{self.title(name)} must be open to this machine, but access was refused: {self._plain(error)}; "
                "credentials are taken from the environment"
            ) from error
        except Exception as error:  # every driver has errors of its own, and all mean that nothing could be had
            raise EngineError(f"{self.title(name)} must be within reach, but: {self._plain(error)}") from error

    def _plain(self, error: BaseException) -> str:
        """Return what an error says, without any value that may be a secret."""
        text = one_line(str(error)) or type(error).__name__
        for secret in _secrets(self._storage):
            text = text.replace(secret, "***")
        return text


def _secrets(storage: Mapping[str, Any]) -> Iterator[str]:
    for key, value in storage.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif key not in PUBLIC_STORAGE and isinstance(value, str) and len(value) > 3:
            yield value


def public_storage(storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a storage that are no secrets.

    Examples
    --------
    >>> from evergrow.data.places import public_storage
    >>> public_storage({"key": "AKIA...", "secret": "...", "endpoint_url": "http://127.0.0.1:9000", "anon": False})
    {'anon': False, 'endpoint_url': 'http://127.0.0.1:9000'}
    """
    kept: dict[str, Any] = {}
    for key, value in sorted(storage.items()):
        if key == "client_kwargs" and isinstance(value, Mapping):
            inner = public_storage(value)
            kept.update({"client_kwargs": inner} if inner else {})
        elif key in PUBLIC_STORAGE and isinstance(value, (str, int, bool)) and not _has_password(str(value)):
            kept[key] = value
    return kept


def _has_password(address: str) -> bool:
    try:
        return urlsplit(address).password is not None
    except ValueError:
        return False


def open_place(address: str | os.PathLike[str], storage: Mapping[str, Any] | None = None) -> Place:
    """Return the folder of an address.

    Parameters
    ----------
    address : str or path-like
        A path, or an address with a scheme that fsspec knows. It must hold no password: addresses are written down.
    storage : mapping, optional
        Settings of the storage as fsspec takes them (``endpoint_url``, ``key``, ``secret``, ``anon``, ...). What is not
        given is taken from the environment, as the drivers do it.

    Raises
    ------
    ParameterError
        If the address holds a password, or no driver knows its scheme.
    MissingExtraError
        If the driver is not installed.
    """
    text = os.fspath(address)
    if not is_remote(text):
        return DiskPlace(Path(os.path.abspath(text.removeprefix("file://"))))  # workers may run in another folder
    check_address(text)
    return RemotePlace(text, storage or {})


def check_address(address: str) -> None:
    """Raise :class:`ParameterError` for an address with a secret in it; the message does not repeat it."""
    if is_remote(address) and _has_password(address):
        raise ParameterError(
            "an address must hold no password, because it is written to manifests, got one that does; put it into the "
            "environment"
        )
    if address.lower().startswith(("http://", "https://")) and "?" in address:
        raise ParameterError("an address must hold no query, which may be a signature, got one that does")
