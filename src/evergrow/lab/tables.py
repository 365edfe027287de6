"""Tables from records: methods as rows, data set x protocol x metric as columns, mean and standard error over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from evergrow.core.errors import UnknownNameError
from evergrow.core.escaping import csv_text, markdown_text, one_line, printable
from evergrow.core.optional import require
from evergrow.core.registry import nearest
from evergrow.core.validation import check_choice
from evergrow.lab.records import Record

if TYPE_CHECKING:
    import pandas as pd

JOINT = ("joint-lp", "joint-ft")
"""Methods that see all data at once: references, not rivals."""

FORMATS = ("table", "markdown", "latex", "csv", "html")


@dataclass(frozen=True)
class Metric:
    """A number in a record and how to print it.

    Parameters
    ----------
    title : str
        Plain name.
    read : callable
        Takes a record, returns the number or None.
    latex : str
        Name in LaTeX, where it differs.
    lower_is_better : bool
        Which end is best.
    decimals : int
        Digits after the point; significant digits with the form "g".
    form : {"f", "g"}
        Fixed point, or whatever suits the size.
    ranked : bool
        Whether best and second of a column are marked.
    """

    title: str
    read: Callable[[Record], float | None] = lambda record: None
    latex: str = ""
    lower_is_better: bool = False
    decimals: int = 2
    form: str = "f"
    ranked: bool = True

    def text(self, value: float) -> str:
        """Return a value as it is printed.

        Examples
        --------
        >>> from evergrow.lab.tables import METRICS
        >>> METRICS["a_last"].text(72.638), METRICS["n_units"].text(14650.0)
        ('72.64', '14650')
        """
        if self.form == "f":
            return f"{value:.{self.decimals}f}"
        if 1e-3 <= abs(value) < 1e5:
            before = 0
            if abs(value) >= 1:
                before = len(str(int(abs(value))))
            return f"{value:.{max(self.decimals - before, 0)}f}"
        mantissa, _, exponent = f"{value:.{self.decimals - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard error (sample deviation over root n); no error for a single value.

    Examples
    --------
    >>> from evergrow.lab.tables import mean_and_error
    >>> mean_and_error([1.0, 3.0]), mean_and_error([2.0])
    ((2.0, 1.0), (2.0, None))
    """
    n = len(values)
    mean = math.fsum(values) / len(values)
    if n == 1:
        return mean, None
    return mean, math.sqrt(
        math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n
    )


def _percent(key: str) -> Callable[[Record], float | None]:
    return lambda record: (
        None if (value := record.results.get(key)) is None else 100.0 * float(value)
    )


def _result(key: str) -> Callable[[Record], float | None]:
    return lambda record: (
        None if (value := record.results.get(key)) is None else float(value)
    )


def _train_seconds(record: Record) -> float | None:
    fit, update = (
        (record.results.get("fit_s"), [record.results.get("update_s")])
        if record.analysis
        else (record.times.get("fit"), record.times.get("update") or [])
    )
    if fit is None or None in update:
        return None
    return float(fit) + sum(update)


def _predict_seconds(record: Record) -> float | None:
    if record.analysis:
        return _result("predict_s")(record)
    if (spent := record.times.get("predict")) is None:
        return None
    return float(sum(spent))


def _peak_mebibytes(record: Record) -> float | None:
    value = record.memory.get("peak_cuda_bytes") or record.memory.get("peak_rss_bytes")
    if value is None:
        return None
    return float(value) / 2**20


METRICS = {
    "a_last": Metric("A_last", _percent("a_last"), r"$A_{\text{last}}$"),
    "a_avg": Metric("A_avg", _percent("a_avg"), r"$A_{\text{avg}}$"),
    "f_avg": Metric(
        "F_avg", _percent("f_avg"), r"$F_{\text{avg}}$", lower_is_better=True
    ),
    "a_last_tasks": Metric(
        "A_last (tasks)", _percent("a_last_tasks"), r"$A_{\text{last}}^{\text{task}}$"
    ),
    "a_avg_tasks": Metric(
        "A_avg (tasks)", _percent("a_avg_tasks"), r"$A_{\text{avg}}^{\text{task}}$"
    ),
    "a_last_within": Metric(
        "A_within", _percent("a_last_within"), r"$A_{\text{within}}$", ranked=False
    ),
    "train_s": Metric("train s", _train_seconds, lower_is_better=True),
    "predict_s": Metric("predict s", _predict_seconds, lower_is_better=True),
    "peak_mb": Metric("peak MiB", _peak_mebibytes, lower_is_better=True),
    "construction_s": Metric(
        "construction s", _result("construction_s"), lower_is_better=True
    ),
    "n_units": Metric(
        "units",
        _result("n_units"),
        "$L^*$",
        lower_is_better=True,
        decimals=0,
        ranked=False,
    ),
}
"""Metrics by the name that ``--metric`` takes."""


