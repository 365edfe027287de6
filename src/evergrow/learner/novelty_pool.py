"""What a stream teaches of novelty: moments of the terms of known and of unknown rows, batch by batch.

No term of novelty (:mod:`evergrow.head.novelty`) is good everywhere, so their weights are learned from the stream. Rows
that are scored as if they had not been learned are what a model knows; rows of a new class, before they are learned,
are what it does not know. With the mean D and the spread S of the terms of unknown rows, in units of the mean and
spread of known ones, the weights are

    w = argmin over w >= 0 of  w^T (S + rho I) w / 2 - w^T (D + rho c w_0)        c = w_0^T D / w_0^T S w_0

which is w_0 while nothing is known of unknown rows. The score ``w^T z`` is brought to mean 0 and spread 1 on known
rows, less what the count of the nearest class explains, and far things get more. Only sums are kept of each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evergrow.core.record import require
from evergrow.head.novelty import (
    DEFAULT_WEIGHTS,
    FLAT,
    N_COLUMNS,
    N_TERMS,
    NoveltyStandard,
    term_spreads,
)

PRIOR_STRENGTH = 0.3
"""rho: how strongly weights are drawn to the default. 0.03 to 1 are within half a point of each other."""

CLIP = 6.0
"""Most that one term of an unknown row counts, in spreads of known rows: what is far off is found anyway."""

SUFFICIENT = 200
"""Rows that a pooled number should rest on before those of younger models are set aside."""

AGEING = (8, 6, 4, 3, 2, 1)
"""Powers to try, the strongest discount of young models first."""

_UNKNOWN_AGEING = 2
"""Power of the share of samples with which unknown rows of younger models count."""


@dataclass(frozen=True)
class KnownTerms:
    """Moments of the terms of rows of one batch as if they had not been learned.

    Parameters
    ----------
    n : int
        How many rows.
    size : int
        How many samples the scoring model had learned.
    mean : tuple of 6 floats
        Mean of the terms and of 1 / count of the nearest class.
    second : tuple of 36 floats
        Mean of their products, row by row.
    """

    n: int
    size: int
    mean: tuple[float, ...]
    second: tuple[float, ...]

    @classmethod
    def of(cls, terms: NDArray[np.float64], size: int) -> KnownTerms:
        """Return the moments of rows (n, 6)."""
        second = terms.T @ terms / len(terms)
        return cls(
            len(terms),
            int(size),
            tuple(terms.mean(axis=0).tolist()),
            tuple(second.ravel().tolist()),
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` where no rows can have such moments."""
        require(
            self.n > 0 and self.size > 0,
            "it is of no rows, or of a model without samples",
        )
        lengths = len(self.mean), len(self.second)
        require(
            lengths == (N_COLUMNS, N_COLUMNS**2),
            f"it has {lengths} numbers of {N_COLUMNS} terms",
        )
        second = np.reshape(self.second, (N_COLUMNS, N_COLUMNS))
        roots = np.sqrt(np.where(second.diagonal() > 0.0, second.diagonal(), 1.0))
        with np.errstate(over="ignore", invalid="ignore"):
            covariance = (second - np.outer(self.mean, self.mean)) / np.outer(
                roots, roots
            )
        # Rounding of sums over n rows moves an eigenvalue by a few n times 1e-16 in these units.
        require(
            _least_eigenvalue(covariance) >= -1e-7,
            "its products of terms are not those of any rows",
        )


@dataclass(frozen=True)
class UnknownTerms:
    """Moments of the terms of rows of new classes before they were learned, in units of what was known then.

    Parameters
    ----------
    n : int
        How many rows.
    size : int
        How many samples the scoring model had learned.
    mean : tuple of 5 floats
        Mean of the terms.
    spread : tuple of 25 floats
        Mean of their covariance and that of known rows, row by row.
    """

    n: int
    size: int
    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def check(self) -> None:
        """Raise :class:`FileFormatError` where no rows can have such moments."""
        require(
            self.n > 0 and self.size > 0,
            "it is of no rows, or of a model without samples",
        )
        lengths = len(self.mean), len(self.spread)
        require(
            lengths == (N_TERMS, N_TERMS**2),
            f"it has {lengths} numbers of {N_TERMS} terms",
        )
        require(
            max(map(abs, self.mean)) <= CLIP, f"a mean lies beyond {CLIP:g} spreads"
        )
        # What known rows add may be rounded by much more than this one's own, but by far less than the prior.
        least = _least_eigenvalue(np.reshape(self.spread, (N_TERMS, N_TERMS)))
        require(least > -0.5 * PRIOR_STRENGTH, "its spread is not that of any rows")


