"""Tables and figures from records of runs: accuracy, forgetting, time, memory, cost, gains, confusion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evergrow.core.escaping import printable
from evergrow.lab.records import Record
from evergrow.lab.report.contents import (
    CAPTIONS,
    MEASURE_TEXTS,
    Figure,
    Group,
    RecordSet,
    Table,
    curve_and_error,
    groups,
    plain_label,
)
from evergrow.lab.report.plots import (
    FSA,
    Dot,
    Line,
    Panel,
    dot_panel,
    heat_panel,
    line_panel,
    slug,
    style_of,
)
from evergrow.lab.report.published import known_backbone, published_beside
from evergrow.lab.tables import (
    JOINT,
    METRICS,
    Cell,
    Metric,
    ResultTable,
    compare,
    mean_and_error,
    with_titles,
)

STRATEGIES = frozenset({"scl-mgsm", "scsm", "ri"})
"""Methods that differ in how the layer comes about, and in nothing else."""

OTHER_BACKBONES = ("DINO-v2", "ResNet101")
"""Backbones of the paper that have tables of their own."""


def is_strategy(runs: Sequence[Record]) -> bool:
    """Return whether runs compare strategies of construction only."""
    methods = {run.method for run in runs}
    return len(methods) > 1 and methods <= STRATEGIES


def tidy(comparison: ResultTable) -> ResultTable:
    """Return a comparison with the symbols of the paper in place of options."""
    return ResultTable(
        [replace(cell, method=plain_label(cell.method)) for cell in comparison.cells],
        [plain_label(note) for note in comparison.notes],
        tuple(map(plain_label, comparison.quoted)),
    )


# -- tables ----------------------------------------------------------------------------


def accuracy_tables(
    record_set: RecordSet, backbone: str | None = None, published: str = "main"
) -> list[Table]:
    """Return accuracy tables, one per folder; with a backbone of the paper, only of runs on it.

    Folders that compare strategies alone have a table of their own kind, see
    :func:`strategy_tables`.
    """
    tables = []
    for folder, every in record_set.folders.items():
        found = [(run, known_backbone(run.dataset)) for run in every]
        runs = [
            run
            for run, on in found
            if (on == backbone if backbone else on not in OTHER_BACKBONES)
        ]
        if not runs or is_strategy(every):
            continue
        comparison = published_beside(compare(runs), runs, published)
        caption = CAPTIONS["accuracy"] + (
            CAPTIONS["quoted"] if comparison.quoted else ""
        )
        name = slug("accuracy" if backbone is None else f"accuracy-{published}", folder)
        tables.append(Table(name, f"Accuracy: {folder}", caption, tidy(comparison)))
    return tables


def forgetting_tables(record_set: RecordSet) -> list[Table]:
    """Return tables of average forgetting, one per folder."""
    tables = []
    for folder, every in record_set.folders.items():
        runs = [run for run in every if run.method not in JOINT]
        if any(run.results.get("f_avg") is not None for run in runs):
            comparison = published_beside(compare(runs, ["f_avg"]), runs, "forgetting")
            title = f"Average forgetting: {folder}"
            tables.append(
                Table(
                    slug("forgetting", folder),
                    title,
                    CAPTIONS["forgetting"],
                    tidy(comparison),
                )
            )
    return tables


def within_tables(record_set: RecordSet) -> list[Table]:
    """Return tables of accuracy within tasks beside the usual one, of folders where some run holds it."""
    found = {
        folder: [run for run in runs if run.results.get("a_last_within") is not None]
        for folder, runs in record_set.folders.items()
    }
    return [
        Table(
            slug("within-tasks", folder),
            f"Accuracy within tasks: {folder}",
            CAPTIONS["within-tasks"],
            tidy(compare(runs, ["a_last", "a_last_within"])),
        )
        for folder, runs in found.items()
        if runs
    ]


def strategy_tables(record_set: RecordSet) -> list[Table]:
    """Return accuracy tables of the folders that compare strategies of construction."""
    return [
        Table(
            slug("strategies", folder),
            f"Strategies of construction: {folder}",
            CAPTIONS["strategies"],
            tidy(compare(runs)),
        )
        for folder, runs in record_set.folders.items()
        if is_strategy(runs)
    ]


# -- accuracy by session ---------------------------------------------------------------


def stage_accuracy(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy over all classes seen so far, after every session."""
    figures = []
    for folder, runs in record_set.folders.items():
        notes: list[str] = []
        panels = [
            line_panel(
                slug("stage-accuracy", folder, group.title),
                group.title,
                ("Session", "Accuracy on all classes seen (%)"),
                lines,
            )
            for group in groups(runs)
            if (lines := _stage_lines(group, notes))
        ]
        if panels:
            figures.append(
                Figure(
                    f"Accuracy by session: {folder}",
                    CAPTIONS["stage-accuracy"],
                    panels,
                    notes,
                )
            )
    return figures


