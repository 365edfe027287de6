"""Images of all kinds become upright 8-bit RGB, or an error that names the file."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL
import pytest
from PIL import Image

from evergrow.core.errors import ImageError
from evergrow.features import decode_image

PILLOW = tuple(int(part) for part in PIL.__version__.split(".")[:1])

GRADIENT = np.stack(
    [np.add.outer(np.arange(40) * 3, np.arange(60)) % 256] * 3, axis=2
).astype(np.uint8)
GRADIENT[..., 1] //= 2


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def test_the_same_image_from_a_path_bytes_an_image_and_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(GRADIENT).save(path)
    for source in (
        path,
        str(path),
        path.read_bytes(),
        Image.fromarray(GRADIENT),
        GRADIENT,
    ):
        np.testing.assert_array_equal(pixels(decode_image(source)), GRADIENT)


def test_the_answer_is_not_the_callers_image() -> None:
    original = Image.fromarray(GRADIENT.copy())
    decode_image(original).putpixel((0, 0), (9, 9, 9))
    assert original.getpixel((0, 0)) == tuple(GRADIENT[0, 0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    turned = {
        1: GRADIENT,
        2: GRADIENT[:, ::-1],
        3: GRADIENT[::-1, ::-1],
        4: GRADIENT[::-1],
        5: GRADIENT.transpose(1, 0, 2),
        6: np.rot90(GRADIENT, -1),
        7: GRADIENT[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(GRADIENT, 1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.png"
    Image.fromarray(GRADIENT).save(path, exif=exif)
    np.testing.assert_array_equal(pixels(decode_image(path)), turned[orientation])


def test_damaged_exif_does_not_spoil_the_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(GRADIENT).save(path, exif=b"Exif\x00\x00no such thing at all")
    np.testing.assert_array_equal(pixels(decode_image(path)), GRADIENT)


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr"])
def test_other_modes_become_what_pillow_converts_them_to(
    tmp_path: Path, mode: str
) -> None:
    image = Image.fromarray(GRADIENT).convert(mode)
    path = tmp_path / ("a.tif" if mode in ("CMYK", "YCbCr") else "a.png")
    image.save(path)
    with Image.open(path) as opened:
        try:
            expected = np.asarray(opened.convert("RGB"))
        except OSError:
            assert PILLOW < (13,), "Pillow 13 reads every file that it wrote"
            pytest.skip(
                "needs another version: this Pillow does not read what it wrote"
            )
    np.testing.assert_array_equal(pixels(decode_image(path)), expected)


def test_a_cmyk_jpeg_is_converted_as_by_pillow(tmp_path: Path) -> None:
    path = tmp_path / "print.jpg"
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(path)
    red, green, blue = decode_image(path).getpixel((4, 4))
    assert red > 240
    assert max(green, blue) < 15


def test_palette_with_transparency_keeps_its_colours_and_does_not_warn(
    tmp_path: Path, recwarn: object
) -> None:
    image = Image.fromarray(GRADIENT).convert("P", palette=Image.Palette.ADAPTIVE)
    path = tmp_path / "a.png"
    image.save(path, transparency=bytes([0, 128] + [255] * 200))
    np.testing.assert_array_equal(
        pixels(decode_image(path)), np.asarray(image.convert("RGB"))
    )
    assert not list(recwarn)  # type: ignore[call-overload]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    levels = np.array([[0, 255, 300], [32768, 65534, 65535]], dtype=np.uint16)
    path = tmp_path / f"deep{suffix}"
    Image.fromarray(levels).save(path)
    expected = np.rint(levels / 257).astype(np.uint8)
    np.testing.assert_array_equal(pixels(decode_image(path))[..., 0], expected)


def test_floating_point_grey_is_scaled_to_bytes(tmp_path: Path) -> None:
    path = tmp_path / "float.tif"
    Image.fromarray(np.array([[0.0, 0.5], [0.25, 1.0]], dtype=np.float32)).save(path)
    np.testing.assert_array_equal(
        pixels(decode_image(path))[..., 1], [[0, 128], [64, 255]]
    )
    Image.fromarray(np.array([[0.0, np.nan]], dtype=np.float32)).save(path)
    with pytest.raises(ImageError, match=r"float\.tif"):
        decode_image(path)


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png"])
def test_the_first_frame_of_an_animation(tmp_path: Path, suffix: str) -> None:
    frames = [
        Image.new("RGB", (16, 12), colour)
        for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))
    ]
    path = tmp_path / f"moving{suffix}"
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        **({"lossless": True} if suffix == ".webp" else {}),
    )
    assert decode_image(path).getpixel((5, 5)) == (255, 0, 0)


def test_one_pixel_and_unicode_paths(tmp_path: Path) -> None:
    path = tmp_path / "птица 鳥 é\u0301.png"
    Image.new("RGB", (1, 1), (1, 2, 3)).save(path)
    assert decode_image(path).getpixel((0, 0)) == (1, 2, 3)
    assert decode_image(path).size == (1, 1)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".webp", ".bmp"])
def test_truncated_files_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"half{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    body = path.read_bytes()
    for share in (0.02, 0.5, 0.9):
        path.write_bytes(body[: int(len(body) * share)])
        with pytest.raises(ImageError, match=rf"half\{suffix}"):
            decode_image(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, ""),
        (lambda path: path.touch(), ""),
        (lambda path: path.mkdir(), ""),
        (
            lambda path: path.write_text("not an image"),
            "its content is of no known image",
        ),
    ],
)
def test_files_that_are_no_image(
    tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    make(tmp_path / "x.jpg")
    with pytest.raises(ImageError, match=rf"got .*x\.jpg.*{reason}"):
        decode_image(tmp_path / "x.jpg")


def bomb(width: int, height: int) -> bytes:
    """Return the head of a PNG of this size without pixels, which cannot be decoded."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body))
            + kind
            + body
            + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0"))
        + chunk(b"IEND", b"")
    )


