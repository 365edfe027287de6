"""Data sets that torchvision knows by name."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import DatasetNotFoundError, InputError, UnknownNameError
from evergrow.core.optional import require
from evergrow.core.registry import nearest
from evergrow.data import DataOptions, Dataset, search_path
from evergrow.data.items import Images, Label, Stored

_SPLITS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "USPS", "EuroSAT", "SUN397"], ("", "")),
    **dict.fromkeys(["Caltech101", "Caltech256", "FakeData"], ("", "")),
    **dict.fromkeys(["SVHN", "STL10", "GTSRB", "StanfordCars", "Flowers102", "Food101", "DTD"], ("train", "test")),
    **dict.fromkeys(["Country211", "RenderedSST2"], ("train", "test")),
    **dict.fromkeys(["FGVCAircraft", "OxfordIIITPet"], ("trainval", "test")),
    **dict.fromkeys(["Imagenette", "ImageNet"], ("train", "val")),
}
"""Data sets with one label per image, and what their ``split`` is called for training and for testing."""


def list_torchvision() -> list[str]:
    """Return the names that ``torchvision:NAME`` takes.

    Examples
    --------
    >>> from evergrow.lab.benchmarks.vision import list_torchvision
    >>> "CIFAR100" in list_torchvision()
    True
    """
    return sorted(_SPLITS)


def read_torchvision(name: str, options: DataOptions) -> Dataset:
    """Read a data set of torchvision's by name, downloading it where that is allowed and possible.

    Raises
    ------
    UnknownNameError
        If the name is not one of :func:`list_torchvision`.
    DatasetNotFoundError
        If it cannot be had; the message says where to put what.
    """
    known = {item.lower(): item for item in _SPLITS}
    if name.lower() not in known:
        raise UnknownNameError(
            f"torchvision data set must be one with a label per image, got {name!r}; nearest: {nearest(name, _SPLITS)}"
        )
    name = known[name.lower()]
    module = require("torchvision.datasets", extra="lab", purpose=f"reading torchvision:{name}")
    if not hasattr(module, name):
        raise DatasetNotFoundError(f"torchvision must have {name}, but the installed version does not: upgrade it")
    root = options.root_path or next(iter(search_path()[:1] if os.environ.get("EVERGROW_DATA") else ()), Path("data"))
    factory = getattr(module, name)
    parameters = inspect.signature(factory.__init__).parameters
    kinds: list[dict[str, Any]] = [{}]
    if "train" in parameters:
        kinds = [{"train": True}, {"train": False}]
    elif "split" in parameters:
        kinds = [{"split": split} for split in _SPLITS[name]]
    parts = [_made(factory, root, kind, options.download) for kind in kinds]
    labels = [_labels(part) for part in parts]
    items = [_items(part, f"{name} {kind}", code) for part, kind, code in zip(parts, ("train", "test"), labels)]
    names = getattr(parts[0], "classes", None) or getattr(parts[0], "categories", None) or ()
    test = (items[1], labels[1]) if len(items) > 1 else (None, ())
    titles = [_class_name(item) for item in names]
    return Dataset.of(items[0], labels[0], *test, names=titles, layout="torchvision")


def _made(factory: Any, root: Path, settings: dict[str, Any], download: bool) -> Any:
    """Return a data set from what is on disk, downloading it only if that fails."""
    parameters = inspect.signature(factory.__init__).parameters
    if "root" in parameters:
        settings = {**settings, "root": str(root)}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return factory(**settings)
    except (RuntimeError, OSError, ValueError) as error:
        if download and "download" in parameters and "download" not in settings:
            root.mkdir(parents=True, exist_ok=True)
            return _made(factory, root, {**settings, "download": True}, download)
        address = getattr(factory, "url", None) or getattr(factory, "_URL", None)
        where = f" It comes from {address}." if isinstance(address, str) else ""
        raise DatasetNotFoundError(
            f"torchvision data set {factory.__name__} must be in {root} or be downloaded, but: {error}.{where} Where "
            "there is a network, let torchvision download it into a folder, bring that here and name it as root"
        ) from error


def _labels(dataset: Any) -> list[Label]:
    """Return the labels, without decoding an image where the data set keeps them apart."""
    for name in ("targets", "labels", "_labels", "y"):
        values = getattr(dataset, name, None)
        if values is not None and len(values) == len(dataset):
            return [int(value) for value in values]
    pairs = getattr(dataset, "_samples", None)
    if pairs is not None and len(pairs) == len(dataset):
        return [int(pair[1]) for pair in pairs]
    return [int(dataset[row][1]) for row in range(len(dataset))]


def _items(dataset: Any, title: str, labels: Sequence[Label]) -> Images:
    pixels = getattr(dataset, "data", None)
    if pixels is not None and len(pixels) == len(dataset):
        array = np.asarray(pixels)
        if array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] == 3 and array.shape[3] != 3:
            array = np.ascontiguousarray(array.transpose(0, 2, 3, 1))  # SVHN and STL10 keep colours first
        if array.dtype == np.uint8 and array.ndim in (3, 4):
            return Images(array)
    paths = _paths(dataset)
    if paths:
        root = Path(os.path.commonpath([os.path.dirname(path) for path in paths]))
        return Images(tuple(Path(path).relative_to(root).as_posix() for path in paths), root=root)
    if not len(dataset):
        raise InputError(f"{title} must hold images, got none")
    tag = hashlib.blake2b(f"{type(dataset).__name__}\0{list(labels)}".encode(), digest_size=16).hexdigest()
    store, rows = VisionStore(dataset, f"{title}\0{tag}"), range(len(dataset))
    return Images(tuple(Stored(store, row) for row in rows), tuple(f"{title}[{row}]" for row in rows))


def _paths(dataset: Any) -> list[str]:
    for name in ("samples", "_samples", "_image_files", "_images"):
        values = getattr(dataset, name, None)
        if not values or len(values) != len(dataset):
            continue
        paths = [value[0] if isinstance(value, (tuple, list)) else value for value in values]
        if all(isinstance(path, (str, os.PathLike)) for path in paths):
            return [os.fspath(path) for path in paths]
    return []


def _class_name(item: Any) -> str:
    """Return a name; ImageNet has several for each class."""
    return str(item[0]) if isinstance(item, (tuple, list)) else str(item)


@dataclass(frozen=True, eq=False)
class VisionStore:
    """The images of a torchvision data set, by their rows.

    Parameters
    ----------
    dataset : torchvision.datasets.VisionDataset
        Without transforms.
    tag : str
        What tells the data set from every other one.
    """

    dataset: Any
    tag: str

    def read(self, key: int) -> Any:
        """Return a PIL image."""
        return self.dataset[key][0]

    def mark(self, key: int, *, times: bool) -> str:
        """Return the tag and the row."""
        return f"{self.tag}\0{key}"
