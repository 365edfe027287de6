"""Small image files, and what the shards of a source hold."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from evergrow.data import Samples, Source

LARGE = 1 << 30


def jpeg(seed: int, side: int = 24) -> bytes:
    """Return an image file that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def parts_of(source: Source, rows: int = 99, size: int = LARGE) -> list[Samples]:
    """Return every shard of a source."""
    return [source.read(shard) for shard in source.shards(rows, size)]


def bodies(*parts: Samples) -> list[bytes]:
    """Return the image files of shards, however they hold them."""
    raw = [part.items.raw(row) for part in parts for row in range(len(part))]
    return [item.read_bytes() if isinstance(item, Path) else item for item in raw]


def labels_of(parts: Iterable[Samples]) -> list[str]:
    """Return the labels of all shards."""
    return [label for part in parts for label in part.labels.tolist()]


def names_of(parts: Iterable[Samples]) -> list[str]:
    """Return the names of all samples."""
    return [name for part in parts for name in part.names()]
