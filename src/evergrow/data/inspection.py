"""Reports on data sets: kind, classes and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.data.features import FeatureSet
from evergrow.data.labelled import LabelledItems, listed
from evergrow.data.rawset import RawSet

FEW = 5
"""Classes with fewer training samples than this are worth a word."""


@dataclass(frozen=True)
class DataReport:
    """A report on a data set, in plain values.

    Parameters
    ----------
    name, kind, layout, source : str
        Name, ``"image"``, ``"text"`` or ``"features"``, layout, and where it came from.
    n_classes, n_train, n_test : int
        Counts.
    n_features : int
        Width of the features; 0 for raw data.
    smallest, largest : list of (str, int, int)
        Classes with the fewest and the most training samples: name, training and test samples.
    cautions : list of str
        What is probably not meant.
    notes : list of str
        What is worth knowing.
    """

    name: str
    kind: str
    layout: str
    source: str
    n_classes: int
    n_train: int
    n_test: int
    n_features: int
    smallest: list[tuple[str, int, int]]
    largest: list[tuple[str, int, int]]
    cautions: list[str]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def inspect_data(data: RawSet | FeatureSet, *, most: int = 3) -> DataReport:
    """Return a report on a data set: its kind, classes and counts.

    Parameters
    ----------
    data : RawSet or FeatureSet
        As :func:`load_data` gave it.
    most : int
        How many of the smallest and largest classes to name.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.core.items import Texts
    >>> from evergrow.data import RawSet, inspect_data
    >>> y = np.array([0, 1, 1])
    >>> texts = Texts(("a", "b", "c"))
    >>> report = inspect_data(RawSet("toy", texts, y, texts, y, ("one", "two")))
    >>> report.smallest[0], report.cautions
    (('one', 1, 1), ["classes with fewer than 5 training samples: 2 of 2 ('one', 'two')"])
    """
    names, train, test = _class_counts(data)
    order = np.argsort(train, kind="stable")
    rows = [(names[int(row)], int(train[row]), int(test[row])) for row in order]
    raw = data if isinstance(data, RawSet) else None
    return DataReport(
        name=data.name,
        kind=raw.kind if raw else "features",
        layout=raw.layout if raw else "arrays",
        source=raw.source if raw else "",
        n_classes=data.n_classes,
        n_train=len(data.y_train),
        n_test=len(data.y_test),
        n_features=0 if isinstance(data, RawSet) else int(data.X_train.shape[1]),
        smallest=rows[:most],
        largest=rows[::-1][:most],
        cautions=[*(raw.cautions if raw else ()), *_few(names, train)],
        notes=list(raw.notes) if raw else [],
    )


def inspect_reading(reading: LabelledItems, *, name: str, source: str, most: int = 3) -> DataReport:
    """Return a report on data as they were read, whose test set may have classes of its own.

    Parameters
    ----------
    reading : LabelledItems
        As a reader gave it.
    name, source : str
        What to call the data, and where they came from.
    most : int
        How many of the smallest and largest classes to name.
    """
    parts = [
        Counter(reading.names.get(label, str(label)) if isinstance(label, int) else label for label in labels)
        for labels in (reading.train_labels, reading.test_labels)
    ]
    rows = [(label, parts[0][label], parts[1][label]) for label in sorted(parts[0] | parts[1])]
    rows.sort(key=lambda row: row[1])
    strange = sorted(set(parts[1]) - set(parts[0]))
    said = [f"classes in the test set only: {listed(strange)}; they can be told apart, not learned"] if strange else []
    return DataReport(
        name=name,
        kind=reading.train.kind,
        layout=reading.layout,
        source=source,
        n_classes=len(parts[0]),
        n_train=len(reading.train),
        n_test=0 if reading.test is None else len(reading.test),
        n_features=0,
        smallest=rows[:most],
        largest=rows[::-1][:most],
        cautions=[*reading.cautions, *said],
        notes=list(reading.notes),
    )


def _few(names: list[str], train: NDArray[np.int64]) -> list[str]:
    """Name small classes."""
    few = [name for name, count in zip(names, train, strict=True) if count < FEW]
    if not few:
        return []
    return [f"classes with fewer than {FEW} training samples: {len(few)} of {len(names)} ({listed(few)})"]


def _class_counts(data: RawSet | FeatureSet) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    if isinstance(data, RawSet):
        return list(data.class_names), data.train_counts, data.test_counts
    classes, train = np.unique(data.y_train, return_counts=True)
    test = np.bincount(np.searchsorted(classes, data.y_test), minlength=len(classes))
    known = data.class_names
    return (
        [
            known[int(label)] if known and classes.dtype.kind != "U" and 0 <= int(label) < len(known) else str(label)
            for label in classes
        ],
        train,
        test,
    )
