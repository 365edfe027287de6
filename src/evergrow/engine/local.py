"""Tasks on the processes of this machine: no cluster, no service, and a worker that dies takes nothing with it.

A worker is ``python -m evergrow.engine.worker``: tasks go in and outcomes come out as lines of JSON. Each does one task
at a time, so that it is known whose task was lost when one dies.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TextIO, cast

from evergrow.core.errors import EngineError
from evergrow.core.validation import check_number
from evergrow.engine.running import PERFORM, Outcome, Task, outcome_of
from evergrow.engine.works import differences

TRIES = 3
"""How many workers a task may take down before it counts as failed."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalRunner:
    """Runs tasks here: in this process, or in several that share its cores.

    Parameters
    ----------
    workers : int
        Processes; with 1 the tasks run in this one.
    perform : str
        ``"module:function"`` of what does a task.

    Examples
    --------
    >>> from evergrow.engine.local import LocalRunner
    >>> from evergrow.engine.running import Task
    >>> [(outcome.state, outcome.error) for outcome in LocalRunner().run([Task("nonsense", 0)])]
    [('failed', "work must be one of ..., got 'nonsense'")]
    """

    def __init__(self, workers: int = 1, perform: str = PERFORM) -> None:
        check_number("workers", workers, low=1, integer=True)
        self.workers = workers
        self._perform = perform
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._guard = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers that were started."""
        with self._guard:
            return [worker.pid for worker in (*self._idle, *self._busy)]

    def check(self, expected: dict[str, str]) -> None:
        """Raise :class:`EngineError` unless this machine has these versions and hashes; its processes share them."""
        # What one process has, all have; its own copy of the backbone serves only where it does the work itself.
        here = {name: value for name, value in expected.items() if self.workers == 1 or name != "key"}
        found = differences(here)
        if found:
            raise EngineError(found[0])

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Run tasks and yield their outcomes as they come; closing the iterator ends what still runs."""
        if self.workers == 1:
            for task in tasks:
                yield outcome_of(task, self._perform)
            return
        waiting, outcomes = deque(tasks), queue.Queue[Outcome]()
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._serve, args=(waiting, outcomes, stop), daemon=True)
            for _ in range(min(self.workers, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(len(tasks)):
                yield outcomes.get()
        finally:
            if any(thread.is_alive() for thread in threads) and (waiting or self._busy):
                stop.set()
                self._kill()
            for thread in threads:
                thread.join()

    def _serve(self, waiting: deque[Task], outcomes: queue.Queue[Outcome], stop: threading.Event) -> None:
        """Give tasks to one worker after the other, and to a fresh worker those that one died of."""
        while not stop.is_set():
            try:
                task = waiting.popleft()
            except IndexError:
                return
            outcomes.put(self._tried(task, stop))

    def _tried(self, task: Task, stop: threading.Event) -> Outcome:
        for _ in range(TRIES):
            worker = self._taken(stop)
            if worker is None:
                break
            outcome = worker.ask(task)
            with self._guard:
                self._busy.discard(worker)
                if outcome is not None:
                    self._idle.append(worker)
            if outcome is not None:
                return outcome
            worker.end()
        return Outcome(task, "failed", error=f"its worker died {TRIES} times")

    def _taken(self, stop: threading.Event) -> _Worker | None:
        with self._guard:  # as in _kill: nobody starts after it
            if stop.is_set():
                return None
            worker = self._idle.pop() if self._idle else self._started()
            self._busy.add(worker)
            return worker

    def _started(self) -> _Worker:
        return _Worker(max(1, (os.cpu_count() or 1) // self.workers), self._perform)

    def _kill(self) -> None:
        with self._guard:
            for worker in self._busy:
                worker.kill()

    def close(self) -> None:
        """End the workers."""
        with self._guard:
            ending, self._idle = self._idle, []
        for worker in ending:
            worker.end()


class _Worker:
    """A process that does one task at a time."""

    def __init__(self, threads: int, perform: str) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": path, **dict.fromkeys(_THREADS, str(threads))}
        # A session of its own: Ctrl-C is for the process that started it, which then ends its workers.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evergrow.engine.worker", perform],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._tasks, self._answers = cast("TextIO", self._process.stdin), cast("TextIO", self._process.stdout)

    def ask(self, task: Task) -> Outcome | None:
        """Return the outcome of a task; None where the process died of it, or was killed meanwhile."""
        try:
            self._tasks.write(json.dumps(asdict(task)) + "\n")
            self._tasks.flush()
            line = self._answers.readline()
        except (OSError, ValueError):
            return None
        if not line.endswith("\n"):
            return None
        values: dict[str, Any] = json.loads(line)
        return Outcome(task, values["state"], values["told"], values["error"])

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self) -> None:
        """Close its input, which ends it, and wait."""
        with suppress(OSError):  # what was to be sent to a dead process
            self._tasks.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
