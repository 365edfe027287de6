"""Find samples with identical content and two labels in the shards of a job.

Workers write a digest of every sample. The driver compares them in passes over ranges
of digests, so that its memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError
from evergrow.core.record import Spec, read_record, record, require, write_record
from evergrow.data import Samples
from evergrow.data.shards import Source
from evergrow.data.storage import is_remote
from evergrow.engine.job import Job
from evergrow.tools.data_check import content_digests

MAX_COMPARED_ROWS = 2**21
"""Rows that are compared in one pass. Each takes about 100 bytes."""


@record("engine-digests")
@dataclass(frozen=True, eq=False)
class ShardDigests:
    """Digests of the content of a shard's readable samples.

    Parameters
    ----------
    digests : ndarray of shape (n, 2)
        Digest of each sample.
    rows : ndarray of shape (n,)
        Row of each sample in the shard.
    codes : ndarray of shape (n,)
        Class of each sample, as an index of `classes`.
    classes : tuple of str
        Class names.
    """

    digests: Annotated[NDArray[np.int64], Spec(("n", 2), "int64")]
    rows: Annotated[NDArray[np.int64], Spec(("n",), "int64")]
    codes: Annotated[NDArray[np.int64], Spec(("n",), "int64")]
    classes: tuple[str, ...]

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless every sample has a class."""
        if len(self.codes):
            inside = self.codes.min() >= 0 and self.codes.max() < len(self.classes)
            require(bool(inside), "it has samples without a class")


@dataclass(frozen=True)
class DoubleLabels:
    """Samples with identical content and two labels.

    Parameters
    ----------
    count : int
        Samples whose label differs from that of an earlier identical sample.
    first, second : tuple of (int, int)
        Shard and row of two such samples.
    """

    count: int
    first: tuple[int, int]
    second: tuple[int, int]


def has_digests(source: Source) -> bool:
    """Return whether samples of a source are compared by content.

    Equal feature vectors can have different labels. Remote images would be fetched a
    second time.
    """
    return source.kind != "features" and not is_remote(str(source.tree.address))


def write_digests(path: Path, data: Samples) -> None:
    """Write the digests of the labelled samples of a shard."""
    classes, codes = np.unique(data.required_labels(), return_inverse=True)
    rows = []
    digests = []
    for row, digest in enumerate(content_digests(data)):
        if digest is not None:
            rows.append(row)
            digests.append(np.frombuffer(digest, dtype=np.int64))
    found = ShardDigests(
        np.array(digests, dtype=np.int64).reshape(-1, 2),
        np.array(rows, dtype=np.int64),
        codes.astype(np.int64)[rows],
        tuple(map(str, classes)),
    )
    write_record(path, found)


def compare_shard_digests(
    job: Job, max_rows: int = MAX_COMPARED_ROWS
) -> DoubleLabels | None:
    """Compare the digests of all shards. Return None without a sample of two labels.

    Parameters
    ----------
    job : Job
        The job. Shards without a file of digests are left out.
    max_rows : int
        About how many rows to compare at a time.
    """
    n_passes = -(-job.manifest.rows // max_rows)
    count = 0
    pairs: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for number in range(n_passes):
        part = list(_rows_of_pass(job, number, n_passes))
        if not part:
            continue
        found = _compare(np.concatenate(part))
        if found is not None:
            count += found.count
            pairs.append((found.first, found.second))
    if not count:
        return None
    first, second = min(pairs)
    return DoubleLabels(count, first, second)


def _rows_of_pass(job: Job, number: int, n_passes: int) -> Iterator[NDArray[np.int64]]:
    """Yield the samples of each shard whose digests belong to a pass.

    Columns: both halves of the digest, shard, row, and a code of the class that is the
    same in all shards.
    """
    code_of: dict[str, int] = {}
    for shard in job.manifest.shards:
        try:
            found = read_record(ShardDigests, job.result("digests", shard.number))
        except (FileNotFoundError, FileFormatError):
            continue
        codes = [code_of.setdefault(name, len(code_of)) for name in found.classes]
        chosen = found.digests[:, 0] % n_passes == number
        n_chosen = int(chosen.sum())
        columns = [
            found.digests[chosen],
            np.full((n_chosen, 1), shard.number),
            found.rows[chosen, None],
            np.array(codes, dtype=np.int64)[found.codes[chosen], None],
        ]
        yield np.concatenate(columns, axis=1)


def _compare(table: NDArray[np.int64]) -> DoubleLabels | None:
    """Return the samples of two labels among those of a pass."""
    order = np.lexsort((table[:, 3], table[:, 2], table[:, 1], table[:, 0]))
    table = table[order]
    is_first = np.ones(len(table), dtype=bool)
    is_first[1:] = (table[1:, :2] != table[:-1, :2]).any(axis=1)
    first = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    doubled = np.flatnonzero(table[:, 4] != table[first, 4])
    if not len(doubled):
        return None
    pairs = np.concatenate([table[first[doubled], 2:4], table[doubled, 2:4]], axis=1)
    a, b, c, d = min(map(tuple, pairs.tolist()))
    return DoubleLabels(len(doubled), (a, b), (c, d))
