"""Sources over a real S3 protocol equal the local ones byte for byte; wrong buckets and lacking rights are a line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.data.sources.samples import LARGE, bodies, image_set, images_table
from tests.data.sources.test_webdataset import labelled, write_tar
from tests.engine.object_storage import upload

from evergrow.core.errors import DatasetNotFoundError, EngineError
from evergrow.data import Samples, read, source_from
from evergrow.data.storage import Tree, write_file
from evergrow.engine.parquet_out import write_features


def make_folder(root: Path, images: Path) -> str:
    shutil.copytree(images / "classes", root / "set")
    return "set"


def make_tars(root: Path, images: Path) -> str:
    for number in range(3):
        write_tar(root / f"train-{number:03d}.tar", labelled(5 * number, 5))
    return "train-*.tar"


def make_parquet(root: Path, images: Path) -> str:
    pq.write_table(images_table(), root / "train.parquet", row_group_size=4)
    return "train.parquet"


def make_npz(root: Path, images: Path) -> str:
    X = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    np.savez(root / "features.npz", X=X, y=np.arange(50) % 4)
    return "features.npz"


def make_arrow(root: Path, images: Path) -> str:
    image_set(20).save_to_disk(root / "saved", num_shards=2)
    return "saved"


def content(data: Samples) -> object:
    held = bodies(data) if data.items is not None else data.features.tobytes()
    return held, data.names(), data.labels.tolist()


@pytest.mark.parametrize("make", [make_folder, make_tars, make_parquet, make_npz, make_arrow])
def test_the_same_as_on_disk(s3: str, images: Path, tmp_path: Path, make: Callable[[Path, Path], str]) -> None:
    name = make(tmp_path, images)
    address = f"{s3}/{make.__name__}"
    upload(tmp_path, address)
    far, local = read(f"{address}/{name}"), read(tmp_path / name)
    shards = list(far.shards(rows=3, size=LARGE))
    assert shards == list(local.shards(rows=3, size=LARGE))
    assert far.identity() == local.identity()
    worker = source_from(json.loads(json.dumps(far.describe())))
    for shard in reversed(shards):
        assert content(worker.read(shard)) == content(local.read(shard))


def test_results_are_written_to_a_bucket(s3: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for folder in (f"{s3}/out", tmp_path):
        write_features(folder, "part/0.parquet", names=list("abcde"), features=X)
    size = (tmp_path / "part/0.parquet").stat().st_size
    assert Tree(f"{s3}/out").listing() == {"part/0.parquet": size}
    assert Tree(f"{s3}/out").read("part/0.parquet") == (tmp_path / "part/0.parquet").read_bytes()


def test_a_wrong_bucket_and_lacking_rights_are_one_line(s3: str) -> None:
    for address in ("s3://nowhere-at-all/x", "s3://nowhere-at-all/x.npz", f"{s3}/no-such-folder"):
        with pytest.raises(DatasetNotFoundError, match=address.removesuffix(".npz")) as caught:
            list(read(address).shards(5, 5))
        assert "\n" not in str(caught.value)
    with pytest.raises(EngineError, match=r"s3://closed/features\.npz must be within reach, .* credentials") as refused:
        list(read("s3://closed/features.npz").shards(5, 5))
    with pytest.raises(EngineError, match=r"must be within reach, .* credentials"):
        write_file("s3://closed", "a", b"x")
    for said in (str(caught.value), str(refused.value)):
        assert "a-secret-key" not in said
        assert "\n" not in said


def test_keys_given_to_the_source_stay_with_it(
    s3_server: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_npz(tmp_path, tmp_path)
    upload(tmp_path, f"{s3}/keys")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    storage = {"key": "someone", "secret": "a-secret-key", "endpoint_url": s3_server}
    source = read(f"{s3}/keys/features.npz", storage=storage)
    (shard,) = source.shards(50, LARGE)
    assert len(source.read(shard)) == 50
    description = source.describe()
    assert description["options"]["storage"] == {"endpoint_url": s3_server}
    assert "a-secret-key" not in json.dumps(description)


@pytest.mark.slow
def test_a_server_that_nobody_runs_is_one_line(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(EngineError, match=r"s3://data.* must be within reach") as caught:
        list(read(f"{s3}/x.npz", storage=storage).shards(5, 5))
    assert "\n" not in str(caught.value)
