"""Encoding gives the right features in order, with slow, broken or missing items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.features.extraction_toys import (
    LetterCounter,
    Toy,
    expected_features,
    synthetic,
    write_images,
)

from evergrow.core.errors import (
    CacheWarning,
    DatasetNotFoundError,
    DataWarning,
    ImageError,
    InputError,
    NumericalError,
    ParameterError,
    UnknownNameError,
)
from evergrow.data.items import Images, Texts
from evergrow.features import (
    EncodeConfig,
    create_backbone,
    encode,
    encode_batch,
    encoding,
)
from evergrow.features.cache import FeatureCache
from evergrow.features.encoding import choose_workers


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 4)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return write_images(tmp_path / "images", 23)


# -- the features ----------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("in_memory", [False, True])
def test_features_are_those_of_one_image_at_a_time(
    images: Images, tmp_path: Path, workers: int, cached: bool, in_memory: bool
) -> None:
    cache = tmp_path / "cache" if cached else False
    if in_memory:
        images = Images(
            np.random.default_rng(1).integers(
                0, 256, size=(23, 20, 30, 3), dtype=np.uint8
            )
        )
    result = encode(Toy(), images, cache=cache, workers=workers, batch_size=4)
    assert result.X.dtype == np.float32
    np.testing.assert_allclose(
        result.X, expected_features(images), rtol=1e-5, atol=1e-6
    )
    assert result.rows.tolist() == list(range(23))
    assert (result.failures, result.computed, result.precision) == ((), 23, "float32")
    assert result.seconds > 0


def test_texts_come_back_in_order_and_are_run_by_length() -> None:
    texts = tuple(
        "abcdefgh"[: 1 + (5 * row) % 8] + "x" * (row % 3) for row in range(50)
    )
    backbone = LetterCounter()
    result = encode(backbone, Texts(texts), cache=False, batch_size=7)
    expected = [[len(t), sum(c in "aeiou" for c in t), ord(t[0])] for t in texts]
    assert result.X.tolist() == expected
    assert max(map(len, backbone.seen)) == 7
    for batch in backbone.seen:
        lengths = [len(text) for text in batch]
        assert lengths == sorted(lengths, reverse=True)
    assert (
        sum(max(map(len, batch)) * len(batch) for batch in backbone.seen) < 8 * 50
    )  # less padding than in any order


def test_the_global_state_is_left_alone_and_a_surrounding_autocast_changes_nothing(
    images: Images,
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    plain = encode(Toy(), images, cache=False, workers=2, batch_size=4, join=False).X
    assert torch.equal(torch.get_rng_state(), before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = encode(Toy(), images, cache=False, batch_size=4, join=False).X
    np.testing.assert_array_equal(inside, plain)


def test_progress_tells_the_rate_and_the_time_left(
    images: Images, capfd: pytest.CaptureFixture[str]
) -> None:
    encode(Toy(), images, cache=False, progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "23/23" in captured.err
    assert "images/s" in captured.err
    assert "left" in captured.err


def test_workers_fit_into_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(
        "os.sched_getaffinity", lambda pid: set(range(12)), raising=False
    )
    monkeypatch.setattr(
        "evergrow.features.encoding.shutil.disk_usage",
        lambda path: type("Usage", (), {"free": 64e6})(),
    )
    assert choose_workers("auto", 1000, gpu, 10**3) == 10
    assert (
        choose_workers("auto", 1000, gpu, 5 * 10**6) == 2
    )  # half of 64 MB, three batches each
    assert choose_workers("auto", 1000, gpu, 38 * 10**6) == 0
    assert choose_workers("auto", 2, gpu, 10**3) == 0


# -- bad input -------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("cached", [False, True])
def test_corrupt_images_are_fatal_or_skipped_and_named(
    images: Images, tmp_path: Path, cached: bool
) -> None:
    bad = [2, 3, 11, 22]
    for row in bad:
        (images.root / images.names[row]).write_bytes(b"GIF89a broken")
    options = {
        "cache": tmp_path / "cache" if cached else False,
        "on_error": "skip",
        "batch_size": 2,
    }
    for workers in (0, 2):
        with pytest.raises(ImageError, match=r"even/002\.png.*on_error='skip'"):
            encode(Toy(), images, **{**options, "on_error": "raise"}, workers=workers)
    with pytest.warns(
        DataWarning,
        match=r"4 of 23 images .* left out: even/002.png, odd/003.png, odd/011.png",
    ):
        result = encode(Toy(), images, **options)
    good = [row for row in range(23) if row not in bad]
    assert result.rows.tolist() == good
    assert [name for name, _ in result.failures] == [images.names[row] for row in bad]
    np.testing.assert_allclose(
        result.X, expected_features(images, good), rtol=1e-5, atol=1e-6
    )
    if not cached:
        return
    with pytest.warns(DataWarning, match="4 of 23"):
        again = encode(Toy(), images, **options)
    assert again.computed == 0
    assert again.failures == result.failures
    assert again.rows.tolist() == good
    with pytest.raises(
        ImageError, match=r"even/002\.png"
    ):  # the entry does not depend on what to do about errors
        encode(Toy(), images, **{**options, "on_error": "raise"})


def test_nothing_readable_is_an_error_even_when_skipping(
    images: Images, tmp_path: Path
) -> None:
    for name in images.names:
        (images.root / name).write_text("no image")
    for _ in range(2):
        with pytest.raises(ImageError, match="None of the 23 images can be read"):
            encode(Toy(), images, cache=tmp_path / "cache", on_error="skip")


def test_a_missing_image_raises_or_is_skipped(images: Images, tmp_path: Path) -> None:
    (images.root / "even/004.png").unlink()
    with pytest.raises(DatasetNotFoundError, match="004"):
        encode(Toy(), images, cache=tmp_path / "cache")
    with pytest.raises(ImageError, match="004"):
        encode(Toy(), images, cache=False)
    with (
        pytest.warns(DataWarning, match="004"),
        pytest.warns(CacheWarning, match="004"),
    ):
        result = encode(Toy(), images, cache=tmp_path / "cache", on_error="skip")
    assert len(result.X) == 22


def test_an_image_that_the_system_refused_is_tried_again(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = encoding.decode_image

    def refuse(source: Any, **options: Any) -> Any:
        if source.name == "006.png":
            raise PermissionError(13, "Permission denied", str(source))
        return decode(source, **options)

    monkeypatch.setattr(encoding, "CHUNK", 4)
    options = {"cache": tmp_path / "cache", "on_error": "skip", "workers": 0}
    monkeypatch.setattr(encoding, "decode_image", refuse)
    for computed in (23, 4):  # still refused: only its chunk is looked at
        with pytest.warns(DataWarning, match=r"even/006\.png"):
            assert encode(Toy(), images, **options).computed == computed
    monkeypatch.setattr(encoding, "decode_image", decode)
    result = encode(Toy(), images, **options)
    assert (len(result), result.computed) == (23, 4)
    assert encode(Toy(), images, **options).computed == 0


def test_features_that_are_not_finite_are_refused(
    images: Images, tmp_path: Path
) -> None:
    class Broken(Toy):
        def encode(self, batch: Any) -> torch.Tensor:
            features = super().encode(batch)
            features[-1, 0] = torch.nan
            return features

    with pytest.raises(
        NumericalError,
        match="must be finite, got NaN or infinity from toy in 1 of a batch of 23",
    ):
        encode(Broken(), images, cache=tmp_path / "cache")
    assert FeatureCache(tmp_path / "cache").list() == []
    with pytest.raises(NumericalError, match="must be finite"):
        encode_batch(Broken(), [torch.zeros(3, 8, 8)])


def test_encode_rejects_wrong_items_and_backbones(images: Images) -> None:
    with pytest.raises(InputError, match="at least one item"):
        encode(Toy(), Images((), root=images.root))
    with pytest.raises(InputError, match="kind 'image', got 'text'"):
        encode(Toy(), Texts(("a",)))
    with pytest.raises(InputError, match=r"shape \(23, 5\), got \(23, 6\)"):
        encode(Toy(n_features=5), images, cache=False)
    with pytest.raises(UnknownNameError, match="nearest: 'batch_size'"):
        encode(Toy(), images, batchsize=3)
    with pytest.raises(ParameterError, match="only CUDA"):
        encode(Toy(), images, precision="float16")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("workers", -1),
        ("workers", "many"),
        ("batch_size", True),
        ("precision", "float64"),
        ("on_error", "ignore"),
        ("cache", True),
    ],
)
def test_config_rejects_invalid_settings(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be .* got"):
        EncodeConfig(**{name: value})


def test_images_of_different_shapes_are_refused(images: Images) -> None:
    toy = Toy()
    sizes = iter(range(4, 100))
    toy.transform = lambda image: torch.zeros(3, next(sizes), 8)
    with pytest.raises(
        InputError,
        match=r"one shape, got \(3, 5, 8\) for odd/001\.png after \(3, 4, 8\)",
    ):
        encode(toy, images, cache=False, workers=0)


# -- precision -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)
def test_images_sent_as_bytes_give_the_features_of_the_transform(
    images: Images, device: str
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    backbone = create_backbone("test_vit", weights="random", device=device)
    pixels = [
        backbone.transform(encoding.decode_image(images.raw(row)))
        for row in range(len(images))
    ]
    batch = torch.stack(pixels).contiguous(memory_format=torch.channels_last)
    expected = backbone.encode(batch).cpu().numpy()
    settings: dict[str, Any] = {
        "cache": False,
        "precision": "float32",
        "batch_size": len(images),
    }
    for workers in (0, 2):
        np.testing.assert_array_equal(
            encode(backbone, images, workers=workers, **settings, join=False).X,
            expected,
        )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("scale", "precision"), [(1.0, "float16"), (1e6, "float32")])
def test_half_precision_only_where_it_is_safe(scale: float, precision: str) -> None:
    class Scaled(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.device = torch.device("cuda")

        def encode(self, batch: Any) -> torch.Tensor:
            mean = (
                batch.mean(dim=(2, 3)) * scale
            )  # beyond 65504, a product in float16 overflows
            return torch.cat([mean, mean @ self.mixing.cuda()], dim=1).float()

    items = synthetic(600)
    result = encode(Scaled(), items, cache=False)
    assert result.precision == precision
    expected = expected_features(items) * scale
    gaps = np.linalg.norm(result.X - expected, axis=1) / np.maximum(
        np.linalg.norm(expected, axis=1), 1e-6
    )
    assert gaps.max() < 2e-3


# -- interruption and size -------------------------------------------------------------
