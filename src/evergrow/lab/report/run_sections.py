"""Tables and figures from records of runs: accuracy, time, memory, cost and gains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
"""Methods that differ only in the construction of the layer."""

OTHER_BACKBONES = ("DINO-v2", "ResNet101")
"""Backbones of the paper with separate tables."""


def is_strategy(runs: Sequence[Record]) -> bool:
    """Return whether runs compare only strategies of construction."""
    methods = {run.method for run in runs}
    return len(methods) > 1 and methods <= STRATEGIES


def tidy(comparison: ResultTable) -> ResultTable:
    """Replace option names in a table by the symbols of the paper."""
    return ResultTable(
        [replace(cell, method=plain_label(cell.method)) for cell in comparison.cells],
        [plain_label(note) for note in comparison.notes],
        tuple(map(plain_label, comparison.quoted)),
    )


def accuracy_tables(
    record_set: RecordSet, backbone: str | None = None, published: str = "main"
) -> list[Table]:
    """Return accuracy tables, one per folder.

    With a backbone of the paper, only runs on it are used. Folders that compare only
    strategies have other tables, see :func:`strategy_tables`.
    """
    tables = []
    for folder, all_runs in record_set.folders.items():
        if is_strategy(all_runs):
            continue
        runs = []
        for run in all_runs:
            found = known_backbone(run.dataset)
            if backbone is None:
                wanted = found not in OTHER_BACKBONES
            else:
                wanted = found == backbone
            if wanted:
                runs.append(run)
        if not runs:
            continue
        comparison = published_beside(compare(runs), runs, published)
        caption = CAPTIONS["accuracy"]
        if comparison.quoted:
            caption += CAPTIONS["quoted"]
        name = slug("accuracy" if backbone is None else f"accuracy-{published}", folder)
        tables.append(Table(name, f"Accuracy: {folder}", caption, tidy(comparison)))
    return tables


def forgetting_tables(record_set: RecordSet) -> list[Table]:
    """Return tables of average forgetting, one per folder."""
    tables = []
    for folder, all_runs in record_set.folders.items():
        runs = [run for run in all_runs if run.method not in JOINT]
        if all(run.results.get("f_avg") is None for run in runs):
            continue
        comparison = published_beside(compare(runs, ["f_avg"]), runs, "forgetting")
        tables.append(
            Table(
                slug("forgetting", folder),
                f"Average forgetting: {folder}",
                CAPTIONS["forgetting"],
                tidy(comparison),
            )
        )
    return tables


def within_tables(record_set: RecordSet) -> list[Table]:
    """Return tables of accuracy within tasks and overall, one per folder with both."""
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
    """Return accuracy tables of folders that compare strategies of construction."""
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


def stage_accuracy(record_set: RecordSet) -> list[Figure]:
    """Draw the accuracy over all classes seen so far, per session."""
    figures = []
    for folder, runs in record_set.folders.items():
        notes: list[str] = []
        panels = []
        labels = ("Session", "Accuracy on all classes seen (%)")
        for group in groups(runs):
            lines = _stage_lines(group, notes)
            if lines:
                name = slug("stage-accuracy", folder, group.title)
                panels.append(line_panel(name, group.title, labels, lines))
        if panels:
            title = f"Accuracy by session: {folder}"
            figures.append(Figure(title, CAPTIONS["stage-accuracy"], panels, notes))
    return figures


def _stage_lines(group: Group, notes: list[str]) -> list[Line]:
    """Return lines of accuracy per session, none if there is only one session."""
    lines = []
    for title, style, runs in group.styled():
        all_curves = [run.results.get("by_samples") for run in runs]
        curves = [curve for curve in all_curves if curve and curve[-1] is not None]
        if not curves:
            notes.append(
                f"{title}, {group.title}: no accuracy by session in its records"
            )
            continue
        length = Counter(map(len, curves)).most_common(1)[0][0]
        kept = [curve for curve in curves if len(curve) == length]
        if len(kept) < len(runs):
            notes.append(
                f"{title}, {group.title}: {len(runs) - len(kept)} of {len(runs)} runs "
                "have other sessions"
            )
        # A session without test samples is a gap in the line.
        percent = [
            [float("nan") if value is None else 100.0 * value for value in curve]
            for curve in kept
        ]
        mean, error = curve_and_error(percent)
        lines.append(Line(title, style, range(1, length + 1), mean, error))
    return lines if any(len(line.x) > 1 for line in lines) else []


def measured(record_set: RecordSet, measures: Sequence[str]) -> list[Figure]:
    """Draw a figure per measure and folder, with a dot per method."""
    figures = []
    for measure in measures:
        words = MEASURE_TEXTS[measure]
        for folder, runs in record_set.folders.items():
            notes: list[str] = []
            panels = []
            for group in groups(runs):
                for kind, dots in _measured_dots(group, measure, notes).items():
                    title = f"{group.title}, {kind}" if kind else group.title
                    panels.append(
                        dot_panel(
                            slug(measure, folder, title),
                            title,
                            words["axis"],
                            dots,
                            log=measure != "trainable-parameters",
                        )
                    )
            if panels:
                title = f"{words['title']}: {folder}"
                figures.append(Figure(title, words["caption"], panels, notes))
    return figures


def _measured_dots(
    group: Group, measure: str, notes: list[str]
) -> dict[str, list[Dot]]:
    """Return dots by kind of measurement; different kinds get different panels."""
    found: dict[str, list[Dot]] = {}
    read, kind_of = _MEASURES[measure]
    for title, style, runs in group.styled():
        values: dict[str, list[float]] = {}
        for run in runs:
            value = read(run)
            if value is not None:
                values.setdefault(kind_of(run), []).append(value)
        n_known = sum(map(len, values.values()))
        if 0 < n_known < len(runs):
            notes.append(
                f"{title}, {group.title}: missing from {len(runs) - n_known} of "
                f"{len(runs)} runs"
            )
        for kind, numbers in values.items():
            dot = Dot(title, style, *mean_and_error(numbers))
            found.setdefault(kind, []).append(dot)
    return found


def cost(run: Record, key: str) -> float | None:
    """Return a number in ``extra.cost`` of a run, or None."""
    entry = run.extra.get("cost")
    if not isinstance(entry, dict):
        return None
    value = entry.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def _train_seconds(run: Record) -> float | None:
    """Return the seconds of all learning, end to end if measured."""
    seconds = cost(run, "train_seconds")
    return METRICS["train_s"].read(run) if seconds is None else seconds


def _device(run: Record) -> str:
    """Describe the device, and whether time was measured end to end."""
    device = str(run.environment.get("device", ""))
    if device == "cpu":
        threads = run.environment.get("threads", "?")
        text = f"CPU, {threads} thread{'' if threads == 1 else 's'}"
    else:
        text = str(run.environment.get("device_name") or device)
    if cost(run, "train_seconds") is not None:
        text += ", end to end"
    return text


def _peak_mebibytes(run: Record) -> float | None:
    """Return the peak memory of training if measured, otherwise of the whole run."""
    trained = cost(run, "peak_memory_bytes")  # zero if not measured
    if trained:
        return trained / 2**20
    return METRICS["peak_mb"].read(run) or None


def _memory_kind(run: Record) -> str:
    if cost(run, "peak_memory_bytes"):
        return "memory of training"
    if run.memory.get("peak_cuda_bytes"):
        return "GPU memory"
    if run.memory.get("rss_scope") == "process":
        return "resident memory of the process"
    return "resident memory"


def _no_kind(run: Record) -> str:
    return ""


def _inference_gflops(run: Record) -> float | None:
    return cost(run, "inference_gflops") or cost(run, "gflops") or None


def _train_gflops(run: Record) -> float | None:
    return cost(run, "train_gflops") or None


def _trainable_thousands(run: Record) -> float | None:
    value = cost(run, "trainable_parameters")
    return None if value is None else value / 1e3


_MEASURES: dict[
    str, tuple[Callable[[Record], float | None], Callable[[Record], str]]
] = {
    "training-time": (_train_seconds, _device),
    "peak-memory": (_peak_mebibytes, _memory_kind),
    "gflops": (_inference_gflops, _no_kind),
    "training-gflops": (_train_gflops, _no_kind),
    "trainable-parameters": (_trainable_thousands, _no_kind),
}
"""Functions that return the value of a measure, or None, and its kind."""


def signed(value: float) -> str:
    """Format points with their sign."""
    return f"{value:+.2f}"


def adapted(run: Record) -> bool:
    """Return whether the backbone of a run was adapted in the first session."""
    return run.method.endswith(FSA) or bool(run.extra.get("fsa"))


def probe_gain(record_set: RecordSet) -> list[Figure]:
    """Draw A_last minus that of the joint linear probe with equal data and seed."""
    figures = []
    for folder, all_runs in record_set.folders.items():
        runs = [run for run in all_runs if run.results.get("a_last") is not None]
        probes: dict[tuple[str, str, int], list[Record]] = {}
        for run in runs:
            if run.method == "joint-lp":
                probes.setdefault(_stream_key(run), []).append(run)
        if all(len(found) != 1 for found in probes.values()):
            continue
        notes = [
            f"{key}: several joint linear probes, none is used"
            for key, found in probes.items()
            if len(found) > 1
        ]
        frame = with_titles(runs)
        frame["method"] = frame.method.map(plain_label)
        # Adapted and plain runs may have different features of the same dataset, so
        # group by its name.
        places = [
            printable(f"{run.dataset_label}, {run.protocol['name']}") for run in runs
        ]
        panels = []
        for title, part in frame.groupby(places, sort=False):
            rows = {
                name: list(rows.record)
                for name, rows in part.groupby("method", sort=False)
            }
            dots = _gain_dots(Group(title, rows), probes, notes)
            if dots:
                name = slug("probe-gain", folder, title)
                axis = "A_last less the joint linear probe (points)"
                panels.append(dot_panel(name, title, axis, dots, text=signed))
        if panels:
            title = f"Gain over the joint linear probe: {folder}"
            figures.append(Figure(title, CAPTIONS["probe-gain"], panels, notes))
    return figures


def _stream_key(run: Record) -> tuple[str, str, int]:
    return run.dataset["name"], run.protocol["name"], run.seed


def _gain_dots(
    group: Group, probes: dict[tuple[str, str, int], list[Record]], notes: list[str]
) -> list[Dot]:
    dots = []
    for title, style, runs in group.styled():
        gains = []
        for run in runs:
            own = probes.get(_stream_key(run), [])
            if run.method != "joint-lp" and len(own) == 1:
                gains.append(100 * (run.results["a_last"] - own[0].results["a_last"]))
        if not gains:
            continue
        if len(gains) < len(runs):
            notes.append(
                f"{title}, {group.title}: {len(runs) - len(gains)} of {len(runs)} runs "
                "have no probe of their seed"
            )
        dots.append(Dot(title, style, *mean_and_error(gains)))
    return dots


def recipe_gain(record_set: RecordSet) -> list[Figure | Table]:
    """Draw A_last on the final features and on features from several depths."""
    parts: list[Figure | Table] = []
    for folder, runs in record_set.folders.items():
        panels: list[Panel] = []
        tables: list[Table] = []
        notes: list[str] = []
        for title, pairs in _recipe_pairs(runs, notes).items():
            name = slug("recipes", folder, title)
            dots = [
                dot for variant, pair in enumerate(pairs) for dot in pair.dots(variant)
            ]
            cells = [cell for pair in pairs for cell in pair.cells()]
            panels.append(
                dot_panel(name, title, "A_last (%)", dots, text="{:.2f}".format)
            )
            caption = (
                "A_last in percent, and the gain in points, seed by seed; mean ± "
                "standard error over seeds."
            )
            tables.append(
                Table(name, f"{title}, {folder}", caption, ResultTable(cells))
            )
        if panels:
            title = f"Features from several depths: {folder}"
            parts += [Figure(title, CAPTIONS["recipes"], panels, notes), *tables]
    return parts


@dataclass(frozen=True)
class _RecipePair:
    """Accuracies of a head on final features and on a recipe, for the same seeds."""

    label: str
    method: str
    final: list[float]
    recipe: list[float]

    @property
    def gains(self) -> list[float]:
        return [more - less for less, more in zip(self.final, self.recipe, strict=True)]

    def dots(self, variant: int) -> list[Dot]:
        """Return a light dot for the final features and a dark one for the recipe."""
        style = style_of(self.method, variant)
        light = {**style, "alpha": 0.5}
        note = f" ({signed(mean_and_error(self.gains)[0])})"
        return [
            Dot(f"{self.label}, final", light, *mean_and_error(self.final)),
            Dot(self.label, style, *mean_and_error(self.recipe), note=note),
        ]

    def cells(self) -> list[Cell]:
        """Return table cells with both accuracies and the gain."""
        cells = []
        for heading, values in (
            ("final", self.final),
            ("several depths", self.recipe),
            ("gain", self.gains),
        ):
            mean, error = mean_and_error(values)
            metric = Metric(heading)
            cells.append(
                Cell(self.label, "", "A_last", metric, mean, error, len(values))
            )
        return cells


def _recipe_pairs(
    runs: Sequence[Record], notes: list[str]
) -> dict[str, list[_RecipePair]]:
    """Return heads with both kinds of features by title, over the seeds of both."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for run in runs:
        if run.results.get("a_last") is not None:
            head, recipe = _head_and_recipe(run)
            found.setdefault(head, {}).setdefault(recipe, {})[run.seed] = run
    pairs: dict[str, list[_RecipePair]] = {}
    for by_recipe in found.values():
        final = by_recipe.pop("null", {})
        for several in by_recipe.values():
            seeds = sorted(final.keys() & several.keys())
            if not seeds:
                continue
            run = next(iter(several.values()))
            title = printable(
                f"{run.dataset['name']}, {run.dataset_label} against final, "
                f"{run.protocol['name']}"
            )
            label = printable(plain_label(run.label))
            if final.keys() != several.keys():
                notes.append(
                    f"{printable(run.label)}, {title}: only the seeds of both, {seeds}"
                )
            before = [100.0 * final[seed].results["a_last"] for seed in seeds]
            after = [100.0 * several[seed].results["a_last"] for seed in seeds]
            pair = _RecipePair(label, run.method, before, after)
            pairs.setdefault(title, []).append(pair)
    return pairs


