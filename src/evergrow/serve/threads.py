"""Threads that compute side by side: how many of torch's own threads each of them may use.

Torch gives every thread that computes a team of its own, as large as there are cores. Where several compute at once the
teams take the cores from each other, and each waits at its barriers for those who do not run: a change of a handful of
samples then takes ten times as long as with one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

FEW_SAMPLES = 512
"""Up to so many samples, in the model and new, matrices are so small that a change is made by one thread."""


@cache
def cores() -> int:
    """Return how many threads torch may use in all: the cores, or what ``OMP_NUM_THREADS`` allows."""
    return torch.get_num_threads()


def limit_torch(n: int) -> None:
    """Let torch use so many threads in the calling thread; others, and those that begin later, keep theirs.

    Parameters
    ----------
    n : int
        At least one.

    Examples
    --------
    >>> import threading, torch
    >>> from evergrow.serve.threads import limit_torch
    >>> before, seen = torch.get_num_threads(), []
    >>> def work():
    ...     limit_torch(1)
    ...     seen.append(torch.get_num_threads())
    >>> thread = threading.Thread(target=work)
    >>> thread.start(); thread.join()
    >>> seen, torch.get_num_threads() == before
    ([1], True)
    """
    usual = cores()
    torch.set_num_threads(n)
    if n != usual:  # threads that begin later get what was said last, so a passing one says it again
        passing = threading.Thread(target=torch.set_num_threads, args=(usual,))
        passing.start()
        passing.join()


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Let torch use so many threads in this thread until the block ends."""
    before = torch.get_num_threads()
    if n == before:
        yield
        return
    limit_torch(n)
    try:
        yield
    finally:
        limit_torch(before)
