"""Limit torch's threads for the calling thread only.

Torch splits each operation over several threads that wait for each other at its end. If
another process uses a core, every operation waits for that core, and thousands of small
operations take ten times as long as on one thread. Small work therefore runs on one
thread; see :data:`SMALL_WORK`.

``torch.set_num_threads`` also affects threads that start later, and MKL in the whole
process. OpenMP has one setting per thread, which MKL follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

SMALL_WORK = 1.6e10
"""Floating-point operations up to which one thread is used, about a second."""


@cache
def _openmp() -> tuple[Any, ...]:
    """Return threadpoolctl's controllers of OpenMP. Torch must be imported before."""
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="openmp")
    return tuple(found.lib_controllers)


def limit_threads(n: int) -> None:
    """Set torch's thread count for the calling thread only, until it is set again.

    Parameters
    ----------
    n : int
        Number of threads, at least 1.

    Examples
    --------
    >>> import threading, torch
    >>> from evergrow.core.threads import limit_threads
    >>> before, seen = torch.get_num_threads(), []
    >>> def work():
    ...     limit_threads(1)
    ...     seen.append(torch.get_num_threads())
    >>> thread = threading.Thread(target=work)
    >>> thread.start(); thread.join()
    >>> seen, torch.get_num_threads() == before
    ([1], True)
    """
    import torch

    # Torch would set its default at the first operation otherwise.
    torch.get_num_threads()
    for library in _openmp():
        library.set_num_threads(n)


@contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Run small work on one thread. Larger work keeps all threads.

    Parameters
    ----------
    work : float
        Approximate number of floating-point operations.

    Examples
    --------
    >>> import torch
    >>> from evergrow.core.threads import threads_for
    >>> before = torch.get_num_threads()
    >>> with threads_for(1e6):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    import torch

    before = torch.get_num_threads()
    if work > SMALL_WORK or before == 1:
        yield
        return
    limit_threads(1)
    try:
        yield
    finally:
        limit_threads(before)
