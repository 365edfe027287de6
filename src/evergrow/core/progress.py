"""Progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Meter = Callable[..., None]
"""Reports progress: the completed part of the total, and a short ``note``."""


@contextmanager
def meter(title: str, total: float, *, enabled: bool) -> Iterator[Meter]:
    """Yield a function that updates a progress bar, or does nothing if disabled.

    Examples
    --------
    >>> from evergrow.core.progress import meter
    >>> with meter("building", 10, enabled=False) as tick:
    ...     tick(5)
    """
    if not enabled:
        yield lambda completed, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda completed, note="": progress.update(
            task, completed=completed, note=note
        )
