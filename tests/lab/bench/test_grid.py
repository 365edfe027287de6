"""Grids: correct numbers, resuming, and isolation of runs from each other."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.lab.bench.conftest import WriteSpec, run

from evergrow.core.errors import BusyError
from evergrow.core.files import locked
from evergrow.data import load_features
from evergrow.lab.bench import load_spec, plan_grid
from evergrow.lab.records import load_record, load_records


def test_records_agree_with_an_independent_evaluation(folder: Path, head: type) -> None:
    outcome = run(folder / "spec.toml")
    assert outcome.exit_code == 0
    data = load_features(folder / "blobs.npz")
    for record in outcome.records:
        order = np.random.RandomState(record.seed).permutation(7)
        first = np.random.RandomState(1993).permutation(7)[:3]
        if record.seed == 1994:
            fresh = [c for c in order if c not in first][:3]
            order = np.array(fresh + [c for c in order if c not in fresh])
        tasks = [order[:3], order[3:6], order[6:]]
        matrix = np.full((3, 3), np.nan)
        overall = []
        for t in range(3):
            seen = np.concatenate(tasks[: t + 1])
            X = data.X_train.astype(np.float64)
            means = np.stack([X[data.y_train == c].mean(axis=0) for c in seen])
            rows = np.isin(data.y_test, seen)
            Z = data.X_test[rows].astype(np.float64)
            guess = seen[((Z[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)]
            right = guess == data.y_test[rows]
            overall.append(right.mean())
            for j in range(t + 1):
                matrix[t, j] = right[np.isin(data.y_test[rows], tasks[j])].mean()
        np.testing.assert_allclose(
            np.array(record.results["matrix"], dtype=float), matrix
        )
        np.testing.assert_allclose(record.results["by_samples"], overall)
        assert record.results["a_last"] == pytest.approx(overall[-1])
        assert record.results["a_avg"] == pytest.approx(np.mean(overall))
        assert len(record.times["update"]) == 2
        assert len(record.times["predict"]) == 3
        assert record.memory["peak_rss_bytes"] > 0


def test_one_predict_call_per_session(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(head, "hook", lambda event, self: calls.append(event))
    run(folder / "spec.toml", only=["seed=1993"])
    # The scores are asked for once more at the very end, for the accuracy within tasks.
    assert calls == [*["learn", "predict"] * 3, "predict"]


def test_online_stream_gives_mini_batches_and_the_same_answer(
    write_spec: WriteSpec, folder: Path
) -> None:
    whole = run(folder / "spec.toml").records[0]
    pieces = run(
        write_spec(("disjoint = true", "disjoint = true\nbatch_size = 4"))
    ).records[0]
    assert pieces.results["matrix"] == whole.results["matrix"]
    assert pieces.protocol["batch_size"] == 4


def test_first_mini_batches_are_joined_until_they_have_two_classes(
    write_spec: WriteSpec, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []
    monkeypatch.setattr("evergrow.lab.bench.stream_loop._GUIDED", (head,))
    monkeypatch.setattr(
        head, "hook", lambda event, self: sizes.append(list(self.batches_))
    )
    outcome = run(write_spec(("disjoint = true", "batch_size = 1")), only=["seed=1993"])
    assert outcome.exit_code == 0
    assert sizes[-1][0] >= 2
    assert set(sizes[-1][1:]) == {1}
    assert sum(sizes[-1]) == 42


def test_records_describe_the_run_but_not_the_machine(folder: Path) -> None:
    threads = torch.get_num_threads()
    outcome = run(folder / "spec.toml")
    assert torch.get_num_threads() == threads
    for step in outcome.steps:
        text = (outcome.folder / step.run.file_name).read_text()
        body = json.loads(text)
        assert (body["schema"], body["run_id"]) == ("evergrow-run", step.run.run_id)
        assert {"evergrow", "torch", "numpy", "python"} <= set(body["versions"])
        assert body["environment"]["threads"] == 1
        for secret in (str(folder), f"{Path.home()}/", os.uname().nodename):
            assert secret not in text


def test_only_finished_runs_are_skipped(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(folder / "spec.toml")
    calls: list[str] = []
    monkeypatch.setattr(head, "hook", lambda event, self: calls.append(event))
    again = run(folder / "spec.toml")
    assert calls == []
    assert [step.action for step in again.steps] == ["skip", "skip"]
    assert again.records == first.records
    damaged = first.folder / first.steps[1].run.file_name
    damaged.write_text(damaged.read_text()[:100])
    # As if a writer was killed.
    (first.folder / ".half.json.abc.part").write_text('{"schema"')
    third = run(folder / "spec.toml")
    assert [step.action for step in third.steps] == ["skip", "run"]
    assert "not valid JSON" in third.steps[1].note
    assert load_record(damaged).status == "ok"
    assert [path.suffix for path in first.folder.iterdir()] == [".json", ".json"]


def test_changed_data_under_the_same_name_runs_again(folder: Path) -> None:
    run(folder / "spec.toml")
    arrays = dict(np.load(folder / "blobs.npz"))
    np.savez(
        folder / "blobs.npz", **{**arrays, "X_train": arrays["X_train"] + np.float16(1)}
    )
    assert [
        step.action
        for step in plan_grid(
            load_spec(folder / "spec.toml"), output=folder / "out"
        ).steps
    ] == [
        "run",
        "run",
    ]


def test_data_that_vanishes_or_changes_during_the_grid_fails_its_runs_only(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evergrow.lab.bench.data import DataSource

    whole = DataSource.get
    calls: list[int] = []

    def gone(self: DataSource, entry: object) -> object:
        calls.append(1)
        if len(calls) == 1:  # the plan only describes the data
            raise FileNotFoundError("unmounted")
        return whole(self, entry)

    monkeypatch.setattr(DataSource, "get", gone)
    outcome = run(folder / "spec.toml")
    assert [step.status for step in outcome.steps] == ["failed", "ok"]


def test_newer_records_are_left_alone(folder: Path) -> None:
    outcome = run(folder / "spec.toml")
    path = outcome.folder / outcome.steps[0].run.file_name
    newer = path.read_text().replace('"schema_version": 1', '"schema_version": 99')
    path.write_text(newer)
    assert run(folder / "spec.toml").steps[0].status == "newer"
    assert path.read_text() == newer


def test_a_failed_run_is_recorded_and_the_grid_continues(write_spec: WriteSpec) -> None:
    path = write_spec(
        add='[[methods]]\nname = "test-ncm"\nlabel = "Bad"\n'
        'options = { fail = "no luck in /tmp/x/y" }\n'
    )
    outcome = run(path)
    assert outcome.exit_code == 1
    assert [step.status for step in outcome.steps] == ["ok", "failed"] * 2
    records, problems = load_records(outcome.folder)
    assert problems == {}
    failed = next(record for record in records.values() if record.status == "failed")
    assert failed.error is not None
    assert failed.error["type"] == "RuntimeError"
    assert failed.error["message"] == "no luck in .../y"
    assert "_learn" in failed.error["traceback"]
    assert len(failed.results["matrix"]) == 1  # the session before it failed
    assert "a_last" not in failed.results


def test_failed_runs_are_retried_only_on_request(
    write_spec: WriteSpec, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_spec(("n_units = 4", 'fail = "always"'))
    assert run(path).exit_code == 1
    monkeypatch.setattr(head, "hook", lambda event, self: setattr(self, "fail", ""))
    assert [step.action for step in run(path).steps] == ["failed", "failed"]
    assert run(path, retry_failed=True).exit_code == 0


def test_ctrl_c_cancels_the_run_and_the_next_call_continues(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(event: str, self: object) -> None:
        if event == "predict":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    monkeypatch.setattr(head, "hook", interrupt)
    outcome = run(folder / "spec.toml")
    assert outcome.exit_code == 130
    assert [step.status for step in outcome.steps] == ["cancelled", "pending"]
    assert [record.status for record in load_records(outcome.folder)[0].values()] == [
        "cancelled"
    ]
    monkeypatch.setattr(head, "hook", None)
    again = run(folder / "spec.toml")
    assert again.exit_code == 0
    assert [record.status for record in load_records(again.folder)[0].values()] == [
        "ok",
        "ok",
    ]


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: locks")
def test_two_grids_do_not_share_a_folder(folder: Path) -> None:
    (folder / "out").mkdir()
    with locked(folder / "out"), pytest.raises(BusyError, match="another process"):
        run(folder / "spec.toml")


def test_warnings_are_recorded(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    monkeypatch.setattr(
        head,
        "hook",
        lambda event, self: warnings.warn("mind the gap", UserWarning, stacklevel=1),
    )
    assert run(folder / "spec.toml").records[0].warnings == [
        "UserWarning: mind the gap"
    ]
