"""Figures from records of runs: accuracy by session, time, memory, cost, gain over the joint probe, confusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evergrow.core.escaping import printable
from evergrow.lab.records import RunRecord
from evergrow.lab.report.collect import RecordSet, RunFolder
from evergrow.lab.report.contents import MAX_PANELS, Figure, curve_and_error, limited, plain_label
from evergrow.lab.report.groups import ProtocolGroup, protocol_groups
from evergrow.lab.report.panels import Panel, slug
from evergrow.lab.report.plots import Axes, Dot, DotAxis, Heat, Series, dot_panel, heat_panel, line_panel
from evergrow.lab.report.styles import FSA
from evergrow.lab.tables import METRICS, dataset_label, grouped, mean_and_error

# -- accuracy by session --------------------------------------------------------------------------------


def stage_accuracy(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy over all classes seen so far, after every session."""
    figures = []
    for folder in record_set.folders:
        notes: list[str] = []
        found = [group for group in protocol_groups(folder.finished) if _sessions(group)]
        panels = [_stage_panel(folder, group, notes) for group in found[:MAX_PANELS]]
        if panels:
            caption = "Top-1 accuracy over the test samples of all classes seen so far, after every session; "
            caption += "bands are standard errors over seeds."
            name = slug("stage-accuracy", folder.name)
            panels = limited(panels, len(found), notes)
            figures.append(Figure(name, f"Accuracy by session: {folder.name}", caption, panels, notes))
    return figures


def _sessions(group: ProtocolGroup[RunRecord]) -> bool:
    return any(len(run.results.get("by_samples") or []) > 1 for runs in group.rows.values() for run in runs)


def _stage_panel(folder: RunFolder, group: ProtocolGroup[RunRecord], notes: list[str]) -> Panel:
    styles = group.styles
    series = []
    for title, runs in group.rows.items():
        curves = [run.results.get("by_samples") or [] for run in runs]
        length = Counter(len(curve) for curve in curves if curve and curve[-1] is not None).most_common(1)
        if not length:
            notes.append(f"{title}, {group.title}: no accuracy by session in its records")
            continue
        kept = [curve for curve in curves if len(curve) == length[0][0] and curve[-1] is not None]
        if len(kept) < len(curves):
            notes.append(f"{title}, {group.title}: {len(curves) - len(kept)} of {len(curves)} runs have other sessions")
        mean, error = curve_and_error([_percent(curve) for curve in kept])
        x = list(range(1, len(mean) + 1))
        series.append(Series(title, styles[title], x, mean, error))
    axes = Axes("Session", "Accuracy on all classes seen (%)")
    return line_panel(slug("stage-accuracy", folder.name, group.title), group.title, axes, series)


def _percent(curve: Sequence[float | None]) -> list[float]:
    """Return percent; a session without test samples is a gap in the line."""
    return [float("nan") if value is None else 100.0 * value for value in curve]


