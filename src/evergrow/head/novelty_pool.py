"""What is unknown, learned from the stream: weights of a few terms of novelty, from sums over rows.

Rows that are scored as if they had not been learned are what a model knows; rows of a new class, before they are
learned, are what it does not know. With the mean D and the spread S of the terms of unknown rows, in units of the mean
and spread of known ones, the weights are

    w = argmin over w >= 0 of  w^T (S + rho I) w / 2 - w^T (D + rho c w_0)        c = w_0^T D / w_0^T S w_0

which is w_0 while nothing is known of unknown rows. The score ``w^T z`` is brought to mean 0 and spread 1 on known
rows, less what the count of the nearest class explains, and far things get more: of each batch only sums are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import Archive, register_kind
from evergrow.core.fields import Fields
from evergrow.head.novelty_terms import REST, TERMS
from evergrow.head.pooling import ageing_weights

STANDARD = register_kind("novelty-standard")

DEFAULT_WEIGHTS = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
"""w_0: all terms alike, but for the energy outside the span of the means, which serves far things."""

PRIOR_STRENGTH = 0.3
"""rho: how strongly weights are drawn to the default. 0.03 to 1 are within half a point of each other."""

CLIP = 6.0
"""Most that one term of an unknown row counts, in spreads of known rows: what is far off is found anyway."""

GUARD = 4.0
"""Spreads beyond which the energy outside the span adds to the score by itself."""

COUNT_RIDGE = 1e-3
"""Added to the variance of 1 / count when the score is regressed on it."""

_UNKNOWN_AGEING = 2
"""Power of the share of samples with which unknown rows of younger models count."""

_TERMS = len(TERMS)
_COLUMNS = _TERMS + 1  # the last is 1 / count of the nearest class
_FLAT = 1e-3  # least spread of a term, in units of its mean: one that never varies must not decide


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
        return cls(len(terms), int(size), tuple(terms.mean(axis=0).tolist()), tuple(second.ravel().tolist()))

    @classmethod
    def from_fields(cls, fields: Fields, n: int, size: int) -> KnownTerms:
        """Return what a file says, or raise :class:`FileFormatError` where no rows can have such moments."""
        mean, second = fields.numbers("term_means"), fields.numbers("term_products")
        fields.require(len(mean) == _COLUMNS, f"it has {len(mean)} means of {_COLUMNS} terms")
        fields.require(_is_product(second, mean, _COLUMNS), "its products of terms are not those of any rows")
        return cls(n, size, tuple(mean), tuple(second))


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

    def to_values(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return {"n": self.n, "size": self.size, "mean": list(self.mean), "spread": list(self.spread)}

    @classmethod
    def from_fields(cls, fields: Fields) -> UnknownTerms:
        """Return what :meth:`to_values` gave, or raise :class:`FileFormatError` where no rows can have such moments."""
        n, size = fields.integer("n", low=1), fields.integer("size", low=1)
        mean, spread = fields.numbers("mean"), fields.numbers("spread")
        fields.require(len(mean) == _TERMS, f"it has {len(mean)} means of {_TERMS} terms")
        fields.require(max(map(abs, mean)) <= CLIP, f"a mean lies beyond {CLIP:g} spreads")
        fields.require(_is_product(spread, [0.0] * _TERMS, _TERMS), "its spread is not that of any rows")
        return cls(n, size, tuple(mean), tuple(spread))


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
    slope: float
    spread: float

    def score(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the novelty (n,) of rows with terms (n, 6)."""
        mean = np.asarray(self.mean)
        with np.errstate(over="ignore", invalid="ignore"):
            standard = (terms[:, :_TERMS] - mean[:_TERMS]) / np.asarray(self.scale)
            excess = standard @ np.asarray(self.weights) - self.slope * (terms[:, _TERMS] - mean[_TERMS])
            scores = excess / self.spread + np.maximum(standard[:, REST] - GUARD, 0.0)
        # What is too large for arithmetic is as unknown as can be.
        return np.asarray(np.where(np.isfinite(scores), scores, np.finfo(np.float64).max))

    def to_archive(self) -> Archive:
        """Return what a file holds."""
        lists = {"weights": list(self.weights), "mean": list(self.mean), "scale": list(self.scale)}
        return STANDARD.archive({**lists, "slope": self.slope, "spread": self.spread})

    @classmethod
    def from_archive(cls, fields: Fields) -> NoveltyStandard:
        """Return what :meth:`to_archive` gave, or raise :class:`FileFormatError`."""
        weights, mean, scale = fields.numbers("weights"), fields.numbers("mean"), fields.numbers("scale")
        lengths = (len(weights), len(mean), len(scale))
        fields.require(lengths == (_TERMS, _COLUMNS, _TERMS), f"it has {lengths} numbers of {_TERMS} terms")
        fields.require(min(weights) >= 0.0 and min(scale) > 0.0, "a weight is negative or a spread is not positive")
        slope, spread = fields.number("slope", low=0.0), fields.number("spread", low=0.0)
        fields.require(spread > 0.0, "the spread is zero")
        return cls(tuple(weights), tuple(mean), tuple(scale), slope, spread)


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
    >>> from evergrow.head.novelty_pool import KnownTerms, NoveltyPool
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
        mean, scale, covariance = self._moments()
        standard = np.clip((terms[:, :_TERMS] - mean[:_TERMS]) / scale, -CLIP, CLIP)
        centre = standard.mean(axis=0)
        own = (standard - centre).T @ (standard - centre) / max(len(standard) - 1, 1)
        both = 0.5 * (own + covariance[:_TERMS, :_TERMS] / np.outer(scale, scale))
        return UnknownTerms(len(standard), int(size), tuple(centre.tolist()), tuple(both.ravel().tolist()))

    def weights(self) -> NDArray[np.float64]:
        """Return the weights of the terms, not negative, with sum 1."""
        default = DEFAULT_WEIGHTS
        if not self.unknown:
            return np.asarray(default / default.sum())
        sizes = np.array([part.size for part in self.unknown], dtype=np.float64)
        shares = np.array([part.n for part in self.unknown]) * (sizes / sizes.max()) ** _UNKNOWN_AGEING
        shares = shares / shares.sum()
        mean = shares @ np.array([part.mean for part in self.unknown])
        spread = (shares @ np.array([part.spread for part in self.unknown])).reshape(_TERMS, _TERMS)
        strength = max(float(default @ mean) / max(float(default @ spread @ default), 1e-12), 1e-3)
        found = nonnegative_minimiser(
            spread + PRIOR_STRENGTH * np.eye(_TERMS), mean + PRIOR_STRENGTH * strength * default
        )
        return np.asarray(found / found.sum() if found.sum() > 0.0 else default / default.sum())

    def standard(self) -> NoveltyStandard:
        """Return how terms become a score; at least one batch of known rows is needed."""
        mean, scale, covariance = self._moments()
        weights = self.weights()
        terms = covariance[:_TERMS, :_TERMS] / np.outer(scale, scale)
        across = float(weights @ (covariance[:_TERMS, _TERMS] / scale))
        slope = max(across / (max(float(covariance[_TERMS, _TERMS]), 0.0) + COUNT_RIDGE), 0.0)
        spread = float(np.sqrt(max(float(weights @ terms @ weights), 1e-12)))
        return NoveltyStandard(tuple(weights.tolist()), tuple(mean.tolist()), tuple(scale.tolist()), slope, spread)

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return mean (6,), spread (5,) and covariance (6, 6) of known rows."""
        numbers = [part.n for part in self.known]
        weights = ageing_weights(numbers, [part.size for part in self.known]) * np.array(numbers)
        weights = weights / weights.sum()
        mean = weights @ np.array([part.mean for part in self.known])
        second = (weights @ np.array([part.second for part in self.known])).reshape(_COLUMNS, _COLUMNS)
        covariance = second - np.outer(mean, mean)
        # A term that never varies, as one does with two classes, may come out below zero by rounding.
        np.fill_diagonal(covariance, np.maximum(covariance.diagonal(), 0.0))
        variance = np.maximum(covariance.diagonal()[:_TERMS], 1e-24)
        return mean, np.maximum(np.sqrt(variance), _FLAT * np.abs(mean[:_TERMS])), covariance


def nonnegative_minimiser(matrix: NDArray[np.float64], linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the minimiser over w >= 0 of ``w^T matrix w / 2 - linear^T w``, by trying every support.

    Parameters
    ----------
    matrix : ndarray of shape (k, k)
        Symmetric and positive definite; k is small.
    linear : ndarray of shape (k,)
        The linear part.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.novelty_pool import nonnegative_minimiser
    >>> nonnegative_minimiser(np.eye(2), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    size, least, best = len(linear), 0.0, np.zeros(len(linear))
    for support in (list(places) for k in range(1, size + 1) for places in combinations(range(size), k)):
        found = np.linalg.solve(matrix[np.ix_(support, support)], linear[support])
        value = -0.5 * float(found @ linear[support])
        if found.min() >= 0.0 and value < least:
            least, best = value, np.zeros(size)
            best[support] = found
    return best


def _is_product(flat: Sequence[float], mean: Sequence[float], order: int) -> bool:
    """Return whether numbers can be mean products of rows with this mean: symmetric, and not less than the mean's."""
    if len(flat) != order * order:
        return False
    products = np.asarray(flat, dtype=np.float64).reshape(order, order)
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.abs(products).max())
        left = products - np.outer(mean, mean)
        if not np.isfinite(left).all() or not np.allclose(products, products.T, rtol=1e-9, atol=1e-9 * size):
            return False
        if not (left.diagonal() >= -1e-9 * size - 1e-12).all():
            return False
        roots = np.sqrt(np.maximum(products.diagonal(), 0.0))
        return bool((np.abs(products) <= np.outer(roots, roots) * (1.0 + 1e-6) + 1e-9).all())
