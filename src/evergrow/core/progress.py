"""Progress bars and notes about the duration of work."""

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


def note(text: str, *, enabled: bool) -> None:
    """Print one line on standard error, if progress is shown."""
    if not enabled:
        return
    from rich.console import Console

    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def duration_text(seconds: float) -> str:
    """Return a duration in words, rounded.

    Examples
    --------
    >>> from evergrow.core.progress import duration_text
    >>> duration_text(0.3), duration_text(47), duration_text(700), duration_text(9000)
    ('about 1 s', 'about 47 s', 'about 12 minutes', 'about 2.5 hours')
    """
    if seconds < 100:
        return f"about {max(round(seconds), 1)} s"
    if seconds < 100 * 60:
        return f"about {round(seconds / 60)} minutes"
    return f"about {seconds / 3600:.1f} hours"
