"""Figures from records of analyses: conditioning of P_t and H, similarity of bases, residual, xi, width."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from evergrow.core.escaping import printable
from evergrow.lab.records import AnalysisRecord
from evergrow.lab.report.collect import RecordSet
from evergrow.lab.report.contents import MAX_PANELS, Figure, curve_and_error, limited
from evergrow.lab.report.groups import ProtocolGroup, protocol_groups
from evergrow.lab.report.panels import Panel, slug
from evergrow.lab.report.plots import (
    Axes,
    Dot,
    DotAxis,
    Heat,
    Series,
    dot_panel,
    heat_panel,
    line_panel,
    stacked_panel,
)
from evergrow.lab.report.styles import style_of
from evergrow.lab.tables import Record, dataset_label, mean_and_error

# -- conditioning ---------------------------------------------------------------------------------------


def _ridges(records: Sequence[AnalysisRecord]) -> list[float]:
    return sorted({float(ridge["alpha"]) for record in records for ridge in record.results.get("ridges", [])})


def chosen_ridge(records: Sequence[AnalysisRecord]) -> float | None:
    """Return the ridge that panels with a single one show: the paper's moderate 0.1, or the middle one."""
    found = _ridges(records)
    return None if not found else 0.1 if 0.1 in found else found[len(found) // 2]


def _stage_series(group: ProtocolGroup[AnalysisRecord], key: str, alpha: float) -> list[Series]:
    series = []
    for title, records in group.rows.items():
        curves = [
            ridge[key]
            for record in records
            for ridge in record.results.get("ridges", [])
            if ridge["alpha"] == alpha and ridge.get(key) and None not in ridge[key]
        ]
        if curves and len({len(curve) for curve in curves}) == 1:
            mean, error = curve_and_error(curves)
            series.append(Series(title, group.styles[title], list(range(1, len(mean) + 1)), mean, error))
    return series


def _stage_figure(record_set: RecordSet, name: str, quantities: Sequence[tuple[str, str, str]]) -> list[Panel]:
    """Return panels of quantities (key, title, axis title) over stages, at one ridge."""
    records = record_set.analysed("conditioning")
    alpha = chosen_ridge(records)
    panels = []
    for group in protocol_groups(records):
        for key, title, unit in quantities:
            series = [] if alpha is None else _stage_series(group, key, alpha)
            if series:
                whole = f"{title}: {group.title}"
                axes = Axes("Session", unit, log_y=True)
                panels.append(line_panel(slug(name, key, group.title), whole, axes, series))
    return panels


def norm_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the Frobenius norm of P_t over sessions."""
    records = record_set.analysed("conditioning")
    panels = _stage_figure(record_set, "norm", [("norm", "Norm of Pₜ", "Frobenius norm of Pₜ")])
    if not panels:
        return []
    spreads = [_spread(record) for record in records]
    listed = ", ".join(f"{alpha:g}" for alpha in _ridges(records))
    caption = (
        f"Frobenius norm of Pₜ = Gₜ + λI after every session, at λ = {chosen_ridge(records):g}. Between the ridges "
    )
    caption += f"λ = {listed} it differs by at most {100 * max(spreads):.2g} % at any session of any of these layers."
    return [Figure("norm", "Norm of Pₜ", caption, panels)]


def _spread(record: AnalysisRecord) -> float:
    norms = np.asarray([ridge["norm"] for ridge in record.results.get("ridges", [])], dtype=float)
    return float(((norms.max(axis=0) - norms.min(axis=0)) / norms.min(axis=0)).max()) if norms.size else 0.0


def eigenvalue_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the extreme eigenvalues and the condition number of P_t over sessions."""
    quantities = [
        ("eig_max", "Largest eigenvalue", "Largest eigenvalue of Pₜ"),
        ("eig_min", "Smallest eigenvalue", "Smallest eigenvalue of Pₜ"),
        ("condition_number", "Condition number", "Condition number of Pₜ"),
    ]
    panels = _stage_figure(record_set, "eigenvalues", quantities)
    if not panels:
        return []
    alpha = chosen_ridge(record_set.analysed("conditioning"))
    caption = f"Ends of the spectrum of Pₜ = Gₜ + λI and their ratio after every session, at λ = {alpha:g}."
    return [Figure("eigenvalues", "Eigenvalues and condition number of Pₜ", caption, panels)]


def effective_rank(record_set: RecordSet) -> list[Figure]:
    """Draw the effective rank sum d / (d + alpha) of P_t over sessions, one panel per ridge."""
    records = record_set.analysed("conditioning")
    panels = []
    for group in protocol_groups(records):
        for alpha in _ridges(records):
            series = _stage_series(group, "effective_rank", alpha)
            if series:
                title = f"{group.title}, λ = {alpha:g}"
                axes = Axes("Session", "Effective rank (dimensions)")
                panels.append(line_panel(slug("effective-rank", title), title, axes, series))
    if not panels:
        return []
    caption = (
        "Effective rank Σ d/(d + λ) of Pₜ over its eigenvalues d + λ: how many directions the ridge leaves in use."
    )
    return [Figure("effective-rank", "Effective rank", caption, panels)]


def condition_bars(record_set: RecordSet) -> list[Figure]:
    """Draw the condition number of H on a random subset of samples."""
    records = record_set.analysed("conditioning")
    panels = []
    notes: list[str] = []
    for group in protocol_groups(records):
        dots = []
        for title, several in group.rows.items():
            values = [record.results.get("condition_number") for record in several]
            known = [float(value) for value in values if value is not None]
            if not known:
                notes.append(f"{title}, {group.title}: the condition number is not finite or not recorded")
                continue
            dots.append(Dot(title, group.styles[title], *mean_and_error(known)))
            shape = several[0].results.get("features", {}).get("shape") or [0]
            rank = several[0].results.get("rank")
            if rank is not None and rank < min(shape):
                notes.append(
                    f"{title}, {group.title}: H has rank {rank} of {min(shape)}, so this is a ratio of rounding"
                )
        if dots:
            axis = DotAxis("Condition number of H (ratio of singular values)", log=True)
            panels.append(dot_panel(slug("condition-number", group.title), group.title, axis, dots))
    if not panels:
        return []
    samples = sorted({int(record.settings.get("n_samples", 0)) for record in records})
    units = sorted({int(record.results.get("n_units", 0)) for record in records})
    caption = f"Condition number of the random feature matrix H of {_listed(samples)} training samples and "
    caption += f"{_listed(units)} units, on a logarithmic axis."
    return [Figure("condition-number", "Condition number of H", caption, panels, notes)]


def _listed(numbers: Sequence[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)


# -- similarity -----------------------------------------------------------------------------------------


def similarity_maps(record_set: RecordSet) -> list[Figure]:
    """Draw the cosine similarity of units, as they are and less their mean."""
    figures = []
    for group in protocol_groups(record_set.analysed("similarity")):
        panels = []
        for key, mean_key, what, low in (
            ("matrix", "mean_abs", "columns of H", 0.0),
            ("centred_matrix", "centred_mean_abs", "centred columns", -1.0),
        ):
            for title, several in group.rows.items():
                record = min(several, key=lambda record: record.seed)
                matrix = record.results.get(key)
                if matrix:
                    mean = float(record.results.get(mean_key, float("nan")))
                    heat = Heat(matrix, low, 1.0, ("Unit", "Unit"), "Cosine", f"{what}, mean |cos| {mean:.2f}")
                    above = f"{title}, {group.title.partition(',')[0]}"
                    panels.append(heat_panel(slug("similarity", group.title, title, what), above, heat))
        if panels:
            caption = (
                "Cosine similarity of the activations of units on the first task, as they are, and less their mean "
            )
            caption += "over samples, since sigmoid activations are all positive. The mean is over absolute values off "
            caption += "the diagonal."
            name = slug("similarity", group.title)
            figures.append(Figure(name, f"Similarity of bases: {group.title}", caption, panels, small=True))
    return figures


# -- residual -------------------------------------------------------------------------------------------


def residual_curves(record_set: RecordSet) -> list[Figure]:
    """Draw how the residual of the first task falls while the layer grows, above the xi in use."""
    panels = []
    for group in protocol_groups(record_set.analysed("residual")):
        falls, scales = [], []
        for title, several in group.rows.items():
            record = min(several, key=lambda record: record.seed)
            log = record.results.get("log") or {}
            if not log.get("n_units"):
                continue
            label = f"{title}: {record.results.get('status', '')}"
            falls.append(Series(label, group.styles[title], log["n_units"], log["rmse"]))
            scales.append(Series(label, group.styles[title], log["n_units"], log["scale"]))
        if falls:
            axes = [
                Axes("Units L", "RMSE of the first task", log_y=True),
                Axes("Units L", "Scale ξ (or Λ)", log_y=True, steps=True),
            ]
            panels.append(stacked_panel(slug("residual", group.title), group.title, axes, [falls, scales]))
    if not panels:
        return []
    caption = (
        "Root mean square residual of the first task against the width of the layer, above the scale ξ (Λ of SCSM) "
    )
    caption += "that the accepted units were drawn with; one seed. The status says how the construction ended."
    return [Figure("residual", "Residual against width, with the trajectory of ξ", caption, panels)]


# -- xi -------------------------------------------------------------------------------------------------


def xi_settings(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy with fixed and with adaptive xi."""
    records = record_set.analysed("xi")
    panels = []
    for group in protocol_groups(records):
        for unit in sorted({str(record.settings.get("unit", "absolute")) for record in records}):
            dots = []
            for several in group.rows.values():
                here = [record for record in several if record.settings.get("unit", "absolute") == unit]
                known = [100 * float(record.results["a_last"]) for record in here if record.results.get("a_last")]
                if known:
                    label, adaptive = xi_label(here[0].options.get("scales", "paper"))
                    widths = sorted({int(record.results.get("n_units", 0)) for record in here})
                    style = style_of("scl-mgsm", 0 if adaptive else 1)
                    note = f"  (L = {_listed(widths)})"
                    dots.append(Dot(label, style, *mean_and_error(known), note=note))
            if dots:
                dots.sort(key=lambda dot: (dot.style.variant == 0, _first_number(dot.label)))
                title = f"{group.title}, {'ξ as printed' if unit == 'absolute' else 'ξ relative to the features'}"
                axis = DotAxis("A_last (%)", origin=None, text=lambda value: f"{value:.2f}")
                panels.append(dot_panel(slug("xi", group.title, unit), title, axis, dots))
    if not panels:
        return []
    caption = (
        "Accuracy after the last session with one fixed ξ (hollow) and with a grid of them that the construction moves "
    )
    caption += (
        "along (filled). Relative ξ are spreads of pre-activations: they are divided by the root mean square distance "
    )
    caption += "of first-task features from their mean."
    return [Figure("xi", "Fixed against adaptive ξ", caption, panels)]


def _first_number(label: str) -> float:
    return next((float(word) for word in label.split() if word.replace(".", "", 1).isdigit()), 0.0)


def xi_label(scales: Any) -> tuple[str, bool]:
    """Return a name for scales and whether they adapt.

    Examples
    --------
    >>> from evergrow.lab.report.mechanism_figures import xi_label
    >>> xi_label([0.08]), xi_label([0.02, 0.05, 0.1]), xi_label("paper")
    (('fixed 0.08', False), ('adaptive 0.02 to 0.1', True), ('adaptive, printed grid', True))
    """
    if isinstance(scales, str):
        return {"paper": "adaptive, printed grid", "auto": "adaptive, automatic"}.get(scales, scales), True
    values = [float(value) for value in scales]
    if len(values) == 1:
        return f"fixed {values[0]:g}", False
    return f"adaptive {min(values):g} to {max(values):g}", True


# -- width ----------------------------------------------------------------------------------------------


def width_curves(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy against the width of the layer, wherever nothing else differs."""
    sources: list[tuple[str, list[Record]]] = [(item.name, list(item.finished)) for item in record_set.folders]
    sources.append(("mechanism sweep", list(record_set.analysed("sweep"))))
    panels: list[Panel] = []
    notes: list[str] = []
    total = 0
    for source, records in sources:
        for place, series in _width_series(records).items():
            total += 1
            if total <= MAX_PANELS:
                title = f"{place}, {source}"
                axes = Axes("Units L", "A_last (%)", log_x=True)
                panels.append(line_panel(slug("width", title), title, axes, series))
    if not panels:
        return []
    caption = (
        "Accuracy after the last session against the number of units of the layer, all else equal; bars are standard "
    )
    caption += "errors over seeds."
    return [Figure("width", "Accuracy against hidden size", caption, limited(panels, total, notes), notes)]


def _width_series(records: Sequence[Record]) -> dict[str, list[Series]]:
    """Return lines over widths by data set and protocol; records that differ in anything else are other lines."""
    lines: dict[str, dict[str, dict[int, list[float]]]] = {}
    names: dict[str, tuple[str, str]] = {}
    for record in records:
        width, value = record.options.get("n_units"), record.results.get("a_last")
        if not isinstance(width, int) or value is None:
            continue
        rest = {key: item for key, item in record.options.items() if key not in ("n_units", "random_state", "device")}
        base = printable(record.label.partition(" (")[0])
        key = json.dumps([record.method, base, rest], sort_keys=True, default=str)
        names[key] = (base.removesuffix(" by width"), record.method)
        place = printable(f"{dataset_label(record)}, {record.protocol['name']}")
        lines.setdefault(place, {}).setdefault(key, {}).setdefault(width, []).append(100 * float(value))
    found: dict[str, list[Series]] = {}
    for place, here in lines.items():
        seen: Counter[str] = Counter()
        for key, by_width in here.items():
            if len(by_width) < 2:
                continue
            label, method = names[key]
            points = [mean_and_error(by_width[width]) for width in sorted(by_width)]
            errors = [error or 0.0 for _, error in points] if any(error for _, error in points) else None
            series = Series(
                label, style_of(method, seen[method]), sorted(by_width), [mean for mean, _ in points], errors
            )
            seen[method] += 1
            found.setdefault(place, []).append(series)
    return found
