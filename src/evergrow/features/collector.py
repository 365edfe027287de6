"""A collector of features: on disk as long as there is room, in memory otherwise."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import CacheWarning
from evergrow.core.items import Kind
from evergrow.core.wording import hint
from evergrow.features.loader import Failure
from evergrow.features.precision import Precision
from evergrow.features.shard_writer import ShardWriter


def warn_unused(error: Exception) -> None:
    """Warn that nothing is kept, and why."""
    warnings.warn(
        f"the feature cache cannot be used, features are kept in memory only: {error}; set EVERGROW_CACHE to a folder "
        f"with room{hint('cache', ', or do without by {}', False)}",
        CacheWarning,
        stacklevel=4,
    )


class Collector:
    """Takes shards of features: on disk where there is a writer, in memory elsewhere or once the disk takes no more.

    Parameters
    ----------
    n_items, n_features : int
        How many rows there may be, and how wide they are.

    Attributes
    ----------
    done : int
        Items that need not be looked at again.
    failures : list of Failure
        Items among them that could not be read.
    precision : {"float32", "float16"} or None
        What they were run at; None before the first shard.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features.collector import Collector
    >>> collector = Collector(2, 3)
    >>> collector.add(2, np.ones((2, 3), dtype=np.float32), [], "float32")
    >>> collector.finish().shape
    (2, 3)
    """

    def __init__(self, n_items: int, n_features: int) -> None:
        self._shape = (n_items, n_features)
        self._writer: ShardWriter | None = None
        self._memory: NDArray[np.float32] | None = None
        self._used = 0
        self.done = 0
        self.failures: list[Failure] = []
        self.precision: Precision | None = None

    def write_to(self, writer: ShardWriter) -> None:
        """Put shards on disk, after those that are there."""
        self._writer = writer
        self.done, self.failures, self.precision = writer.done, list(writer.failures), writer.precision

    def add(self, stop: int, features: NDArray[np.float32], failures: list[Failure], precision: Precision) -> None:
        """Take the next shard; see :meth:`evergrow.features.shard_writer.ShardWriter.append`."""
        self.failures.extend(failures)
        self.done, self.precision = stop, precision
        if self._writer is not None:
            try:
                self._writer.append(stop, features, failures, precision)
                return
            except OSError as error:
                self._leave(error)
        self._remember(features)

    def finish(self) -> NDArray[np.float32]:
        """Return the features of all shards."""
        if self._writer is not None:
            try:
                features = self._writer.finish()
                self._writer = None
                return features
            except OSError as error:
                self._leave(error)
        return self._room()[: self._used]

    def close(self) -> None:
        """Let go after an error; whole shards stay for the next call."""
        if self._writer is not None:
            self._writer.close()

    def _leave(self, error: OSError) -> None:
        """Go on in memory with what is on disk."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._remember(writer.salvage())
            warn_unused(error)

    def _remember(self, features: NDArray[np.float32]) -> None:
        self._room()[self._used : self._used + len(features)] = features
        self._used += len(features)

    def _room(self) -> NDArray[np.float32]:
        if self._memory is None:
            self._memory = np.empty(self._shape, dtype=np.float32)
        return self._memory


@contextmanager
def item_meter(kind: Kind, total: int, resumed: int, *, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many more items are done and shows the rate and the time left."""
    if not enabled:
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    unit = "images" if kind == "image" else "texts"
    columns = (
        TextColumn("[bold]features"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn(f"{{task.fields[rate]:,.1f}} {unit}/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    begun, here = time.perf_counter(), 0
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total, completed=resumed, rate=0.0)

        def tick(more: int) -> None:
            nonlocal here
            here += more
            rate = here / max(time.perf_counter() - begun, 1e-9)
            progress.update(task, completed=resumed + here, rate=rate)

        yield tick
