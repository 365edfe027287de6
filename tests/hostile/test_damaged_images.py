"""Image files with random damage: an error that names the file, or an image."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evergrow.core.errors import ImageError
from evergrow.features.images import decode_image, is_quick_to_decode

FILES_OF_A_KIND = 400
NUMBERS = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")
KINDS: dict[str, dict[str, Any]] = {
    "JPEG": {},
    "JPEG progressive": {"progressive": True},
    "PNG": {},
    "GIF": {},
    "WEBP": {},
    "TIFF": {},
    "TIFF lzw": {"compression": "tiff_lzw"},
    "TIFF jpeg": {"compression": "jpeg"},
    "BMP": {},
    "PPM": {},
    "HEIF": {},
}


def damaged(data: bytes, draws: random.Random) -> bytes:
    """Change, remove or repeat a few bytes, mostly in the header."""
    changed = bytearray(data)
    for _ in range(draws.randint(1, 6)):
        place = draws.randrange(min(len(changed), draws.choice([40, 200, 10**6])))
        size = draws.randint(1, 50)
        action = draws.randrange(4)
        if action == 0:
            changed[place] = draws.randrange(256)
        elif action == 1:
            changed[place : place + 4] = draws.choice(NUMBERS)
        elif action == 2 and len(changed) > 200:
            del changed[place : place + size]
        else:
            changed[place:place] = changed[place : place + size]
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_images_are_typed_errors_or_images(kind: str) -> None:
    if kind == "HEIF":
        heif = pytest.importorskip("pillow_heif", reason="needs HEIC: pillow-heif")
        heif.register_heif_opener()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    settings = dict(KINDS[kind])
    if kind in ("JPEG", "PNG", "WEBP"):
        settings["exif"] = exif
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind.partition(" ")[0], **settings)
    draws = random.Random(kind)
    read = 0
    messages = []
    for _ in range(FILES_OF_A_KIND):
        data = damaged(buffer.getvalue(), draws)
        assert is_quick_to_decode(data, "x", 1_000_000) in (True, False)
        try:
            image = decode_image(data, name="damaged.bin", max_pixels=1_000_000)
        except ImageError as error:
            messages.append(str(error))
        else:
            read += 1
            assert image.mode == "RGB"
    assert read < FILES_OF_A_KIND
    assert all("damaged.bin" in message for message in messages)
