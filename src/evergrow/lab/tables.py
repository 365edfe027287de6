"""Tables from records: mean and standard error over seeds, with methods as rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from evergrow.core.errors import UnknownNameError
from evergrow.core.escaping import csv_text, markdown_text, one_line, printable
from evergrow.core.imports import import_extra
from evergrow.core.registry import nearest
from evergrow.core.validation import check_choice
from evergrow.lab.records import Record

if TYPE_CHECKING:
    import pandas as pd

JOINT = ("joint-lp", "joint-ft")
"""Methods trained on all data at once: references, not competitors."""

FORMATS = ("table", "markdown", "latex", "csv", "html")


@dataclass(frozen=True)
class Metric:
    """A number in a record and its printed form.

    Parameters
    ----------
    title : str
        Name in plain text.
    read : callable
        Takes a record, returns the number or None.
    latex : str
        Name in LaTeX, if different.
    lower_is_better : bool
        Whether smaller values are better.
    decimals : int
        Digits after the point, or significant digits for the form "g".
    form : {"f", "g"}
        Fixed point, or adapted to the size of the value.
    ranked : bool
        Whether the best and second value of a column are marked.
    """

    title: str
    read: Callable[[Record], float | None] = lambda record: None
    latex: str = ""
    lower_is_better: bool = False
    decimals: int = 2
    form: str = "f"
    ranked: bool = True

    def text(self, value: float) -> str:
        """Return the printed form of a value.

        Examples
        --------
        >>> from evergrow.lab.tables import METRICS
        >>> METRICS["a_last"].text(72.638), METRICS["n_units"].text(14650.0)
        ('72.64', '14650')
        """
        if self.form == "f":
            return f"{value:.{self.decimals}f}"
        if 1e-3 <= abs(value) < 1e5:
            digits_before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
            return f"{value:.{max(self.decimals - digits_before, 0)}f}"
        mantissa, _, exponent = f"{value:.{self.decimals - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard error (sample deviation over root n), None for n = 1.

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
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (n - 1) / n)


def _result(key: str, factor: float = 1.0) -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        value = record.results.get(key)
        return None if value is None else factor * float(value)

    return read


def _percent(key: str) -> Callable[[Record], float | None]:
    return _result(key, 100.0)


def _train_seconds(record: Record) -> float | None:
    updates: list[Any]
    if record.analysis:
        fit = record.results.get("fit_s")
        updates = [record.results.get("update_s")]
    else:
        fit = record.times.get("fit")
        updates = record.times.get("update") or []
    if fit is None or None in updates:
        return None
    return float(fit) + float(sum(updates))


def _predict_seconds(record: Record) -> float | None:
    if record.analysis:
        return _result("predict_s")(record)
    seconds = record.times.get("predict")
    return None if seconds is None else float(sum(seconds))


def _peak_mebibytes(record: Record) -> float | None:
    value = record.memory.get("peak_cuda_bytes") or record.memory.get("peak_rss_bytes")
    return None if value is None else float(value) / 2**20


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
"""Metrics by the name used in ``--metric``."""


def with_titles(records: Iterable[Record]) -> pd.DataFrame:
    """Return records with titles that are unique unless only the seed differs.

    Two records have the same ``method`` only if name, label and all options (except the
    seed) are equal, the same ``dataset`` only if the contents are equal, and the same
    ``protocol`` only if all its settings are equal. Equal names with different settings
    get the differing settings in the title.

    Returns
    -------
    DataFrame
        Columns ``record``, ``seed``, ``method``, ``dataset`` and ``protocol``.
    """
    pandas = import_extra("pandas", extra="lab", purpose="making tables")
    listed = list(records)
    methods = [(record.label, _method_settings(record)) for record in listed]
    datasets = [(record.dataset_label, _dataset_settings(record)) for record in listed]
    protocols = [
        (record.protocol["name"], _protocol_settings(record)) for record in listed
    ]
    return pandas.DataFrame(
        {
            "record": listed,
            "seed": [record.seed for record in listed],
            "method": _titles(methods),
            "dataset": _titles(datasets),
            "protocol": _titles(protocols),
        }
    )


def _method_settings(record: Record) -> dict[str, Any]:
    options = dict(record.options)
    if options.get("random_state") == record.seed:
        del options["random_state"]  # it is the seed of the run
    settings = {"method": record.method, **options}
    if record.analysis:
        settings.update(analysis=record.analysis, **record.settings)
    return settings


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


_COMPUTATION = ("device", "solver", "dtype", "verbose")
"""Options of the computation, used in titles only if necessary to tell them apart."""


def _titles(named: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return a printable title per name and settings, unique for unique settings."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for name, settings in named:
        groups.setdefault(name, {})[_key(settings)] = settings
    titles = {
        (name, key): title
        for name, group in groups.items()
        for key, title in _unique_titles(name, group).items()
    }
    return [titles[name, _key(settings)] for name, settings in named]


def _unique_titles(name: str, group: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return titles of settings that share a name."""
    if len(group) == 1:
        return dict.fromkeys(group, printable(name))
    options = dict.fromkeys(item for settings in group.values() for item in settings)
    differing = [
        item
        for item in options
        if len({_key(settings.get(item)) for settings in group.values()}) > 1
    ]
    for shown in ([item for item in differing if item not in _COMPUTATION], differing):
        titles = {}
        for key, settings in group.items():
            values = ", ".join(f"{item}={settings.get(item)}" for item in shown)
            titles[key] = printable(f"{name} ({values})")
        if len(set(titles.values())) == len(group):
            break
    return titles


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Parameters
    ----------
    method, dataset, protocol : str
        Row, and column together with the metric.
    metric : Metric
        The metric.
    mean, error : float, float or None
        Mean and standard error over runs. No error for a single run.
    n : int
        Number of runs.
    rank : int
        1 for the best in its column, 2 for the second, otherwise 0. Values that print
        equal have equal rank.
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
        """Printed number, such as ``72.64 ± 0.24``."""
        mean = self.metric.text(self.mean)
        if self.error is None:
            return mean
        return f"{mean} ± {self.metric.text(self.error)}"


