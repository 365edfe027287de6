"""A shard: a part of a data set that one worker reads at once, and the same part whoever reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evergrow.core.items import Items


@dataclass(frozen=True)
class Shard:
    """Where a part of a data set lies.

    Parameters
    ----------
    number : int
        Place of the shard in its manifest, from 0.
    rows : int
        Samples in it.
    size : int
        Bytes of it at the source, or 0 where they are not known.
    where : dict
        What its source needs to read it: file, byte range, row groups, rows. Plain JSON values.

    Examples
    --------
    >>> from evergrow.data.shard import Shard
    >>> Shard(0, 500, 1 << 20, {"file": "train-000.tar", "start": 0, "stop": 1 << 20}).rows
    500
    """

    number: int
    rows: int
    size: int
    where: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ShardData:
    """The samples of a shard, as they were read.

    Parameters
    ----------
    names : tuple of str
        Name of every sample, for people and for tables of answers.
    items : Items or None
        Images or texts; None where the source holds feature vectors.
    features : ndarray of shape (n, d) or None
        Feature vectors, where the source holds those.
    labels : ndarray of str of shape (n,) or None
        Class names; None where the source has none.
    """

    names: tuple[str, ...]
    items: Items | None = None
    features: NDArray[np.float32] | None = None
    labels: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.names)


class Source(Protocol):
    """A data set that can be read in parts, on any machine that reaches its address."""

    @property
    def kind(self) -> str:
        """``"image"``, ``"text"`` or ``"features"``."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block, where samples are features of several; none elsewhere."""

    def describe(self) -> dict[str, Any]:
        """Return plain JSON values from which :func:`evergrow.data.sources.open_source` makes the source again."""

    def identity(self) -> str:
        """Return a hash of names and sizes: another for other data, the same on every machine."""

    def shards(self, rows: int, size: int) -> Iterator[Shard]:
        """Yield the shards, each of at most so many rows and, where more than one row fits, so many bytes."""

    def read(self, shard: Shard) -> ShardData:
        """Return the samples of a shard; reads no more of the source than that."""
