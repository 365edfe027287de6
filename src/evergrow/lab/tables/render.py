"""A comparison as text: terminal table, Markdown, LaTeX in the paper's layout, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from evergrow.core.escaping import csv_text, markdown_text, one_line, printable
from evergrow.core.validation import check_choice
from evergrow.lab.tables.compare import Cell, Column, Comparison
from evergrow.lab.tables.metric import Metric

if TYPE_CHECKING:
    from rich.console import RenderableType

_EMPTY = "-"


def render(comparison: Comparison, format: str = "markdown") -> str:
    """Return a comparison as text.

    Parameters
    ----------
    comparison : Comparison
        The table.
    format : {"table", "markdown", "latex", "csv"}
        ``"table"`` is plain text with ``*`` at the best and ``+`` at the second of every column.

    Returns
    -------
    str
        Ends with a newline.
    """
    check_choice("format", format, tuple(FORMATS))
    return FORMATS[format](comparison)


def number(cell: Cell | None, metric: Metric) -> str:
    """Return a cell as ``72.64 ± 0.24``.

    Examples
    --------
    >>> from evergrow.lab.tables import METRICS, Cell, number
    >>> percent = METRICS["a_last"]
    >>> number(Cell(72.644, 0.238, 3), percent), number(Cell(1.0, None, 1), percent), number(None, percent)
    ('72.64 ± 0.24', '1.00', '-')
    """
    if cell is None:
        return _EMPTY
    return metric.text(cell.mean) + (f" ± {metric.text(cell.error)}" if cell.error is not None else "")


def _row(comparison: Comparison, cells: list[Cell | None]) -> list[tuple[str, int]]:
    """Return the text and the rank of every cell of a row."""
    return [(number(cell, column.metric), cell.rank if cell else 0) for cell, column in zip(cells, comparison.columns)]


def _plain(comparison: Comparison) -> str:
    marks = {0: " ", 1: "*", 2: "+"}
    head = [["", "", "method"]]
    head += [[printable(c.dataset), printable(c.protocol), c.metric.title] for c in comparison.columns]
    body = [
        [printable(name), *(text + marks[rank] for text, rank in _row(comparison, cells))]
        for name, cells in zip(comparison.rows, comparison.cells)
    ]
    lines = [*(list(row) for row in zip(*head)), *body]
    widths = [max(len(line[j]) for line in lines) for j in range(len(head))]
    text = [
        "  ".join(
            cell.ljust(width) if j == 0 else cell.rjust(width) for j, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    ]
    rule = "-" * max(len(line) for line in text)
    legend = "mean ± standard error over seeds; * best, + second"
    return "\n".join(line.rstrip() for line in [*text[:3], rule, *text[3:], rule, legend, *_notes(comparison)]) + "\n"


def _markdown(comparison: Comparison) -> str:
    marks: dict[int, Callable[[str], str]] = {0: str, 1: "**{}**".format, 2: "<u>{}</u>".format}
    levels = ([c.dataset, c.protocol, c.metric.title] for c in comparison.columns)
    head = ["Method", *("<br>".join(map(markdown_text, level)) for level in levels)]
    lines = [head, ["---", *["---:"] * len(comparison.columns)]]
    for name, cells in zip(comparison.rows, comparison.cells):
        lines.append([markdown_text(name), *(marks[rank](text) for text, rank in _row(comparison, cells))])
    table = ["| " + " | ".join(line) + " |" for line in lines]
    notes = [f"- {markdown_text(note)}" for note in comparison.notes]
    legend = "Mean ± standard error over seeds; best bold, second underlined."
    return "\n".join([*table, "", legend, *(["", *notes] if notes else [])]) + "\n"


def _latex(comparison: Comparison) -> str:
    """Print as the paper does: booktabs, data set over protocol over metric."""
    lines = [rf"\begin{{tabular}}{{l*{{{len(comparison.columns)}}}{{c}}}}", r"\toprule"]
    lines += _latex_level("Method", comparison.columns, lambda column: (column.dataset,))
    lines += _latex_level("", comparison.columns, lambda column: (column.dataset, column.protocol))
    lines += [
        _latex_row("", (rf"\textbf{{{column.metric.latex}}}" for column in comparison.columns)),
        r"\midrule",
    ]
    for name, cells in zip(comparison.rows, comparison.cells):
        lines.append(_latex_row(escape_latex(name), map(_latex_cell, cells, comparison.columns)))
    notes = [f"% {one_line(note)}" for note in comparison.notes]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def _latex_level(title: str, columns: list[Column], key: Callable[[Column], tuple[str, ...]]) -> list[str]:
    """Return a header row that spans equal neighbours, and the rules under it."""
    spans = [(names, len(list(group))) for names, group in groupby(columns, key)]
    cells = [rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{escape_latex(names[-1])}}}}}" for names, width in spans]
    rules, start = [], 2
    for _, width in spans:
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_latex_row(rf"\textbf{{{title}}}" if title else "", cells), " ".join(rules)]


def _latex_cell(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return "--"
    error = rf"$_{{\scriptscriptstyle\pm{column.metric.text(cell.error)}}}$" if cell.error is not None else ""
    text = column.metric.text(cell.mean) + error
    return {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}[cell.rank].format(text)


def _latex_row(first: str, cells: Iterable[str]) -> str:
    return " & ".join([first, *cells]) + r" \\"


def escape_latex(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    Examples
    --------
    >>> from evergrow.lab.tables.render import escape_latex
    >>> escape_latex("n_units=5 & 100%")
    'n\\_units=5 \\& 100\\%'
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in printable(text))


def _csv(comparison: Comparison) -> str:
    """Print one line per cell, in full precision, for other programs."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["method", "dataset", "protocol", "metric", "mean", "standard_error", "n"])
    for name, cells in zip(comparison.rows, comparison.cells):
        for column, cell in zip(comparison.columns, cells):
            if cell is not None:
                error = "" if cell.error is None else cell.error
                names = map(csv_text, (name, column.dataset, column.protocol))
                writer.writerow([*names, column.metric.title, cell.mean, error, cell.n])
    return buffer.getvalue()


def _notes(comparison: Comparison) -> list[str]:
    return [f"note: {one_line(note)}" for note in comparison.notes]


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "table": _plain,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}
"""Renderers by the name that ``--format`` takes."""


def rich_table(comparison: Comparison) -> RenderableType:
    """Return the comparison for a terminal, best bold and second underlined."""
    from rich.table import Table
    from rich.text import Text

    styles = {0: "", 1: "bold", 2: "underline"}
    table = Table(caption="mean ± standard error over seeds; best bold, second underlined")
    table.add_column("method")
    for column in comparison.columns:
        title = f"{printable(column.dataset)}\n{printable(column.protocol)}\n{column.metric.title}"
        table.add_column(Text(title), justify="right")
    for name, cells in zip(comparison.rows, comparison.cells):
        table.add_row(Text(printable(name)), *(Text(text, styles[rank]) for text, rank in _row(comparison, cells)))
    return table
