"""Endings of image files, and the plugins that some of them need."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import cache

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
)
"""Endings of images that are read without any plugin."""


@dataclass(frozen=True)
class PluginFormat:
    """A kind of images that needs a plugin.

    Parameters
    ----------
    title : str
        What people call it.
    suffixes : frozenset of str
        Endings of such files, in lower case.
    module : str
        Module that reads it; empty where evergrow knows none.
    extra : str
        The extra of evergrow that brings the module.
    """

    title: str
    suffixes: frozenset[str]
    module: str = ""
    extra: str = ""

    @property
    def installed(self) -> bool:
        """Whether the module is there; nothing is imported."""
        return bool(self.module) and _is_there(self.module)

    @property
    def remedy(self) -> str:
        """How to have such images read."""
        return f"pip install 'evergrow[{self.extra}]' reads them" if self.module else "save them as JPEG or PNG"


HEIC = PluginFormat("HEIC", frozenset({".heic", ".heif", ".hif"}), "pillow_heif", "heic")
RAW = PluginFormat(
    "camera RAW",
    frozenset({".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw"}),
    "rawpy",
    "raw",
)
OTHERS = PluginFormat("AVIF, JPEG XL, JPEG 2000, SVG or PSD", frozenset({".avif", ".jxl", ".jp2", ".svg", ".psd"}))
PLUGIN_FORMATS = (HEIC, RAW, OTHERS)


@cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def plugin_format(name: str) -> PluginFormat | None:
    """Return the kind of images that a file name belongs to and that needs a plugin, or None.

    Examples
    --------
    >>> from evergrow.core.image_formats import plugin_format
    >>> plugin_format("IMG_0001.HEIC").title, plugin_format("a.jpg")
    ('HEIC', None)
    """
    suffix = os.path.splitext(name)[1].lower()
    return next((entry for entry in PLUGIN_FORMATS if suffix in entry.suffixes), None)


def is_image(name: str) -> bool:
    """Return whether a file name ends like that of an image that can be read here.

    Examples
    --------
    >>> from evergrow.core.image_formats import is_image
    >>> is_image("a.JPEG"), is_image("labels.txt"), is_image("drawing.psd")
    (True, False, False)
    """
    if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
        return True
    kind = plugin_format(name)
    return kind is not None and kind.installed
