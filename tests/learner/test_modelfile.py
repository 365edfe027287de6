from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from evergrow.core.errors import BusyError, FileFormatError, NewerSchemaError, NotFittedError, ParameterError
from evergrow.core.seeding import generator
from evergrow.learner import modelfile
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import (
    ModelNotFoundError,
    ModelWriteError,
    commit,
    history,
    locked_model,
    open_model,
    rollback,
)

Data = tuple[np.ndarray, np.ndarray]


def part(data: Data, *classes: int) -> Data:
    rows = np.isin(data[1], classes)
    return data[0][rows], data[1][rows]


@pytest.fixture
def path(tmp_path: Path, blobs: Data) -> Path:
    """A model that was fitted and updated twice: revisions 1, 2 and 3."""
    path = tmp_path / "model.evg"
    learner = Learner(None, options={"n_units": 30}).fit(part(blobs, 0, 1, 2))
    assert commit(path, learner) == 1
    for label in (3, 4):
        with locked_model(path) as learner:
            assert commit(path, learner.partial_fit(part(blobs, label)), f"class {label}") == label - 1
    return path


def kept(path: Path) -> list[str]:
    return sorted(file.name for file in path.with_name("model.evg.history").iterdir())


def test_history_is_in_the_file(path: Path) -> None:
    told = [(change.what, change.samples, change.revision, change.note) for change in history(path)]
    assert told == [("fit", 150, 1, ""), ("update", 50, 2, "class 3"), ("update", 50, 3, "class 4")]
    assert open_model(path).history_ == history(path)
    assert kept(path) == ["1.evg", "2.evg", "3.evg"]
    assert os.path.samefile(path, path.with_name("model.evg.history") / "3.evg")


def test_rollback_restores_every_byte_and_is_recorded(path: Path) -> None:
    folder = path.with_name("model.evg.history")
    first, second = (folder / "1.evg").read_bytes(), (folder / "2.evg").read_bytes()
    change = rollback(path)
    assert path.read_bytes() == second
    assert (change.what, change.revision, change.note) == ("rollback", 2, "undid update")
    assert [entry.what for entry in history(path)] == ["fit", "update", "rollback"]
    rollback(path)
    assert path.read_bytes() == first
    assert [entry.what for entry in history(path)] == ["fit", "rollback", "rollback"]
    with pytest.raises(ParameterError, match="nothing to undo"):
        rollback(path)


def test_rollback_by_several(path: Path) -> None:
    first = (path.with_name("model.evg.history") / "1.evg").read_bytes()
    change = rollback(path, 2)
    assert path.read_bytes() == first
    assert change.note == "undid update, update"
    assert change.samples == 100


@pytest.mark.parametrize("n", [3, 0, -1, 1.5])
def test_rollback_beyond_what_is_kept(path: Path, n: float) -> None:
    before = path.read_bytes()
    with pytest.raises(ParameterError, match="n must be"):
        rollback(path, n)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert len(history(path)) == 3


def test_numbers_are_never_used_twice(path: Path, blobs: Data) -> None:
    rollback(path, 2)
    with locked_model(path) as learner:
        assert commit(path, learner.partial_fit(part(blobs, 5))) == 4
    assert [(entry.what, entry.revision) for entry in history(path)] == [("fit", 1), ("rollback", 1), ("update", 4)]
    assert open_model(path).class_names_.tolist() == ["0", "1", "2", "5"]
    rollback(path)
    assert open_model(path).class_names_.tolist() == ["0", "1", "2"]


def test_several_changes_at_once_are_one_revision(path: Path, blobs: Data) -> None:
    with locked_model(path) as learner:
        learner.partial_fit(part(blobs, 5)).forget_classes("0")
        assert commit(path, learner) == learner.revision_ == 4
    assert [(entry.what, entry.revision) for entry in history(path)][-2:] == [("update", 4), ("forget", 4)]
    rollback(path)
    assert open_model(path).revision_ == 3


def test_nothing_new_writes_nothing(path: Path) -> None:
    before = kept(path)
    assert commit(path, open_model(path)) == 3
    assert kept(path) == before


def test_only_so_many_are_kept(path: Path, blobs: Data) -> None:
    for _ in range(4):
        with locked_model(path) as learner:
            commit(path, learner.partial_fit(part(blobs, 5)), keep=2)
    assert kept(path) == ["5.evg", "6.evg", "7.evg"]
    with pytest.raises(ParameterError, match="n must be at most 2"):
        rollback(path, 3)
    rollback(path, 2)
    assert open_model(path).revision_ == 5
    with pytest.raises(ParameterError, match="keep"):
        commit(path, open_model(path), keep=-1)


def test_undone_revisions_go_first(path: Path, blobs: Data) -> None:
    rollback(path)
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(part(blobs, 5)), keep=2)
    assert "3.evg" not in kept(path)
    assert {"1.evg", "2.evg", "4.evg"} <= set(kept(path))