# -- one number per method ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A number of a run that is drawn as a dot per method.

    Parameters
    ----------
    name, title, caption : str
        Of the figure.
    axis : DotAxis
        How it is drawn.
    read : callable
        Returns the number, or None.
    kind : callable
        Returns the way of measuring, for the title: only numbers of one kind stand in one panel.
    """

    name: str
    title: str
    caption: str
    axis: DotAxis
    read: Callable[[RunRecord], float | None]
    kind: Callable[[RunRecord], str] = lambda run: ""


def measured(record_set: RecordSet, measure: Measure) -> list[Figure]:
    """Draw one figure per folder: a panel per data set and protocol, a dot per method."""
    figures = []
    for folder in record_set.folders:
        notes: list[str] = []
        panels: list[Panel] = []
        total = 0
        for group in protocol_groups(folder.finished):
            for kind, dots in _dots(group, measure, notes).items():
                total += 1
                if total <= MAX_PANELS:
                    title = f"{group.title}{', ' if kind else ''}{kind}"
                    name = slug(measure.name, folder.name, title)
                    panels.append(dot_panel(name, title, measure.axis, dots))
        if panels:
            title = f"{measure.title}: {folder.name}"
            name = slug(measure.name, folder.name)
            figures.append(Figure(name, title, measure.caption, limited(panels, total, notes), notes))
    return figures


def _dots(group: ProtocolGroup[RunRecord], measure: Measure, notes: list[str]) -> dict[str, list[Dot]]:
    """Return dots by the kind of measurement; different kinds are never compared in one panel."""
    styles = group.styles
    found: dict[str, list[Dot]] = {}
    for title, runs in group.rows.items():
        values: dict[str, list[float]] = {}
        for run in runs:
            value = measure.read(run)
            if value is not None:
                values.setdefault(measure.kind(run), []).append(value)
        known = sum(map(len, values.values()))
        if 0 < known < len(runs):
            notes.append(f"{title}, {group.title}: missing from {len(runs) - known} of {len(runs)} runs")
        for kind, numbers in values.items():
            found.setdefault(kind, []).append(Dot(title, styles[title], *mean_and_error(numbers)))
    return found


def cost(run: RunRecord, key: str) -> float | None:
    """Return an entry of a run's ``extra.cost``, if it has one."""
    entry = run.extra.get("cost")
    value = entry.get(key) if isinstance(entry, dict) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _train_seconds(run: RunRecord) -> float | None:
    """Return the seconds of all learning, end to end where the run measured that."""
    given = cost(run, "train_seconds")
    return METRICS["train_s"].read(run) if given is None else given


def _device(run: RunRecord) -> str:
    names = {"cpu": f"CPU, {run.environment.get('threads', '?')} thread"}
    device = str(run.environment.get("device", ""))
    text = names.get(device) or str(run.environment.get("device_name") or device)
    if device == "cpu" and run.environment.get("threads") != 1:
        text += "s"
    return text + (", end to end" if cost(run, "train_seconds") is not None else "")


def _peak_mebibytes(run: RunRecord) -> float | None:
    """Return the peak memory of training where the run measured that, or of the whole run."""
    trained = cost(run, "peak_memory_bytes")  # zero where it was not measured
    return trained / 2**20 if trained else METRICS["peak_mb"].read(run) or None


def _memory_kind(run: RunRecord) -> str:
    if cost(run, "peak_memory_bytes"):
        return "memory of training"
    if run.memory.get("peak_cuda_bytes"):
        return "GPU memory"
    return "resident memory" + (" of the process" if run.memory.get("rss_scope") == "process" else "")


TIME = Measure(
    "training-time",
    "Training time",
    "Seconds to learn all sessions, on a logarithmic axis: fitting the first and updating by every later one, "
    "or end to end where records say so. Error bars are standard errors over seeds.",
    DotAxis("Training time (s)", log=True),
    _train_seconds,
    _device,
)
MEMORY = Measure(
    "peak-memory",
    "Peak memory",
    "Peak memory of a run on a logarithmic axis. Resident memory includes Python and PyTorch themselves.",
    DotAxis("Peak memory (MiB)", log=True),
    _peak_mebibytes,
    _memory_kind,
)
GFLOPS = Measure(
    "gflops",
    "Cost of an answer",
    "Floating-point operations of the network for one image at test time, on a logarithmic axis.",
    DotAxis("Operations per image (GFLOPs)", log=True),
    lambda run: cost(run, "inference_gflops") or cost(run, "gflops") or None,
)
TRAINING_GFLOPS = Measure(
    "training-gflops",
    "Cost of learning",
    "Floating-point operations of the network for all learning, on a logarithmic axis, without the "
    "algebra of analytic heads.",
    DotAxis("Operations of all learning (GFLOPs)", log=True),
    lambda run: cost(run, "train_gflops") or None,
)
PARAMETERS = Measure(
    "trainable-parameters",
    "Trainable parameters",
    "Most parameters that were trained by gradient at once, in thousands.",
    DotAxis("Trainable parameters (thousands)"),
    lambda run: None if (value := cost(run, "trainable_parameters")) is None else value / 1e3,
)
COSTS = (GFLOPS, TRAINING_GFLOPS, PARAMETERS)
"""Figures that are drawn from ``extra.cost``."""


