"""Progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Meter = Callable[..., None]
"""Function ``(completed, note="")`` that moves a bar and shows a short note."""


@contextmanager
def meter(title: str, total: float, *, enabled: bool) -> Iterator[Meter]:
    """Show a progress bar on standard error. Yield the function that moves it.

    Parameters
    ----------
    title : str
        Text in front of the bar.
    total : float
        Value of ``completed`` at which the bar is full.
    enabled : bool
        Whether to show the bar. Without it, the function does nothing.

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
