"""Local processes: every task has one result, whatever happens to workers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.clouds import SMALL, learned, learner, leftovers, scores
from tests.engine.conftest import ROOT, alive, killing
from tests.engine.toy_tasks import begun, expected_bytes, perform, pids, tasks

from evergrow.core.errors import EngineError, ParameterError
from evergrow.core.seeding import derive_seed
from evergrow.engine import LocalEngine
from evergrow.engine.job import read_job
from evergrow.engine.runners import TRIES, LocalRunner, WorkerTask
from evergrow.engine.worker_tasks import perform as shard_task
from evergrow.engine.worker_tasks import versions


@pytest.fixture
def runner() -> Iterator[LocalRunner]:
    runner = LocalRunner(perform, 2)
    yield runner
    runner.close()


def test_every_task_has_a_result_and_workers_are_reused(
    runner: LocalRunner, tmp_path: Path
) -> None:
    for _ in range(2):
        found = list(runner.run(tasks(tmp_path, 9)))
        assert sorted(outcome.task.number for outcome in found) == list(range(9))
        assert {outcome.state for outcome in found} == {"done"}
    assert {outcome.report["pid"] for outcome in found} <= set(pids(runner))
    assert 1 <= len(pids(runner)) <= 2
    assert (tmp_path / "3.bin").read_bytes() == expected_bytes(3)


def test_task_is_retried_after_its_worker_died(
    runner: LocalRunner, tmp_path: Path
) -> None:
    found = list(
        runner.run(
            [WorkerTask("die_once", 9, {"folder": str(tmp_path)}), *tasks(tmp_path, 5)]
        )
    )
    assert [outcome.state for outcome in found] == ["done"] * 6
    assert Counter(number for number, _ in begun(tmp_path))[9] == 2


def test_task_that_kills_every_worker_fails_alone(
    runner: LocalRunner, tmp_path: Path
) -> None:
    found = list(
        runner.run(
            [WorkerTask("die", 9, {"folder": str(tmp_path)}), *tasks(tmp_path, 5)]
        )
    )
    (failed,) = [outcome for outcome in found if outcome.state == "failed"]
    assert (failed.task.number, failed.error) == (9, f"its worker died {TRIES} times")
    assert len(found) == 6
    assert Counter(number for number, _ in begun(tmp_path))[9] == TRIES


def test_exception_in_a_task_becomes_a_failed_result(
    runner: LocalRunner, tmp_path: Path
) -> None:
    found = {
        outcome.task.number: outcome
        for outcome in runner.run(tasks(tmp_path, 2, "refuse"))
    }
    assert {outcome.state for outcome in found.values()} == {"failed"}
    assert found[1].error == "sample 1 must be finite, got NaN"


def test_closing_the_iterator_stops_running_tasks(
    runner: LocalRunner, tmp_path: Path
) -> None:
    outcomes = runner.run(
        [
            *tasks(tmp_path, 1),
            *(WorkerTask("sums", 1, {"folder": str(tmp_path), "seconds": 60}),) * 3,
        ]
    )
    next(outcomes)
    busy = pids(runner)
    outcomes.close()  # hangs for a minute if it waits
    runner.close()
    assert not [pid for pid in busy if alive(pid)]
    assert pids(runner) == []


@pytest.mark.slow
def test_worker_exits_with_its_driver(tmp_path: Path) -> None:
    """Kill -9 of the driver leaves no process behind, also in the middle of a task."""
    code = (
        "from evergrow.engine.runners import LocalRunner, WorkerTask\n"
        "from tests.engine.toy_tasks import perform, pids\n"
        f"runner, about = LocalRunner(perform, 2), {{'folder': {str(tmp_path)!r}}}\n"
        "about = [{**about, 'seconds': 60 * n} for n in range(3)]\n"
        "tasks = [WorkerTask('sums', n, about[n]) for n in range(3)]\n"
        "outcomes = runner.run(tasks)\n"
        "next(outcomes); print(*pids(runner), flush=True); next(outcomes)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    left = [int(word) for word in driver.stdout.readline().split()]
    assert left
    driver.kill()
    driver.wait()
    driver.stdout.close()
    for _ in range(200):
        if not any(map(alive, left)):
            return
        time.sleep(0.05)
    pytest.fail("a worker lives on without the process that started it")


def test_unfit_worker_ends_the_run(tmp_path: Path) -> None:
    about = {"folder": "/nowhere", "key": "", "device": "cpu", "versions": versions()}
    with pytest.raises(
        EngineError,
        match=r"^node \S+: folder must be one that every worker can write to, got /no",
    ):
        next(LocalRunner(shard_task).run([WorkerTask("first", 0, about)]))
    runner = LocalRunner(shard_task, 2)
    with pytest.raises(
        EngineError, match=r"^node \S+: versions must be {.torch.: .0\.1"
    ):
        next(
            runner.run(
                [WorkerTask("first", 0, {**about, "versions": {"torch": "0.1"}})]
            )
        )
    runner.close()
    with pytest.raises(ParameterError, match="workers must be"):
        LocalRunner(perform, 0)


@pytest.mark.slow
def test_job_gives_the_same_result_with_the_alias_of_numpy_2_5(
    data: Path, tmp_path: Path
) -> None:
    """NDArray is a type alias since NumPy 2.5, and records must recognise it."""
    code = (
        "from typing import Any, TypeVar; import numpy as np, numpy.typing\n"
        "from pathlib import Path; from typing_extensions import TypeAliasType\n"
        "S = TypeVar('S', bound=np.generic); kind = np.ndarray[Any, np.dtype[S]]\n"
        "numpy.typing.NDArray = TypeAliasType('NDArray', kind, type_params=(S,))\n"
        "from tests.engine.clouds import learned, scores\n"
        f"data, folder = Path({str(data)!r}), Path({str(tmp_path / 'job')!r})\n"
        "model = learned(data, folder=folder)\n"
        "print(scores(model).tobytes().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == scores(learned(data)).tobytes().hex()


# -- real workers ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(5))
def test_killed_workers_do_not_change_the_result(
    data: Path, tmp_path: Path, monkeypatch, moment: int
) -> None:
    sizes = {"shard_rows": 10, "first_rows": 150}  # 30 shards
    expected = scores(learned(data, **sizes))
    runners: list[LocalRunner] = []
    original = LocalRunner.__init__

    def kept(self, *arguments, **settings) -> None:
        original(self, *arguments, **settings)
        runners.append(self)

    monkeypatch.setattr(LocalRunner, "__init__", kept)
    draws = [
        derive_seed(0, "kill", moment, number) % 1000 / 500
        for number in range(TRIES - 1)
    ]
    with killing(lambda: pids(runners[0]) if runners else [], draws) as killed:
        mine = learned(data, **sizes, workers=2, folder=tmp_path / "job")
    assert killed
    assert (scores(mine) == expected).all()
    assert sum(mine.state_.label_counts.values()) == 300
    assert leftovers(tmp_path / "job") == []


@pytest.mark.slow
def test_restarted_driver_gives_the_same_result(data: Path, tmp_path: Path) -> None:
    expected = scores(learned(data))
    folder = str(tmp_path / "job")
    code = (
        "from pathlib import Path; from tests.engine.clouds import learned\n"
        f"learned(Path({str(data)!r}), workers=2, folder=Path({folder!r}))"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while (
        not list((tmp_path / "job").glob("statistics/*.evg")) and driver.poll() is None
    ):
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    assert not (tmp_path / "job" / "finished.json").exists()
    mine = learned(data, folder=tmp_path / "job")
    assert (scores(mine) == expected).all()
    assert leftovers(tmp_path / "job") == []
    assert read_job(tmp_path / "job").final_report().rows == 300


@pytest.mark.slow
def test_interrupt_stops_the_workers(data: Path, tmp_path: Path, monkeypatch) -> None:
    runners: list[LocalRunner] = []
    monkeypatch.setattr(
        LocalRunner,
        "close",
        lambda self, close=LocalRunner.close: (runners.append(self), close(self)),
    )

    def see(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evergrow.engine.job.JobReport.add", see)
    with pytest.raises(KeyboardInterrupt):
        learner().fit(
            data, engine=LocalEngine(workers=2, **SMALL, folder=tmp_path / "job")
        )
    assert pids(runners[0]) == []