# -- gain over the joint probe --------------------------------------------------------------------------


def adapted(run: RunRecord) -> bool:
    """Return whether the backbone of a run was adapted in the first session."""
    return run.method.endswith(FSA) or bool(run.extra.get("fsa"))


def probe_gain(record_set: RecordSet) -> list[Figure]:
    """Draw A_last less that of the joint linear probe of the same data, protocol and seed."""
    figures = []
    for folder in record_set.folders:
        notes: list[str] = []
        probes = _probes(folder.finished, notes)
        panels = []
        for group in _by_name(folder.finished):
            dots = _gains(group, probes, notes)
            if dots:
                name = slug("probe-gain", folder.name, group.title)
                axis = DotAxis("A_last less the joint linear probe (points)", text=_signed)
                panels.append(dot_panel(name, group.title, axis, dots))
        if panels:
            caption = (
                "Accuracy after the last session less that of the joint linear probe on the same data, protocol and "
            )
            caption += (
                "seed. Above zero, the incremental learner beats a probe that sees all data at once. Light: features "
            )
            caption += "as they are; dark: backbone adapted in the first session (FSA)."
            name = slug("probe-gain", folder.name)
            total = len(panels)
            panels = limited(panels[:MAX_PANELS], total, notes)
            title = f"Gain over the joint linear probe: {folder.name}"
            figures.append(Figure(name, title, caption, panels, notes))
    return figures


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _by_name(runs: Sequence[RunRecord]) -> list[ProtocolGroup[RunRecord]]:
    """Return runs by data set and protocol; adapted and plain runs may have different features, but one name."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        title = printable(f"{dataset_label(run)}, {run.protocol['name']}")
        found.setdefault(title, []).append(run)
    return [ProtocolGroup(title, _titled(here)) for title, here in found.items()]


def _titled(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    rows, _, _, groups = grouped(runs)
    named: dict[str, list[RunRecord]] = {}
    for (r, _, _), several in groups.items():
        named.setdefault(plain_label(rows[r]), []).extend(several)
    return named


ProbeKey = tuple[str, str, int]


def _probe_key(run: RunRecord) -> ProbeKey:
    return run.dataset["name"], run.protocol["name"], run.seed


def _probes(runs: Sequence[RunRecord], notes: list[str]) -> dict[ProbeKey, float]:
    found: dict[ProbeKey, list[float]] = {}
    for run in runs:
        value = run.results.get("a_last")
        if run.method == "joint-lp" and value is not None:
            found.setdefault(_probe_key(run), []).append(float(value))
    several = [key for key, values in found.items() if len(values) > 1]
    notes.extend(
        f"{name}, {protocol}, seed {seed}: several joint linear probes, none is used"
        for name, protocol, seed in several
    )
    return {key: values[0] for key, values in found.items() if len(values) == 1}


def _gains(group: ProtocolGroup[RunRecord], probes: dict[ProbeKey, float], notes: list[str]) -> list[Dot]:
    dots = []
    styles = group.styles
    pairs = any(adapted(run) for runs in group.rows.values() for run in runs)
    for title, runs in group.rows.items():
        if runs[0].method == "joint-lp":
            continue
        paired = [(run, probes.get(_probe_key(run))) for run in runs if run.results.get("a_last") is not None]
        gains = [100 * (float(run.results["a_last"]) - probe) for run, probe in paired if probe is not None]
        if not gains:
            continue
        if len(gains) < len(runs):
            notes.append(
                f"{title}, {group.title}: {len(runs) - len(gains)} of {len(runs)} runs have no probe of their seed"
            )
        dots.append(Dot(title, styles[title], *mean_and_error(gains), faint=pairs and not adapted(runs[0])))
    return dots


# -- confusion ------------------------------------------------------------------------------------------


def confusion(record_set: RecordSet) -> list[Figure]:
    """Draw which classes are taken for which, from ``extra.confusion`` of the first seed."""
    notes: list[str] = []
    panels: list[Panel] = []
    total = 0
    for folder in record_set.folders:
        for group in protocol_groups(folder.finished):
            for title, runs in group.rows.items():
                run = next((run for run in sorted(runs, key=lambda run: run.seed) if run.extra.get("confusion")), None)
                counts = None if run is None else confusion_counts(run.extra["confusion"])
                if run is None:
                    continue
                if counts is None:
                    notes.append(
                        f"{title}, {group.title}, seed {run.seed}: its confusion is not a square matrix of counts"
                    )
                    continue
                total += 1
                if total > MAX_PANELS:
                    continue
                where = f"{group.title}, seed {run.seed}"
                heat = mistakes(counts, _class_names(run.extra["confusion"], len(counts)), where)
                panels.append(heat_panel(slug("confusion", folder.name, title, where), title, heat))
    if not panels:
        return []
    caption = "Share of the test samples of every class (rows) that is taken for each other class (columns), after the "
    caption += "last session; right answers, on the diagonal, are left white."
    panels = limited(panels, total, notes)
    return [Figure("confusion", "Per-class confusion", caption, panels, notes)]


def mistakes(counts: np.ndarray[Any, np.dtype[np.float64]], names: list[str], where: str) -> Heat:
    """Return the wrong answers of a confusion matrix as a map, with the commonest ones in words.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.lab.report.run_figures import mistakes
    >>> mistakes(np.array([[8.0, 2.0], [0.0, 9.0]]), ["cat", "dog"], "pets").beside[1]
    'cat → dog, 20 %'
    """
    shares = 100.0 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(shares, np.nan)
    order = np.argsort(-np.nan_to_num(shares, nan=-1.0), axis=None, kind="stable")[:_PAIRS]
    pairs = [(int(cell) // len(shares), int(cell) % len(shares)) for cell in order]
    lines = [f"{_cut(names[i])} → {_cut(names[j])}, {shares[i, j]:.0f} %" for i, j in pairs if shares[i, j] > 0]
    high = max(float(np.nanmax(shares, initial=0.0)), 1.0)
    beside = ("Most often mistaken", *lines) if lines else ("No mistakes",)
    axes = ("Predicted class", "True class")
    return Heat(shares, 0.0, round(high), axes, "Share (%)", where, side=2.2, beside=beside)


_PAIRS = 10


def _cut(name: str, most: int = 17) -> str:
    name = printable(name)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _class_names(entry: Any, count: int) -> list[str]:
    """Return the names of the classes of a record's confusion, or their numbers."""
    for key in ("names", "labels"):
        names = entry.get(key) if isinstance(entry, dict) else None
        if isinstance(names, list) and len(names) == count:
            return [str(name) for name in names]
    return [str(number + 1) for number in range(count)]


def confusion_counts(entry: Any) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return the matrix of a record's confusion, given alone or under ``matrix``; None if it is not one.

    Examples
    --------
    >>> from evergrow.lab.report.run_figures import confusion_counts
    >>> confusion_counts({"matrix": [[3, 1], [0, 4]]}).tolist(), confusion_counts([[1, 2]])
    ([[3.0, 1.0], [0.0, 4.0]], None)
    """
    matrix = entry.get("matrix") if isinstance(entry, dict) else entry
    try:
        counts = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    square = counts.ndim == 2 and counts.shape[0] == counts.shape[1] > 1
    return counts if square and bool(np.isfinite(counts).all()) and bool((counts >= 0).all()) else None
