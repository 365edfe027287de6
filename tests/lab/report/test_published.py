"""The published numbers: all there, and marked as the numbers themselves say."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest

from evergrow.lab.report import load_published
from evergrow.lab.report.published import (
    known_backbone,
    known_dataset,
    published_comparison,
)

TABLES = load_published()["tables"]

COUNTS = {
    # rows and numbers: methods x data sets x protocols x metrics, and one number per
    # data set for joint training
    "main": (13, 11 * 4 * 2 * 2 + 2 * 4),
    "dinov2": (8, 7 * 4 * 2 * 2 + 4),
    "resnet101": (7, 7 * 4 * 2 * 2),
    "forgetting": (7, 7 * 4 * 2),
    "strategy": (3, 3 * 4 * 2),
    "search": (9, 9 * 2),
    "sizes": (1, 4),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_number_of_every_table_is_there(name: str) -> None:
    rows = TABLES[name]["rows"]
    assert (len(rows), sum(len(row["cells"]) for row in rows)) == COUNTS[name]
    assert set(TABLES) == set(COUNTS)


@pytest.mark.parametrize("name", ["main", "dinov2", "resnet101", "forgetting"])
def test_bold_is_best_and_underlined_second_in_every_column(name: str) -> None:
    for column in columns(TABLES[name]):
        ordered = sorted(
            column, key=lambda entry: entry[0], reverse=name != "forgetting"
        )
        assert [mark for _, mark in ordered[:2]] == ["best", "second"]
        assert all(mark == "" for _, mark in ordered[2:])


def columns(table: dict[str, Any]) -> list[list[tuple[float, str]]]:
    entries = sorted(
        (dataset, str(protocol), metric, value, mark)
        for row in table["rows"]
        for dataset, protocol, metric, value, _, mark in row["cells"]
        if not row["method"].startswith("joint")
    )
    return [
        [entry[3:] for entry in group]
        for _, group in groupby(entries, lambda entry: entry[:3])
    ]


def test_sources_and_settings_are_named() -> None:
    assert "Guided Random Projection" in load_published()["source"]["title"]
    assert all(
        re.fullmatch(r"tab:\w+", table["label"]) and table["caption"]
        for table in TABLES.values()
    )
    assert published_comparison("search").quoted[0] == "MGSM (s=10, B_max=5)"


def test_a_published_table_is_a_comparison_marked_as_in_print() -> None:
    comparison = published_comparison("main")
    assert comparison.wide(lambda cell: cell.text).shape == (13, 16)
    assert all(cell.rank == 1 for cell in comparison.cells if cell.method == "SCL-MGSM")
    joint = [cell for cell in comparison.cells if cell.method == "Joint linear probe"]
    assert len(joint) == 4 * 2  # under both protocols of every data set
    assert {cell.metric.title for cell in joint} == {"A_last"}


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (
            {"name": "imagenet-a", "backbone": {"name": "resnet101.tv_in1k"}},
            ("ImageNet-A", "ResNet101"),
        ),
        (
            {"name": "ObjectNet", "backbone": "vit_base_patch14_dinov2.lvd142m"},
            ("ObjectNet", "DINO-v2"),
        ),
        (
            {"name": "omnibenchmark", "backbone": {"name": "vit_base_patch16_clip"}},
            ("OmniBenchmark", None),
        ),
        ({"name": "cub200_efficientnet_lite0"}, (None, None)),
        (
            {
                "name": "imagenet_r",
                "backbone": {"name": "resnet101", "weights": "random"},
            },
            ("ImageNet-R", None),
        ),
        (
            {"name": "imagenet_r", "backbone": {"name": "resnet101", "weights": "hub"}},
            ("ImageNet-R", "ResNet101"),
        ),
    ],
)
def test_datasets_and_backbones_are_recognised_by_name(
    dataset: dict[str, object], expected: tuple[str | None, str | None]
) -> None:
    assert (known_dataset(dataset), known_backbone(dataset)) == expected
