"""Samples of two labels are found shard by shard as in one piece."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from evergrow.core.record import read_record
from evergrow.data import read
from evergrow.engine.double_labels import (
    ShardDigests,
    compare_shard_digests,
    write_digests,
)
from evergrow.engine.job import Job, plan
from evergrow.tools.data_check import find_double_labels


def write_texts(path: Path, n_texts: int) -> Path:
    """Write 200 rows of few texts, so that many have several labels."""
    draws = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(200):
            text = f"text {draws.integers(n_texts)}"
            writer.writerow([text, f"class {draws.integers(3)}"])
    return path


@pytest.mark.parametrize("n_texts", [40, 10**12])
@pytest.mark.parametrize("max_rows", [7, 60, 10**6])
def test_shards_have_the_double_labels_of_the_whole(
    tmp_path: Path, n_texts: int, max_rows: int
) -> None:
    source = read(write_texts(tmp_path / "texts.csv", n_texts), part="train")
    manifest = plan(source, shard_rows=30)
    job = Job(tmp_path / "job", manifest, "fit")
    (tmp_path / "job" / "digests").mkdir(parents=True)
    for shard in manifest.shards:
        write_digests(job.result("digests", shard.number), source.read(shard))
    assert len(manifest.shards) > 3
    expected = find_double_labels(source.samples())
    found = compare_shard_digests(job, max_rows)
    if not expected:
        assert found is None
        return
    assert found is not None
    assert found.count == len(expected)
    starts = np.cumsum([0, *(shard.rows for shard in manifest.shards)])
    rows = tuple(int(starts[shard]) + row for shard, row in (found.first, found.second))
    assert rows == expected[0].rows


def test_a_damaged_file_of_digests_is_left_out(tmp_path: Path) -> None:
    source = read(write_texts(tmp_path / "texts.csv", 5), part="train")
    manifest = plan(source, shard_rows=100)
    job = Job(tmp_path / "job", manifest, "fit")
    (tmp_path / "job" / "digests").mkdir(parents=True)
    for shard in manifest.shards:
        write_digests(job.result("digests", shard.number), source.read(shard))
    path = job.result("digests", 1)
    whole = compare_shard_digests(job)
    assert len(read_record(ShardDigests, path).rows) == 100
    path.write_bytes(path.read_bytes()[:-9])
    rest = compare_shard_digests(job)
    assert whole is not None
    assert rest is not None
    assert rest.count < whole.count