def test_copies_of_one_model_can_be_merged(path: Path, tmp_path: Path, blobs: Data) -> None:
    Learner.load(path).save(tmp_path / "plain.evg")
    for base in (path, tmp_path / "plain.evg"):
        sides = []
        for name, label in (("a.evg", 5), ("b.evg", 4)):
            copy = tmp_path / f"{base.stem}-{name}"
            copy.write_bytes(base.read_bytes())
            with locked_model(copy) as learner:
                X, y = part(blobs, label)
                commit(copy, learner.partial_fit((X + 0.1, y)), "on its own")
            sides.append(open_model(copy))
        sides[0].merge(sides[1], base=open_model(base))
        commit(tmp_path / f"{base.stem}-all.evg", sides[0])
        merged = open_model(tmp_path / f"{base.stem}-all.evg")
        assert merged.n_samples_ == {0: 50, 1: 50, 2: 50, 3: 50, 4: 100, 5: 50}
        assert [change.what for change in merged.history_][-2:] == ["update", "merge"]


# -- writers ------------------------------------------------------------------------------------------------


def test_a_second_writer_is_told(path: Path) -> None:
    code = f"from evergrow.learner.modelfile import rollback\nrollback({str(path)!r})\n"
    with locked_model(path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "BusyError" in done.stderr
    assert "model.evg must not be in use" in done.stderr
    assert len(history(path)) == 3


def test_another_thread_is_another_writer(path: Path) -> None:
    caught: list[Exception] = []

    def write() -> None:
        try:
            rollback(path)
        except BusyError as error:
            caught.append(error)

    with locked_model(path):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert len(caught) == 1


def test_a_second_writer_may_wait(path: Path) -> None:
    done: list[str] = []

    def write() -> None:
        rollback(path, wait=True)
        done.append("rolled back")

    with locked_model(path):
        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(0.1)
        assert not done
    thread.join()
    assert done == ["rolled back"]


def test_what_another_wrote_meanwhile_is_not_overwritten(path: Path, blobs: Data) -> None:
    slow = open_model(path).partial_fit(part(blobs, 5))
    with locked_model(path) as learner:
        commit(path, learner.forget_classes("4"))
    before = path.read_bytes()
    with pytest.raises(BusyError, match="changed since"):
        commit(path, slow)
    assert path.read_bytes() == before


def test_the_lock_is_let_go_after_an_error(path: Path, blobs: Data) -> None:
    with pytest.raises(ZeroDivisionError), locked_model(path):
        raise ZeroDivisionError
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(part(blobs, 5)))


# -- failures -----------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_model_and_learner_as_they_were(
    path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    learner = open_model(path).partial_fit(part(blobs, 5))
    revision = learner.revision_

    def full(target: Path, archive: object, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(modelfile, "write_archive", full)
    with pytest.raises(ModelWriteError, match="No space left"):
        commit(path, learner)
    assert path.read_bytes() == before
    assert learner.revision_ == revision
    monkeypatch.undo()
    assert commit(path, learner) == 4


def test_without_hard_links_copies_are_kept(tmp_path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", impossible)
    path = tmp_path / "model.evg"
    commit(path, Learner(None, options={"n_units": 30}).fit(part(blobs, 0, 1)))
    first = path.read_bytes()
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(part(blobs, 2)))
    rollback(path)
    assert path.read_bytes() == first
    assert kept(path) == ["1.evg", "2.evg", "log.json"]


def test_leftovers_are_cleaned_at_the_next_change(path: Path, blobs: Data) -> None:
    folder = path.with_name("model.evg.history")
    leftovers = [folder / ".9.evg.abc.part", path.with_name(".model.evg.x.part"), path.with_name(".model.evg.y.part")]
    leftovers[0].write_bytes(b"half")
    os.link(path, leftovers[1])
    leftovers[2].touch()
    foreign = [path.with_name(".other.evg.x.part"), path.with_name(".model.evg.z.part")]
    for file in foreign:
        file.write_bytes(b"somebody is writing this")
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(part(blobs, 5)))
    assert not any(file.exists() for file in leftovers)
    assert all(file.exists() for file in foreign)


