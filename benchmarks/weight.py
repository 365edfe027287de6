"""What a model weighs on disk, and what its layer costs: units drawn from a seed, statistics as triangles."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from benchmarks.timing import Row, seconds
from evergrow import Learner
from evergrow.head.layers import FourierLayer
from evergrow.learner import settle

BLOCKS = (1280, 320, 192, 112)
"""Features of the recipe ``rich`` through EfficientNet-Lite0."""

MODELS = (
    ("10 classes, 200 images", 10, 20, 12.0),
    ("40 classes, 600 images", 40, 15, 32.0),
)


def models(quick: bool) -> Iterator[Row]:
    """Weigh models of images, made-up features of their width, and of the digits of the README."""
    rng = np.random.default_rng(0)
    for name, classes, each, bar in MODELS[: 1 if quick else 2]:
        y = np.repeat(np.arange(classes), each)
        X = np.abs(
            rng.normal(size=(classes, sum(BLOCKS)))[y]
            + rng.normal(size=(len(y), sum(BLOCKS)))
        )
        parts = (
            part / np.linalg.norm(part, axis=1, keepdims=True)
            for part in np.split(X, np.cumsum(BLOCKS)[:-1], 1)
        )
        rows = np.concatenate(list(parts), axis=1) / len(BLOCKS) ** 0.5
        yield _size(
            name,
            Learner(None, options={"blocks": BLOCKS}, random_state=0).fit((rows, y)),
            bar,
        )
    X, y = load_digits(return_X_y=True)
    yield _size(
        "digits",
        Learner(None, random_state=0)
        .fit((X[:900], y[:900]))
        .partial_fit((X[900:], y[900:])),
        20.0,
    )


def _size(name: str, learner: Learner, bar: float) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.evg"
        settle(learner)
        learner.save(path)
        size = path.stat().st_size / 1e6
    return Row(
        f"weight: {name}", f"{size:.1f} MB", f"{bar:.0f} MB", size <= bar, {"mb": size}
    )


def transform(quick: bool) -> Iterator[Row]:
    """Time the activations of 3,000 units against a product with a matrix of as many weights."""
    rows = 1000 if quick else 10_000
    features = sum(BLOCKS)
    units = 3000
    Z = torch.randn(
        rows, features, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    layer = FourierLayer(units, direct_link=False).build(Z[:100], Z[:100])
    weights = torch.randn(
        features, units, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    ours = seconds(lambda: layer.transform(Z), repeat=5)
    dense = seconds(lambda: Z @ weights, repeat=5)
    figure = f"{ours:.2f} s, a dense product {dense:.2f} s: {ours / dense:.2f}"
    raw = {"transform": ours, "dense": dense}
    yield Row(
        f"transform of {rows:,} rows, 1,904 features, 3,000 units",
        figure,
        "0.5",
        ours <= 0.5 * dense,
        raw,
    )
