"""Features from several depths of a network: what a recipe gains for every head, and which depths matter."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evergrow.core.escaping import printable
from evergrow.lab.records import AnalysisRecord, RunRecord
from evergrow.lab.report.collect import RecordSet
from evergrow.lab.report.contents import MAX_PANELS, Figure, Table, limited, plain_label
from evergrow.lab.report.panels import Panel, slug
from evergrow.lab.report.plots import Axes, Dot, DotAxis, Series, dot_panel, line_panel
from evergrow.lab.report.styles import STYLES, Style, style_of
from evergrow.lab.tables import Cell, Column, Comparison, Metric, dataset_label, mean_and_error

# -- what a recipe gains --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """A head on the network's own vector and on features of a recipe, of the same data, protocol and seeds."""

    title: str
    style: Style
    final: list[float]
    recipe: list[float]

    @property
    def gains(self) -> list[float]:
        """Points that the recipe has more, seed by seed."""
        return [more - less for less, more in zip(self.final, self.recipe, strict=True)]


def recipe_gain(record_set: RecordSet) -> list[Figure | Table]:
    """Draw A_last of every head on the network's own vector and on features from several depths, with a table."""
    parts: list[Figure | Table] = []
    for folder in record_set.folders:
        panels: list[Panel] = []
        tables: list[Table] = []
        notes: list[str] = []
        for title, pairs in _pairs(folder.finished, notes).items():
            name = slug("recipes", folder.name, title)
            axis = DotAxis("A_last (%)", origin=None, text=lambda value: f"{value:.2f}")
            panels.append(dot_panel(name, title, axis, [dot for pair in pairs for dot in _dots(pair)]))
            tables.append(_gain_table(name, f"{title}, {folder.name}", pairs))
        if panels:
            caption = (
                "Accuracy after the last session of every head on the network's own vector (light) and on features "
                "from several depths of the same forward pass (dark), all else equal; bars are standard errors over "
                "seeds, in brackets the gain in points."
            )
            total = len(panels)
            panels = limited(panels[:MAX_PANELS], total, notes)
            title = f"Features from several depths: {folder.name}"
            parts += [Figure(slug("recipes", folder.name), title, caption, panels, notes), *tables]
    return parts


def _pairs(runs: Sequence[RunRecord], notes: list[str]) -> dict[str, list[_Pair]]:
    """Return heads that ran on both kinds of features, by data set, recipe and protocol, over the seeds of both."""
    finals: dict[str, dict[int, float]] = {}
    recipes: dict[tuple[str, str], dict[int, float]] = {}
    example: dict[str, RunRecord] = {}
    for run in runs:
        value, head = run.results.get("a_last"), _head_key(run)
        if value is None:
            continue
        blocks = _blocks(run)
        if blocks is None:
            finals.setdefault(head, {})[run.seed] = 100.0 * float(value)
        else:
            example[head] = run
            recipes.setdefault((head, blocks), {})[run.seed] = 100.0 * float(value)
    found: dict[str, list[_Pair]] = {}
    variants: dict[tuple[str, str], int] = {}
    for (head, _), with_recipe in recipes.items():
        run, alone = example[head], finals.get(head, {})
        seeds = sorted(set(alone) & set(with_recipe))
        place = printable(f"{run.dataset['name']}, {dataset_label(run)} against final, {run.protocol['name']}")
        if not seeds:
            continue
        if set(alone) != set(with_recipe):
            notes.append(f"{printable(run.label)}, {place}: only the seeds of both, {seeds}")
        style = style_of(run.method, variants.setdefault((place, run.method), 0))
        variants[place, run.method] += 1
        pair = _Pair(
            printable(plain_label(run.label)), style, *([part[s] for s in seeds] for part in (alone, with_recipe))
        )
        found.setdefault(place, []).append(pair)
    return found


def _blocks(run: RunRecord) -> str | None:
    """Return the blocks of a run's features; None for a network's own vector alone, and for data of no backbone."""
    backbone = run.dataset.get("backbone")
    recipe = backbone.get("recipe") if isinstance(backbone, dict) else None
    return None if recipe is None else json.dumps(recipe, sort_keys=True, default=str)