@dataclass(frozen=True)
class ResultTable:
    """A table of means with notes.

    Parameters
    ----------
    cells : list of Cell
        The numbers. A method without a finished run in a column has no cell there.
    notes : list of str
        Failed runs, uneven numbers of seeds, one name for several settings, ...
    quoted : tuple of str
        Rows quoted from a publication, not measured.
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
        """Return a frame with a row per method and a column per metric.

        Columns have the levels dataset, protocol and metric. Empty levels are dropped.

        Parameters
        ----------
        text : callable
            Formats a cell.
        name : callable
            Formats a name.
        empty : str
            Text of missing cells.
        """
        import pandas as pd

        columns = [(c.dataset, c.protocol, c.metric.title) for c in self.cells]
        texts: dict[tuple[str, str, str], dict[str, str]] = {
            column: {} for column in _grouped(columns)
        }
        for column, cell in zip(columns, self.cells):
            texts[column][cell.method] = text(cell)
        rows = list(dict.fromkeys(cell.method for cell in self.cells))
        frame = pd.DataFrame(texts, index=rows).fillna(empty)
        frame.columns = pd.MultiIndex.from_tuples(
            [tuple(map(name, column)) for column in texts]
        )
        frame.index = [name(row) for row in rows]
        unused = [
            level for level in (0, 1) if not any(column[level] for column in texts)
        ]
        return frame.droplevel(unused, axis=1)


def _grouped(columns: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Sort unique columns by the first appearance of each of their levels."""
    unique = list(dict.fromkeys(columns))
    orders = [list(dict.fromkeys(level)) for level in zip(*unique)]
    return sorted(
        unique,
        key=lambda column: [order.index(item) for order, item in zip(orders, column)],
    )


