"""Figures from records, against independently computed numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.report.toys import EXPERIMENTS, Write, analysis, collected, run

from evergrow.lab.records import Record
from evergrow.lab.report import build_report
from evergrow.lab.report import mechanism_sections as mechanism
from evergrow.lab.report import run_sections as runs
from evergrow.lab.report.contents import Figure, Table, collect


def words(figure: Figure) -> list[str]:
    """Return the text of all panels, which is text in the files."""
    return [
        text
        for panel in figure.panels
        for text in re.findall(r">([^<>\n]+)</text>", panel.svg.decode())
    ]


COST = {
    "gflops": 120.0,
    "trainable_parameters": 1_190_000,
    "train_seconds": 77.0,
    "peak_memory_bytes": 3 * 2**30,
}


def test_without_cost_there_is_no_figure_and_with_it_there_is() -> None:
    assert runs.measured(collected([run()]), ["gflops"]) == []
    assert runs.measured(collected([run()]), ["trainable-parameters"]) == []
    records = [
        run(seed=seed, extra={"cost": {**COST, "gflops": 100.0 + seed}})
        for seed in (1, 3)
    ]
    (figure,) = runs.measured(collected(records), ["gflops"])
    assert "102 ± 1" in words(figure)
    assert "Operations per image (GFLOPs)" in words(figure)
    (figure,) = runs.measured(collected(records), ["trainable-parameters"])
    assert "1,190 ± 0" in words(figure)
    assert runs.measured(collected(records), ["training-gflops"]) == []
    trained = [
        run(
            extra={
                "cost": {"train_gflops": 5e6, "inference_gflops": 17.5, "gflops": 17.5}
            }
        )
    ]
    assert "5e+06" in words(runs.measured(collected(trained), ["training-gflops"])[0])
    assert "17.5" in words(runs.measured(collected(trained), ["gflops"])[0])


def test_end_to_end_time_and_memory_of_cost_are_not_mixed_with_those_of_features() -> (
    None
):
    records = [run("ranpac"), run("ease", extra={"cost": COST})]
    (figure,) = runs.measured(collected(records), ["training-time"])
    assert [panel.title for panel in figure.panels] == [
        "Toy, B-0 Inc-5, CPU, 1 thread",
        "Toy, B-0 Inc-5, CPU, 1 thread, end to end",
    ]
    assert {"3", "77"} <= set(words(figure))
    (figure,) = runs.measured(collected(records), ["peak-memory"])
    assert len(figure.panels) == 2
    assert {"2", "3,072"} <= set(words(figure))


def test_memory_that_was_not_measured_is_not_drawn_as_training_memory() -> None:
    (figure,) = runs.measured(
        collected([run("ease", extra={"cost": {**COST, "peak_memory_bytes": 0}})]),
        ["peak-memory"],
    )
    assert [panel.title for panel in figure.panels] == [
        "Toy, B-0 Inc-5, resident memory"
    ]


def test_a_session_without_test_samples_is_a_gap() -> None:
    gappy = run(results={"by_samples": [None, 0.8, 0.7]})
    (figure,) = runs.stage_accuracy(
        collected([gappy, run("ri", results={"by_samples": [0.9, 0.8, 0.7]})])
    )
    assert figure.notes == []
    assert {"RANPAC", "RI"} <= set(words(figure))


def test_gpu_and_resident_memory_are_never_in_one_panel() -> None:
    gpu = run("ri", memory={"peak_rss_bytes": 2**30, "peak_cuda_bytes": 2**25})
    (figure,) = runs.measured(collected([run(), gpu]), ["peak-memory"])
    titles = {panel.title for panel in figure.panels}
    assert titles == {"Toy, B-0 Inc-5, GPU memory", "Toy, B-0 Inc-5, resident memory"}


def test_a_number_that_some_runs_lack_is_noted() -> None:
    (figure,) = runs.measured(
        collected([run(seed=1), run(seed=2, times={})]), ["training-time"]
    )
    assert any("missing from 1 of 2 runs" in note for note in figure.notes)


def test_the_gain_is_paired_by_seed_with_and_without_adaptation() -> None:
    probe = {1: 0.60, 2: 0.70}
    plain = {1: 0.61, 2: 0.73}
    adapted = {1: 0.65, 2: 0.79}
    records = [run("joint-lp", seed, value) for seed, value in probe.items()]
    records += [run("ranpac", seed, value) for seed, value in plain.items()]
    records += [run("ranpac+fsa", seed, value) for seed, value in adapted.items()]
    (figure,) = runs.probe_gain(collected(records))
    for values in (plain, adapted):
        gains = np.array([100 * (values[seed] - probe[seed]) for seed in probe])
        assert f"+{gains.mean():.2f} ± {gains.std(ddof=1) / np.sqrt(2):.2f}" in words(
            figure
        )


def test_adaptation_is_also_read_from_extra() -> None:
    records = [
        run("joint-lp", 1, 0.6),
        run("ri", 1, 0.7, extra={"fsa": {"epochs": 20}}),
    ]
    assert runs.adapted(records[1])
    (figure,) = runs.probe_gain(collected(records))
    assert "+10.00" in words(figure)


def test_without_a_probe_of_its_seed_a_run_has_no_gain() -> None:
    assert runs.probe_gain(collected([run("ri", 1)])) == []
    records = [run("joint-lp", 1, 0.6), run("ri", 1, 0.7), run("ri", 2, 0.9)]
    (figure,) = runs.probe_gain(collected(records))
    assert "+10.00" in words(figure)
    assert any("1 of 2 runs have no probe" in note for note in figure.notes)


def test_two_probes_of_one_seed_are_ambiguous_and_none_is_used() -> None:
    records = [
        run("joint-lp", 1, 0.6),
        run("joint-lp", 1, 0.5, options={"alpha": 2.0}),
        run("ri", 1, 0.7),
    ]
    assert runs.probe_gain(collected(records)) == []


def test_confusion_maps_show_the_first_seed_and_its_mistakes() -> None:
    matrix = [[3, 1, 0], [0, 4, 0], [2, 2, 4]]
    (figure,) = runs.confusion(
        collected(
            [run(extra={"confusion": {"names": ["a", "b", "c"], "matrix": matrix}})]
        )
    )
    assert [panel.title for panel in figure.panels] == [
        "RANPAC, Toy, B-0 Inc-5, seed 0"
    ]
    assert {"Predicted class", "True class", "Share (%)", "a → b, 25 %"} <= set(
        words(figure)
    )
    assert runs.confusion(collected([run()])) == []
    (figure,) = runs.confusion(collected([run("ri", extra={"confusion": [[1, 2]]})]))
    assert any("not a square matrix" in note for note in figure.notes)


def test_runs_with_other_sessions_are_not_averaged_but_noted() -> None:
    odd = run(seed=3, results={"by_samples": [0.9, 0.8, 0.7]})
    (figure,) = runs.stage_accuracy(collected([run(seed=1), run(seed=2), odd]))
    assert any("1 of 3 runs have other sessions" in note for note in figure.notes)


def test_width_curves_join_records_that_differ_only_in_width() -> None:
    records = [
        run(
            "ri",
            seed,
            0.5 + width / 1000,
            options={"n_units": width},
            label=f"RI (n_units={width})",
        )
        for width in (10, 20)
        for seed in (1, 2)
    ]
    (figure,) = mechanism.width_curves(collected(records))
    assert {"RI", "10", "20", "Units L", "A_last (%)"} <= set(words(figure))
    other = [
        run("ri", 1, options={"n_units": 10}),
        run("ri", 1, options={"n_units": 20, "alpha": 5.0}),
    ]
    assert mechanism.width_curves(collected(other)) == []


def conditioned(seed: int = 1, rank: int = 3) -> Any:
    ridges = [
        {
            "alpha": alpha,
            "norm": [1.0 + alpha, 2.0 + alpha],
            "eig_max": [1.0, 2.0],
            "eig_min": [0.1, 0.2],
            "condition_number": [10.0, 10.0],
            "effective_rank": [1.0, 2.0],
        }
        for alpha in (0.1, 10.0)
    ]
    features = {"shape": [3, 5], "rank": rank, "condition_number": 7.5}
    results = {
        "n_units": 5,
        "condition_number": 7.5,
        "rank": rank,
        "features": features,
        "ridges": ridges,
    }
    return analysis("conditioning", results, seed=seed, settings={"n_samples": 3})


def test_conditioning_figures() -> None:
    found = collected([], [conditioned(1), conditioned(2)])
    (norm,) = mechanism.norm_curves(found)
    # Norms at the two ridges differ most at the first session: 11 against 1.1.
    assert "at most 9e+02 %" in norm.caption
    eigenvalues, _ = mechanism.eigenvalues(found)
    assert isinstance(eigenvalues, Figure)
    assert len(eigenvalues.panels) == 3
    (rank,) = mechanism.effective_rank(found)
    assert [panel.title for panel in rank.panels] == [
        "Toy, B-0 Inc-5, λ = 0.1",
        "Toy, B-0 Inc-5, λ = 10",
    ]
    (bars,) = mechanism.condition_numbers(found)
    assert "7.5 ± 0" in words(bars)
    assert bars.notes == []
    (bars,) = mechanism.condition_numbers(collected([], [conditioned(rank=2)]))
    assert any("rank 2 of 3" in note for note in bars.notes)


def test_xi_tells_fixed_from_adaptive_and_units_apart() -> None:
    records = [
        analysis(
            "xi",
            {"a_last": 0.5, "n_units": 100},
            seed=seed,
            options={"scales": scales},
            settings={"unit": unit},
        )
        for seed in (1, 2)
        for scales in ([0.08], [0.02, 0.1])
        for unit in ("absolute", "rms")
    ]
    for index, record in enumerate(records):
        object.__setattr__(record, "run_id", str(index))
    (figure,) = mechanism.xi_settings(collected([], records))
    assert len(figure.panels) == 2
    assert words(figure).count("50.00 ± 0.00  (L = 100)") == 4
    assert {"fixed 0.08", "adaptive 0.02 to 0.1"} <= set(words(figure))


def test_what_was_not_run_is_named_with_its_command(
    write: Write, tmp_path: Path
) -> None:
    def missing(records: list[Any], name: str) -> dict[str, str]:
        report = build_report(write(records, name), tmp_path / f"{name}-out")
        return {entry.title: entry.command for entry in report.not_run}

    found = missing([conditioned()], "analyses")
    assert (
        found["Accuracy"] == "evergrow lab run experiments/feature_heads_official.toml"
    )
    assert (
        found["Similarity of bases"]
        == "evergrow lab mechanism experiments/mechanism.toml"
    )
    assert "Norm of Pₜ" not in found
    plain = [run("joint-lp", 1), run("ranpac", 1)]
    assert any("FSA" in title for title in missing(plain, "plain"))
    assert not any(
        "FSA" in title for title in missing([*plain, run("ranpac+fsa", 1)], "adapted")
    )


# -- features from several depths ------------------------------------------------------


RICH = {"blocks": ["final", "mean@-2"], "widths": [4, 4]}


def on_features(
    recipe: dict[str, Any] | None, seed: int, a_last: float, **changes: Any
) -> Record:
    backbone = {
        "name": "net",
        "weights_hash": "h",
        **({} if recipe is None else {"recipe": recipe}),
    }
    label = "final" if recipe is None else "rich"
    dataset = {
        "name": "toy",
        "label": label,
        "fingerprint": label,
        "backbone": backbone,
    }
    return run(seed=seed, a_last=a_last, dataset=dataset, **changes)


def test_the_gain_of_a_recipe_is_paired_by_seed() -> None:
    final = {1: 0.60, 2: 0.70}
    rich = {1: 0.63, 2: 0.75}
    records = [on_features(None, seed, value) for seed, value in final.items()]
    records += [on_features(RICH, seed, value) for seed, value in rich.items()]
    figure, table = runs.recipe_gain(collected(records))
    gains = np.array([3.0, 5.0])
    cells = table.comparison.cells
    assert [cell.mean for cell in cells] == pytest.approx([65.0, 69.0, 4.0])
    assert cells[2].error == pytest.approx(gains.std(ddof=1) / np.sqrt(2))
    assert any("(+4.00)" in text for text in words(figure))


def test_a_seed_that_only_one_of_a_pair_has_is_left_out_and_noted() -> None:
    records = [
        on_features(None, 1, 0.6),
        on_features(RICH, 1, 0.7),
        on_features(RICH, 2, 0.9),
    ]
    figure, table = runs.recipe_gain(collected(records))
    assert [cell.mean for cell in table.comparison.cells] == pytest.approx(
        [60.0, 70.0, 10.0]
    )
    assert any("only the seeds of both, [1]" in note for note in figure.notes)


def test_runs_that_differ_in_more_than_the_recipe_are_no_pair() -> None:
    assert runs.recipe_gain(collected([on_features(RICH, 1, 0.7)])) == []
    other = on_features(None, 1, 0.6, options={"alpha": 3.0})
    assert runs.recipe_gain(collected([other, on_features(RICH, 1, 0.7)])) == []


def depth_row(
    kind: str, pooling: str, depth: int, folds: Any, test: Any = None
) -> dict[str, Any]:
    return {
        "set": kind,
        "pooling": pooling,
        "depth": depth,
        "folds": folds,
        "test": test,
    }


def test_depths_are_drawn_from_the_input_on_and_tables_count_from_the_end() -> None:
    rows = [
        depth_row("alone", "cls", depth, 50.0 - depth, 60.0 - depth)
        for depth in (1, 2, 3)
    ]
    rows += [
        depth_row("both", "cls+mean", depth, 50.0 + depth, 60.0 + depth)
        for depth in (1, 2)
    ]
    record = analysis("depths", {"n_depths": 3, "rows": rows})
    figure, table = mechanism.depth_curves(collected([], [record]))
    assert [panel.name for panel in figure.panels] == [
        "depths--alone--toy",
        "depths--joined--toy",
    ]
    assert {"class token", "class token and mean", "Depth (block 1 to 3)"} <= set(
        words(figure)
    )
    wide = table.comparison.wide(lambda cell: cell.text)
    assert list(wide.index) == ["last block", "2 from the end", "3 from the end"]
    assert wide.to_numpy()[0].tolist() == ["49.00", "59.00", "51.00", "61.00"]
    assert wide.to_numpy()[2].tolist() == ["47.00", "57.00", "-", "-"]


def test_without_test_rows_there_is_no_column_of_them() -> None:
    rows = [depth_row("alone", "mean", depth, 40.0) for depth in (1, 2)]
    _, table = mechanism.depth_curves(
        collected([], [analysis("depths", {"rows": rows})])
    )
    assert isinstance(table, Table)
    assert {cell.metric.title for cell in table.comparison.cells} == {"held out"}


BAD = (
    "no row",
    depth_row("alone", "mean", 0, 40.0),
    depth_row("alone", "mean", 1, 40.0, "high"),
    depth_row("alone", 3, 1, 40.0),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("bad", BAD)
def test_invalid_depth_rows_are_noted(bad: Any) -> None:
    good = depth_row("alone", "mean", 1, 40.0)
    (figure,) = mechanism.depth_curves(
        collected([], [analysis("depths", {"rows": [good, bad]})])
    )
    assert isinstance(figure, Figure)
    assert figure.panels == []
    assert "Toy: its rows are unusable" in figure.notes[0]


def test_the_committed_records_give_both_sections() -> None:
    kept = collect(
        [EXPERIMENTS / "records" / name for name in ("depths", "depths_vit")]
    )
    assert runs.recipe_gain(kept)
    assert mechanism.depth_curves(kept)
