"""Learn the weights of the novelty terms from held-out rows of a stream.

No term of novelty (:mod:`evergrow.head.novelty.terms`) is good on all data, so their
weights are learned. Held-out rows of known classes show what a model knows. Rows of a new
class, measured before they are learned, show what it does not know. With the mean D
and the spread S of the terms of unknown rows, in units of the mean and spread of known
ones, the weights are

    w = argmin over w >= 0 of  w^T (S + rho I) w / 2 - w^T (D + rho c w_0)
    c = w_0^T D / w_0^T S w_0

The default w_0 is used while no unknown row was measured. The score ``w^T z`` has mean
0 and spread 1 on known rows, less what the count of the nearest class explains, and
the score of far things is raised.

An unknown row that the default weights find anyway says nothing about the weights. Its
evidence falls with its default score (:func:`evidence`), and rho grows as evidence gets
scarce, so that one class of far things does not decide for all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evergrow.head.novelty.score import (
    DEFAULT_WEIGHTS,
    N_TERMS,
    NoveltyStandard,
    term_spreads,
)

PRIOR_STRENGTH = 0.3
"""rho: how strongly weights are drawn to the default. Results from 0.03 to 1 differ by
less than half a point."""

CLIP = 6.0
"""Largest value of a term of an unknown row, in spreads of known rows."""

HARD_SCORE = 3.0
"""Default novelty up to which an unknown row counts in full as evidence for weights."""

EVIDENCE = 10.0
"""Evidence, in rows, at which rho has twice its smallest value."""

COUNT_PRIOR = 0.1
"""Information, in units of precision, that speaks for no effect of class counts."""

SUFFICIENT = 200
"""Rows that a pooled number should rest on before smaller models are discounted."""

AGEING = (8, 6, 4, 3, 2, 1)
"""Powers to try, the strongest discount of small models first."""

_UNKNOWN_AGEING = 2
"""Power of the share of samples with which unknown rows of smaller models count."""


@dataclass(frozen=True, eq=False)
class UnknownRows:
    """Terms of rows of new classes, measured before one batch was learned.

    Parameters
    ----------
    size : int
        Samples that the measuring model had learned.
    terms : ndarray of shape (n, 6)
        Terms of novelty and 1 / count of the nearest class.
    """

    size: int
    terms: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NoveltyPool:
    """Terms of known and of unknown rows.

    Parameters
    ----------
    known : ndarray of shape (n, 6)
        Terms of held-out rows of known classes, and 1 / count of the nearest class.
    shares : ndarray of shape (n,)
        Weight of each of these rows; the sum is 1.
    unknown : tuple of UnknownRows
        Rows of new classes, measured before they were learned.
    classes : ndarray of shape (n,), optional
        Class of each known row; by default every row is one of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.novelty.pool import NoveltyPool
    >>> terms = np.random.default_rng(0).normal(size=(500, 6))
    >>> pool = NoveltyPool(terms, np.full(500, 1 / 500))
    >>> pool.weights().tolist()
    [0.25, 0.25, 0.25, 0.25, 0.0]
    >>> round(float(pool.standard().score(terms).std()), 1)
    1.0
    """

    known: NDArray[np.float64]
    shares: NDArray[np.float64]
    unknown: tuple[UnknownRows, ...] = ()
    classes: NDArray[np.int64] | None = None

    def weights(self) -> NDArray[np.float64]:
        """Return the weights of the terms, not negative, with sum 1."""
        default = DEFAULT_WEIGHTS / DEFAULT_WEIGHTS.sum()
        if not self.unknown:
            return np.asarray(default)
        mean, spread, evidence = self._unknown_moments()
        if evidence <= 0.0:
            return np.asarray(default)
        from scipy.optimize import nnls

        strength = max(
            float(default @ mean) / max(float(default @ spread @ default), 1e-12), 1e-3
        )
        prior = PRIOR_STRENGTH * (1.0 + EVIDENCE / evidence)
        lower = np.linalg.cholesky(spread + prior * np.eye(N_TERMS))
        wanted = mean + prior * strength * default
        # |L^T w - L^-1 v|^2 is the quadratic form of the module's docstring.
        found = nnls(lower.T, np.linalg.solve(lower, wanted))[0]
        if found.sum() <= 0.0:
            return np.asarray(default)
        return np.asarray(found / found.sum())

    def standard(self) -> NoveltyStandard:
        """Return how terms become a score; at least one known row is needed."""
        mean, second = self._known_moments()
        weights = self.weights()
        return NoveltyStandard.of(
            mean, second, weights, self._count_slope(mean, second, weights)
        )

    def _count_slope(
        self,
        mean: NDArray[np.float64],
        second: NDArray[np.float64],
        weights: NDArray[np.float64],
    ) -> float | None:
        """Return how much the weighted terms rise with 1 / count; None without classes.

        Classes are random effects: one class of another kind, with its own count, says
        little about the effect of counts.
        """
        if self.classes is None:
            return None
        scale, _ = term_spreads(mean, second)
        scores = (self.known[:, :N_TERMS] - mean[:N_TERMS]) / scale @ weights
        _, codes = np.unique(self.classes, return_inverse=True)
        numbers = np.bincount(codes, self.shares) * len(codes)
        levels = np.bincount(codes, self.shares * scores) * len(codes) / numbers
        inverse = self.known[:, N_TERMS]
        inverses = np.bincount(codes, self.shares * inverse) * len(codes) / numbers
        within = float(self.shares @ (scores - levels[codes]) ** 2)
        within *= len(codes) / max(len(codes) - len(numbers), 1)
        noise = max(within, 1e-12) / numbers
        between = max(float(np.var(levels) - noise.mean()), 0.0)
        precision = 1.0 / (between + noise)
        centred = inverses - precision @ inverses / precision.sum()
        information = float(precision @ centred**2) + COUNT_PRIOR
        return max(float(precision @ (centred * levels)) / information, 0.0)

    def _known_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the means of the terms of known rows (6,) and of products (6, 6)."""
        weighted = self.shares[:, None] * self.known
        return weighted.sum(axis=0), weighted.T @ self.known

    def _unknown_moments(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return mean (5,) and spread (5, 5) of unknown rows, and the evidence."""
        known_mean, known_second = self._known_moments()
        scale, covariance = term_spreads(known_mean, known_second)
        known_spread = covariance[:N_TERMS, :N_TERMS] / np.outer(scale, scale)
        default = NoveltyStandard.of(known_mean, known_second)
        largest = max(rows.size for rows in self.unknown)
        means = []
        spreads = []
        shares = []
        for rows in self.unknown:
            counts = evidence(default.score(rows.terms))
            ageing = (rows.size / largest) ** _UNKNOWN_AGEING
            standard = (rows.terms[:, :N_TERMS] - known_mean[:N_TERMS]) / scale
            standard = np.clip(standard, -CLIP, CLIP)
            total = max(float(counts.sum()), 1e-300)
            mean = counts @ standard / total
            centred = standard - mean
            own = (centred.T * counts) @ centred / max(total - 1.0, 1.0)
            means.append(mean)
            spreads.append(0.5 * (own + known_spread))
            shares.append(float(counts.sum()) * ageing)
        total = sum(shares)
        if total <= 1e-12:
            return known_mean[:N_TERMS], known_spread, 0.0
        fractions = np.array(shares) / total
        mean = fractions @ np.array(means)
        spread = np.tensordot(fractions, np.array(spreads), axes=1)
        return mean, spread, total


def evidence(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much unknown rows say about the weights, by their default score.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        Novelty with the default weights.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.novelty.pool import evidence
    >>> evidence(np.array([-1.0, 2.0, 5.0, 9.0])).round(3).tolist()
    [1.0, 1.0, 0.135, 0.002]
    """
    return np.asarray(np.exp(-np.maximum(scores - HARD_SCORE, 0.0)))


def ageing_weights(numbers: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return the weight of one row of each batch; rows of smaller models count less.

    Scores of a model that had learned a share q of the samples count ``q**p``, with the
    largest p that leaves the weight of SUFFICIENT rows. All rows count if there are
    few, since then chance does more harm than age.

    Parameters
    ----------
    numbers : sequence of int
        Rows of each batch.
    sizes : sequence of int
        Samples that the model had learned when it scored them.

    Examples
    --------
    >>> from evergrow.head.novelty.pool import ageing_weights
    >>> ageing_weights([300, 300], [50, 100]).tolist()
    [0.00390625, 1.0]
    >>> ageing_weights([20, 20], [50, 100]).tolist()
    [1.0, 1.0]
    """
    shares = np.asarray(sizes, dtype=np.float64)
    shares = shares / shares.max()
    counted = np.asarray(numbers, dtype=np.float64)
    powers = (power for power in AGEING if float(counted @ shares**power) >= SUFFICIENT)
    return np.asarray(shares ** next(powers, 0))