def _head_key(run: RunRecord) -> str:
    """Return what must agree between a run on the final vector and one on a recipe: all but the features."""
    backbone = run.dataset.get("backbone")
    network = backbone.get("weights_hash") if isinstance(backbone, dict) else None
    options = {name: value for name, value in run.options.items() if name not in ("random_state", "device")}
    protocol = {name: value for name, value in run.protocol.items() if name != "earlier_seeds"}
    parts = [run.method, run.label, options, run.dataset["name"], network, protocol]
    return json.dumps(parts, sort_keys=True, default=str)


def _dots(pair: _Pair) -> list[Dot]:
    gain, _ = mean_and_error(pair.gains)
    note = f" ({gain:+.2f})".replace("-", "−")
    return [
        Dot(f"{pair.title}, final", pair.style, *mean_and_error(pair.final), faint=True),
        Dot(pair.title, pair.style, *mean_and_error(pair.recipe), note=note),
    ]


def _gain_table(name: str, title: str, pairs: Sequence[_Pair]) -> Table:
    caption = "A_last in percent, and the gain in points, seed by seed; mean ± standard error over seeds."
    metrics = [Metric(heading, heading, lambda record: None) for heading in ("final", "several depths", "gain")]
    columns = [Column("", "A_last", metric) for metric in metrics]
    cells: list[list[Cell | None]] = [
        [Cell(*mean_and_error(values), len(values)) for values in (pair.final, pair.recipe, pair.gains)]
        for pair in pairs
    ]
    return Table(name, title, caption, Comparison([pair.title for pair in pairs], columns, cells, []))


# -- which depths matter --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DepthRow:
    """Accuracy in percent of one set of blocks, in folds of the training rows and on test rows, where there are any."""

    kind: str
    pooling: str
    depth: int
    folds: float
    test: float | None

    @property
    def shown(self) -> float:
        """What is drawn: accuracy on the test rows, or in folds without them."""
        return self.folds if self.test is None else self.test


_LOOKS = {"cls": "scl-mgsm", "mean": "scsm", "max": "ri", "spread": "klda", "cls+mean": "loranpac"}
"""Methods whose colour and marker poolings borrow, so that every one has its own."""

_PARTS = {"folds": "held out", "test": "test"}
_SETS = {"alone": "block alone", "from": "joined from the last", "both": "joined from the last"}
_MOST_DEPTHS = 10_000
_NAMES = {"cls": "class token", "cls+mean": "class token and mean"}


def depth_curves(record_set: RecordSet) -> list[Figure | Table]:
    """Draw the accuracy of blocks of a network against their depth and pooling, alone and joined, with tables."""
    panels: list[Panel] = []
    tables: list[Table] = []
    notes: list[str] = []
    for record in record_set.analysed("depths"):
        rows = _depth_rows(record, notes)
        if not rows:
            continue
        title = printable(dataset_label(record))
        deepest, n = _network_depth(record, rows), _whole(record.results.get("n_answered"), 10**9)
        alone = [replace(row, depth=deepest + 1 - row.depth) for row in rows if row.kind == "alone"]
        joined = [row for row in rows if row.kind != "alone"]
        for kind, heading, x, points in (
            ("alone", "One block alone", f"Depth (block 1 to {deepest})", alone),
            ("joined", "Last blocks joined", "Number of last blocks", joined),
        ):
            series = _pooling_series(points, n)
            if series:
                axes = Axes(x, "Accuracy (%)")
                panels.append(line_panel(slug("depths", kind, title), f"{heading}: {title}", axes, series))
        tables.append(_depth_table(slug("depths", title), title, rows))
    if not panels:
        return []
    caption = (
        "Accuracy of blocks of one forward pass by depth and pooling over positions, learned by the recommended head "
        "without random units, all classes at once; on the test rows, or where there are none on training rows that "
        "were held out. One block alone: each depth by itself. Last blocks joined: from the last one back; the head "
        "weighs them by the statistics of what it learned from. Bands and bars are standard errors over the samples "
        "that were answered, the same ones for every block."
    )
    total = len(panels)
    drawn = limited(panels[:MAX_PANELS], total, notes)
    return [Figure("depths", "Accuracy against depth and pooling", caption, drawn, notes), *tables]


