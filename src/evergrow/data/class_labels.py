"""Class labels of data sets: conversion to names, checks, and a split per class."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, LabelError
from evergrow.core.escaping import quote_names
from evergrow.core.seeding import derive_seed

Label = str | int

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


# -- conversion ------------------------------------------------------------------------


def class_labels(
    labels: Sequence[Any], names: Mapping[int, str], title: str
) -> NDArray[np.str_]:
    """Return labels read from a file as class names.

    Parameters
    ----------
    labels : sequence
        Strings or integers.
    names : mapping of int to str
        Names of integer labels; empty if the file has none.
    title : str
        The file, for error messages.

    Raises
    ------
    InputError
        If a label is missing, or an integer has no name although others have one.
    """
    found = []
    for row, value in enumerate(labels):
        if isinstance(value, int) and names:
            if value not in names:
                raise InputError(
                    f"{title}: labels must be among the {len(names)} named classes, "
                    f"got {value}"
                )
            value = names[value]
        text = str(value) if isinstance(value, (str, int)) else ""
        if not text.strip():
            raise InputError(
                f"{title}: every sample must have a label, got {value!r} in row {row}"
            )
        found.append(text)
    return np.array(found, dtype=np.str_)


def as_integers(labels: Sequence[str]) -> Sequence[Label]:
    """Return labels as integers if all are written as such, or else unchanged.

    Integers sort by value: 10 after 9.

    Examples
    --------
    >>> from evergrow.data.class_labels import as_integers
    >>> as_integers(["10", "9"]), as_integers(["10", "nine"]), as_integers(["007"])
    ([10, 9], ['10', 'nine'], ['007'])
    """
    if all(_INTEGER.fullmatch(label) for label in set(labels)):
        return [int(label) for label in labels]
    return labels


# -- checks ----------------------------------------------------------------------------


def check_test_classes(train: Iterable[str], test: Iterable[str]) -> None:
    """Raise :class:`LabelError` if a test class is missing from the training classes.

    The message names a training class that differs in spelling only, if there is one.
    """
    unknown = sorted(set(test) - set(train))
    if not unknown:
        return
    by_folded = {_folded(name): name for name in train}
    for name in unknown:
        similar = by_folded.get(_folded(name))
        if similar is not None:
            raise LabelError(
                "classes must be spelled the same in training and test set, got "
                f"{similar!r} and {name!r}, which differ in case or in the encoding "
                "of accents: rename one"
            )
    raise LabelError(
        "every class of the test set must be in training, got "
        f"{quote_names(unknown)} in the test set only"
    )


def spelling_cautions(names: Sequence[str]) -> list[str]:
    """Return a caution if classes differ only in case, blanks or encoded accents."""
    first_with: dict[str, str] = {}
    pairs = []
    for name in names:
        other = first_with.setdefault(_folded(name), name)
        if other != name:
            pairs.append(f"{other} / {name}")
    if pairs:
        return [f"classes that differ only in spelling: {quote_names(pairs)}"]
    return []


def _folded(name: str) -> str:
    """Return a name without differences of case, outer blanks and encoded accents."""
    return unicodedata.normalize("NFC", name).casefold().strip()


# -- split -----------------------------------------------------------------------------


def stratified_split(
    codes: NDArray[np.int64], names: Sequence[str], test_size: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Split rows into training and test rows, class by class.

    A class with two or more samples has at least one on each side. The draw of a class
    depends on its name only, so a new class does not change the split of the others.

    Parameters
    ----------
    codes : ndarray of int of shape (n,)
        Class of each row as an index into ``names``.
    names : sequence of str
        Class names.
    test_size : float
        Fraction of each class that is drawn for testing.
    seed : int
        Seed of the draw.

    Returns
    -------
    train_rows, test_rows : ndarray of int
        Sorted.
    single : list of str
        Classes with one sample, which is used for training.

    Raises
    ------
    LabelError
        If every class has one sample only.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.class_labels import stratified_split
    >>> codes = np.array([0, 0, 0, 0, 0, 1])
    >>> train, test, single = stratified_split(codes, ["a", "b"], 0.2, seed=1993)
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
            n_test = min(max(round(test_size * len(rows)), 1), len(rows) - 1)
            rng = np.random.default_rng(derive_seed(seed, "data", "split", ascii(name)))
            in_test[rng.permutation(rows)[:n_test]] = True
    if not in_test.any():
        raise LabelError(
            "No test set can be drawn: every class has one sample only. "
            "Add samples or provide a test set."
        )
    return np.flatnonzero(~in_test), np.flatnonzero(in_test), single
