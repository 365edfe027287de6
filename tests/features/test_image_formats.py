"""Files of unread formats, and small files that need much work are refused."""

from __future__ import annotations

import io
import re
import shutil
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import evergrow
from evergrow.core.errors import ImageError
from evergrow.features import decode_image
from evergrow.features.images import decoding_work, is_quick_to_decode, open_image

SERVED = 50_000_000  # pixels that the service accepts


def as_file(kind: str, size: tuple[int, int] = (8, 8), **settings: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(settings.pop("mode", "RGB"), size).save(buffer, kind, **settings)
    return buffer.getvalue()


def with_repeated_scans(
    n: int, size: tuple[int, int], mode: str = "L", **settings: Any
) -> bytes:
    """Return a progressive JPEG whose last scan is repeated."""
    data = as_file("JPEG", size, mode=mode, progressive=True, **settings)
    scan = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + scan * n + data[-2:]


def never_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let decoding fail the test: whatever is refused must be refused before."""

    def load(self: Any) -> None:
        raise AssertionError("the image is being decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)


# -- formats ---------------------------------------------------------------------------

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"


@pytest.mark.parametrize("name", ["x.eps", "x.jpg", "images[0]"])
@pytest.mark.parametrize("start", [b"", b"\xc5\xd0\xd3\xc6" + bytes(28)])
def test_a_postscript_program_is_never_run(
    monkeypatch: pytest.MonkeyPatch, name: str, start: bytes
) -> None:
    """Pillow hands EPS files to Ghostscript, whatever their names."""
    from PIL import EpsImagePlugin

    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("Ghostscript would have run")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", run)
    monkeypatch.setattr("subprocess.Popen", run)
    program = start + POSTSCRIPT + b"(out) (w) file\n%%EOF\n"
    with pytest.raises(ImageError, match=re.escape(f"{name!r} is an EPS file; ever")):
        decode_image(program, name=name)


@pytest.mark.skipif(shutil.which("gs") is None, reason="needs Ghostscript: gs")
def test_pillow_alone_would_run_ghostscript(tmp_path: Path) -> None:
    """The program of these tests is one that Pillow alone would run."""
    path = tmp_path / "x.jpg"
    path.write_bytes(POSTSCRIPT + b"9 9 scale 0.5 setgray 0 0 1 1 rectfill showpage\n")
    with Image.open(path) as image:
        image.load()
        assert image.size == (9, 9)
    with pytest.raises(ImageError, match=r"x\.jpg' is an EPS file"):
        decode_image(path)


@pytest.mark.parametrize(
    ("start", "title"),
    [
        (b"%PDF-1.7", "a PDF"),
        (b"8BPS\0\1", "a PSD"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000"),
        (b"\xff\x4f\xff\x51\0\x2f", "a JPEG 2000"),
        (b"\0\0\0\x20ftypavif", "an AVIF"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL"),
        (b"<?xml version='1.0'?><svg/>", "an SVG or XML"),
        (b"  <svg xmlns='x'/>", "an SVG or XML"),
        (b"\0\0\1\0\1\0", "an ICO or CUR"),
        (b"icns\0\0", "an ICNS"),
        (b"qoif\0\0", "a QOI"),
        (b"DDS \x7c", "a DDS"),
        (b"SIMPLE  =   T", "a FITS"),
        (b"\x89HDF\r\n", "an HDF5"),
        (b"\1\0\0\0" + bytes(36) + b" EMF", "a WMF or EMF"),
    ],
)
def test_other_formats_are_refused_by_name(
    tmp_path: Path, start: bytes, title: str
) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(start + bytes(60))
    with pytest.raises(ImageError, match=rf"photo\.png' is {title} file; .* JPEG, PNG"):
        decode_image(path)


@pytest.mark.parametrize(
    "kind",
    ["AVIF", "ICO", "ICNS", "JPEG2000", "PCX", "SGI", "TGA", "DDS", "IM", "XBM", "QOI"],
)
def test_what_pillow_could_read_is_refused_all_the_same(
    tmp_path: Path, kind: str
) -> None:
    mode = "1" if kind == "XBM" else "RGB"
    try:
        data = as_file(kind, (64, 64), mode=mode)
    except (KeyError, OSError):
        pytest.skip("needs another Pillow: it cannot write this format")
    with pytest.raises(ImageError):
        decode_image(data)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    with pytest.raises(ImageError):
        decode_image(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM"])
def test_listed_formats_are_read_whatever_their_names(kind: str) -> None:
    assert decode_image(as_file(kind), name="x.eps").size == (8, 8)


def test_a_jpeg_of_several_images_gives_the_first() -> None:
    first = Image.new("RGB", (16, 16), "red")
    buffer = io.BytesIO()
    rest = [Image.new("RGB", (16, 16), "blue")]
    first.save(buffer, "MPO", save_all=True, append_images=rest)
    red, _, blue = decode_image(buffer.getvalue()).getpixel((8, 8))
    assert red > 200 > 50 > blue


def test_images_are_opened_in_one_place_only() -> None:
    package = Path(evergrow.__file__).parent
    opening = re.compile(r"\bImage\.open\(|ImageFile\.Parser|\bimread\(")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if opening.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"features/images.py"}


# -- scans -----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "size"), [(20_000, (1000, 1000)), (1000, (4000, 4000))])
def test_a_jpeg_with_repeated_scans_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch, n: int, size: tuple[int, int]
) -> None:
    """Such a file of 169 kB kept a thread of the service busy for 16 s."""
    data = with_repeated_scans(n, size)
    never_decoded(monkeypatch)
    with pytest.raises(ImageError, match="at most 16 passes over 50,000,000 pixels"):
        decode_image(data, max_pixels=SERVED)


def test_scans_hidden_behind_a_false_end_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = with_repeated_scans(20_000, (1000, 1000))
    scan = data.rfind(b"\xff\xda")
    comment = b"\xff\xfe\0\x04\xff\xd9"  # looks like the end of the image
    data = data[:scan] + comment + data[scan:]
    first = data.find(b"\xff\xda")
    data = data[:first] + comment + data[first:]
    never_decoded(monkeypatch)
    with pytest.raises(ImageError, match="passes"):
        decode_image(data, max_pixels=SERVED)


@pytest.mark.parametrize("subsampling", [0, 2])
def test_progressive_photographs_of_the_largest_size_are_read(subsampling: int) -> None:
    data = as_file("JPEG", (1000, 1000), progressive=True, subsampling=subsampling)
    assert data.count(b"\xff\xda") >= 10
    assert decode_image(data, max_pixels=1_000_000).size == (1000, 1000)


def test_scans_of_a_thumbnail_do_not_count() -> None:
    thumbnail = as_file("JPEG", (160, 120), progressive=True)
    plain = as_file("JPEG", (1000, 1000), progressive=True)
    body = b"Exif\0\0" + thumbnail[:60_000]
    segment = b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body
    data = plain[:2] + segment + plain[2:] + thumbnail  # and one after the end
    assert decode_image(data, max_pixels=1_000_000).size == (1000, 1000)


def jpeg_in_tiff(scans: int, *, with_sizes: bool = True) -> bytes:
    """Return a TIFF of one strip, which is a progressive JPEG."""
    strip = with_repeated_scans(scans, (2000, 2000))
    entries = [(256, 4, 2000), (257, 4, 2000), (258, 3, 8), (259, 3, 7), (262, 3, 1)]
    entries += [(273, 4, 0), (277, 3, 1), (278, 4, 2000)]
    if with_sizes:
        entries.append((279, 4, len(strip)))
    start = 8 + 2 + 12 * len(entries) + 4
    table = b""
    for tag, kind, value in entries:
        number = start if tag == 273 else value
        packed = struct.pack("<H2x" if kind == 3 else "<I", number)
        table += struct.pack("<HHI", tag, kind, 1) + packed
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries))
    return head + table + bytes(4) + strip


@pytest.mark.parametrize("with_sizes", [True, False])
def test_scans_of_a_jpeg_in_a_tiff_count(
    monkeypatch: pytest.MonkeyPatch, with_sizes: bool
) -> None:
    assert decode_image(jpeg_in_tiff(0), max_pixels=SERVED).size == (2000, 2000)
    data = jpeg_in_tiff(1000, with_sizes=with_sizes)
    never_decoded(monkeypatch)
    with pytest.raises(ImageError, match="passes"):
        decode_image(data, max_pixels=SERVED)


@pytest.mark.slow
def test_decoding_of_what_is_accepted_ends_soon() -> None:
    """The largest work that the service accepts: 10 s is generous."""
    data = with_repeated_scans(8, (7000, 7000))
    begun = time.perf_counter()
    decode_image(data, max_pixels=SERVED)
    assert time.perf_counter() - begun < 10


# -- depth and memory ------------------------------------------------------------------


def test_grey_levels_are_scaled_in_little_memory() -> None:
    """A TIFF of 0.3 MB in floating point used to take 1.5 GB and 7.6 s."""
    buffer = io.BytesIO()
    levels = np.zeros((3000, 3000), dtype=np.float32)
    levels[0, 0] = 1
    Image.fromarray(levels).save(buffer, "TIFF", compression="tiff_adobe_deflate")
    data = buffer.getvalue()
    tracemalloc.start()
    try:
        image = decode_image(data, max_pixels=SERVED)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((1, 0)) == (0, 0, 0)
    assert peak < 100 * 2**20  # numpy; 9 MP of float64 are 72 MB each


def test_bands_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32)
    whole = np.asarray(decode_image(Image.fromarray(levels)))
    monkeypatch.setattr("evergrow.features.images._BAND", 70)
    np.testing.assert_array_equal(
        np.asarray(decode_image(Image.fromarray(levels))), whole
    )


def tiff(size: tuple[int, int] = (8, 8), **tags: int) -> bytes:
    """Return a TIFF of grey levels of 8 bits, with some tags set otherwise."""
    entries = {256: size[0], 257: size[1], 258: 8, 259: 1, 262: 1, 273: 8, 277: 1}
    entries |= {278: size[1], 279: 64}
    names = {"bits": 258, "compression": 259, "colours": 262, "samples": 277}
    names |= {"tile_width": 322, "tile_height": 323}
    entries |= {names[name]: value for name, value in tags.items()}
    table = b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries.items())
    )
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + table + bytes(200)


def test_the_bytes_of_decoded_pixels_are_bounded() -> None:
    assert decode_image(tiff()).size == (8, 8)
    deep = tiff((7000, 7000), bits=16, samples=3, colours=2)
    with pytest.raises(ImageError, match="at most 200,000,000 bytes when decoded"):
        decode_image(deep, max_pixels=SERVED)
    with pytest.raises(ImageError, match="truncated"):
        decode_image(deep, max_pixels=2 * SERVED)


def test_tiles_larger_than_the_image_count() -> None:
    data = tiff(tile_width=60_000, tile_height=60_000)
    with pytest.raises(ImageError, match="in whole tiles"):
        decode_image(data, max_pixels=SERVED)


@pytest.mark.parametrize("compression", [6, 34925, 50001, 34676])
def test_rare_compressions_of_tiff_are_refused(compression: int) -> None:
    with pytest.raises(ImageError, match=f"got compression {compression}"):
        decode_image(tiff(compression=compression), max_pixels=SERVED)


# -- headers ---------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    total = struct.pack(">I", len(body)) + kind + body
    return total + struct.pack(">I", zlib.crc32(kind + body))


JPEG = as_file("JPEG")
PNG = as_file("PNG")
GIF = as_file("GIF")
GIF_FRAME = GIF.index(b",", 13)
PROFILE = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(900_000)))
LONG_HEADERS = {
    "JPEG segments": JPEG[:2] + b"\xff\xfe\0\x02" * 300_000 + JPEG[2:],
    "JPEG bytes between segments": JPEG[:2] + b"a" * 300_000 + JPEG[2:],
    "JPEG padding": JPEG[:2] + b"\xff" * 300_000 + JPEG[2:],
    "PNG chunks": PNG[:33] + chunk(b"prVt", b"") * 100_000 + PNG[33:],
    "PNG pixels in pieces": PNG[:33] + chunk(b"IDAT", b"") * 100_000 + PNG[33:],
    "PNG profiles": PNG[:33] + PROFILE * 300 + PNG[33:],
    "GIF blocks": GIF[:GIF_FRAME]
    + b"!\xfe"
    + b"\1a" * 300_000
    + b"\0"
    + GIF[GIF_FRAME:],
    "GIF extensions": GIF[:GIF_FRAME] + b"!\xfe\0" * 300_000 + GIF[GIF_FRAME:],
    "TIFF tags": b"II*\0\x08\0\0\0" + struct.pack("<H", 60_000) + bytes(720_000),
    "TIFF tags of a large file": b"II+\0\x08\0\0\0"
    + struct.pack("<QQ", 16, 60_000)
    + bytes(1_200_000),
    "TIFF strips": b"II*\0\x08\0\0\0"
    + struct.pack("<HHHII", 1, 273, 4, 5_000_000, 22)
    + bytes(2_000_000),
}


@pytest.mark.parametrize("form", LONG_HEADERS)
def test_headers_that_take_long_to_parse_are_refused(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    def parse(*_: Any, **__: Any) -> None:
        raise AssertionError("Pillow is parsing it")

    monkeypatch.setattr("PIL.Image.open", parse)
    with pytest.raises(ImageError, match="must have at most"):
        decode_image(LONG_HEADERS[form], max_pixels=SERVED)


def test_pixels_decoded_in_python_count_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for data in (
        b"P6 2000 2000 65535\n" + bytes(24_000_000),
        b"P3 3000 3000 255\n" + b"1 " * 27_000_000,
    ):
        with monkeypatch.context() as patch:
            never_decoded(patch)
            with pytest.raises(ImageError, match="passes"):
                decode_image(data, max_pixels=SERVED)
    assert decode_image(b"P6 2 2 65535\n" + bytes(24)).size == (2, 2)
    assert decode_image(b"P6 2000 2000 255\n" + bytes(12_000_000)).size == (2000, 2000)


def test_quick_images_are_told_from_headers() -> None:
    small = as_file("JPEG", (500, 500))
    large = as_file("JPEG", (7000, 7000), mode="L", progressive=True)
    assert is_quick_to_decode(small, "a.jpg")
    assert not is_quick_to_decode(large, "a.jpg")
    assert is_quick_to_decode(b"nothing", "a.jpg")  # refused at once
    file = io.BytesIO(small)
    with open_image(file, "a.jpg") as image:
        assert 250_000 <= decoding_work(image, file, SERVED) < 1_000_000


# -- HEIC ------------------------------------------------------------------------------


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), kind) + body


def full(kind: bytes, body: bytes, version: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24) + body)


def heic_grid(rows: int, columns: int, side: int, tile: int = 256) -> bytes:
    """Return a HEIC file of a grid that repeats one tile."""
    heif = pytest.importorskip("pillow_heif", reason="needs HEIC: pillow-heif")
    buffer = io.BytesIO()
    heif.from_pillow(Image.new("RGB", (tile, tile), "red")).save(buffer, quality=50)
    plain = buffer.getvalue()
    parts = {}
    for kind in (b"hvcC", b"mdat"):
        start = plain.index(kind) - 4
        (length,) = struct.unpack_from(">I", plain, start)
        parts[kind] = plain[start : start + length]
    layout = struct.pack(">BBBBII", 0, 1, rows - 1, columns - 1, side, side)
    n_parts = rows * columns
    names = [
        full(b"infe", struct.pack(">HH4sB", item, 0, kind, 0), 2)
        for item, kind in ((1, b"hvc1"), (2, b"grid"))
    ]
    sizes = [full(b"ispe", struct.pack(">II", n, n)) for n in (tile, side)]
    links = struct.pack(">I", 2) + struct.pack(">HBBB", 1, 2, 0x81, 2)
    links += struct.pack(">HBB", 2, 1, 3)
    refs = struct.pack(">HH", 2, n_parts) + struct.pack(">H", 1) * n_parts
    first = box(b"ftyp", b"heic\0\0\0\0mif1heic")

    def meta(position: int) -> bytes:
        data_size = len(parts[b"mdat"]) - 8
        places = struct.pack(">BBH", 0x44, 0x40, 2)
        places += struct.pack(">HHHIHII", 1, 0, 0, 0, 1, position, data_size)
        places += struct.pack(">HHHIHII", 2, 1, 0, 0, 1, 0, len(layout))
        return full(
            b"meta",
            full(b"hdlr", bytes(4) + b"pict" + bytes(13))
            + full(b"pitm", struct.pack(">H", 2))
            + full(b"iinf", struct.pack(">H", 2) + b"".join(names))
            + box(
                b"iprp",
                box(b"ipco", parts[b"hvcC"] + b"".join(sizes)) + full(b"ipma", links),
            )
            + full(b"iref", box(b"dimg", refs))
            + box(b"idat", layout)
            + full(b"iloc", places, 1),
        )

    position = len(first) + len(meta(0)) + 8
    return first + meta(position) + parts[b"mdat"]


def test_a_grid_of_tiles_is_read() -> None:
    image = decode_image(heic_grid(2, 2, 512))
    assert image.size == (512, 512)
    assert image.getpixel((400, 400))[0] > 200


def test_tiles_beyond_the_size_of_a_heic_image_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A grid of 256 tiles of 17 megapixels, shown as 64 x 64, took 51 s from 11 kB."""
    data = heic_grid(16, 16, 64, tile=2048)
    never_decoded(monkeypatch)
    with pytest.raises(ImageError, match="passes"):
        decode_image(data, max_pixels=SERVED)


@pytest.mark.parametrize("extra", ["boxes", "bytes"])
def test_metadata_of_heic_is_bounded(
    monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    plain = heic_grid(1, 1, 256)
    start = plain.index(b"meta") - 4
    (length,) = struct.unpack_from(">I", plain, start)
    more = box(b"free", b"") * 30_000
    if extra == "bytes":
        more = box(b"free", bytes(5_000_000))
    meta = box(b"meta", plain[start + 8 : start + length] + more)
    file = io.BytesIO(plain[:start] + meta + plain[start + length :])
    image = Image.new("RGB", (256, 256))
    image.format = "HEIF"  # some versions of libheif open such a file
    with pytest.raises(ImageError, match="must have at most"):
        decoding_work(image, file, SERVED)
