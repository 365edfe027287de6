"""The novelty score: a weighted sum of standardised terms.

The terms are standardised to mean 0 and standard deviation 1 on known rows. Their
weighted sum is corrected for the count of the nearest class and standardised again. The
energy outside the span of the class means is added if it is unusually large.

**Weights.** They are learned from held-out rows of a stream. Held-out rows of known
classes and rows of new classes, measured before they are learned, show which terms
separate known from unknown rows. Let D and S be the mean and the covariance of the
terms of unknown rows, standardised on known rows. The weights are

    w = argmin over w >= 0 of  w^T (S + rho I) w / 2 - w^T (D + rho c w_0)
    c = w_0^T D / w_0^T S w_0

Without unknown rows, the default weights w_0 are used.

An unknown row with a high default score needs no other weights. Its evidence falls with
its default score (:func:`evidence`), and rho grows if there is little evidence, so that
a single class that is very unlike the others does not set the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from evergrow.core.record import Between, record, require

TERMS = (
    "relative-mahalanobis",
    "whitened-cosine",
    "span-cosine",
    "span-distance",
    "rest",
)
"""Names of the terms; see :mod:`evergrow.head.novelty.terms`."""

REST = TERMS.index("rest")
"""Column of the last term."""

DEFAULT_WEIGHTS = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
"""w_0: equal weights, without the rest. The rest is useful for very unlike rows only,
and those are found by :data:`GUARD`."""

GUARD = 4.0
"""Standard deviations beyond which the rest is added to the score directly."""

COUNT_RIDGE = 1e-3
"""Added to the variance of 1 / count when the score is regressed on it."""

N_TERMS = len(TERMS)

N_COLUMNS = N_TERMS + 1
"""Columns of a table of terms. The last one is 1 / count of the nearest class."""

FLAT = 1e-3
"""Smallest standard deviation of a term, relative to its mean (or 1). A term that never
varies must not decide."""

LARGEST_TERM = 1e60
"""Bound of stored terms; their squares are finite."""

PRIOR_STRENGTH = 0.3
"""Smallest rho: how strongly the weights are drawn to the default. Results from 0.03 to
1 differ by less than half a point."""

CLIP = 6.0
"""Largest standardised term of an unknown row, so that one row cannot set the mean."""

HARD_SCORE = 3.0
"""Default score up to which an unknown row counts as full evidence."""

EVIDENCE = 10.0
"""Evidence, in rows, at which rho is twice its smallest value."""

COUNT_PRIOR = 0.1
"""Precision of the prior that class counts have no effect."""

MIN_EFFECTIVE_ROWS = 200
"""Total weight of rows that must remain when rows of smaller models are discounted."""

AGEING_POWERS = (8, 6, 4, 3, 2, 1)
"""Powers of the size ratio to try for known rows, the strongest discount first."""

_UNKNOWN_AGEING_POWER = 2
"""Power of the size ratio by which unknown rows of smaller models are discounted."""


@record("novelty-standard")
@dataclass(frozen=True)
class NoveltyStandard:
    """The novelty score: a mapping of terms to numbers.

    On known rows it has mean 0 and standard deviation 1, apart from the guard.

    Parameters
    ----------
    weights : tuple of 5 floats
        Weights of the standardised terms, not negative, with sum 1.
    mean : tuple of 6 floats
        Mean of the terms of known rows, and of 1 / count of their nearest class.
    scale : tuple of 5 floats
        Standard deviation of the terms of known rows.
    slope : float
        Increase of the weighted sum with 1 / count.
    spread : float
        Standard deviation of the weighted sum of known rows.
    """

    weights: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    slope: Annotated[float, Between(0.0)]
    spread: Annotated[float, Between(above=0.0)]

    @classmethod
    def of(
        cls,
        mean: NDArray[np.float64],
        second: NDArray[np.float64],
        weights: NDArray[np.float64] = DEFAULT_WEIGHTS,
        slope: float | None = None,
    ) -> NoveltyStandard:
        """Compute the mapping from the moments of known rows.

        Parameters
        ----------
        mean : ndarray of shape (6,)
            Means of the terms of known rows, and of 1 / count.
        second : ndarray of shape (6, 6)
            Means of their products.
        weights : ndarray of shape (5,), default=DEFAULT_WEIGHTS
            Weights of the terms. They are divided by their sum.
        slope : float, optional
            Increase of the weighted sum with 1 / count. By default it is computed from
            the moments.
        """
        scale, covariance = term_spreads(mean, second)
        weights = weights / weights.sum()
        correlation = covariance[:N_TERMS, :N_TERMS] / np.outer(scale, scale)
        if slope is None:
            # Regress the weighted sum on 1 / count, with a small ridge.
            across = float(weights @ (covariance[:N_TERMS, N_TERMS] / scale))
            variance = max(float(covariance[N_TERMS, N_TERMS]), 0.0)
            slope = max(across / (variance + COUNT_RIDGE), 0.0)
        spread = float(np.sqrt(max(float(weights @ correlation @ weights), 1e-12)))
        return cls(
            tuple(weights.tolist()),
            tuple(mean.tolist()),
            tuple(scale.tolist()),
            slope,
            spread,
        )

    def score(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the novelty (n,) of rows with terms (n, 6).

        It is always finite: terms that are infinite give the largest float.
        """
        mean = np.asarray(self.mean)
        inverse_counts = terms[:, N_TERMS] - mean[N_TERMS]
        with np.errstate(over="ignore", invalid="ignore"):
            standardised = (terms[:, :N_TERMS] - mean[:N_TERMS]) / np.asarray(
                self.scale
            )
            total = (
                standardised @ np.asarray(self.weights) - self.slope * inverse_counts
            )
            scores = total / self.spread
            scores = scores + np.maximum(standardised[:, REST] - GUARD, 0.0)
        largest = np.finfo(np.float64).max
        return np.asarray(np.where(np.isfinite(scores), scores, largest))

    def check(self) -> None:
        """Raise :class:`FileFormatError` if a number of values or a sign is wrong."""
        lengths = (len(self.weights), len(self.mean), len(self.scale))
        require(
            lengths == (N_TERMS, N_COLUMNS, N_TERMS),
            f"its novelty score has {lengths} values for {N_TERMS} terms",
        )
        require(
            min(self.weights) >= 0.0 and min(self.scale) > 0.0,
            "a weight is negative or a spread not positive",
        )