def compare(
    records: Iterable[Record], metrics: Sequence[str] = ("a_last", "a_avg")
) -> ResultTable:
    """Aggregate records over seeds.

    Records are averaged only if nothing but the seed differs, see :func:`with_titles`.

    Parameters
    ----------
    records : iterable of Record
        Records of any status. Only finished runs are averaged.
    metrics : sequence of str
        Keys of :data:`METRICS`.

    Returns
    -------
    ResultTable
    """
    for name in metrics:
        if name not in METRICS:
            raise UnknownNameError(
                f"There is no metric {name!r}. Did you mean {nearest(name, METRICS)}?"
            )
    unique, n_copies = latest_per_run(records)
    notes = []
    if n_copies:
        notes.append(
            f"{n_copies} further records of the same runs were left out; the latest of "
            "each counts"
        )
    frame = with_titles(record for record in unique if record.status == "ok")
    cells = []
    by_column = frame.groupby(["method", "dataset", "protocol"], sort=False)
    for (method, dataset, protocol), group in by_column:
        for metric in [METRICS[name] for name in metrics]:
            values = [metric.read(record) for record in group.record]
            known = [value for value in values if value is not None]
            if not known:
                continue
            if len(known) < len(values):
                missing = [
                    seed for seed, value in zip(group.seed, values) if value is None
                ]
                notes.append(
                    f"{method}, {dataset}, {protocol}: {metric.title} is missing from "
                    f"seeds {sorted(set(missing))} and is the mean of the others"
                )
            mean, error = mean_and_error(known)
            cells.append(
                Cell(method, dataset, protocol, metric, mean, error, len(known))
            )
    is_reference = [record.method in JOINT for record in frame.record]
    references = set(frame.method[is_reference])
    notes += _name_notes(frame)
    notes += _seed_notes(frame)
    notes += unfinished_notes(unique, "not in the table")
    found = sorted({str(record.versions.get("evergrow")) for record in frame.record})
    if len(found) > 1:
        notes.append(f"records of several evergrow versions: {', '.join(found)}")
    return ResultTable(rank_cells(cells, references), notes)


def rank_cells(cells: Sequence[Cell], references: Iterable[str] = ()) -> list[Cell]:
    """Mark the best and second cell of every column with at least two competitors.

    References do not compete.
    """
    columns: dict[tuple[str, str, str], list[float]] = {}
    for cell in cells:
        if cell.metric.ranked and cell.method not in references:
            key = (cell.dataset, cell.protocol, cell.metric.title)
            printed = round(cell.mean, cell.metric.decimals)
            columns.setdefault(key, []).append(printed)
    marked = []
    for cell in cells:
        values = columns.get((cell.dataset, cell.protocol, cell.metric.title), [])
        best = sorted(set(values), reverse=not cell.metric.lower_is_better)[:2]
        printed = round(cell.mean, cell.metric.decimals)
        competes = len(values) > 1 and cell.method not in references
        if competes and printed in best:
            marked.append(replace(cell, rank=1 + best.index(printed)))
        else:
            marked.append(cell)
    return marked


def latest_per_run(records: Iterable[Record]) -> tuple[list[Record], int]:
    """Return one record per run and the number of other records.

    Finished records are preferred, then later ones.
    """
    best: dict[str, Record] = {}
    total = 0
    for record in records:
        total += 1
        current = best.get(record.run_id)
        if current is None or _preference(record) > _preference(current):
            best[record.run_id] = record
    return list(best.values()), total - len(best)


def _preference(record: Record) -> tuple[bool, str]:
    return record.status == "ok", record.ended


def unfinished_notes(records: Iterable[Record], effect: str) -> list[str]:
    """Return a note per unfinished run; ``effect`` describes the consequence."""
    notes = []
    for record in records:
        if record.status == "ok":
            continue
        note = (
            f"{record.status}, {effect}: {record.label}, {record.dataset_label}, "
            f"{record.protocol['name']}, seed {record.seed}"
        )
        if record.error:
            message = record.error.get("message", "")
            note += f" ({record.error.get('type')}: {message})"
        notes.append(note)
    return notes


