"""JPEG files for a decoder that takes many at once: what it is given, and what becomes of the rest."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_jpeg

from evergrow.core.errors import ImageError, ParameterError
from evergrow.data.items import Images
from evergrow.features import Preprocessing, create_backbone, decode_image, encode
from evergrow.features.gpu_jpeg import EncodedImages, decoded_batches, gpu_decoder, read_jpeg
from evergrow.features.loader import ImageBatches, ImageLoader, plan_batches

OWN = Preprocessing(size=(64, 64), resize=(72, 72))
CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


def picture(height=90, width=120, seed=0):
    """Return smooth colours, of which any orientation can be told from any other."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / 9 + seed), np.cos(columns / 13), np.sin((rows + 2 * columns) / 30)]
    return Image.fromarray((127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8))


def jpeg(image, **settings):
    held = io.BytesIO()
    image.save(held, "JPEG", **{"quality": 95, "subsampling": 0, **settings})
    return held.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(picture(), exif=exif)


def several(files):
    """Decode as a GPU does, many at a time, on this machine."""
    return [decode_jpeg(file.clone(), mode=ImageReadMode.RGB) for file in files]


def loaded(folder, names, decode=several, batch_size=4):
    items, load = Images(tuple(names), root=folder), ImageLoader(OWN, as_bytes=True)
    plan = plan_batches([range(start, min(start + 4, len(names))) for start in range(0, len(names), 4)], batch_size)
    encoded = EncodedImages(items, load, plan)
    batches = decoded_batches((encoded[k] for k in range(len(plan))), items, load, CPU, decode)
    plain = ImageBatches(items, load, plan)
    return list(batches), [plain[k] for k in range(len(plan))]


def far(one, other):
    return float((one.float() - other.float()).abs().mean())


class TestRead:
    def test_jpeg_is_taken_as_it_is(self):
        found = read_jpeg(jpeg(picture()), OWN)
        assert (found.height, found.width, found.orientation) == (90, 120, 1)
        assert found.data == jpeg(picture())

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation_is_read(self, orientation):
        assert read_jpeg(turned(orientation), OWN).orientation == orientation

    def test_grey_is_taken(self):
        assert read_jpeg(jpeg(picture().convert("L"), subsampling=-1), OWN) is not None

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xff\xd8\xff\xd9",
            jpeg(picture())[:-400],
            jpeg(picture())[:300],
            jpeg(picture().convert("CMYK")),
            np.zeros((90, 120, 3), dtype=np.uint8),
        ],
        ids=["empty", "no image", "cut short", "header", "four inks", "array"],
    )
    def test_all_else_is_decoded_as_always(self, data):
        assert read_jpeg(data, OWN) is None

    def test_other_formats_are_decoded_as_always(self):
        held = io.BytesIO()
        picture().save(held, "PNG")
        assert read_jpeg(held.getvalue(), OWN) is None

    def test_image_that_needs_a_border_is_decoded_as_always(self):
        border = Preprocessing(size=(64, 64), resize=(64, 64), crop_mode="border")
        assert read_jpeg(jpeg(picture()), border) is None

    def test_file_too_large_is_not_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr("evergrow.features.gpu_jpeg._LARGEST_FILE", 100)
        path = tmp_path / "one.jpg"
        path.write_bytes(jpeg(picture()))
        assert read_jpeg(path, OWN) is None

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs Linux: /dev/zero")
    def test_a_link_to_what_has_no_end_is_not_followed_for_ever(self, tmp_path, monkeypatch):
        monkeypatch.setattr("evergrow.features.gpu_jpeg._LARGEST_FILE", 100)
        (tmp_path / "one.jpg").symlink_to("/dev/zero")
        assert read_jpeg(tmp_path / "one.jpg", OWN) is None


