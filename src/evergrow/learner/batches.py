"""What is written down of a batch: how many of each class, and a fingerprint to know it again by."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DataWarning


def counted(before: dict[str, int], labels: NDArray[np.str_]) -> dict[str, int]:
    """Return the samples of each class with a batch added.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.batches import counted
    >>> counted({"cat": 2}, np.array(["cat", "ant"]))
    {'ant': 1, 'cat': 3}
    """
    names, counts = np.unique(labels, return_counts=True)
    total = dict(before)
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def fingerprint(X: NDArray[Any], labels: NDArray[np.str_]) -> str:
    """Identify a batch by its content."""
    digest = hashlib.blake2b("\0".join(labels.tolist()).encode("utf-8", "surrogatepass"), digest_size=12)
    digest.update(np.ascontiguousarray(X, dtype=np.float32).data)
    return digest.hexdigest()


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
