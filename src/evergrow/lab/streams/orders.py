"""In which order classes arrive: by seed, in natural order, and with disjoint first tasks across seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_number

DEFAULT_SEED = 1993
"""The field's convention since iCaRL."""


def class_order(n_classes: int, seed: int = DEFAULT_SEED, *, shuffle: bool = True) -> NDArray[np.int64]:
    """Return positions of classes (in sorted label order) in the order in which they arrive.

    The shuffled order is the field's: numpy's legacy generator, equal to
    ``np.random.seed(seed); np.random.permutation(n_classes)``, without touching the global state.

    Parameters
    ----------
    n_classes : int
        How many there are.
    seed : int
        Seed of the legacy generator, 1993 by convention.
    shuffle : bool
        False keeps the natural order, as VTAB does.

    Returns
    -------
    ndarray of int of shape (n_classes,)

    Examples
    --------
    >>> from evergrow.lab.streams import class_order
    >>> class_order(100)[:6].tolist()
    [68, 56, 78, 8, 23, 84]
    >>> class_order(4, shuffle=False).tolist()
    [0, 1, 2, 3]
    """
    check_number("n_classes", n_classes, low=1, integer=True)
    check_number("seed", seed, low=0, high=2**32 - 1, integer=True)
    if not shuffle:
        return np.arange(n_classes, dtype=np.int64)
    legacy = np.random.RandomState(seed)  # published class orders come from this generator
    return np.asarray(legacy.permutation(n_classes), dtype=np.int64)


def disjoint_order(n_classes: int, seed: int, earlier_seeds: Sequence[int], n_initial: int) -> NDArray[np.int64]:
    """Return the order of ``seed`` with a first task that shares no class with those of earlier seeds.

    The paper averages over seeds "where the initial-stage categories are non-overlapping across seeds" and
    does not say how they were drawn. Here the first ``n_initial`` classes of the plain order that no earlier
    seed has used come first, and all others follow in plain order. With no earlier seed that is the plain
    order, and a later seed in the list never changes an earlier one's order.

    Parameters
    ----------
    n_classes : int
        How many there are.
    seed : int
        Seed whose order is wanted.
    earlier_seeds : sequence of int
        Seeds before it in the list, in order, all different.
    n_initial : int
        Classes of the first task.

    Returns
    -------
    ndarray of int of shape (n_classes,)

    Raises
    ------
    ParameterError
        If there are not enough classes for that many disjoint first tasks, or a seed repeats.

    Examples
    --------
    >>> from evergrow.lab.streams import class_order, disjoint_order
    >>> class_order(6, 1993).tolist(), class_order(6, 1994).tolist(), class_order(6, 1995).tolist()
    ([0, 2, 3, 4, 5, 1], [1, 4, 0, 5, 2, 3], [0, 3, 1, 5, 2, 4])
    >>> disjoint_order(6, 1995, [1993, 1994], 2).tolist()
    [3, 5, 0, 1, 2, 4]
    """
    seeds = [*earlier_seeds, seed]
    if len(set(seeds)) != len(seeds):
        raise ParameterError(f"seeds must all be different for disjoint first tasks, got {seeds}")
    if n_initial * len(seeds) > n_classes:
        raise ParameterError(
            f"{len(seeds)} disjoint first tasks of {n_initial} classes must fit into the data, "
            f"got {n_classes} classes; use fewer seeds, a smaller first task or disjoint = false"
        )
    used: set[int] = set()
    order = class_order(n_classes, seed)
    for each in seeds:
        plain = class_order(n_classes, each)
        first = [int(c) for c in plain if int(c) not in used][:n_initial]
        chosen = set(first)
        order = np.array(first + [int(c) for c in plain if int(c) not in chosen], dtype=np.int64)
        used |= chosen
    return order


def disjoint_orders(n_classes: int, seeds: Sequence[int], n_initial: int) -> list[NDArray[np.int64]]:
    """Return one order per seed, their first ``n_initial`` classes pairwise disjoint.

    Examples
    --------
    >>> from evergrow.lab.streams import disjoint_orders
    >>> [order[:2].tolist() for order in disjoint_orders(6, [1993, 1994, 1995], 2)]
    [[0, 2], [1, 4], [3, 5]]
    """
    return [disjoint_order(n_classes, seed, seeds[:i], n_initial) for i, seed in enumerate(seeds)]
