"""The novelty score: a weighted sum of standardised terms.

The terms are standardised to mean 0 and standard deviation 1 on known rows. Their
weighted sum is corrected for the count of the nearest class and standardised again. The
energy outside the span of the class means is added if it is unusually large.
"""

from __future__ import annotations

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


@record("novelty-standard")
@dataclass(frozen=True)
class NoveltyStandard:
    """The mapping from terms to a score with mean 0 and deviation 1 on known rows.

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
        terms = covariance[:N_TERMS, :N_TERMS] / np.outer(scale, scale)
        if slope is None:
            across = float(weights @ (covariance[:N_TERMS, N_TERMS] / scale))
            variance = max(float(covariance[N_TERMS, N_TERMS]), 0.0)
            slope = max(across / (variance + COUNT_RIDGE), 0.0)
        spread = float(np.sqrt(max(float(weights @ terms @ weights), 1e-12)))
        return cls(
            tuple(weights.tolist()),
            tuple(mean.tolist()),
            tuple(scale.tolist()),
            slope,
            spread,
        )

    def score(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the novelty (n,) of rows with terms (n, 6)."""
        mean = np.asarray(self.mean)
        inverse_counts = terms[:, N_TERMS] - mean[N_TERMS]
        with np.errstate(over="ignore", invalid="ignore"):
            standard = (terms[:, :N_TERMS] - mean[:N_TERMS]) / np.asarray(self.scale)
            excess = standard @ np.asarray(self.weights) - self.slope * inverse_counts
            scores = excess / self.spread + np.maximum(standard[:, REST] - GUARD, 0.0)
        # A score that overflows counts as the largest possible one.
        largest = np.finfo(np.float64).max
        return np.asarray(np.where(np.isfinite(scores), scores, largest))

    def check(self) -> None:
        """Raise :class:`FileFormatError` if a file has the wrong numbers of values."""
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
    """Return terms (n, 6) in units of :func:`term_units`, bounded to finite values.

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
    """Convert a score of terms in units to the same score of plain terms.

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
