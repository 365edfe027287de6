"""Hugging Face data sets: from the hub, from its cache, or saved to disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import DatasetNotFoundError, EvergrowError, FileFormatError, ImageError, InputError
from evergrow.core.items import Items, Texts
from evergrow.core.optional import require
from evergrow.core.wording import hint
from evergrow.data.fetched import FetchedImages
from evergrow.data.labelled import Label, LabelledItems, listed
from evergrow.data.options import DataOptions
from evergrow.data.readers import register_layout, register_scheme
from evergrow.data.tables import IMAGE_COLUMNS

LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
_TEST_SPLITS = ("test", "validation", "valid", "val", "eval")


def is_saved(folder: Path) -> bool:
    """Return whether a folder is what ``save_to_disk`` of the datasets library writes."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file()
    )


@register_layout("hub-disk", fits=is_saved, rank=10)
def read_saved(folder: Path, options: DataOptions) -> LabelledItems:
    """Read a data set that was saved with ``save_to_disk``."""
    datasets = require("datasets", extra="datasets", purpose=f"reading {folder}")
    try:
        content = datasets.load_from_disk(str(folder))
    # Damaged files surface as errors of arrow, json or the library itself.
    except Exception as error:
        raise FileFormatError(f"{folder} must be a whole saved Hugging Face data set: {error}") from error
    return _labelled_items(content, folder.name, options)


@register_scheme("hf")
def read_hub(name: str, options: DataOptions) -> LabelledItems:
    """Read ``OWNER/NAME`` or ``OWNER/NAME#CONFIG`` from the hub or its cache, or a local folder of parquet files.

    Parameters
    ----------
    name : str
        What follows ``hf:``. The hub's own addresses do as well: ``//datasets/OWNER/NAME``, with ``@REVISION`` and the
        path of a file or folder in it where they are wanted.
    options : DataOptions
        How to read it.

    Raises
    ------
    DatasetNotFoundError
        If it cannot be had; the message says how to bring it from another machine.
    """
    place = _place(name)
    local = Path(place.path)
    if local.is_dir() and is_saved(local):
        return read_saved(local, options)
    datasets = require("datasets", extra="datasets", purpose=f"reading hf:{name}")
    try:
        content = _load(datasets, place, options)
    except EvergrowError:
        raise
    # The hub, the network and the builders each bring errors of their own; all mean that the data cannot be had.
    except Exception as error:
        raise DatasetNotFoundError(
            f"Hugging Face data set {place.path!r} must be reachable, in the cache or on disk, but: {error}. Where "
            f"there is a network, run datasets.load_dataset({place.path!r}).save_to_disk('FOLDER'), bring FOLDER here "
            "and load it by its path"
        ) from error
    return _labelled_items(content, local.name, options)


@dataclass(frozen=True)
class _Place:
    """A data set of the hub: its name or folder, a configuration of it, a revision, and files or a folder in it."""

    path: str
    config: str | None = None
    revision: str | None = None
    inside: str | None = None

    def arguments(self) -> dict[str, str]:
        """Return what ``datasets.load_dataset`` is told beyond the name and the configuration."""
        values = {"revision": self.revision}
        if self.inside is not None:
            values["data_files" if Path(self.inside).suffix else "data_dir"] = self.inside
        return {name: value for name, value in values.items() if value is not None}


def _place(name: str) -> _Place:
    if not name.startswith("//"):
        path, _, config = name.partition("#")
        return _Place(path, config or None)
    kind, _, rest = name[2:].partition("/")
    rest, _, config = rest.partition("#")
    owner, _, rest = rest.partition("/")
    repository, _, inside = rest.partition("/")
    title, _, revision = repository.partition("@")
    parts = [owner, title, *inside.rstrip("/").split("/")]
    if kind != "datasets" or not owner or not title or ".." in parts:
        raise DatasetNotFoundError(f"data sets of the hub must be hf://datasets/OWNER/NAME, got {'hf:' + name!r}")
    return _Place(f"{owner}/{title}", config or None, revision or None, inside.rstrip("/") or None)


def _load(datasets: Any, place: _Place, options: DataOptions) -> Any:
    if options.download or Path(place.path).is_dir():
        return datasets.load_dataset(place.path, place.config, **place.arguments())
    with _offline(datasets):
        return datasets.load_dataset(place.path, place.config, **place.arguments())


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Keep the hub's libraries from the network for a while; they read their setting once, when they are imported."""
    hub = require("huggingface_hub", extra="datasets", purpose="reading Hugging Face data sets")
    places = [part for part in (datasets.config, hub.constants) if hasattr(part, "HF_HUB_OFFLINE")]
    before = [part.HF_HUB_OFFLINE for part in places]
    try:
        for part in places:
            part.HF_HUB_OFFLINE = True
        yield
    finally:
        for part, value in zip(places, before, strict=True):
            part.HF_HUB_OFFLINE = value