def test_bombs_are_refused_before_they_are_decoded(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(20_000, 10_000))
    with pytest.raises(
        ImageError,
        match=r"bomb\.png.*200000000 pixels\) exceeds limit of 178956970 pixels",
    ):
        decode_image(path)
    with pytest.raises(ImageError, match="at most 100 pixels"):
        decode_image(io.BytesIO(bomb(11, 10)).getvalue(), max_pixels=100)
    assert not recwarn.list


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4), dtype=np.float32),
        np.zeros((4, 4, 2), dtype=np.uint8),
        np.zeros((0, 4, 3), dtype=np.uint8),
        np.zeros((2, 4, 4, 3), dtype=np.uint8),
    ],
)
def test_arrays_that_are_no_image(array: np.ndarray) -> None:
    with pytest.raises(ImageError, match="must be uint8 of shape"):
        decode_image(array)


def test_arrays_of_one_and_four_channels() -> None:
    grey = GRADIENT[..., :1]
    np.testing.assert_array_equal(
        pixels(decode_image(grey)), np.repeat(grey, 3, axis=2)
    )
    alpha = np.concatenate([GRADIENT, np.zeros_like(grey)], axis=2)
    np.testing.assert_array_equal(pixels(decode_image(alpha)), GRADIENT)
    np.testing.assert_array_equal(
        pixels(decode_image(GRADIENT[:, ::-1])), GRADIENT[:, ::-1]
    )


def test_names_in_messages_and_other_types() -> None:
    with pytest.raises(ImageError, match="row 7"):
        decode_image(b"nothing", name="row 7")
    with pytest.raises(ImageError, match="7 bytes"):
        decode_image(b"nothing")
    with pytest.raises(ImageError, match="got int"):
        decode_image(3)


# -- HEIC and camera RAW, by plugins ---------------------------------------------------


def test_heic_is_read_as_a_file_and_as_bytes(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "photo.heic"
    heif.from_pillow(Image.fromarray(GRADIENT)).save(path, quality=90)
    for image in (
        decode_image(path),
        decode_image(path.read_bytes(), name="photo.heic"),
    ):
        assert (image.mode, image.size) == ("RGB", (60, 40))
        assert np.abs(np.asarray(image).astype(int) - GRADIENT.astype(int)).mean() < 8


@pytest.mark.parametrize(
    ("name", "extra"), [("photo.heic", "heic"), ("photo.NEF", "raw")]
)
def test_without_the_plugin_the_error_says_what_to_install(
    name: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("evergrow.data.items", "evergrow.features.images"):
        monkeypatch.setattr(f"{module}.has_plugin", lambda extra: False)
    (tmp_path / name).write_bytes(b"not read by Pillow")
    with pytest.raises(ImageError, match=rf"pip install 'evergrow\[{extra}\]'"):
        decode_image(tmp_path / name)


class _Raw:
    """The part of rawpy's object that is used."""

    def __init__(self, width: int = 64, height: int = 64) -> None:
        self.sizes = SimpleNamespace(raw_width=width, raw_height=height)

    def __enter__(self) -> _Raw:
        return self

    def __exit__(self, *rest: object) -> None:
        return None

    def postprocess(self, **options: object) -> np.ndarray:
        return GRADIENT


def test_raw_goes_through_its_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergrow.features.images.has_plugin", lambda extra: True)
    opened: list[object] = []

    def imread(source: object) -> _Raw:
        opened.append(source)
        return _Raw()

    monkeypatch.setitem(sys.modules, "rawpy", SimpleNamespace(imread=imread))
    (tmp_path / "photo.cr2").write_bytes(b"raw")
    assert decode_image(tmp_path / "photo.cr2").size == (60, 40)
    assert decode_image(b"raw", name="inside.zip/photo.dng").size == (60, 40)
    assert opened[0] == str(tmp_path / "photo.cr2")
    assert isinstance(opened[1], io.BytesIO)


def test_raw_may_have_as_many_pixels_as_other_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergrow.features.images.has_plugin", lambda extra: True)
    photo = tmp_path / "photo.cr2"
    photo.write_bytes(b"raw")
    pixels_of_a_camera = 9600 * 6376
    raw = _Raw(9600, 6376)
    monkeypatch.setitem(sys.modules, "rawpy", SimpleNamespace(imread=lambda _: raw))
    assert decode_image(photo).size == (60, 40)
    assert decode_image(photo, max_pixels=pixels_of_a_camera).size == (60, 40)
    with pytest.raises(ImageError, match="at most 61,209,599 pixels"):
        decode_image(photo, max_pixels=pixels_of_a_camera - 1)


def test_damaged_files_of_both_are_typed_errors(tmp_path: Path) -> None:
    for name in ("photo.heic", "photo.dng"):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
        with pytest.raises(ImageError, match="photo"):
            decode_image(tmp_path / name)
