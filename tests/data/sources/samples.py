"""Small image files, and the bytes of those that a shard holds."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from evergrow.data import Samples


def jpeg(seed: int, side: int = 24) -> bytes:
    """Return an image file that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def bodies(data: Samples) -> list[bytes]:
    """Return the image files of a shard, however it holds them."""
    assert data.items is not None
    raw = [data.items.raw(row) for row in range(len(data))]
    return [item.read_bytes() if isinstance(item, Path) else item for item in raw]
