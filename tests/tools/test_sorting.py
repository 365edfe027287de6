"""Sorting images loses, doubles and overwrites nothing, and can be undone."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import killed_at, needs_fork

from evergrow.core.errors import (
    BusyError,
    DatasetNotFoundError,
    FileFormatError,
    ImageError,
    InputError,
    PathError,
)
from evergrow.core.files import locked
from evergrow.learner.predictions import Predictions
from evergrow.tools import file_moves, sorting
from evergrow.tools.file_moves import folder_name, folder_names
from evergrow.tools.sorting import (
    TABLE,
    plan_sort,
    read_sort_table,
    sort_folder,
    undo_sort,
)

HOWS = ("move", "copy", "link")


class Reader:
    """Stands in for a model: a file says itself what it shows, as ``cat 0.9``."""

    head_ = SimpleNamespace(predict_proba=None)

    def __init__(self, *classes: str) -> None:
        self.state_ = SimpleNamespace(
            kind="image",
            classes=np.array(classes or ("cat", "dog")),
            calibration=SimpleNamespace(n=0),
        )

    def predictions(
        self, items: Any, *, false_alarm: float | None, on_error: str = "raise"
    ) -> Predictions:
        values = []
        rows = []
        failures = []
        unknown = []
        for row in range(len(items)):
            try:
                raw = items.raw(row)
                text = raw.decode() if isinstance(raw, bytes) else raw.read_text()
                words = text.split(",")
                sure = float(words[1])
                likely = [
                    sure if name == words[0] else 0.0 for name in self.state_.classes
                ]
                unknown.append(words[0] == "strange")
            except (OSError, ValueError, IndexError):
                if on_error == "raise":
                    raise ImageError("no image") from None
                failures.append((items.name(row), "no image"))
                continue
            values.append(likely)
            rows.append(row)
        if not rows:
            raise ImageError("none can be read")
        found = {
            "novelty": np.zeros(len(rows)),
            "unknown": np.array(unknown),
            "threshold": np.zeros(len(rows)),
        }
        return Predictions(
            self.state_.classes,
            np.array(values),
            "probability",
            np.array(rows),
            tuple(failures),
            **found,
        )


FILES = {
    "1.png": "cat,0.9",
    "a/1.png": "cat,0.95",
    "a/IMG.png": "dog,0.99",
    "b/img.png": "dog,1.0",
    "b/unsure.jpg": "dog,0.5",
    "b/strange.jpg": "strange,1",
    "broken.png": "x",
}
SORTED = {
    "cat/1.png": "cat,0.9",
    "cat/1-2.png": "cat,0.95",
    "dog/IMG.png": "dog,0.99",
    "dog/img-2.png": "dog,1.0",
    "unsure/unsure.jpg": "dog,0.5",
    "unknown/strange.jpg": "strange,1",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        os.utime(root / name, ns=(10**18, 10**18 + len(name)))
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write(
        tmp_path / "photos",
        {**FILES, "notes.txt": "no image", ".hidden/h.png": "cat,1"},
    )


def tree(root: Path) -> dict[str, Any]:
    """Return everything below a folder: bytes, times, links and folders."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = (
                (path.read_text(), path.stat().st_mtime_ns) if path.is_file() else None
            )
    return found


