"""Accuracy within tasks in records: from scores alone, untimed and optional."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.bench.conftest import WriteSpec, run

from evergrow.data import load_features
from evergrow.lab.metrics import first_tasks, within_tasks
from evergrow.lab.records import Record
from evergrow.lab.streams import Protocol, make_stream

KEYS = {"a_last_within", "within_tasks"}


def finished(path: Path, **options: Any) -> list[Record]:
    outcome = run(path, **options)
    assert outcome.exit_code == 0, [record.error for record in outcome.records]
    return outcome.records


def check(
    record: Record,
    scores: np.ndarray,
    classes: np.ndarray,
    y: np.ndarray,
    tasks: list[Any],
) -> None:
    expected = within_tasks(scores, classes, y, first_tasks(tasks), n_tasks=len(tasks))
    assert record.results["a_last_within"] == pytest.approx(
        expected.accuracy, abs=1e-12
    )
    assert record.results["within_tasks"] == pytest.approx(
        expected.by_task.tolist(), abs=1e-12
    )


def mean_scores(data: Any, classes: np.ndarray) -> np.ndarray:
    X = data.X_train.astype(np.float64)
    Z = data.X_test.astype(np.float64)
    means = np.stack([X[data.y_train == c].mean(axis=0) for c in classes])
    return -np.sqrt(((Z[:, None] - means[None]) ** 2).sum(axis=2))


# -- what is on record -----------------------------------------------------------------


def test_a_head_agrees_with_a_computation_by_hand(folder: Path) -> None:
    data = load_features(folder / "blobs.npz")
    record = finished(folder / "spec.toml", only=["seed=1993"])[0]
    order = np.random.RandomState(1993).permutation(7).tolist()
    tasks = [order[:3], order[3:6], order[6:]]
    check(record, mean_scores(data, np.arange(7)), np.arange(7), data.y_test, tasks)
    # There are errors within tasks and between tasks.
    assert record.results["a_last"] < record.results["a_last_within"] < 1
    assert record.results["within_tasks"][2] == 1  # one class alone
    assert record.warnings == []


@pytest.mark.parametrize("repeat", [0.5, 0.95])
def test_a_recurring_class_belongs_to_its_first_task(
    write_spec: WriteSpec, folder: Path, repeat: float
) -> None:
    path = write_spec(
        ("increment = 3\ndisjoint = true", f"increment = 2\nrepeat = {repeat}")
    )
    data = load_features(folder / "blobs.npz")
    for record in finished(path):
        stream = make_stream(
            data.y_train,
            data.y_test,
            Protocol(increment=2, repeat=repeat),
            seed=record.seed,
        )
        assert any(len(task.classes) > len(task.new_classes) for task in stream)
        tasks = [task.new_classes for task in stream]
        check(record, mean_scores(data, np.arange(7)), np.arange(7), data.y_test, tasks)


@pytest.mark.parametrize("increment", [1, 2])
def test_two_classes_with_their_single_column_of_scores(
    write_spec: WriteSpec, folder: Path, increment: int
) -> None:
    rng = np.random.default_rng(5)
    y = np.repeat(np.arange(2), 40)
    X = rng.normal(size=(80, 3)) + y[:, None]
    np.savez(
        folder / "blobs.npz",
        X_train=X,
        y_train=y,
        X_test=X + rng.normal(size=X.shape),
        y_test=y,
    )
    record = finished(
        write_spec(("increment = 3\ndisjoint = true", f"increment = {increment}"))
    )[0]
    assert 0.5 < record.results["a_last"] < 1
    assert record.results["a_last_within"] == pytest.approx(
        1.0 if increment == 1 else record.results["a_last"]
    )


def test_a_joint_method_has_within_task_accuracy_after_its_evaluation(
    folder: Path, head: type, monkeypatch
) -> None:
    monkeypatch.setattr(head, "joint", True, raising=False)
    record = finished(folder / "spec.toml", only=["seed=1993"])[0]
    assert record.results["a_avg"] is None
    assert record.results["a_last"] <= record.results["a_last_within"] <= 1
    assert len(record.results["within_tasks"]) == 3


# -- what it must not touch ------------------------------------------------------------


def test_recorded_predictions_come_from_predict_not_from_scores(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = finished(folder / "spec.toml", only=["seed=1993"])[0]
    monkeypatch.setattr(
        head, "predict", lambda self, X: np.full(len(X), self.classes_[0])
    )
    next((folder / "out").glob("*.json")).unlink()
    stubborn = finished(folder / "spec.toml", only=["seed=1993"])[0]
    assert stubborn.results["a_last"] == pytest.approx(1 / 7)
    for key in KEYS:
        assert stubborn.results[key] == honest.results[key]


def test_within_task_accuracy_is_not_timed(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    asked: list[int] = []
    scores = head.decision_function

    def slow(self: Any, X: Any) -> Any:
        clock[0] += 1000
        asked.append(len(X))
        return scores(self, X)

    monkeypatch.setattr(head, "decision_function", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    record = finished(folder / "spec.toml", only=["seed=1993"])[0]
    assert asked == [42]  # once, about everything
    assert record.times == {
        "fit": 0.0,
        "update": [0.0, 0.0],
        "predict": [0.0, 0.0, 0.0],
    }


def test_a_method_without_scores_has_no_entry(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "decision_function", None)
    for record in finished(folder / "spec.toml"):
        assert not KEYS & set(record.results)
        assert record.results["a_last"] > 0
        assert record.warnings == []


@pytest.mark.parametrize("broken", ["raises", "shape", "nan"])
def test_failing_scores_warn_and_keep_the_finished_run(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def scores(self: Any, X: Any) -> Any:
        if broken == "raises":
            raise RuntimeError("out of luck")
        if broken == "shape":
            return np.zeros((len(X), 3))
        return np.full((len(X), 7), np.nan)

    monkeypatch.setattr(head, "decision_function", scores)
    record = finished(folder / "spec.toml", only=["seed=1993"])[0]
    assert not KEYS & set(record.results)
    (warning,) = record.warnings
    assert "accuracy within tasks was not recorded" in warning
    assert {
        "raises": "RuntimeError: out of luck",
        "shape": "(42, 3)",
        "nan": "got NaN",
    }[broken] in warning
