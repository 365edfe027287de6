"""Published results of the paper, and their rows in tables of measured results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from evergrow.lab.records import Record
from evergrow.lab.report.plots import FSA
from evergrow.lab.tables import METRICS, Cell, Metric, ResultTable, with_titles

_METRICS = {
    **METRICS,
    "time_s": Metric("time s", latex="time (s)", lower_is_better=True, ranked=False),
}
_RANKS = {"": 0, "best": 1, "second": 2}
_OPTIONS = {"block_size": "s", "n_candidates": "B_max", "n_units": "units"}
_DATASETS = {
    "imagenetr": "ImageNet-R",
    "inr": "ImageNet-R",
    "imageneta": "ImageNet-A",
    "ina": "ImageNet-A",
    "objectnet": "ObjectNet",
    "objnet": "ObjectNet",
    "omnibenchmark": "OmniBenchmark",
    "omnib": "OmniBenchmark",
}
_BACKBONES = {
    "vitb16in21k": "ViT-B/16-IN21K",
    "vitbasepatch16224in21k": "ViT-B/16-IN21K",
    "vitbasepatch16224augregin21k": "ViT-B/16-IN21K",
    "dinov2": "DINO-v2",
    "dinov2vitb14": "DINO-v2",
    "vitbasepatch14dinov2": "DINO-v2",
    "vitbasepatch14dinov2lvd142m": "DINO-v2",
    "resnet101": "ResNet101",
}


@cache
def load_published() -> dict[str, Any]:
    """Return the published results: their source, and tables by name.

    Each cell has dataset, protocol (None if the table has none), metric, value, error,
    and ``"best"``, ``"second"`` or an empty mark, as in print.

    Examples
    --------
    >>> from evergrow.lab.report.published import load_published
    >>> row = load_published()["tables"]["main"]["rows"][-1]
    >>> row["label"], row["cells"][0]
    ('SCL-MGSM', ['ImageNet-R', 'B-0 Inc-5', 'a_last', 72.64, 0.24, 'best'])
    """
    file = resources.files("evergrow.lab.report").joinpath("published.json")
    body: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {
        "source": body["source"],
        "tables": {table["id"]: table for table in body["tables"]},
    }


def published_comparison(name: str) -> ResultTable:
    """Return a table of the paper as a result table, marked as in print."""
    rows = load_published()["tables"][name]["rows"]
    protocols: dict[str, list[str]] = {}
    for row in rows:
        for dataset, protocol, *_ in row["cells"]:
            if protocol and protocol not in protocols.setdefault(dataset, []):
                protocols[dataset].append(protocol)
    cells = []
    for row in rows:
        title = row["label"]
        if row["options"]:
            shown = ", ".join(
                f"{_OPTIONS.get(key, key)}={value}"
                for key, value in row["options"].items()
            )
            title += f" ({shown})"
        for dataset, protocol, metric, value, error, mark in row["cells"]:
            # Joint training has no protocol, so its result is shown under all of them.
            places = [protocol] if protocol else protocols.get(dataset, [""])
            rank = _RANKS[mark]
            cells += [
                Cell(title, dataset, place, _METRICS[metric], value, error, 3, rank)
                for place in places
            ]
    quoted = tuple(dict.fromkeys(cell.method for cell in cells))
    return ResultTable(cells, quoted=quoted)


def known_dataset(dataset: dict[str, Any]) -> str | None:
    """Return the paper's name of the dataset of a record, or None.

    Examples
    --------
    >>> from evergrow.lab.report.published import known_dataset
    >>> known_dataset({"name": "imagenet_r"})
    'ImageNet-R'
    >>> known_dataset({"name": "cub200_efficientnet_lite0"})
    """
    return _DATASETS.get(_normalize(str(dataset.get("name", ""))))


def known_backbone(dataset: dict[str, Any]) -> str | None:
    """Return the paper's name of the backbone of a record's features, or None.

    Examples
    --------
    >>> from evergrow.lab.report.published import known_backbone
    >>> backbone = {"name": "vit_base_patch16_224.augreg_in21k"}
    >>> known_backbone({"name": "imagenet_r", "backbone": backbone})
    'ViT-B/16-IN21K'
    """
    backbone = dataset.get("backbone")
    name = backbone
    if isinstance(backbone, dict):
        if str(backbone.get("weights", "")).startswith("random"):
            return None  # the paper's backbones are trained
        name = backbone.get("name", "")
    return _BACKBONES.get(_normalize(re.sub(r"\.tv_.*$", "", str(name or ""))))


def published_beside(
    comparison: ResultTable, runs: Sequence[Record], name: str
) -> ResultTable:
    """Add the published row below every measured row with the same setting.

    Dataset, backbone, protocol and method must agree, also in first-session adaptation.

    Parameters
    ----------
    comparison : ResultTable
        Table of the runs.
    runs : sequence of Record
        Finished runs.
    name : str
        Name of the paper's table.
    """
    settings = {
        (row.method, row.dataset, row.protocol): row.record
        for row in with_titles(runs).itertuples()
    }
    cells: list[Cell] = []
    for method in dict.fromkeys(cell.method for cell in comparison.cells):
        own = [cell for cell in comparison.cells if cell.method == method]
        quotes = [
            _quote(name, settings[cell.method, cell.dataset, cell.protocol], cell)
            for cell in own
        ]
        cells += [*own, *(quote for quote in quotes if quote)]
    quoted = dict.fromkeys(
        cell.method for cell in cells if cell not in comparison.cells
    )
    return ResultTable(cells, comparison.notes, tuple(quoted))


def _quote(name: str, record: Record, cell: Cell) -> Cell | None:
    """Return the published number for the setting of a record, or None."""
    table = load_published()["tables"][name]
    dataset = known_dataset(record.dataset)
    if known_backbone(record.dataset) != table["backbone"]:
        return None
    # Published joint training has no protocol and no adaptation, so it always matches.
    adaptations = (record.method.endswith(FSA), None)
    protocols = (record.protocol["name"], None)
    for row in table["rows"]:
        if row["method"] != record.method.removesuffix(FSA):
            continue
        if row["fsa"] not in adaptations:
            continue
        for place, protocol, metric, value, error, _ in row["cells"]:
            same = place == dataset and _METRICS[metric] == cell.metric
            if same and protocol in protocols:
                return Cell(
                    f"{cell.method}, published",
                    cell.dataset,
                    cell.protocol,
                    cell.metric,
                    value,
                    error,
                    3,
                )
    return None


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
