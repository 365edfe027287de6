"""The tables of the report: accuracy, also within tasks, forgetting, strategies, settings, widths, conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evergrow.lab.records import AnalysisRecord, RunRecord
from evergrow.lab.report.collect import RecordSet, RunFolder
from evergrow.lab.report.contents import Table, plain_label
from evergrow.lab.report.groups import protocol_groups
from evergrow.lab.report.mechanism_figures import xi_label
from evergrow.lab.report.panels import slug
from evergrow.lab.report.published import (
    PublishedTable,
    known_backbone,
    known_dataset,
    load_published,
    published_row,
)
from evergrow.lab.tables import (
    JOINT,
    METRICS,
    Cell,
    Column,
    Comparison,
    Metric,
    Record,
    compare,
    grouped,
    mean_and_error,
)

STRATEGIES = frozenset({"scl-mgsm", "scsm", "ri"})
"""Methods that differ in how the layer comes about, and in nothing else."""


def is_strategy(folder: RunFolder) -> bool:
    """Return whether a folder compares strategies of construction only."""
    methods = {run.method for run in folder.runs}
    return len(methods) > 1 and methods <= STRATEGIES


def tidy(comparison: Comparison) -> Comparison:
    """Return a comparison with the symbols of the paper in place of options."""
    return replace(
        comparison,
        rows=[plain_label(row) for row in comparison.rows],
        notes=[plain_label(note) for note in comparison.notes],
        quoted=tuple(plain_label(row) for row in comparison.quoted),
    )


# -- runs -----------------------------------------------------------------------------------------------


def main_tables(record_set: RecordSet, backbone: str | None = None, published: str = "main") -> list[Table]:
    """Return accuracy tables, one per folder; with a backbone of the paper, only of runs on it.

    Folders that compare strategies alone have a table of their own kind, see :func:`strategy_tables`.
    """
    tables = []
    for folder in record_set.folders:
        if is_strategy(folder):
            continue
        runs = [run for run in folder.runs if _on(run, backbone)]
        if not runs:
            continue
        comparison = beside(compare(runs), runs, load_published().tables[published])
        caption = (
            "Accuracy after the last session and mean over sessions, in percent; mean ± standard error over seeds, "
        )
        caption += "best bold, second underlined."
        if comparison.quoted:
            caption += (
                " Rows named 'published' are quoted from the paper, where data, backbone, protocol and method agree."
            )
        name = slug("accuracy" if backbone is None else f"accuracy-{published}", folder.name)
        tables.append(Table(name, f"Accuracy: {folder.name}", caption, tidy(comparison)))
    return tables


def _on(run: RunRecord, backbone: str | None) -> bool:
    """Return whether a run belongs here: the paper's other backbones have tables of their own, all else is main."""
    found = known_backbone(run.dataset)
    return found == backbone if backbone else found not in ("DINO-v2", "ResNet101")


def forgetting_tables(record_set: RecordSet) -> list[Table]:
    """Return tables of average forgetting, one per folder."""
    tables = []
    for folder in record_set.folders:
        if any(run.results.get("f_avg") is not None for run in folder.finished):
            runs = [run for run in folder.runs if run.method not in JOINT]
            comparison = beside(compare(runs, ["f_avg"]), runs, load_published().tables["forgetting"])
            caption = (
                "Average forgetting in percent: best accuracy on a task at any earlier session less the one at the "
            )
            caption += "end, averaged over all tasks but the last; lower is better. Joint training forgets nothing by "
            caption += "design and is left out."
            name = slug("forgetting", folder.name)
            tables.append(Table(name, f"Average forgetting: {folder.name}", caption, tidy(comparison)))
    return tables


def within_tables(record_set: RecordSet) -> list[Table]:
    """Return tables of accuracy within tasks beside the usual one, of folders where some run holds it."""
    tables = []
    for folder in record_set.folders:
        runs = [run for run in folder.finished if run.results.get("a_last_within") is not None]
        if runs:
            caption = (
                "Accuracy after the last session, in percent: among all classes, and among those of the sample's own "
                "task only. What the second lacks of 100 are errors inside tasks; what it has above the first are "
                "samples lost to classes of other tasks. It tells the method the task, and is no result to compare "
                "with others' accuracy."
            )
            comparison = compare(runs, ["a_last", "a_last_within"])
            name = slug("within-tasks", folder.name)
            tables.append(Table(name, f"Accuracy within tasks: {folder.name}", caption, tidy(comparison)))
    return tables