def _head_and_recipe(run: Record) -> tuple[str, str]:
    """Return keys of the settings of a run without its recipe, and of its recipe."""
    backbone = run.dataset.get("backbone")
    if not isinstance(backbone, dict):
        backbone = {}
    options = {
        name: value
        for name, value in run.options.items()
        if name not in ("random_state", "device")
    }
    protocol = {
        name: value for name, value in run.protocol.items() if name != "earlier_seeds"
    }
    network = backbone.get("weights_hash")
    settings = [
        run.method,
        run.label,
        options,
        run.dataset["name"],
        network,
        protocol,
    ]
    head = json.dumps(settings, sort_keys=True, default=str)
    return head, json.dumps(backbone.get("recipe"), sort_keys=True, default=str)


def confusion(record_set: RecordSet) -> list[Figure]:
    """Draw the confusion of classes, from ``extra.confusion`` of the first seed."""
    notes: list[str] = []
    panels: list[Panel] = []
    for folder, all_runs in record_set.folders.items():
        for group in groups([run for run in all_runs if run.extra.get("confusion")]):
            for title, runs in group.rows.items():
                run = min(runs, key=lambda run: run.seed)
                where = f"{group.title}, seed {run.seed}"
                counts, names = _confusion_counts(run.extra["confusion"])
                if counts is None:
                    notes.append(
                        f"{title}, {where}: its confusion is not a square matrix of "
                        "counts"
                    )
                    continue
                name = slug("confusion", folder, title, where)
                panels.append(
                    _confusion_panel(name, f"{title}, {where}", counts, names)
                )
    if panels or notes:
        return [Figure("Per-class confusion", CAPTIONS["confusion"], panels, notes)]
    return []


