"""Tar shards: indexed by headers, read by ranges, equal to their members."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from tests.data.sources.conftest import Traffic
from tests.data.sources.samples import (
    LARGE,
    Members,
    bodies,
    jpeg,
    labelled,
    labels_of,
    names_of,
    parts_of,
    write_tar,
)
from tests.engine.object_storage import upload

from evergrow.core.errors import (
    DatasetNotFoundError,
    EvergrowError,
    FileFormatError,
    InputError,
)
from evergrow.data import read, source_from


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in (2, 0, 1):
        write_tar(folder / f"train-{number:03d}.tar", labelled(10 * number, 10))
    return folder


def test_samples_are_the_members_in_order(tars: Path) -> None:
    source = read(tars)
    parts = parts_of(source, rows=4)
    assert source.kind == "image"
    assert list(map(len, parts)) == [4, 4, 2] * 3
    assert bodies(*parts) == [jpeg(row) for row in range(30)]
    assert labels_of(parts) == [str(row % 3) for row in range(30)]
    assert names_of(parts)[:2] == [
        "train-000.tar/000000.jpg",
        "train-000.tar/000001.jpg",
    ]


def test_patterns_name_the_tars(tars: Path) -> None:
    for pattern, rows in (("train-*.tar", 30), ("train-00[12].tar", 20)):
        assert sum(map(len, parts_of(read(tars / pattern)))) == rows
    with pytest.raises(
        DatasetNotFoundError, match=r"must hold files like other-\*\.tar, got none"
    ):
        parts_of(read(tars / "other-*.tar"))


def test_a_huge_tar_is_indexed_and_read_by_ranges(
    tmp_path: Path, traffic: Traffic
) -> None:
    members = []
    for row in range(40):
        members += [
            (f"{row}.jpg", np.random.default_rng(row).bytes(100_000)),
            (f"{row}.cls", b"ant"),
        ]
    (tmp_path / "far").mkdir()
    path = write_tar(tmp_path / "far/one.tar", members)
    upload(tmp_path / "far", "memory://tars")
    size = path.stat().st_size
    far = read("memory://tars/one.tar")
    shards = list(far.shards(rows=99, size=1_000_000))
    assert len(shards) == 5
    assert traffic.total < size / 4  # the headers, and what lies around them
    traffic.sizes.clear()
    data = source_from(json.loads(json.dumps(far.describe()))).read(shards[2])
    assert traffic.sizes == [
        shards[2].where["stop"] - shards[2].where["start"]
    ]  # one request for the bytes
    local = read(path)
    assert list(local.shards(rows=99, size=1_000_000)) == shards
    assert bodies(data) == bodies(local.read(shards[2]))
    assert far.identity() == local.identity()


@pytest.mark.parametrize(
    "form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]
)
def test_long_and_non_ascii_names_are_read_in_every_tar_format(
    tmp_path: Path, form: int
) -> None:
    folder = "very/" * (25 if form == tarfile.USTAR_FORMAT else 60)
    keys = [f"{folder}{row}" for row in range(6)] + (
        [] if form == tarfile.USTAR_FORMAT else ["größe"]
    )
    members = [
        part
        for key in keys
        for part in ((f"{key}.png", jpeg(len(key))), (f"{key}.txt", b" bird\n"))
    ]
    parts = parts_of(read(write_tar(tmp_path / "long.tar", members, form)), rows=2)
    assert names_of(parts) == [f"long.tar/{key}.png" for key in keys]
    assert set(labels_of(parts)) == {"bird"}


def test_labels_are_found_by_suffix(tmp_path: Path) -> None:
    body = jpeg(0)
    about = json.dumps({"label": "ant", "species": 7}).encode()
    path = write_tar(
        tmp_path / "a.tar",
        [("1.jpg", body), ("1.json", about), ("1.txt", b"a caption")],
    )
    (shard,) = read(path).shards(9, LARGE)
    assert read(path).read(shard).labels.tolist() == ["ant"]
    chosen = read(path, label_column="species")
    assert chosen.read(shard).labels.tolist() == ["7"]
    assert chosen.identity() != read(path).identity()
    assert labels_of(parts_of(read(path, label_column=".txt"))) == ["a caption"]
    assert parts_of(read(path, labelled=False))[0].labels is None
    with pytest.raises(
        InputError, match=r"json of 1 must have a field 'kind', got 'label', 'species'"
    ):
        read(path, label_column="kind").read(shard)


def test_of_several_images_the_one_with_the_plain_suffix_is_used(
    tmp_path: Path,
) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        [("1.seg.png", b"mask"), ("1.jpg", jpeg(3)), ("1.cls", b"0")],
    )
    assert bodies(*parts_of(read(path))) == [jpeg(3)]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            [("1.jpg", b"x"), ("1.cls", b"0"), ("2.jpg", b"x")],
            "all have a label in .cls or none, but 2 has 'jpg'",
        ),
        (
            [("1.jpg", b"x"), ("2.jpg", b"x"), ("2.cls", b"0")],
            "all have a label in .cls or none, but 2 has 'jpg', 'cls'",
        ),
        (
            [("1.jpg", b"x"), ("2.jpg", b"x"), ("1.cls", b"0")],
            "sample 1 must have an image, got 'cls'; .* consecutive",
        ),
        ([("1.wav", b"x"), ("1.cls", b"0")], "sample 1 must have an image"),
        ([("1.jpg", b"x"), ("1.JPG", b"x")], "one file per suffix"),
        ([("../1.jpg", b"x")], "which leads out"),
        ([("/1.jpg", b"x")], "which leads out"),
        ([], "at least one sample"),
    ],
)
def test_malformed_tars_are_refused(
    tmp_path: Path, members: Members, message: str
) -> None:
    path = write_tar(tmp_path / "bad.tar", members)
    with pytest.raises(EvergrowError, match=message) as caught:
        parts_of(read(path, layout="webdataset"))
    assert "bad.tar" in str(caught.value)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        info = tarfile.TarInfo("1.jpg")
        info.type = kind
        info.linkname = "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(
        FileFormatError,
        match=r"must hold plain files only, got (links|special files): 1\.jpg",
    ):
        parts_of(read(tmp_path / "bad.tar", layout="webdataset"))


def test_a_member_of_impossible_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergrow.data.webdataset.LARGEST_IMAGE", 100)
    path = write_tar(tmp_path / "bad.tar", [("1.jpg", b"x" * 101)])
    with pytest.raises(FileFormatError, match="each of at most"):
        parts_of(read(path, layout="webdataset"))


def test_truncated_tars_are_refused(tars: Path) -> None:
    path = tars / "train-000.tar"
    body = path.read_bytes()
    end = len(body.rstrip(b"\0"))
    for length in [*range(0, end, 509), *range(0, end, 512)]:
        path.write_bytes(body[:length])
        with pytest.raises(EvergrowError, match=r"train-000\.tar must"):
            parts_of(read(path))


def test_compressed_tars_are_refused_with_a_remedy(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("1.jpg"))
    with pytest.raises(
        FileFormatError, match=r"must be a plain tar to be read by ranges, got gzip"
    ):
        parts_of(read(tmp_path / "a.tar", layout="webdataset"))


def test_a_tar_that_changed_since_the_shards_were_made_is_refused(tars: Path) -> None:
    source = read(tars / "train-000.tar")
    shards = list(source.shards(3, LARGE))
    write_tar(tars / "train-000.tar", [("1.jpg", jpeg(0)), ("1.cls", b"0")])
    for shard in shards[1:]:
        with pytest.raises(FileFormatError, match=r"train-000\.tar must"):
            source.read(shard)


def test_control_characters_are_escaped_and_files_without_suffix_ignored(
    tmp_path: Path,
) -> None:
    path = write_tar(tmp_path / "a.tar", [("\x1b[2J.wav", b"x")])
    with pytest.raises(FileFormatError) as caught:
        parts_of(read(path, layout="webdataset"))
    assert str(caught.value).isprintable()
    path = write_tar(
        tmp_path / "b.tar",
        [("README", b"x"), ("1.jpg", jpeg(1)), ("LICENSE", b"x"), ("1.cls", b"7")],
    )
    assert labels_of(parts_of(read(path))) == ["7"]