# -- records under titles --------------------------------------------------------------


def titled(records: Iterable[Record]) -> pd.DataFrame:
    """Return records with titles that tell apart all that differs in more than the seed.

    Records have the same ``method`` only if name, label and all options (but for the
    seed) are equal, the same ``dataset`` only if contents are, and the same
    ``protocol`` only if all its settings are. What shares a name but not its settings
    is named by the difference.

    Returns
    -------
    DataFrame
        Columns ``record``, ``seed``, ``method``, ``dataset`` and ``protocol``.
    """
    pandas = require("pandas", extra="lab", purpose="making tables")
    listed = list(records)
    titles = {
        "method": _titles(
            [(record.label, _method_settings(record)) for record in listed]
        ),
        "dataset": _titles(
            [(record.dataset_label, _dataset_settings(record)) for record in listed]
        ),
        "protocol": _titles(
            [(record.protocol["name"], _protocol_settings(record)) for record in listed]
        ),
    }
    return pandas.DataFrame(
        {"record": listed, "seed": [record.seed for record in listed], **titles}
    )


def _method_settings(record: Record) -> dict[str, Any]:
    options = dict(record.options)
    if options.get("random_state") == record.seed:
        del options[
            "random_state"
        ]  # it follows the run's seed, which is what the mean is over
    if record.analysis:
        analysed = {"analysis": record.analysis, **record.settings}
    else:
        analysed = {}
    return {"method": record.method, **options, **analysed}


def _dataset_settings(record: Record) -> dict[str, Any]:
    return {
        "name": record.dataset["name"],
        "fingerprint": record.dataset.get("fingerprint"),
    }


def _protocol_settings(record: Record) -> dict[str, Any]:
    return {
        key: value
        for key, value in record.protocol.items()
        if key not in ("name", "earlier_seeds")
    }


_HOW = ("device", "solver", "dtype", "verbose")
"""Options that say how something is computed; they stay out of titles that are distinct without them."""