@dataclass(frozen=True)
class NoveltyPool:
    """Moments of known and of unknown rows, batch by batch.

    Parameters
    ----------
    known : tuple of KnownTerms
        Of rows scored as if they had not been learned.
    unknown : tuple of UnknownTerms
        Of rows of new classes before they were learned.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.novelty_pool import KnownTerms, NoveltyPool
    >>> terms = np.random.default_rng(0).normal(size=(500, 6))
    >>> pool = NoveltyPool((KnownTerms.of(terms, size=500),))
    >>> pool.weights().tolist()
    [0.25, 0.25, 0.25, 0.25, 0.0]
    >>> round(float(pool.standard().score(terms).std()), 1)
    1.0
    """

    known: tuple[KnownTerms, ...] = ()
    unknown: tuple[UnknownTerms, ...] = ()

    def measured(self, terms: NDArray[np.float64], size: int) -> UnknownTerms | None:
        """Return the moments of rows that a model of ``size`` samples does not know; None where it knows none.

        Parameters
        ----------
        terms : ndarray of shape (n, 6)
            Terms of rows of new classes before they are learned.
        size : int
            Samples that the model has learned.
        """
        if not self.known or not len(terms):
            return None
        mean, second = self._moments()
        scale, covariance = term_spreads(mean, second)
        standard = np.clip((terms[:, :N_TERMS] - mean[:N_TERMS]) / scale, -CLIP, CLIP)
        centre = standard.mean(axis=0)
        own = (standard - centre).T @ (standard - centre) / max(len(standard) - 1, 1)
        both = 0.5 * (own + covariance[:N_TERMS, :N_TERMS] / np.outer(scale, scale))
        return UnknownTerms(
            len(standard),
            int(size),
            tuple(centre.tolist()),
            tuple(both.ravel().tolist()),
        )

    def weights(self) -> NDArray[np.float64]:
        """Return the weights of the terms, not negative, with sum 1."""
        default = DEFAULT_WEIGHTS
        if not self.unknown:
            return np.asarray(default / default.sum())
        from scipy.optimize import nnls

        sizes = np.array([part.size for part in self.unknown], dtype=np.float64)
        shares = (
            np.array([part.n for part in self.unknown])
            * (sizes / sizes.max()) ** _UNKNOWN_AGEING
        )
        shares = shares / shares.sum()
        mean = shares @ np.array([part.mean for part in self.unknown])
        spread = (shares @ np.array([part.spread for part in self.unknown])).reshape(
            N_TERMS, N_TERMS
        )
        strength = max(
            float(default @ mean) / max(float(default @ spread @ default), 1e-12), 1e-3
        )
        lower = np.linalg.cholesky(spread + PRIOR_STRENGTH * np.eye(N_TERMS))
        wanted = mean + PRIOR_STRENGTH * strength * default
        found = nnls(lower.T, np.linalg.solve(lower, wanted))[
            0
        ]  # |L^T w - L^-1 v|^2 is the quadratic above
        return np.asarray(
            found / found.sum() if found.sum() > 0.0 else default / default.sum()
        )

    def standard(self) -> NoveltyStandard:
        """Return how terms become a score; at least one batch of known rows is needed."""
        return NoveltyStandard.of(*self._moments(), self.weights())

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the means of the terms of known rows (6,), and of their products (6, 6)."""
        numbers = [part.n for part in self.known]
        weights = ageing_weights(
            numbers, [part.size for part in self.known]
        ) * np.array(numbers)
        weights = weights / weights.sum()
        second = weights @ np.array([part.second for part in self.known])
        return weights @ np.array([part.mean for part in self.known]), second.reshape(
            N_COLUMNS, N_COLUMNS
        )


def term_units(expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return origin and unit (2, 6) of each term: what a model's statistics alone expect of known rows.

    Terms drift while a model learns classes. In these units those of a younger model can be pooled with later ones.

    Parameters
    ----------
    expected : ndarray of shape (n, 6)
        Terms of rows as the statistics expect them. 1 / count keeps its own unit.
    """
    mean = expected.mean(axis=0)
    spread = np.maximum(expected.std(axis=0), FLAT * np.abs(mean))
    mean[N_TERMS], spread[N_TERMS] = 0.0, 1.0
    return np.stack([mean, np.where(spread > 0.0, spread, 1.0)])


def ageing_weights(numbers: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return what one row of each batch counts for: the less, the smaller the model was that scored it.

    Scores of a model that had learned a share q of the samples count ``q**p``, with the largest p that leaves the
    weight of SUFFICIENT rows. With few rows all count, since then chance does more harm than age.

    Parameters
    ----------
    numbers : sequence of int
        Rows of each batch.
    sizes : sequence of int
        Samples that the model had learned when it scored them.

    Examples
    --------
    >>> from evergrow.learner.novelty_pool import ageing_weights
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


def _least_eigenvalue(matrix: NDArray[np.float64]) -> float:
    """Return the smallest eigenvalue; minus infinity where numbers are not finite or the matrix is not symmetric."""
    if not np.isfinite(matrix).all() or not np.allclose(
        matrix, matrix.T, rtol=1e-9, atol=1e-9 * np.abs(matrix).max()
    ):
        return -np.inf
    return float(np.linalg.eigvalsh(matrix)[0])


def from_units(
    standard: NoveltyStandard, units: NDArray[np.float64]
) -> NoveltyStandard:
    """Return the same score of terms as they come, where the given one is of terms in units of :func:`term_units`."""
    mean, scale = (
        units[0] + units[1] * np.asarray(standard.mean),
        units[1, :N_TERMS] * np.asarray(standard.scale),
    )
    return replace(standard, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))
