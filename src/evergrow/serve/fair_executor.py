"""A thread pool that serves callers in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Name of the token, or address of the client, of the current request."""


@dataclass(eq=False)
class _Call:
    """A submitted call and its future."""

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
    """A thread pool with one queue per caller. Threads take from the queues in turn.

    The caller is the value of :data:`CALLER` at submission, so the queue of one caller
    does not delay the others. Takes the arguments of
    :class:`~concurrent.futures.ThreadPoolExecutor`.

    Examples
    --------
    >>> from evergrow.serve.fair_executor import FairExecutor
    >>> with FairExecutor(1) as pool:
    ...     pool.submit(pow, 2, 5).result()
    32
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()
        self._queues: OrderedDict[str, deque[_Call]] = OrderedDict()

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call for the current caller and return its future."""
        call = _Call(lambda: work(*args, **kwargs))
        with self._lock:
            super().submit(self._run_next)
            self._queues.setdefault(CALLER.get(), deque()).append(call)
        return call.result

    def _run_next(self) -> None:
        """Run the oldest call of the caller who has waited longest for a turn."""
        with self._lock:
            caller, queue = self._queues.popitem(last=False)
            call = queue.popleft()
            if queue:
                self._queues[caller] = queue
        call.run()