def _name_notes(frame: pd.DataFrame) -> list[str]:
    """Return notes about names that stand for several settings."""
    labels = {
        "method": [printable(record.label) for record in frame.record],
        "dataset": [printable(record.dataset_label) for record in frame.record],
        "protocol": [printable(record.protocol["name"]) for record in frame.record],
    }
    notes = []
    for kind, names in labels.items():
        for name, titles in frame.groupby(names, sort=False)[kind].unique().items():
            if len(titles) > 1:
                notes.append(
                    f"{name} stands for {len(titles)} different settings, shown as "
                    f"{'; '.join(titles)}"
                )
    return notes


def _seed_notes(frame: pd.DataFrame) -> list[str]:
    """Return notes about means over other seeds than the rest of their column."""
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


def render(comparison: ResultTable, format: str = "markdown") -> str:
    """Return a comparison as text.

    Parameters
    ----------
    comparison : ResultTable
        The table.
    format : {"table", "markdown", "latex", "csv", "html"}
        ``"table"`` is plain text with ``*`` at the best and ``+`` at the second value
        of every column. ``"csv"`` has one line per cell, in full precision.

    Returns
    -------
    str
        Ends with a newline.

    Examples
    --------
    >>> from evergrow.lab.tables import METRICS, Cell, ResultTable, render
    >>> cell = Cell("RI", "CUB", "B-0 Inc-5", METRICS["a_last"], 72.644, 0.238, 3)
    >>> print(render(ResultTable([cell])))
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


def _table(comparison: ResultTable) -> str:
    frame = comparison.wide(_marked({0: "{} ", 1: "{}*", 2: "{}+"}), printable)
    legend = "mean ± standard error over seeds; * best, + second"
    notes = [f"note: {one_line(note)}" for note in comparison.notes]
    return "\n".join([frame.to_string(), legend, *notes]) + "\n"


def _markdown(comparison: ResultTable) -> str:
    frame = comparison.wide(_marked({1: "**{}**", 2: "<u>{}</u>"}), markdown_text)
    heads = [
        column if isinstance(column, str) else "<br>".join(column)
        for column in frame.columns
    ]
    lines = [["Method", *heads], ["---"] + ["---:"] * len(heads)]
    lines += [[name, *row] for name, *row in frame.itertuples()]
    parts = ["| " + " | ".join(line) + " |" for line in lines]
    parts += ["", "Mean ± standard error over seeds; best bold, second underlined."]
    if comparison.notes:
        parts += ["", *(f"- {markdown_text(note)}" for note in comparison.notes)]
    return "\n".join(parts) + "\n"


def _latex(comparison: ResultTable) -> str:
    """Return LaTeX like that of the paper, with booktabs and multi-level columns."""

    def number(cell: Cell) -> str:
        mean = cell.metric.text(cell.mean)
        if cell.error is None:
            return mean
        error = cell.metric.text(cell.error)
        return mean + rf"$_{{\scriptscriptstyle\pm{error}}}$"

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
    style = frame.style.format_index(escape="latex", axis=0)
    style = style.format_index(escape="latex", axis=1)
    last = frame.columns.nlevels - 1
    style = style.format_index(
        lambda title: symbols.get(title, title), axis=1, level=last
    )
    column_format = "l" + "c" * frame.shape[1]
    text: str = style.to_latex(
        hrules=True, multicol_align="c", column_format=column_format
    )
    return text + "".join(f"% {one_line(note)}\n" for note in comparison.notes)


def _csv(comparison: ResultTable) -> str:
    pandas = import_extra("pandas", extra="lab", purpose="making tables")
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


def html_table(comparison: ResultTable, name: Callable[[str], str] = escape) -> str:
    """Return a comparison as an HTML table; ``name`` converts names to HTML."""

    def number(cell: Cell) -> str:
        value, _, error = cell.text.partition(" ± ")
        value = {1: "<b>{}</b>", 2: "<u>{}</u>"}.get(cell.rank, "{}").format(value)
        return f"{value}<small> ± {error}</small>" if error else value

    text: str = comparison.wide(number, name, empty="–").to_html(escape=False, border=0)
    return text + "\n"
