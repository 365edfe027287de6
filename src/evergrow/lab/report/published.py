"""The paper's published results, as a data file, and where they may stand beside measured ones."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from evergrow.lab.report.styles import FSA
from evergrow.lab.tables import METRICS, Cell, Column, Comparison, Metric

_EXTRA_METRICS = {
    "time_s": Metric("time s", "time (s)", lambda record: None, lower_is_better=True, ranked=False),
}
_RANKS = {"": 0, "best": 1, "second": 2}


@dataclass(frozen=True)
class PublishedCell:
    """One number of a published table.

    Parameters
    ----------
    dataset : str
        As printed.
    protocol : str or None
        None where the table does not state one, or none applies.
    metric : str
        ``a_last``, ``a_avg``, ``f_avg`` (percent), ``time_s`` (seconds) or ``n_units``.
    value, error : float
        As printed.
    mark : {"", "best", "second"}
        Bold or underlined in print.
    """

    dataset: str
    protocol: str | None
    metric: str
    value: float
    error: float
    mark: str


@dataclass(frozen=True)
class PublishedRow:
    """One row: a method with its cells; ``fsa`` is None where the paper does not say."""

    label: str
    method: str
    fsa: bool | None
    options: dict[str, Any]
    cells: tuple[PublishedCell, ...]

    @property
    def title(self) -> str:
        """The label with the options that the row is about."""
        names = {"block_size": "s", "n_candidates": "B_max", "n_units": "units"}
        shown = ", ".join(f"{names.get(key, key)}={value}" for key, value in self.options.items())
        return f"{self.label} ({shown})" if shown else self.label


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper.

    Parameters
    ----------
    id : str
        Name in this package.
    label, caption : str
        As in the paper.
    backbone : str
        As printed.
    error : str
        Meaning of the number after the plus-minus sign.
    rows : tuple of PublishedRow
        Its contents.
    """

    id: str
    label: str
    caption: str
    backbone: str
    error: str
    rows: tuple[PublishedRow, ...]

    def comparison(self) -> Comparison:
        """Return the table in the form of measured ones, marked as in print."""
        columns = list(
            dict.fromkeys(
                (cell.dataset, cell.protocol, cell.metric)
                for row in self.rows
                for cell in row.cells
                if not row.method.startswith("joint")
            )
        )
        cells = [[_find(row, *column) for column in columns] for row in self.rows]
        titles = [row.title for row in self.rows]
        return Comparison(
            rows=titles,
            columns=[Column(dataset, protocol or "", metric(name)) for dataset, protocol, name in columns],
            cells=cells,
            notes=[],
            quoted=tuple(titles),
        )


def metric(name: str) -> Metric:
    """Return how a published metric is printed."""
    return METRICS[name] if name in METRICS else _EXTRA_METRICS[name]


def _find(row: PublishedRow, dataset: str, protocol: str | None, name: str) -> Cell | None:
    for cell in row.cells:
        if cell.dataset == dataset and cell.metric == name and cell.protocol in (protocol, None):
            return Cell(cell.value, cell.error, 3, _RANKS[cell.mark])
    return None


@dataclass(frozen=True)
class Published:
    """All result tables of the paper with their source."""

    title: str
    authors: tuple[str, ...]
    project_page: str
    note: str
    tables: dict[str, PublishedTable]


@cache
def load_published() -> Published:
    """Return the published results.

    Examples
    --------
    >>> from evergrow.lab.report.published import load_published
    >>> table = load_published().tables["main"]
    >>> cell = table.rows[-1].cells[0]
    >>> table.rows[-1].label, cell.dataset, cell.protocol, cell.metric, cell.value, cell.error, cell.mark
    ('SCL-MGSM', 'ImageNet-R', 'B-0 Inc-5', 'a_last', 72.64, 0.24, 'best')
    """
    text = resources.files("evergrow.lab.report").joinpath("published.json").read_text(encoding="utf-8")
    body = json.loads(text)
    tables = {}
    for entry in body["tables"]:
        rows = tuple(
            PublishedRow(
                row["label"],
                row["method"],
                row["fsa"],
                row["options"],
                tuple(PublishedCell(*cell) for cell in row["cells"]),
            )
            for row in entry["rows"]
        )
        head = {key: entry[key] for key in ("id", "label", "caption", "backbone", "error")}
        tables[entry["id"]] = PublishedTable(**head, rows=rows)
    source = body["source"]
    return Published(source["title"], tuple(source["authors"]), source["project_page"], source["note"], tables)


# -- the same setting -----------------------------------------------------------------------------------

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
    if isinstance(backbone, dict) and str(backbone.get("weights", "")).startswith("random"):
        return None  # the architecture alone is not the paper's backbone
    name = backbone.get("name", "") if isinstance(backbone, dict) else backbone
    return _BACKBONES.get(_folded(re.sub(r"\.tv_.*$", "", str(name or ""))))


def published_row(table: PublishedTable, method: str) -> PublishedRow | None:
    """Return the row of a table that a registered method stands for: adapted in the first session, or not.

    Examples
    --------
    >>> from evergrow.lab.report.published import load_published, published_row
    >>> main = load_published().tables["main"]
    >>> published_row(main, "ranpac+fsa").label, published_row(main, "ranpac")
    ('RanPAC', None)
    """
    base, adapted = method.removesuffix(FSA), method.endswith(FSA)
    for row in table.rows:
        if row.method == base and row.fsa in (adapted, None):
            return row
    return None


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
