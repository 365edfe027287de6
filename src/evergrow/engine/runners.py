"""Run the tasks of a job: on processes of this machine, or on a Ray cluster.

A task is a plain description and its result is a file, so a task may run twice, on any
machine and in any order. loky manages local processes. Ray schedules tasks on a cluster
and repeats the tasks of lost workers.
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
from evergrow.core.imports import import_extra
from evergrow.core.validation import check_integer, check_number

TRIES = 4
"""How often a task is tried on workers that die before it counts as failed."""


@dataclass(frozen=True)
class WorkerTask:
    """One unit of work.

    Parameters
    ----------
    work : str
        Kind of the task, for example ``"statistics"`` or ``"merge"``.
    number : int
        Number of the shard, or index of the sum.
    about : dict
        Paths and settings, as JSON values, never data. The function that runs the task
        names the keys; for jobs this is
        :func:`evergrow.engine.worker_tasks.perform`.
    """

    work: str
    number: int
    about: dict[str, Any] = field(default_factory=dict)


Perform = Callable[[WorkerTask], Any]
"""Runs a task and returns its report. Workers import it by module and name."""


@dataclass(frozen=True)
class TaskResult:
    """Outcome of a task.

    Parameters
    ----------
    task : WorkerTask
        The task.
    state : {"done", "failed", "unreadable"}
        ``"done"``: the result file exists. ``"unreadable"``: the shard cannot be read.
    report : object
        Report of the task, None if it failed.
    error : str
        Reason of the failure, empty if there was none.
    """

    task: WorkerTask
    state: Literal["done", "failed", "unreadable"]
    report: Any = None
    error: str = ""


class ShardError(EngineError):
    """A shard cannot be read. The message names it. A job may continue without it."""


class UnfitWorkerError(EngineError):
    """A worker cannot work on the job: wrong versions or weights, or no folder.

    The job ends.
    """


def task_result(task: WorkerTask, perform: Perform) -> TaskResult:
    """Run a task. An exception becomes a result with a one-line reason.

    Parameters
    ----------
    task : WorkerTask
        The task.
    perform : callable
        Runs it.

    Raises
    ------
    UnfitWorkerError
        If this process cannot work on the job. The message names the machine.
    """
    try:
        return TaskResult(task, "done", perform(task))
    except UnfitWorkerError as error:
        raise UnfitWorkerError(f"node {socket.gethostname()}: {error}") from error
    except Exception as error:
        # The worker continues with its next task, and the driver decides.
        reason = " ".join(str(error).split())[:400]
        if not isinstance(error, EvergrowError):
            reason = f"{type(error).__name__}: {reason}"
        if isinstance(error, ShardError):
            return TaskResult(task, "unreadable", error=reason)
        return TaskResult(task, "failed", error=reason)


# -- processes of this machine

_Attempt = tuple[WorkerTask, int]
"""A task, and the number of workers that died on it."""


class LocalRunner:
    """Runs tasks on this machine, in this process or in several.

    Parameters
    ----------
    perform : callable
        Runs a task.
    workers : int, default=1
        Number of processes, started with the first task. With 1 the tasks run in the
        calling process.

    Examples
    --------
    >>> from evergrow.engine.runners import LocalRunner, WorkerTask
    >>> from evergrow.engine.worker_tasks import perform
    >>> [result] = LocalRunner(perform).run([WorkerTask("nonsense", 0)])
    >>> result.state, result.error
    ('failed', "work must be one of ..., got 'nonsense'")
    """

    def __init__(self, perform: Perform, workers: int = 1) -> None:
        check_integer("workers", workers)
        self.workers = workers
        self._perform = perform
        self._pool: Any = None

    def run(self, tasks: Sequence[WorkerTask]) -> Iterator[TaskResult]:
        """Run tasks and yield results as they finish, in any order.

        Closing the iterator stops running tasks. A task whose worker dies is tried
        :data:`TRIES` times and then yielded as failed.

        Raises
        ------
        UnfitWorkerError
            If a worker cannot work on the job.
        """
        if self.workers == 1:
            yield from (task_result(task, self._perform) for task in tasks)
            return
        waiting: deque[_Attempt] = deque((task, 0) for task in tasks)
        suspects: deque[_Attempt] = deque()
        running = dict[Future[TaskResult], _Attempt]()
        try:
            while waiting or suspects or running:
                for task, deaths in self._ready(waiting, suspects, len(running)):
                    future = self._started_pool().submit(
                        task_result, task, self._perform
                    )
                    running[future] = (task, deaths)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task, deaths = running.pop(future)
                    try:
                        yield future.result()
                    except BrokenExecutor:
                        self._end(kill=True)
                        if deaths + 1 < TRIES:
                            suspects.append((task, deaths + 1))
                        else:
                            reason = f"its worker died {TRIES} times"
                            yield TaskResult(task, "failed", error=reason)
        finally:
            if running:
                self._end(kill=True)

    def _ready(
        self, waiting: deque[_Attempt], suspects: deque[_Attempt], n_running: int
    ) -> list[_Attempt]:
        """Remove the tasks to start now from the queues, and return them.

        When one process dies, the whole pool breaks. All tasks that were running become
        suspects. They are repeated one at a time, to find the one that kills its
        worker.
        """
        if suspects:
            return [] if n_running else [suspects.popleft()]
        n_free = self.workers - n_running
        return [waiting.popleft() for _ in range(min(n_free, len(waiting)))]

    def close(self) -> None:
        """Stop the workers."""
        self._end(kill=False)

    def _started_pool(self) -> Any:
        """Return the process pool, started on first use. Cores are shared equally."""
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
        """Stop the pool if there is one, with or without killing running tasks."""
        pool = self._pool
        self._pool = None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=kill)


def _start_worker(driver: int) -> None:
    """Prepare a new worker process: ignore Ctrl-C, and exit when the driver is gone.

    The driver, the process with this id, handles Ctrl-C. Exiting in the middle of a
    task is safe, because results are written atomically.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave_with_driver() -> None:
        while os.getppid() == driver:
            time.sleep(0.5)
        os._exit(1)

    if os.name == "posix":
        threading.Thread(target=leave_with_driver, daemon=True).start()


