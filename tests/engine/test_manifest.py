"""Manifests, job files and the merge tree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.engine.clouds import write_points

from evergrow.core.errors import (
    EngineError,
    FileFormatError,
    NewerSchemaError,
    ParameterError,
)
from evergrow.data import read
from evergrow.engine import LocalEngine
from evergrow.engine.job import Job, begin_job, plan, read_job
from evergrow.engine.shard_merge import FAN_IN, merge_tree


def test_shards_cover_all_rows_once(data: Path) -> None:
    manifest = plan(read(data), shard_rows=70)
    assert [shard.rows for shard in manifest.shards] == [70, 70, 70, 70, 20]
    assert manifest.rows == 300
    assert manifest.first is None  # few rows are all first
    assert [len(manifest.first_of(shard)) for shard in manifest.shards] == [
        70,
        70,
        70,
        70,
        20,
    ]


def test_manifest_round_trip(data: Path, tmp_path: Path) -> None:
    manifest = plan(read(data), shard_rows=70, first_rows=50)
    begin_job(Job(tmp_path / "job", manifest, "fit"))
    again = read_job(tmp_path / "job").manifest
    assert again == manifest
    assert (again.key, again.source) == (manifest.key, manifest.source)


def test_first_samples_depend_on_the_seed_only(data: Path) -> None:
    sizes = {"shard_rows": 70, "first_rows": 50}
    manifest, same = (plan(read(data), **sizes, seed=3) for _ in range(2))
    other = plan(read(data), **sizes, seed=4)
    assert manifest.first == same.first != other.first
    assert len(manifest.first) == 50
    assert list(manifest.first) == sorted(set(manifest.first))
    starts = np.cumsum([0, *(shard.rows for shard in manifest.shards)])
    found = [
        start + manifest.first_of(shard)
        for start, shard in zip(starts, manifest.shards, strict=False)
    ]
    assert np.concatenate(found).tolist() == list(manifest.first)


def test_key_does_not_depend_on_the_location_of_the_data(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "points.npz"
    copy.write_bytes(data.read_bytes())
    mine, theirs = (plan(read(path), shard_rows=70) for path in (data, copy))
    assert mine.key == theirs.key
    assert mine.source != theirs.source


def test_begin_job_rejects_other_data_and_shard_sizes(
    data: Path, tmp_path: Path
) -> None:
    more = read(write_points(tmp_path / "more.npz", n=310))
    begin_job(
        Job(tmp_path / "job", plan(read(data), shard_rows=70, first_rows=20), "fit")
    )
    for other, message in (
        (
            plan(more, shard_rows=70),
            r"differs in data \(300 samples of kind features, \w{8}\)",
        ),
        (
            plan(read(data), shard_rows=80, first_rows=20),
            r"differs in shard_rows \(70\)",
        ),
        (plan(read(data), shard_rows=70, first_rows=20, seed=1), "differs in the seed"),
    ):
        with pytest.raises(EngineError, match=message):
            begin_job(Job(tmp_path / "job", other, "fit"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identity": "0"}, "its key does not match"),
        ({"shards": []}, "no shards"),
        ({"first": [5, 4]}, "not ascending"),
        ({"first": [100_000]}, "not ascending"),
        ({"kind": "sound"}, "'kind'"),
        ({"shards": [{"number": 0, "rows": -1, "size": 0}]}, "'rows'"),
        ({"shard_rows": 71}, "its key does not match"),
    ],
)
def test_read_job_rejects_altered_manifests(
    data: Path, tmp_path: Path, change: dict, message: str
) -> None:
    begin_job(Job(tmp_path, plan(read(data), shard_rows=70), "fit"))
    values = json.loads((tmp_path / "job.json").read_text())
    values["manifest"].update(change)
    (tmp_path / "job.json").write_text(json.dumps(values))
    with pytest.raises(FileFormatError, match=message):
        read_job(tmp_path)


def test_read_job_rejects_missing_and_damaged_files(data: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not the folder of a job"):
        read_job(tmp_path)
    begin_job(Job(tmp_path, plan(read(data)), "fit", {"on_error": "raise"}))
    body = (tmp_path / "job.json").read_text()
    for text in (
        "{",
        "[]",
        body.replace('"version": 1', '"version": "x"'),
        body.replace('"raise"', '"skip"'),
    ):
        (tmp_path / "job.json").write_text(text)
        with pytest.raises(FileFormatError):
            read_job(tmp_path)


def test_read_job_rejects_newer_versions(data: Path, tmp_path: Path) -> None:
    begin_job(Job(tmp_path, plan(read(data)), "fit"))
    path = tmp_path / "job.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "version": 99, "evergrow": "9.0"})
    )
    with pytest.raises(NewerSchemaError, match=r"newer evergrow \(9\.0\)"):
        read_job(tmp_path)


def test_engine_rejects_shards_without_rows() -> None:
    with pytest.raises(ParameterError, match="shard_rows must be"):
        LocalEngine(shard_rows=0)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 65, 1000])
def test_merge_tree_adds_every_shard_once(n: int) -> None:
    levels = merge_tree(n)
    (root,) = levels[-1]
    assert list(root.leaves) == list(range(n))
    for level in levels[1:]:
        for number, node in enumerate(level):
            assert node.number == number
            assert 1 <= len(node.children) <= FAN_IN
            assert [leaf for child in node.children for leaf in child.leaves] == list(
                node.leaves
            )