def texts(root: Path) -> dict[str, str]:
    """Return what the files below a folder hold, links followed; the table left out."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and path.name != TABLE
    }


@pytest.mark.parametrize("how", HOWS)
def test_every_image_goes_to_its_folder_and_back(
    photos: Path, tmp_path: Path, how: str
) -> None:
    before = tree(tmp_path)
    out = tmp_path / "out"
    rows = sort_folder(Reader(), photos, out, how)
    assert texts(out) == SORTED
    assert {Path(row.file).name: row.note for row in rows if not row.destination} == {
        "broken.png": "no image"
    }
    left = {"broken.png", "notes.txt", ".hidden/h.png"}
    assert set(texts(photos)) == (left if how == "move" else {*FILES, *left})
    for name in SORTED:
        assert (out / name).is_symlink() == (how == "link")
        assert len(str((out / name).stat().st_mtime_ns)) == 19  # the time that it had
    with open(out / TABLE, newline="") as file:
        table = {
            os.path.relpath(row["file"], photos): row for row in csv.DictReader(file)
        }
    assert table.keys() == FILES.keys()
    assert (table["a/1.png"]["answer"], table["a/1.png"]["probability"]) == (
        "cat",
        "0.95",
    )
    assert (table["b/unsure.jpg"]["answer"], table["b/unsure.jpg"]["note"]) == (
        "dog",
        "unsure",
    )
    assert table["b/strange.jpg"]["note"].startswith("unknown, most like")
    assert (
        table["b/strange.jpg"]["answer"],
        table["b/strange.jpg"]["probability"],
    ) == ("", "")
    after = tree(tmp_path)
    assert [row.destination for row in sort_folder(Reader(), photos, out, how)] == [
        ""
    ]  # a second time: only what is broken
    assert tree(tmp_path).keys() == after.keys()
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before


def test_a_plan_touches_nothing(photos: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    rows = plan_sort(Reader(), photos, tmp_path / "out", unknown="other", least=0.92)
    assert tree(tmp_path) == before
    groups = {os.path.relpath(row.file, photos): row.group for row in rows}
    assert groups["1.png"] == groups["b/unsure.jpg"] == "unsure"
    assert groups["b/strange.jpg"] == "other"
    assert groups["broken.png"] == ""


def test_new_images_are_added_and_classes_keep_their_folders(
    photos: Path, tmp_path: Path
) -> None:
    before = tree(tmp_path)
    out = tmp_path / "out"
    sort_folder(Reader("cat", "dog", "dog/"), photos, out, "copy")
    write(
        photos, {"new.png": "CAT,1", "c/1.png": "cat,1", "1.png": "cat,0.901"}
    )  # the last one is another by now
    rows = sort_folder(Reader("CAT", "cat", "dog", "dog/"), photos, out, "copy")
    assert {row.destination for row in rows} == {
        "CAT-2/new.png",
        "cat/1-3.png",
        "cat/1-4.png",
        "",
    }
    assert texts(out) == {
        **SORTED,
        "CAT-2/new.png": "CAT,1",
        "cat/1-3.png": "cat,0.901",
        "cat/1-4.png": "cat,1",
    }
    (kept,) = undo_sort(out / TABLE)
    assert (kept.destination, kept.note) == (
        "cat/1.png",
        "it was changed, or its original is gone",
    )
    assert before.keys() - tree(tmp_path).keys() == set()


# -- archives --------------------------------------------------------------------------


def packed(photos: Path) -> Path:
    """Return a zip of the files, with a file in it that is no plain image."""
    archive = photos.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for name in (*FILES, "notes.txt", ".hidden/h.png"):
            file.write(photos / name, name)
    return archive


def test_an_archive_is_sorted_by_copies_and_undone(
    photos: Path, tmp_path: Path
) -> None:
    archive = packed(photos)
    before = tree(photos)
    out = tmp_path / "out"
    rows = sort_folder(Reader(), archive, out, "copy")
    assert texts(out) == SORTED
    assert [Path(row.file).name for row in rows if not row.destination] == [
        "broken.png"
    ]
    again = sort_folder(Reader(), archive, out, "copy")
    assert [row.destination for row in again] == [""]
    assert texts(out) == SORTED
    (out / "cat" / "1.png").write_text("changed")
    (kept,) = undo_sort(out / TABLE)
    assert (kept.destination, kept.note) == ("cat/1.png", "it was changed")
    assert texts(out) == {"cat/1.png": "changed"}
    assert tree(photos) == before


def test_a_killed_sort_of_an_archive_goes_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = packed(photos)
    out = tmp_path / "out"
    calls = []

    def fail_late(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        file_moves.put_bytes(*arguments)

    monkeypatch.setattr(sorting, "put_bytes", fail_late)
    with pytest.raises(PathError, match="the same command goes on"):
        sort_folder(Reader(), archive, out, "copy")
    assert len(texts(out)) == 2
    sort_folder(Reader(), archive, out, "copy")
    assert texts(out) == SORTED


@pytest.mark.parametrize("how", ["move", "link"])
def test_files_cannot_be_moved_out_of_an_archive(
    photos: Path, tmp_path: Path, how: str
) -> None:
    with pytest.raises(InputError, match="can only be copied"):
        sort_folder(Reader(), packed(photos), tmp_path / "out", how)
    assert not (tmp_path / "out").exists()


def test_without_their_archive_copies_stay(photos: Path, tmp_path: Path) -> None:
    archive = packed(photos)
    out = tmp_path / "out"
    sort_folder(Reader(), archive, out, "copy")
    archive.unlink()
    assert len(undo_sort(out / TABLE)) == len(SORTED)
    assert texts(out) == SORTED


def test_skipped_files_wait_for_a_later_call(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "move", skip={"1.png", "b/img.png"})
    assert (photos / "1.png").exists()
    sort_folder(Reader(), photos, out, "move")
    assert sorted(texts(out).values()) == sorted(SORTED.values())


# -- names and folders of strangers ----------------------------------------------------

STRANGE = [
    "../x",
    "..",
    ".",
    "",
    "/etc",
    "a/b",
    "a\\b",
    "CON",
    "con.txt",
    "nul",
    "LPT1 .x",
    "Ant",
    "ant",
    "ANT",
    "x.",
    "x ",
    " x",
    "a\x00b",
    "\x1b[2J",
    "-rf",
    "=1+1",
    "sorted.csv",
    "unknown",
    "Unsure",
    "n" * 400,
    "模" * 200,
    "é",
    "e\u0301",
    "a:b",
    "~",
    "$HOME",
    "*",
    "\u202egnp",
    "\udce9",
]


def test_names_of_classes_are_folders_of_their_own() -> None:
    found = folder_names(STRANGE, ["unknown", "unsure", TABLE])
    assert found.keys() == set(STRANGE)
    assert (
        len(
            {
                file_moves.same_name(name)
                for name in [*found.values(), "unknown", "unsure", TABLE]
            }
        )
        == len(STRANGE) + 3
    )
    for name in found.values():
        assert name == folder_name(name) or name.rstrip("0123456789").endswith("-"), (
            name
        )
        assert os.path.basename(name) == name
        assert name not in (".", "..", "")
        assert name.isprintable()
        assert len(name.encode()) <= 255
        assert not name.endswith((".", " "))
        assert name.partition(".")[0].strip().lower() not in ("con", "nul", "lpt1")


@pytest.mark.parametrize("name", STRANGE)
def test_a_class_of_any_name_stays_inside(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "photos", {"1.png": "", "2.png": "cat,1"})
    before = tree(tmp_path)
    reader = Reader(name, "cat")

    def predictions(items: Any, *, false_alarm: float, on_error: str) -> Predictions:
        return Predictions(
            reader.state_.classes,
            np.array([[1.0, 0], [0, 1]]),
            "probability",
            np.arange(2),
        )

    monkeypatch.setattr(reader, "predictions", predictions, raising=False)
    (first, second) = sort_folder(reader, tmp_path / "photos", tmp_path / "out", "move")
    folders = folder_names([name, "cat"], ["unknown", "unsure", TABLE])
    assert first.destination == f"{folders[str(reader.state_.classes[0])]}/1.png"
    assert second.destination == "cat/2.png"
    assert set(texts(tmp_path / "out")) == {first.destination, second.destination}
    assert undo_sort(tmp_path / "out" / TABLE) == []
    assert tree(tmp_path) == before


def test_links_in_the_folder_are_left_alone(photos: Path, tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", {"e.png": "cat,1"})
    (photos / "file.png").symlink_to(elsewhere / "e.png")
    (photos / "folder").symlink_to(elsewhere)
    (photos / "circle").symlink_to(photos)
    (photos / "nowhere.png").symlink_to("gone")
    os.mkfifo(photos / "pipe.png")
    before = tree(elsewhere)
    rows = sort_folder(Reader(), photos, tmp_path / "out", "move")
    assert texts(tmp_path / "out") == SORTED
    assert {Path(row.file).name for row in rows if not row.destination} == {
        "broken.png",
        "file.png",
    }
    assert tree(elsewhere) == before
    assert (photos / "file.png").is_symlink()


@pytest.mark.parametrize("name", ["cat", "unknown", TABLE])
@pytest.mark.parametrize("kind", ["link", "file", "nowhere"])
def test_links_and_files_in_the_place_of_folders_are_refused(
    photos: Path, tmp_path: Path, name: str, kind: str
) -> None:
    elsewhere = write(tmp_path / "elsewhere", {"e.txt": "mine"})
    out = tmp_path / "out"
    out.mkdir()
    if kind == "file":
        (out / name).write_text("mine")
    else:
        (out / name).symlink_to(elsewhere if kind == "link" else "gone")
    before = tree(tmp_path)
    with pytest.raises((InputError, FileFormatError, OSError), match=f"{name}"):
        sort_folder(Reader(), photos, out, "move")
    after = tree(tmp_path)
    assert {key: value for key, value in after.items() if key not in before} == {}
    assert after == before


def test_the_folder_to_sort_into_may_lie_among_the_images(photos: Path) -> None:
    before = tree(photos)
    for _ in range(2):
        sort_folder(Reader(), photos, photos / "out", "copy")
        assert texts(photos / "out") == SORTED
    undo_sort(photos / "out" / TABLE)
    assert tree(photos) == before


@pytest.mark.parametrize(
    ("folder", "out", "settings", "message"),
    [
        ("none", "out", {}, "No folder or archive 'none' here"),
        ("photos", "photos", {}, "holds the images themselves"),
        ("photos", "no/out", {}, "must be a folder, or a new one"),
        ("photos", "photos/1.png", {}, "must be a folder, or a new one"),
        ("photos", "out", {"unknown": "../x"}, "cannot be the name of a folder"),
        ("photos", "out", {"unknown": "Unsure"}, "cannot be the name of a folder"),
    ],
)
def test_what_makes_no_sense_is_refused(
    photos: Path,
    tmp_path: Path,
    folder: str,
    out: str,
    settings: dict,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    with pytest.raises((InputError, DatasetNotFoundError), match=message):
        sort_folder(Reader(), folder, out, "move", **settings)
    assert tree(tmp_path) == before


def test_one_process_sorts_into_a_folder(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out"), pytest.raises(BusyError):
        sort_folder(Reader(), photos, tmp_path / "out", "move")


def test_nothing_is_overwritten(photos: Path, tmp_path: Path) -> None:
    out = write(
        tmp_path / "out",
        {"cat/1.png": "mine", "cat/1-2.png": "mine too", "dog/img.png": "mine as well"},
    )
    before = tree(tmp_path)
    sort_folder(Reader(), photos, out, "move")
    found = texts(out)
    assert {name: found[name] for name in ("cat/1.png", "cat/1-2.png", "dog/img.png")} == {
        "cat/1.png": "mine", "cat/1-2.png": "mine too", "dog/img.png": "mine as well",
    }  # fmt: skip
    assert found["cat/1-3.png"] == "cat,0.9"
    undo_sort(out / TABLE)
    assert tree(tmp_path) == before


def test_files_that_come_or_go_meanwhile(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(out: Path) -> Any:
        (photos / "1.png").unlink()
        write(out, {"cat/1-2.png": "another"})
        return scratch_folder(out)

    scratch_folder = sorting.scratch_folder
    monkeypatch.setattr(sorting, "scratch_folder", meanwhile)
    rows = {
        os.path.relpath(row.file, photos): row
        for row in sort_folder(Reader(), photos, tmp_path / "out", "move")
    }
    assert (rows["1.png"].destination, rows["1.png"].note) == (
        "",
        "it is no longer there",
    )
    assert "another file is at" in rows["a/1.png"].note
    assert (photos / "a/1.png").read_text() == "cat,0.95"
    assert (tmp_path / "out/cat/1-2.png").read_text() == "another"
    monkeypatch.undo()
    assert {
        row.destination
        for row in sort_folder(Reader(), photos, tmp_path / "out", "move")
    } == {"", "cat/1.png"}


@pytest.mark.parametrize("how", ["move", "copy"])
def test_another_disk_and_one_without_hard_links(
    photos: Path, tmp_path: Path, how: str, monkeypatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    before = tree(tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    sort_folder(Reader(), photos, tmp_path / "out", how)
    assert texts(tmp_path / "out") == SORTED
    assert undo_sort(tmp_path / "out" / TABLE) == []
    assert tree(tmp_path) == before


@pytest.mark.parametrize("room", [0, 1, 4])
def test_a_full_disk_loses_nothing_and_is_gone_on_from(
    photos: Path, tmp_path: Path, monkeypatch, room: int
) -> None:
    original = shutil.copy2
    done = []

    def copy(source: Any, target: Any, **settings: Any) -> None:
        if len(done) == room:
            Path(target).write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(source)
        original(source, target, **settings)

    before = texts(photos)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy2", copy)
        with pytest.raises(
            PathError, match=rf"No space left on device: {room} of 6 files are sorted"
        ):
            sort_folder(Reader(), photos, out, "copy")
    assert texts(photos) == before
    assert texts(out).items() <= SORTED.items()
    assert len(texts(out)) == room
    sort_folder(Reader(), photos, out, "copy")
    assert texts(out) == SORTED


def test_a_folder_that_may_only_be_read_keeps_its_files(
    photos: Path, tmp_path: Path, monkeypatch
) -> None:
    unlink = os.unlink

    def refuse(path: Any, **settings: Any) -> None:
        if str(photos / "a") in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, **settings)

    monkeypatch.setattr(os, "unlink", refuse)
    rows = sort_folder(Reader(), photos, tmp_path / "out", "move")
    assert {row.note for row in rows if f"{os.sep}a{os.sep}" in row.file} == {
        "Permission denied"
    }
    assert (photos / "a/1.png").read_text() == "cat,0.95"
    assert "cat/1-2.png" not in texts(tmp_path / "out")


# -- kills -----------------------------------------------------------------------------


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("disk", ["the same", "another"])
@pytest.mark.parametrize("how", HOWS)
def test_a_sort_killed_at_any_moment_can_be_finished_or_undone(
    photos: Path, tmp_path: Path, how: str, disk: str, monkeypatch
) -> None:
    if disk == "another":
        monkeypatch.setattr(os, "link", another_disk)
    moment = 0
    for moment in range(2000):
        place = tmp_path / f"{moment}"
        images = Path(shutil.copytree(photos, place / "photos"))
        out = place / "out"
        before = tree(place)
        killed = killed_at(moment, partial(sort_folder, Reader(), images, out, how))
        there = [*texts(images).values(), *texts(out).values()]
        assert set(there) >= set(FILES.values()), "something is lost"
        if moment // 2 % 2:  # taken back at once
            if (out / TABLE).is_file():
                assert undo_sort(out / TABLE) == []
            else:
                shutil.rmtree(
                    out, ignore_errors=True
                )  # nothing but an empty folder and leftovers of the table
            assert tree(place) == before
        else:  # or completed
            sort_folder(Reader(), images, out, how)
            assert texts(out) == SORTED, "something is doubled or missing"
            assert sorted(set(os.listdir(out))) == [
                "cat",
                "dog",
                TABLE,
                "unknown",
                "unsure",
            ]
            undone = killed_at(moment, partial(undo_sort, out / TABLE))
            if undone and out.is_dir() and os.listdir(out):
                assert undo_sort(out / TABLE) == []
            assert not out.is_dir() or os.listdir(out) == []
            assert texts(images) == {
                name: value[0] for name, value in tree(images).items() if value
            }
            assert {name for name in tree(place) if not name.startswith("out")} == set(
                before
            )
        shutil.rmtree(place)
        if not killed:
            break
    assert 40 < moment < 1999


# -- hostile tables --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cat/1.png", "../1.png"),
        ("cat/1.png", "cat/../../1.png"),
        ("cat/1.png", "/tmp/1.png"),
        ("cat/1.png", "cat/deep/1.png"),
        ("cat/1.png", "cat\\..\\1.png"),
        ("cat/1.png", "cat/\x1b.png"),
        ("a/1.png", "a/authorized_keys"),
        ("a/1.png", "a/../1.png"),
        ("move", "delete"),
        ("done", "perhaps"),
        ("0.9", "much"),
        ("file,answer", "name,answer"),
        ('"', ""),
        ("\n", '"\n'),
    ],
)
def test_a_table_of_a_stranger_is_refused_whole(
    photos: Path, tmp_path: Path, old: str, new: str
) -> None:
    write(photos, {"a,b.png": "cat,1"})
    sort_folder(Reader(), photos, tmp_path / "out", "move")
    table = tmp_path / "out" / TABLE
    body = table.read_text()
    assert old in body
    table.write_text(body.replace(old, new))
    before = tree(tmp_path)
    with pytest.raises(
        FileFormatError, match=r"sorted\.csv is not a table of a sort, or was damaged"
    ):
        undo_sort(table)
    assert tree(tmp_path) == before


def test_a_table_cut_at_any_byte_moves_nothing_wrong(
    photos: Path, tmp_path: Path
) -> None:
    sort_folder(Reader(), photos, tmp_path / "out", "copy")
    table = tmp_path / "out" / TABLE
    body = table.read_bytes()
    originals = texts(photos)
    for end in range(0, len(body), 7):
        table.parent.mkdir(exist_ok=True)  # which goes with what was undone
        table.write_bytes(body[:end])
        with suppress(FileFormatError):
            undo_sort(table)
        assert texts(photos) == originals


def test_what_was_changed_since_stays_and_stays_listed(
    photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "move")
    (out / "cat/1.png").unlink()
    write(photos, {"a/IMG.png": "another"})
    kept = {row.destination: row.note for row in undo_sort(out / TABLE)}
    assert kept.keys() == {"cat/1.png", "dog/IMG.png"}
    assert kept["cat/1.png"] == "it is no longer there"
    assert "another file is at" in kept["dog/IMG.png"]
    assert texts(out) == {"dog/IMG.png": "dog,0.99"}
    assert {row.destination for row in read_sort_table(out / TABLE)} == kept.keys()
    (photos / "a/IMG.png").unlink()
    (kept_again,) = undo_sort(out / TABLE)
    assert kept_again.destination == "cat/1.png"
    assert (photos / "a/IMG.png").read_text() == "dog,0.99"


# -- the only copy ---------------------------------------------------------------------

BY_CLASS = {
    f"{name}/{number}.png": f"{name},0.9{number}"
    for name in ("cat", "dog")
    for number in range(3)
}


def test_undo_keeps_files_of_a_folder_renamed_to_the_original(tmp_path: Path) -> None:
    photos = write(tmp_path / "photos", BY_CLASS)
    sort_folder(Reader(), photos, tmp_path / "out", "copy")
    shutil.rmtree(photos)
    (tmp_path / "out").rename(photos)
    kept = undo_sort(photos / TABLE)
    assert texts(photos) == BY_CLASS
    assert {row.destination for row in kept} == BY_CLASS.keys()


def test_undo_keeps_moved_files_of_a_folder_renamed_to_the_original(
    tmp_path: Path,
) -> None:
    photos = write(tmp_path / "photos", BY_CLASS)
    sort_folder(Reader(), photos, tmp_path / "out", "move")
    shutil.rmtree(photos)
    (tmp_path / "out").rename(photos)
    assert undo_sort(photos / TABLE) == []
    assert tree(photos).keys() == {*BY_CLASS, "cat", "dog"}
    assert texts(photos) == BY_CLASS


@pytest.mark.parametrize("how", ["move", "copy"])
@pytest.mark.parametrize("linked", ["photos", "photos/cat", "a file"])
def test_undo_keeps_files_behind_a_link_back(
    tmp_path: Path, how: str, linked: str
) -> None:
    photos = write(tmp_path / "photos", BY_CLASS)
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, how)
    if linked == "a file":
        (photos / "cat/0.png").unlink(missing_ok=True)
        (photos / "cat/0.png").symlink_to(out / "cat/0.png")
    else:
        shutil.rmtree(tmp_path / linked)
        (tmp_path / linked).symlink_to(out / Path(linked).relative_to("photos"))
    kept = undo_sort(out / TABLE)
    assert kept
    assert set(texts(out).values()) | set(texts(photos).values()) == set(
        BY_CLASS.values()
    )
    for row in kept:
        assert (out / row.destination).read_text() == BY_CLASS[row.destination]


@pytest.mark.parametrize("linked", [False, True])
def test_resuming_a_move_onto_itself_keeps_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    photos = write(tmp_path / "photos", BY_CLASS)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(sorting, "put_file", disk_full)
        with pytest.raises(PathError):
            sort_folder(Reader(), photos, out, "move")
    assert {row.state for row in read_sort_table(out / TABLE)} == {"planned"}
    if linked:
        for name in ("cat", "dog"):
            shutil.rmtree(out / name, ignore_errors=True)
            (photos / name).rename(out / name)
        photos.rmdir()
        photos.symlink_to(out)
        rows = sort_folder(Reader(), tmp_path, out, "move")
    else:
        (out / TABLE).rename(photos / TABLE)
        rows = sort_folder(Reader(), photos / "cat", photos, "move")
    assert not any(row.destination for row in rows)
    assert texts(photos) == BY_CLASS


def another_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def disk_full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("how", ["move", "copy"])
def test_one_entry_is_no_copy_of_itself(tmp_path: Path, how: str) -> None:
    root = write(tmp_path, {"cat/1.png": "cat,1"})
    (root / "link").symlink_to(root / "cat")
    with pytest.raises(FileExistsError):
        file_moves.put_file(root / "link/1.png", root / "cat/1.png", how)
    with pytest.raises(FileExistsError):
        file_moves.put_file(root / "cat/1.png", root / "cat/1.png", how)
    assert not file_moves.holds(root / "link/1.png", root / "cat/1.png", how)
    assert texts(root / "cat") == {"1.png": "cat,1"}


def test_names_that_differ_in_case_are_one_entry_where_case_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"IMG.png": "cat,1"})
    os.link(tmp_path / "IMG.png", tmp_path / "img.png")
    pair = (tmp_path / "IMG.png", tmp_path / "img.png")
    assert file_moves.holds(*pair, "move")
    listed = os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda folder: [n for n in listed(folder) if n != "img.png"]
    )
    assert file_moves.same_entry(*pair)
    assert not file_moves.holds(*pair, "move")


def test_a_hard_link_with_two_names_is_undone(photos: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "copy")
    for row in read_sort_table(out / TABLE):
        if row.destination:
            (out / row.destination).unlink()
            os.link(row.file, out / row.destination)
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before


def test_a_copy_of_the_same_size_and_times_but_other_content_stays(
    photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "copy")
    copy = out / "cat/1.png"
    assert file_moves.holds(photos / "1.png", copy, "copy")
    times = copy.stat()
    copy.write_text("cat,0.8")
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    (kept,) = undo_sort(out / TABLE)
    assert kept.destination == "cat/1.png"
    assert copy.read_text() == "cat,0.8"


# -- two file systems ------------------------------------------------------------------


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than that of ``tmp_path``."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system: /dev/shm")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.mark.parametrize("how", HOWS)
def test_files_go_to_another_file_system_and_back(
    photos: Path, tmp_path: Path, memory_disk: Path, how: str
) -> None:
    before = tree(tmp_path)
    out = memory_disk / "out"
    sort_folder(Reader(), photos, out, how)
    assert texts(out) == SORTED
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before
    assert os.listdir(memory_disk) == []


@pytest.mark.slow
@needs_fork
def test_a_kill_at_any_moment_between_two_file_systems(
    photos: Path, tmp_path: Path, memory_disk: Path
) -> None:
    moment = 0
    for moment in range(4000):
        place = tmp_path / f"{moment}"
        images = Path(shutil.copytree(photos, place / "photos"))
        before = tree(place)
        out = memory_disk / f"{moment}"
        sort_folder(Reader(), images, out, "move")
        killed = killed_at(moment, partial(undo_sort, out / TABLE))
        there = {*texts(images).values()}
        if out.is_dir():
            there |= {*texts(out).values()}
        assert there >= set(FILES.values()), "something is lost"
        if out.is_dir() and os.listdir(out):
            assert undo_sort(out / TABLE) == []
            assert not out.exists()
        assert tree(place) == before
        shutil.rmtree(place)
        shutil.rmtree(out, ignore_errors=True)
        if not killed:
            break
    assert 40 < moment < 3999


def test_a_killed_undo_can_be_repeated_until_nothing_is_left(
    photos: Path, tmp_path: Path
) -> None:
    before = tree(tmp_path)
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "copy")
    undo_sort(out / TABLE)
    out.mkdir()  # what a kill after the removal of the table leaves
    (out / ".lock").touch()
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before


@pytest.mark.parametrize("how", HOWS)
def test_nothing_is_sorted_between_the_halves_of_an_undo(
    photos: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_midway(*arguments: Any, **settings: Any) -> Path:
        folders.append(arguments)
        if len(folders) > 3:
            disk_full()
        return own_folder(*arguments, **settings)

    before = tree(tmp_path)
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, how)
    folders: list[Any] = []
    own_folder = sorting.own_folder
    with monkeypatch.context() as patch:
        patch.setattr(sorting, "own_folder", stop_midway)
        with pytest.raises(PathError):
            undo_sort(out / TABLE)
    stopped = tree(tmp_path)
    with pytest.raises(InputError, match="undo it again before sorting"):
        sort_folder(Reader(), photos, out, how)
    with pytest.raises(InputError, match="undo it again before sorting"):
        plan_sort(Reader(), photos, out, earlier=read_sort_table(out / TABLE))
    assert tree(tmp_path) == stopped
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before


def test_what_an_undo_kept_can_be_sorted_again(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "copy")
    (out / "cat/1.png").write_text("changed")
    (kept,) = undo_sort(out / TABLE)
    assert kept.state == "done"
    rows = sort_folder(Reader(), photos, out, "copy")
    assert {row.destination for row in rows} == {*SORTED, ""} - {"cat/1.png"}


# -- names -----------------------------------------------------------------------------

FILE_NAMES = [
    "a\\b.png", "a\nb.png", "a\tb.png", "a\rb.png", 'say "hi".png', "it's.png", "'=.png",
    "-rf.png", "--.png", "=1+1.png", "@x.png", " blank .png", "\u202egnp.png",
    "\x1b[2J.png", "\x7f.png", "caf\udce9.png", "\udcff\udcfe.png", "e\u0301.png",
    "\u00e9.png", "a,b;c.png", "a'b.png", "\\x41.png", "\\.png", "*?.png", "~.png",
    "$(id).png", "n" * 251 + ".png", "\u6a21" * 83 + ".png", "CON.png", "..png.png",
    "%s{0}.png", "\u2028.png", "x.png.jpg", "sorted.csv.png", "#.png", "&.png",
]  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
def test_any_name_of_a_file_is_sorted_resumed_and_undone(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = tmp_path / "my\nphotos\\\udce9"
    for folder in ("", "line\nfeed", "caf\udce9", " -x\\y "):
        for name in FILE_NAMES:
            if not name.startswith("."):
                write(photos, {f"{folder}/{name}" if folder else name: "cat,1"})
    before = tree(tmp_path)
    out = tmp_path / "out\t\udcff\\"
    n_done = 0

    def stop_midway(*arguments: Any) -> None:
        nonlocal n_done
        n_done += 1
        if n_done > 20:
            disk_full()
        file_moves.put_file(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sorting, "put_file", stop_midway)
        with pytest.raises(PathError, match="20 of"):
            sort_folder(Reader(), photos, out, how)
    rows = sort_folder(Reader(), photos, out, how)
    assert all(row.destination for row in rows)
    n_files = sum(value is not None for value in before.values())
    assert len(texts(out)) == n_files
    table = read_sort_table(out / TABLE)
    assert {row.file for row in table} == {
        str(tmp_path / name) for name, value in before.items() if value is not None
    }
    assert (out / TABLE).read_text().count("\n") == n_files + 1
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before


def test_names_of_classes_come_back_from_the_table(tmp_path: Path) -> None:
    names = ["=1+1", "'=1+1", "a\\b", "a\x08", "a\\x08", "x" * 200_000, "caf\udce9"]
    photos = write(tmp_path / "photos", {f"{n}.png": "" for n in range(len(names))})
    answers = {f"{number}.png": name for number, name in enumerate(names)}

    class Named(Reader):
        def predictions(self, items: Any, **settings: Any) -> Predictions:
            columns = [
                names.index(answers[items.name(row)]) for row in range(len(items))
            ]
            return Predictions(
                self.state_.classes,
                np.eye(len(names))[columns],
                "probability",
                np.arange(len(items)),
            )

    out = tmp_path / "out"
    sort_folder(Named(*names), photos, out, "copy")
    found = {Path(row.file).name: row.answer for row in read_sort_table(out / TABLE)}
    assert found == answers
    assert undo_sort(out / TABLE) == []


# -- what a table may name -------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("file", "/etc/1.png"),
        ("file", "1.png"),
        ("file", "{folder}/../1.png"),
        ("file", "{folder}x/1.png"),
        ("file", "{folder}/"),
        ("file", "{folder}//1.png"),
        ("file", "{folder}/a\\x00.png"),
        ("file", "{folder}/\\ud800.png"),
        ("file", "{folder}/.bashrc"),
        ("folder", ""),
        ("folder", "photos"),
        ("folder", "{folder}/.."),
        ("folder", "{folder}/"),
        ("destination", "cat/..png/../1.png"),
        ("destination", "/1.png"),
        ("destination", "cat/"),
        ("destination", "cat/run.sh"),
        ("destination", "cat/\\x2f.png"),
        ("destination", ""),
        ("how", ""),
        ("state", "left"),
        ("size", "9" * 5000),
        ("size", "many"),
    ],
)
def test_a_row_that_leaves_its_folders_moves_nothing(
    photos: Path, tmp_path: Path, column: str, value: str
) -> None:
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "move")
    with open(out / TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    row = next(row for row in rows if row["destination"])
    row[column] = value.replace("{folder}", str(photos))
    with open(out / TABLE, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    before = tree(tmp_path)
    for call in (
        partial(undo_sort, out / TABLE),
        partial(sort_folder, Reader(), photos, out, "move"),
    ):
        with pytest.raises(
            FileFormatError, match="not a table of a sort, or was damaged"
        ):
            call()
        assert tree(tmp_path) == before


def test_a_table_without_folders_is_refused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sort_folder(Reader(), photos, out, "move")
    lines = (out / TABLE).read_text().splitlines()
    older = "\n".join(line.rsplit(",", 2)[0] for line in lines)
    (out / TABLE).write_text(older + "\n")
    before = tree(tmp_path)
    with pytest.raises(FileFormatError, match="its first line is not that of one"):
        undo_sort(out / TABLE)
    assert tree(tmp_path) == before


def test_an_interrupted_sort_of_another_folder_is_not_completed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = write(tmp_path / "others", {"1.png": "cat,0.97"})
    before = tree(tmp_path)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(sorting, "put_file", disk_full)
        with pytest.raises(PathError):
            sort_folder(Reader(), photos, out, "move")
    sort_folder(Reader(), others, out, "move")
    assert set(texts(photos)) >= FILES.keys()
    assert texts(out) == {"cat/1-3.png": "cat,0.97"}
    sort_folder(Reader(), photos, out, "move")
    assert texts(out) == {**SORTED, "cat/1-3.png": "cat,0.97"}
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before


def test_a_folder_of_the_user_named_like_scratch_space_is_kept(
    photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write(out, {".sorting/mine.txt": "mine", "cat/.sorting/mine.txt": "mine"})
    before = tree(tmp_path)
    for how in HOWS:
        sort_folder(Reader(), photos, out, how)
        assert undo_sort(out / TABLE) == []
        assert tree(tmp_path) == before


def test_images_in_the_folder_of_their_class_stay(tmp_path: Path) -> None:
    out = write(
        tmp_path / "out", {"unknown/1.png": "cat,1", "unknown/2.png": "strange,1"}
    )
    before = tree(tmp_path)
    rows = sort_folder(Reader(), out / "unknown", out, "move")
    assert texts(out) == {"cat/1.png": "cat,1", "unknown/2.png": "strange,1"}
    assert [row.note for row in rows if not row.destination] == [
        "it is in its folder already"
    ]
    assert undo_sort(out / TABLE) == []
    assert tree(tmp_path) == before
