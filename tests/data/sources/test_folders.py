"""Image folders and tables as sources: the same shards from disk, memory and S3, and clear refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.data.sources.conftest import Traffic
from tests.data.sources.samples import bodies, jpeg
from tests.engine.object_storage import upload

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    EvergrowError,
    FileFormatError,
    ImageError,
    InputError,
)
from evergrow.data import load_data, read, source_from, sources
from evergrow.data.items import Images

LARGE = 1 << 30


def test_rows_are_those_of_the_ordinary_reader(images: Path) -> None:
    source = read(images / "classes")
    data = [source.read(shard) for shard in source.shards(rows=5, size=LARGE)]
    with pytest.warns(DataWarning, match="fewer than 5"):
        expected = load_data(images / "classes", test_size=0)
    assert source.kind == "image"
    assert [name for part in data for name in part.names()] == [
        expected.train.items.name(row) for row in range(len(expected.train))
    ]
    labels = [expected.class_names[code] for code in expected.y_train]
    assert [label for part in data for label in part.labels.tolist()] == labels
    assert [len(part) for part in data] == [5, 5, 2]
    assert isinstance(data[0].items, Images)  # files on disk are opened by whoever decodes them


def test_shards_do_not_depend_on_what_was_asked_before_and_follow_sizes(images: Path) -> None:
    source = read(images / "classes")
    sizes = [len(body) for shard in source.shards(100, LARGE) for body in bodies(source.read(shard))]
    by_size = list(source.shards(rows=100, size=3 * max(sizes)))
    assert by_size == list(read(images / "classes").shards(rows=100, size=3 * max(sizes)))
    assert all(shard.size <= 3 * max(sizes) for shard in by_size)
    assert sum(shard.rows for shard in by_size) == 12
    assert [shard.number for shard in by_size] == list(range(len(by_size)))
    assert all(shard.rows == 1 for shard in source.shards(rows=100, size=1))


@pytest.mark.parametrize("part", ["classes", "list.csv"])
def test_another_storage_gives_the_same(images: Path, traffic: Traffic, part: str) -> None:
    upload(images, "memory://sets")
    local, far = read(images / part), read(f"memory://sets/{part}")
    assert far.identity() == local.identity()
    assert far.kind == "image"
    shards = list(far.shards(rows=4, size=LARGE))
    assert shards == list(local.shards(rows=4, size=LARGE))
    traffic.sizes.clear()
    worker = source_from(json.loads(json.dumps(far.describe())))
    got, expected = worker.read(shards[1]), local.read(shards[1])
    assert bodies(got) == bodies(expected)
    assert got.names() == expected.names()
    assert got.labels.tolist() == expected.labels.tolist()
    assert traffic.total == shards[1].size == sum(len(body) for body in bodies(got))  # these files, and nothing else


def test_identity_is_of_names_sizes_and_labels_alone(images: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(images / "classes", tmp_path / "moved")
    identity = read(images / "classes").identity()
    assert read(copy).identity() == identity
    (copy / "ant/0.jpg").rename(copy / "ant/9.jpg")
    assert read(copy).identity() != identity
    (copy / "ant/9.jpg").rename(copy / "ant/0.jpg")
    (copy / "ant").rename(copy / "cow")
    assert read(copy).identity() != identity


def test_train_and_test_folders_are_parts(tmp_path: Path) -> None:
    for number, name in enumerate(("train/a/1.jpg", "train/b/1.jpg", "train/b/2.jpg", "test/b/1.jpg")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(jpeg(number))
    names = {
        part: [name for shard in source.shards(9, LARGE) for name in source.read(shard).names()]
        for part in ("train", "test", "all")
        for source in [read(tmp_path, part=part)]
    }
    assert names["test"] == ["test/b/1.jpg"]
    assert names["all"] == [*names["train"], *names["test"]]
    assert len(names["train"]) == 3


def test_images_without_labels_are_found_wherever_they_lie(images: Path, tmp_path: Path) -> None:
    (tmp_path / "deep/down").mkdir(parents=True)
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "deep/down/2.jpg").write_bytes(jpeg(2))
    source = read(tmp_path, labelled=False)
    (shard,) = source.shards(9, LARGE)
    data = source.read(shard)
    assert data.labels is None
    assert data.names() == ["1.jpg", "deep/down/2.jpg"]
    table = read(images / "list.csv", labelled=False)
    assert [table.read(shard).labels for shard in table.shards(99, LARGE)] == [None]


def test_texts_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "mail.csv").write_text('text,label\n"buy, now",spam\nsee you,mail\n"two\nlines",mail\n')
    source = read(tmp_path / "mail.csv")
    data = [source.read(shard) for shard in source.shards(rows=2, size=LARGE)]
    assert source.kind == "text"
    assert [part.items.raw(0) for part in data] == ["buy, now", "two\nlines"]
    assert [part.labels.tolist() for part in data] == [["spam", "mail"], ["mail"]]
    before = source.identity()
    (tmp_path / "mail.csv").write_text('text,label\n"buy, NOW",spam\nsee you,mail\n"two\nlines",mail\n')
    assert read(tmp_path / "mail.csv").identity() != before


def test_an_image_that_went_away_is_one_image_not_the_shard(images: Path, traffic: Traffic) -> None:
    import fsspec

    upload(images / "classes", "memory://sets")
    source = read("memory://sets")
    (shard,) = source.shards(99, LARGE)
    fsspec.filesystem("memory").rm("/sets/bee/1.jpg")
    data = source.read(shard)
    with pytest.raises(ImageError, match=r"image must be a readable file, got bee/1\.jpg"):
        data.items.raw(5)
    assert data.items.take([4, 6]).raw(1) == (images / "classes/bee/2.jpg").read_bytes()
    assert len(data) == 12


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda root: None, InputError, "must hold one folder per class"),
        (lambda root: (root / "a").mkdir(), InputError, "at least one image"),
        (lambda root: (root / "1.jpg").write_bytes(jpeg(0)), InputError, "but 1 images"),
    ],
)
def test_a_folder_without_images_is_refused(tmp_path: Path, make: object, error: type, message: str) -> None:
    make(tmp_path)
    with pytest.raises(error, match=message):
        list(read(tmp_path).shards(5, 5))


def test_addresses_with_nothing_there_are_one_line(images: Path, tmp_path: Path, traffic: Traffic) -> None:
    for address in (tmp_path / "none", tmp_path / "none.csv", "memory://none", "memory://none.csv", "memory://n-*.csv"):
        with pytest.raises(DatasetNotFoundError) as caught:
            list(read(address).shards(5, 5))
        assert "none" in str(caught.value) or "n-*" in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "list.csv").write_text("path,label\nmissing.jpg,a\n")
    with pytest.raises(DatasetNotFoundError, match=r"missing\.jpg"):
        list(read(tmp_path / "list.csv").shards(5, 5))


def test_a_table_on_a_storage_leads_to_no_file_outside_its_folder(traffic: Traffic) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe_file("/secret.jpg", jpeg(0))
    system.pipe_file("/sets/list.csv", b"path,label\n../secret.jpg,a\n")
    with pytest.raises(DatasetNotFoundError, match="secret"):
        list(read("memory://sets/list.csv").shards(5, 5))


def test_an_image_file_of_impossible_size_is_refused(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGEST_IMAGE", 100)
    with pytest.raises(FileFormatError, match="must be an image of at most"):
        list(read(images / "classes").shards(5, LARGE))


def test_a_shard_that_contradicts_itself_is_refused(images: Path) -> None:
    from dataclasses import replace

    source = read(images / "classes")
    shard = next(iter(source.shards(5, LARGE)))
    with pytest.raises(FileFormatError, match="must name 6 files"):
        source.read(replace(shard, rows=6))


def test_the_bundled_layouts_of_folders_are_all_that_is_tried(images: Path) -> None:
    with pytest.raises(EvergrowError, match="layout must be one of"):
        read(images, layout="folders")
    assert np.unique([shard.rows for shard in read(images / "classes").shards(1, LARGE)]).tolist() == [1]


def test_lists_on_disk_find_their_images(images: Path, tmp_path: Path, traffic: Traffic) -> None:
    root = shutil.copytree(images, tmp_path / "set")
    files = sorted(root.rglob("*.jpg"))
    (root / "splits").mkdir()
    (root / "splits/all.txt").write_text("".join(f"{file.relative_to(root)} {file.parent.name}\n" for file in files))
    source = read(root / "splits/all.txt")
    data = [source_from(source.describe()).read(shard) for shard in source.shards(5, LARGE)]
    assert [body for part in data for body in bodies(part)] == [file.read_bytes() for file in files]
    assert data[0].labels.tolist() == ["ant"] * 4 + ["bee"]
    upload(root / "splits", "memory://lists")
    with pytest.raises(InputError, match=r"all\.txt must be a table such as \.csv in a storage"):
        list(read("memory://lists/all.txt").shards(5, LARGE))


def test_lines_without_labels_are_texts(tmp_path: Path) -> None:
    (tmp_path / "mail.txt").write_text("buy now\n\nsee you\n")
    source = read(tmp_path / "mail.txt", labelled=False)
    (shard,) = source.shards(5, LARGE)
    data = source.read(shard)
    assert source.kind == "text"
    assert data.labels is None
    assert [data.items.raw(row) for row in range(2)] == ["buy now", "see you"]


@pytest.mark.parametrize("far", [False, True])
def test_metadata_beside_images_are_read_as_the_hub_means_them(tmp_path: Path, traffic: Traffic, far: bool) -> None:
    for row in range(3):
        (tmp_path / f"{row}.jpg").write_bytes(jpeg(row))
    (tmp_path / "metadata.csv").write_text("file_name,label\n0.jpg,a\n1.jpg,b\n2.jpg,a\n")
    upload(tmp_path, "memory://hub")
    source = read("memory://hub" if far else tmp_path)
    (shard,) = source.shards(9, LARGE)
    assert source.read(shard).labels.tolist() == ["a", "b", "a"]
    assert bodies(source.read(shard)) == [jpeg(row) for row in range(3)]


def test_hidden_files_are_no_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.eye(2), y=np.arange(2))
    np.savez(tmp_path / ".b.npz", X=np.eye(3), y=np.arange(3))
    assert list(read(tmp_path).files) == ["a.npz"]


def test_labels_that_no_terminal_shows_have_an_identity_too(tmp_path: Path) -> None:
    (tmp_path / "mail.jsonl").write_text('{"text": "a", "label": "x\\ud800"}\n{"text": "b\\udfff", "label": "y"}\n')
    source = read(tmp_path / "mail.jsonl")
    assert len(source.identity()) == 32
    assert json.loads(json.dumps([shard.where for shard in source.shards(5, LARGE)]))