def _stage_lines(group: Group, notes: list[str]) -> list[Line]:
    lines = []
    for title, style, runs in group.styled():
        curves = [
            curve
            for run in runs
            if (curve := run.results.get("by_samples")) and curve[-1] is not None
        ]
        if not curves:
            notes.append(
                f"{title}, {group.title}: no accuracy by session in its records"
            )
            continue
        length = Counter(map(len, curves)).most_common(1)[0][0]
        kept = [curve for curve in curves if len(curve) == length]
        if len(kept) < len(runs):
            notes.append(
                f"{title}, {group.title}: {len(runs) - len(kept)} of {len(runs)} runs have other sessions"
            )
        # A session without test samples is a gap in the line.
        percent = [
            [float("nan") if value is None else 100.0 * value for value in curve]
            for curve in kept
        ]
        lines.append(
            Line(title, style, range(1, length + 1), *curve_and_error(percent))
        )
    return lines if any(len(line.x) > 1 for line in lines) else []


# -- one number per method -------------------------------------------------------------


def measured(record_set: RecordSet, measures: Sequence[str]) -> list[Figure]:
    """Draw one figure per measure and folder: a panel per data set and protocol, a dot per method."""
    figures = []
    for measure in measures:
        words = MEASURE_TEXTS[measure]
        for folder, runs in record_set.folders.items():
            notes: list[str] = []
            panels = []
            for group in groups(runs):
                for kind, dots in _measured_dots(group, measure, notes).items():
                    title = f"{group.title}{', ' if kind else ''}{kind}"
                    log = measure != "trainable-parameters"
                    panels.append(
                        dot_panel(
                            slug(measure, folder, title),
                            title,
                            words["axis"],
                            dots,
                            log=log,
                        )
                    )
            if panels:
                figures.append(
                    Figure(
                        f"{words['title']}: {folder}", words["caption"], panels, notes
                    )
                )
    return figures


def _measured_dots(
    group: Group, measure: str, notes: list[str]
) -> dict[str, list[Dot]]:
    """Return dots by the way of measuring; numbers of different kinds are never compared in one panel."""
    found: dict[str, list[Dot]] = {}
    read, kind_of = _MEASURES[measure]
    for title, style, runs in group.styled():
        values: dict[str, list[float]] = {}
        for run in runs:
            if (value := read(run)) is not None:
                values.setdefault(kind_of(run), []).append(value)
        known = sum(map(len, values.values()))
        if 0 < known < len(runs):
            notes.append(
                f"{title}, {group.title}: missing from {len(runs) - known} of {len(runs)} runs"
            )
        for kind, numbers in values.items():
            found.setdefault(kind, []).append(
                Dot(title, style, *mean_and_error(numbers))
            )
    return found


def cost(run: Record, key: str) -> float | None:
    """Return an entry of a run's ``extra.cost``, if it has one."""
    entry = run.extra.get("cost")
    value = None
    if isinstance(entry, dict):
        value = entry.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def _train_seconds(run: Record) -> float | None:
    """Return the seconds of all learning, end to end where the run measured that."""
    given = cost(run, "train_seconds")
    if given is None:
        return METRICS["train_s"].read(run)
    return given


def _device(run: Record) -> str:
    device = str(run.environment.get("device", ""))
    threads = run.environment.get("threads", "?")
    name = str(run.environment.get("device_name") or device)
    if device == "cpu":
        text = f"CPU, {threads} thread{'' if threads == 1 else 's'}"
    else:
        text = name
    return text + (", end to end" if cost(run, "train_seconds") is not None else "")


def _peak_mebibytes(run: Record) -> float | None:
    """Return the peak memory of training where the run measured that, or of the whole run."""
    trained = cost(run, "peak_memory_bytes")  # zero where it was not measured
    if trained:
        return trained / 2**20
    return METRICS["peak_mb"].read(run) or None


def _memory_kind(run: Record) -> str:
    if cost(run, "peak_memory_bytes"):
        return "memory of training"
    if run.memory.get("peak_cuda_bytes"):
        return "GPU memory"
    return "resident memory" + (
        " of the process" if run.memory.get("rss_scope") == "process" else ""
    )


