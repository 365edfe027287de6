"""What runs the tasks of a job: the processes of this machine, or a Ray cluster.

A task is a plain description and its result is a file, so that a runner may run it
twice, on any machine, in any order. Neither scheduler is ours: loky keeps the
processes, Ray places tasks and tries again what a lost worker or node took with it.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from evergrow.core.errors import EngineError, EvergrowError, ParameterError
from evergrow.core.optional import require
from evergrow.core.validation import check_number

TRIES = 4
"""How often a task may begin on a worker that then dies, before it counts as failed."""


@dataclass(frozen=True)
class WorkerTask:
    """One piece of work.

    Parameters
    ----------
    work : str
        What is to be done, such as ``"statistics"`` or ``"merge"``.
    number : int
        Which one of them, in the order of the plan.
    about : dict
        Addresses of files and settings. Plain JSON values, no data.
    """

    work: str
    number: int
    about: dict[str, Any] = field(default_factory=dict)


Perform = Callable[[WorkerTask], Any]
"""Does a task and returns its report; workers import it by its module and name."""


@dataclass(frozen=True)
class TaskResult:
    """How a task ended.

    Parameters
    ----------
    task : WorkerTask
        The task.
    state : {"done", "failed", "unreadable"}
        Whether its file of results is there, it failed, or its shard cannot be read.
    report : object
        What the task reports; None where it failed.
    error : str
        Why it failed; empty where it did not.
    """

    task: WorkerTask
    state: Literal["done", "failed", "unreadable"]
    report: Any = None
    error: str = ""


class ShardError(EngineError):
    """A shard cannot be read; the message names it. A job may go on without it."""


class UnfitWorkerError(EngineError):
    """A worker has other versions or weights than the job, or does not reach its folder. It ends the job."""


def task_result(task: WorkerTask, perform: Perform) -> TaskResult:
    """Do a task and return its result; an exception becomes the reason of a failure, in one line.

    Parameters
    ----------
    task : WorkerTask
        The task.
    perform : callable
        Does it.

    Raises
    ------
    UnfitWorkerError
        If the task finds that this process is not fit for the job; the message names
        the machine.
    """
    try:
        return TaskResult(task, "done", perform(task))
    except UnfitWorkerError as error:
        raise UnfitWorkerError(f"node {socket.gethostname()}: {error}") from error
    except (
        Exception
    ) as error:  # a worker goes on with its next task, and the driver decides
        text = " ".join(str(error).split())[:400]
        # Where an error is none of ours, its type often says more than its text.
        if isinstance(error, EvergrowError):
            reason = text
        else:
            reason = f"{type(error).__name__}: {text}"
        return TaskResult(
            task,
            "unreadable" if isinstance(error, ShardError) else "failed",
            error=reason,
        )


# -- processes of this machine ---------------------------------------------------------


class LocalRunner:
    """Runs tasks here: in this process, or in several that share its cores.

    Parameters
    ----------
    perform : callable
        Does a task.
    workers : int
        Processes; with 1 the tasks run in this one.

    Examples
    --------
    >>> from evergrow.engine.runners import LocalRunner, WorkerTask
    >>> from evergrow.engine.worker_tasks import perform
    >>> [(result.state, result.error) for result in LocalRunner(perform).run([WorkerTask("nonsense", 0)])]
    [('failed', "work must be one of ..., got 'nonsense'")]
    """

    def __init__(self, perform: Perform, workers: int = 1) -> None:
        check_number("workers", workers, low=1, integer=True)
        self.workers = workers
        self._perform = perform
        self._pool: Any = None

    def run(self, tasks: Sequence[WorkerTask]) -> Iterator[TaskResult]:
        """Run tasks and yield results as they come, in any order; closing the iterator ends what still runs.

        A task whose worker dies is run again, a few times, and then yielded as failed.
        :class:`UnfitWorkerError` is raised where a worker is not what the job needs.
        """
        if self.workers == 1:
            yield from (task_result(task, self._perform) for task in tasks)
            return
        waiting = deque((task, 0) for task in tasks)
        running = dict[Future[TaskResult], tuple[WorkerTask, int]]()
        suspects: deque[tuple[WorkerTask, int]] = (
            deque()
        )  # with the number of workers that died on them
        try:
            while waiting or suspects or running:
                # A pool breaks as a whole when one process dies. Whatever ran then is
                # run again by itself, so that a task which kills its worker is told
                # from those beside it.
                if suspects:
                    if running:
                        ready = []
                    else:
                        ready = [suspects.popleft()]
                else:
                    ready = [
                        waiting.popleft()
                        for _ in range(min(self.workers - len(running), len(waiting)))
                    ]
                for task, deaths in ready:
                    running[
                        self._started().submit(task_result, task, self._perform)
                    ] = (task, deaths)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task, deaths = running.pop(future)
                    try:
                        yield future.result()
                    except BrokenExecutor:
                        self._end(kill=True)
                        if deaths + 1 < TRIES:
                            suspects.append((task, deaths + 1))
                        else:
                            yield TaskResult(
                                task, "failed", error=f"its worker died {TRIES} times"
                            )
        finally:
            if running:
                self._end(kill=True)

    def close(self) -> None:
        """End the workers."""
        self._end(kill=False)

    def _started(self) -> Any:
        if self._pool is None:
            from loky import ProcessPoolExecutor

            threads = str(max(1, (os.cpu_count() or 1) // self.workers))
            names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
            self._pool = ProcessPoolExecutor(
                self.workers,
                initializer=_start_worker,
                initargs=(os.getpid(),),
                env=dict.fromkeys(names, threads),
            )
        return self._pool

    def _end(self, *, kill: bool) -> None:
        pool = self._pool
        self._pool = None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=kill)


def _start_worker(driver: int) -> None:
    """Leave Ctrl-C to the driver, and end with it: also in the middle of a task, since results appear in one step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave_with_driver() -> None:
        while os.getppid() == driver:
            time.sleep(0.5)
        os._exit(1)

    if os.name == "posix":
        threading.Thread(target=leave_with_driver, daemon=True).start()


