"""The paper's published results, as a data file, and where they may stand beside measured ones."""

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
    """Return the published results: their source, and tables by name, with rows of methods.

    A cell is data set, protocol (None where the table states none), metric, value,
    error, and whether it is ``"best"`` or ``"second"`` in print.

    Examples
    --------
    >>> from evergrow.lab.report.published import load_published
    >>> row = load_published()["tables"]["main"]["rows"][-1]
    >>> row["label"], row["cells"][0]
    ('SCL-MGSM', ['ImageNet-R', 'B-0 Inc-5', 'a_last', 72.64, 0.24, 'best'])
    """
    text = (
        resources.files("evergrow.lab.report")
        .joinpath("published.json")
        .read_text(encoding="utf-8")
    )
    body: dict[str, Any] = json.loads(text)
    return {
        "source": body["source"],
        "tables": {table["id"]: table for table in body["tables"]},
    }


def published_comparison(name: str) -> ResultTable:
    """Return a table of the paper in the form of measured ones, marked as in print."""
    rows = load_published()["tables"][name]["rows"]
    protocols: dict[str, list[str]] = {}
    for row in rows:
        for dataset, protocol, *_ in row["cells"]:
            if protocol and protocol not in protocols.setdefault(dataset, []):
                protocols[dataset].append(protocol)
    cells = []
    for row in rows:
        shown = ", ".join(
            f"{_OPTIONS.get(key, key)}={value}" for key, value in row["options"].items()
        )
        title = f"{row['label']} ({shown})" if shown else row["label"]
        for dataset, protocol, metric, value, error, mark in row["cells"]:
            # Joint training has no protocol: its result stands under all of them.
            if protocol:
                places = [protocol]
            else:
                places = protocols.get(dataset) or [""]
            cells += [
                Cell(title, dataset, p, _METRICS[metric], value, error, 3, _RANKS[mark])
                for p in places
            ]
    return ResultTable(
        cells, quoted=tuple(dict.fromkeys(cell.method for cell in cells))
    )


def known_dataset(dataset: dict[str, Any]) -> str | None:
    """Return the paper's name of a record's data set, or None.

    Examples
    --------
    >>> from evergrow.lab.report.published import known_dataset
    >>> known_dataset({"name": "imagenet_r"}), known_dataset({"name": "cub200_efficientnet_lite0"})
    ('ImageNet-R', None)
    """
    return _DATASETS.get(_folded(str(dataset.get("name", ""))))


def known_backbone(dataset: dict[str, Any]) -> str | None:
    """Return the paper's name of the backbone that a record's features come from, or None.

    Examples
    --------
    >>> from evergrow.lab.report.published import known_backbone
    >>> known_backbone({"name": "imagenet_r", "backbone": {"name": "vit_base_patch16_224.augreg_in21k"}})
    'ViT-B/16-IN21K'
    """
    backbone = dataset.get("backbone")
    if isinstance(backbone, dict) and str(backbone.get("weights", "")).startswith(
        "random"
    ):
        return None  # the architecture alone is not the paper's backbone
    if isinstance(backbone, dict):
        name = backbone.get("name", "")
    else:
        name = backbone
    return _BACKBONES.get(_folded(re.sub(r"\.tv_.*$", "", str(name or ""))))


def published_beside(
    comparison: ResultTable, runs: Sequence[Record], name: str
) -> ResultTable:
    """Return a comparison with the published row below every measured one of the same setting.

    Data set, backbone, protocol and method must agree, first-session adaptation
    included.

    Parameters
    ----------
    comparison : ResultTable
        Of the runs.
    runs : sequence of Record
        Finished runs.
    name : str
        The table of the paper.
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
    """Return the published number of a record's setting."""
    table = load_published()["tables"][name]
    dataset = known_dataset(record.dataset)
    if known_backbone(record.dataset) != table["backbone"]:
        return None
    for row in table["rows"]:
        if row["method"] == record.method.removesuffix(FSA) and row["fsa"] in (
            record.method.endswith(FSA),
            None,
        ):
            for place, protocol, metric, value, error, _ in row["cells"]:
                same = place == dataset and _METRICS[metric] == cell.metric
                # A published cell without a protocol is one of joint training, which
                # has none.
                if same and protocol in (record.protocol["name"], None):
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


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
