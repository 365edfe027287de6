"""Samples of well separated classes."""

from __future__ import annotations

import io
import zipfile

import numpy as np
from PIL import Image
from tests.learner.toys import image

WIDTH = 6


def rows(kind: int, n: int, seed: int = 0) -> list[list[float]]:
    """Return feature vectors around the centre of a class."""
    centre = np.random.default_rng(100 + kind).normal(size=WIDTH) * 4
    return (
        centre + np.random.default_rng(seed * 1000 + kind).normal(size=(n, WIDTH))
    ).tolist()


def png(hue: int, seed: int) -> bytes:
    """Return the file of a noisy image of one colour."""
    buffer = io.BytesIO()
    Image.fromarray(image(hue, seed)).save(buffer, "PNG")
    return buffer.getvalue()


def files(hue: int, n: int, seed: int = 0) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Return images as httpx sends them."""
    return [
        ("images", (f"{i}.png", png(hue, seed * 100 + i), "image/png"))
        for i in range(n)
    ]


def zipped(entries: dict[str, bytes]) -> bytes:
    """Return a zip of files by path."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()
