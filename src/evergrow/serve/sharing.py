"""Share threads and memory between the callers of the service."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from evergrow.core.validation import check_integer
from evergrow.serve.problems import Problem

CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Name of the token, or address of the client, of the current request.

:class:`FairExecutor` reads it, and asyncio copies it to the tasks of a request.
"""


@dataclass(eq=False)
class _Call:
    """A submitted call and its future."""

    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        """Call the function and set the result, unless the caller cancelled it."""
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
    >>> from evergrow.serve.sharing import FairExecutor
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
            # Any thread may run it, with the call whose turn it is then.
            super().submit(self._run_next)
            self._queues.setdefault(CALLER.get(), deque()).append(call)
        return call.result

    def _run_next(self) -> None:
        """Run the oldest call of the caller who has waited longest for a turn."""
        with self._lock:
            caller, queue = self._queues.popitem(last=False)
            call = queue.popleft()
            if queue:
                self._queues[caller] = queue  # now the last one in turn
        call.run()


class MemoryBudget:
    """A number of bytes that requests and jobs may hold in memory together.

    Jobs wait in order until their bytes are free. Requests do not wait: :meth:`take`
    raises a 503 problem. All methods must be called in the thread of the event loop.

    Parameters
    ----------
    total : int
        Maximum number of bytes held at one time.

    Attributes
    ----------
    held : int
        Bytes held now.

    Examples
    --------
    >>> import asyncio
    >>> from evergrow.serve.sharing import MemoryBudget
    >>> async def unpack(budget):
    ...     async with budget.hold(600):
    ...         return budget.held
    >>> budget = MemoryBudget(1000)
    >>> asyncio.run(unpack(budget)), budget.held
    (600, 0)
    """

    def __init__(self, total: int) -> None:
        check_integer("total", total)
        self.total = total
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, n: int) -> AsyncIterator[None]:
        """Hold bytes for the duration of a block. Waits until they are free.

        Parameters
        ----------
        n : int
            Number of bytes. More than ``total`` waits until nothing else is held.
        """
        n = min(n, self.total)
        await self._wait_for(n)
        try:
            yield
        finally:
            self.release(n)

    def take(self, n: int) -> None:
        """Hold bytes until :meth:`release` is called.

        Raises
        ------
        Problem
            413 if `n` exceeds the total, 503 if the bytes are not free now.
        """
        if n > self.total:
            raise Problem(
                413,
                f"the samples take {n:,} bytes in memory, and at most {self.total:,} "
                "are allowed: send fewer in one request",
                "TooLarge",
            )
        if self._waiting or self.held + n > self.total:
            raise Problem(
                503,
                "other requests hold all memory: try again later",
                "Busy",
                retry_after=2,
            )
        self.held += n

    def release(self, n: int) -> None:
        """Release bytes and wake waiting jobs."""
        self.held -= n
        self._wake()

    async def _wait_for(self, n: int) -> None:
        """Hold `n` bytes, after all jobs that wait already."""
        if not self._waiting and self.held + n <= self.total:
            self.held += n
            return
        granted = asyncio.get_running_loop().create_future()
        entry = (n, granted)
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            # The bytes may have been granted before the job was cancelled.
            if granted.done() and not granted.cancelled():
                self.release(n)
            else:
                self._waiting.remove(entry)
                self._wake()
            raise

    def _wake(self) -> None:
        """Wake waiting jobs, in order, while their bytes are free."""
        while self._waiting:
            n, granted = self._waiting[0]
            if self.held + n > self.total:
                return
            self._waiting.popleft()
            self.held += n
            granted.set_result(None)
