"""Reports on data sets: kind, classes, counts and probable mistakes."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

from evergrow.core.errors import DataWarning
from evergrow.data.arrays import FeatureSet
from evergrow.data.items import Dataset
from evergrow.data.load import (
    class_counts,
    complete_data,
    count_cautions,
    name_of,
    read,
)
from evergrow.data.readers import DataOptions


@dataclass(frozen=True)
class DataReport:
    """A report on a data set, in plain values.

    Parameters
    ----------
    name, kind, layout, source : str
        Name of the data set, ``"image"``, ``"text"`` or ``"features"``, name of the
        reader, and path or address.
    n_classes, n_train, n_test : int
        Number of classes, training samples and test samples.
    n_features : int
        Number of features; 0 for images and texts.
    smallest, largest : list of (str, int, int)
        Classes with the fewest and the most training samples: name, training samples,
        test samples.
    cautions, notes : list of str
        Probable mistakes in the data, and remarks for the user.
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
        """Return the fields as values for JSON."""
        return asdict(self)


def inspect_data(
    data: Dataset | FeatureSet | str | os.PathLike[str],
    options: DataOptions | None = None,
    *,
    most: int = 3,
) -> DataReport:
    """Return a report on data: kind, classes, counts and probable mistakes.

    Parameters
    ----------
    data : Dataset, FeatureSet, str or path-like
        A result of :func:`load_data`, or what :func:`read` accepts. The test part of a
        path can have classes that are not in training.
    options : DataOptions, optional
        How to read a path. By default no test part is drawn.
    most : int
        Number of smallest and largest classes to list.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data import Dataset, inspect_data
    >>> data = Dataset.of(Texts(("a", "b", "c")), ["one", "two", "two"])
    >>> report = inspect_data(data)
    >>> report.smallest[0]
    ('one', 1, 0)
    >>> report.cautions
    ["classes with fewer than 5 training samples: 2 of 2 ('one', 'two')"]
    """
    if isinstance(data, (str, os.PathLike)):
        data = _read_quietly(os.fspath(data), options or DataOptions(test_size=0))
    train, test = class_counts(data)
    ordered = dict.fromkeys([*data.class_names, *sorted({*train, *test})])
    names = [name for name in ordered if train[name] + test[name]]
    rows = [(name, train[name], test[name]) for name in names]
    rows.sort(key=lambda row: row[1])
    n_features = data.X_train.shape[1] if isinstance(data, FeatureSet) else 0
    return DataReport(
        name=data.name,
        kind=data.kind,
        layout=data.layout,
        source=data.source,
        n_classes=len(train),
        n_train=train.total(),
        n_test=test.total(),
        n_features=int(n_features),
        smallest=rows[:most],
        largest=rows[::-1][:most],
        cautions=[*data.cautions, *count_cautions(data)],
        notes=list(data.notes),
    )


def _read_quietly(source: str, options: DataOptions) -> Dataset | FeatureSet:
    """Read data without warnings, because the report repeats them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = read(source, options).dataset()
        if isinstance(data, Dataset):
            _, test = class_counts(data)
            if not test.keys() <= set(data.class_names):
                return replace(data, name=name_of(source), source=source)
        return complete_data(data, source, options)