def strategy_tables(record_set: RecordSet) -> list[Table]:
    """Return accuracy tables of the folders that compare strategies of construction."""
    tables = []
    for folder in record_set.folders:
        if is_strategy(folder):
            comparison = compare(folder.runs)
            caption = (
                "How the layer comes about, all else equal: guided by MGSM or SCSM, or drawn at random (RI), at equal "
            )
            caption += "width L, without adapting the backbone. Mean ± standard error over seeds, in percent."
            name = slug("strategies", folder.name)
            title = f"Strategies of construction: {folder.name}"
            tables.append(Table(name, title, caption, tidy(comparison)))
    return tables


def beside(comparison: Comparison, runs: Sequence[RunRecord], table: PublishedTable) -> Comparison:
    """Return a comparison with the published row below every measured one of the same setting.

    Data set, backbone, protocol and method must agree, first-session adaptation included.
    """
    rows, data, protocols, groups = grouped([run for run in runs if run.status == "ok"])
    settings = {(rows[r], data[d], protocols[p]): several[0] for (r, d, p), several in groups.items()}
    titles: list[str] = []
    cells: list[list[Cell | None]] = []
    quoted: list[str] = []
    for title, row in zip(comparison.rows, comparison.cells):
        titles.append(title)
        cells.append(row)
        found = [_quote(table, settings.get((title, c.dataset, c.protocol)), c) for c in comparison.columns]
        if any(found):
            titles.append(f"{title}, published")
            quoted.append(titles[-1])
            cells.append(found)
    return replace(comparison, rows=titles, cells=cells, quoted=tuple(quoted))


def _quote(table: PublishedTable, record: Record | None, column: Column) -> Cell | None:
    if record is None or known_backbone(record.dataset) != table.backbone:
        return None
    row, dataset = published_row(table, record.method), known_dataset(record.dataset)
    for cell in row.cells if row and dataset else ():
        same = cell.dataset == dataset and METRICS.get(cell.metric) == column.metric
        # A published cell without a protocol is one of joint training, which has none.
        if same and cell.protocol in (record.protocol["name"], None):
            return Cell(cell.value, cell.error, 3)
    return None


# -- analyses -------------------------------------------------------------------------------------------


def search_table(record_set: RecordSet) -> list[Table]:
    """Return the table of the search's settings s and B_max, with time."""
    records = [
        record for record in record_set.analysed("sweep") if record.options.get("n_units") is None or _searched(record)
    ]
    kept = [record for record in records if _varies(record, records)]
    if not kept:
        return []
    comparison = compare(kept, ["a_last", "a_avg", "construction_s", "n_units"])
    caption = (
        "Settings of the search: s units per block, B_max candidate blocks per round. Accuracy in percent, seconds to "
    )
    caption += "construct the layer, and units at its end; mean ± standard error over seeds where there are several."
    return [Table("search", "Settings of the search, s and B_max", caption, tidy(comparison))]


def _searched(record: AnalysisRecord) -> bool:
    return "(n_candidates=" in record.label or "(block_size=" in record.label


def _varies(record: AnalysisRecord, records: Sequence[AnalysisRecord]) -> bool:
    """Return whether another record has the same name and another s or B_max."""
    base = record.label.partition(" (")[0]
    settings = {
        (other.options.get("block_size"), other.options.get("n_candidates"))
        for other in records
        if other.label.partition(" (")[0] == base
    }
    return len(settings) > 1


