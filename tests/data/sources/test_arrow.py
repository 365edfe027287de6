"""Saved Hugging Face data sets as sources: rows equal those of the library, read by record batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.sources.conftest import Traffic
from tests.data.sources.samples import bodies, jpeg
from tests.engine.object_storage import upload

from evergrow.core.errors import EvergrowError
from evergrow.data import read, source_from

datasets = pytest.importorskip("datasets")
LARGE = 1 << 30
NAMES = ["ant", "bee", "cat"]


def image_set(n: int, side: int = 24) -> Any:
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES), "note": datasets.Value("string")}
    )
    rows = {
        "image": [{"bytes": jpeg(row, side), "path": None} for row in range(n)],
        "label": [row % 3 for row in range(n)],
        "note": ["-"] * n,
    }
    return datasets.Dataset.from_dict(rows, features=features)


def save(content: Any, folder: Path, **options: Any) -> Path:
    content.save_to_disk(str(folder), **options)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a saved set of 60 images in two files, whose batches hold ten rows each."""
    folder = tmp_path_factory.mktemp("hub") / "saved"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "DEFAULT_MAX_BATCH_SIZE", 10)
        content = image_set(60, 64)
        save(content, folder, num_shards=2)
    return folder


def test_rows_are_those_of_the_library(saved: Path) -> None:
    source = read(saved)
    data = [source.read(shard) for shard in source.shards(rows=7, size=LARGE)]
    expected = datasets.load_from_disk(str(saved)).cast_column("image", datasets.Image(decode=False))
    assert source.kind == "image"
    assert [body for part in data for body in bodies(part)] == [cell["bytes"] for cell in expected["image"]]
    assert [label for part in data for label in part.labels.tolist()] == [NAMES[code] for code in expected["label"]]
    assert max(len(part) for part in data) <= 7
    assert len({name for part in data for name in part.names()}) == 60


def test_another_storage_gives_the_same(saved: Path, traffic: Traffic) -> None:
    upload(saved, "memory://sets")
    far, local = read("memory://sets"), read(saved)
    shards = list(far.shards(rows=10, size=LARGE))
    assert shards == list(local.shards(rows=10, size=LARGE))
    assert len(shards) > 2
    assert far.identity() == local.identity()
    data = source_from(json.loads(json.dumps(far.describe()))).read(shards[-1])
    assert bodies(data) == bodies(local.read(shards[-1]))


def test_splits_are_parts(tmp_path: Path) -> None:
    rows = {name: datasets.Dataset.from_dict({"text": [name], "label": ["x"]}) for name in ("train", "validation")}
    folder = save(datasets.DatasetDict(rows), tmp_path / "saved")
    for part, texts in (("train", ["train"]), ("test", ["validation"]), ("all", ["train", "validation"])):
        source = read(folder, part=part)
        assert source.kind == "text"
        assert [source.read(shard).items.raw(0) for shard in source.shards(9, LARGE)] == texts


def test_damaged_files_never_end_in_another_error(tmp_path: Path) -> None:
    folder = save(image_set(5), tmp_path / "saved")
    (path,) = folder.glob("*.arrow")
    body = path.read_bytes()
    said = []
    for number in range(150):
        rng = np.random.default_rng(number)
        broken = bytearray(body)
        if number % 3 == 0:
            broken = broken[: int(rng.integers(0, len(body) - 16))]
        for _ in range(4 if number % 3 else 0):
            broken[int(rng.integers(0, min(len(body), 3000)))] = int(rng.integers(256))
        path.write_bytes(broken)
        try:
            source = read(path)
            for shard in source.shards(2, LARGE):
                source.read(shard)
        except EvergrowError as error:
            said.append(str(error))
    assert len(said) > 60
