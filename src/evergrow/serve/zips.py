"""A zip of images from a stranger: every entry is checked before any is read, and nothing is unpacked to disk."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from evergrow.core.escaping import printable
from evergrow.serve.config import Limits
from evergrow.serve.problems import Problem

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_RATIO = 200  # images hardly shrink: what does so more is made to fill memory
_SMALL = 100_000  # bytes below which a ratio says nothing
_ENTRY_BYTES = 256 * 2**20


@dataclass(frozen=True)
class ZippedImage:
    """An image in a zip.

    Parameters
    ----------
    label : str
        Its class: the folder it lies in.
    info : ZipInfo
        Where it is.
    """

    label: str
    info: zipfile.ZipInfo

    @property
    def name(self) -> str:
        """The path in the zip, for messages."""
        return printable(self.info.filename)[:200]


class ImageZip:
    """A zip of images in folders by class, checked; to be used in a ``with`` statement.

    Parameters
    ----------
    file : binary file
        The zip; closed at the end.
    limits : Limits
        How much there may be in it.

    Raises
    ------
    Problem
        413 if there is too much in it, 422 if it is no zip, or an entry is no plain file below its root.
    """

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._limits, self._file = limits, file
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            file.close()
            raise Problem(422, "body must be a zip of images, got none or a damaged one", "BadZip") from error
        try:
            self.images = tuple(self._checked())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, which has no name and is gone then."""
        self._zip.close()
        self._file.close()

    def __enter__(self) -> ImageZip:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def read(self, image: ZippedImage) -> bytes:
        """Return the content of an image; an entry that is larger than it says is refused."""
        try:
            with self._zip.open(image.info) as file:
                data = file.read(image.info.file_size + 1)
        except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError, NotImplementedError) as error:
            raise Problem(422, f"entries must be readable, got {image.name}", "BadZip") from error
        except Exception as error:  # zlib and others have errors of their own
            raise Problem(422, f"entries must be readable, got {image.name}", "BadZip") from error
        if len(data) > image.info.file_size:
            raise Problem(422, f"entries must be as large as they say, got {image.name}", "ZipBomb")
        return data

    def _checked(self) -> Iterator[ZippedImage]:
        entries = self._zip.infolist()
        if len(entries) > self._limits.zip_entries:
            raise Problem(
                413, f"zip must have at most {self._limits.zip_entries:,} entries, got {len(entries):,}", "TooMany"
            )
        total, found = 0, []
        for info in entries:
            parts = _safe_parts(info)
            total += info.file_size
            self._check_size(info, total)
            hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
            if len(parts) > 1 and parts[-1].casefold().endswith(_SUFFIXES) and not info.is_dir() and not hidden:
                found.append((parts, info))
        if not found:
            raise Problem(422, "zip must hold images in folders named by class, got none", "BadZip")
        # A folder around everything, as many tools pack it, is no class.
        depth = 1 if len({parts[0] for parts, _ in found}) == 1 and all(len(parts) > 2 for parts, _ in found) else 0
        for parts, info in found:
            yield ZippedImage(parts[depth], info)

    def _check_size(self, info: zipfile.ZipInfo, total: int) -> None:
        swollen = info.file_size > _SMALL and info.file_size > _RATIO * max(info.compress_size, 1)
        if total > self._limits.zip_bytes or info.file_size > _ENTRY_BYTES or swollen:
            raise Problem(
                413,
                f"zip must hold at most {self._limits.zip_bytes:,} bytes of images that hardly shrink, got more in "
                f"{printable(info.filename)[:200]}",
                "ZipBomb",
            )


def _safe_parts(info: zipfile.ZipInfo) -> list[str]:
    """Return the parts of an entry's path, or raise the problem 422 where it leads elsewhere or is no plain file."""
    name, mode = info.filename, info.external_attr >> 16
    parts = [part for part in name.split("/") if part]
    outside = name.startswith("/") or "\\" in name or "\0" in name or ".." in parts or (parts and ":" in parts[0])
    odd = mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_IFMT(mode) == 0)
    if outside or odd or info.flag_bits & 0x1 or not parts:
        raise Problem(
            422, f"entries must be plain files with paths below the zip's root, got {printable(name)[:200]}", "BadZip"
        )
    return parts
