"""Data for runs: features as they are on disk, or computed on demand from images and texts."""

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
from evergrow.data import Dataset, FeatureSet
from evergrow.data.arrays import REQUIRED
from evergrow.data.feature_blocks import join_blocks
from evergrow.features import Backbone, ImageBackbone, Preprocessing, create_backbone
from evergrow.features.encoding import backbone_entry, featurize
from evergrow.features.images import median_side
from evergrow.lab.benchmarks import load_benchmark
from evergrow.lab.methods.cost import encoding_gflops


@dataclass(frozen=True)
class BackboneEntry:
    """The backbone that a spec names for a data set; the arguments of :func:`evergrow.features.create_backbone`."""

    name: str
    weights: str | None = None
    preset: str | dict[str, Any] = "timm"
    options: dict[str, Any] = field(default_factory=dict)
    recipe: str | list[str] = "final"


@dataclass(frozen=True)
class DataEntry:
    """A data set by name or path, its name in tables, and what turns it into features.

    Parameters
    ----------
    source : str
        What :func:`evergrow.lab.benchmarks.load_benchmark` takes.
    label : str
        Name in tables.
    backbone : BackboneEntry, optional
        For images and texts.
    options : dict
        Fields of :class:`evergrow.data.DataOptions`.
    bring : str
        The command that makes the data, for those who do not have them.
    """

    source: str
    label: str
    backbone: BackboneEntry | None = None
    options: dict[str, Any] = field(default_factory=dict)
    bring: str = ""


@dataclass(frozen=True)
class ImageData:
    """Raw data by rows, as a method takes them that trains its own network.

    Parameters
    ----------
    data : Dataset
        Images and labels.
    backbone : Backbone
        The frozen network that a method starts from.
    fingerprint : str
        What the plan knows the data by.
    """

    data: Dataset
    backbone: Backbone
    fingerprint: str

    @property
    def name(self) -> str:
        """Name of the data set."""
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

    def seen_by(self, backbone: Backbone) -> FeatureSet:
        """Return the features of all images under a backbone that was adapted to the first task."""
        return featurize(self.data, backbone, cache=False)


def rows_of(
    data: FeatureSet | ImageData, part: str, rows: NDArray[np.int64]
) -> tuple[Any, NDArray[Any]]:
    """Return these rows of the part ``"train"`` or ``"test"``, images or joined features, and their labels."""
    labels = getattr(data, f"y_{part}")[rows]
    if isinstance(data, ImageData):
        return data.data.part(part).raw_items().take(rows), labels
    return join_blocks(getattr(data, f"X_{part}")[rows], data.widths), labels


class DataSource:
    """Loads data sets on demand and keeps the last one, since runs come sorted by data set.

    Parameters
    ----------
    device : str or torch.device
        Where backbones compute.
    """

    def __init__(self, device: str | torch.device = "auto") -> None:
        self._device = device
        self._entry: DataEntry | None = None
        self._data: FeatureSet | Dataset | None = None
        self._backbone: Backbone | None = None
        self._features: FeatureSet | None = None

    def describe(self, entry: DataEntry) -> dict[str, Any]:
        """Return what records say about the data, without computing features."""
        data = self._load(entry)
        if isinstance(data, FeatureSet):
            return {"fingerprint": fingerprint_of(data), **data.describe()}
        spec = self.backbone(entry).spec
        backbone = backbone_entry(spec)
        return {
            "name": data.name,
            "fingerprint": _origin_fingerprint(fingerprint_of(data), backbone),
            "n_train": len(data.y_train),
            "n_test": len(data.y_test),
            "n_features": spec.n_features,
            "n_classes": data.n_classes,
            "backbone": backbone,
        }

    def get(self, entry: DataEntry) -> FeatureSet:
        """Return the features of an entry; images and texts go through its backbone, once."""
        data = self._load(entry)
        if isinstance(data, FeatureSet):
            return data
        if self._features is None:
            self._features = replace(
                featurize(data, self.backbone(entry)), origin=fingerprint_of(data)
            )
        return self._features

    def images(self, entry: DataEntry) -> ImageData:
        """Return the images of an entry and its backbone."""
        data = self._load(entry)
        if isinstance(data, FeatureSet) or data.kind != "image":
            if isinstance(data, FeatureSet):
                kind = "features"
            else:
                kind = f"{data.kind}s"
            raise ParameterError(
                f"data set {entry.label!r} must be images for a method that trains its network, got {kind}"
            )
        return ImageData(
            data, self.backbone(entry), self.describe(entry)["fingerprint"]
        )

    def backbone(self, entry: DataEntry) -> Backbone:
        """Return the backbone of an entry; as everywhere, the images decide what ``rich`` and ``best`` look at."""
        data = self._load(entry)
        if entry.backbone is None:
            raise ParameterError(
                f"data set {entry.label!r} must have a backbone, since it holds no features: add "
                'backbone = "NAME" to its [[datasets]] table'
            )
        if self._backbone is None:
            named = entry.backbone
            preset: Preprocessing | str | None
            if isinstance(named.preset, dict):
                preset = Preprocessing(**named.preset)
            else:
                preset = named.preset
            made = create_backbone(
                named.name, named.weights, preset, device=self._device, **named.options
            )
            side = None
            if isinstance(data, Dataset) and data.kind == "image":
                side = median_side(data.train.raw_items())
            self._backbone = made.with_recipe(named.recipe, side)
        return self._backbone

    def gflops(self, entry: DataEntry) -> float | None:
        """Return the operations of the backbone for one image, in units of 10^9; None without an image backbone."""
        if entry.backbone is None:
            return None
        backbone = self.backbone(entry)
        if not isinstance(backbone, ImageBackbone):
            return None
        return encoding_gflops(backbone)

    def _load(self, entry: DataEntry) -> FeatureSet | Dataset:
        if self._data is None or self._entry != entry:
            self._data = self._backbone = self._features = (
                None  # let go of the old one first
            )
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


def fingerprint_of(data: Dataset | FeatureSet) -> str:
    """Return a hash of data, so that records know which they are about whatever the name and place of the files.

    That of raw data is of names and sizes of the samples and of the labels, the same on
    every machine; no image is read. Two machines compute features that differ in their
    last digits, so features that were computed just now are told apart by the raw data
    and the backbone; others by what they hold.
    """
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(data, Dataset):
        items = data.train.raw_items()
        if data.test is None:
            test = items.take([])
        else:
            test = data.test.raw_items()
        for part in (
            items.stamp(times=False),
            test.stamp(times=False),
            *data.class_names,
        ):
            digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
        for labels in (data.y_train, data.y_test):
            digest.update(f"{labels.shape}".encode())
            digest.update(labels.astype("<i8", copy=False).tobytes())
        return digest.hexdigest()
    if data.origin:
        return _origin_fingerprint(data.origin, data.backbone)
    digest.update(repr(data.widths).encode() if data.widths else b"")
    for name in REQUIRED:
        array = np.ascontiguousarray(getattr(data, name))
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _origin_fingerprint(origin: str, backbone: Mapping[str, Any]) -> str:
    """Return the fingerprint of features that a backbone computes from the data of a fingerprint."""
    text = json.dumps([origin, dict(backbone)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
