"""Speed and memory of extraction: against a bare forward loop, its own cache, and fewer images."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Row, seconds
from evergrow.data.items import Images, Items
from evergrow.features import create_backbone, encode
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.images import decode_image

SEED = 0
DEPTH_PAIRS = 7


def _images(n: int) -> np.ndarray:
    """Draw images of 224 x 224, smooth enough to compress like photographs."""
    coarse = np.random.default_rng(SEED).integers(
        0, 256, size=(n, 14, 14, 3), dtype=np.uint8
    )
    return coarse.repeat(16, axis=1).repeat(16, axis=2)


def throughput(quick: bool) -> Iterator[Row]:
    """Features of images in memory, decoding and all, against the network alone on tensors that are ready."""
    name = "test_vit" if quick else "vit_base_patch16_224"
    bar = 0.95
    if quick:
        bar = None
    yield _throughput(name, 48, torch.device("cpu"), "float32", bar)
    if torch.cuda.is_available():
        # No bar in float32, which leaves the decoders of most machines time to spare.
        yield _throughput(
            name, 512 if quick else 16384, torch.device("cuda"), "float32", None
        )
        n, bar = (512, None) if quick else (50_000, 0.8)
        for shape in ((224, 224), (500, 375)):
            yield _jpeg_throughput(name, n, shape, bar)


def _throughput(
    name: str, n: int, device: torch.device, precision: Any, bar: float | None
) -> Row:
    backbone: Any = create_backbone(name, weights="random", device=device)
    return _against_bare(
        f"extraction, {name}", backbone, Images(_images(n)), precision, bar
    )


def _jpeg_throughput(
    name: str, n: int, shape: tuple[int, int], bar: float | None
) -> Row:
    """Return the row of JPEG files of a size, in half precision: a thousand of them, over and over."""
    from PIL import Image

    backbone: Any = create_backbone(name, weights="random", device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        names = tuple(f"{row:05d}.jpg" for row in range(min(n, 1000)))
        for row, pixels in enumerate(_images(len(names))):
            Image.fromarray(pixels).resize(shape).save(
                Path(folder, names[row]), quality=90
            )
        items = Images(
            tuple(names[row % len(names)] for row in range(n)), root=Path(folder)
        )
        title = f"extraction of JPEG files of {shape[0]} x {shape[1]}, {name}"
        return _against_bare(title, backbone, items, "float16", bar)


def _against_bare(
    title: str, backbone: Any, items: Items, precision: Any, bar: float | None
) -> Row:
    device = backbone.device
    n = len(items)
    batch = 128 if device.type == "cuda" else 32
    # A few suffice, over and over: gigabytes held by this process alone would make
    # starting workers slow.
    ready = torch.stack(
        [backbone.transform(decode_image(items.raw(row))) for row in range(batch)]
    )
    ready = ready.contiguous(memory_format=torch.channels_last)
    if device.type == "cuda":
        ready = ready.pin_memory()

    def bare() -> None:
        half = torch.autocast(
            device.type, dtype=torch.float16, enabled=precision == "float16"
        )
        with torch.inference_mode(), half:
            for start in range(0, n, batch):
                backbone.module(ready[: n - start].to(device, non_blocking=True))

    def ours() -> None:
        encode(backbone, items, cache=False, precision=precision, batch_size=batch)

    seconds(bare, repeat=1)  # warm up
    pairs = [
        (seconds(bare, repeat=1), seconds(ours, repeat=1)) for _ in range(3)
    ]  # by turns: the load may change
    plain, full = (statistics.median(column) for column in zip(*pairs))
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
    else:
        load = float("nan")
    figure = (
        f"{plain / full:.3f} of the bare loop: {n / full:,.1f} against {n / plain:,.1f} images/s "
        f"({torch.get_num_threads()} threads, load {load:.1f})"
    )
    values = {
        "pairs_s": pairs,
        "n": n,
        "load": load,
        "device": device.type,
        "precision": precision,
    }
    work = f"{title} on {device.type}, {precision}"
    return Row(
        work,
        figure,
        f">= {bar}" if bar else "",
        plain / full >= bar if bar else None,
        values,
    )


def views(quick: bool) -> Iterator[Row]:
    """``best`` features, several mirrored views of an image, against the network alone on batches of their shapes."""
    if quick:
        names = ("test_resnet",)
    else:
        names = ("resnet101", "tf_efficientnet_lite0")
    if torch.cuda.is_available():
        for name in names:
            for precision in ("float32", "float16"):
                yield _views(
                    name, 512 if quick else 8192, precision, None if quick else 0.9
                )


def _views(name: str, n: int, precision: Any, bar: float | None) -> Row:
    """Return the row of one network on a GPU."""
    backbone: Any = create_backbone(name, weights="random", device="cuda").with_recipe(
        "best", 320
    )
    items = Images(_images(n))
    batch = 128
    ready = [
        torch.rand(2 * batch, 3, *view.size, device="cuda")
        for view, _ in backbone.transform.cuts()
    ]
    ready = [images.contiguous(memory_format=torch.channels_last) for images in ready]

    def bare() -> None:
        with (
            torch.inference_mode(),
            torch.autocast("cuda", dtype=torch.float16, enabled=precision == "float16"),
        ):
            for _ in range(0, n, batch):
                for images in ready:
                    backbone.module(images)
        torch.cuda.synchronize()

    def ours() -> None:
        encode(backbone, items, cache=False, precision=precision, batch_size=batch)

    bare(), ours()  # warm up
    pairs = [
        (seconds(bare, repeat=1), seconds(ours, repeat=1)) for _ in range(3)
    ]  # by turns: the load may change
    plain, full = (statistics.median(column) for column in zip(*pairs))
    figure = f"{plain / full:.3f} of the bare loop: {n / full:,.1f} against {n / plain:,.1f} images/s"
    values = {"pairs_s": pairs, "n": n, "precision": precision}
    work = f"best features, {name} on cuda, {precision}"
    return Row(
        work,
        figure,
        f">= {bar}" if bar else "",
        plain / full >= bar if bar else None,
        values,
    )


def depths(quick: bool) -> Iterator[Row]:
    """Features from several depths of a pass (``"rich"``) against the network's own vector alone, by turns."""
    if quick:
        names = ("test_vit",)
    else:
        names = ("vit_base_patch16_224", "tf_efficientnet_lite0")
    for name in names:
        yield _depths(
            name,
            64 if quick else 48,
            torch.device("cpu"),
            "float32",
            None if quick else 0.97,
        )
        if torch.cuda.is_available():
            for precision in ("float32", "float16"):
                yield _depths(
                    name,
                    512 if quick else 8192,
                    torch.device("cuda"),
                    precision,
                    None if quick else 0.95,
                )
    yield _depth_memory(names[0])


