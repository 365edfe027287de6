"""Tables and figures from records of analyses: conditioning, similarity, residual, xi, search, widths, depths."""

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

# -- conditioning ----------------------------------------------------------------------


def _ridges(records: Sequence[Record]) -> list[float]:
    return sorted(
        {
            float(ridge["alpha"])
            for record in records
            for ridge in record.results.get("ridges", [])
        }
    )


def _chosen_ridge(records: Sequence[Record]) -> float:
    """Return the ridge that panels with a single one show: the paper's moderate 0.1, or the middle one."""
    found = _ridges(records)
    if 0.1 in found or not found:
        return 0.1
    return found[len(found) // 2]


def _ridge_curves(
    records: Sequence[Record], key: str, alpha: float
) -> list[list[float]]:
    """Return a quantity over sessions at one ridge, for every record that has all of it."""
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
            lines.append(
                Line(
                    title, style, range(1, len(curves[0]) + 1), *curve_and_error(curves)
                )
            )
    return lines


def _stage_panels(
    records: Sequence[Record], name: str, quantities: Sequence[tuple[str, str, str]]
) -> list[Panel]:
    """Return panels of quantities (key, title, axis title) over sessions, at one ridge."""
    alpha = _chosen_ridge(records)
    return [
        line_panel(
            slug(name, key, group.title),
            f"{title}: {group.title}",
            ("Session", label),
            lines,
            log_y=True,
        )
        for group in groups(records)
        for key, title, label in quantities
        if (lines := _stage_lines(group, key, alpha))
    ]


def norm_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the Frobenius norm of P_t over sessions."""
    records = record_set.analysed("conditioning")
    panels = _stage_panels(
        records, "norm", [("norm", "Norm of Pₜ", "Frobenius norm of Pₜ")]
    )
    norms = [
        np.asarray(
            [ridge["norm"] for ridge in record.results.get("ridges", [])], dtype=float
        )
        for record in records
    ]
    spreads = [
        float(((norm.max(axis=0) - norm.min(axis=0)) / norm.min(axis=0)).max())
        for norm in norms
        if norm.size
    ]
    ridges = ", ".join(f"{alpha:g}" for alpha in _ridges(records))
    spread = 100 * max(spreads, default=0.0)
    caption = CAPTIONS["norm"].format(
        ridge=_chosen_ridge(records), ridges=ridges, spread=spread
    )
    if panels:
        return [Figure("Norm of Pₜ", caption, panels)]
    return []


def eigenvalues(record_set: RecordSet) -> list[Figure | Table]:
    """Draw the extreme eigenvalues and the condition number of P_t over sessions, with tables of the last."""
    records = record_set.analysed("conditioning")
    quantities = [
        ("eig_max", "Largest eigenvalue", "Largest eigenvalue of Pₜ"),
        ("eig_min", "Smallest eigenvalue", "Smallest eigenvalue of Pₜ"),
        ("condition_number", "Condition number", "Condition number of Pₜ"),
    ]
    panels = _stage_panels(records, "eigenvalues", quantities)
    if panels:
        figures = [
            Figure(
                "Eigenvalues and condition number of Pₜ",
                CAPTIONS["eigenvalues"].format(ridge=_chosen_ridge(records)),
                panels,
            )
        ]
    else:
        figures = []
    return [*figures, *_conditioning_tables(records)]


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


def _conditioning_tables(records: Sequence[Record]) -> list[Table]:
    """Return tables of the spectrum of P_t after the last session at every ridge, one per data set and protocol."""
    tables = []
    for group in groups(records):
        cells = [
            Cell(
                title,
                "",
                f"λ = {alpha:g}",
                metric,
                *mean_and_error(values),
                len(values),
            )
            for title, several in group.rows.items()
            for alpha in _ridges(records)
            for key, metric in _SPECTRUM.items()
            if (
                values := [
                    float(curve[-1]) for curve in _ridge_curves(several, key, alpha)
                ]
            )
        ]
        if cells:
            title = f"Conditioning after the last session: {group.title}"
            caption = "Pₜ = Gₜ + λI after the last session, by ridge λ."
            tables.append(
                Table(
                    slug("conditioning", group.title),
                    title,
                    caption,
                    ResultTable(cells),
                )
            )
    return tables


def effective_rank(record_set: RecordSet) -> list[Figure]:
    """Draw the effective rank sum d / (d + alpha) of P_t over sessions, one panel per ridge."""
    records = record_set.analysed("conditioning")
    panels = []
    for group in groups(records):
        for alpha in _ridges(records):
            title = f"{group.title}, λ = {alpha:g}"
            if lines := _stage_lines(group, "effective_rank", alpha):
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
            known = [
                float(value)
                for record in several
                if (value := record.results.get("condition_number")) is not None
            ]
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
                    f"{where}: H has rank {rank} of {smaller}, so this is a ratio of rounding"
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
    caption = CAPTIONS["condition-number"].format(
        samples=_either(samples), units=_either(units)
    )
    if panels:
        return [Figure("Condition number of H", caption, panels, notes)]
    return []


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)


# -- similarity and residual -----------------------------------------------------------


def similarity_maps(record_set: RecordSet) -> list[Figure]:
    """Draw the cosine similarity of units, as they are and less their mean."""
    kinds = (
        ("matrix", "mean_abs", "columns of H", 0.0),
        ("centred_matrix", "centred_mean_abs", "centred columns", -1.0),
    )
    figures = []
    for group in groups(record_set.analysed("similarity")):
        panels = []
        for key, mean_key, what, low in kinds:
            for title, several in group.rows.items():
                results = min(several, key=lambda record: record.seed).results
                if matrix := results.get(key):
                    mean = f"mean |cos| {float(results.get(mean_key, math.nan)):.2f}"
                    heading = (
                        f"{title}, {group.title.partition(',')[0]}: {what}, {mean}"
                    )
                    name = slug("similarity", group.title, title, what)
                    labels = ("Unit", "Unit", "Cosine")
                    panels.append(heat_panel(name, heading, matrix, (low, 1.0), labels))
        if panels:
            figures.append(
                Figure(
                    f"Similarity of bases: {group.title}",
                    CAPTIONS["similarity"],
                    panels,
                )
            )
    return figures


def residual_curves(record_set: RecordSet) -> list[Figure]:
    """Draw how the residual of the first task falls while the layer grows, and the xi in use."""
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
                    lines.append(
                        Line(
                            f"{title}: {results.get('status', '')}",
                            style,
                            log["n_units"],
                            log[key],
                        )
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
        return [
            Figure(
                "Residual against width, with the trajectory of ξ",
                CAPTIONS["residual"],
                panels,
            )
        ]
    return []


# -- xi --------------------------------------------------------------------------------


def xi_settings(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy with fixed and with adaptive xi."""
    records = record_set.analysed("xi")
    panels = []
    for group in groups(records):
        for unit in sorted(
            {str(record.settings.get("unit", "absolute")) for record in records}
        ):
            dots = []
            for several in group.rows.values():
                here = [
                    record
                    for record in several
                    if record.settings.get("unit", "absolute") == unit
                ]
                known = [
                    100 * float(record.results["a_last"])
                    for record in here
                    if record.results.get("a_last")
                ]
                if known:
                    label, adaptive = xi_label(here[0].options.get("scales", "paper"))
                    widths = sorted(
                        {int(record.results.get("n_units", 0)) for record in here}
                    )
                    style = style_of("scl-mgsm", 0 if adaptive else 1)
                    note = f"  (L = {_either(widths)})"
                    dots.append(Dot(label, style, *mean_and_error(known), note=note))
            if dots:
                dots.sort(
                    key=lambda dot: (
                        dot.label.startswith("adaptive"),
                        _first_number(dot.label),
                    )
                )
                title = f"{group.title}, {'ξ as printed' if unit == 'absolute' else 'ξ relative to the features'}"
                name = slug("xi", group.title, unit)
                panels.append(
                    dot_panel(name, title, "A_last (%)", dots, text="{:.2f}".format)
                )
    if panels:
        return [Figure("Fixed against adaptive ξ", CAPTIONS["xi"], panels)]
    return []


def _first_number(label: str) -> float:
    return next(
        (float(word) for word in label.split() if word.replace(".", "", 1).isdigit()),
        0.0,
    )


def xi_label(scales: Any) -> tuple[str, bool]:
    """Return a name for scales and whether they adapt.

    Examples
    --------
    >>> from evergrow.lab.report.mechanism_sections import xi_label
    >>> xi_label([0.08]), xi_label([0.02, 0.05, 0.1]), xi_label("paper")
    (('fixed 0.08', False), ('adaptive 0.02 to 0.1', True), ('adaptive, printed grid', True))
    """
    if isinstance(scales, str):
        return {"paper": "adaptive, printed grid", "auto": "adaptive, automatic"}.get(
            scales, scales
        ), True
    values = [float(value) for value in scales]
    if len(values) == 1:
        return f"fixed {values[0]:g}", False
    return f"adaptive {min(values):g} to {max(values):g}", True


# -- search and widths -----------------------------------------------------------------


def search_table(record_set: RecordSet) -> list[Table]:
    """Return the table of the search's settings s and B_max, with time."""
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
    """Return the final widths of layers whose construction ended by itself."""
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
    comparison = compare(
        {record.run_id: record for record in converged}.values(), ["n_units"]
    )
    if len(converged) < len(own):
        comparison.notes.append(
            f"{len(own) - len(converged)} of {len(own)} constructions ended at their cap or out of candidates, not at "
            "the tolerance, and have no final size"
        )
    return [Table("sizes", "Final hidden sizes", CAPTIONS["sizes"], tidy(comparison))]


def _sized(record: Record) -> Record:
    """Return a record with only the options that decide the final width, so that analyses of one layer are one row."""
    rest = (
        "max_units",
        "verbose",
        "device",
        "solver",
        "readout",
        "class_moments",
        "n_units",
    )
    options = {key: value for key, value in record.options.items() if key not in rest}
    name = record.label.partition(" (")[0].partition(",")[0]
    if options.get("criterion", "exact") == "exact":
        criterion = ""
    else:
        criterion = f", {options['criterion']}"
    scales = options.get("scales", "paper")
    label = f"{name} (ξ {scales if isinstance(scales, str) else xi_label(scales)[0]}{criterion}"
    label += (
        "".join(
            f", {key}={options[key]}"
            for key in ("block_size", "n_candidates")
            if key in options
        )
        + ")"
    )
    decide = [
        str(options.get(key))
        for key in ("scales", "block_size", "n_candidates", "tol", "criterion")
    ]
    where = [
        record.dataset["name"],
        record.protocol["name"],
        record.seed,
        record.results["n_units"],
    ]
    run_id = repr([record.method, *where, *decide])
    return replace(
        record,
        label=label,
        options=options,
        analysis="sizes",
        settings={},
        run_id=run_id,
    )


def width_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy against the width of the layer, wherever nothing else differs."""
    panels = []
    for source, records in {
        **record_set.folders,
        "mechanism sweep": record_set.analysed("sweep"),
    }.items():
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
    """Return lines over widths by data set and protocol; records that differ in anything else are other lines."""
    found: dict[tuple[str, str, str, str], dict[int, list[float]]] = {}
    for record in records:
        width = record.options.get("n_units")
        value = record.results.get("a_last")
        if isinstance(width, int) and value is not None:
            without = ("n_units", "random_state", "device")
            rest = {
                key: item for key, item in record.options.items() if key not in without
            }
            place = printable(f"{record.dataset_label}, {record.protocol['name']}")
            label = printable(record.label.partition(" (")[0]).removesuffix(" by width")
            key = (
                place,
                record.method,
                label,
                json.dumps(rest, sort_keys=True, default=str),
            )
            found.setdefault(key, {}).setdefault(width, []).append(100 * float(value))
    lines: dict[str, list[Line]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for (place, method, label, _), by_width in found.items():
        if len(by_width) > 1:
            means, errors = zip(
                *(mean_and_error(by_width[width]) for width in sorted(by_width))
            )
            style = style_of(method, seen[place, method])
            line = Line(
                label,
                style,
                sorted(by_width),
                means,
                [error or 0.0 for error in errors],
            )
            lines.setdefault(place, []).append(line)
            seen[place, method] += 1
    return lines


# -- depths ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _DepthRow:
    """Accuracy in percent of one set of blocks, in folds of the training rows and on test rows, where there are any."""

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
    """Draw the accuracy of blocks of a network against their depth and pooling, alone and joined, with tables."""
    panels: list[Panel] = []
    tables: list[Table] = []
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
            if lines := _pooling_lines(points, record.results.get("n_answered")):
                name = slug("depths", kind, title)
                panels.append(
                    line_panel(
                        name, f"{heading}: {title}", (label, "Accuracy (%)"), lines
                    )
                )
        tables.append(_depth_table(title, rows))
    if panels or notes:
        figures = [
            Figure(
                "Accuracy against depth and pooling", CAPTIONS["depths"], panels, notes
            )
        ]
    else:
        figures = []
    return [*figures, *tables]


def _pooling_lines(rows: Sequence[_DepthRow], n: Any) -> list[Line]:
    """Return a line per pooling over depths, with the standard error of a share of ``n`` samples."""
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
            style = style_of(_COLOURS.get(pooling, pooling))
            lines.append(
                Line(printable(_POOLINGS.get(pooling, pooling)), style, x, y, error)
            )
    return lines


def _depth_table(title: str, rows: Sequence[_DepthRow]) -> Table:
    """Return accuracy on training folds and test rows, one row per set of blocks and depth from the end."""
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