_MEASURES: dict[
    str, tuple[Callable[[Record], float | None], Callable[[Record], str]]
] = {
    "training-time": (_train_seconds, _device),
    "peak-memory": (_peak_mebibytes, _memory_kind),
    "gflops": (
        lambda run: cost(run, "inference_gflops") or cost(run, "gflops") or None,
        lambda run: "",
    ),
    "training-gflops": (lambda run: cost(run, "train_gflops") or None, lambda run: ""),
    "trainable-parameters": (
        lambda run: (
            None
            if (value := cost(run, "trainable_parameters")) is None
            else value / 1e3
        ),
        lambda run: "",
    ),
}
"""Numbers of a run that are drawn as a dot per method: how to read one, or None, and the way that it was measured."""


# -- gains -----------------------------------------------------------------------------


def signed(value: float) -> str:
    """Return a number of points with its sign."""
    return f"{value:+.2f}"


def adapted(run: Record) -> bool:
    """Return whether the backbone of a run was adapted in the first session."""
    return run.method.endswith(FSA) or bool(run.extra.get("fsa"))


def probe_gain(record_set: RecordSet) -> list[Figure]:
    """Draw A_last less that of the joint linear probe of the same data, protocol and seed."""
    figures = []
    for folder, every in record_set.folders.items():
        runs = [run for run in every if run.results.get("a_last") is not None]
        probes: dict[tuple[str, str, int], list[Record]] = {}
        for run in runs:
            if run.method == "joint-lp":
                probes.setdefault(_stream_key(run), []).append(run)
        notes = [
            f"{key}: several joint linear probes, none is used"
            for key, found in probes.items()
            if len(found) > 1
        ]
        panels = []
        if any(len(found) == 1 for found in probes.values()):
            frame = with_titles(runs).assign(
                method=lambda frame: frame.method.map(plain_label)
            )
            # Adapted and plain runs may have different features, but their data have
            # one name.
            places = [
                printable(f"{run.dataset_label}, {run.protocol['name']}")
                for run in runs
            ]
            for title, part in frame.groupby(places, sort=False):
                rows = {
                    name: list(rows.record)
                    for name, rows in part.groupby("method", sort=False)
                }
                if dots := _gain_dots(Group(title, rows), probes, notes):
                    axis = "A_last less the joint linear probe (points)"
                    panels.append(
                        dot_panel(
                            slug("probe-gain", folder, title),
                            title,
                            axis,
                            dots,
                            text=signed,
                        )
                    )
        if panels:
            figures.append(
                Figure(
                    f"Gain over the joint linear probe: {folder}",
                    CAPTIONS["probe-gain"],
                    panels,
                    notes,
                )
            )
    return figures


def _stream_key(run: Record) -> tuple[str, str, int]:
    return run.dataset["name"], run.protocol["name"], run.seed


def _gain_dots(
    group: Group, probes: dict[tuple[str, str, int], list[Record]], notes: list[str]
) -> list[Dot]:
    dots = []
    for title, style, runs in group.styled():
        pairs = [
            (run, probes.get(_stream_key(run), []))
            for run in runs
            if run.method != "joint-lp"
        ]
        gains = [
            100 * (run.results["a_last"] - own[0].results["a_last"])
            for run, own in pairs
            if len(own) == 1
        ]
        if 0 < len(gains) < len(runs):
            where = f"{title}, {group.title}"
            notes.append(
                f"{where}: {len(runs) - len(gains)} of {len(runs)} runs have no probe of their seed"
            )
        if gains:
            dots.append(Dot(title, style, *mean_and_error(gains)))
    return dots


def recipe_gain(record_set: RecordSet) -> list[Figure | Table]:
    """Draw A_last of every head on the network's own vector and on features from several depths, with a table."""
    parts: list[Figure | Table] = []
    for folder, runs in record_set.folders.items():
        panels: list[Panel] = []
        tables: list[Table] = []
        notes: list[str] = []
        for title, pairs in _recipe_pairs(runs, notes).items():
            name = slug("recipes", folder, title)
            dots = []
            cells = []
            for number, (label, method, final, recipe) in enumerate(pairs):
                gains = [more - less for less, more in zip(final, recipe, strict=True)]
                style = style_of(method, number)
                note = f" ({signed(mean_and_error(gains)[0])})"
                dots.append(
                    Dot(
                        f"{label}, final",
                        {**style, "alpha": 0.5},
                        *mean_and_error(final),
                    )
                )
                dots.append(Dot(label, style, *mean_and_error(recipe), note=note))
                for heading, values in (
                    ("final", final),
                    ("several depths", recipe),
                    ("gain", gains),
                ):
                    cells.append(
                        Cell(
                            label,
                            "",
                            "A_last",
                            Metric(heading),
                            *mean_and_error(values),
                            len(values),
                        )
                    )
            panels.append(
                dot_panel(name, title, "A_last (%)", dots, text="{:.2f}".format)
            )
            caption = "A_last in percent, and the gain in points, seed by seed; mean ± standard error over seeds."
            tables.append(
                Table(name, f"{title}, {folder}", caption, ResultTable(cells))
            )
        if panels:
            title = f"Features from several depths: {folder}"
            parts += [Figure(title, CAPTIONS["recipes"], panels, notes), *tables]
    return parts


