"""How rows become shards: runs of at most so many rows and bytes, the same whoever asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


def spans(sizes: Iterable[int], rows: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield runs of rows of at most so many rows and bytes: first row, the one after the last, and bytes.

    Examples
    --------
    >>> from evergrow.data.sources.spans import spans
    >>> list(spans([3, 3, 9, 1], rows=3, size=7))
    [(0, 2, 6), (2, 3, 9), (3, 4, 1)]
    """
    first = total = stop = 0
    for row, weight in enumerate(sizes):
        if row > first and (row - first == rows or total + weight > size):
            yield first, row, total
            first, total = row, 0
        total += weight
        stop = row + 1
    if stop > first:
        yield first, stop, total


@dataclass(frozen=True)
class BlockSpan:
    """A run of rows in blocks that are read as a whole, such as the row groups of Parquet.

    Parameters
    ----------
    first, last : int
        First block, and the one after the last.
    skip : int
        Rows of the first block that come before.
    rows, size : int
        Rows, and bytes as far as they are known.
    """

    first: int
    last: int
    skip: int
    rows: int
    size: int


def block_spans(blocks: Sequence[tuple[int, int]], rows: int, size: int) -> Iterator[BlockSpan]:
    """Yield runs of rows from blocks of (rows, bytes): whole blocks where they fit, equal parts of one that does not.

    Examples
    --------
    >>> from evergrow.data.sources.spans import block_spans
    >>> [(s.first, s.last, s.skip, s.rows) for s in block_spans([(4, 40), (4, 40), (9, 90)], rows=8, size=1000)]
    [(0, 2, 0, 8), (2, 3, 0, 5), (2, 3, 5, 4)]
    """
    start = count = weight = 0
    for number, (n, bytes_) in enumerate(blocks):
        whole = n <= rows and bytes_ <= size
        if count and not (whole and count + n <= rows and weight + bytes_ <= size):
            yield BlockSpan(start, number, 0, count, weight)
            count = weight = 0
        if whole:
            start = start if count else number
            count, weight = count + n, weight + bytes_
            continue
        if not n:
            continue
        most = max(min(rows, size * n // max(bytes_, 1)), 1)
        step = -(-n // -(-n // most))  # as many parts as that takes, of one length
        for skip in range(0, n, step):
            take = min(step, n - skip)
            yield BlockSpan(number, number + 1, skip, take, bytes_ * take // n)
    if count:
        yield BlockSpan(start, len(blocks), 0, count, weight)
