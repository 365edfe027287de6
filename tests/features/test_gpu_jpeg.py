"""JPEG files for a decoder that takes many at once: what it is given, and what becomes of the rest."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evergrow.core.errors import ImageError, ParameterError
from evergrow.data.items import Images
from evergrow.features import Preprocessing, create_backbone, encode
from evergrow.features.gpu_jpeg import FileReader, GpuDecoder, Jpeg
from evergrow.features.images import ImageReader
from evergrow.features.preprocess import view_sheet

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


def is_sent(source, own=OWN):
    """Return whether the file itself goes to the GPU; what cannot be decoded at all does not."""
    try:
        return isinstance(FileReader(Images((source,)), own).load(source), Jpeg)
    except ImageError:
        return False


def loaded(folder, names, own=OWN):
    """Return a batch whose files torchvision decodes on this machine, and the usual one."""
    items, rows = Images(tuple(names), root=folder), range(len(names))
    (ours,) = GpuDecoder(items, own, CPU)([FileReader(items, own).__getitems__(rows)])
    return ours, ImageReader(items, own).__getitems__(rows)


def far(one, other):
    return float((one.float() - other.float()).abs().mean())


class TestRead:
    @pytest.mark.parametrize("image", [picture(), picture().convert("L")], ids=["colour", "grey"])
    def test_jpeg_is_sent_as_it_is(self, image):
        data = jpeg(image, subsampling=-1)
        assert FileReader(Images((data,)), OWN).load(data) == Jpeg(data, 90 * 120, 1)

    @pytest.mark.parametrize(
        "data",
        [
            b"\xff\xd8\xff\xd9",
            jpeg(picture())[:-400],
            jpeg(picture())[:300],
            jpeg(picture().convert("CMYK")),
            np.zeros((90, 120, 3), dtype=np.uint8),
        ],
        ids=["no image", "cut short", "header", "four inks", "array"],
    )
    def test_all_else_is_decoded_as_always(self, data):
        assert not is_sent(data)

    def test_image_that_needs_a_border_is_decoded_as_always(self):
        assert not is_sent(jpeg(picture()), Preprocessing(size=(64, 64), resize=(64, 64), crop_mode="border"))

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs Linux: /dev/zero")
    def test_a_link_to_what_has_no_end_is_not_followed_for_ever(self, tmp_path, monkeypatch):
        monkeypatch.setattr("evergrow.features.gpu_jpeg._LARGEST_FILE", 100)
        (tmp_path / "one.jpg").symlink_to("/dev/zero")
        assert FileReader(Images(()), OWN)._jpeg(tmp_path / "one.jpg") is None


class TestDecoded:
    @pytest.fixture
    def folder(self, tmp_path):
        for number in range(3):
            (tmp_path / f"{number}.jpg").write_bytes(jpeg(picture(seed=number)))
        (tmp_path / "turned.jpg").write_bytes(turned(8))
        picture(70, 200, seed=7).save(tmp_path / "wide.png")
        (tmp_path / "wide.jpg").write_bytes(jpeg(picture(70, 200, seed=8)))
        return tmp_path

    def test_pixels_are_those_of_the_usual_way_to_a_level(self, folder, monkeypatch):
        monkeypatch.setattr("evergrow.features.gpu_jpeg._AT_ONCE", 30_000)
        ours, plain = loaded(folder, ["0.jpg", "wide.png", "1.jpg", "wide.jpg", "2.jpg", "turned.jpg"])
        assert ours.rows.tolist() == plain.rows.tolist() == list(range(6))
        assert (ours.batch.shape, ours.batch.dtype) == (plain.batch.shape, torch.uint8)
        assert ours.batch.is_contiguous(memory_format=torch.channels_last)
        assert far(ours.batch, plain.batch) < 0.5
        assert torch.equal(ours.batch[1], plain.batch[1])  # a PNG goes the usual way

    def test_all_views_are_made_of_one_decoded_image(self, folder):
        ours, plain = loaded(folder, ["0.jpg", "wide.png", "1.jpg"], view_sheet(OWN, (None, (80, 80))))
        assert ours.batch.shape == plain.batch.shape == (3, 3, 80, 144)
        assert far(ours.batch, plain.batch) < 0.5
        assert not ours.batch[:, :, 64:, :64].any()

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_photographs_are_turned_upright(self, tmp_path, orientation):
        (tmp_path / "turned.jpg").write_bytes(turned(orientation))
        ours, plain = loaded(tmp_path, ["turned.jpg"])
        assert is_sent((tmp_path / "turned.jpg").read_bytes())
        assert far(ours.batch, plain.batch) < 0.5

    def test_what_cannot_be_read_is_named_and_missing(self, folder):
        (folder / "cut.jpg").write_bytes(jpeg(picture())[:-400])
        ours, plain = loaded(folder, ["0.jpg", "cut.jpg", "gone.jpg", "1.jpg"])
        assert ours.rows.tolist() == plain.rows.tolist() == [0, 3]
        assert ours.failures == plain.failures
        assert [failure.name for failure in ours.failures] == ["cut.jpg", "gone.jpg"]
        assert loaded(folder, ["gone.jpg"])[0].batch is None

    def test_what_the_decoder_refuses_is_decoded_as_always(self, folder, monkeypatch):
        # The header is sound and the end is there; what lies between is not.
        whole = jpeg(picture())
        (folder / "hollow.jpg").write_bytes(whole[: len(whole) // 3] + b"\xff\xd9")
        decode = GpuDecoder._decode

        def refuses(self, files):
            if len(files[0]) > 1000:
                raise RuntimeError("nvjpeg error")
            return decode(self, files)

        monkeypatch.setattr(GpuDecoder, "_decode", refuses)
        ours, plain = loaded(folder, ["0.jpg", "hollow.jpg", "1.jpg"])
        assert ours.rows.tolist() == plain.rows.tolist()
        assert ours.failures == plain.failures
        assert torch.equal(ours.batch, plain.batch)


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
            GpuDecoder(Images(()), OWN, CPU)


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
        (folder / "turned.jpg").write_bytes(turned(3))
        (folder / "grey.jpg").write_bytes(jpeg(picture().convert("L"), subsampling=-1))
        picture(seed=3).save(folder / "other.png")
        (folder / "inks.jpg").write_bytes(jpeg(picture().convert("CMYK")))
        return folder

    def test_features_are_close_to_the_usual_ones_and_kept_apart(self, folder, tmp_path):
        items = Images(tuple(sorted(path.name for path in folder.iterdir())), root=folder)
        backbone = create_backbone("test_vit", weights="random", device="cuda")
        settings = {"cache": tmp_path, "precision": "float32", "batch_size": 8, "join": False}
        plain = encode(backbone, items, **settings).X
        for workers, computed in ((0, len(items)), (2, 0)):
            ours = encode(backbone, items, decode="gpu", workers=workers, **settings)
            gaps = np.linalg.norm(ours.X - plain, axis=1) / np.linalg.norm(plain, axis=1)
            assert gaps.max() < 0.1
            assert np.median(gaps) < 0.03
            assert ours.computed == computed
