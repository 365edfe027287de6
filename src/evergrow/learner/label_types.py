"""Labels as they came: a model keeps classes under names, and answers in the kind that was learned.

A name is ``str`` of the label, so that a model file, the command line and exports know
one kind of class only. The kind stands beside it: names themselves, integers or
booleans. What is read from files has names, and fits a model of any kind that can read
them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DataWarning, FewSamplesWarning, LabelError
from evergrow.core.registry import nearest

_TRUTHS = {"False": False, "True": True}


def can_read(kind: str, name: str) -> bool:
    """Return whether a name is that of a label of this kind.

    Examples
    --------
    >>> from evergrow.learner.label_types import can_read
    >>> can_read("integer", "-3"), can_read("integer", "03"), can_read("boolean", "True"), can_read("name", "03")
    (True, False, True, True)
    """
    if kind == "name":
        return True
    if kind == "boolean":
        return name in _TRUTHS
    digits = name.removeprefix("-")
    whole = digits.isascii() and digits.isdecimal() and len(digits) <= 19
    return whole and str(int(name)) == name and -(2**63) <= int(name) < 2**63


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`LabelError` with the nearest names unless all are classes that were learned.

    Examples
    --------
    >>> from evergrow.learner.label_types import require_known
    >>> require_known(["crwo"], ["crow", "owl"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.LabelError: There is no class 'crwo'; nearest: 'crow'.
    """
    for name in names:
        if name not in known:
            raise LabelError(
                f"There is no class {name!r}; nearest: {nearest(name, known)}."
            )


def as_labels(names: Iterable[str], kind: str) -> NDArray[Any]:
    """Return names as labels of a kind.

    Examples
    --------
    >>> from evergrow.learner.label_types import as_labels
    >>> as_labels(["3", "10"], "integer").tolist(), as_labels(["False"], "boolean").tolist()
    ([3, 10], [False])
    """
    if kind == "integer":
        return np.array([int(name) for name in names], dtype=np.int64)
    if kind == "boolean":
        return np.array([_TRUTHS[name] for name in names], dtype=np.bool_)
    return np.array(list(names), dtype=np.str_)


def common_kind(
    model: str | None,
    batch: str | None,
    names: NDArray[np.str_],
    known: NDArray[np.str_],
) -> str:
    """Return the kind of a model's labels after a batch, or raise :class:`LabelError` where they do not go together.

    Parameters
    ----------
    model : str or None
        The kind so far; None for a model that has learned nothing.
    batch : str or None
        The kind of the batch; None for names that were read from a file.
    names, known : ndarray of str
        Its labels, and the classes so far.

    Warns
    -----
    DataWarning
        Where numbers become new classes of a model of names, as they always did.
    """
    if model is None:
        return batch or "name"
    if model == "name" and batch == "integer":
        new = np.setdiff1d(names, known).tolist()
        if new:
            told = f"they are learned as names, the first as {new[0]!r}"
            warnings.warn(
                f"labels are integers where the model has names: {told}",
                DataWarning,
                stacklevel=3,
            )
        return model
    readable = batch is None and all(can_read(model, name) for name in names.tolist())
    if batch != model and not readable:
        if batch is not None:
            strange = names[0]
        else:
            strange = next(name for name in names if not can_read(model, str(name)))
        raise LabelError(
            f"labels must be {model}s as before, got {batch or 'name'}s ({str(strange)!r})"
        )
    return model


# -- warnings about classes ------------------------------------------------------------


def warn_alike(known: NDArray[np.str_], labels: NDArray[np.str_]) -> None:
    """Warn of new classes that differ from known ones, or from each other, only in case or blanks."""
    spelled = {name.casefold().strip(): name for name in known.tolist()}
    for name in np.setdiff1d(labels, known).tolist():
        other = spelled.setdefault(name.casefold().strip(), name)
        if other != name:
            warnings.warn(
                f"class {name!r} is new but differs from {other!r} only in upper and lower case or blanks",
                DataWarning,
                stacklevel=3,
            )


ENOUGH_SAMPLES = 10
"""Samples from which on a class is recognised about as well as one with many."""


def few_samples(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the classes that are not to be trusted yet, the rarest first, with their counts.

    They have fewer than ten samples, and fewer than a fifth of what a class has that is
    not so poor.

    Parameters
    ----------
    counts : mapping of str to int
        Samples of each class.

    Examples
    --------
    >>> from evergrow.learner.label_types import few_samples
    >>> few_samples({"ant": 100, "bee": 140, "cat": 9, "dog": 2})
    {'dog': 2, 'cat': 9}
    >>> few_samples({"ant": 30, "bee": 30, "cat": 9, "dog": 2}), few_samples({"ant": 9, "bee": 1})
    ({'dog': 2}, {})
    """
    usual = _usual(counts)
    few = {
        name: count
        for name, count in counts.items()
        if count < ENOUGH_SAMPLES and 5 * count < usual
    }
    return dict(sorted(few.items(), key=lambda entry: (entry[1], entry[0])))


def warn_few(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Warn of classes that have few samples beside others after a change, unless all of them had before."""
    few = few_samples(after)
    if few.keys() <= few_samples(before).keys():
        return
    usual = _usual(after)
    named = [f"{name}: {count}" for name, count in list(few.items())[:5]] + ["..."] * (
        len(few) > 5
    )
    have, they = ("has", "it is") if len(few) == 1 else ("have", "they are")
    bar = min(ENOUGH_SAMPLES, math.ceil(usual / 5))
    warnings.warn(
        f"{len(few)} of {len(after)} classes {have} fewer than {bar} samples beside a median "
        f"of {usual:g} ({', '.join(named)}): {they} recognised less surely; teach at least {ENOUGH_SAMPLES} of each",
        FewSamplesWarning,
        stacklevel=3,
    )


def _usual(counts: Mapping[str, int]) -> float:
    """Return the median count of classes that have enough; 0 where none has."""
    enough = [count for count in counts.values() if count >= ENOUGH_SAMPLES]
    if enough:
        return float(np.median(enough))
    return 0.0