def _titles(named: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return a printable title for each name and its settings; equal names get the settings in which they differ."""
    rivals: dict[str, dict[str, dict[str, Any]]] = {}
    for name, settings in named:
        rivals.setdefault(name, {})[_key(settings)] = settings
    titles = {
        (name, key): title
        for name, group in rivals.items()
        for key, title in _told_apart(name, group).items()
    }
    return [titles[name, _key(settings)] for name, settings in named]


def _told_apart(name: str, rivals: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return titles of settings that share a name."""
    if len(rivals) == 1:
        return dict.fromkeys(rivals, printable(name))
    every = dict.fromkeys(item for settings in rivals.values() for item in settings)
    differing = [
        item
        for item in every
        if len({_key(settings.get(item)) for settings in rivals.values()}) > 1
    ]
    for shown in ([item for item in differing if item not in _HOW], differing):
        titles = {
            key: printable(
                f"{name} ({', '.join(f'{item}={settings.get(item)}' for item in shown)})"
            )
            for key, settings in rivals.items()
        }
        if len(set(titles.values())) == len(rivals):
            break
    return titles


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# -- comparisons -----------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Parameters
    ----------
    method, dataset, protocol : str
        Its row, and its column together with the metric.
    metric : Metric
        What it is.
    mean, error : float, float or None
        Mean and standard error over runs; no error for a single run.
    n : int
        Runs.
    rank : int
        1 for best in its column, 2 for second, 0 otherwise; equal at the printed
        precision is equal rank.
    """

    method: str
    dataset: str
    protocol: str
    metric: Metric
    mean: float
    error: float | None = None
    n: int = 1
    rank: int = 0

    @property
    def text(self) -> str:
        """The number as it is printed, such as ``72.64 ± 0.24``."""
        return self.metric.text(self.mean) + (
            "" if self.error is None else f" ± {self.metric.text(self.error)}"
        )


@dataclass(frozen=True)
class MethodComparison:
    """A table of means with the notes that belong to it.

    Parameters
    ----------
    cells : list of Cell
        The numbers; a method without one in a column has no finished run there.
    notes : list of str
        Failed runs, uneven numbers of seeds, one name for several settings, ...
    quoted : tuple of str
        Rows that are quoted from a publication, not measured.
    """

    cells: list[Cell]
    notes: list[str] = field(default_factory=list)
    quoted: tuple[str, ...] = ()

    def wide(
        self,
        text: Callable[[Cell], str],
        name: Callable[[str], str] = str,
        empty: str = "-",
    ) -> pd.DataFrame:
        """Return one row per method and one column per data set, protocol and metric; levels that say nothing go.

        Parameters
        ----------
        text : callable
            Returns the text of a cell.
        name : callable
            Returns the text of a name.
        empty : str
            What stands where there is no cell.
        """
        import pandas as pd

        datasets, protocols, metrics = (
            list(dict.fromkeys(names))
            for names in zip(
                *(
                    (cell.dataset, cell.protocol, cell.metric.title)
                    for cell in self.cells
                )
            )
        )
        found = {
            (cell.dataset, cell.protocol, cell.metric.title) for cell in self.cells
        }
        columns = [
            key
            for d in datasets
            for p in protocols
            for m in metrics
            if (key := (d, p, m)) in found
        ]
        texts: dict[tuple[str, str, str], dict[str, str]] = {
            column: {} for column in columns
        }
        for cell in self.cells:
            texts[cell.dataset, cell.protocol, cell.metric.title][cell.method] = text(
                cell
            )
        rows = list(dict.fromkeys(cell.method for cell in self.cells))
        frame = pd.DataFrame(texts, index=rows).fillna(empty)
        frame.columns = pd.MultiIndex.from_tuples(
            [tuple(map(name, column)) for column in columns]
        )
        frame.index = [name(row) for row in rows]
        return frame.droplevel(
            [level for level in (0, 1) if not any(column[level] for column in columns)],
            axis=1,
        )


def compare(
    records: Iterable[Record], metrics: Sequence[str] = ("a_last", "a_avg")
) -> MethodComparison:
    """Aggregate records over seeds; nothing that differs in more than the seed is averaged, see :func:`titled`.

    Parameters
    ----------
    records : iterable of Record
        Of any status; only finished ones enter means.
    metrics : sequence of str
        Keys of :data:`METRICS`.

    Returns
    -------
    MethodComparison
    """
    for name in metrics:
        if name not in METRICS:
            raise UnknownNameError(
                f"No metric {name!r}. Did you mean {nearest(name, METRICS)}?"
            )
    chosen = [METRICS[name] for name in metrics]
    unique, copies = one_per_run(records)
    if copies:
        notes = [
            f"{copies} further records of the same runs were left out; the latest of each counts"
        ]
    else:
        notes = []
    frame = titled(record for record in unique if record.status == "ok")
    cells = []
    for (method, dataset, protocol), group in frame.groupby(
        ["method", "dataset", "protocol"], sort=False
    ):
        for metric in chosen:
            values = {record.seed: metric.read(record) for record in group.record}
            known = [
                value
                for record in group.record
                if (value := metric.read(record)) is not None
            ]
            lacking = sorted(seed for seed, value in values.items() if value is None)
            if known and lacking:
                where = f"{method}, {dataset}, {protocol}: {metric.title}"
                notes.append(
                    f"{where} is missing from seeds {lacking} and is the mean of the others"
                )
            if known:
                cells.append(
                    Cell(
                        method,
                        dataset,
                        protocol,
                        metric,
                        *mean_and_error(known),
                        len(known),
                    )
                )
    references = {
        row.method for row in frame.itertuples() if row.record.method in JOINT
    }
    notes += (
        _name_notes(frame)
        + _seed_notes(frame)
        + unfinished_notes(unique, "not in the table")
    )
    found = sorted({str(record.versions.get("evergrow")) for record in frame.record})
    notes += (
        [f"records of several evergrow versions: {', '.join(found)}"]
        if len(found) > 1
        else []
    )
    return MethodComparison(ranked(cells, references), notes)


def ranked(cells: Sequence[Cell], references: Iterable[str] = ()) -> list[Cell]:
    """Return cells with best and second of every column marked, among at least two methods that are no reference."""
    columns: dict[tuple[str, str, str], list[float]] = {}
    for cell in cells:
        if cell.metric.ranked and cell.method not in references:
            column = columns.setdefault(
                (cell.dataset, cell.protocol, cell.metric.title), []
            )
            column.append(round(cell.mean, cell.metric.decimals))
    marked = []
    for cell in cells:
        values = columns.get((cell.dataset, cell.protocol, cell.metric.title), [])
        if len(values) > 1:
            best = sorted(set(values), reverse=not cell.metric.lower_is_better)[:2]
        else:
            best = []
        mean = round(cell.mean, cell.metric.decimals)
        competes = cell.method not in references and mean in best
        marked.append(replace(cell, rank=1 + best.index(mean)) if competes else cell)
    return marked


def one_per_run(records: Iterable[Record]) -> tuple[list[Record], int]:
    """Return one record per run, a finished one if there is any and then the latest, and how many copies there were."""
    best: dict[str, Record] = {}
    total = 0
    for record in records:
        total += 1
        rival = best.get(record.run_id)
        if rival is None or (record.status == "ok", record.ended) > (
            rival.status == "ok",
            rival.ended,
        ):
            best[record.run_id] = record
    return list(best.values()), total - len(best)


def unfinished_notes(records: Iterable[Record], absent: str) -> list[str]:
    """Return a note about every run that did not finish; ``absent`` says where it is missing."""
    notes = []
    for record in records:
        if record.status != "ok":
            run = f"{record.label}, {record.dataset_label}, {record.protocol['name']}, seed {record.seed}"
            why = ""
            if record.error:
                why = (
                    f" ({record.error.get('type')}: {record.error.get('message', '')})"
                )
            notes.append(f"{record.status}, {absent}: {run}{why}")
    return notes


def _name_notes(frame: pd.DataFrame) -> list[str]:
    """Say which names stand for several settings."""
    names = {
        "method": [printable(record.label) for record in frame.record],
        "dataset": [printable(record.dataset_label) for record in frame.record],
        "protocol": [printable(record.protocol["name"]) for record in frame.record],
    }
    return [
        f"{name} stands for {len(titles)} different settings, shown apart as {'; '.join(titles)}"
        for kind, several in names.items()
        for name, titles in frame.groupby(several, sort=False)[kind].unique().items()
        if len(titles) > 1
    ]


def _seed_notes(frame: pd.DataFrame) -> list[str]:
    """Say where a mean is over other seeds than the rest of its column, or over one seed twice."""
    notes = []
    for (dataset, protocol), group in frame.groupby(
        ["dataset", "protocol"], sort=False
    ):
        seeds = {
            method: sorted(rows.seed)
            for method, rows in group.groupby("method", sort=False)
        }
        full = max(seeds.values(), key=len)
        for method, found in seeds.items():
            where = f"{method}, {dataset}, {protocol}"
            if found != full:
                notes.append(f"{where}: seeds {found} where others have {full}")
            if len(set(found)) != len(found):
                notes.append(f"{where}: a seed counts twice in {found}")
    return notes


# -- text ------------------------------------------------------------------------------


def render(comparison: MethodComparison, format: str = "markdown") -> str:
    """Return a comparison as text.

    Parameters
    ----------
    comparison : MethodComparison
        The table.
    format : {"table", "markdown", "latex", "csv", "html"}
        ``"table"`` is plain text with ``*`` at the best and ``+`` at the second of
        every column. ``"csv"`` has one line per cell, in full precision.

    Returns
    -------
    str
        Ends with a newline.

    Examples
    --------
    >>> from evergrow.lab.tables import METRICS, Cell, MethodComparison, render
    >>> print(render(MethodComparison([Cell("RI", "CUB", "B-0 Inc-5", METRICS["a_last"], 72.644, 0.238, 3)])))
    | Method | CUB<br>B-0 Inc-5<br>A_last |
    | --- | ---: |
    | RI | 72.64 ± 0.24 |
    <BLANKLINE>
    Mean ± standard error over seeds; best bold, second underlined.
    <BLANKLINE>
    """
    check_choice("format", format, FORMATS)
    if format == "csv":
        return _csv(comparison)
    if not comparison.cells:
        return "\n".join(["no finished run", *map(one_line, comparison.notes)]) + "\n"
    return {
        "table": _table,
        "markdown": _markdown,
        "latex": _latex,
        "html": html_table,
    }[format](comparison)


def _marked(
    marks: Mapping[int, str], text: Callable[[Cell], str] = lambda cell: cell.text
) -> Callable[[Cell], str]:
    return lambda cell: marks.get(cell.rank, "{}").format(text(cell))


def _table(comparison: MethodComparison) -> str:
    frame = comparison.wide(_marked({0: "{} ", 1: "{}*", 2: "{}+"}), printable)
    legend = "mean ± standard error over seeds; * best, + second"
    notes = [f"note: {one_line(note)}" for note in comparison.notes]
    return "\n".join([frame.to_string(), legend, *notes]) + "\n"


def _markdown(comparison: MethodComparison) -> str:
    frame = comparison.wide(_marked({1: "**{}**", 2: "<u>{}</u>"}), markdown_text)
    heads = [
        "<br>".join([column] if isinstance(column, str) else column)
        for column in frame.columns
    ]
    lines = [
        ["Method", *heads],
        ["---", *["---:"] * len(heads)],
        *([name, *row] for name, *row in frame.itertuples()),
    ]
    table = ["| " + " | ".join(line) + " |" for line in lines]
    notes = [f"- {markdown_text(note)}" for note in comparison.notes]
    legend = "Mean ± standard error over seeds; best bold, second underlined."
    return "\n".join([*table, "", legend, *(["", *notes] if notes else [])]) + "\n"


def _latex(comparison: MethodComparison) -> str:
    """Print as the paper does: booktabs, data set over protocol over metric."""

    def number(cell: Cell) -> str:
        if cell.error is None:
            error = ""
        else:
            error = rf"$_{{\scriptscriptstyle\pm{cell.metric.text(cell.error)}}}$"
        return cell.metric.text(cell.mean) + error

    frame = comparison.wide(
        _marked({1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}, number),
        printable,
        empty="--",
    )
    symbols = {
        cell.metric.title: cell.metric.latex
        for cell in comparison.cells
        if cell.metric.latex
    }
    style = frame.style.format_index(escape="latex", axis=0).format_index(
        escape="latex", axis=1
    )
    last = frame.columns.nlevels - 1
    style = style.format_index(
        lambda title: symbols.get(title, title), axis=1, level=last
    )
    text: str = style.to_latex(
        hrules=True, multicol_align="c", column_format="l" + "c" * frame.shape[1]
    )
    return text + "".join(f"% {one_line(note)}\n" for note in comparison.notes)


def _csv(comparison: MethodComparison) -> str:
    pandas = require("pandas", extra="lab", purpose="making tables")
    rows = [
        (
            csv_text(c.method),
            csv_text(c.dataset),
            csv_text(c.protocol),
            c.metric.title,
            c.mean,
            c.error,
            c.n,
        )
        for c in comparison.cells
    ]
    names = ["method", "dataset", "protocol", "metric", "mean", "standard_error", "n"]
    text: str = pandas.DataFrame(rows, columns=names).to_csv(
        index=False, lineterminator="\n"
    )
    return text


def html_table(
    comparison: MethodComparison, name: Callable[[str], str] = escape
) -> str:
    """Return a comparison as an HTML table; ``name`` turns names into HTML."""

    def number(cell: Cell) -> str:
        value, _, error = cell.text.partition(" ± ")
        value = {1: "<b>{}</b>", 2: "<u>{}</u>"}.get(cell.rank, "{}").format(value)
        return value + (f"<small> ± {error}</small>" if error else "")

    text: str = comparison.wide(number, name, empty="–").to_html(escape=False, border=0)
    return text + "\n"
