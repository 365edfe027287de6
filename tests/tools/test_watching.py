"""A watched folder is sorted as by hand: whole files only, and no link is followed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.tools.test_sorting import Reader, texts, write

from evergrow.core.errors import DatasetNotFoundError, InputError, MissingExtraError
from evergrow.core.files import locked
from evergrow.tools.sorting import TABLE, SortedFile, undo_sort
from evergrow.tools.watching import Arrivals, sort_continuously

SETTLED = 0.3


@pytest.fixture(autouse=True)
def _watchfiles() -> None:
    pytest.importorskip("watchfiles", reason="needs evergrow[watch]")


@contextmanager
def watching(folder: Path, out: Path) -> Iterator[list[SortedFile]]:
    """Watch a folder in another thread. Yield the rows so far, a growing list."""
    stop = threading.Event()
    rows: list[SortedFile] = []

    def run() -> None:
        for found in sort_continuously(
            Reader, folder, out, "move", settled=SETTLED, stop=stop
        ):
            rows.extend(found)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield rows
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_new_files_are_sorted_when_they_are_complete(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"old.png": "cat,1"})
    out = tmp_path / "out"
    with watching(folder, out):
        wait_for(lambda: texts(out) == {"cat/old.png": "cat,1"})
        with open(folder / "slow.png", "w") as file:
            for letter in "dog,1":
                file.write(letter)
                file.flush()
                time.sleep(SETTLED / 2)
                assert (folder / "slow.png").exists()
        write(folder, {"new/sub/b.png": "dog,0.9"})
        wait_for(lambda: len(texts(out)) == 3)
    assert texts(out)["dog/slow.png"] == "dog,1"
    write(folder, {"meanwhile.png": "cat,0.9"})
    with watching(folder, out):  # a restart goes on
        wait_for(lambda: len(texts(out)) == 4)
    assert undo_sort(out / TABLE) == []
    assert set(texts(folder)) == {
        "old.png",
        "slow.png",
        "new/sub/b.png",
        "meanwhile.png",
    }


def test_links_and_pipes_stay_and_lead_nowhere(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", {"s.png": "cat,1"})
    folder = write(tmp_path / "in", {".hidden.png": "cat,1", "bad.png": "x"})
    (folder / "outside").symlink_to(secret)
    (folder / "circle").symlink_to(folder)
    (folder / "s.png").symlink_to(secret / "s.png")
    os.mkfifo(folder / "pipe.png")
    out = tmp_path / "out"
    with watching(folder, out) as rows:
        write(folder, {"a\nb.png": "cat,1"})
        wait_for(lambda: (out / "cat" / "a\nb.png").exists())
    assert texts(out) == {"cat/a\nb.png": "cat,1"}
    assert texts(secret) == {"s.png": "cat,1"}
    assert {os.path.basename(row.file) for row in rows if not row.destination} == {
        "bad.png",
        "s.png",
    }


def test_a_busy_folder_is_sorted_when_it_is_free(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"a.png": "cat,1"})
    out = tmp_path / "out"
    out.mkdir()
    with watching(folder, out):
        with locked(out):
            time.sleep(4 * SETTLED)
            assert not texts(out).keys() - {".lock"}
        wait_for(lambda: (out / "cat" / "a.png").exists())


def test_a_file_that_cannot_be_read_is_tried_again_when_it_changes() -> None:
    now = [0.0]
    arrivals = Arrivals(1.0, lambda: now[0])
    assert not arrivals.look({"a": 1})
    now[0] = 2.0
    assert arrivals.look({"a": 1})
    arrivals.mark_tried()
    assert not arrivals.look({"a": 1})
    assert not arrivals.look({"a": 2})
    now[0] = 4.0
    assert arrivals.look({"a": 2})


def test_only_an_existing_folder_is_watched(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    out = tmp_path / "out"
    with pytest.raises(InputError, match="must be a folder"):
        next(sort_continuously(Reader, tmp_path / "a.zip", out, "copy"))
    with pytest.raises(DatasetNotFoundError, match="is gone"):
        next(sort_continuously(Reader, tmp_path / "none", out, "copy"))


def test_the_extra_is_named_if_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "watchfiles", None)
    with pytest.raises(MissingExtraError, match=r"evergrow\[watch\]"):
        next(sort_continuously(Reader, tmp_path, tmp_path / "out", "copy"))
