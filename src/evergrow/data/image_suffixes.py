"""Image formats by the suffix of the file name, and the plugins that read them."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import NamedTuple

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".jfif",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
    }
)
"""Suffixes of images that Pillow reads without a plugin."""


class _Plugin(NamedTuple):
    """An optional package that reads more image formats."""

    title: str
    module: str
    suffixes: tuple[str, ...]


_RAW_SUFFIXES = (
    ".dng",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".orf",
    ".rw2",
    ".raf",
    ".pef",
    ".srw",
)

_PLUGINS = {
    "heic": _Plugin("HEIC", "pillow_heif", (".heic", ".heif", ".hif")),
    "raw": _Plugin("camera RAW", "rawpy", _RAW_SUFFIXES),
}
"""Plugins by the name of the evergrow extra that installs them."""

_UNSUPPORTED = (".avif", ".jxl", ".jp2", ".svg", ".psd")


@cache
def has_plugin(extra: str) -> bool:
    """Return whether the plugin of an extra is installed, without importing it."""
    return importlib.util.find_spec(_PLUGINS[extra].module) is not None


def plugin_of(name: str) -> str | None:
    """Return the extra whose plugin reads an image file, or None for other files."""
    suffix = os.path.splitext(name)[1].lower()
    for extra, plugin in _PLUGINS.items():
        if suffix in plugin.suffixes:
            return extra
    return None


def unread_format(name: str) -> tuple[str, str] | None:
    """Return the format of an unreadable image file and the remedy, or None.

    None stands for files that are not images, and for images that can be read.

    Examples
    --------
    >>> from evergrow.data.image_suffixes import unread_format
    >>> unread_format("drawing.PSD")[1], unread_format("a.jpg")
    ('save them as JPEG or PNG', None)
    """
    extra = plugin_of(name)
    if extra is not None and not has_plugin(extra):
        return _PLUGINS[extra].title, f"pip install 'evergrow[{extra}]' reads them"
    if name.lower().endswith(_UNSUPPORTED):
        return "AVIF, JPEG XL, JPEG 2000, SVG or PSD", "save them as JPEG or PNG"
    return None


def is_image(name: str) -> bool:
    """Return whether a file name has the suffix of an image that can be read.

    Examples
    --------
    >>> from evergrow.data.image_suffixes import is_image
    >>> is_image("a.JPEG"), is_image("labels.txt"), is_image("drawing.psd")
    (True, False, False)
    """
    if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
        return True
    extra = plugin_of(name)
    return extra is not None and has_plugin(extra)
