"""Tables and figures from records of analyses of the paper's mechanism."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from evergrow.core.errors import FileFormatError
from evergrow.core.escaping import printable
from evergrow.core.record import Between, from_values
from evergrow.lab.records import Record
from evergrow.lab.report.contents import (
    CAPTIONS,
    Figure,
    Group,
    RecordSet,
    Table,
    curve_and_error,
    groups,
)
from evergrow.lab.report.plots import (
    Dot,
    Line,
    Panel,
    dot_panel,
    heat_panel,
    line_panel,
    slug,
    style_of,
)
from evergrow.lab.report.run_sections import tidy
from evergrow.lab.tables import Cell, Metric, ResultTable, compare, mean_and_error


def _ridges(records: Sequence[Record]) -> list[float]:
    return sorted(
        {
            float(ridge["alpha"])
            for record in records
            for ridge in record.results.get("ridges", [])
        }
    )


def _chosen_ridge(records: Sequence[Record]) -> float:
    """Return the ridge of panels with one ridge: the paper's 0.1, or the middle."""
    ridges = _ridges(records)
    if 0.1 in ridges or not ridges:
        return 0.1
    return ridges[len(ridges) // 2]


def _ridge_curves(
    records: Sequence[Record], key: str, alpha: float
) -> list[list[float]]:
    """Return a quantity per session at one ridge, for every complete record."""
    ridges = [
        ridge
        for record in records
        for ridge in record.results.get("ridges", [])
        if ridge["alpha"] == alpha
    ]
    return [ridge[key] for ridge in ridges if ridge.get(key) and None not in ridge[key]]


def _stage_lines(group: Group, key: str, alpha: float) -> list[Line]:
    lines = []
    for title, style, records in group.styled():
        curves = _ridge_curves(records, key, alpha)
        if curves and len({len(curve) for curve in curves}) == 1:
            mean, error = curve_and_error(curves)
            lines.append(Line(title, style, range(1, len(mean) + 1), mean, error))
    return lines


def _stage_panels(
    records: Sequence[Record], name: str, quantities: Sequence[tuple[str, str, str]]
) -> list[Panel]:
    """Return panels of quantities (key, title, axis title) per session at one ridge."""
    alpha = _chosen_ridge(records)
    panels = []
    for group in groups(records):
        for key, title, label in quantities:
            lines = _stage_lines(group, key, alpha)
            if lines:
                panels.append(
                    line_panel(
                        slug(name, key, group.title),
                        f"{title}: {group.title}",
                        ("Session", label),
                        lines,
                        log_y=True,
                    )
                )
    return panels


def norm_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the Frobenius norm of P_t per session."""
    records = record_set.analysed("conditioning")
    panels = _stage_panels(
        records, "norm", [("norm", "Norm of Pₜ", "Frobenius norm of Pₜ")]
    )
    if not panels:
        return []
    spreads = [0.0]
    for record in records:
        ridges = record.results.get("ridges", [])
        norms = np.asarray([ridge["norm"] for ridge in ridges], dtype=float)
        if norms.size:
            smallest = norms.min(axis=0)
            spreads.append(float(((norms.max(axis=0) - smallest) / smallest).max()))
    caption = CAPTIONS["norm"].format(
        ridge=_chosen_ridge(records),
        ridges=", ".join(f"{alpha:g}" for alpha in _ridges(records)),
        spread=100 * max(spreads),
    )
    return [Figure("Norm of Pₜ", caption, panels)]


def eigenvalues(record_set: RecordSet) -> list[Figure | Table]:
    """Draw extreme eigenvalues and condition number of P_t, with tables of the last."""
    records = record_set.analysed("conditioning")
    quantities = [
        ("eig_max", "Largest eigenvalue", "Largest eigenvalue of Pₜ"),
        ("eig_min", "Smallest eigenvalue", "Smallest eigenvalue of Pₜ"),
        ("condition_number", "Condition number", "Condition number of Pₜ"),
    ]
    panels = _stage_panels(records, "eigenvalues", quantities)
    parts: list[Figure | Table] = []
    if panels:
        caption = CAPTIONS["eigenvalues"].format(ridge=_chosen_ridge(records))
        title = "Eigenvalues and condition number of Pₜ"
        parts.append(Figure(title, caption, panels))
    return parts + _conditioning_tables(records)


_SPECTRUM = {
    "norm": Metric("‖P‖F", latex=r"$\lVert P_t \rVert_F$", decimals=3, form="g"),
    "eig_max": Metric(
        "largest eigenvalue", latex=r"$\lambda_{\max}$", decimals=3, form="g"
    ),
    "eig_min": Metric(
        "smallest eigenvalue", latex=r"$\lambda_{\min}$", decimals=3, form="g"
    ),
    "condition_number": Metric(
        "condition number", latex=r"$\kappa(P_t)$", decimals=3, form="g"
    ),
    "effective_rank": Metric("effective rank", decimals=3, form="g"),
}


def _conditioning_tables(records: Sequence[Record]) -> list[Figure | Table]:
    """Return the spectrum of P_t after the last session, per dataset and protocol."""
    tables: list[Figure | Table] = []
    for group in groups(records):
        cells = []
        for title, several in group.rows.items():
            for alpha in _ridges(records):
                for key, metric in _SPECTRUM.items():
                    curves = _ridge_curves(several, key, alpha)
                    values = [float(curve[-1]) for curve in curves]
                    if values:
                        mean, error = mean_and_error(values)
                        column = f"λ = {alpha:g}"
                        cells.append(
                            Cell(title, "", column, metric, mean, error, len(values))
                        )
        if cells:
            tables.append(
                Table(
                    slug("conditioning", group.title),
                    f"Conditioning after the last session: {group.title}",
                    "Pₜ = Gₜ + λI after the last session, by ridge λ.",
                    ResultTable(cells),
                )
            )
    return tables


def effective_rank(record_set: RecordSet) -> list[Figure]:
    """Draw the effective rank sum d / (d + alpha) of P_t, with a panel per ridge."""
    records = record_set.analysed("conditioning")
    panels = []
    for group in groups(records):
        for alpha in _ridges(records):
            title = f"{group.title}, λ = {alpha:g}"
            lines = _stage_lines(group, "effective_rank", alpha)
            if lines:
                labels = ("Session", "Effective rank (dimensions)")
                panels.append(
                    line_panel(slug("effective-rank", title), title, labels, lines)
                )
    if panels:
        return [Figure("Effective rank", CAPTIONS["effective-rank"], panels)]
    return []


def condition_numbers(record_set: RecordSet) -> list[Figure]:
    """Draw the condition number of H on a random subset of samples."""
    records = record_set.analysed("conditioning")
    panels = []
    notes: list[str] = []
    for group in groups(records):
        dots = []
        for title, style, several in group.styled():
            values = [record.results.get("condition_number") for record in several]
            known = [float(value) for value in values if value is not None]
            where = f"{title}, {group.title}"
            if not known:
                notes.append(
                    f"{where}: the condition number is not finite or not recorded"
                )
                continue
            dots.append(Dot(title, style, *mean_and_error(known)))
            smaller = min(several[0].results.get("features", {}).get("shape") or [0])
            rank = several[0].results.get("rank")
            if rank is not None and rank < smaller:
                notes.append(
                    f"{where}: H has rank {rank} of {smaller}, so this is a ratio of "
                    "rounding errors"
                )
        if dots:
            label = "Condition number of H (ratio of singular values)"
            panels.append(
                dot_panel(
                    slug("condition-number", group.title),
                    group.title,
                    label,
                    dots,
                    log=True,
                )
            )
    samples = sorted({int(record.settings.get("n_samples", 0)) for record in records})
    units = sorted({int(record.results.get("n_units", 0)) for record in records})
    if not panels:
        return []
    caption = CAPTIONS["condition-number"].format(
        samples=_either(samples), units=_either(units)
    )
    return [Figure("Condition number of H", caption, panels, notes)]


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)


def similarity_maps(record_set: RecordSet) -> list[Figure]:
    """Draw the cosine similarity of units, without and with centring."""
    kinds = (
        ("matrix", "mean_abs", "columns of H", 0.0),
        ("centred_matrix", "centred_mean_abs", "centred columns", -1.0),
    )
    figures = []
    for group in groups(record_set.analysed("similarity")):
        panels = []
        for key, mean_key, subject, low in kinds:
            for title, several in group.rows.items():
                results = min(several, key=lambda record: record.seed).results
                matrix = results.get(key)
                if not matrix:
                    continue
                mean = float(results.get(mean_key, math.nan))
                dataset = group.title.partition(",")[0]
                heading = f"{title}, {dataset}: {subject}, mean |cos| {mean:.2f}"
                name = slug("similarity", group.title, title, subject)
                labels = ("Unit", "Unit", "Cosine")
                panels.append(heat_panel(name, heading, matrix, (low, 1.0), labels))
        if panels:
            title = f"Similarity of bases: {group.title}"
            figures.append(Figure(title, CAPTIONS["similarity"], panels))
    return figures


def residual_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the residual of the first task and xi against the width of the layer."""
    panels = []
    for group in groups(record_set.analysed("residual")):
        for name, key, label in (
            ("residual", "rmse", "RMSE of the first task"),
            ("scale", "scale", "Scale ξ (or Λ)"),
        ):
            lines = []
            for title, style, several in group.styled():
                results = min(several, key=lambda record: record.seed).results
                log = results.get("log") or {}
                if log.get("n_units"):
                    label_with_status = f"{title}: {results.get('status', '')}"
                    lines.append(
                        Line(label_with_status, style, log["n_units"], log[key])
                    )
            if lines:
                heading = f"{group.title}: {label}"
                panels.append(
                    line_panel(
                        slug(name, group.title),
                        heading,
                        ("Units L", label),
                        lines,
                        log_y=True,
                    )
                )
    if panels:
        title = "Residual against width, with the trajectory of ξ"
        return [Figure(title, CAPTIONS["residual"], panels)]
    return []


def xi_settings(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy with fixed and with adaptive xi."""
    records = record_set.analysed("xi")
    units = sorted({str(record.settings.get("unit", "absolute")) for record in records})
    panels = []
    for group in groups(records):
        for unit in units:
            dots = _xi_dots(group, unit)
            if dots:
                kind = "relative to the features"
                if unit == "absolute":
                    kind = "as printed"
                title = f"{group.title}, ξ {kind}"
                name = slug("xi", group.title, unit)
                panels.append(
                    dot_panel(name, title, "A_last (%)", dots, text="{:.2f}".format)
                )
    if panels:
        return [Figure("Fixed against adaptive ξ", CAPTIONS["xi"], panels)]
    return []


def _xi_dots(group: Group, unit: str) -> list[Dot]:
    """Return dots of one unit of xi, fixed ones first, sorted by value."""
    dots = []
    for several in group.rows.values():
        records = [
            record
            for record in several
            if record.settings.get("unit", "absolute") == unit
        ]
        known = [
            100 * float(record.results["a_last"])
            for record in records
            if record.results.get("a_last")
        ]
        if known:
            label, adaptive = xi_label(records[0].options.get("scales", "paper"))
            widths = {int(record.results.get("n_units", 0)) for record in records}
            style = style_of("scl-mgsm", 0 if adaptive else 1)
            note = f"  (L = {_either(sorted(widths))})"
            dots.append(Dot(label, style, *mean_and_error(known), note=note))
    return sorted(
        dots,
        key=lambda dot: (dot.label.startswith("adaptive"), _first_number(dot.label)),
    )


def _first_number(label: str) -> float:
    for word in label.split():
        if word.replace(".", "", 1).isdigit():
            return float(word)
    return 0.0


def xi_label(scales: Any) -> tuple[str, bool]:
    """Return a name for scales, and whether they are adaptive.

    Examples
    --------
    >>> from evergrow.lab.report.mechanism_sections import xi_label
    >>> xi_label([0.08]), xi_label([0.02, 0.05, 0.1])
    (('fixed 0.08', False), ('adaptive 0.02 to 0.1', True))
    >>> xi_label("paper")
    ('adaptive, printed grid', True)
    """
    if isinstance(scales, str):
        names = {"paper": "adaptive, printed grid", "auto": "adaptive, automatic"}
        return names.get(scales, scales), True
    values = [float(value) for value in scales]
    if len(values) == 1:
        return f"fixed {values[0]:g}", False
    return f"adaptive {min(values):g} to {max(values):g}", True


def search_table(record_set: RecordSet) -> list[Table]:
    """Return a table of the settings s and B_max of the search, with times."""
    records = [
        record
        for record in record_set.analysed("sweep")
        if record.options.get("n_units") is None
        or "(n_candidates=" in record.label
        or "(block_size=" in record.label
    ]
    settings: dict[str, set[Any]] = {}
    for record in records:
        pair = (record.options.get("block_size"), record.options.get("n_candidates"))
        settings.setdefault(record.label.partition(" (")[0], set()).add(pair)
    kept = [
        record
        for record in records
        if len(settings[record.label.partition(" (")[0]]) > 1
    ]
    if not kept:
        return []
    comparison = compare(kept, ["a_last", "a_avg", "construction_s", "n_units"])
    return [
        Table(
            "search",
            "Settings of the search, s and B_max",
            CAPTIONS["search"],
            tidy(comparison),
        )
    ]


def size_table(record_set: RecordSet) -> list[Table]:
    """Return final widths of layers whose construction converged."""
    found = record_set.analysed("sweep", "residual")
    own = [
        record
        for record in found
        if record.options.get("n_units") is None and "status" in record.results
    ]
    converged = [
        _sized(record) for record in own if record.results["status"] == "converged"
    ]
    if not converged:
        return []
    unique = {record.run_id: record for record in converged}
    comparison = compare(unique.values(), ["n_units"])
    if len(converged) < len(own):
        comparison.notes.append(
            f"{len(own) - len(converged)} of {len(own)} constructions ended at their "
            "cap or out of candidates, not at the tolerance, and have no final size"
        )
    return [Table("sizes", "Final hidden sizes", CAPTIONS["sizes"], tidy(comparison))]


def _sized(record: Record) -> Record:
    """Keep only options that affect the final width, to merge analyses of one layer."""
    irrelevant = (
        "max_units",
        "verbose",
        "device",
        "solver",
        "readout",
        "class_moments",
        "n_units",
    )
    options = {
        key: value for key, value in record.options.items() if key not in irrelevant
    }
    name = record.label.partition(" (")[0].partition(",")[0]
    scales = options.get("scales", "paper")
    if not isinstance(scales, str):
        scales = xi_label(scales)[0]
    shown = [f"ξ {scales}"]
    criterion = options.get("criterion", "exact")
    if criterion != "exact":
        shown.append(str(criterion))
    shown += [
        f"{key}={options[key]}"
        for key in ("block_size", "n_candidates")
        if key in options
    ]
    label = f"{name} ({', '.join(shown)})"
    relevant = [
        str(options.get(key))
        for key in ("scales", "block_size", "n_candidates", "tol", "criterion")
    ]
    stream = [
        record.dataset["name"],
        record.protocol["name"],
        record.seed,
        record.results["n_units"],
    ]
    run_id = repr([record.method, *stream, *relevant])
    return replace(
        record,
        label=label,
        options=options,
        analysis="sizes",
        settings={},
        run_id=run_id,
    )


def width_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy against the width of the layer, if nothing else differs."""
    sources = {
        **record_set.folders,
        "mechanism sweep": record_set.analysed("sweep"),
    }
    panels = []
    for source, records in sources.items():
        for place, lines in _width_lines(records).items():
            title = f"{place}, {source}"
            labels = ("Units L", "A_last (%)")
            panels.append(
                line_panel(slug("width", title), title, labels, lines, log_x=True)
            )
    if panels:
        return [Figure("Accuracy against hidden size", CAPTIONS["width"], panels)]
    return []


def _width_lines(records: Sequence[Record]) -> dict[str, list[Line]]:
    """Return lines over widths by dataset and protocol, one per other setting."""
    found: dict[tuple[str, str, str, str], dict[int, list[float]]] = {}
    for record in records:
        width = record.options.get("n_units")
        value = record.results.get("a_last")
        if not isinstance(width, int) or value is None:
            continue
        rest = {
            key: item
            for key, item in record.options.items()
            if key not in ("n_units", "random_state", "device")
        }
        place = printable(f"{record.dataset_label}, {record.protocol['name']}")
        label = printable(record.label.partition(" (")[0]).removesuffix(" by width")
        settings = json.dumps(rest, sort_keys=True, default=str)
        by_width = found.setdefault((place, record.method, label, settings), {})
        by_width.setdefault(width, []).append(100 * float(value))
    lines: dict[str, list[Line]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for (place, method, label, _), by_width in found.items():
        if len(by_width) < 2:
            continue
        widths = sorted(by_width)
        summaries = [mean_and_error(by_width[width]) for width in widths]
        means = [mean for mean, _ in summaries]
        errors = [error or 0.0 for _, error in summaries]
        style = style_of(method, seen[place, method])
        lines.setdefault(place, []).append(Line(label, style, widths, means, errors))
        seen[place, method] += 1
    return lines


@dataclass(frozen=True)
class _DepthRow:
    """Accuracy in percent of one set of blocks, on training folds and on test rows."""

    set: str
    pooling: str
    depth: Annotated[int, Between(1, 10_000)]
    folds: Annotated[float, Between(0, 100)]
    test: Annotated[float, Between(0, 100)] | None = None


_POOLINGS = {"cls": "class token", "cls+mean": "class token and mean"}
_COLOURS = {
    "cls": "scl-mgsm",
    "mean": "scsm",
    "max": "ri",
    "spread": "klda",
    "cls+mean": "loranpac",
}
_SETS = {
    "alone": "block alone",
    "from": "joined from the last",
    "both": "joined from the last",
}


def depth_curves(record_set: RecordSet) -> list[Figure | Table]:
    """Draw accuracy against depth and pooling of blocks, alone and joined."""
    panels: list[Panel] = []
    tables: list[Figure | Table] = []
    notes: list[str] = []
    for record in record_set.analysed("depths"):
        title = printable(record.dataset_label)
        try:
            rows = [
                from_values(_DepthRow, row, title) for row in record.results["rows"]
            ]
            deepest = max(
                int(record.results.get("n_depths") or 1), *(row.depth for row in rows)
            )
        except (FileFormatError, KeyError, TypeError, ValueError) as error:
            notes.append(f"{title}: its rows are unusable ({error})")
            continue
        alone = [
            replace(row, depth=deepest + 1 - row.depth)
            for row in rows
            if row.set == "alone"
        ]
        joined = [row for row in rows if row.set != "alone"]
        for kind, heading, label, points in (
            ("alone", "One block alone", f"Depth (block 1 to {deepest})", alone),
            ("joined", "Last blocks joined", "Number of last blocks", joined),
        ):
            lines = _pooling_lines(points, record.results.get("n_answered"))
            if lines:
                name = slug("depths", kind, title)
                panels.append(
                    line_panel(
                        name, f"{heading}: {title}", (label, "Accuracy (%)"), lines
                    )
                )
        tables.append(_depth_table(title, rows))
    parts: list[Figure | Table] = []
    if panels or notes:
        title = "Accuracy against depth and pooling"
        parts.append(Figure(title, CAPTIONS["depths"], panels, notes))
    return parts + tables


def _pooling_lines(rows: Sequence[_DepthRow], n: Any) -> list[Line]:
    """Return a line per pooling over depths, with standard errors for n samples."""
    lines = []
    for pooling in dict.fromkeys(row.pooling for row in rows):
        points = sorted(
            (row.depth, row.folds if row.test is None else row.test)
            for row in rows
            if row.pooling == pooling
        )
        if len(points) > 1:
            x, y = zip(*points)
            error = None
            if isinstance(n, int) and n > 0:
                error = [math.sqrt(value * (100 - value) / n) for value in y]
            label = printable(_POOLINGS.get(pooling, pooling))
            style = style_of(_COLOURS.get(pooling, pooling))
            lines.append(Line(label, style, x, y, error))
    return lines


def _depth_table(title: str, rows: Sequence[_DepthRow]) -> Table:
    """Return a table of accuracy by set of blocks, pooling and depth from the end."""
    cells = [
        Cell(
            "last block" if row.depth == 1 else f"{row.depth} from the end",
            _SETS.get(row.set, printable(row.set)),
            printable(_POOLINGS.get(row.pooling, row.pooling)),
            Metric(part),
            value,
        )
        for row in sorted(rows, key=lambda row: row.depth)
        for part, value in (("held out", row.folds), ("test", row.test))
        if value is not None
    ]
    return Table(
        slug("depths", title),
        f"Depth and pooling: {title}",
        CAPTIONS["depths-table"],
        ResultTable(cells),
    )
