"""Model files that live somewhere: behind links, with modes and owners, beside histories that others may write to."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.learner.toys import refused, teach

from evergrow.core.errors import BusyError, FileFormatError, ModelNotFoundError, PathError
from evergrow.learner.history import History
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import (
    ModelWriteError,
    commit,
    history,
    locked_model,
    open_model,
    redo,
    rollback,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: links and modes")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.history")


def forget(path: Path | str, name: str = "0") -> None:
    with locked_model(path) as learner:
        commit(path, learner.forget_classes(name))


# -- links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["relative", "absolute", "chain", "folder"])
def test_a_model_behind_a_link(path: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    links = {"relative": "real/model.evg", "absolute": str(path), "chain": "middle.evg", "folder": "real"}
    (tmp_path / "middle.evg").symlink_to("real/model.evg")
    (tmp_path / "link").symlink_to(links[kind])
    monkeypatch.chdir(tmp_path)
    asked = Path("link/model.evg") if kind == "folder" else Path("link")
    before = path.read_bytes()
    forget(asked)
    assert Path("link").is_symlink()
    assert not path.is_symlink()
    assert open_model(path).class_names_.tolist() == open_model(asked).class_names_.tolist() == ["1", "2", "3", "4"]
    assert sorted(os.listdir(tmp_path)) == ["link", "middle.evg", "real"]  # no history beside the link
    assert not any(file.is_symlink() for file in folder(path).iterdir())
    rollback(asked)
    assert path.read_bytes() == before
    assert Path("link").is_symlink()
    assert [change.what for change in history(asked)] == ["fit", "update", "update", "forget", "rollback"]


def test_there_is_one_lock_whatever_the_name(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.evg").symlink_to("real/model.evg")
    with locked_model(path) as learner:
        commit(tmp_path / "link.evg", learner.forget_classes("0"))  # the same writer by another name
    stale = open_model(path)
    forget(tmp_path / "link.evg", "1")
    with refused(path, BusyError, "changed since"):  # it is what another wrote meanwhile
        commit(path, stale.forget_classes("2"))
    open_model(path).forget_classes("3").save(tmp_path / "link.evg")  # a plain save goes through links too
    assert (tmp_path / "link.evg").is_symlink()
    assert "3" not in open_model(path).class_names_


def test_a_link_to_nothing_is_an_error(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.evg"
    link.symlink_to("missing.evg")
    for use in (open_model, history, rollback):
        with pytest.raises(ModelNotFoundError, match="link to nothing"):
            use(link)
    with pytest.raises(ModelWriteError, match="link to nothing"):
        commit(link, open_model(path))
    assert sorted(os.listdir(tmp_path)) == ["link.evg", "real"]


# -- modes and owners ---------------------------------------------------------------------------------------


def test_a_private_model_stays_private_and_so_does_its_history(path: Path) -> None:
    path.chmod(0o600)
    forget(path)
    assert mode(path) == 0o600
    assert mode(folder(path)) == 0o700
    assert {mode(file) for file in folder(path).iterdir()} == {0o600}
    rollback(path)
    assert mode(path) == 0o600
    assert (History(path).numbers(), {mode(file) for file in folder(path).iterdir()}) == ([1, 2, 4], {0o600})


def test_a_history_that_is_closed_stays_closed(path: Path) -> None:
    folder(path).chmod(0o700)
    path.chmod(0o664)
    forget(path)
    assert (mode(path), mode(folder(path))) == (0o664, 0o700)


@pytest.mark.parametrize(("mask", "expected"), [(0o022, (0o644, 0o755)), (0o077, (0o600, 0o700))])
def test_the_umask_decides_for_new_models(path: Path, tmp_path: Path, mask: int, expected: tuple[int, int]) -> None:
    before = os.umask(mask)
    try:
        commit(tmp_path / "new.evg", open_model(path))
        forget(tmp_path / "new.evg")
    finally:
        os.umask(before)
    new = tmp_path / "new.evg"
    assert (mode(new), mode(folder(new))) == expected
    assert {mode(file) for file in folder(new).iterdir()} == {expected[0]}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root: gives files away")
def test_the_owner_is_kept(path: Path) -> None:
    shutil.rmtree(folder(path))
    os.chown(path, 12345, 23456)
    forget(path)
    places = [path, folder(path), *folder(path).iterdir()]
    assert {(place.stat().st_uid, place.stat().st_gid) for place in places} == {(12345, 23456)}


@pytest.mark.parametrize("change", ["forget", "rollback", "save"])
def test_a_read_only_model_is_refused_as_read_only(path: Path, change: str) -> None:
    learner = open_model(path)
    path.chmod(0o444)
    changes = {"forget": lambda: forget(path), "rollback": lambda: rollback(path), "save": lambda: learner.save(path)}
    with refused(path, (ModelWriteError, PathError), "read-only"):
        changes[change]()
    with refused(path, ModelWriteError, "read-only"):
        commit(path, learner.forget_classes("0"))
    assert mode(path) == 0o444
    assert open_model(path).predict(np.zeros((1, 10))).shape == (1,)


# -- histories that cannot be trusted -----------------------------------------------------------------------


def plant(path: Path, number: int) -> None:
    """Put a revision of another model in the place of one, with its pieces."""
    other, X = path.with_name("other.evg"), np.random.default_rng(0).normal(size=(20, 10))
    commit(other, Learner(None, options={"n_units": 20}).fit(X, np.arange(20) % 2))
    for label in (2, 3):
        teach(other, (X + label, np.full(20, label)))
    for piece in folder(other).glob("*.piece"):
        shutil.copy(piece, folder(path))
    shutil.copy(folder(other) / "2.json", folder(path) / f"{number}.json")
    shutil.rmtree(folder(other))
    other.unlink()


def test_a_foreign_revision_is_not_installed(path: Path) -> None:
    told = history(path)
    plant(path, 2)
    with refused(path, FileFormatError, "another model or was altered"):
        rollback(path)
    assert history(path) == told
    rollback(path, 2)  # the one before it is still what it was
    assert open_model(path).class_names_.tolist() == ["0", "1", "2"]


def test_a_planted_copy_of_the_newest_revision_does_not_hide_the_model(path: Path) -> None:
    before = path.read_bytes()
    plant(path, 3)
    forget(path)
    rollback(path)
    assert path.read_bytes() == before
    rollback(path)
    assert open_model(path).class_names_.tolist() == ["0", "1", "2", "3"]


def test_absurd_numbers_in_the_history_do_not_count(path: Path) -> None:
    shutil.copy(folder(path) / "1.json", folder(path) / f"{10**30}.json")
    forget(path)
    assert open_model(path).revision_ == 4


def test_the_history_is_no_link(path: Path, tmp_path: Path) -> None:
    folder(path).rename(tmp_path / "elsewhere")
    folder(path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PathError, match="it is a link"):
        forget(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'"text"',
        b"[1]",
        b'{"a": 1}',
        b"[" * 100_000,
        b'[{"change": {"what": "fit"}}]',
        json.dumps([{"change": {"what": "rollback", "when": 3, "samples": "x"}, "before": 1, "after": 2}]).encode(),
        json.dumps([{"change": {"what": "redone", "when": "", "samples": 1}, "before": 1, "after": 2}]).encode(),
    ],
    ids=range(10),
)
def test_a_broken_log_is_one_line_and_nothing_is_written(path: Path, text: bytes) -> None:
    files = [*os.listdir(folder(path)), "log.json"]
    (folder(path) / "log.json").write_bytes(text)
    for use in (history, rollback, redo, forget):
        with refused(path, FileFormatError, r"log\.json must be a list of rollbacks.*the model is as it was"):
            use(path)
    assert sorted(os.listdir(folder(path))) == sorted(files)
    assert len(open_model(path).predict(np.zeros((1, 10)))) == 1


def test_a_log_that_is_a_link_is_not_written_through(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("[]")
    (folder(path) / "log.json").symlink_to(tmp_path / "precious")
    with pytest.raises(FileFormatError, match="it is a link"):
        rollback(path)
    assert (tmp_path / "precious").read_text() == "[]"
