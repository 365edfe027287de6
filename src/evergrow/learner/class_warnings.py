"""Warnings about the classes of what is learned: too few samples, names that are nearly alike."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DataWarning, FewSamplesWarning


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


ENOUGH = 10
"""Samples from which on a class is recognised about as well as one with many."""


def few_samples(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the classes that are not to be trusted yet, the rarest first, with their counts.

    They have fewer than ten samples, and fewer than a fifth of what a class has that is not so poor.

    Parameters
    ----------
    counts : mapping of str to int
        Samples of each class.

    Examples
    --------
    >>> from evergrow.learner.class_warnings import few_samples
    >>> few_samples({"ant": 100, "bee": 140, "cat": 9, "dog": 2})
    {'dog': 2, 'cat': 9}
    >>> few_samples({"ant": 30, "bee": 30, "cat": 9, "dog": 2}), few_samples({"ant": 9, "bee": 1})
    ({'dog': 2}, {})
    """
    usual = _usual(counts)
    few = {name: count for name, count in counts.items() if count < ENOUGH and 5 * count < usual}
    return dict(sorted(few.items(), key=lambda entry: (entry[1], entry[0])))


def warn_few(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Warn of classes that have few samples beside others after a change, unless all of them had before."""
    few = few_samples(after)
    if few.keys() <= few_samples(before).keys():
        return
    usual = _usual(after)
    named = [f"{name}: {count}" for name, count in list(few.items())[:5]] + ["..."] * (len(few) > 5)
    have, they = ("has", "it is") if len(few) == 1 else ("have", "they are")
    bar = min(ENOUGH, math.ceil(usual / 5))
    warnings.warn(
        f"{len(few)} of {len(after)} classes {have} fewer than {bar} samples beside a median "
        f"of {usual:g} ({', '.join(named)}): {they} recognised less surely; teach at least {ENOUGH} of each",
        FewSamplesWarning,
        stacklevel=3,
    )


def _usual(counts: Mapping[str, int]) -> float:
    """Return the median count of classes that have enough; 0 where none has."""
    enough = [count for count in counts.values() if count >= ENOUGH]
    return float(np.median(enough)) if enough else 0.0