def term_spreads(
    mean: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the standard deviation and the covariance of terms.

    Parameters
    ----------
    mean : ndarray of shape (6,)
        Means of the terms.
    second : ndarray of shape (6, 6)
        Means of their products.

    Returns
    -------
    scale : ndarray of shape (5,)
        Standard deviations, bounded from below.
    covariance : ndarray of shape (6, 6)
    """
    covariance = second - np.outer(mean, mean)
    # The variance of a constant term, as with two classes, may be negative by rounding.
    np.fill_diagonal(covariance, np.maximum(covariance.diagonal(), 0.0))
    variance = np.maximum(covariance.diagonal()[:N_TERMS], 1e-24)
    smallest = FLAT * np.maximum(np.abs(mean[:N_TERMS]), 1.0)
    return np.maximum(np.sqrt(variance), smallest), covariance


# -- units of terms --------------------------------------------------------------------


def term_units(expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the origin and unit (2, 6) of each term.

    Terms drift while a model learns classes. In units of the terms that the statistics
    expect of known rows, terms of a smaller model can be pooled with later ones.

    Parameters
    ----------
    expected : ndarray of shape (n, 6)
        Terms of rows drawn from the statistics. 1 / count keeps its own unit.
    """
    mean = expected.mean(axis=0)
    spread = np.maximum(expected.std(axis=0), FLAT * np.abs(mean))
    mean[N_TERMS] = 0.0
    spread[N_TERMS] = 1.0
    return np.stack([mean, np.where(spread > 0.0, spread, 1.0)])


def to_units(
    terms: NDArray[np.float64], units: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return terms (n, 6) in units of :func:`term_units`, clipped to finite values.

    Parameters
    ----------
    terms : ndarray of shape (n, 6)
        Terms of a head. Infinite for rows whose squares overflow.
    units : ndarray of shape (2, 6)
        Origin and unit of each term.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (terms - units[0]) / units[1]
    scaled = np.nan_to_num(scaled, nan=LARGEST_TERM)
    return np.asarray(np.clip(scaled, -LARGEST_TERM, LARGEST_TERM))


def from_units(
    standard: NoveltyStandard, units: NDArray[np.float64]
) -> NoveltyStandard:
    """Return the score of plain terms that equals a score of terms in units.

    Parameters
    ----------
    standard : NoveltyStandard
        A score of terms in units of :func:`term_units`.
    units : ndarray of shape (2, 6)
        Origin and unit of each term.
    """
    mean = units[0] + units[1] * np.asarray(standard.mean)
    scale = units[1, :N_TERMS] * np.asarray(standard.scale)
    return replace(standard, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))


# -- weights of terms ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UnknownRows:
    """Terms of rows of new classes, measured before one batch was learned.

    Parameters
    ----------
    n_learned : int
        Number of samples that the measuring model had learned.
    terms : ndarray of shape (n, 6)
        Terms of novelty and 1 / count of the nearest class.
    """

    n_learned: int
    terms: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NoveltyPool:
    """Terms of known and of unknown rows, from which the score is computed.

    Parameters
    ----------
    known : ndarray of shape (n, 6)
        Terms of held-out rows of known classes, and 1 / count of the nearest class.
    shares : ndarray of shape (n,)
        Weight of each known row. The weights sum to 1.
    unknown : tuple of UnknownRows
        Rows of new classes, measured before they were learned.
    classes : ndarray of shape (n,) or None
        Class of each known row. It improves the correction for the count of the class.
        None corrects by the moments of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.novelty.score import NoveltyPool
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
        """Return the weights (5,) of the terms, at least 0, with sum 1.

        They are the default ones if unknown rows give no evidence.
        """
        default: NDArray[np.float64] = DEFAULT_WEIGHTS / DEFAULT_WEIGHTS.sum()
        if not self.unknown:
            return default
        mean, covariance, total_evidence = self._unknown_moments()
        if total_evidence <= 0.0:
            return default
        from scipy.optimize import nnls

        # Notation of the module's docstring: D, S, c and rho.
        variance = max(float(default @ covariance @ default), 1e-12)
        scale = max(float(default @ mean) / variance, 1e-3)
        rho = PRIOR_STRENGTH * (1.0 + EVIDENCE / total_evidence)
        lower = np.linalg.cholesky(covariance + rho * np.eye(N_TERMS))
        linear = mean + rho * scale * default
        # With L L^T = S + rho I and v the linear term, minimising |L^T w - L^-1 v|^2
        # minimises the quadratic form.
        weights = nnls(lower.T, np.linalg.solve(lower, linear))[0]
        if weights.sum() <= 0.0:
            return default
        return np.asarray(weights / weights.sum())

    def standard(self) -> NoveltyStandard:
        """Return the score with the learned weights.

        It has mean 0 and standard deviation 1 on the known rows.
        """
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
        """Return the slope of the weighted sum over 1 / count. None without classes.

        Classes are random effects: a single unusual class says little about the effect
        of its count.
        """
        if self.classes is None:
            return None
        scale, _ = term_spreads(mean, second)
        scores = (self.known[:, :N_TERMS] - mean[:N_TERMS]) / scale @ weights
        inverse_counts = self.known[:, N_TERMS]
        n_rows = len(self.known)
        _, codes = np.unique(self.classes, return_inverse=True)
        # Weighted number of rows, mean score and mean 1 / count of each class.
        class_rows = np.bincount(codes, self.shares) * n_rows
        class_scores = np.bincount(codes, self.shares * scores) * n_rows / class_rows
        inverse_sums = np.bincount(codes, self.shares * inverse_counts) * n_rows
        class_inverses = inverse_sums / class_rows
        # Variance within classes, and between them beyond the noise of their means.
        within = float(self.shares @ (scores - class_scores[codes]) ** 2)
        within *= n_rows / max(n_rows - len(class_rows), 1)
        noise = max(within, 1e-12) / class_rows
        between = max(float(np.var(class_scores) - noise.mean()), 0.0)
        # Weighted least squares over classes, with a ridge and a slope of at least 0.
        precision = 1.0 / (between + noise)
        centred = class_inverses - precision @ class_inverses / precision.sum()
        information = float(precision @ centred**2) + COUNT_PRIOR
        return max(float(precision @ (centred * class_scores)) / information, 0.0)

    def _known_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the means of known terms (6,) and of their products (6, 6)."""
        weighted = self.shares[:, None] * self.known
        return weighted.sum(axis=0), weighted.T @ self.known

    def _unknown_moments(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return the moments of standardised unknown rows, of which there must be some.

        Returns
        -------
        mean : ndarray of shape (5,)
            Mean of the standardised terms.
        covariance : ndarray of shape (5, 5)
            Their covariance.
        total_evidence : float
            Sum of the evidence of all rows. Rows of smaller models count less.
        """
        known_mean, known_second = self._known_moments()
        scale, covariance = term_spreads(known_mean, known_second)
        known_covariance = covariance[:N_TERMS, :N_TERMS] / np.outer(scale, scale)
        default = NoveltyStandard.of(known_mean, known_second)
        largest = max(batch.n_learned for batch in self.unknown)
        means = []
        covariances = []
        evidences = []
        for batch in self.unknown:
            row_evidence = evidence(default.score(batch.terms))
            ageing = (batch.n_learned / largest) ** _UNKNOWN_AGEING_POWER
            terms = (batch.terms[:, :N_TERMS] - known_mean[:N_TERMS]) / scale
            terms = np.clip(terms, -CLIP, CLIP)
            batch_total = max(float(row_evidence.sum()), 1e-300)
            mean = row_evidence @ terms / batch_total
            centred = terms - mean
            # Batches may have few rows, so their covariance is averaged with that of
            # the known rows.
            own = (centred.T * row_evidence) @ centred / max(batch_total - 1.0, 1.0)
            means.append(mean)
            covariances.append(0.5 * (own + known_covariance))
            evidences.append(float(row_evidence.sum()) * ageing)
        total = sum(evidences)
        if total <= 1e-12:
            return np.zeros(N_TERMS), known_covariance, 0.0
        batch_shares = np.array(evidences) / total
        mean = batch_shares @ np.array(means)
        covariance = np.tensordot(batch_shares, np.array(covariances), axes=1)
        return mean, covariance, total


def evidence(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the evidence (n,) of unknown rows about the weights, between 0 and 1.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        Novelty score with the default weights.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.novelty.score import evidence
    >>> evidence(np.array([-1.0, 2.0, 5.0, 9.0])).round(3).tolist()
    [1.0, 1.0, 0.135, 0.002]
    """
    return np.asarray(np.exp(-np.maximum(scores - HARD_SCORE, 0.0)))


def ageing_weights(numbers: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return the weight of a row of each batch. Rows of smaller models count less.

    Rows of a model that had learned a fraction q of the samples have the weight
    ``q**p``, with the largest p that leaves a total weight of at least
    :data:`MIN_EFFECTIVE_ROWS`. If there are fewer rows, all count in full.

    Parameters
    ----------
    numbers : sequence of int
        Number of rows in each batch.
    sizes : sequence of int
        Number of samples that the scoring model had learned.

    Examples
    --------
    >>> from evergrow.head.novelty.score import ageing_weights
    >>> ageing_weights([300, 300], [50, 100]).tolist()
    [0.00390625, 1.0]
    >>> ageing_weights([20, 20], [50, 100]).tolist()
    [1.0, 1.0]
    """
    fractions = np.asarray(sizes, dtype=np.float64)
    fractions = fractions / fractions.max()
    counts = np.asarray(numbers, dtype=np.float64)
    for power in AGEING_POWERS:
        weights = fractions**power
        if float(counts @ weights) >= MIN_EFFECTIVE_ROWS:
            return np.asarray(weights)
    return np.ones(len(fractions))
