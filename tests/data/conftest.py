"""Tiny data sets on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evergrow.data import Dataset

# One grey pixel: a valid PNG of 67 bytes. Nothing in this room decodes it.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c63600000000200014848afa40000000049454e44ae426082"
)

Tree = Callable[[Mapping[str, int]], Path]


def contents_of(data: Dataset) -> tuple[Any, ...]:
    """Return values that two data sets share only if they hold the same samples."""
    labels = [tuple(y.tolist()) for y in (data.y_train, data.y_test)]
    if data.kind == "features":
        arrays = [data.X_train, data.X_test]
        forms = [(array.dtype.str, array.shape) for array in arrays]
        return (*labels, *forms, *(array.tobytes() for array in arrays))
    train = data.train.raw_items()
    test = train.take([]) if data.test is None else data.test.raw_items()
    stamps = [train.stamp(times=False), test.stamp(times=False)]
    return (*labels, *stamps, data.class_names)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder where no real data set can be found."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("EVERGROW_DATA", raising=False)
    return work


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Return a function that writes folders with a number of images each."""

    def make(counts: Mapping[str, int]) -> Path:
        root = tmp_path / "pets"
        root.mkdir(exist_ok=True)
        for folder, count in counts.items():
            place = root / folder
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (place / f"{number:03d}.png").write_bytes(PNG)
        return root

    return make
