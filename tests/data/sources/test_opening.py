"""From addresses to sources: patterns, parts, descriptions and custom sources."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.sources.samples import FILES, LARGE, labels_of, parts_of
from tests.engine.object_storage import upload

from evergrow.core.errors import (
    EvergrowError,
    FileFormatError,
    InputError,
    ParameterError,
)
from evergrow.data import Shard, Source, read, source_from
from evergrow.data.shards import make_source, part_of_files


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        np.savez(
            tmp_path / f"{name}.npz",
            X=np.eye(5, dtype=np.float32),
            y=np.array([name] * 5),
        )
    return tmp_path


def test_parts_are_recognised_by_whole_words() -> None:
    files = {"trains/a.tar": 1, "contest.tar": 1}
    assert part_of_files(files, "test") == files
    files = {"train/0.tar": 1, "val/0.tar": 2, "README.tar": 3}
    assert part_of_files(files, "train") == {"train/0.tar": 1}
    assert part_of_files(files, "test") == {"val/0.tar": 2}
    assert part_of_files(files, "all") == files


def test_existing_names_with_wildcards_are_not_patterns(vectors: Path) -> None:
    odd = vectors / "[ab]{1,2}.npz"
    (vectors / "a.npz").rename(odd)
    source = read(odd)
    assert source.read(next(source.shards(9, LARGE))).names()[0] == "[ab]{1,2}.npz[0]"
    assert sum(map(len, parts_of(source_from(source.describe())))) == 5
    table = vectors / "[x]*.csv"
    table.write_text("text,label\na,b\n")
    assert [part.items.raw(0) for part in parts_of(read(table))] == ["a"]


def test_relative_paths_are_described_as_absolute(
    vectors: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(vectors)
    source = read("a.npz")
    description = json.loads(json.dumps(source.describe()))
    monkeypatch.chdir("/")
    assert labels_of(parts_of(source_from(description))) == ["a"] * 5
    assert read(f"file://{vectors}/a.npz").identity() == source.identity()


def test_options_change_the_identity(vectors: Path) -> None:
    identities = {
        read(vectors / "a.npz", **options).identity()
        for options in ({}, {"part": "test"}, {"labelled": False}, {"test_size": 0.2})
    }
    assert len(identities) == 3  # a default value does not change the identity


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"format": "arrays"},
        {"format": "nothing", "address": "x"},
        {"format": "arrays", "address": 5},
        {"format": "arrays", "address": "x", "options": []},
        {"format": "arrays", "address": "x", "kind": "sound"},
        {"format": "arrays", "address": "x", "options": {"label_column": 1}},
        {"format": "arrays", "address": "s3://a:b@c"},
    ],
)
def test_malformed_descriptions_are_refused(description: dict[str, Any]) -> None:
    with pytest.raises(EvergrowError):
        source_from(description)


def test_shards_without_a_location_are_refused(vectors: Path) -> None:
    source = read(vectors / "a.npz")
    (shard,) = source.shards(9, LARGE)
    for where in (
        {},
        {**shard.where, "start": -1},
        {**shard.where, "file": 5},
        {**shard.where, "stop": 10**9},
    ):
        with pytest.raises(FileFormatError):
            source.read(replace(shard, where=where))
    for name in ("arrays", "parquet", "arrow", "webdataset", "table"):
        with pytest.raises(EvergrowError):
            make_source(name, source.tree, "a.npz", source.options).read(
                Shard(0, 1, 0, {})
            )


def test_shard_limits_are_checked(vectors: Path) -> None:
    for rows, size in ((0, 1), (1, 0), (1.5, 1), (True, 1)):
        with pytest.raises(ParameterError, match="must be an integer"):
            list(read(vectors).shards(rows, size))
    (vectors / "a.xyz").touch()
    with pytest.raises(InputError, match="must be a folder, or end like a data file"):
        read(vectors / "a.xyz")


HEAD = (0, 2048)
TAIL = (-2500, 0)
ENDS = (-200, 200)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("a.npz", ENDS),
        ("b.npz", ENDS),
        ("a.parquet", TAIL),
        ("a.arrow", HEAD),
        ("a.tar", HEAD),
    ],
)
def test_damaged_files_raise_only_typed_errors(
    name: str, places: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / name
    FILES[name](path)
    body = path.read_bytes()
    messages = []
    for number in range(120):
        rng = np.random.default_rng(number)
        broken = bytearray(body)
        if number % 3 == 0:
            broken = broken[: int(rng.integers(0, len(body.rstrip(b"\0")) - 16))]
        else:
            for place in rng.integers(*places, 4):
                broken[place] = int(rng.integers(256))
        path.write_bytes(broken)
        try:
            parts = parts_of(read(path), rows=100)
            assert all(
                part.features is None or np.isfinite(part.features).all()
                for part in parts
            )
        except EvergrowError as error:
            messages.append(str(error))
    assert (
        len(messages) >= 40
    )  # a changed byte may leave a sound file, a cut one does not
    assert all(name in message for message in messages)


def _labels(
    description: dict[str, Any], shard: Shard, source: Source, answers: Any
) -> None:
    answers.put(
        [
            source_from(description).read(shard).labels.tolist(),
            source.read(shard).labels.tolist(),
        ]
    )


def test_a_forked_process_reads_from_a_bucket_on_its_own(
    vectors: Path, s3: str
) -> None:
    upload(vectors, f"{s3}/forked")
    source = read(f"{s3}/forked/b.npz")
    (shard,) = source.shards(9, LARGE)
    source.read(
        shard
    )  # the driver's connections are open by now, and no use to a child
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(
        target=_labels, args=(source.describe(), shard, source, answers)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get() == [["b"] * 5] * 2
