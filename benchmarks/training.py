"""Speed of training: the loop with its crops, order, checks and log against forward, backward and step alone."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.timing import Row, seconds
from evergrow.adapt import TrainConfig, train
from evergrow.adapt.networks import CosineHead, Network
from evergrow.adapt.tuners import create_tuner
from evergrow.data.items import Images
from evergrow.features import Preprocessing

SEED = 0
SIDE = 64
CLASSES = 10
BAR = 0.9


def throughput(quick: bool) -> Iterator[Row]:
    """First-session adaptation with each kind of tuner, on images of 32 pixels seen at 64."""
    if quick:
        kinds = ("adapter",)
    else:
        kinds = ("adapter", "ssf")
    for kind in kinds:
        name = "test_vit" if quick else "vit_tiny_patch16_224"
        yield _throughput(name, kind, 48, torch.device("cpu"), None if quick else BAR)
    if torch.cuda.is_available():
        for kind in kinds:
            yield _throughput(
                "vit_small_patch16_224",
                kind,
                2400,
                torch.device("cuda"),
                None if quick else BAR,
            )


def _network(name: str, kind: str, device: torch.device) -> tuple[Network, list[Any]]:
    """Return a network with a tuner on it, and what is trained."""
    import timm

    options = {} if name == "test_vit" else {"patch_size": 8}
    model = timm.create_model(name, img_size=SIDE, num_classes=0, **options).to(device)
    tuner = create_tuner(kind, model, seed=SEED)
    head = CosineHead(model.num_features, CLASSES, SEED).to(device)
    return Network(model, head, [tuner]), [*tuner.parameters(), *head.parameters()]


def _cost(work: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Return seconds of what counts, and of the clock: the processor's for a CPU, where others may be at work."""
    started = time.process_time()
    wall = seconds(work, repeat=1)
    return (wall if device.type == "cuda" else time.process_time() - started), wall


def _throughput(
    name: str, kind: str, n: int, device: torch.device, bar: float | None
) -> Row:
    config = TrainConfig(epochs=1, batch_size=48)
    half = device.type == "cuda"
    pixels = np.random.default_rng(SEED).integers(
        0, 256, size=(n, 32, 32, 3), dtype=np.uint8
    )
    codes = np.arange(n) % CLASSES
    network, parameters = _network(name, kind, device)
    ready = torch.rand(n, 3, SIDE, SIDE, device=device)
    labels = torch.from_numpy(codes).to(device)
    network.train()

    def bare() -> None:
        optimizer = torch.optim.SGD(
            parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, fused=half
        )
        for start in range(0, n, config.batch_size):
            part = slice(start, start + config.batch_size)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
                loss = cross_entropy(network(ready[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def ours() -> None:
        seen = Preprocessing.pilot(SIDE)
        train(
            network,
            parameters,
            Images(pixels),
            codes,
            config,
            preprocessing=seen,
            seed=SEED,
        )

    for work in (bare, ours):
        work()  # warm up
    pairs = [
        (_cost(bare, device), _cost(ours, device)) for _ in range(5)
    ]  # by turns: the load may change
    plain, full = (
        statistics.median(cost[0] for cost in column) for column in zip(*pairs)
    )
    clock = statistics.median(cost[1] for cost, _ in pairs) / statistics.median(
        cost[1] for _, cost in pairs
    )
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
    else:
        load = float("nan")
    figure = (
        f"{plain / full:.3f} of the bare loop: {n / full:,.1f} against {n / plain:,.1f} images/s "
        f"(by the clock {clock:.3f}; {torch.get_num_threads()} threads, load {load:.1f})"
    )
    values = {
        "pairs_s": pairs,
        "n": n,
        "load": load,
        "device": device.type,
        "by_the_clock": clock,
    }
    values["counted"] = "wall" if half else "processor"
    work_name = f"training, {name} at {SIDE} px with {kind} on {device.type}"
    return Row(
        work_name,
        figure,
        f">= {bar}" if bar else "",
        plain / full >= bar if bar else None,
        values,
    )
