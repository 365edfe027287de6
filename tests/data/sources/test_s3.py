"""Sources in S3 equal local ones byte for byte; access errors take one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fsspec.config
import pytest
from tests.data.sources.samples import (
    FILES,
    LARGE,
    bodies,
    image_set,
    labelled,
    write_tar,
)
from tests.engine.object_storage import upload

from evergrow.core.errors import DatasetNotFoundError, EngineError
from evergrow.data import Samples, read, source_from


def content(data: Samples) -> object:
    if data.items is not None:
        held = bodies(data)
    else:
        held = data.features.tobytes()
    return held, data.names(), data.labels.tolist()


SETS: dict[str, Callable[[Path], object]] = {
    **FILES,
    "*.tar": lambda path: [
        write_tar(path.with_name(f"{n}.tar"), labelled(5 * n, 5)) for n in range(3)
    ],
    "saved": lambda path: image_set(20).save_to_disk(path, num_shards=2),
    "classes": lambda path: None,
}


@pytest.mark.parametrize("name", SETS)
def test_samples_in_s3_equal_those_on_disk(
    s3: str, images: Path, tmp_path: Path, name: str
) -> None:
    root = images if name == "classes" else tmp_path
    SETS[name](root / name)
    address = f"{s3}/{list(SETS).index(name)}"
    upload(root, address)
    far = read(f"{address}/{name}")
    local = read(root / name)
    shards = list(far.shards(rows=3, size=LARGE))
    assert shards == list(local.shards(rows=3, size=LARGE))
    assert far.identity() == local.identity()
    worker = source_from(json.loads(json.dumps(far.describe())))
    for shard in reversed(shards):
        assert content(worker.read(shard)) == content(local.read(shard))


def test_missing_buckets_and_rights_are_errors_in_one_line(s3: str) -> None:
    for address in (
        "s3://nowhere-at-all/x",
        "s3://nowhere-at-all/x.npz",
        f"{s3}/no-such-folder",
    ):
        with pytest.raises(
            DatasetNotFoundError, match=address.removesuffix(".npz")
        ) as caught:
            list(read(address).shards(5, 5))
        assert "\n" not in str(caught.value)
    with pytest.raises(
        EngineError,
        match=r"s3://closed/features\.npz must be within reach, .* credentials",
    ) as refused:
        list(read("s3://closed/features.npz").shards(5, 5))
    for message in (str(caught.value), str(refused.value)):
        assert "a-secret-key" not in message
        assert "\n" not in message


def test_settings_of_fsspec_are_used(
    s3_server: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILES["a.npz"](tmp_path / "a.npz")
    upload(tmp_path, f"{s3}/keys")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    settings = {"key": "someone", "secret": "a-secret-key", "endpoint_url": s3_server}
    monkeypatch.setitem(
        fsspec.config.conf, "s3", settings
    )  # as FSSPEC_S3_KEY and so on set them
    source = read(f"{s3}/keys/a.npz")
    (shard,) = source.shards(60, LARGE)
    assert len(source.read(shard)) == 60
    assert "a-secret-key" not in json.dumps(source.describe())


@pytest.mark.slow
def test_an_unreachable_server_is_an_error_in_one_line(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "endpoint_url": "http://127.0.0.1:9",
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    monkeypatch.setitem(fsspec.config.conf, "s3", settings)
    with pytest.raises(
        EngineError, match=r"s3://data.* must be within reach"
    ) as caught:
        list(read(f"{s3}/x.npz").shards(5, 5))
    assert "\n" not in str(caught.value)
