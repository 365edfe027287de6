"""The images that ``evergrow sort`` takes: files of a folder, or of an archive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from evergrow.core.errors import DatasetNotFoundError, FileFormatError
from evergrow.data.archives import DataArchive
from evergrow.data.items import Images, is_image
from evergrow.data.readers import ARCHIVE_SUFFIXES
from evergrow.data.storage import Tree
from evergrow.tools.file_moves import MAX_FILE_BYTES, odd_file


class SortSource:
    """The images below a folder or in a zip or tar archive.

    Parameters
    ----------
    root : Path
        The folder or archive, without links.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_archive = is_archive(root)
        self._tree = Tree(root)
        if self.is_archive:
            self._tree = Tree(root, archive=open_archive(root))

    def sizes(self, out: Path) -> dict[str, int]:
        """Return the sizes in bytes of all images, except hidden ones.

        Keys are paths relative to the root, with slashes. Images below `out`, the
        folder that sorted images are written to, are left out. An archive is listed
        once, a folder at every call.
        """
        out_prefix = ""
        if out.is_relative_to(self.root):
            out_prefix = f"{out.relative_to(self.root).as_posix()}/"
        sizes = self._tree.list_once() if self.is_archive else self._tree.listing()
        return {
            name: size
            for name, size in sizes.items()
            if is_image(name)
            and not (out_prefix and name.startswith(out_prefix))
            and not any(part.startswith(".") for part in name.split("/"))
        }

    def obstacles(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """Return the images that cannot be sorted, with the reason.

        Parameters
        ----------
        sizes : mapping of str to int
            Result of :meth:`sizes`.
        """
        reasons = {name: self._obstacle(name, size) for name, size in sizes.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def _obstacle(self, name: str, size: int) -> str:
        """Return why an image cannot be sorted; empty if it can."""
        if self.is_archive:
            if size > MAX_FILE_BYTES:
                return f"it has {size:,} bytes, more than {MAX_FILE_BYTES:,}"
            return ""
        try:
            return odd_file(self.root / name)
        except FileNotFoundError:
            return "it is no longer there"

    def images(self, names: list[str]) -> Images:
        """Return images by reference. Nothing is read."""
        return self._tree.images(names)


def is_archive(path: Path) -> bool:
    """Return whether a path is a zip or tar file by its name."""
    return path.is_file() and path.name.lower().endswith(ARCHIVE_SUFFIXES)


def open_archive(path: Path) -> DataArchive:
    """Return an archive; one that did not change is read once.

    Raises
    ------
    FileFormatError
        If it is damaged, or a name leads out of it.
    """
    status = path.stat()
    return _opened_archive(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _opened_archive(path: Path, size: int, changed: int) -> DataArchive:
    """Return an archive in this state, which the arguments tell apart."""
    return DataArchive(Tree(path.parent), path.name)


def read_packed(file: str, archive: Path) -> bytes:
    """Return the content of a file in an archive.

    Parameters
    ----------
    file : str
        Path of the archive, followed by the name of the file in it.
    archive : Path
        The archive.

    Raises
    ------
    DatasetNotFoundError
        If the archive, or the file in it, is gone.
    FileFormatError
        If the archive is damaged.
    """
    name = file.removeprefix(os.path.join(archive, "")).replace(os.sep, "/")
    try:
        return open_archive(archive).read(name)
    except (FileNotFoundError, KeyError) as error:
        raise DatasetNotFoundError("it is no longer there") from error
    except OSError as error:
        raise FileFormatError(f"the archive cannot be read: {error}") from error
