"""Data sets with a training and a test part, and reports on them."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from evergrow.core.errors import DataWarning, FileFormatError
from evergrow.core.escaping import quote_names
from evergrow.core.files import StrPath
from evergrow.core.validation import with_changes
from evergrow.data.class_labels import (
    check_test_classes,
    spelling_cautions,
    stratified_split,
)
from evergrow.data.inputs import name_of, read, warn_about
from evergrow.data.items import Dataset
from evergrow.data.readers import DEFAULTS, DataOptions

FEW = 5
"""Classes with fewer training samples than this get a caution."""


# -- data sets with a test part --------------------------------------------------------


def load_data(
    source: StrPath, options: DataOptions | None = None, **settings: Any
) -> Dataset:
    r"""Load labelled images, texts or features with a training and a test part.

    Images are not decoded.

    Parameters
    ----------
    source : str or path-like
        What :func:`read` accepts.
    options : DataOptions, optional
        How to read the data. If there is no test part, one is drawn unless
        ``test_size`` is 0.
    **settings
        Fields of :class:`DataOptions`; they override ``options``.

    Returns
    -------
    Dataset

    Warns
    -----
    DataWarning
        Once, with all probable mistakes, such as classes with few samples.

    Raises
    ------
    DatasetNotFoundError
        If there is no such data.
    FileFormatError, InputError, LabelError
        If the data is inconsistent; the message names the file, line or class.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data import load_data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "mail.csv")
    ...     _ = table.write_text("text,label\n" + "buy now,spam\nsee you,ham\n" * 10)
    ...     data = load_data(table, test_size=0.3)
    ...     undivided = load_data(table, test_size=0)
    >>> data.class_names, len(data.train), len(data.test)
    (('ham', 'spam'), 14, 6)
    >>> len(undivided.train), undivided.test
    (20, None)
    """
    chosen = with_changes(options or DEFAULTS, settings, "data setting")
    text = os.fspath(source)
    data = complete_data(read(text, chosen).dataset(), text, chosen)
    warn_about(data.name, [*data.cautions, *count_cautions(data)])
    return data


def load_features(name: StrPath) -> Dataset:
    """Load features by path, or by name from the search path.

    Parameters
    ----------
    name : str or path-like
        Path of an ``.npz`` file, or a name such as ``"clinc150_minilm"`` that is looked
        up in :func:`search_path`. The file holds ``X_train, y_train, X_test, y_test``,
        and optionally ``classes``, the names of labels 0, 1, ... Without a test part
        ``X_test`` and ``y_test`` are empty or missing. Pickled arrays are refused.

    Returns
    -------
    Dataset

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    FileFormatError
        If the file is damaged or lacks an array.
    LabelError
        If a class occurs in the test part only.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow.data import load_features
    >>> X, y = np.eye(4), np.array([0, 0, 1, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/toy.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    ...     load_features(f"{folder}/toy.npz").n_classes
    2
    """
    text = os.fspath(name)
    found = read(text).dataset()
    if found.kind != "features":
        raise FileFormatError(
            f"{text} must hold labelled features; load other data with load_data"
        )
    return complete_data(found, text, DataOptions(test_size=0))


def complete_data(data: Dataset, source: str, options: DataOptions) -> Dataset:
    """Return a data set with its name, source and cautions, and with a test part.

    The test part is drawn if there is none, unless ``options.test_size`` is 0.

    Raises
    ------
    LabelError
        If a class occurs in the test part only.
    """
    cautions = list(data.cautions)
    if data.test is not None:
        test_labels = data.test.required_labels().tolist()
        check_test_classes(data.class_names, test_labels)
        tested = set(test_labels)
        untested = [name for name in data.class_names if name not in tested]
        if untested:
            cautions.append(f"classes without a test sample: {quote_names(untested)}")
    elif options.test_size > 0:
        data, single = _with_test_part(data, options)
        if single:
            cautions.append(
                "classes with one sample are in the training set only: "
                f"{quote_names(single)}"
            )
    else:
        note = "no test set: all samples are in the training set"
        data = replace(data, notes=(*data.notes, note))
    cautions += spelling_cautions(data.class_names)
    return replace(data, name=name_of(source), source=source, cautions=tuple(cautions))


def _with_test_part(data: Dataset, options: DataOptions) -> tuple[Dataset, list[str]]:
    """Return data with a test part drawn from the training part, and a note about it.

    Also return the classes with one sample, which stays in training.
    """
    train_rows, test_rows, single = stratified_split(
        data.y_train, data.class_names, options.test_size, options.seed
    )
    note = (
        f"test set drawn here: {options.test_size:g} of each class, seed {options.seed}"
    )
    split = replace(
        data,
        train=data.train.take(train_rows),
        test=data.train.take(test_rows),
        notes=(*data.notes, note),
        origin="",
    )
    return split, single


# -- reports ---------------------------------------------------------------------------


def class_counts(data: Dataset) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of training samples and of test samples, by class name."""
    test: Counter[str] = Counter()
    if data.test is not None:
        test.update(data.test.required_labels().tolist())
    return Counter(data.train.required_labels().tolist()), test


def count_cautions(data: Dataset) -> list[str]:
    """Return cautions about classes without training samples, and with few of them.

    Few are fewer than :data:`FEW`.
    """
    train, test = class_counts(data)
    cautions = []
    test_only = sorted({*test} - {*train})
    if test_only:
        cautions.append(
            f"classes in the test set only: {quote_names(test_only)}; they can be "
            "detected as unknown, not learned"
        )
    ordered = dict.fromkeys([*data.class_names, *sorted(train)])
    few = [name for name in ordered if 0 < train[name] < FEW]
    if few:
        cautions.append(
            f"classes with fewer than {FEW} training samples: {len(few)} of "
            f"{len(train)} ({quote_names(few)})"
        )
    return cautions


@dataclass(frozen=True)
class DataReport:
    """A report on a data set. All fields are JSON values.

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
        """Return the fields by name."""
        return asdict(self)


def inspect_data(
    data: Dataset | StrPath,
    options: DataOptions | None = None,
    *,
    most: int = 3,
) -> DataReport:
    """Return a report on data: kind, classes, counts and probable mistakes.

    Parameters
    ----------
    data : Dataset, str or path-like
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
    return DataReport(
        name=data.name,
        kind=data.kind,
        layout=data.layout,
        source=data.source,
        n_classes=len(train),
        n_train=train.total(),
        n_test=test.total(),
        n_features=data.train.n_features,
        smallest=rows[:most],
        largest=rows[::-1][:most],
        cautions=[*data.cautions, *count_cautions(data)],
        notes=list(data.notes),
    )


def _read_quietly(source: str, options: DataOptions) -> Dataset:
    """Read data without warnings, because the report repeats them.

    Classes that are in the test part only are accepted, because the report names them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = read(source, options).dataset()
        _, test = class_counts(data)
        if not test.keys() <= set(data.class_names):
            return replace(data, name=name_of(source), source=source)
        return complete_data(data, source, options)
