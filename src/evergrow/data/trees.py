"""Files and folders below a root, on disk or inside an archive, seen the same way by every reader."""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from evergrow.core.errors import DatasetNotFoundError, FileFormatError
from evergrow.core.items import ImageFiles, Items

EntryKind = Literal["folder", "file", "broken"]


class FileTree(ABC):
    """Files and folders by names relative to a root, with forward slashes; the empty name is the root itself."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The root, for messages."""

    @abstractmethod
    def entries(self, folder: str) -> Iterator[tuple[str, EntryKind]]:
        """Yield the names in a folder, and what each is; links that lead nowhere are broken."""

    @abstractmethod
    def identity(self, folder: str) -> Hashable:
        """Return what tells a folder from every other one, however it was reached."""

    @abstractmethod
    def is_file(self, name: str) -> bool:
        """Return whether there is a file of that name."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    @abstractmethod
    def images(self, names: list[str]) -> Items:
        """Return images by their names; none is read."""

    @abstractmethod
    def below(self, folder: str) -> FileTree:
        """Return the tree whose root is a folder of this one."""

    @property
    def above(self) -> frozenset[Hashable]:
        """Identities of the root and the folders above it, which no link inside may lead back to."""
        return frozenset()

    def place(self, name: str) -> str:
        """Return a file or folder for messages."""
        return f"{self.title}/{name}" if name else self.title

    def files(self, folder: str = "") -> list[str]:
        """Return the names of the files in a folder, sorted; hidden ones are left out."""
        found = [name for name, kind in self.entries(folder) if kind == "file" and not name.startswith(".")]
        return sorted(posixpath.join(folder, name) for name in found)

    def text(self, name: str) -> str:
        """Return the text of a file in UTF-8, with or without a byte order mark."""
        return decoded_text(self.read(name), self.place(name))


def folder_entries(names: Iterable[str], title: str) -> dict[str, dict[str, EntryKind]]:
    """Return what every folder holds, from the names of all files; the empty name is the root.

    Raises
    ------
    FileFormatError
        If a name is that of a file and of a folder.

    Examples
    --------
    >>> from evergrow.data.trees import folder_entries
    >>> folder_entries(["cat/1.jpg", "list.csv"], "data")
    {'': {'cat': 'folder', 'list.csv': 'file'}, 'cat': {'1.jpg': 'file'}}
    """
    folders: dict[str, dict[str, EntryKind]] = {"": {}}
    for full in names:
        parent, name = posixpath.split(full)
        kind: EntryKind = "file"
        while True:
            if folders.setdefault(parent, {}).setdefault(name, kind) != kind:
                raise FileFormatError(f"{title} must hold a file or a folder of a name, got both of {full!r}")
            if not parent:
                break
            parent, name = posixpath.split(parent)
            kind = "folder"
    return folders


def decoded_text(body: bytes, title: str) -> str:
    """Return bytes in UTF-8, with or without a byte order mark, as text, or say which line is not."""
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        hint = "; it looks like UTF-16" if body[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise FileFormatError(
            f"{title} must be text in UTF-8, but line {line} is not{hint}; save it as UTF-8"
        ) from error


@dataclass(frozen=True)
class DiskTree(FileTree):
    """A folder on disk; links are followed.

    Parameters
    ----------
    root : Path
        The folder.
    """

    root: Path

    @property
    def title(self) -> str:
        """The path of the folder."""
        return str(self.root)

    def entries(self, folder: str) -> Iterator[tuple[str, EntryKind]]:
        """Yield what a folder holds. Files are not asked for their status unless they are links."""
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    yield entry.name, _kind(entry)
        except OSError as error:
            raise DatasetNotFoundError(f"folder must be readable, got {self.root / folder}: {error}") from error

    def identity(self, folder: str) -> Hashable:
        """Return device and number of the folder."""
        try:
            status = os.stat(self.root / folder)
        except OSError as error:
            raise DatasetNotFoundError(f"folder must be readable, got {self.root / folder}: {error}") from error
        return status.st_dev, status.st_ino

    @cached_property
    def _above(self) -> frozenset[Hashable]:
        real = self.root.resolve()
        return frozenset(self.identity(os.fspath(folder)) for folder in (real, *real.parents))

    @property
    def above(self) -> frozenset[Hashable]:
        """The root and all folders above it: a link to one of them would bring in other classes, or the whole disk."""
        return self._above

    def is_file(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return os.path.isfile(self.root / name)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        try:
            return (self.root / name).read_bytes()
        except OSError as error:
            raise DatasetNotFoundError(f"file must be readable, got {self.root / name}: {error}") from error

    def images(self, names: list[str]) -> ImageFiles:
        """Return images in files."""
        return ImageFiles(self.root, tuple(names))

    def below(self, folder: str) -> DiskTree:
        """Return the tree of a folder in this one."""
        return DiskTree(self.root / folder)

    def place(self, name: str) -> str:
        """Return the path of a file or folder."""
        return str(self.root / name)


def _kind(entry: os.DirEntry[str]) -> EntryKind:
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else "broken"
    except OSError:  # a link that leads to itself
        return "broken"