class TestDecoded:
    @pytest.fixture
    def folder(self, tmp_path):
        for number in range(6):
            (tmp_path / f"{number}.jpg").write_bytes(jpeg(picture(seed=number)))
        picture(70, 200, seed=7).save(tmp_path / "wide.png")
        (tmp_path / "wide.jpg").write_bytes(jpeg(picture(70, 200, seed=8)))
        return tmp_path

    def test_pixels_are_those_of_the_usual_way_to_a_level(self, folder):
        names = ["0.jpg", "wide.png", "1.jpg", "wide.jpg", "2.jpg"]
        ours, plain = loaded(folder, names)
        assert [batch.rows.tolist() for batch in ours] == [[0, 1, 2, 3], [4]]
        assert [batch.last for batch in ours] == [True, True]
        for one, other in zip(ours, plain):
            assert one.batch.shape == other.batch.shape
            assert one.batch.dtype == torch.uint8
            assert far(one.batch, other.batch) < 0.5
        assert torch.equal(ours[0].batch[1], plain[0].batch[1])  # the PNG went the usual way

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_images_stand_upright(self, tmp_path, orientation):
        (tmp_path / "one.jpg").write_bytes(turned(orientation))
        ours, plain = loaded(tmp_path, ["one.jpg"])
        expected = OWN.pixels(ImageOps.exif_transpose(Image.open(tmp_path / "one.jpg")).convert("RGB"))
        assert far(ours[0].batch[0], expected) < 0.5
        assert far(plain[0].batch[0], expected) == 0

    def test_what_cannot_be_read_is_named_and_missing(self, folder):
        (folder / "cut.jpg").write_bytes(jpeg(picture())[:-400])
        ours, plain = loaded(folder, ["0.jpg", "cut.jpg", "gone.jpg", "1.jpg"])
        assert ours[0].rows.tolist() == plain[0].rows.tolist() == [0, 3]
        assert ours[0].failures == plain[0].failures
        assert [failure.name for failure in ours[0].failures] == ["cut.jpg", "gone.jpg"]

    def test_batch_of_nothing_readable(self, tmp_path):
        ours, _ = loaded(tmp_path, ["gone.jpg"])
        assert ours[0].batch is None
        assert len(ours[0].failures) == 1

    def test_what_the_decoder_refuses_is_decoded_as_always(self, folder):
        refused = (folder / "1.jpg").read_bytes()

        def picky(files):
            if any(bytes(file.numpy()) == refused for file in files):
                raise RuntimeError("nvjpeg error")
            return several(files)

        ours, plain = loaded(folder, ["0.jpg", "1.jpg", "2.jpg"], decode=picky)
        assert ours[0].rows.tolist() == [0, 1, 2]
        assert torch.equal(ours[0].batch[1], plain[0].batch[1])
        assert far(ours[0].batch[2], plain[0].batch[2]) < 0.5

    def test_image_that_nothing_decodes_is_a_failure(self, folder):
        # The header is sound and the end is there; what lies between is not.
        whole = jpeg(picture())
        (folder / "hollow.jpg").write_bytes(whole[: len(whole) // 3] + b"\xff\xd9")

        def refuses(files):
            raise RuntimeError("nvjpeg error")

        ours, plain = loaded(folder, ["0.jpg", "hollow.jpg"], decode=refuses)
        assert ours[0].rows.tolist() == plain[0].rows.tolist()
        assert ours[0].failures == plain[0].failures
        assert torch.equal(ours[0].batch, plain[0].batch)

    def test_another_size_than_the_header_said_is_not_trusted(self, folder):
        def smaller(files):
            return [image[:, ::2, ::2] for image in several(files)]

        ours, plain = loaded(folder, ["0.jpg"], decode=smaller)
        assert torch.equal(ours[0].batch, plain[0].batch)

    def test_no_more_pixels_at_a_time_than_there_is_room_for(self, folder, monkeypatch):
        monkeypatch.setattr("evergrow.features.gpu_jpeg._AT_ONCE", 2 * 90 * 120)
        given = []

        def counting(files):
            given.append(len(files))
            return several(files)

        loaded(folder, ["0.jpg", "1.jpg", "2.jpg", "3.jpg"], decode=counting)
        assert given == [2, 2]


class TestAsked:
    def test_backbone_on_the_cpu_is_refused(self, tmp_path):
        (tmp_path / "one.jpg").write_bytes(jpeg(picture()))
        backbone = create_backbone("test_vit", weights="random", device="cpu")
        with pytest.raises(ParameterError, match="decode must be 'cpu' where the backbone runs on cpu, got 'gpu'"):
            encode(backbone, Images(("one.jpg",), root=tmp_path), decode="gpu")

    def test_torchvision_without_a_decoder_is_told(self, monkeypatch):
        def lacks(*_, **__):
            raise RuntimeError("built without it")

        monkeypatch.setattr("torchvision.io.decode_jpeg", lacks)
        with pytest.raises(
            ParameterError, match="decode must be 'cpu' here, got 'gpu': torchvision has no JPEG decoder"
        ):
            gpu_decoder(CPU)

    def test_unknown_name_is_refused(self):
        from evergrow.features import EncodeConfig

        with pytest.raises(ParameterError, match="decode must be one of 'cpu', 'gpu', got 'npu'"):
            EncodeConfig(decode="npu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnGpu:
    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "images"
        folder.mkdir()
        for number in range(20):
            image = picture(100 + 3 * (number % 4), 130, seed=number)
            settings = {"progressive": number % 3 == 0, "subsampling": number % 3}
            (folder / f"{number:02d}.jpg").write_bytes(jpeg(image, **settings))
        for orientation in range(1, 9):
            (folder / f"turned {orientation}.jpg").write_bytes(turned(orientation))
        (folder / "grey.jpg").write_bytes(jpeg(picture().convert("L"), subsampling=-1))
        picture(seed=3).save(folder / "other.png")
        jpeg_of_inks = jpeg(picture().convert("CMYK"))
        (folder / "inks.jpg").write_bytes(jpeg_of_inks)
        return folder

    def test_features_are_close_to_the_usual_ones(self, folder):
        items = Images(tuple(sorted(path.name for path in folder.iterdir())), root=folder)
        backbone = create_backbone("test_vit", weights="random", device="cuda")
        settings = {"cache": False, "precision": "float32", "batch_size": 8}
        plain = encode(backbone, items, **settings, join=False).X
        for workers in (0, 2):
            ours = encode(backbone, items, decode="gpu", workers=workers, **settings, join=False).X
            gaps = np.linalg.norm(ours - plain, axis=1) / np.linalg.norm(plain, axis=1)
            assert gaps.max() < 0.1
            assert np.median(gaps) < 0.03

    def test_error_in_the_middle_stops_all(self, folder, tmp_path):
        (tmp_path / "noise.jpg").write_bytes(b"no image")
        (tmp_path / "sound.jpg").write_bytes(jpeg(picture()))
        items = Images(("sound.jpg",) * 40 + ("noise.jpg",) + ("sound.jpg",) * 40, root=tmp_path)
        backbone = create_backbone("test_vit", weights="random", device="cuda")
        with pytest.raises(ImageError, match=r"noise\.jpg"):
            encode(backbone, items, decode="gpu", cache=False, batch_size=8)
        assert not any(thread.name == "evergrow-decoding" for thread in threading.enumerate())

    def test_broken_files_are_named(self, folder, tmp_path):
        whole = jpeg(picture())
        (tmp_path / "cut.jpg").write_bytes(whole[:-400])
        (tmp_path / "hollow.jpg").write_bytes(whole[: len(whole) // 3] + b"\xff\xd9")
        (tmp_path / "noise.jpg").write_bytes(b"\xff\xd8\xff" + bytes(range(256)) * 9 + b"\xff\xd9")
        (tmp_path / "sound.jpg").write_bytes(whole)
        items = Images(("cut.jpg", "hollow.jpg", "noise.jpg", "sound.jpg"), root=tmp_path)
        backbone = create_backbone("test_vit", weights="random", device="cuda")
        with pytest.warns(UserWarning, match="could not be read"):
            found = encode(backbone, items, decode="gpu", on_error="skip", cache=False)
        named = [name for name, _ in found.failures]
        assert {"cut.jpg", "noise.jpg"} <= set(named)
        assert "sound.jpg" not in named

    def test_features_are_kept_apart(self, folder, tmp_path):
        items = Images(tuple(f"{number:02d}.jpg" for number in range(20)), root=folder)
        backbone = create_backbone("test_vit", weights="random", device="cuda")
        assert encode(backbone, items, cache=tmp_path).computed > 0
        first = encode(backbone, items, cache=tmp_path, decode="gpu")
        again = encode(backbone, items, cache=tmp_path, decode="gpu")
        assert first.computed > 0
        assert again.computed == 0
        assert np.array_equal(first.X, again.X)
        assert decode_image(folder / "00.jpg").mode == "RGB"
