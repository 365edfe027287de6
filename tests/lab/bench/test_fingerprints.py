"""Fingerprints of data depend on samples and labels, not on names and folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evergrow.data import load_data, load_features, save_features
from evergrow.data.items import Dataset
from evergrow.lab.bench.data import fingerprint_of

X = np.arange(24, dtype=np.float16).reshape(6, 4)
Y = np.array([0, 0, 1, 1, 2, 2], dtype=np.int16)


def write_images(root: Path) -> Path:
    for folder in ("train/a", "train/b", "test/a", "test/b"):
        (root / folder).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((2, 2, 3), number, dtype=np.uint8)
            Image.fromarray(pixels).save(root / folder / f"{number}.png")
    return root


def with_other_features(data: Dataset) -> Dataset:
    return replace(data, train=replace(data.train, features=X + 1))


def test_the_fingerprint_of_features_follows_the_contents_only() -> None:
    one = Dataset.of(X, Y, X[::2], Y[::2], name="one")
    two = Dataset.of(
        X.copy(), Y.astype(np.int64), X[::2].copy(), Y[::2].astype(np.int64), name="two"
    )
    other = with_other_features(one)
    assert fingerprint_of(one) == fingerprint_of(two) != fingerprint_of(other)


def test_computed_features_are_identified_by_their_origin(tmp_path: Path) -> None:
    data = Dataset.of(X, Y, X, Y, backbone={"name": "net"}, origin="abc")
    save_features(tmp_path / "toy.npz", data)
    stored = load_features(tmp_path / "toy.npz")
    assert fingerprint_of(stored) != fingerprint_of(data)
    assert fingerprint_of(data) == fingerprint_of(with_other_features(data))


def test_the_fingerprint_of_images_follows_labels_and_not_the_folder(
    tmp_path: Path,
) -> None:
    data = load_data(write_images(tmp_path / "one"))
    assert isinstance(data, Dataset)
    assert fingerprint_of(data) == fingerprint_of(
        load_data(write_images(tmp_path / "two"))
    )
    train = data.train.raw_items()
    test = data.test.raw_items()
    swapped = Dataset.of(
        train, 1 - data.y_train, test, data.y_test, names=data.class_names
    )
    assert fingerprint_of(swapped) != fingerprint_of(data)


def test_the_fingerprint_opens_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_data(write_images(tmp_path / "one"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    assert len(fingerprint_of(data)) == 16
