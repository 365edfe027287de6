"""Archives are read like folders; hostile ones are refused before unpacking."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.data.conftest import PNG, Tree, contents_of

from evergrow.core.errors import DataWarning, FileFormatError, ImageError, InputError
from evergrow.data import archives, load_data
from evergrow.data.inputs import read_items, read_parts
from evergrow.data.items import concat_items
from evergrow.data.readers import ARCHIVE_SUFFIXES

pytestmark = pytest.mark.usefixtures("alone")

BOTH = {"train/cat": 6, "train/dog": 5, "test/cat": 2, "test/dog": 3}


def write_archive(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write files into a zip or a tar, compressed by its suffix."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, body in members.items():
                info = zipfile.ZipInfo("placeholder")
                info.filename = name
                archive.writestr(info, body, zipfile.ZIP_DEFLATED)
        return path
    mode = {
        ".gz": "w:gz",
        ".tgz": "w:gz",
        ".bz2": "w:bz2",
        ".tbz2": "w:bz2",
        ".xz": "w:xz",
        ".txz": "w:xz",
    }
    with tarfile.open(path, mode.get(path.suffix, "w")) as archive:
        for name, body in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return path


def pack(root: Path, target: Path, base: str = "") -> Path:
    """Write an archive of a folder, inside of ``base`` if given."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return write_archive(
        target,
        {
            f"{base}{path.relative_to(root).as_posix()}": path.read_bytes()
            for path in files
        },
    )


@pytest.mark.parametrize("suffix", ARCHIVE_SUFFIXES)
@pytest.mark.parametrize("counts", [BOTH, {"cat": 6, "dog": 7}])
def test_an_archive_is_read_like_its_folder(
    suffix: str, counts: dict[str, int], tree: Tree, tmp_path: Path
) -> None:
    root = tree(counts)
    folder = load_data(root, test_size=0)
    data = load_data(pack(root, tmp_path / f"pets{suffix}", base="pets/"), test_size=0)
    assert (data.name, data.layout, data.class_names) == (
        "pets",
        folder.layout,
        folder.class_names,
    )
    assert data.y_train.tolist() == folder.y_train.tolist()
    assert data.y_test.tolist() == folder.y_test.tolist()
    assert data.train.names() == [f"pets/{name}" for name in folder.train.names()]
    assert data.train.items.raw(3) == folder.train.items.raw(3).read_bytes()
    again = pickle.loads(pickle.dumps(data.train))
    assert again.items.take([1]).raw(0) == PNG
    assert again.items.stamp() == data.train.items.stamp()


def test_a_copy_has_the_same_identity_but_another_stamp_and_parts_go_together(
    tree: Tree, tmp_path: Path
) -> None:
    first = pack(tree(BOTH), tmp_path / "pets.zip")
    second = tmp_path / "copy.zip"
    second.write_bytes(first.read_bytes())
    os.utime(second, (1, 1))
    one = load_data(first)
    two = load_data(second)
    assert contents_of(one) == contents_of(two)
    assert one.train.items.stamp() != two.train.items.stamp()
    joined = concat_items([one.train.items, one.test.items])
    assert len(joined) == 16
    assert joined.take([15]).raw(0) == PNG
    assert joined.name(11) == "test/cat/000.png"


def test_tables_and_single_files_in_an_archive(tmp_path: Path) -> None:
    rows = "".join(f"images/{number}.png,{'ab'[number % 2]}\n" for number in range(10))
    members = {"labels.csv": ("\ufeffpath,label\n" + rows).encode()} | {
        f"images/{n}.png": PNG for n in range(10)
    }
    data = load_data(write_archive(tmp_path / "x.zip", members), test_size=0)
    assert (data.layout, data.class_names, len(data.train)) == ("table", ("a", "b"), 10)
    mail = write_archive(
        tmp_path / "mail.zip", {"mail.csv": b"text,label\n" + b"hi,ham\nbuy,spam\n" * 5}
    )
    assert load_data(mail, test_size=0).kind == "text"
    with pytest.raises(InputError, match="must be unpacked to be read as 'parquet'"):
        load_data(write_archive(tmp_path / "table.zip", {"train.parquet": b"x"}))


def test_images_of_an_archive_without_labels(tmp_path: Path) -> None:
    path = write_archive(
        tmp_path / "x.zip",
        {"b.png": PNG, "more/a.png": PNG, "notes.txt": b"x", "__MACOSX/._b.png": b"x"},
    )
    images = read_items(path, "image").items
    assert [images.name(row) for row in range(len(images))] == ["b.png", "more/a.png"]


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
@pytest.mark.parametrize(
    ("name", "match"),
    [
        *(
            (name, "leads out")
            for name in (
                "../evil.png",
                "cat/../../evil.png",
                "/etc/evil.png",
                "..\\evil.png",
            )
        ),
        ("C:\\evil.png", "leads out"),
        ("dog/1.png/2.png", "both a file and a folder"),
    ],
)
def test_names_that_lead_out_or_contradict_are_refused(
    name: str, match: str, suffix: str, tmp_path: Path
) -> None:
    path = write_archive(
        tmp_path / f"slip{suffix}", {"cat/1.png": PNG, "dog/1.png": PNG, name: PNG}
    )
    with pytest.raises(FileFormatError, match=match):
        load_data(path)


