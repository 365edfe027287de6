"""Images that a GPU prepares have the same bytes as with Pillow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evergrow.data.items import Images
from evergrow.features import Preprocessing, create_backbone, encode, encoding
from evergrow.features.encoding import ImageReader, LoadedBatch
from evergrow.features.gpu_images import GpuPreparation, RawReader
from evergrow.features.preprocess import stack_views

OWN = Preprocessing(size=(64, 64), resize=(72, 72))
VIEWS = stack_views(OWN, (None, (80, 80), (64, 96)))
CPU = torch.device("cpu")


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw pixels of black and white, at which every filter overshoots."""
    return np.random.default_rng(seed).integers(0, 2, shape, dtype=np.uint8) * 255


def both(
    items: Images, own: Preprocessing, device: torch.device = CPU
) -> tuple[object, object]:
    """Return a batch that the device prepares, and Pillow's."""
    rows = range(len(items))
    (ours,) = GpuPreparation(own, device)([RawReader(items, own).__getitems__(rows)])
    return ours, ImageReader(items, own).__getitems__(rows)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "shape", [(90, 120), (40, 33), (72, 72), (1, 1), (300, 210), (64, 500), (383, 190)]
)
def test_pixels_are_those_of_pillow(shape: tuple[int, int], interpolation: str) -> None:
    own = stack_views(
        Preprocessing((64, 64), (72, 72), "center", interpolation),
        (None, (80, 80), (64, 96)),
    )
    ours, plain = both(Images(noise(3, *shape, 3)), own)
    assert torch.equal(ours.batch, plain.batch)
    assert ours.batch.is_contiguous(memory_format=torch.channels_last)
    assert ours.rows.tolist() == [0, 1, 2]


def test_images_of_all_sizes_and_kinds_go_through_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergrow.features.gpu_images._RESIZED_AT_ONCE", 2)
    monkeypatch.setattr("evergrow.features.gpu_images.MAX_IMAGE_BYTES", 3 * 200 * 200)
    shapes = [
        (90, 120),
        (150, 70),
        (90, 120),
        (400, 300),
        (90, 120),
        (3, 2000),
    ]  # large ones and strips go to Pillow
    for number, shape in enumerate(shapes):
        Image.fromarray(noise(*shape, 3, seed=number)).save(tmp_path / f"{number}.png")
    Image.fromarray(noise(50, 60)).save(tmp_path / "grey.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    names = [
        *(f"{number}.png" for number in range(3)),
        "broken.png",
        "3.png",
        "grey.png",
        "4.png",
        "gone.png",
        "5.png",
    ]
    ours, plain = both(Images(tuple(names), root=tmp_path), VIEWS)
    order = np.argsort(ours.rows)  # images of one shape lie together
    assert torch.equal(ours.batch[order], plain.batch)
    assert ours.rows[order].tolist() == plain.rows.tolist() == [0, 1, 2, 4, 5, 6, 8]
    assert ours.failures == plain.failures
    alone, _ = both(Images(("gone.png",), root=tmp_path), OWN)
    assert alone.batch is None


def test_grey_pixels_and_those_with_an_alpha_channel_are_made_rgb() -> None:
    for array in (noise(2, 30, 40), noise(30, 40, 4)[None]):
        ours, plain = both(Images(tuple(array)), VIEWS)
        assert torch.equal(ours.batch, plain.batch)
    ours, plain = both(Images((noise(30, 40, 3), noise(0, 40, 3))), VIEWS)
    assert ours.rows.tolist() == [0]
    assert ours.failures == plain.failures


def test_all_calls_start_networks_in_one_thread() -> None:
    """In a new thread cuDNN prepares its convolutions again, which takes seconds."""
    threads = []
    begun = []

    def start(batch: Any) -> Callable[[], Any]:
        threads.append(threading.current_thread())
        begun.append(batch)
        return lambda: batch

    runner: Any = SimpleNamespace(
        backbone=SimpleNamespace(device=torch.device("cuda")), start=start
    )
    for _ in range(2):
        begun.clear()
        batches = (LoadedBatch(np.arange(1), number, []) for number in range(9))
        assert (
            [features for _, features in encoding._encoded_batches(batches, runner, 9)]
            == begun
            == list(range(9))
        )
    assert set(threads) == {threads[0]} - {threading.current_thread()}
    batches = (LoadedBatch(np.arange(1), number, []) for number in range(9))
    some = encoding._encoded_batches(batches, runner, 9)
    begun.clear()
    next(some)
    some.close()
    assert len(begun) < 9  # no more than were ahead when it was closed


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("tf32", [False, True])
def test_a_gpu_gives_the_same_bytes(
    tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    for number, shape in enumerate([(90, 120), (333, 500), (40, 33)]):
        ours, plain = both(
            Images(noise(5, *shape, 3, seed=number)), VIEWS, torch.device("cuda")
        )
        assert torch.equal(ours.batch.cpu(), plain.batch)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_of_a_gpu_are_those_of_a_cpu(tmp_path: Path) -> None:
    for number in range(20):
        Image.fromarray(noise(100 + 3 * (number % 4), 130, 3, seed=number)).save(
            tmp_path / f"{number:02d}.jpg"
        )
    items = Images(
        tuple(sorted(path.name for path in tmp_path.iterdir())), root=tmp_path
    )
    found = []
    for device in ("cpu", "cuda"):
        backbone = create_backbone(
            "test_resnet", weights="random", device=device, recipe="best"
        )
        for workers in (0, 2):
            settings = {
                "cache": False,
                "precision": "float32",
                "batch_size": 8,
                "workers": workers,
            }
            found.append(encode(backbone, items, **settings).X)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-3, atol=1e-4)