def _depth_rows(record: AnalysisRecord, notes: list[str]) -> list[_DepthRow]:
    """Return the rows of a record that can be drawn; what is no row is counted in a note."""
    given: Any = record.results.get("rows")
    if not isinstance(given, list):
        given = []
    rows = [row for item in given if (row := _depth_row(item)) is not None]
    if len(rows) < len(given) or not given:
        notes.append(f"{printable(dataset_label(record))}: {len(given) - len(rows)} of {len(given)} rows are unusable")
    return rows


def _depth_row(item: Any) -> _DepthRow | None:
    if not isinstance(item, dict):
        return None
    kind, pooling, test = (item.get(name) for name in ("set", "pooling", "test"))
    depth, folds = _whole(item.get("depth"), _MOST_DEPTHS), _percent(item.get("folds"))
    if not isinstance(kind, str) or not isinstance(pooling, str) or depth is None or folds is None:
        return None
    if test is not None and _percent(test) is None:
        return None
    return _DepthRow(kind, printable(pooling), depth, folds, _percent(test))


def _percent(value: Any) -> float | None:
    """Return a number from 0 to 100, None for anything else."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= 100 else None  # which NaN is not


def _network_depth(record: AnalysisRecord, rows: Sequence[_DepthRow]) -> int:
    """Return how many depths the network has, at least those that are there."""
    stated = _whole(record.results.get("n_depths"), _MOST_DEPTHS)
    return max([stated or 1, *(row.depth for row in rows)])


def _whole(value: Any, most: int) -> int | None:
    """Return a number from 1 on, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most else None


def _pooling_series(rows: Sequence[_DepthRow], n: int | None) -> list[Series]:
    """Return a line per pooling over depths, with the standard error of a share of ``n`` samples."""
    series = []
    for pooling in dict.fromkeys(row.pooling for row in rows):
        points = sorted((row.depth, row.shown) for row in rows if row.pooling == pooling)
        if len(points) > 1:
            x, y = zip(*points, strict=True)
            error = None if n is None else [math.sqrt(value * (100 - value) / n) for value in y]
            series.append(Series(_NAMES.get(pooling, pooling), _look(pooling), x, y, error))
    return series


def _look(pooling: str) -> Style:
    return replace(STYLES[_LOOKS[pooling]], name=pooling) if pooling in _LOOKS else style_of(pooling)


def _depth_table(name: str, title: str, rows: Sequence[_DepthRow]) -> Table:
    """Return accuracy on training folds and test rows, one row per set of blocks and depth from the end."""
    kinds = list(dict.fromkeys((row.kind, row.pooling) for row in rows))
    depths = sorted({row.depth for row in rows})
    values = {
        (row.kind, row.pooling, row.depth, part): value
        for row in rows
        for part, value in (("folds", row.folds), ("test", row.test))
        if value is not None
    }
    parts = [part for part in ("folds", "test") if any(key[3] == part for key in values)]
    wanted = [(kind, pooling, part) for kind, pooling in kinds for part in parts]
    columns = [
        Column(
            _SETS.get(kind, printable(kind)),
            _NAMES.get(pooling, pooling),
            Metric(_PARTS[part], _PARTS[part], lambda record: None),
        )
        for kind, pooling, part in wanted
    ]
    cells = [
        [
            None if (value := values.get((kind, pooling, depth, part))) is None else Cell(value, None, 1)
            for kind, pooling, part in wanted
        ]
        for depth in depths
    ]
    caption = (
        "Accuracy in percent by depth, counted from the end: on rows held out of the training rows, which choices are "
        "made by, and on test rows where they were looked at."
    )
    labels = ["last block" if depth == 1 else f"{depth} from the end" for depth in depths]
    return Table(name, f"Depth and pooling: {title}", caption, Comparison(labels, columns, cells, []))
