"""Tasks on Ray: the same files, whatever happens to workers and nodes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import ROOT, alive, descendants, wait_until
from tests.engine.toy_tasks import begun, expected_bytes, perform, tasks

from evergrow.core import imports
from evergrow.core.errors import EngineError, MissingExtraError, ParameterError
from evergrow.engine import runners
from evergrow.engine.runners import RayRunner, TaskResult

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def runner_of(cluster: Any) -> Iterator[Callable[..., RayRunner]]:
    """Return a function that creates runners, which are closed at the end."""
    made = []

    def make(workers: int | None = 2, **options: Any) -> RayRunner:
        made.append(RayRunner(perform, cluster.address, workers, **options))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def check_files(folder: Path, n: int, outcomes: list[TaskResult]) -> None:
    """Assert that every task has one valid result, and that nothing else exists."""
    assert Counter(outcome.task.number for outcome in outcomes) == Counter(range(n))
    assert [outcome.state for outcome in outcomes] == ["done"] * n
    for number in range(n):
        assert (folder / f"{number}.bin").read_bytes() == expected_bytes(number)


reads_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs Linux: /proc"
)


def test_tasks_run_on_both_nodes_with_a_bounded_queue(
    runner_of, tmp_path: Path
) -> None:
    runner = runner_of(None)
    assert runner.workers == 4  # one for each core; the head has none
    check_files(
        tmp_path, 30, list(runner.run(tasks(tmp_path, 30, seconds=0.4)))
    )  # time for the last worker to begin
    assert len({pid for _, pid in begun(tmp_path)}) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["begun", *(f"{n}.bin" for n in range(30))]
    )
    first = {pid for _, pid in begun(tmp_path)}
    list(runner.run(tasks(tmp_path, 8)))
    assert {pid for _, pid in begun(tmp_path)} == first, (
        "workers, and what they hold, are kept between calls"
    )


def test_exception_in_a_task_does_not_stop_the_others(
    runner_of, tmp_path: Path
) -> None:
    outcomes = {
        outcome.task.number: outcome
        for outcome in runner_of().run(tasks(tmp_path, 2, "refuse"))
    }
    assert outcomes[1].state == "failed"
    assert outcomes[1].error == "sample 1 must be finite, got NaN"
    assert outcomes[0].error == "KeyError: 0"


def test_task_that_kills_every_ray_worker_fails_alone(
    runner_of, tmp_path: Path
) -> None:
    outcomes = {
        outcome.task.number: outcome
        for outcome in runner_of().run(tasks(tmp_path, 4, "die_if_odd"))
    }
    assert [outcomes[number].state for number in range(4)] == [
        "done",
        "failed",
        "done",
        "failed",
    ]
    assert f"its worker died {runners.TRIES} times" in outcomes[3].error
    assert Counter(number for number, _ in begun(tmp_path))[3] == runners.TRIES


@reads_proc
def test_closing_the_iterator_cancels_ray_tasks(
    cluster: Any, runner_of, tmp_path: Path
) -> None:
    runner = runner_of()
    outcomes = runner.run(tasks(tmp_path, 20, seconds=0.5))
    next(outcomes)
    outcomes.close()
    time.sleep(1.5)  # whatever was on its way has begun by now, or never will
    stopped = len(begun(tmp_path))
    time.sleep(1.5)
    assert len(begun(tmp_path)) == stopped < 20
    check_files(
        tmp_path, 3, list(runner.run(tasks(tmp_path, 3)))
    )  # it can go on to other work
    runner.close()
    wait_until(lambda: not any(alive(pid) for _, pid in begun(tmp_path)))


def test_requirements_beyond_every_node_are_rejected(cluster: Any) -> None:
    with pytest.raises(
        EngineError, match=r"No node of the Ray at .* has 1 CPU and 1 GPU for a worker"
    ):
        RayRunner(perform, cluster.address, gpus_per_worker=1)


def test_close_keeps_a_ray_that_it_did_not_start(cluster: Any, tmp_path: Path) -> None:
    import ray

    ray.init(address=cluster.address, log_to_driver=False)
    try:
        runner = RayRunner(perform, workers=1)
        check_files(tmp_path, 2, list(runner.run(tasks(tmp_path, 2))))
        runner.close()
        assert ray.is_initialized()
        with pytest.raises(
            EngineError,
            match=r"already connected to the Ray at .*, not to 10.0.0.1:1",
        ):
            RayRunner(perform, "10.0.0.1:1")
    finally:
        ray.shutdown()


DRIVER = """
import sys
from pathlib import Path
from evergrow.engine.runners import RayRunner
from tests.engine.toy_tasks import perform, tasks
runner = RayRunner(perform, "local", 2)
try:
    for outcome in runner.run(tasks(Path(sys.argv[1]), 200, seconds=0.5)):
        pass
finally:
    runner.close()
"""


@reads_proc
def test_interrupted_driver_shuts_its_ray_down(
    tmp_path: Path,
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    driver = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: len(begun(tmp_path)) >= 2 or driver.poll() is not None)
        family = descendants(driver.pid)
        assert {pid for _, pid in begun(tmp_path)} <= family
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=120)
    finally:
        driver.kill()
    assert said.strip().endswith("KeyboardInterrupt")
    assert said.count("Traceback") == 1, (
        "nothing but the interrupt itself, and none of Ray's log"
    )
    wait_until(lambda: not any(map(alive, family)))


# -- addresses -------------------------------------------------------------------------


def test_unreachable_addresses_are_rejected(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(
            EngineError, match=rf"Nobody answers at {address}: "
        ) as caught:
            RayRunner(perform, address)
        assert "\n" not in str(caught.value)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(EngineError, match=rf"Nobody answers at {address}: "):
            RayRunner(perform)
    assert capfd.readouterr() == ("", "")


def test_other_ray_version_is_reported(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    there = ray.__version__
    monkeypatch.setattr(ray, "__version__", "1.0.0")
    with pytest.raises(
        EngineError,
        match=rf"Version mismatch: .* Ray: {there} .* Ray: 1\.0\.0 .* same Ray",
    ) as caught:
        RayRunner(perform, cluster.address)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    RayRunner(perform, cluster.address, 1).close()  # and nothing of it stays


@pytest.mark.parametrize(
    "address",
    ["head", "head:", ":6379", "head:port", "head:99999", "ray://", "http://head:80/x"],
)
def test_invalid_addresses_are_rejected(address: str) -> None:
    with pytest.raises(
        ParameterError,
        match="address must be HOST:PORT, ray://HOST:PORT, 'auto' or 'local', got",
    ):
        RayRunner(perform, address)


def test_auto_without_a_cluster_starts_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    runner = RayRunner(perform, workers=1)
    check_files(tmp_path, 2, list(runner.run(tasks(tmp_path, 2))))
    runner.close()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no Ray"),
        (b"", "is no Ray"),
        (None, "Nobody answers .*timed out"),
    ],
)
def test_servers_that_are_not_ray_are_rejected(
    reply: bytes | None, message: str
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    silent = []

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                if reply is None:
                    silent.append(connection)
                    continue
                with connection:
                    connection.recv(100)
                    connection.sendall(reply)

    threading.Thread(target=answer, daemon=True).start()
    with server:
        for address in ("127.0.0.1:{}", "ray://127.0.0.1:{}"):
            with pytest.raises(EngineError, match=message) as caught:
                RayRunner(perform, address.format(server.getsockname()[1]))
            assert "\n" not in str(caught.value)
    for connection in silent:
        connection.close()


def test_missing_ray_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(imports.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'evergrow\[ray\]'"):
        RayRunner(perform)
