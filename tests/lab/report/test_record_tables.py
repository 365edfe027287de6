"""Tables: correct numbers, and published ones only for equal settings."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lab.report.toys import analysis, collected, run

from evergrow.lab.report.contents import Table
from evergrow.lab.report.mechanism_sections import eigenvalues, search_table, size_table
from evergrow.lab.report.run_sections import (
    accuracy_tables,
    forgetting_tables,
    strategy_tables,
    within_tables,
)

VIT = {
    "name": "imagenet-r",
    "label": "ImageNet-R",
    "backbone": {"name": "vit_base_patch16_224.augreg_in21k"},
}


def texts(table: Table) -> dict[str, list[str]]:
    wide = table.comparison.wide(lambda cell: cell.text)
    return dict(zip(wide.index, wide.to_numpy().tolist()))


def test_accuracy_within_tasks_has_a_table_of_the_runs_that_hold_it() -> None:
    runs = [run(seed=s, a_last=0.5) for s in (1, 2)] + [
        run("simplecil", s, 0.4) for s in (1, 2)
    ]
    assert within_tables(collected(runs)) == []
    for one, value in zip(runs, (0.75, 0.85)):
        one.results["a_last_within"] = value
    (table,) = within_tables(collected(runs))
    assert texts(table) == {"RANPAC": ["50.00 ± 0.00", "80.00 ± 5.00"]}
    assert texts(accuracy_tables(collected(runs))[0])["RANPAC"] == [
        "50.00 ± 0.00",
        "70.00 ± 0.00",
    ]


def test_published_values_stand_below_ours_where_the_setting_is_the_same() -> None:
    runs = [
        run(
            "ranpac+fsa",
            s,
            0.6,
            dataset=VIT,
            protocol={"name": "B-0 Inc-10", "increment": 10},
        )
        for s in (1, 2)
    ]
    (table,) = accuracy_tables(collected(runs))
    assert list(texts(table)) == ["RANPAC+FSA", "RANPAC+FSA, published"]
    assert texts(table)["RANPAC+FSA, published"] == ["71.25 ± 0.45", "76.58 ± 0.47"]
    assert table.comparison.quoted == ("RANPAC+FSA, published",)
    assert "quoted" in table.caption


@pytest.mark.parametrize(
    ("method", "dataset", "protocol"),
    [
        ("ranpac", VIT, "B-0 Inc-10"),  # not adapted in the first session
        ("ranpac+fsa", {**VIT, "name": "cub200"}, "B-0 Inc-10"),
        (
            "ranpac+fsa",
            {**VIT, "backbone": {"name": "efficientnet_lite0"}},
            "B-0 Inc-10",
        ),
        (
            "ranpac+fsa",
            {key: VIT[key] for key in ("name", "label")},
            "B-0 Inc-10",
        ),  # no backbone said
        ("ranpac+fsa", VIT, "B-50 Inc-10"),
        ("ri", VIT, "B-0 Inc-10"),  # not in the main table
    ],
)
def test_published_values_are_quoted_for_equal_settings_only(
    method: str, dataset: dict[str, Any], protocol: str
) -> None:
    (table,) = accuracy_tables(
        collected(
            [
                run(
                    method,
                    1,
                    0.6,
                    dataset=dataset,
                    protocol={"name": protocol, "increment": 10},
                )
            ]
        )
    )
    assert table.comparison.quoted == ()


def test_joint_training_is_quoted_without_a_protocol() -> None:
    (table,) = accuracy_tables(collected([run("joint-lp", 1, 0.6, dataset=VIT)]))
    assert texts(table)["JOINT-LP, published"] == ["67.23 ± 0.05", "-"]


def test_other_backbones_have_tables_of_their_own() -> None:
    dino = {**VIT, "backbone": {"name": "vit_base_patch14_dinov2.lvd142m"}}
    found = collected([run("klda", 1, dataset=dino)])
    assert accuracy_tables(found) == []
    (table,) = accuracy_tables(found, "DINO-v2", "dinov2")
    assert texts(table)["KLDA, published"] == ["75.78 ± 0.17", "80.76 ± 1.15"]


def test_forgetting_excludes_joint_training() -> None:
    (table,) = forgetting_tables(
        collected([run("joint-lp"), run("klda"), run("ri", results={"f_avg": 0.05})])
    )
    assert texts(table) == {"KLDA": ["10.00"], "RI": ["5.00"]}
    assert [cell.rank for cell in table.comparison.cells] == [2, 1]


def test_a_folder_of_strategies_has_no_main_table() -> None:
    found = collected([run("ri"), run("scl-mgsm")])
    assert accuracy_tables(found) == []
    assert list(texts(strategy_tables(found)[0])) == ["RI", "SCL-MGSM"]
    assert strategy_tables(collected([run("ri"), run("klda")])) == []


def swept(
    s: int, b: int, seed: int, units: int = 100, status: str = "converged"
) -> Any:
    results = {
        "a_last": 0.5,
        "a_avg": 0.6,
        "construction_s": 1.5,
        "n_units": units,
        "status": status,
    }
    label = f"MGSM (block_size={s}, n_candidates={b})"
    return analysis(
        "sweep",
        results,
        seed=seed,
        label=label,
        options={"block_size": s, "n_candidates": b},
    )


def test_search_table_compares_s_and_b_max() -> None:
    records = [swept(10, 5, 1), swept(10, 5, 2), swept(100, 5, 1, units=120)]
    (table,) = search_table(collected([], records))
    assert texts(table) == {
        "MGSM (s=10, B_max=5)": [
            "50.00 ± 0.00",
            "60.00 ± 0.00",
            "1.50 ± 0.00",
            "100 ± 0",
        ],
        "MGSM (s=100, B_max=5)": ["50.00", "60.00", "1.50", "120"],
    }
    assert search_table(collected([], [swept(10, 5, 1)])) == []


def test_final_sizes_are_those_of_converged_constructions_counted_once() -> None:
    again = analysis(
        "residual",
        {"n_units": 100, "status": "converged"},
        seed=1,
        options={"block_size": 10, "n_candidates": 5},
    )
    records = [
        swept(10, 5, 1),
        again,
        swept(10, 5, 2, units=140),
        swept(10, 5, 3, units=2000, status="capped"),
    ]
    (table,) = size_table(collected([], records))
    assert texts(table) == {"MGSM (ξ auto, s=10, B_max=5)": ["120 ± 20"]}
    assert any("1 of 4 constructions" in note for note in table.comparison.notes)
    assert size_table(collected([], [swept(10, 5, 3, status="capped")])) == []


def test_conditioning_after_the_last_session() -> None:
    ridge = {
        "alpha": 0.1,
        "norm": [1.0, 2.5e6],
        "eig_max": [1, 2],
        "eig_min": [1, 0.1],
        "effective_rank": [3, 43.82],
    }
    record = analysis(
        "conditioning", {"ridges": [{**ridge, "condition_number": [1, None]}]}
    )
    *_, table = eigenvalues(collected([], [record]))
    assert isinstance(table, Table)
    assert texts(table)["MGSM"] == ["2.50e6", "2.00", "0.100", "43.8"]