# -- Ray

_CONNECT_SECONDS = 5.0
"""Timeout of the connection to a cluster."""

_IDLE_SECONDS = 300.0
"""How long to wait for a result while no node has room for a worker."""

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings that keep Ray from writing to standard error and from reporting usage."""

_OBJECT_STORE = 80 * 1024 * 1024
"""Bytes of Ray's object store: Ray's minimum, because results are files instead."""


class RayRunner:
    """Runs tasks on a Ray cluster, or on a Ray instance of this machine.

    Parameters
    ----------
    perform : callable
        Runs a task.
    address : str, default="auto"
        ``"host:port"`` of a cluster's head, ``"ray://host:port"`` of its client server,
        or ``"local"`` to start an instance here. ``"auto"`` joins the cluster of this
        machine or of ``RAY_ADDRESS``, and starts an instance otherwise.
    workers : int, optional
        Number of concurrent tasks. By default as many as fit: one per GPU if workers
        use GPUs, else one per core.
    gpus_per_worker : float, default=0
        GPUs per worker. With 0.5 two workers share a GPU.
    cpus_per_worker : int, default=1
        CPU cores per worker. One core computes, the others decode images.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    EngineError
        If there is no Ray at the address, or no node has room for a worker.

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
            check_integer("workers", workers)
        check_number("gpus_per_worker", gpus_per_worker, low=0)
        check_integer("cpus_per_worker", cpus_per_worker)
        self._needs = {"CPU": float(cpus_per_worker), "GPU": float(gpus_per_worker)}
        self._perform = perform
        self._ray: Any = import_extra("ray", extra="ray", purpose="work on a cluster")
        self._owned = not self._ray.is_initialized()
        if self._owned:
            _connect(self._ray, address, cpus=(workers or 1) * cpus_per_worker)
        elif address not in ("auto", "local") and not address.startswith("ray://"):
            # Only ports are compared, because a host has several names.
            connected = str(self._ray.get_runtime_context().gcs_address)
            if connected.rpartition(":")[2] != address.rpartition(":")[2]:
                raise EngineError(
                    f"This process is already connected to the Ray at {connected}, "
                    f"not to {address}."
                )
        room = self._room()
        if room == 0:
            self.close()
            needs = " and ".join(
                f"{number:g} {name}" for name, number in self._needs.items() if number
            )
            raise EngineError(
                f"No node of the Ray at {address!r} has {needs} for a worker. Lower "
                "what a worker needs, or add a node."
            )
        self.workers = workers or room

    def run(self, tasks: Sequence[WorkerTask]) -> Iterator[TaskResult]:
        """Run tasks and yield results as they finish, as :meth:`LocalRunner.run` does.

        Every task gets ``decoders`` in ``about``, from the cores per worker.

        Raises
        ------
        UnfitWorkerError
            If a worker cannot work on the job.
        EngineError
            If no node has had room for a worker for some minutes.
        """
        remote = self._ray.remote(
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs["GPU"],
            max_retries=TRIES - 1,
            # Reuse worker processes, which keep the loaded backbone.
            max_calls=0,
            scheduling_strategy="SPREAD",
        )(task_result)
        waiting = deque(tasks)
        running = dict[Any, WorkerTask]()
        last_result = time.monotonic()
        try:
            while waiting or running:
                # A second task per worker is queued in Ray.
                while waiting and len(running) < 2 * self.workers:
                    task = waiting.popleft()
                    settings = {"decoders": int(self._needs["CPU"]) - 1, **task.about}
                    remote_task = replace(task, about=settings)
                    running[remote.remote(remote_task, self._perform)] = task
                done, _ = self._ray.wait(list(running), num_returns=1, timeout=5.0)
                if done or self._room():
                    last_result = time.monotonic()
                elif time.monotonic() - last_result > _IDLE_SECONDS:
                    raise EngineError(
                        f"Ray had no room for a worker for {_IDLE_SECONDS:.0f} s. "
                        "Check that the cluster's nodes are running."
                    )
                for promise in done:
                    task = running.pop(promise)
                    try:
                        yield self._ray.get(promise)
                    except UnfitWorkerError as error:
                        # Ray wraps the error with a traceback.
                        raise error.cause from None  # type: ignore[attr-defined]
                    except self._ray.exceptions.RayError as error:
                        last = _informative_line(error)
                        reason = f"its worker died {TRIES} times, at last: {last}"
                        yield TaskResult(task, "failed", error=reason)
        finally:
            # The cluster may be gone. Ray must see the tasks end before it shuts down.
            with suppress(Exception):
                for promise in running:
                    self._ray.cancel(promise, force=True)
                if running:
                    self._ray.wait(
                        list(running), num_returns=len(running), timeout=20.0
                    )

    def close(self) -> None:
        """Disconnect from Ray. Shut it down if it was started here."""
        if self._owned:
            self._owned = False
            self._ray.shutdown()

    def _room(self) -> int:
        """Return how many workers fit on the nodes that are alive, running or not."""
        needs = [(name, number) for name, number in self._needs.items() if number]
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(
            int(min(node.get(name, 0.0) // number for name, number in needs))
            for node in nodes
        )


def _connect(ray: Any, address: str, *, cpus: int) -> None:
    """Join the cluster at an address, or start one on this machine.

    Sets environment variables and logging levels, so that Ray prints nothing.

    Parameters
    ----------
    ray : module
        The package.
    address : str
        As for :class:`RayRunner`.
    cpus : int
        Minimum number of cores of an instance that is started.

    Raises
    ------
    ParameterError
        If the address is not a valid one.
    EngineError
        If no Ray answers there, or none can be started. The message is one line.
    """
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
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if address.startswith("ray://"):
                _check_ray_server(address)
                ray.init(address=address)
            elif address not in ("auto", "local"):
                _check_ray_server(address)
                ray.init(address=address, **settings)
            else:
                if address == "auto":
                    # Raises if no cluster runs on this machine.
                    with suppress(ConnectionError):
                        ray.init(address="auto", **settings)
                if not ray.is_initialized():
                    ray.init(address="local", **settings, **own)
        except EvergrowError:
            raise
        except (SystemExit, Exception) as error:
            # Ray raises SystemExit for some reasons.
            raise EngineError(
                f"No Ray could be joined or started at {address!r}: "
                f"{_informative_line(error)}"
            ) from error
        # Ray prints a paragraph when a worker dies, and has no setting to disable it.
        internals: Any = importlib.import_module("ray._private.worker")
        if hasattr(internals, "_worker_logs_enabled"):
            internals._worker_logs_enabled = False


_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""An empty frame of type 4. gRPC connections start with the preface and this frame."""


def _check_ray_server(address: str) -> None:
    """Check that a Ray server answers at an address, which takes seconds.

    Ray itself would try again for many minutes. Ray's ports speak gRPC, so a gRPC
    server counts as Ray. With TLS only the connection is tested.

    Parameters
    ----------
    address : str
        ``"host:port"`` or ``"ray://host:port"``.

    Raises
    ------
    ParameterError
        If the address has another form.
    EngineError
        If nothing answers there, or another kind of server.
    """
    host, _, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ParameterError(
            "address must be HOST:PORT, ray://HOST:PORT, 'auto' or 'local', "
            f"got {address!r}"
        )
    plain = os.environ.get("RAY_USE_TLS", "0") in ("0", "")
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), _CONNECT_SECONDS
        ) as connection:
            connection.sendall(_HTTP2_PREFACE + _EMPTY_SETTINGS)
            frame = b""
            if plain:
                frame = connection.makefile("rb").read(9)
    except OSError as error:
        raise EngineError(
            f"Nobody answers at {address}: {error.strerror or error}. "
            "Start a head there with 'ray start --head'."
        ) from error
    if plain and frame[3:4] != b"\x04":
        raise EngineError(f"The server at {address} is no Ray. Check the port.")


def _informative_line(error: BaseException) -> str:
    """Return the most informative line of an error message of Ray.

    This is the last line that begins with the name of an error, or else the first line.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if lines[0].startswith("Version mismatch"):
        # The two versions are on the following lines.
        text = f"{' '.join(lines)}. Install the same Ray and the same Python on both"
        return text[:400]
    line = lines[0]
    for candidate in lines:
        name = candidate.partition(":")[0]
        if "Error" in name and " " not in name:
            line = candidate
    return line[:300]


Runner = LocalRunner | RayRunner
"""Runs the tasks of a job."""