RecipePair = tuple[str, str, list[float], list[float]]
"""Label and method of a head, and its accuracies on the network's own vector and on a recipe, of the same seeds."""


def _recipe_pairs(
    runs: Sequence[Record], notes: list[str]
) -> dict[str, list[RecipePair]]:
    """Return heads that ran on both kinds of features, by data set, recipe and protocol, over the seeds of both."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for run in runs:
        if run.results.get("a_last") is not None:
            backbone = run.dataset.get("backbone")
            backbone = backbone if isinstance(backbone, dict) else {}
            options = {
                name: value
                for name, value in run.options.items()
                if name not in ("random_state", "device")
            }
            protocol = {
                name: value
                for name, value in run.protocol.items()
                if name != "earlier_seeds"
            }
            network = backbone.get("weights_hash")
            head = json.dumps(
                [
                    run.method,
                    run.label,
                    options,
                    run.dataset["name"],
                    network,
                    protocol,
                ],
                sort_keys=True,
                default=str,
            )
            recipe = json.dumps(backbone.get("recipe"), sort_keys=True, default=str)
            found.setdefault(head, {}).setdefault(recipe, {})[run.seed] = run
    pairs: dict[str, list[RecipePair]] = {}
    for by_recipe in found.values():
        final = by_recipe.pop("null", {})
        for several in by_recipe.values():
            run = next(iter(several.values()))
            seeds = sorted(final.keys() & several.keys())
            place = printable(
                f"{run.dataset['name']}, {run.dataset_label} against final, {run.protocol['name']}"
            )
            if seeds and final.keys() != several.keys():
                notes.append(
                    f"{printable(run.label)}, {place}: only the seeds of both, {seeds}"
                )
            if seeds:
                before, after = (
                    [100.0 * part[seed].results["a_last"] for seed in seeds]
                    for part in (final, several)
                )
                pairs.setdefault(place, []).append(
                    (printable(plain_label(run.label)), run.method, before, after)
                )
    return pairs


# -- confusion -------------------------------------------------------------------------


def confusion(record_set: RecordSet) -> list[Figure]:
    """Draw which classes are taken for which, from ``extra.confusion`` of the first seed."""
    notes: list[str] = []
    panels: list[Panel] = []
    for folder, every in record_set.folders.items():
        for group in groups([run for run in every if run.extra.get("confusion")]):
            for title, runs in group.rows.items():
                run = min(runs, key=lambda run: run.seed)
                where = f"{group.title}, seed {run.seed}"
                counts, names = _confusion_counts(run.extra["confusion"])
                if counts is None:
                    notes.append(
                        f"{title}, {where}: its confusion is not a square matrix of counts"
                    )
                    continue
                shares = (
                    100.0 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
                )
                np.fill_diagonal(shares, np.nan)
                limits = (0.0, round(max(float(np.nanmax(shares)), 1.0)))
                labels = ("Predicted class", "True class", "Share (%)")
                name = slug("confusion", folder, title, where)
                heading = f"{title}, {where}"
                panels.append(
                    heat_panel(
                        name, heading, shares, limits, labels, _mistakes(shares, names)
                    )
                )
    if panels or notes:
        return [Figure("Per-class confusion", CAPTIONS["confusion"], panels, notes)]
    return []


def _mistakes(shares: Any, names: list[str], most: int = 10) -> str:
    """Return the commonest mistakes in words."""
    order = np.argsort(-np.nan_to_num(shares, nan=-1.0), axis=None, kind="stable")[
        :most
    ]
    pairs = [divmod(int(cell), len(shares)) for cell in order]
    lines = [
        f"{names[i]:.17} → {names[j]:.17}, {shares[i, j]:.0f} %"
        for i, j in pairs
        if shares[i, j] > 0
    ]
    return "\n".join(["Most often mistaken", *lines] if lines else ["No mistakes"])


def _confusion_counts(entry: Any) -> tuple[Any, list[str]]:
    """Return the matrix of a record's confusion and the names of its classes; None if it is no matrix of counts."""
    try:
        counts = np.asarray(entry["matrix"], dtype=np.float64)
        names = [printable(str(name)) for name in entry["names"]]
    except (KeyError, TypeError, ValueError):
        return None, []
    square = (
        counts.ndim == 2 and counts.shape == (len(names), len(names)) and len(names) > 1
    )
    return (
        counts if square and np.isfinite(counts).all() and (counts >= 0).all() else None
    ), names
