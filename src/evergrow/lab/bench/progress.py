"""Telling people how a grid is going: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evergrow.lab.bench.resumable import Reporter, Step

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


class LineReporter:
    """One line per run, for logs and pipes.

    Parameters
    ----------
    console : rich.console.Console
        Where to write.
    noun : str
        What runs are called, in the plural.
    """

    def __init__(self, console: Console, noun: str = "runs") -> None:
        self._console = console
        self._noun = noun
        self._total = self._done = 0
        self._start: float | None = None

    def plan(self, steps: Sequence[Step[Any, Any]]) -> None:
        """Say how much there is to do."""
        actions = Counter(step.action for step in steps)
        self._total, self._done = actions["run"], 0
        self._line(
            f"{len(steps)} {self._noun}: {actions['run']} to do, {actions['skip']} finished, "
            f"{actions['failed']} failed earlier"
        )
        for step in steps:
            if step.note:
                self._line(f"{step.run.title}: {step.note}")

    def begin(self, step: Step[Any, Any]) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def tick(self, step: Step[Any, Any], done: int, total: int, accuracy: float) -> None:
        """Say nothing: a log has one line per run."""

    def end(self, step: Step[Any, Any]) -> None:
        """Say how the run ended."""
        self._done += 1
        count = f"[{self._done}/{self._total}]"
        # Of runs side by side only their workers know when each began.
        took = "" if self._start is None else f" | {time.perf_counter() - self._start:.1f} s"
        self._line(f"{count} {step.status} | {step.run.title} | {step.summary}{took}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveReporter:
    """A table of methods against data set and protocol that fills while the grid runs.

    Parameters
    ----------
    live : rich.live.Live
        The display to keep up to date.
    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._steps: Sequence[Step[Any, Any]] = []
        self._now = ""
        self._current: Step[Any, Any] | None = None

    def plan(self, steps: Sequence[Step[Any, Any]]) -> None:
        """Show the empty table."""
        self._steps = steps
        for step in steps:
            if step.note:
                self._live.console.print(f"{step.run.title}: {step.note}", markup=False, highlight=False)
        self._show()

    def begin(self, step: Step[Any, Any]) -> None:
        """Show which run is on."""
        self._current, self._now = step, f"{step.run.title} | starting"
        self._show()

    def tick(self, step: Step[Any, Any], done: int, total: int, accuracy: float) -> None:
        """Show how far it is."""
        self._now = f"{step.run.title} | task {done}/{total} | {accuracy:.2%} so far"
        self._show()

    def end(self, step: Step[Any, Any]) -> None:
        """Fill in the run's cell; a failure also gets a line of its own."""
        self._current, self._now = None, ""
        if step.status == "failed":
            self._live.console.print(f"failed: {step.run.title}: {step.summary}", markup=False)
        self._show()

    def _show(self) -> None:
        self._live.update(self._table())

    def _table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        columns = list(dict.fromkeys((step.run.data.label, step.run.protocol.name) for step in self._steps))
        cells: dict[tuple[str, str, str], list[Step[Any, Any]]] = {}
        for step in self._steps:
            run = step.run
            cells.setdefault((run.method.label, run.data.label, run.protocol.name), []).append(step)
        done = sum(step.status not in ("pending", "cancelled") for step in self._steps)
        table = Table(title=f"{done}/{len(self._steps)} runs", caption=Text(self._now) if self._now else None)
        table.add_column("method")
        for data, protocol in columns:
            table.add_column(Text(f"{data}\n{protocol}"), justify="right")
        for method in dict.fromkeys(step.run.method.label for step in self._steps):
            row = [self._cell(cells.get((method, *column), [])) for column in columns]
            table.add_row(Text(method), *row)
        return table

    def _cell(self, steps: Sequence[Step[Any, Any]]) -> str:
        good = [step.record.results["a_last"] for step in steps if step.record and step.status == "ok"]
        values = [value for value in good if value is not None]
        mean = f"{100 * sum(values) / len(values):.2f} " if values else ""
        failed = sum(step.status == "failed" for step in steps)
        running = " ..." if any(step is self._current for step in steps) else ""
        return f"{mean}[dim]{len(good)}/{len(steps)}[/]" + (f" [red]{failed} failed[/]" if failed else "") + running


@contextmanager
def reporting(console: Console) -> Iterator[Reporter]:
    """Yield a reporter that suits the console: live in a terminal, lines otherwise."""
    if not console.is_terminal:
        yield LineReporter(console)
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=4) as live:
        yield LiveReporter(live)
