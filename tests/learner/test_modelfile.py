from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.learner.toys import Data, killed_at, needs_fork, part, refused, teach

from evergrow.core.errors import (
    BusyError,
    FileFormatError,
    ModelNotFoundError,
    NewerSchemaError,
    NotFittedError,
    ParameterError,
)
from evergrow.learner import history as kept_history
from evergrow.learner import modelfile
from evergrow.learner.history import Header, History
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import (
    ModelWriteError,
    clean_folder,
    commit,
    history,
    locked_model,
    open_model,
    open_revision,
    redo,
    rollback,
)


def folder(path: Path) -> Path:
    return path.with_name("model.evg.history")


def test_history_is_in_the_file(path: Path, blobs: Data) -> None:
    told = [
        (change.what, change.samples, change.revision, change.note)
        for change in history(path)
    ]
    assert told == [
        ("fit", 150, 1, ""),
        ("update", 50, 2, "class 3"),
        ("update", 50, 3, "class 4"),
    ]
    assert list(open_model(path).state_.history) == history(path)
    assert commit(path, open_model(path)) == 3  # nothing new: nothing is written
    assert History(path).numbers() == [1, 2]  # and the model is the third
    assert teach(path, part(blobs, 5)) == 4
    assert History(path).numbers() == [1, 2, 3]


def test_rollback_restores_every_byte_and_is_recorded(
    path: Path, found: list[bytes]
) -> None:
    change = rollback(path)
    assert path.read_bytes() == found[1]
    assert (change.what, change.revision, change.note) == (
        "rollback",
        2,
        "undid update",
    )
    told = [
        ("fit", 1),
        ("update", 2),
        ("update", 3),
        ("rollback", 2),
    ]  # what was undone, and that it was
    assert [(entry.what, entry.revision) for entry in history(path)] == told
    rollback(path)
    assert path.read_bytes() == found[0]
    assert [(entry.what, entry.revision) for entry in history(path)] == [
        *told,
        ("rollback", 1),
    ]
    with pytest.raises(ParameterError, match="nothing to undo"):
        rollback(path)


@pytest.mark.parametrize("n", [3, 0, -1, 1.5])
def test_rollback_beyond_what_is_kept(path: Path, n: float) -> None:
    with refused(path, ParameterError, "n must be"):
        rollback(path, n)  # type: ignore[arg-type]
    assert len(history(path)) == 3


def test_numbers_are_never_used_twice(path: Path, blobs: Data) -> None:
    change = rollback(path, 2)
    assert (change.note, change.samples) == ("undid update, update", 100)
    assert teach(path, part(blobs, 5)) == 4
    told = [("fit", 1), ("update", 2), ("update", 3), ("rollback", 1), ("update", 4)]
    assert [(entry.what, entry.revision) for entry in history(path)] == told
    assert open_model(path).state_.classes.tolist() == ["0", "1", "2", "5"]
    rollback(path)
    assert open_model(path).state_.classes.tolist() == ["0", "1", "2"]


def test_several_changes_at_once_are_one_revision(path: Path, blobs: Data) -> None:
    with locked_model(path) as learner:
        learner.partial_fit(part(blobs, 5)).forget_classes("0")
        assert commit(path, learner) == learner.state_.revision == 4
    assert [(entry.what, entry.revision) for entry in history(path)][-2:] == [
        ("update", 4),
        ("forget", 4),
    ]
    rollback(path)
    assert open_model(path).state_.revision == 3


def test_only_so_many_are_kept(path: Path, blobs: Data) -> None:
    for _ in range(4):
        teach(path, part(blobs, 5), keep=2)
    assert History(path).numbers() == [5, 6]
    with pytest.raises(ParameterError, match="n must be at most 2"):
        rollback(path, 3)
    rollback(path, 2)
    assert open_model(path).state_.revision == 5
    with pytest.raises(ParameterError, match="keep"):
        commit(path, open_model(path), keep=-1)


def test_undone_revisions_go_first(path: Path, blobs: Data) -> None:
    rollback(path)
    teach(path, part(blobs, 5), keep=2)
    assert History(path).numbers() == [1, 2]


# -- writers ---------------------------------------------------------------------------


