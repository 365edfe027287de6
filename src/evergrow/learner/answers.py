"""What a learner says about items, all of it at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers about items, one row for each that could be read.

    Parameters
    ----------
    classes : ndarray of str of shape (C,)
        The columns of ``values``.
    values : ndarray of shape (n, C)
        Probabilities, or scores where the method has none.
    measure : {"probability", "score"}
        Which of the two.
    rows : ndarray of int of shape (n,)
        The items that the rows belong to: all, unless some could not be read and were skipped.
    failures : tuple of (str, str)
        Name of every item left out, and why.
    chosen : ndarray of int of shape (n,) or None
        The column of the answer to each, where prior, costs or thresholds decide; None where the largest value does.
    novelty : ndarray of shape (n,) or None
        How unlike anything learned each is, where that was asked for.
    unknown : ndarray of bool of shape (n,) or None
        Which belong to no class that was learned, where that was asked for.
    threshold : ndarray of shape (n,) or None
        The novelty above which each is unknown, where that was asked for.
    """

    classes: NDArray[np.str_]
    values: NDArray[np.float64]
    measure: str
    rows: NDArray[np.int64]
    failures: tuple[tuple[str, str], ...] = ()
    novelty: NDArray[np.float64] | None = None
    unknown: NDArray[np.bool_] | None = None
    threshold: NDArray[np.float64] | None = None
    chosen: NDArray[np.int64] | None = None

    def ranked(self, top: int) -> NDArray[np.int64]:
        """Return the columns of the likeliest classes of each row, the answer first."""
        order = (-self.values).argsort(axis=1, kind="stable")
        if self.chosen is not None:
            others = order[order != self.chosen[:, None]].reshape(len(order), order.shape[1] - 1)
            order = np.column_stack([self.chosen, others])
        return order[:, :top]

    def part(self, rows: slice) -> Answers:
        """Return the answers of some rows, numbered anew; of failures nothing is said."""

        def cut(values: Any) -> Any:
            return None if values is None else values[rows]

        values = self.values[rows]
        return replace(
            self,
            values=values,
            rows=np.arange(len(values)),
            failures=(),
            novelty=cut(self.novelty),
            unknown=cut(self.unknown),
            threshold=cut(self.threshold),
            chosen=cut(self.chosen),
        )
