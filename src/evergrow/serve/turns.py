"""Threads that serve callers in turn, so that one caller's queue delays nobody else."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Token or address of the request that is being answered."""


@dataclass(eq=False)
class _Call:
    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            value = self.work()
        except BaseException as error:
            self.result.set_exception(error)
        else:
            self.result.set_result(value)


class FairExecutor(ThreadPoolExecutor):
    """A thread pool with one queue per caller; threads take from the queues in turn.

    The caller is the value of :data:`CALLER` where work is submitted. Takes the
    arguments of :class:`~concurrent.futures.ThreadPoolExecutor`.

    Examples
    --------
    >>> from evergrow.serve.turns import FairExecutor
    >>> with FairExecutor(1) as pool:
    ...     pool.submit(pow, 2, 5).result()
    32
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guard = threading.Lock()
        self._queues: OrderedDict[str, deque[_Call]] = OrderedDict()

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call for the present caller and return its future."""
        call = _Call(lambda: work(*args, **kwargs))
        with self._guard:
            super().submit(self._run_next)
            self._queues.setdefault(CALLER.get(), deque()).append(call)
        return call.result

    def _run_next(self) -> None:
        """Run the oldest call of the caller who has waited longest for a turn."""
        with self._guard:
            caller, queue = self._queues.popitem(last=False)
            call = queue.popleft()
            if queue:
                self._queues[caller] = queue
        call.run()