# -- Ray -------------------------------------------------------------------------------

_SECONDS_TO_ANSWER = 5.0
"""How long a port may take to be opened."""
_PATIENCE = 300.0
"""Seconds without a result and without a node that could give one, after which there is no point in waiting."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Keep Ray from writing to standard error and from reporting its use."""
_OBJECT_STORE = (
    80 * 1024 * 1024
)  # the least that Ray takes: results are files, and only small messages go through it


class RayRunner:
    """Runs tasks on a Ray cluster, or on a Ray of this machine, as :class:`LocalRunner` does.

    Parameters
    ----------
    perform : callable
        Does a task.
    address : str
        ``"host:port"`` of a cluster's head, ``"ray://host:port"`` of its client server,
        or ``"local"`` for one that is started here. ``"auto"`` takes the cluster that
        this machine belongs to or ``RAY_ADDRESS`` names, and starts one here where
        there is none.
    workers : int or None
        Tasks at a time. By default as many as fit: one per GPU where workers have one,
        else one per core.
    gpus_per_worker : float
        GPUs of a worker; 0.5 lets two share one.
    cpus_per_worker : int
        Cores of a worker: one computes, the others decode images beside it.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    EngineError
        If nobody answers at the address, or no node has room for a worker.

    Examples
    --------
    >>> from evergrow.engine.runners import RayRunner
    >>> from evergrow.engine.worker_tasks import perform
    >>> RayRunner(perform, workers=0)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: workers must be an integer >= 1, got 0
    """

    def __init__(
        self,
        perform: Perform,
        address: str = "auto",
        workers: int | None = None,
        gpus_per_worker: float = 0,
        cpus_per_worker: int = 1,
    ) -> None:
        if workers is not None:
            check_number("workers", workers, low=1, integer=True)
        check_number("gpus_per_worker", gpus_per_worker, low=0)
        check_number("cpus_per_worker", cpus_per_worker, low=1, integer=True)
        self._needs = {"CPU": float(cpus_per_worker), "GPU": float(gpus_per_worker)}
        self._perform = perform
        self._ray: Any = require("ray", extra="ray", purpose="work on a cluster")
        self._owned = not self._ray.is_initialized()
        if self._owned:
            _connect(self._ray, address, cpus=(workers or 1) * cpus_per_worker)
        elif address not in ("auto", "local") and not address.startswith("ray://"):
            here = str(self._ray.get_runtime_context().gcs_address)
            if (
                here.rpartition(":")[2] != address.rpartition(":")[2]
            ):  # a host has many names, so ports are compared
                raise EngineError(
                    f"This process is connected to the Ray at {here} already, not to {address}."
                )
        room = self._room()
        if room == 0:
            self.close()
            needs = " and ".join(
                f"{number:g} {name}" for name, number in self._needs.items() if number
            )
            raise EngineError(
                f"No node of the Ray at {address!r} has {needs} for a worker."
            )
        self.workers = workers or room

    def run(self, tasks: Sequence[WorkerTask]) -> Iterator[TaskResult]:
        """Run tasks and yield results as they come; see :meth:`LocalRunner.run`."""
        remote = self._ray.remote(
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs["GPU"],
            max_retries=TRIES - 1,
            # A process is kept, and with it the backbone that it has loaded
            max_calls=0,
            scheduling_strategy="SPREAD",
        )(task_result)
        waiting = deque(tasks)
        running = dict[Any, WorkerTask]()
        since = time.monotonic()
        try:
            while waiting or running:
                while (
                    waiting and len(running) < 2 * self.workers
                ):  # the next ones wait where Ray will start them
                    task = waiting.popleft()
                    beside = replace(
                        task,
                        about={"decoders": int(self._needs["CPU"]) - 1, **task.about},
                    )
                    running[remote.remote(beside, self._perform)] = task
                done, _ = self._ray.wait(list(running), num_returns=1, timeout=5.0)
                if done or self._room():
                    since = time.monotonic()
                elif time.monotonic() - since > _PATIENCE:
                    raise EngineError(
                        f"Ray had no room for a worker for {_PATIENCE:.0f} s."
                    )
                for promise in done:
                    task = running.pop(promise)
                    try:
                        yield self._ray.get(promise)
                    except UnfitWorkerError as error:
                        raise error.cause from None  # type: ignore[attr-defined]  # Ray wraps it with a traceback
                    except self._ray.exceptions.RayError as error:
                        reason = f"its worker died {TRIES} times, at last: {_telling_line(error)}"
                        yield TaskResult(task, "failed", error=reason)
        finally:
            with suppress(
                Exception
            ):  # Ctrl-C, an error, or nobody wants the rest; the whole cluster may be gone
                for promise in running:
                    self._ray.cancel(promise, force=True)
                if running:  # Ray must not be left before it has seen them end
                    self._ray.wait(
                        list(running), num_returns=len(running), timeout=20.0
                    )

    def close(self) -> None:
        """Leave Ray, and end it where it was started here."""
        if self._owned:
            self._owned = False
            self._ray.shutdown()

    def _room(self) -> int:
        """Return how many workers the nodes have room for."""
        needs = [(name, number) for name, number in self._needs.items() if number]
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(
            int(min(node.get(name, 0.0) // number for name, number in needs))
            for node in nodes
        )


def _connect(ray: Any, address: str, *, cpus: int) -> None:
    """Join the cluster at an address, or start one here; errors have one line."""
    settings: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
    }
    own = {
        "num_cpus": max(cpus, os.cpu_count() or 1),
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE,
    }
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    named = os.environ.get("RAY_ADDRESS", "auto")
    if address == "auto":
        address = named
    else:
        address = address
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if address not in ("auto", "local"):
                _knock(address)
                ray.init(
                    address=address,
                    **({} if address.startswith("ray://") else settings),
                )
            else:
                if address == "auto":
                    with suppress(ConnectionError):  # no cluster runs on this machine
                        ray.init(address="auto", **settings)
                if not ray.is_initialized():
                    ray.init(address="local", **settings, **own)
        except EvergrowError:
            raise
        except (
            SystemExit,
            Exception,
        ) as error:  # Ray ends the process for some reasons that are none of ours
            raise EngineError(
                f"No Ray could be joined or started at {address!r}: {_telling_line(error)}"
            ) from error
        # The death of a worker is a paragraph on standard error, which no setting of
        # Ray turns off.
        internals: Any = importlib.import_module("ray._private.worker")
        if hasattr(internals, "_worker_logs_enabled"):
            internals._worker_logs_enabled = False


_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a gRPC client begins: the preface of HTTP/2 and an empty frame of settings, type 4; a server sends one too."""


def _knock(address: str) -> None:
    """Raise unless a gRPC server, as Ray's are, answers at an address: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ParameterError(
            f"address must be HOST:PORT, ray://HOST:PORT, 'auto' or 'local', got {address!r}"
        )
    plain = os.environ.get("RAY_USE_TLS", "0") in ("0", "")
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), _SECONDS_TO_ANSWER
        ) as line:
            line.sendall(_HELLO)
            frame = b""
            if plain:
                frame = line.makefile("rb").read(9)
    except OSError as error:
        raise EngineError(
            f"Nobody answers at {address}: {error.strerror or error}. Start a head there with 'ray start --head'."
        ) from error
    if plain and frame[3:4] != b"\x04":
        raise EngineError(
            f"What answers at {address} is no Ray: look for another program on that port."
        )


def _telling_line(error: BaseException) -> str:
    """Return the line of Ray's many that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith(
        "Version mismatch"
    ):  # the versions stand on lines of their own
        return f"{' '.join(lines)}. Install the same Ray and the same Python here and there"[
            :400
        ]
    telling = [
        line
        for line in lines
        if "Error" in line.partition(":")[0] and " " not in line.partition(":")[0]
    ]
    return (telling[-1] if telling else lines[0] if lines else type(error).__name__)[
        :300
    ]


Runner = LocalRunner | RayRunner
"""What runs tasks: the processes of this machine, or a cluster."""
