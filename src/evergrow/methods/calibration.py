"""When is something unknown? Thresholds on novelty from samples that the scoring model had not learned.

Every time a model learns, a branch of it learns four fifths of the batch and scores the rest. The scores of all batches
are pooled; a threshold for a stated share of false alarms is a quantile of them. No sample is kept, only the scores'
quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import FileFormatError, NotFittedError
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number
from evergrow.heads.labels import column_map
from evergrow.heads.readout import NoveltyScorer
from evergrow.heads.ridge_model import RidgeModel

HELD_SHARE = 0.2
"""Share of a batch that the scoring branch does not learn."""

MOST_POINTS = 200
"""Scores kept of a batch; larger batches are thinned to their quantiles."""


@dataclass(frozen=True)
class Scores:
    """Novelty of samples of one batch that the scoring branch had not learned.

    Parameters
    ----------
    n : int
        How many samples were scored.
    points : tuple of float
        Their scores, ascending, or as many quantiles of them.
    """

    n: int
    points: tuple[float, ...]

    @classmethod
    def of(cls, scores: NDArray[np.float64]) -> Self:
        """Return all scores of a small batch, evenly spaced order statistics of a large one."""
        ordered = np.sort(scores)
        if len(ordered) > MOST_POINTS:
            ordered = ordered[((np.arange(MOST_POINTS) + 0.5) * len(ordered) / MOST_POINTS).astype(np.int64)]
        return cls(len(scores), tuple(float(score) for score in ordered))


@dataclass(frozen=True)
class Calibration:
    """Pooled scores of known things.

    Parameters
    ----------
    parts : tuple of Scores
        One entry per batch that was learned.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.methods.calibration import Calibration, Scores
    >>> calibration = Calibration((Scores.of(np.arange(100.0)),))
    >>> calibration.threshold(0.05)
    94.0
    """

    parts: tuple[Scores, ...] = ()

    @property
    def n(self) -> int:
        """Samples scored."""
        return sum(part.n for part in self.parts)

    def with_scores(self, scores: NDArray[np.float64]) -> Calibration:
        """Return the calibration with one more batch."""
        return Calibration((*self.parts, Scores.of(scores))) if len(scores) else self

    def joined(self, other: Calibration, base: Calibration | None = None) -> Calibration:
        """Return both sides' parts; what both have from a common ancestor counts once."""
        common = set(base.parts) if base is not None else set()
        return Calibration((*self.parts, *(part for part in other.parts if part not in common)))

    def threshold(self, false_alarm: float = 0.05) -> float:
        """Return the smallest score that at most this share of known things exceeds.

        Parameters
        ----------
        false_alarm : float
            Between 0 and 1. Shares below one by the number of scores cannot be told apart: the largest score is
            returned.

        Raises
        ------
        NotFittedError
            If there are no scores: no class ever came with two samples at once.
        """
        check_number("false_alarm", false_alarm, low=0, high=1, low_open=True, high_open=True)
        if not self.parts:
            raise NotFittedError(
                "the novelty of known things must be calibrated first: learn at least two samples of a class at once"
            )
        points = np.concatenate([np.asarray(part.points) for part in self.parts])
        weights = np.concatenate([np.full(len(part.points), part.n / len(part.points)) for part in self.parts])
        order = np.argsort(points, kind="stable")
        reached = np.cumsum(weights[order])
        place = int(np.searchsorted(reached, (1.0 - false_alarm) * reached[-1] * (1.0 - 1e-12)))
        return float(points[order][min(place, len(points) - 1)])

    def to_list(self) -> list[dict[str, Any]]:
        """Return plain values for JSON."""
        return [{"n": part.n, "points": list(part.points)} for part in self.parts]

    @classmethod
    def from_list(cls, values: Sequence[Mapping[str, Any]]) -> Self:
        """Return the calibration that :meth:`to_list` gave."""
        try:
            parts = tuple(Scores(int(value["n"]), tuple(float(point) for point in value["points"])) for value in values)
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"a calibration must be a list of scores, got {error!r}") from error
        if any(not part.points or not all(map(math.isfinite, part.points)) for part in parts):
            raise FileFormatError("a calibration must hold finite scores")
        return cls(parts)


def held_out(labels: NDArray[np.str_], seed: int) -> NDArray[np.bool_]:
    """Return which rows to hold out: a share of each class, at least one and never all of it.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.methods.calibration import held_out
    >>> int(held_out(np.array(["a"] * 10 + ["b"]), seed=0).sum())
    2
    """
    held = np.zeros(len(labels), dtype=bool)
    for name in np.unique(labels):
        rows = np.flatnonzero(labels == name)
        if len(rows) > 1:
            share = max(round(HELD_SHARE * len(rows)), 1)
            rng = np.random.default_rng(derive_seed(seed, "calibration", len(rows), ascii(str(name))))
            held[rng.permutation(rows)[:share]] = True
    return held


def held_out_scores(
    model: RidgeModel, known: NDArray[np.str_], X: NDArray[Any], labels: NDArray[np.str_], ridge: float, seed: int
) -> NDArray[np.float64]:
    """Score a share of a batch by a branch that has learned only the rest of it.

    Parameters
    ----------
    model : RidgeModel
        What was learned before the batch; not changed.
    known : ndarray of str
        Its classes.
    X, labels : ndarray of shapes (n, d) and (n,)
        The batch.
    ridge : float
        Shrinkage of the distances.
    seed : int
        Seed of the choice.

    Returns
    -------
    ndarray of shape (m,)
        Empty where no class has two samples.
    """
    held = held_out(labels, seed)
    if not held.any():
        return np.empty(0)
    classes = np.union1d(known, labels) if len(known) else np.unique(labels)
    Z = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float64)).to(model.counts.device)
    codes = torch.from_numpy(np.searchsorted(classes, labels)).to(Z.device)
    rest = torch.from_numpy(~held).to(Z.device)
    learned = model.learn(Z[rest], codes[rest], column_map(known, classes))
    scorer = NoveltyScorer.of(learned.state, learned.counts, ridge)
    return np.asarray(torch.cat([scorer.score(H) for _, H in learned.activations(Z[~rest])]).cpu().numpy())
