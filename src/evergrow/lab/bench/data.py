"""Data of runs: stored features, or features computed from images and texts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, ParameterError
from evergrow.data import Dataset
from evergrow.data.arrays import REQUIRED
from evergrow.data.feature_blocks import join_blocks
from evergrow.features import Backbone, ImageBackbone, Preprocessing, create_backbone
from evergrow.features.encoding import backbone_entry, featurize
from evergrow.features.images import median_side
from evergrow.lab.benchmarks import load_benchmark
from evergrow.lab.methods.cost import encoding_gflops


@dataclass(frozen=True)
class BackboneEntry:
    """Backbone of a dataset; arguments of :func:`evergrow.features.create_backbone`."""

    name: str
    weights: str | None = None
    preset: str | dict[str, Any] = "timm"
    options: dict[str, Any] = field(default_factory=dict)
    recipe: str | list[str] = "final"


@dataclass(frozen=True)
class DataEntry:
    """A dataset by name or path, its label, and its backbone.

    Parameters
    ----------
    source : str
        Argument of :func:`evergrow.lab.benchmarks.load_benchmark`.
    label : str
        Name in tables.
    backbone : BackboneEntry, optional
        Backbone for images and texts.
    options : dict
        Fields of :class:`evergrow.data.DataOptions`.
    bring : str
        Command that creates the data, for the error message if they are missing.
    """

    source: str
    label: str
    backbone: BackboneEntry | None = None
    options: dict[str, Any] = field(default_factory=dict)
    bring: str = ""


@dataclass(frozen=True)
class ImageData:
    """Raw images for a method that trains its own network.

    Parameters
    ----------
    data : Dataset
        Images and labels.
    backbone : Backbone
        Frozen initial network of the method.
    fingerprint : str
        Fingerprint of the data in the plan.
    """

    data: Dataset
    backbone: Backbone
    fingerprint: str

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.data.name

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.data.class_names

    @property
    def y_train(self) -> NDArray[np.int64]:
        """Labels of the training set."""
        return self.data.y_train

    @property
    def y_test(self) -> NDArray[np.int64]:
        """Labels of the test set."""
        return self.data.y_test

    @property
    def has_test(self) -> bool:
        """Whether there is a test set."""
        return self.data.has_test

    def encoded_by(self, backbone: Backbone) -> Dataset:
        """Return features of all images from a backbone adapted to the first task."""
        return featurize(self.data, backbone, cache=False)


def rows_of(
    data: Dataset | ImageData, part: str, rows: NDArray[np.int64]
) -> tuple[Any, NDArray[Any]]:
    """Return rows of the part ``"train"`` or ``"test"`` and their labels."""
    labels = getattr(data, f"y_{part}")[rows]
    if isinstance(data, ImageData):
        return data.data.part(part).raw_items().take(rows), labels
    features = getattr(data, f"X_{part}")[rows]
    return join_blocks(features, data.train.widths), labels


class DataSource:
    """Loads datasets on demand and keeps the last one; runs are sorted by dataset.

    Parameters
    ----------
    device : str or torch.device
        Device of backbones.
    """

    def __init__(self, device: str | torch.device = "auto") -> None:
        self._device = device
        self._entry: DataEntry | None = None
        self._data: Dataset | None = None
        self._backbone: Backbone | None = None
        self._features: Dataset | None = None

    def describe(self, entry: DataEntry) -> dict[str, Any]:
        """Return the description for records, without computing features."""
        data = self._load(entry)
        if data.kind == "features":
            return {"fingerprint": fingerprint_of(data), **data.describe()}
        spec = self.backbone(entry).spec
        backbone = backbone_entry(spec)
        return {
            "fingerprint": _origin_fingerprint(fingerprint_of(data), backbone),
            **data.describe(),
            "n_features": spec.n_features,
            "backbone": backbone,
        }

    def get(self, entry: DataEntry) -> Dataset:
        """Return the features of an entry; images and texts are encoded once."""
        data = self._load(entry)
        if data.kind == "features":
            return data
        if self._features is None:
            self._features = replace(
                featurize(data, self.backbone(entry)), origin=fingerprint_of(data)
            )
        return self._features

    def images(self, entry: DataEntry) -> ImageData:
        """Return the images of an entry and its backbone."""
        data = self._load(entry)
        if data.kind != "image":
            raise ParameterError(
                f"dataset {entry.label!r} must be images for a method that trains its "
                f"network, got {data.kind.removesuffix('s')}s"
            )
        fingerprint = self.describe(entry)["fingerprint"]
        return ImageData(data, self.backbone(entry), fingerprint)

    def backbone(self, entry: DataEntry) -> Backbone:
        """Return the backbone; recipes ``rich`` and ``best`` depend on the images."""
        data = self._load(entry)
        if entry.backbone is None:
            raise ParameterError(
                f"dataset {entry.label!r} must have a backbone, because it has no "
                'features: add backbone = "NAME" to its [[datasets]] table'
            )
        if self._backbone is None:
            named = entry.backbone
            preset: Preprocessing | str | None = None
            if isinstance(named.preset, dict):
                preset = Preprocessing(**named.preset)
            else:
                preset = named.preset
            backbone = create_backbone(
                named.name, named.weights, preset, device=self._device, **named.options
            )
            side = None
            if data.kind == "image":
                side = median_side(data.train.raw_items())
            self._backbone = backbone.with_recipe(named.recipe, side)
        return self._backbone

    def gflops(self, entry: DataEntry) -> float | None:
        """Return the operations of an image backbone per image in 10^9, or None."""
        if entry.backbone is None:
            return None
        backbone = self.backbone(entry)
        if not isinstance(backbone, ImageBackbone):
            return None
        return encoding_gflops(backbone)

    def _load(self, entry: DataEntry) -> Dataset:
        if self._data is None or self._entry != entry:
            # Free the previous dataset first.
            self._data = None
            self._backbone = None
            self._features = None
            try:
                self._data = load_benchmark(os.fspath(entry.source), **entry.options)
            except DatasetNotFoundError as error:
                if not entry.bring:
                    raise
                raise DatasetNotFoundError(
                    f"{entry.label} is not here; this brings it: {entry.bring}"
                ) from error
            self._entry = entry
        return self._data


def fingerprint_of(data: Dataset) -> str:
    """Return a hash of the data that does not depend on names or paths of files.

    The hash of raw data covers names and sizes of the samples and the labels, and is
    equal on every machine; images are not read. Features computed on two machines
    differ in their last digits, so the hash of newly computed features covers the raw
    data and the backbone. The hash of stored features covers their values.
    """
    digest = hashlib.blake2b(digest_size=8)
    if data.kind != "features":
        items = data.train.raw_items()
        test = items.take([]) if data.test is None else data.test.raw_items()
        texts = [items.stamp(times=False), test.stamp(times=False), *data.class_names]
        for text in texts:
            digest.update(text.encode("utf-8", "surrogateescape") + b"\0")
        for labels in (data.y_train, data.y_test):
            digest.update(f"{labels.shape}".encode())
            digest.update(labels.astype("<i8", copy=False).tobytes())
        return digest.hexdigest()
    if data.origin:
        return _origin_fingerprint(data.origin, data.train.backbone)
    widths = data.train.widths
    digest.update(repr(widths).encode() if widths else b"")
    # The published records hashed labels in the type of their files.
    label_type = np.int16 if data.n_classes < 2**15 else np.int64
    for name in REQUIRED:
        array = np.ascontiguousarray(getattr(data, name))
        if name.startswith("y_"):
            array = array.astype(label_type)
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _origin_fingerprint(origin: str, backbone: Mapping[str, Any]) -> str:
    """Return the fingerprint of features from a backbone and its raw data."""
    text = json.dumps([origin, dict(backbone)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
