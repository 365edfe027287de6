"""Models learned shard by shard equal plainly learned ones."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.sources.samples import labelled, write_tar
from tests.engine.clouds import (
    SMALL,
    learned,
    learner,
    leftovers,
    points,
    scores,
    write_parts,
    write_points,
)

from evergrow import Learner
from evergrow.core.errors import (
    BusyError,
    EngineError,
    FileFormatError,
    InputError,
    ParameterError,
)
from evergrow.core.files import locked
from evergrow.data import Samples, Shard
from evergrow.data.arrays import ArraySource
from evergrow.engine import LocalEngine, shard_merge, worker_tasks
from evergrow.engine.job import JobReport, read_job
from evergrow.engine.runners import LocalRunner, ShardError


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Return the scores of a model that learned eight shards."""
    return scores(learned(write_points(tmp_path_factory.mktemp("data") / "points.npz")))


@pytest.fixture(scope="module")
def fifteen(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Return the scores of a model that learned the same in fifteen."""
    return scores(
        learned(
            write_points(tmp_path_factory.mktemp("data") / "points.npz"), shard_rows=20
        )
    )


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "parts")


def test_first_update_by_shards_equals_plain_fit(data: Path) -> None:
    plain = learner().fit(data)
    mine = learner().partial_fit(data, engine=LocalEngine(**SMALL))
    np.testing.assert_allclose(scores(mine), scores(plain), rtol=0, atol=1e-9)
    assert mine.state_.threshold() == pytest.approx(plain.state_.threshold(), abs=1e-9)
    (change,), (other,) = mine.state_.history, plain.state_.history
    assert (change.what, change.samples, change.classes, change.data) == (
        "fit",
        300,
        other.classes,
        other.data,
    )


def test_layer_is_grown_on_the_first_samples_only(data: Path, tmp_path: Path) -> None:
    sizes = {"shard_rows": 40, "first_rows": 100}
    options = {
        "n_units": 20,
        "alpha": 0.1,
        "readout": "ridge",
    }  # nothing is chosen from the data of a moment
    mine = Learner(options=options).fit(
        data, engine=LocalEngine(**sizes, folder=tmp_path / "job")
    )
    first = list(read_job(tmp_path / "job").manifest.first)
    X, y = points()
    names = np.array([f"class {code}" for code in y])
    rest = np.setdiff1d(np.arange(len(X)), first)
    plain = (
        Learner(options=options)
        .fit(X[first], names[first])
        .partial_fit(X[rest], names[rest])
    )
    np.testing.assert_allclose(scores(mine), scores(plain), rtol=0, atol=1e-9)
    assert mine.state_.label_counts == plain.state_.label_counts
    assert len(mine.state_.history[0].data) == 8  # a fingerprint per shard


def test_result_is_bit_identical_in_any_task_order(data, eight, monkeypatch) -> None:
    run = LocalRunner.run
    monkeypatch.setattr(
        LocalRunner, "run", lambda self, tasks: run(self, list(tasks)[::-1])
    )
    assert (scores(learned(data)) == eight).all()


def test_round_size_does_not_change_the_sum(data, fifteen, monkeypatch) -> None:
    monkeypatch.setattr(shard_merge.ShardMerge.__init__, "__defaults__", (4,))
    assert (scores(learned(data, shard_rows=20)) == fifteen).all()


def test_finished_job_keeps_only_its_result(data: Path, tmp_path: Path) -> None:
    mine = learned(data, folder=tmp_path / "job")
    assert leftovers(tmp_path / "job") == []
    again = Learner.load(tmp_path / "job" / "model.evg")
    assert (scores(again) == scores(mine)).all()
    engine = LocalEngine(**SMALL, folder=tmp_path / "job")
    twice = learner()
    nothing = {"failed": {}, "left_out": [], "unreadable": {}}
    assert engine.fit(twice, data).to_values() == {"rows": 300, "shards": 8, **nothing}
    assert (
        twice.state_.history == mine.state_.history
    )  # it is the model of before, and nothing was done twice
    (tmp_path / "job" / "model.evg").unlink()
    assert (scores(learned(data, folder=tmp_path / "job")) == scores(mine)).all()


def test_update_by_shards_equals_plain_update(data: Path, tmp_path: Path) -> None:
    more = write_points(tmp_path / "more.npz", seed=1, n=120, classes=8)
    plain = learner().fit(data)
    mine = learned(data)
    plain.partial_fit(more)
    mine.partial_fit(more, engine=LocalEngine(**SMALL))
    np.testing.assert_allclose(scores(mine), scores(plain), rtol=0, atol=1e-9)
    assert mine.state_.threshold() == pytest.approx(plain.state_.threshold(), abs=1e-9)
    assert [change.what for change in mine.state_.history] == ["fit", "update"]
    assert mine.state_.history[1].classes == ("class 6", "class 7")


def test_finished_update_is_not_repeated(data: Path, tmp_path: Path) -> None:
    engine = LocalEngine(**SMALL, folder=tmp_path / "job")
    more = write_points(tmp_path / "more.npz", seed=1, n=80, classes=8)
    start = learner().fit(data)
    first = copy.copy(start).partial_fit(more, engine=engine)
    assert (
        copy.copy(start).partial_fit(more, engine=engine).state_.history
        == first.state_.history
    )
    assert leftovers(tmp_path / "job") == []
    (tmp_path / "job" / "model.evg").unlink()
    assert (
        scores(copy.copy(start).partial_fit(more, engine=engine)) == scores(first)
    ).all()
    with pytest.raises(EngineError, match="differs in model"):
        first.partial_fit(more, engine=engine)


# -- interruptions and failures --------------------------------------------------------


def failing(
    monkeypatch: pytest.MonkeyPatch, work: str, after: int, error: Exception
) -> list[int]:
    """Make a kind of task fail once. Return the list of shards that it runs on."""
    original = worker_tasks.TASKS[work]
    asked = []

    def perform(job, task):
        asked.append(task.number)
        if len(asked) == after + 1:
            raise error
        return original(job, task)

    monkeypatch.setitem(worker_tasks.TASKS, work, perform)
    return asked


def stop(
    monkeypatch: pytest.MonkeyPatch,
    work: str,
    after: int,
    data: Path,
    folder: Path,
    **sizes: int,
) -> list[int]:
    """Interrupt a job after some tasks of a kind."""
    asked = failing(monkeypatch, work, after, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        learned(data, **sizes, folder=folder)
    return asked


@pytest.mark.parametrize("work", ["first", "statistics", "merge"])
def test_interrupted_job_resumes(data, fifteen, tmp_path, monkeypatch, work) -> None:
    sizes = {"shard_rows": 20}  # 15 shards, two levels of sums
    asked = stop(monkeypatch, work, 1, data, tmp_path / "job", **sizes)
    mine = learned(data, **sizes, folder=tmp_path / "job")
    assert (scores(mine) == fifteen).all()
    assert asked[:2] == [0, 1]
    assert work == "merge" or 0 not in asked[2:]  # what was done is not done again
    assert leftovers(tmp_path / "job") == []


def test_full_disk_stops_the_job_without_losing_results(
    data, eight, tmp_path, monkeypatch
) -> None:
    failing(
        monkeypatch, "statistics", 3, OSError(errno.ENOSPC, "No space left on device")
    )
    mine = learner(
        extract={"on_error": "skip"}
    )  # a full disk is no reason to leave a shard out
    engine = LocalEngine(**SMALL, folder=tmp_path / "job")
    with pytest.raises(
        EngineError,
        match=r"statistics of shard 3 failed: OSError.*No space left.*kept in",
    ):
        mine.fit(data, engine=engine)
    assert engine.fit(mine, data).failed == {}
    assert (scores(mine) == eight).all()


@pytest.mark.parametrize(
    ("stage", "done", "number"),
    [("first", 0, 4), ("statistics", 5, 1), ("statistics", 5, 4)],
)
@pytest.mark.parametrize("harm", ["cut", "altered", "another"])
def test_damaged_results_are_computed_again(
    data, eight, tmp_path, monkeypatch, stage, done, number, harm
) -> None:
    """A whole file of another shard is only recognised by its fingerprint."""
    stop(monkeypatch, "statistics", done, data, tmp_path / "job")
    three, path = (
        next((tmp_path / "job" / stage).glob(f"*-{n:06d}.evg")) for n in (3, number)
    )
    body = path.read_bytes()
    wrong = {
        "cut": body[:100],
        "altered": body[:-1] + bytes([body[-1] ^ 1]),
        "another": three.read_bytes(),
    }
    path.write_bytes(wrong[harm])
    assert (scores(learned(data, folder=tmp_path / "job")) == eight).all()


def test_swapped_first_features_are_detected(data, tmp_path, monkeypatch) -> None:
    def swap(*_: object) -> None:
        three, four = (
            (job / "first" / f"{read_job(job).key}-{n:06d}.evg") for n in (3, 4)
        )
        four.write_bytes(three.read_bytes())

    job = tmp_path / "job"
    monkeypatch.setattr("evergrow.engine.fitting._check_counts", swap)
    with pytest.raises(
        EngineError, match=r"-000004\.evg is gone, damaged or of another shard"
    ):
        learned(data, folder=job)


def read_otherwise(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Shard, Samples], Samples]
) -> None:
    """Change the samples that sources read."""
    original = ArraySource.read
    monkeypatch.setattr(
        ArraySource, "read", lambda self, shard: change(shard, original(self, shard))
    )


def damaged(shard: Shard, found: Samples) -> Samples:
    if shard.number == 2:
        raise InputError("its bytes are damaged")
    return found


def test_unreadable_shard_stops_the_job_unless_skipped(
    parts, tmp_path, monkeypatch
) -> None:
    sizes = {"shard_rows": 50}
    read_otherwise(monkeypatch, damaged)
    with pytest.raises(
        EngineError,
        match=r"shard 2 \(part-2\.npz\) cannot be read: its bytes are damaged",
    ):
        learned(parts, **sizes)
    engine = LocalEngine(**sizes, folder=tmp_path / "job")
    mine = learner(extract={"on_error": "skip"})
    tally = engine.fit(mine, parts)
    assert tally.failed.keys() == {"2"}
    assert "1 shards were left out: shard 2 (part-2.npz)" in tally.summary()[0]
    assert sum(mine.state_.label_counts.values()) == 250
    others = [points(seed=part, n=50) for part in range(6) if part != 2]
    X, y = (np.concatenate(values) for values in zip(*others, strict=True))
    plain = learner().fit(X, np.array([f"class {code}" for code in y]))
    np.testing.assert_allclose(scores(mine), scores(plain), rtol=0, atol=1e-9)
    assert (
        engine.fit(mine, parts).failed == tally.failed
    )  # as its folder tells it later


def test_truncated_file_is_named_and_left_out(parts: Path) -> None:
    (parts / "part-0.npz").write_bytes((parts / "part-0.npz").read_bytes()[:-300])
    with pytest.raises(
        FileFormatError, match=r"part-0\.npz must be an intact NPZ file"
    ):
        learned(parts)
    mine = learner(extract={"on_error": "skip"})
    tally = LocalEngine(shard_rows=50).fit(mine, parts)
    assert sum(mine.state_.label_counts.values()) == 250
    assert list(tally.unreadable) == ["part-0.npz"]
    assert "1 files could not be read and were left out" in tally.summary()[0]


def test_truncated_tars_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(3):
        write_tar(folder / f"{number}.tar", labelled(4 * number, 4))
    (folder / "1.tar").write_bytes((folder / "1.tar").read_bytes()[:3000])
    with pytest.raises(FileFormatError, match=r"1\.tar"):
        LocalEngine().manifest(folder)
    manifest = LocalEngine().manifest(folder, skip=True)
    assert list(manifest.unreadable) == ["1.tar"]
    assert {shard.where["file"] for shard in manifest.shards} == {"0.tar", "2.tar"}


def test_skipped_shard_is_retried(data, fifteen, tmp_path, monkeypatch) -> None:
    engine = LocalEngine(shard_rows=20, folder=tmp_path / "job")
    mine = learner(extract={"on_error": "skip"})
    with monkeypatch.context() as patch:
        failing(patch, "statistics", 11, ShardError("shard 11 cannot be read"))
        patch.setattr("evergrow.engine.fitting.complete_fit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.fit(mine, data)
    assert engine.fit(mine, data).failed == {}
    assert (scores(mine) == fifteen).all()
    assert leftovers(tmp_path / "job") == []


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_fit_without_a_readable_shard_raises_input_error(parts, monkeypatch) -> None:
    read_otherwise(
        monkeypatch, lambda shard, found: damaged(replace(shard, number=2), found)
    )
    with pytest.raises(InputError, match="at least one sample that can be read"):
        learner(extract={"on_error": "skip"}).fit(parts, engine=LocalEngine())


def test_identical_shards_all_count(tmp_path) -> None:
    X, y = points(n=80)
    path = tmp_path / "twice.npz"
    np.savez(path, X=np.concatenate([X, X]), y=np.concatenate([y, y]))
    plain = learner().fit(path)
    mine = learned(path)
    np.testing.assert_allclose(scores(mine), scores(plain), rtol=0, atol=1e-9)


@pytest.mark.parametrize("units", [1500, 5000])
def test_wide_layers_with_few_rows_keep_the_compact_form(
    data: Path, units: int
) -> None:
    plain, mine = (Learner(device="cpu", options={"n_units": units}) for _ in range(2))
    plain.fit(data)
    mine.fit(str(data), engine=LocalEngine(**SMALL))
    assert all(
        learner.head_.model_.state.basis is not None for learner in (mine, plain)
    )
    np.testing.assert_allclose(
        scores(mine), scores(plain), rtol=0, atol=1e-9 * np.abs(scores(plain)).max()
    )


def test_double_counted_shards_are_detected(data, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        JobReport,
        "add",
        lambda self, outcome: self.shards.update({"0": outcome.report}),
    )
    with pytest.raises(EngineError, match="every sample must be counted once"):
        learned(data, folder=tmp_path / "job")


# -- what is refused -------------------------------------------------------------------


def test_folder_of_another_job_is_rejected(data: Path, tmp_path: Path) -> None:
    learned(data, folder=tmp_path / "job")
    with pytest.raises(EngineError, match="differs in options"):
        Learner(options={"n_units": 30}).fit(
            data, engine=LocalEngine(**SMALL, folder=tmp_path / "job")
        )
    with pytest.raises(EngineError, match="differs in work"):
        LocalEngine(**SMALL, folder=tmp_path / "job").evaluate(
            learner().fit(data), data
        )


def test_fit_rejects_arrays_labels_and_unknown_engines(
    data: Path, tmp_path: Path
) -> None:
    X, y = points()
    with pytest.raises(InputError, match="must be an address or a Source"):
        learner().fit(X, engine=LocalEngine())
    with pytest.raises(ParameterError, match="y must be left out with an engine"):
        learner().fit(X, y, engine=LocalEngine())
    with pytest.raises(ParameterError, match="engine must be one of"):
        learner().fit(data, engine="spark")
    with locked(tmp_path), pytest.raises(BusyError):
        learned(data, folder=tmp_path)


def test_shards_with_different_widths_are_rejected(parts: Path, monkeypatch) -> None:
    read_otherwise(
        monkeypatch,
        lambda shard, found: replace(
            found, features=found.features[:, : 10 if shard.number < 4 else 9]
        ),
    )
    with pytest.raises(
        EngineError,
        match="the same number of features, got 10 in shard 0 and 9 in shard 4",
    ):
        learned(parts, shard_rows=50)
