"""Threads of torch, set for the calling thread only.

Torch splits each operation over a team of threads that wait for each other at its end. If
another process holds a core, every operation waits until that core is free again: thousands
of small operations then take ten times as long as on one thread. So small work runs on one
thread; :data:`SMALL_WORK` is the one place that decides what is small.

``torch.set_num_threads`` does not serve for this: threads that start later take its number,
and MKL takes it for the whole process. OpenMP keeps a number for every thread, and MKL takes
that one as long as nobody set another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

SMALL_WORK = 1.6e10
"""Floating-point operations that run on one thread, about a second on one core: factoring a
matrix of order 2,500."""


@cache
def _openmp() -> tuple[Any, ...]:
    """Return the OpenMP libraries of this process; torch has loaded its own by now."""
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="openmp")
    return tuple(found.lib_controllers)


def limit_threads(n: int) -> None:
    """Set torch's thread count for the calling thread only.

    Parameters
    ----------
    n : int
        At least one.

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

    torch.get_num_threads()  # else torch sets its default at the first operation
    for library in _openmp():
        library.set_num_threads(n)


@contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Run small work on one thread, and leave larger work to all of them.

    Parameters
    ----------
    work : float
        Floating-point operations, roughly.

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
