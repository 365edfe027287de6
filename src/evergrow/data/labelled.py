"""Labelled items as readers return them, and the way to a :class:`RawSet`: a test set, and integer labels."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import LabelError
from evergrow.core.items import Items
from evergrow.core.seeding import derive_seed
from evergrow.data.options import DataOptions
from evergrow.data.rawset import RawSet

Label = str | int


@dataclass
class LabelledItems:
    """Items and labels as a reader returns them: labels as they are written, a test set only where there is one.

    Parameters
    ----------
    layout : str
        How it was laid out.
    train : Items
        Training samples, or all samples where there is no test set.
    train_labels : sequence of str or int
        Their labels; strings are numbered in sorted order, integers in theirs.
    test : Items, optional
        Test samples; None asks for a split.
    test_labels : sequence of str or int
        Their labels.
    names : dict of int to str
        Names of integer labels, where they are known.
    notes, cautions : list of str
        What is worth knowing, and what is probably not meant.
    """

    layout: str
    train: Items
    train_labels: Sequence[Label]
    test: Items | None = None
    test_labels: Sequence[Label] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)


def as_rawset(labelled: LabelledItems, *, name: str, source: str, options: DataOptions) -> RawSet:
    """Return the data set of labelled items: classes numbered, a test set drawn where the options want that."""
    notes, cautions = list(labelled.notes), list(labelled.cautions)
    classes, y_train, y_test = number_labels(labelled.train_labels, labelled.test_labels)
    train, test, whole = labelled.train, labelled.test, False
    if test is None and options.split == "none":
        test, whole = labelled.train.take(np.empty(0, dtype=np.int64)), True
        notes.append("no test set: all samples are in the training set")
    elif test is None:
        keep, hold, single = stratified_split(y_train, [str(label) for label in classes], options)
        train, test = labelled.train.take(keep), labelled.train.take(hold)
        y_train, y_test = y_train[keep], y_train[hold]
        notes.append(f"test set drawn here: {options.test_size:g} of each class, seed {options.seed}")
        if single:
            cautions.append(f"classes with one sample are in the training set only: {listed(single)}")
    class_names = tuple(labelled.names.get(label, str(label)) if isinstance(label, int) else label for label in classes)
    untested = np.setdiff1d(np.arange(len(class_names)), y_test)
    if len(untested) and labelled.test is not None:
        cautions.append(f"classes without a test sample: {listed(class_names[int(row)] for row in untested)}")
    cautions += _alike(class_names)
    return RawSet(
        name=name,
        train=train,
        y_train=y_train,
        test=test,
        y_test=y_test,
        class_names=class_names,
        source=source,
        layout=labelled.layout,
        whole=whole,
        notes=tuple(notes),
        cautions=tuple(cautions),
    )


def number_labels(
    train: Sequence[Label], test: Sequence[Label]
) -> tuple[list[Label], NDArray[np.int64], NDArray[np.int64]]:
    """Return the classes in order and both sets of labels as positions in them.

    Raises
    ------
    LabelError
        If a test label does not occur in training; the message says so if only its spelling differs.

    Examples
    --------
    >>> from evergrow.data.labelled import number_labels
    >>> number_labels(["dog", "cat", "dog"], ["cat"])
    (['cat', 'dog'], array([1, 0, 1]), array([0]))
    """
    if any(isinstance(label, str) for label in train) or any(isinstance(label, str) for label in test):
        train, test = [str(label) for label in train], [str(label) for label in test]
    classes: list[Label] = sorted(set(train))  # all strings or all integers by now
    check_test_classes(classes, set(test))
    position = {label: row for row, label in enumerate(classes)}
    codes = [np.fromiter((position[label] for label in part), np.int64, len(part)) for part in (train, test)]
    return classes, codes[0], codes[1]


def check_test_classes(train: Iterable[Label], test: Iterable[Label]) -> None:
    """Raise :class:`LabelError` unless every class of the test set is in the training set."""
    unknown = sorted({str(label) for label in test} - {str(label) for label in train})
    if not unknown:
        return
    spellings = {_folded(str(label)): str(label) for label in train}
    for label in unknown:
        other = spellings.get(_folded(label))
        if other is not None:
            raise LabelError(
                f"classes must be spelled alike in training and test set, got {other!r} in training and "
                f"{label!r} in test: they differ only in upper and lower case or in how accents are stored; "
                "rename one"
            )
    raise LabelError(
        f"every class of the test set must be in the training set, got {listed(unknown)} in the test set only"
    )


def stratified_split(
    codes: NDArray[np.int64], names: Sequence[str], options: DataOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Split rows class by class: at least one to each side where there are two.

    Each class is drawn by its name, so that a new class leaves the split of the others as it was.

    Returns
    -------
    train_rows, test_rows : ndarray of int
        Sorted.
    single : list of str
        Classes with one sample, which went to training.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data import DataOptions
    >>> from evergrow.data.labelled import stratified_split
    >>> train, test, single = stratified_split(np.array([0, 0, 0, 0, 0, 1]), ["a", "b"], DataOptions())
    >>> len(train), len(test), single
    (5, 1, ['b'])
    """
    in_test = np.zeros(len(codes), dtype=bool)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    single = []
    for name, rows in zip(names, np.split(order, ends[:-1]), strict=True):
        if len(rows) == 1:
            single.append(name)
        if len(rows) >= 2:
            share = min(max(round(options.test_size * len(rows)), 1), len(rows) - 1)
            rng = np.random.default_rng(derive_seed(options.seed, "data", "split", ascii(name)))
            in_test[rng.permutation(rows)[:share]] = True
    if not in_test.any():
        raise LabelError(
            "at least one class must have two samples for a test set to be drawn, got one of each; "
            "add samples or bring a test set"
        )
    return np.flatnonzero(~in_test), np.flatnonzero(in_test), single


def integers(labels: Sequence[str]) -> Sequence[Label]:
    """Return labels as integers if all are written as such, so that 10 comes after 9.

    Examples
    --------
    >>> from evergrow.data.labelled import integers
    >>> integers(["10", "9"]), integers(["10", "nine"]), integers(["007"])
    ([10, 9], ['10', 'nine'], ['007'])
    """
    plain = {}
    for label in set(labels):
        try:
            plain[label] = int(label)
        except ValueError:
            return labels
        if str(plain[label]) != label:
            return labels
    return [plain[label] for label in labels]


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first few names and how many more there are.

    Examples
    --------
    >>> from evergrow.data.labelled import listed
    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    every = [repr(name) for name in names]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def shown(text: str) -> str:
    """Return a name that any terminal and file can take: bytes that are no UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold().strip()


def _alike(names: Sequence[str]) -> list[str]:
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        other = seen.setdefault(_folded(name), name)
        if other != name:
            pairs.append(f"{other} / {name}")
    return [f"classes that differ only in spelling: {listed(pairs)}"] if pairs else []