def test_another_thread_is_another_writer_and_may_wait(path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        with locked_model(path):
            with pytest.raises(BusyError):
                threads.submit(rollback, path).result()
            waiting = threads.submit(rollback, path, wait=True)
            time.sleep(0.1)
            assert not waiting.done()
        assert waiting.result().what == "rollback"


def test_the_lock_is_let_go_after_an_error(path: Path, blobs: Data) -> None:
    with pytest.raises(ZeroDivisionError), locked_model(path):
        raise ZeroDivisionError
    teach(path, part(blobs, 5))


# -- failures --------------------------------------------------------------------------


def test_a_full_disk_leaves_model_and_learner_as_they_were(
    path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = open_model(path).partial_fit(part(blobs, 5))
    revision = learner.state_.revision

    def full(target: Path, archive: object, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(modelfile, "write_archive", full)
    with refused(path, ModelWriteError, "No space left"):
        commit(path, learner)
    assert learner.state_.revision == revision
    monkeypatch.undo()
    assert commit(path, learner) == 4


# Killed before a rename: a plain save, the state before, the model. Then one save goes
# on living.
ATTACKS = """
import os
import sys
from pathlib import Path
from evergrow.learner.modelfile import commit, open_model
path, replace, left = sys.argv[1], os.replace, []
learner = open_model(path).forget_classes("0")

def killed(work, renames):
    if os.fork():
        os.wait()
        for file in Path(path).parent.rglob("*.part"):
            left.append(file.rename(f"{file}.away"))  # so that all gather
        return
    steps = [*[replace] * renames, lambda *_: os._exit(9)]
    os.replace = lambda *files: steps.pop(0)(*files)
    work()

killed(lambda: learner.save(path), 0)
for renames in (0, 1):
    killed(lambda: commit(path, learner), renames)
for file in left:
    file.rename(str(file).removesuffix(".away"))

def wait(*files):
    print("writing", flush=True)
    sys.stdin.readline()
    replace(*files)

os.replace = wait
learner.save(path)
"""


@needs_fork
@pytest.mark.parametrize("clean", ["change", "service"])
def test_killed_writers_leave_nothing_that_unlearning_removed(
    path: Path, blobs: Data, clean: str
) -> None:
    command = [sys.executable, "-c", ATTACKS, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        partial = set(path.parent.rglob("*.part"))
        assert {file.parent for file in partial} == {path.parent, folder(path)}
        assert len(partial) == 4
        other = path.with_name(
            ".other.evg.x.part"
        )  # of a model that nobody changes here
        other.touch()
        if clean == "service":
            clean_folder(path.parent)
        with locked_model(path) as learner:
            commit(path, learner.unlearn(part(blobs, 4)), keep=0)
        left = {file for file in path.parent.rglob("*") if file.is_file()}
        more = left - {path} - ({other} if clean == "change" else set())
        (living,) = {file.parent for file in more}  # the one that is being written
        assert living in partial
        assert "4" not in open_model(path).state_.classes
        writer.communicate("go on\n")
    assert writer.returncode == 0
    assert not any(file.exists() for file in partial)
    assert open_model(path).state_.classes.tolist() == ["1", "2", "3", "4"]


@pytest.mark.parametrize("change", [rollback, redo])
def test_rollback_interrupted_by_a_crash_is_not_listed(
    change: Callable[[Path], object],
    path: Path,
    found: list[bytes],
    blobs: Data,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollback(path)
    told = history(path)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept_history, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            change(path)
    assert path.read_bytes() == found[1]
    assert history(path) == told
    redo(path)
    assert path.read_bytes() == found[2]
    teach(path, part(blobs, 5))
    assert [entry.what for entry in history(path)] == [
        "fit",
        "update",
        "update",
        "rollback",
        "redo",
        "update",
    ]


def test_missing_foreign_and_newer_files(
    path: Path, tmp_path: Path, blobs: Data
) -> None:
    learner = open_model(path)
    for read in (open_model, history, rollback):
        with pytest.raises(ModelNotFoundError, match="No model"):
            read(tmp_path / "nothing.evg")
    assert not (tmp_path / "nothing.evg.history").exists()
    (tmp_path / "photo.jpg").write_bytes(b"a photo")
    for change in (
        lambda: commit(tmp_path / "photo.jpg", learner),
        lambda: history(tmp_path / "photo.jpg"),
    ):
        with refused(
            tmp_path / "photo.jpg", FileFormatError, "is not an evergrow file"
        ):
            change()
    with pytest.raises(ModelWriteError, match="No folder"):
        commit(tmp_path / "no" / "model.evg", learner)
    with pytest.raises(NotFittedError):
        commit(tmp_path / "new.evg", Learner())
    assert not (tmp_path / "new.evg.history").exists()


def test_a_newer_model_is_neither_read_nor_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = open_model(path)
    monkeypatch.setattr("evergrow.core.archive.SCHEMA_VERSION", 99)
    learner.save(path)
    monkeypatch.undo()
    for use in (
        lambda: open_model(path),
        lambda: commit(path, learner),
        lambda: rollback(path),
    ):
        with refused(path, NewerSchemaError, "newer"):
            use()


def test_a_model_that_was_replaced_by_hand_is_kept_too(path: Path, blobs: Data) -> None:
    Learner(None, options={"n_units": 30}).fit(part(blobs, 4, 5)).save(
        path
    )  # its number 1 is taken already
    foreign = path.read_bytes()
    assert teach(path, part(blobs, 0)) == 4
    rollback(path)
    assert path.read_bytes() == foreign


def test_a_copy_goes_on_by_itself(path: Path, tmp_path: Path, blobs: Data) -> None:
    copy = tmp_path / "copy.evg"
    copy.write_bytes(path.read_bytes())
    assert teach(copy, part(blobs, 5)) == 4
    rollback(copy)
    assert copy.read_bytes() == path.read_bytes()
    with pytest.raises(
        ParameterError,
        match=r"nothing to undo: no earlier state of .* is kept in .*\.evg\.history",
    ):
        rollback(copy)


# -- redo and revisions ----------------------------------------------------------------


def test_redo_takes_rollbacks_back_one_by_one_or_several_at_once(
    path: Path, found: list[bytes]
) -> None:
    rollback(path)
    rollback(path)
    with pytest.raises(ParameterError, match="n must be at most 2"):
        redo(path, 3)
    assert path.read_bytes() == found[0]
    assert redo(path).note == "redid update"
    assert path.read_bytes() == found[1]
    redo(path)
    assert path.read_bytes() == found[2]
    assert [change.what for change in history(path)] == [
        "fit",
        "update",
        "update",
        *["rollback"] * 2,
        *["redo"] * 2,
    ]
    with pytest.raises(
        ParameterError,
        match=r"nothing to redo: the latest change of .* is not a rollback",
    ):
        redo(path)
    rollback(path)
    rollback(path)
    redo(path, 2)
    assert path.read_bytes() == found[2]
    rollback(path, 2)
    redo(path)  # one rollback, of two revisions
    assert path.read_bytes() == found[2]


def test_only_what_was_undone_is_put_back(path: Path, found: list[bytes]) -> None:
    rollback(path)
    place = History(path)
    place.file(3).write_bytes(place.file(1).read_bytes())  # another model in its place
    with pytest.raises(ParameterError, match="no longer kept in"):
        redo(path)
    assert path.read_bytes() == found[1]


def test_revisions_can_be_asked(path: Path) -> None:
    assert [
        sum(open_revision(path, n).state_.label_counts.values()) for n in (1, 2, 3)
    ] == [
        150,
        200,
        250,
    ]
    rollback(path)
    assert (
        sum(open_revision(path, 3).state_.label_counts.values()) == 250
    )  # undone, and named by the log
    with pytest.raises(
        ParameterError, match=r"Revision 9 is not kept; kept are 1 to 3"
    ):
        open_revision(path, 9)
    lists = [History(path).file(number).read_bytes() for number in (3, 1)]
    for number, body in zip(
        (1, 8), lists, strict=True
    ):  # another in its place, and one that nothing vouches for
        History(path).file(number).write_bytes(body)
        with pytest.raises(FileFormatError, match="another model or was altered"):
            open_revision(path, number)


def test_who_changed_a_model_is_in_its_history(
    tmp_path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.evg"
    monkeypatch.setenv("EVERGROW_AUTHOR", "Ada")
    commit(path, Learner(options={"n_units": 20}).fit(part(blobs, 0, 1)))
    teach(path, part(blobs, 2), who="service")
    monkeypatch.setenv("EVERGROW_AUTHOR", "")
    rollback(path)
    redo(path, who="Bob")
    assert [change.who for change in history(path)] == ["Ada", "service", "", "Bob"]
    monkeypatch.delenv("EVERGROW_AUTHOR")
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    teach(path, part(blobs, 3))
    assert history(path)[-1].who == "root"


# -- kills -----------------------------------------------------------------------------


@needs_fork
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("step", [25, pytest.param(5, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_model_is_old_or_new(
    tmp_path: Path, step: int
) -> None:
    path = tmp_path / "model.evg"
    X = np.random.default_rng(0).normal(size=(20, 8))
    y = np.arange(20) % 2
    commit(path, Learner(None, options={"n_units": 100}).fit((X, y)))
    place = History(path)
    last = 1

    def work() -> None:
        teach(path, (X, y), keep=3)
        rollback(path)
        redo(path)

    for moment in range(0, 1000, step):
        killed = killed_at(moment, work)
        learner = open_model(path)  # checks the checksum of everything
        updates = len(learner.state_.history) - 1
        assert learner.state_.label_counts == {
            0: 10 * (updates + 1),
            1: 10 * (updates + 1),
        }
        assert learner.head_.class_counts_.tolist() == [10 * (updates + 1)] * 2
        assert (
            learner.state_.revision >= last - 1
        )  # a rollback may have been the last that was done
        last = learner.state_.revision
        for entry in place.restorable(Header.read(path)):
            place.verified(entry.revision, entry.digest)
        if not killed:
            break
    assert 40 < moment < 999
    teach(path, (X, y), keep=3)
    assert last > 1
    assert not [
        file
        for file in tmp_path.rglob("*.part")
        if file.stat().st_nlink > 1 or "history" in str(file)
    ]
    rollback(path)
    assert open_model(path).state_.revision == last