def size_table(record_set: RecordSet) -> list[Table]:
    """Return the final widths of layers whose construction ended by itself."""
    found = record_set.analysed("sweep", "residual")
    own = [record for record in found if record.options.get("n_units") is None and "status" in record.results]
    sized = {_size_key(record): _sized(record) for record in own if record.results["status"] == "converged"}
    if not sized:
        return []
    comparison = compare(sized.values(), ["n_units"])
    stopped = sum(record.results["status"] != "converged" for record in own)
    notes = list(comparison.notes)
    if stopped:
        notes.append(
            f"{stopped} of {len(own)} constructions ended at their cap or out of candidates, not at the tolerance, "
            "and have no final size"
        )
    caption = (
        "Units at which the residual of the first task fell below the tolerance; mean ± standard error over seeds. "
    )
    caption += "Constructions that ended at their cap or out of candidates have no final size."
    return [Table("sizes", "Final hidden sizes", caption, tidy(replace(comparison, notes=notes)))]


def _sized(record: AnalysisRecord) -> AnalysisRecord:
    """Return a record with only the options that decide the final width, so that analyses of one layer are one row."""
    rest = ("max_units", "verbose", "device", "solver", "readout", "class_moments", "n_units")
    options = {key: value for key, value in record.options.items() if key not in rest}
    name = record.label.partition(" (")[0].partition(",")[0]
    criterion = "" if options.get("criterion", "exact") == "exact" else f", {options['criterion']}"
    scales = options.get("scales", "paper")
    label = f"{name} (ξ {scales if isinstance(scales, str) else xi_label(scales)[0]}{criterion}"
    label += "".join(f", {key}={options[key]}" for key in ("block_size", "n_candidates") if key in options) + ")"
    return replace(record, label=label, options=options, analysis="sizes", settings={}, run_id=repr(_size_key(record)))


def _size_key(record: AnalysisRecord) -> tuple[Any, ...]:
    options = record.options
    decide = tuple(str(options.get(key)) for key in ("scales", "block_size", "n_candidates", "tol", "criterion"))
    return (
        record.method,
        record.dataset["name"],
        record.protocol["name"],
        record.seed,
        record.results["n_units"],
        *decide,
    )


_SPECTRUM = (
    ("norm", "‖P‖F", r"$\lVert P_t \rVert_F$"),
    ("eig_max", "largest eigenvalue", r"$\lambda_{\max}$"),
    ("eig_min", "smallest eigenvalue", r"$\lambda_{\min}$"),
    ("condition_number", "condition number", r"$\kappa(P_t)$"),
    ("effective_rank", "effective rank", "effective rank"),
)


def conditioning_tables(record_set: RecordSet) -> list[Table]:
    """Return tables of the spectrum of P_t after the last session at every ridge, one per data set and protocol."""
    tables = []
    for group in protocol_groups(record_set.analysed("conditioning")):
        columns, cells = _spectrum(group.rows)
        if columns:
            caption = "Pₜ = Gₜ + λI after the last session, by ridge λ."
            comparison = Comparison(list(group.rows), columns, cells, [])
            title = f"Conditioning after the last session: {group.title}"
            tables.append(Table(slug("conditioning", group.title), title, caption, comparison))
    return tables


def _spectrum(rows: dict[str, list[AnalysisRecord]]) -> tuple[list[Column], list[list[Cell | None]]]:
    ridges = sorted(
        {float(r["alpha"]) for several in rows.values() for rec in several for r in rec.results.get("ridges", [])}
    )
    wanted = [(alpha, item) for alpha in ridges for item in _SPECTRUM]
    columns = [
        Column("", f"λ = {alpha:g}", Metric(title, latex, lambda record: None, decimals=3, form="g", ranked=False))
        for alpha, (_, title, latex) in wanted
    ]
    cells = [[_last(several, alpha, key) for alpha, (key, _, _) in wanted] for several in rows.values()]
    return columns, cells


def _last(records: Sequence[AnalysisRecord], alpha: float, key: str) -> Cell | None:
    entries: list[dict[str, Any]] = [ridge for record in records for ridge in record.results.get("ridges", [])]
    values = [float(e[key][-1]) for e in entries if e["alpha"] == alpha and e.get(key) and e[key][-1] is not None]
    return Cell(*mean_and_error(values), len(values)) if values else None