def _confusion_panel(name: str, title: str, counts: Any, names: list[str]) -> Panel:
    percent = 100.0 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(percent, np.nan)
    limits = (0.0, round(max(float(np.nanmax(percent)), 1.0)))
    labels = ("Predicted class", "True class", "Share (%)")
    return heat_panel(name, title, percent, limits, labels, _mistakes(percent, names))


def _mistakes(percent: Any, names: list[str], n: int = 10) -> str:
    """Return the most frequent mistakes as text."""
    order = np.argsort(-np.nan_to_num(percent, nan=-1.0), axis=None, kind="stable")
    lines = []
    for cell in order[:n].tolist():
        i, j = divmod(cell, len(percent))
        if percent[i, j] > 0:
            lines.append(f"{names[i]:.17} → {names[j]:.17}, {percent[i, j]:.0f} %")
    if not lines:
        return "No mistakes"
    return "\n".join(["Most often mistaken", *lines])


def _confusion_counts(entry: Any) -> tuple[Any, list[str]]:
    """Return confusion matrix and class names of a record; None if it is invalid."""
    try:
        counts = np.asarray(entry["matrix"], dtype=np.float64)
        names = [printable(str(name)) for name in entry["names"]]
    except (KeyError, TypeError, ValueError):
        return None, []
    if len(names) < 2 or counts.shape != (len(names), len(names)):
        return None, names
    if not np.isfinite(counts).all() or (counts < 0).any():
        return None, names
    return counts, names
