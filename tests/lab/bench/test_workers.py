"""Runs on several processes or machines write the same records as sequential runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.commands import evergrow
from tests.lab.bench.conftest import WriteSpec

from evergrow.core.errors import EngineError
from evergrow.engine import LocalEngine, RayEngine
from evergrow.engine.runners import TaskResult, UnfitWorkerError, WorkerTask
from evergrow.engine.worker_tasks import versions
from evergrow.lab.bench import load_spec, run_grid
from evergrow.lab.bench.workers import perform

METHODS = """name = "ranpac"
options = { n_units = 30 }
sweep = { alpha = [0.1, 1.0] }

[[methods]]
name = "simplecil"
"""


@pytest.fixture
def spec(write_spec: WriteSpec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    fake = 'name = "test-ncm"\nlabel = "NCM"\noptions = { n_units = 4 }\n'
    write_spec((fake, METHODS), ("threads = 1", "threads = 1\nconfusion = true"))
    return Path("spec.toml")  # relative: workers may have another working folder


def comparable(record: Any) -> dict[str, Any]:
    """Return what a record says, but for when and how fast it was."""
    values = asdict(record)
    for key in ("started", "ended", "times", "memory"):
        values.pop(key)
    return values


def check_equal(spec: Path, engine: Any) -> None:
    here = run_grid(load_spec(spec), output="here")
    there = run_grid(load_spec(spec), output="there", engine=engine)
    assert [step.status for step in there.steps] == ["ok"] * 6
    assert [comparable(record) for record in there.records] == [
        comparable(record) for record in here.records
    ]
    assert sorted(path.name for path in Path("there").iterdir()) == sorted(
        path.name for path in Path("here").iterdir()
    )
    again = run_grid(load_spec(spec), output="there", engine=engine)
    assert [step.action for step in again.steps] == ["skip"] * 6


@pytest.mark.slow
def test_records_of_local_processes_are_the_same(spec: Path) -> None:
    check_equal(spec, LocalEngine(workers=2))


@pytest.mark.slow
def test_records_of_ray_workers_are_the_same(spec: Path) -> None:
    pytest.importorskip("ray")
    check_equal(spec, RayEngine(address="local", workers=2))


def test_a_worker_with_other_data_or_versions_raises(spec: Path) -> None:
    about = {
        "spec": str(spec.absolute()),
        "folder": "out",
        "device": "cpu",
        "dataset": 0,
        "run": "of other data",
    }
    with pytest.raises(EngineError, match="must be the same on every machine"):
        perform(WorkerTask("record", 0, {**about, "versions": versions()}))
    with pytest.raises(UnfitWorkerError, match=r"versions must be {'torch': '0\.1'}"):
        perform(WorkerTask("record", 0, {**about, "versions": {"torch": "0.1"}}))


class Failing:
    """A runner whose workers die, or write their records somewhere else."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def run(self, tasks: list[WorkerTask]) -> Any:
        assert all(
            set(task.about["versions"]) == {"evergrow", "torch"} for task in tasks
        )
        yield from (
            TaskResult(task, self._state, error="its worker died 3 times")
            for task in tasks
        )

    def close(self) -> None:
        pass


def test_a_run_of_a_killed_worker_is_recorded_as_failed(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "runner", lambda self, perform: Failing("failed"))
        outcome = run_grid(
            load_spec(spec),
            output="out",
            engine=LocalEngine(),
            only=["method=simplecil"],
        )
    assert [step.status for step in outcome.steps] == ["failed", "failed"]
    assert outcome.records[0].error["message"] == "its worker died 3 times"
    assert outcome.exit_code == 1
    outcome = run_grid(
        load_spec(spec), output="out", only=["method=simplecil"], retry_failed=True
    )
    assert [step.status for step in outcome.steps] == ["ok", "ok"]


def test_a_folder_not_shared_by_workers_raises(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalEngine, "runner", lambda self, perform: Failing("done"))
    with pytest.raises(
        EngineError, match="every worker must reach that folder by the same path"
    ):
        run_grid(load_spec(spec), output="out", engine=LocalEngine())


def test_the_command_takes_an_engine(spec: Path) -> None:
    result = evergrow(
        "lab", "run", str(spec), "-o", "out", "--engine", "local", "--workers", "1"
    )
    assert result.exit_code == 0, result.output
    assert "6 ok; records in out" in result.stdout
    assert len(list(Path("out").glob("*.json"))) == 6
