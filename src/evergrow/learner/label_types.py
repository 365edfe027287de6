"""Label types: models store class names and predict labels of the learned type.

A class name is ``str(label)``, so that model files, the command line and exports only
handle strings. The model also stores the type of its labels: strings ("name"),
integers or booleans. Labels read from files are strings; a model of integers or
booleans accepts them if they can be converted.
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
    """Return whether a class name can be converted to this label type.

    Examples
    --------
    >>> from evergrow.learner.label_types import can_read
    >>> can_read("integer", "-3"), can_read("integer", "03")
    (True, False)
    >>> can_read("boolean", "True"), can_read("name", "03")
    (True, True)
    """
    if kind == "name":
        return True
    if kind == "boolean":
        return name in _TRUTHS
    digits = name.removeprefix("-")
    whole = digits.isascii() and digits.isdecimal() and len(digits) <= 19
    return whole and str(int(name)) == name and -(2**63) <= int(name) < 2**63


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`LabelError` unless all names are learned classes.

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
    """Return class names as labels of a type, "name", "integer" or "boolean".

    Examples
    --------
    >>> from evergrow.learner.label_types import as_labels
    >>> as_labels(["3", "10"], "integer").tolist()
    [3, 10]
    >>> as_labels(["False"], "boolean").tolist()
    [False]
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
    """Return the label type of a model after it learns a batch.

    Parameters
    ----------
    model : {"name", "integer", "boolean"} or None
        Current label type; None if nothing was learned.
    batch : {"name", "integer", "boolean"} or None
        Label type of the batch; None for strings read from a file.
    names, known : ndarray of str
        Class names of the rows of the batch, and the learned classes.

    Raises
    ------
    LabelError
        If the types differ and the labels cannot be converted.

    Warns
    -----
    DataWarning
        If integers become new classes of a model of strings.
    """
    if model is None:
        return batch or "name"
    if model == "name" and batch == "integer":
        new = np.setdiff1d(names, known).tolist()
        if new:
            warnings.warn(
                "labels are integers but the model has names: they are learned as "
                f"names, the first as {new[0]!r}",
                DataWarning,
                stacklevel=3,
            )
        return model
    if batch == model:
        return model
    refused = names.tolist()
    if batch is None:
        refused = [name for name in refused if not can_read(model, name)]
    if refused:
        raise LabelError(
            f"labels must be {model}s as before, got {batch or 'name'}s "
            f"({refused[0]!r})"
        )
    return model


# -- warnings --


def warn_alike(known: NDArray[np.str_], labels: NDArray[np.str_]) -> None:
    """Warn of new classes that differ from others only in case or blanks."""
    spelled = {name.casefold().strip(): name for name in known.tolist()}
    for name in np.setdiff1d(labels, known).tolist():
        other = spelled.setdefault(name.casefold().strip(), name)
        if other != name:
            warnings.warn(
                f"class {name!r} is new but differs from {other!r} only in upper and "
                "lower case or blanks",
                DataWarning,
                stacklevel=3,
            )


ENOUGH_SAMPLES = 10
"""With this many samples, a class is recognised about as well as with many."""


def few_samples(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the classes with few samples and their counts, the rarest first.

    These classes have fewer than ten samples, and fewer than a fifth of the median of
    the other classes.

    Parameters
    ----------
    counts : mapping of str to int
        Number of samples per class.

    Examples
    --------
    >>> from evergrow.learner.label_types import few_samples
    >>> few_samples({"ant": 100, "bee": 140, "cat": 9, "dog": 2})
    {'dog': 2, 'cat': 9}
    >>> few_samples({"ant": 30, "bee": 30, "cat": 9, "dog": 2})
    {'dog': 2}
    >>> few_samples({"ant": 9, "bee": 1})
    {}
    """
    usual = _usual(counts)
    few = {
        name: count
        for name, count in counts.items()
        if count < ENOUGH_SAMPLES and 5 * count < usual
    }
    return dict(sorted(few.items(), key=lambda entry: (entry[1], entry[0])))


def warn_few(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Warn if a class has few samples after a change and had not before.

    Parameters
    ----------
    before, after : mapping of str to int
        Number of samples per class, before and after the change.
    """
    few = few_samples(after)
    if few.keys() <= few_samples(before).keys():
        return
    usual = _usual(after)
    named = [f"{name}: {count}" for name, count in list(few.items())[:5]]
    if len(few) > 5:
        named.append("...")
    have, they = ("has", "it is") if len(few) == 1 else ("have", "they are")
    bar = min(ENOUGH_SAMPLES, math.ceil(usual / 5))
    warnings.warn(
        f"{len(few)} of {len(after)} classes {have} fewer than {bar} samples beside a "
        f"median of {usual:g} ({', '.join(named)}): {they} recognised less surely; "
        f"teach at least {ENOUGH_SAMPLES} of each",
        FewSamplesWarning,
        stacklevel=3,
    )


def _usual(counts: Mapping[str, int]) -> float:
    """Return the median count of classes with enough samples; 0 without any."""
    enough = [count for count in counts.values() if count >= ENOUGH_SAMPLES]
    if enough:
        return float(np.median(enough))
    return 0.0
