"""Labelled images or texts, not yet features, with integer labels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, LabelError
from evergrow.core.items import Items, Kind
from evergrow.data.features import FeatureSet


@dataclass(frozen=True, eq=False)
class RawSet:
    """Images or texts and labels of a training and a test set; nothing is decoded.

    Parameters
    ----------
    name : str
        Name for people and records; never a path.
    train, test : Items
        The samples, both of one kind.
    y_train, y_test : ndarray of int64
        Labels 0, ..., C - 1: positions in ``class_names``. Every class has a training sample.
    class_names : tuple of str
        Names of the classes, sorted, which is the numbering that published class orders permute.
    source : str
        Where the data came from, for people.
    layout : str
        How they were laid out there.
    notes : tuple of str
        What is worth knowing: files left out, how the split came about.
    cautions : tuple of str
        What is probably not meant.
    whole : bool
        Whether there is no test set on purpose, because ``split="none"`` asked for none; only then ``test`` is empty.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.core.items import Texts
    >>> from evergrow.data import RawSet
    >>> y = np.array([0, 0, 1, 1])
    >>> data = RawSet("toy", Texts(("a", "b", "c", "d")), y, Texts(("e", "f", "g", "h")), y, ("one", "two"))
    >>> data.kind, data.n_classes
    ('text', 2)
    """

    name: str
    train: Items
    y_train: NDArray[np.int64]
    test: Items
    y_test: NDArray[np.int64]
    class_names: tuple[str, ...]
    source: str = ""
    layout: str = ""
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        if self.train.kind != self.test.kind:
            raise InputError(f"test must hold {self.train.kind}s like train, got {self.test.kind}s")
        for part in ("train", "test"):
            items, labels = getattr(self, part), getattr(self, f"y_{part}")
            if not isinstance(labels, np.ndarray) or labels.dtype != np.int64 or labels.shape != (len(items),):
                raise LabelError(
                    f"y_{part} must hold {len(items)} integers of type int64, "
                    f"got shape {getattr(labels, 'shape', ())} of {getattr(labels, 'dtype', type(labels).__name__)}"
                )
            if len(labels) == 0:
                if part == "test" and self.whole:
                    continue
                raise InputError(f"{part} must hold at least one sample, got none")
            if part == "test" and self.whole:
                raise InputError(f"test must be empty where whole is true, got {len(labels)} samples")
            if labels.min() < 0 or labels.max() >= len(self.class_names):
                raise LabelError(
                    f"y_{part} must be positions in the {len(self.class_names)} class names, "
                    f"got values from {labels.min()} to {labels.max()}"
                )
        empty = np.flatnonzero(self.train_counts == 0)
        if len(empty):
            names = ", ".join(self.class_names[int(row)] for row in empty[:5])
            raise LabelError(f"every class must have a training sample, got none for {names}")

    @property
    def kind(self) -> Kind:
        """What the samples are: ``"image"`` or ``"text"``."""
        return self.train.kind

    @property
    def n_classes(self) -> int:
        """Classes in the training set."""
        return len(self.class_names)

    @cached_property
    def train_counts(self) -> NDArray[np.int64]:
        """Training samples of every class."""
        return np.bincount(self.y_train, minlength=self.n_classes)

    @cached_property
    def test_counts(self) -> NDArray[np.int64]:
        """Test samples of every class."""
        return np.bincount(self.y_test, minlength=self.n_classes)

    def features(
        self,
        X_train: NDArray[Any],
        X_test: NDArray[Any],
        *,
        train_rows: NDArray[np.int64] | None = None,
        test_rows: NDArray[np.int64] | None = None,
    ) -> FeatureSet:
        """Return the features that a backbone computed from the samples, with their labels.

        Parameters
        ----------
        X_train, X_test : ndarray
            Features, one row per sample.
        train_rows, test_rows : ndarray of int, optional
            The samples that they belong to, where unreadable ones were left out.

        """
        return FeatureSet(
            name=self.name,
            X_train=X_train,
            y_train=self.y_train if train_rows is None else self.y_train[train_rows],
            X_test=X_test,
            y_test=self.y_test if test_rows is None else self.y_test[test_rows],
            class_names=self.class_names,
            whole=self.whole,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the samples' names and sizes and of the labels, the same on every machine; no image is read."""
        digest = hashlib.blake2b(digest_size=8)
        for part in (self.train.identity(), self.test.identity(), *self.class_names):
            digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
        for labels in (self.y_train, self.y_test):
            digest.update(f"{labels.shape}".encode())
            digest.update(labels.astype("<i8", copy=False).tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "kind": self.kind,
            "layout": self.layout,
            "n_train": len(self.y_train),
            "n_test": len(self.y_test),
            "n_classes": self.n_classes,
        }