def _depths(
    name: str, n: int, device: torch.device, precision: Any, bar: float | None
) -> Row:
    """Return the row of one network; on a CPU the bar is on processor time, which others on the machine leave alone."""
    final = create_backbone(name, weights="random", device=device)
    rich = final.with_recipe("rich")
    items = Images(_images(n))

    def run(backbone: Backbone) -> tuple[float, float]:
        before = _processor_seconds()
        wall = seconds(
            lambda: encode(backbone, items, cache=False, precision=precision), repeat=1
        )
        return wall, _processor_seconds() - before

    run(final), run(rich)  # warm up
    pairs = [
        _both(run, (final, rich), turn) for turn in range(DEPTH_PAIRS)
    ]  # by turns: the load may change
    walls, processors = ([(one[k], other[k]) for one, other in pairs] for k in (0, 1))
    ratios = [
        statistics.median(a / b for a, b in measured)
        for measured in (walls, processors)
    ]
    plain, full = (statistics.median(column) for column in zip(*walls))
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
    else:
        load = float("nan")
    judged = ratios[1] if device.type == "cpu" else ratios[0]
    figure = (
        f"{ratios[0]:.3f} of the final vector alone by the clock, {ratios[1]:.3f} by processor time: {n / full:,.1f} "
        f"against {n / plain:,.1f} images/s, {rich.n_features:,} columns against {final.n_features:,} "
        f"({torch.get_num_threads()} threads, load {load:.1f})"
    )
    values = {
        "wall_s": walls,
        "processor_s": processors,
        "n": n,
        "load": load,
        "device": device.type,
    }
    work = f"several depths, {name} on {device.type}, {precision}"
    return Row(
        work,
        figure,
        f">= {bar}" if bar else "",
        judged >= bar if bar else None,
        values | {"precision": precision},
    )


