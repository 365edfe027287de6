"""Features from several depths in the report: pairs of runs by seed, and accuracy by depth and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.lab.report.test_figures import collected, words
from tests.lab.report.toys import EXPERIMENTS, analysis, run

from evergrow.lab.records import Record
from evergrow.lab.report.contents import Figure, Table, collect
from evergrow.lab.report.mechanism_sections import depth_curves
from evergrow.lab.report.run_sections import recipe_gain

RICH = {"blocks": ["final", "mean@-2"], "widths": [4, 4]}


def on_features(recipe: dict[str, Any] | None, seed: int, a_last: float, **changes: Any) -> Record:
    backbone = {"name": "net", "weights_hash": "h", **({} if recipe is None else {"recipe": recipe})}
    label = "final" if recipe is None else "rich"
    dataset = {"name": "toy", "label": label, "fingerprint": label, "backbone": backbone}
    return run(seed=seed, a_last=a_last, dataset=dataset, **changes)


def test_the_gain_of_a_recipe_is_paired_by_seed() -> None:
    final, rich = {1: 0.60, 2: 0.70}, {1: 0.63, 2: 0.75}
    records = [on_features(None, seed, value) for seed, value in final.items()]
    records += [on_features(RICH, seed, value) for seed, value in rich.items()]
    figure, table = recipe_gain(collected(records))
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    gains = np.array([3.0, 5.0])
    cells = table.comparison.cells
    assert [cell.mean for cell in cells] == pytest.approx([65.0, 69.0, 4.0])
    assert cells[2].error == pytest.approx(gains.std(ddof=1) / np.sqrt(2))
    assert any("(+4.00)" in text for text in words(figure))


def test_a_seed_that_only_one_of_a_pair_has_is_left_out_and_noted() -> None:
    records = [on_features(None, 1, 0.6), on_features(RICH, 1, 0.7), on_features(RICH, 2, 0.9)]
    figure, table = recipe_gain(collected(records))
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    assert [cell.mean for cell in table.comparison.cells] == pytest.approx([60.0, 70.0, 10.0])
    assert any("only the seeds of both, [1]" in note for note in figure.notes)


def test_runs_that_differ_in_more_than_the_recipe_are_no_pair() -> None:
    assert recipe_gain(collected([on_features(RICH, 1, 0.7)])) == []
    other = on_features(None, 1, 0.6, options={"alpha": 3.0})
    assert recipe_gain(collected([other, on_features(RICH, 1, 0.7)])) == []


def depth_row(kind: str, pooling: str, depth: int, folds: Any, test: Any = None) -> dict[str, Any]:
    return {"set": kind, "pooling": pooling, "depth": depth, "folds": folds, "test": test}


def test_depths_are_drawn_from_the_input_on_and_tables_count_from_the_end() -> None:
    rows = [depth_row("alone", "cls", depth, 50.0 - depth, 60.0 - depth) for depth in (1, 2, 3)]
    rows += [depth_row("both", "cls+mean", depth, 50.0 + depth, 60.0 + depth) for depth in (1, 2)]
    record = analysis("depths", {"n_depths": 3, "rows": rows})
    figure, table = depth_curves(collected([], [record]))
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    assert [panel.name for panel in figure.panels] == ["depths--alone--toy", "depths--joined--toy"]
    assert {"class token", "class token and mean", "Depth (block 1 to 3)"} <= set(words(figure))
    wide = table.comparison.wide(lambda cell: cell.text)
    assert list(wide.index) == ["last block", "2 from the end", "3 from the end"]
    assert wide.to_numpy()[0].tolist() == ["49.00", "59.00", "51.00", "61.00"]
    assert wide.to_numpy()[2].tolist() == ["47.00", "57.00", "-", "-"]


def test_without_test_rows_there_is_no_column_of_them() -> None:
    rows = [depth_row("alone", "mean", depth, 40.0) for depth in (1, 2)]
    _, table = depth_curves(collected([], [analysis("depths", {"rows": rows})]))
    assert isinstance(table, Table)
    assert {cell.metric.title for cell in table.comparison.cells} == {"held out"}


BAD = (
    "no row",
    depth_row("alone", "mean", 0, 40.0),
    depth_row("alone", "mean", 10**9, 40.0),
    depth_row("alone", "mean", True, 40.0),
    depth_row("alone", "mean", 1, float("nan")),
    depth_row("alone", "mean", 1, 40.0, "high"),
    depth_row("alone", 3, 1, 40.0),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("bad", BAD)
def test_a_record_with_rows_that_are_none_is_noted(bad: Any) -> None:
    good = depth_row("alone", "mean", 1, 40.0)
    (figure,) = depth_curves(collected([], [analysis("depths", {"rows": [good, bad]})]))
    assert isinstance(figure, Figure)
    assert figure.panels == []
    assert "Toy: its rows are unusable" in figure.notes[0]


def test_the_kept_records_give_both_sections() -> None:
    kept = collect([EXPERIMENTS / "records" / name for name in ("depths", "depths_vit")])
    assert recipe_gain(kept)
    assert depth_curves(kept)
