"""A limit on the memory for unpacked samples of requests and jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evergrow.core.validation import check_number
from evergrow.serve.problems import Problem


class MemoryBudget:
    """Bytes that all requests and jobs of a process may hold in memory together.

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
    >>> from evergrow.serve.budget import MemoryBudget
    >>> async def unpack(budget):
    ...     async with budget.hold(600):
    ...         return budget.held
    >>> budget = MemoryBudget(1000)
    >>> asyncio.run(unpack(budget)), budget.held
    (600, 0)
    """

    def __init__(self, total: int) -> None:
        check_number("total", total, low=1, integer=True)
        self.total = total
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, n: int) -> AsyncIterator[None]:
        """Hold bytes for the duration of a block. Wait until they are free.

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
        if not self._waiting and self.held + n <= self.total:
            self.held += n
            return
        granted = asyncio.get_running_loop().create_future()
        entry = (n, granted)
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
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
