"""HEIC and camera RAW: read where their plugin is installed, and a plain word where it is not."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from evergrow.core.errors import ImageError
from evergrow.data import items as image_formats
from evergrow.features import decode_image


def gradient() -> Image.Image:
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
    return Image.fromarray(np.stack([ramp, ramp.T, 255 - ramp], axis=2))


def test_heic_is_read_as_a_file_and_as_bytes(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "photo.heic"
    heif.from_pillow(gradient()).save(path, quality=90)
    for image in (decode_image(path), decode_image(path.read_bytes(), name="photo.heic")):
        assert (image.mode, image.size) == ("RGB", (64, 64))
        assert np.abs(np.asarray(image).astype(int) - np.asarray(gradient()).astype(int)).mean() < 8


@pytest.mark.parametrize(("name", "extra"), [("photo.heic", "heic"), ("photo.NEF", "raw")])
def test_without_the_plugin_the_error_says_what_to_install(
    name: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_formats, "_is_there", lambda module: False)
    (tmp_path / name).write_bytes(b"not read by Pillow")
    with pytest.raises(ImageError, match=rf"pip install 'evergrow\[{extra}\]'"):
        decode_image(tmp_path / name)


class _Raw:
    """What rawpy hands out for a file, as far as it is used."""

    def __init__(self, width: int) -> None:
        self.sizes = SimpleNamespace(raw_width=width, raw_height=64)

    def __enter__(self) -> _Raw:
        return self

    def __exit__(self, *rest: object) -> None:
        return None

    def postprocess(self, **options: object) -> np.ndarray:
        return np.asarray(gradient())


def test_raw_goes_through_its_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_formats, "_is_there", lambda module: True)
    opened: list[object] = []

    def imread(source: object) -> _Raw:
        opened.append(source)
        return _Raw(64)

    monkeypatch.setitem(sys.modules, "rawpy", SimpleNamespace(imread=imread))
    (tmp_path / "photo.cr2").write_bytes(b"raw")
    assert decode_image(tmp_path / "photo.cr2").size == (64, 64)
    assert decode_image(b"raw", name="inside.zip/photo.dng").size == (64, 64)
    assert opened[0] == str(tmp_path / "photo.cr2")
    assert isinstance(opened[1], io.BytesIO)
    with pytest.raises(ImageError, match="at most 100 pixels"):
        decode_image(tmp_path / "photo.cr2", max_pixels=100)


def test_damaged_files_of_both_are_typed_errors(tmp_path: Path) -> None:
    for name in ("photo.heic", "photo.dng"):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
        with pytest.raises(ImageError, match="photo"):
            decode_image(tmp_path / name)