def test_a_rollback_that_did_not_happen_is_not_told(path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(modelfile, "_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        rollback(path)
    monkeypatch.undo()
    assert [entry.what for entry in history(path)] == ["fit", "update", "update"]
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(part(blobs, 5)))
    assert [entry.what for entry in history(path)] == ["fit", "update", "update", "update"]


def test_damaged_revisions_are_not_restored(path: Path) -> None:
    before = path.read_bytes()
    target = path.with_name("model.evg.history") / "2.evg"
    body = bytearray(target.read_bytes())
    body[-50] ^= 1
    target.write_bytes(body)
    with pytest.raises(FileFormatError, match="checksum"):
        rollback(path)
    assert path.read_bytes() == before
    assert [entry.what for entry in history(path)] == ["fit", "update", "update"]


def test_missing_foreign_and_newer_files(path: Path, tmp_path: Path, blobs: Data) -> None:
    learner = open_model(path)
    for read in (open_model, history, rollback):
        with pytest.raises(ModelNotFoundError, match="No model"):
            read(tmp_path / "nothing.evg")
    assert not (tmp_path / "nothing.evg.history").exists()
    (tmp_path / "photo.jpg").write_bytes(b"a photo")
    for change in (lambda: commit(tmp_path / "photo.jpg", learner), lambda: history(tmp_path / "photo.jpg")):
        with pytest.raises(FileFormatError, match="evergrow model"):
            change()
    assert (tmp_path / "photo.jpg").read_bytes() == b"a photo"
    with pytest.raises(ModelWriteError, match="No folder"):
        commit(tmp_path / "no" / "model.evg", learner)
    with pytest.raises(NotFittedError):
        commit(tmp_path / "new.evg", Learner())
    assert not (tmp_path / "new.evg.history").exists()


def test_a_newer_model_is_neither_read_nor_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = open_model(path)
    monkeypatch.setattr("evergrow.core.archive.SCHEMA_VERSION", 99)
    learner.save(path)
    monkeypatch.undo()
    before = path.read_bytes()
    for use in (lambda: open_model(path), lambda: commit(path, learner), lambda: rollback(path)):
        with pytest.raises(NewerSchemaError, match="newer"):
            use()
    assert path.read_bytes() == before


def test_a_model_that_was_replaced_by_hand_is_kept_too(path: Path, blobs: Data) -> None:
    Learner(None, options={"n_units": 30}).fit(part(blobs, 4, 5)).save(path)  # its number 1 is taken already
    foreign = path.read_bytes()
    with locked_model(path) as learner:
        assert commit(path, learner.partial_fit(part(blobs, 0))) == 5
    rollback(path)
    assert path.read_bytes() == foreign


def test_a_fresh_fit_over_a_model_can_be_undone(path: Path, blobs: Data) -> None:
    before = path.read_bytes()
    assert commit(path, Learner(None, options={"n_units": 30}).fit(part(blobs, 4, 5))) == 4
    assert [change.what for change in history(path)] == ["fit"]
    rollback(path)
    assert path.read_bytes() == before


def test_a_copy_goes_on_by_itself(path: Path, tmp_path: Path, blobs: Data) -> None:
    copy = tmp_path / "copy.evg"
    copy.write_bytes(path.read_bytes())
    with locked_model(copy) as learner:
        assert commit(copy, learner.partial_fit(part(blobs, 5))) == 4
    rollback(copy)
    assert copy.read_bytes() == path.read_bytes()
    with pytest.raises(ParameterError, match="nothing to undo: none of the earlier states"):
        rollback(copy)


# -- kill -9 ------------------------------------------------------------------------------------------------

# Starting takes longer than anything else, so one process that is warm forks those that are killed.
NURSERY = """
import os
import shutil
import sys
import numpy as np
from evergrow.learner.modelfile import commit, locked_model
path = sys.argv[1]
X, y = np.random.default_rng(0).normal(size=(20, 8)), np.arange(20) % 2
warm = path + ".warm"
shutil.copy(path, warm)
with locked_model(warm) as learner:
    commit(warm, learner.partial_fit((X, y)))
for _ in sys.stdin:
    child = os.fork()
    if child:
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    while True:
        with locked_model(path) as learner:
            commit(path, learner.partial_fit((X, y)), keep=3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system: fork")
@pytest.mark.parametrize("rounds", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_model_is_old_or_new(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "model.evg"
    X, y = np.random.default_rng(0).normal(size=(20, 8)), np.arange(20) % 2
    commit(path, Learner(None, options={"n_units": 100}).fit((X, y)))
    delays = torch.rand(rounds, generator=generator(0, "kill")) * 0.25
    last = 1
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    patience = [0.5 * 2**more for more in range(6)]  # on a busy machine no change may be done in the times drawn
    for round_, delay in enumerate([*delays.tolist(), *patience]):
        if round_ >= rounds and last > 1:
            break
        kill_a_writer(nursery, delay)
        learner = open_model(path)  # checks the checksum of everything
        updates = len(learner.history_) - 1
        assert learner.n_samples_ == {0: 10 * (updates + 1), 1: 10 * (updates + 1)}
        assert learner.head_.class_counts_.tolist() == [10 * (updates + 1)] * 2
        assert learner.revision_ >= last
        last = learner.revision_
    nursery.communicate()
    with locked_model(path) as learner:
        commit(path, learner.partial_fit((X, y)), keep=3)
    assert last > 1
    assert not [file for file in tmp_path.rglob("*.part") if file.stat().st_nlink > 1 or "history" in str(file)]
    rollback(path)
    assert open_model(path).revision_ == last


def kill_a_writer(nursery: subprocess.Popen[str], delay: float) -> None:
    """Let the nursery start a process that changes the model all the time, and kill it after a while."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write("go\n")
    nursery.stdin.flush()
    child = int(nursery.stdout.readline())
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert int(nursery.stdout.readline()) == -signal.SIGKILL