def _labelled_items(content: Any, title: str, options: DataOptions) -> LabelledItems:
    splits = dict(content) if isinstance(content, Mapping) else {"train": content}
    if "train" not in splits:
        raise InputError(f"data set must have a split train, got {listed(splits)}")
    label, names = _label_column(splits["train"], options)
    column, image = _sample_column(splits["train"], label, options)
    tests = [name for name in _TEST_SPLITS if name in splits and _labelled(splits[name], label)]
    test = splits[tests[0]] if tests else None
    left = [name for name in splits if name not in ("train", *tests[:1])]
    notes = [f"splits left out: {', '.join(left)}"] if left else []
    parts = [_items(part, column, image, f"{title} {name}") for part, name in ((splits["train"], "train"),)]
    if test is not None:
        parts.append(_items(test, column, image, f"{title} {tests[0]}"))
    return LabelledItems(
        "hub",
        parts[0],
        _labels(splits["train"], label),
        parts[1] if test is not None else None,
        _labels(test, label) if test is not None else (),
        names=names,
        notes=notes,
    )


def _label_column(dataset: Any, options: DataOptions) -> tuple[str, dict[int, str]]:
    features = dataset.features
    coded = [name for name, feature in features.items() if hasattr(feature, "names") and hasattr(feature, "int2str")]
    candidates = [options.label_column, *(name for name in LABEL_COLUMNS if name in features), *coded[:1]]
    for name in candidates:
        if name in features:
            return name, dict(enumerate(features[name].names)) if name in coded else {}
    raise FileFormatError(f"data set must have a column {options.label_column!r}, got {listed(features, most=8)}")


def _sample_column(dataset: Any, label: str, options: DataOptions) -> tuple[str, bool]:
    features = dataset.features
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    wanted = [options.image_column] if options.image_column else [*IMAGE_COLUMNS, "img", *images]
    for name in wanted:
        if name in images:
            return name, True
    texts = [name for name, feature in features.items() if getattr(feature, "dtype", "") in ("string", "large_string")]
    texts = [name for name in texts if name != label]
    for name in (options.text_column, *(texts if len(texts) == 1 else ())):
        if name in texts:
            return name, False
    meant = hint(("image_column", "text_column"), "; say which one by {}")
    raise FileFormatError(
        f"data set must have a column of images or a column {options.text_column!r}, got "
        f"{listed(features, most=8)}{meant}"
    )


def _labelled(dataset: Any, label: str) -> bool:
    """Return whether a split has labels: competitions publish test sets with -1 instead."""
    return label in dataset.features and not any(
        value in (-1, None) for value in dataset.select_columns([label])[:100][label]
    )


def _labels(dataset: Any, label: str) -> list[Label]:
    values = list(dataset.select_columns([label])[:][label])
    for row, value in enumerate(values):
        if not isinstance(value, (int, str)) or value == -1:
            raise InputError(f"{label} must be an integer or a string in every row, got {value!r} in row {row}")
    return values


def _items(dataset: Any, column: str, image: bool, title: str) -> Items:
    if not image:
        texts = dataset.select_columns([column])[:][column]
        for row, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{title}: {column} must not be empty, got {text!r} in row {row}")
        return Texts(tuple(texts))
    datasets = require("datasets", extra="datasets", purpose="reading images")
    undecoded = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    rows = np.arange(len(dataset), dtype=np.int64)
    return FetchedImages(HubFetch(undecoded, column, title), rows, title, str(dataset._fingerprint))


@dataclass(frozen=True, eq=False)
class HubFetch:
    """Fetch one image from the arrow table, which stays memory-mapped.

    Parameters
    ----------
    dataset : datasets.Dataset
        With the one column, undecoded.
    column : str
        Its name.
    title : str
        For messages.
    """

    dataset: Any
    column: str
    title: str

    def __call__(self, row: int) -> bytes | Path:
        """Return the bytes of an image file as they are in the table, or the path of one."""
        cell = self.dataset[row][self.column]
        if cell is None or (cell.get("bytes") is None and not cell.get("path")):
            raise ImageError(f"image must be there, got an empty cell for {self.title}[{row}]")
        if cell.get("bytes") is None:
            return Path(cell["path"])
        return bytes(cell["bytes"])