def _both(run: Any, backbones: tuple[Backbone, Backbone], turn: int) -> tuple[Any, Any]:
    """Measure two backbones, the second one first at every other turn: what came before leaves the caches warm."""
    if turn % 2:
        later = run(backbones[1])
        return run(backbones[0]), later
    return run(backbones[0]), run(backbones[1])


def _processor_seconds() -> float:
    """Return the processor time of this process and of the workers it has waited for."""
    return sum(os.times()[:4])


def _depth_memory(name: str) -> Row:
    """Return the peak memory of extracting several depths against that of the final vector, each in its process."""
    peaks = []
    for recipe in ("final", "rich"):
        code = f"from benchmarks.extraction import _peak_of\n_peak_of({name!r}, {recipe!r})"
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        peaks.append(json.loads(out.stdout.strip().splitlines()[-1]))
    growth = (peaks[1] - peaks[0]) / 1e6
    figure = f"{peaks[1] / 1e6:,.0f} MB at the peak of the process, {growth:+.1f} MB against the final vector alone"
    return Row(
        f"memory of several depths, {name}",
        figure,
        "< 30 MB more",
        growth < 30,
        {"peak_bytes": peaks},
    )


def _peak_of(name: str, recipe: str) -> None:
    """Print the high-water mark of this process after extracting 96 images."""
    backbone = create_backbone(name, weights="random", device="cpu", recipe=recipe)
    encode(backbone, Images(_images(96)), cache=False, workers=0)
    _print_peak()


def warm_cache(quick: bool) -> Iterator[Row]:
    """Ask for the features of the same files a second time; everything is looked up anew."""
    n, name = (64, "test_resnet") if quick else (192, "tf_efficientnet_lite0")
    from PIL import Image

    backbone = create_backbone(name, weights="random", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        names = tuple(f"{row:05d}.jpg" for row in range(n))
        for row, pixels in enumerate(_images(n)):
            Image.fromarray(pixels).save(Path(folder, names[row]), quality=90)

        def run() -> None:
            encode(
                backbone, Images(names, root=Path(folder)), cache=Path(folder, "cache")
            )

        first = seconds(run, repeat=1)
        second = seconds(run, repeat=5)
    figure = f"{first / second:,.0f}x: {1e3 * second:.1f} ms against {first:.2f} s for {n} images"
    values = {"first_s": first, "second_s": second, "n": n}
    yield Row(f"warm cache, {name}", figure, ">= 50x", first / second >= 50, values)


def memory(quick: bool) -> Iterator[Row]:
    """Peak memory over the number of images, in processes of their own."""
    if quick:
        sizes = (1_000, 5_000)
    else:
        sizes = (10_000, 100_000)
    peaks = []
    for n in sizes:
        code = f"from benchmarks.extraction import _peak\n_peak({n})"
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        peaks.append(json.loads(out.stdout.strip().splitlines()[-1]))
    growth = (peaks[1] - peaks[0]) / 1e6
    rows = 4 * _Tiny.spec.n_features * (sizes[1] - sizes[0]) / 1e6
    figure = (
        f"{peaks[1] / 1e6:,.0f} MB at the peak of the process, {growth:+.1f} MB against {sizes[0]:,} images "
        f"(the additional features are {rows:,.0f} MB)"
    )
    values = {"peak_bytes": dict(zip(map(str, sizes), peaks))}
    yield Row(
        f"memory of extracting {sizes[1]:,} images",
        figure,
        "< 30 MB more",
        growth < 30,
        values,
    )


class _Tiny(Backbone):
    """Half a thousand features that cost nothing."""

    spec = BackboneSpec(
        "tiny", "image", 512, "module", "0", "timm", {"size": [16, 16]}, {}
    )
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.transform = lambda image: (
            torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        )

    def encode(self, batch: Any) -> torch.Tensor:
        return batch.flatten(1)[:, :512]

    def to(self, device: Any) -> _Tiny:
        return self


class _Drawn(Images):
    """Images that exist only while they are looked at."""

    def raw(self, row: int) -> np.ndarray:
        return np.full((16, 16, 3), row % 256, dtype=np.uint8)

    def stamp(self, *, times: bool = True) -> str:
        return f"drawn{len(self)}"


def _peak(n: int) -> None:
    """Print the high-water mark of this process after extracting ``n`` images."""
    with tempfile.TemporaryDirectory() as folder:
        encode(_Tiny(), _Drawn(range(n)), cache=folder, workers=0)
    _print_peak()


def _print_peak() -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    print(
        1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    )