def test_links_and_devices_in_archives_are_left_out_and_counted(tmp_path: Path) -> None:
    tar = write_archive(tmp_path / "links.tar", {"cat/1.png": PNG, "dog/1.png": PNG})
    with tarfile.open(tar, "a") as archive:
        for name, kind in (
            ("cat/passwd.png", tarfile.SYMTYPE),
            ("dog/2.png", tarfile.LNKTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type = kind
            entry.linkname = "/etc/passwd"
            archive.addfile(entry)
        entry = tarfile.TarInfo("dog/3.png")
        entry.type = tarfile.CHRTYPE
        archive.addfile(entry)
    with pytest.warns(DataWarning, match="links: 2, special files: 1"):
        data = read_parts(tar)
    assert data.train.labels.tolist() == ["cat", "dog"]
    path = write_archive(tmp_path / "links.zip", {"cat/1.png": PNG, "dog/1.png": PNG})
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("cat/2.png")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.warns(DataWarning, match="links: 1"):
        assert len(read_parts(path).train) == 2


def test_archive_bombs_are_refused_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ROOM", 2**16)
    zeros = bytes(2**22)
    path = write_archive(
        tmp_path / "bomb.zip", {"cat/1.png": zeros, "dog/1.png": zeros}
    )
    with pytest.raises(
        FileFormatError, match="must unpack to at most 100 times its size"
    ):
        load_data(path)
    tar = write_archive(tmp_path / "bomb.tar.gz", {"cat/1.png": zeros})
    before = set(Path(archives.tempfile.gettempdir()).glob("evergrow-*.tar"))
    with pytest.raises(FileFormatError, match="at most 100 times"):
        load_data(tar)
    assert set(Path(archives.tempfile.gettempdir()).glob("evergrow-*.tar")) <= before
    monkeypatch.setattr(archives, "LARGEST_FILE", 100)
    with pytest.raises(FileFormatError, match="must hold files of at most"):
        load_data(write_archive(tmp_path / "large.zip", {"cat/1.png": os.urandom(200)}))
    monkeypatch.setattr(archives, "MOST_FILES", 3)
    with pytest.raises(FileFormatError, match="at most 3 files"):
        load_data(
            write_archive(
                tmp_path / "many.zip", {f"cat/{n}.png": b"x" for n in range(5)}
            )
        )


def crowded_zip(
    path: Path, entries: int, stated: int, *, zip64: bool, name: bytes = b"a"
) -> Path:
    """Write a zip whose end record states another number of entries."""
    entry = (
        struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            20,
            20,
            0,
            0,
            0,
            33,
            0,
            0,
            0,
            len(name),
            0,
            0,
            0,
            0,
            0,
            0,
        )
        + name
    )
    size = entries * len(entry)
    far = struct.pack(
        "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, stated, stated, size, 0
    )
    far += struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    if zip64:
        counts = (0xFFFF, 0xFFFF, 0xFFFFFFFF)
    else:
        counts = (stated & 0xFFFF, stated & 0xFFFF, size)
    end = (far if zip64 else b"") + struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, *counts, 0, 0
    )
    path.write_bytes(entry * entries + end)
    return path


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize(
    ("entries", "stated"), [(1_000_000, 1_000_000), (1_000_000, 1), (40, 60_000)]
)
def test_a_zip_of_a_million_entries_is_refused_before_its_directory_is_parsed(
    entries: int,
    stated: int,
    zip64: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def parse(*_: object) -> None:
        raise AssertionError("the directory was parsed")

    monkeypatch.setattr(archives, "MOST_FILES", 20_000)
    monkeypatch.setattr(archives.zipfile, "ZipFile", parse)
    for name, most in (("crowd.zip", "20,000"), ("crowd.npz", "1,000")):
        with pytest.raises(FileFormatError, match=f"at most {most} files"):
            load_data(crowded_zip(tmp_path / name, entries, stated, zip64=zip64))


def test_a_directory_with_long_names_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_archive(
        tmp_path / "long.zip", {f"cat/{'x' * 200}{n}.png": PNG for n in range(12)}
    )
    monkeypatch.setattr(archives, "MOST_FILES", 12)
    assert len(load_data(path, test_size=0).train) == 12
    monkeypatch.setattr(archives, "MOST_FILES", 11)
    with pytest.raises(FileFormatError, match="at most 11 files"):
        load_data(path)


def test_the_temporary_file_is_deleted_with_its_archive(
    tree: Tree, tmp_path: Path
) -> None:
    data = load_data(pack(tree({"cat": 6, "dog": 7}), tmp_path / "pets.tar.gz"))
    archive = data.train.items.values[0].store
    plain = archive._tree.root / archive._name
    assert plain.exists()
    del data, archive
    assert not plain.exists()


def test_damaged_archives_are_typed_errors(tree: Tree, tmp_path: Path) -> None:
    for suffix in (".zip", ".tar", ".tar.gz"):
        path = pack(
            tree({f"{suffix}cat": 6, f"{suffix}dog": 7}), tmp_path / f"pets{suffix}"
        )
        body = path.read_bytes()
        for damaged in (b"", b"junk" * 40, body[: len(body) // 2]):
            path.write_bytes(damaged)
            with pytest.raises((FileFormatError, InputError)):
                load_data(path)
    path = write_archive(
        tmp_path / "middle.tar", {"cat/1.png": PNG, "cat/2.png": PNG, "dog/1.png": PNG}
    )
    body = path.read_bytes()
    path.write_bytes(body[:1024] + b"\xff" * 300 + body[1324:])  # the second header
    with pytest.raises(FileFormatError, match="intact tar"):
        load_data(path)


def test_a_damaged_image_in_a_zip_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:  # stored
        for name in ("cat/1.png", "dog/1.png"):
            archive.writestr(name, PNG)
    body = path.read_bytes()
    path.write_bytes(body.replace(PNG, PNG[:-1] + b"X", 1))
    reading = read_parts(path)
    with pytest.raises(ImageError, match=r"cat/1\.png cannot be read"):
        reading.train.items.raw(0)
    assert reading.train.items.raw(1) == PNG


def test_encrypted_and_repeated_members_are_counted(tmp_path: Path) -> None:
    path = write_archive(
        tmp_path / "x.zip", {"cat/1.png": PNG, "dog/1.png": PNG, "dog/2.png": PNG}
    )
    with (
        pytest.warns(UserWarning, match="Duplicate"),
        zipfile.ZipFile(path, "a") as archive,
    ):
        archive.writestr("cat/1.png", b"later")
    body = bytearray(path.read_bytes())
    at = body.rindex(b"PK\x01\x02", 0, body.rindex(b"dog/2.png"))
    body[at + 8] |= 1  # the flag of an encrypted file, in the directory
    path.write_bytes(bytes(body))
    with pytest.warns(
        DataWarning,
        match="encrypted files: 1, files replaced by a later one of the same name: 1",
    ):
        data = read_parts(path)
    assert data.train.items.raw(0) == b"later"
    assert len(data.train) == 2


def test_a_zip_entry_is_unpacked_in_bounded_pieces_or_left_out(tmp_path: Path) -> None:
    """Python unpacks bzip2 and LZMA at once: 1 kB that claims 100 bytes took 3 GB."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.png", PNG, zipfile.ZIP_DEFLATED)
        archive.writestr("cat/2.png", bytes(10**8), zipfile.ZIP_BZIP2)
        archive.writestr("dog/1.png", PNG)
        archive.writestr("dog/2.png", bytes(10**6), zipfile.ZIP_LZMA)
    caution = "files neither stored nor deflated: 2"
    with pytest.warns(DataWarning, match=caution):
        data = read_parts(path)
    items = data.train.items
    assert len(items) == 2
    assert [items.raw(row) for row in range(2)] == [PNG, PNG]


@pytest.mark.parametrize("name", ["a/" * 30_000 + "1.png", "a/" + "x" * 5000 + ".png"])
def test_too_long_and_too_deep_names_are_refused(tmp_path: Path, name: str) -> None:
    """A directory of 40 MB of them took five seconds to take apart."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, PNG)
    with pytest.raises(FileFormatError, match="4,096 characters and 64 folders"):
        load_data(path)


def test_archives_inside_are_counted_in_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(PNG)
    (root / "cat" / "more.zip").write_bytes(b"")
    (root / "rest.tar.gz").write_bytes(b"")
    archive = pack(root, tmp_path / "pets.zip")
    for source in (root, archive):
        with pytest.warns(DataWarning, match="archives inside left out: 2; unpack"):
            assert len(read_parts(source).train) == 2


def test_an_archive_of_an_archive_gets_a_clear_word(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "inner.zip").write_bytes(b"")
    packed = pack(tmp_path / "outer", tmp_path / "outer.zip")
    with pytest.raises(
        InputError, match="holds no folder; archives inside left out: 1"
    ):
        read_parts(packed)
