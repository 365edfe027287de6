"""How unlike anything learned something is: terms of novelty, and how they become a score.

With ``A = S_w + alpha I``, f degrees of freedom, class means m_c of n_c rows and the
mean m of all rows, a row h has

    a = f |h - m|^2        z_c = f (h - m)^T A^-1 (m_c - m)        K_cd = f (m_c - m)^T
    A^-1 (m_d - m)

(lengths in A^-1), of which ``e = z^T K^-1 z`` lies in the span of the means. The terms
are

- relative Mahalanobis: distance to the nearest class over ``1 + 1 / n_c``, less that to
  all classes as one;
- whitened cosine: minus the largest ``z_c / sqrt(a K_cc)``;
- span cosine: minus the largest ``z_c / sqrt(e K_cc)``;
- span distance: the smallest ``(e - 2 z_c + K_cc) / (1 + 1 / n_c)``;
- rest: ``a - e`` over its expectation for a new row of a known class.

Of one class alone the first term is the distance itself, and those in the span are
zero.

With no more classes than coordinates, quadratic forms in ``K^-1`` and ``(K + f
N^-1)^-1`` are solved as they stand (N: counts on a diagonal). With more, nothing of the
order of the classes is factored: their means span everything, and with ``B = sum n_c
(m_c - m)(m_c - m)^T``, of which the sum of products of all rows tells,

    z^T (K + f N^-1)^-1 z = f (h - m)^T (A^-1 - (A + B)^-1) (h - m)

No one of them is good everywhere. A weighted sum of them is brought to mean 0 and
spread 1 on known rows, less what the count of the nearest class explains, and far
things get more. What a stream teaches of the weights:
:mod:`evergrow.learner.novelty_pool`.

Probabilities ``softmax(score / T)`` are calibrated from the same rows. They have one
number to choose; its log loss at a fixed grid of temperatures is a mean over rows, so
it can be pooled over batches and sites.
"""

from __future__ import annotations

from dataclasses import dataclass
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

REST = TERMS.index("rest")

DEFAULT_WEIGHTS = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
"""w_0: all terms alike, but for the energy outside the span of the means, which serves far things."""

GUARD = 4.0
"""Spreads beyond which the energy outside the span adds to the score by itself."""

COUNT_RIDGE = 1e-3
"""Added to the variance of 1 / count when the score is regressed on it."""

N_TERMS = len(TERMS)
N_COLUMNS = N_TERMS + 1  # the last is 1 / count of the nearest class
# Least spread of a term, in units of its mean (or 1): one that never varies must not
# decide
FLAT = 1e-3


@record("novelty-standard")
@dataclass(frozen=True)
class NoveltyStandard:
    """How terms become a score: mean 0 and spread 1 on known rows, larger for what is less known.

    Parameters
    ----------
    weights : tuple of 5 floats
        Weights of the standardised terms, not negative, with sum 1.
    mean : tuple of 6 floats
        Mean of the terms of known rows, and of 1 / count of their nearest class.
    scale : tuple of 5 floats
        Spread of the terms of known rows.
    slope : float
        How much the weighted terms rise with 1 / count.
    spread : float
        Spread of the weighted terms of known rows.
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
        """Return the score with mean 0 and spread 1 on known rows.

        Parameters
        ----------
        mean, second : ndarray of shape (6,) and (6, 6)
            Means of the terms of known rows, and of their products.
        weights : ndarray of shape (5,)
            Weights of the terms, up to their sum.
        slope : float, optional
            How much the weighted terms rise with 1 / count; by default from the
            moments.
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
        with np.errstate(over="ignore", invalid="ignore"):
            standard = (terms[:, :N_TERMS] - mean[:N_TERMS]) / np.asarray(self.scale)
            excess = standard @ np.asarray(self.weights) - self.slope * (
                terms[:, N_TERMS] - mean[N_TERMS]
            )
            scores = excess / self.spread + np.maximum(standard[:, REST] - GUARD, 0.0)
        # What is too large for arithmetic is as unknown as can be.
        return np.asarray(
            np.where(np.isfinite(scores), scores, np.finfo(np.float64).max)
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds numbers of all terms."""
        lengths = (len(self.weights), len(self.mean), len(self.scale))
        require(
            lengths == (N_TERMS, N_COLUMNS, N_TERMS),
            f"it has {lengths} numbers of {N_TERMS} terms",
        )
        require(
            min(self.weights) >= 0.0 and min(self.scale) > 0.0,
            "a weight is negative or a spread not positive",
        )


def term_spreads(
    mean: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return spread (5,) and covariance (6, 6) of terms with these means (6,) and means of products (6, 6)."""
    covariance = second - np.outer(mean, mean)
    # A term that never varies, as one does with two classes, may come out below zero by
    # rounding.
    np.fill_diagonal(covariance, np.maximum(covariance.diagonal(), 0.0))
    variance = np.maximum(covariance.diagonal()[:N_TERMS], 1e-24)
    return np.maximum(
        np.sqrt(variance), FLAT * np.maximum(np.abs(mean[:N_TERMS]), 1.0)
    ), covariance


# -- temperatures ----------------------------------------------------------------------

STEPS_PER_OCTAVE = 2

TEMPERATURES: tuple[float, ...] = tuple(
    float(2.0 ** (step / STEPS_PER_OCTAVE)) for step in range(-4, 25)
)
"""The grid, from 1/4 to 4,096."""
