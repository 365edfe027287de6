"""How unlike anything learned something is: terms of novelty, and what a stream teaches of their weights.

With ``A = S_w + alpha I``, f degrees of freedom, class means m_c of n_c rows and the mean m of all rows, a row h has

    a = f |h - m|^2        z_c = f (h - m)^T A^-1 (m_c - m)        K_cd = f (m_c - m)^T A^-1 (m_d - m)

(lengths in A^-1), of which ``e = z^T K^-1 z`` lies in the span of the means. The terms are

- relative Mahalanobis: distance to the nearest class over ``1 + 1 / n_c``, less that to all classes as one;
- whitened cosine: minus the largest ``z_c / sqrt(a K_cc)``;
- span cosine: minus the largest ``z_c / sqrt(e K_cc)``;
- span distance: the smallest ``(e - 2 z_c + K_cc) / (1 + 1 / n_c)``;
- rest: ``a - e`` over its expectation for a new row of a known class.

Of one class alone the first term is the distance itself, and those in the span are zero.

With no more classes than coordinates, quadratic forms in ``K^-1`` and ``(K + f N^-1)^-1`` are solved as they stand (N:
counts on a diagonal). With more, nothing of the order of the classes is factored: their means span everything, and with
``B = sum n_c (m_c - m)(m_c - m)^T``, of which the sum of products of all rows tells,

    z^T (K + f N^-1)^-1 z = f (h - m)^T (A^-1 - (A + B)^-1) (h - m)

No one of them is good everywhere, so their weights are learned from the stream. Rows that are scored as if they had not
been learned are what a model knows; rows of a new class, before they are learned, are what it does not know. With the
mean D and the spread S of the terms of unknown rows, in units of the mean and spread of known ones, the weights are

    w = argmin over w >= 0 of  w^T (S + rho I) w / 2 - w^T (D + rho c w_0)        c = w_0^T D / w_0^T S w_0

which is w_0 while nothing is known of unknown rows. The score ``w^T z`` is brought to mean 0 and spread 1 on known
rows, less what the count of the nearest class explains, and far things get more. Only sums are kept of each batch.

Probabilities ``softmax(score / T)`` are calibrated from the same rows. They have one number to choose; its log loss at
a fixed grid of temperatures is a mean over rows, so it can be pooled over batches and sites without keeping a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.record import Between, record, require

TERMS = ("relative-mahalanobis", "whitened-cosine", "span-cosine", "span-distance", "rest")

REST = TERMS.index("rest")

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

SUFFICIENT = 200
"""Rows that a pooled number should rest on before those of younger models are set aside."""

AGEING = (8, 6, 4, 3, 2, 1)
"""Powers to try, the strongest discount of young models first."""

_UNKNOWN_AGEING = 2
"""Power of the share of samples with which unknown rows of younger models count."""

_TERMS = len(TERMS)
_COLUMNS = _TERMS + 1  # the last is 1 / count of the nearest class
_FLAT = 1e-3  # least spread of a term, in units of its mean (or 1): one that never varies must not decide


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

    def check(self) -> None:
        """Raise :class:`FileFormatError` where no rows can have such moments."""
        require(self.n > 0 and self.size > 0, "it is of no rows, or of a model without samples")
        lengths = len(self.mean), len(self.second)
        require(lengths == (_COLUMNS, _COLUMNS**2), f"it has {lengths} numbers of {_COLUMNS} terms")
        second = np.reshape(self.second, (_COLUMNS, _COLUMNS))
        roots = np.sqrt(np.where(second.diagonal() > 0.0, second.diagonal(), 1.0))
        with np.errstate(over="ignore", invalid="ignore"):
            covariance = (second - np.outer(self.mean, self.mean)) / np.outer(roots, roots)
        # Rounding of sums over n rows moves an eigenvalue by a few n times 1e-16 in these units.
        require(_least_eigenvalue(covariance) >= -1e-7, "its products of terms are not those of any rows")


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
        require(self.n > 0 and self.size > 0, "it is of no rows, or of a model without samples")
        lengths = len(self.mean), len(self.spread)
        require(lengths == (_TERMS, _TERMS**2), f"it has {lengths} numbers of {_TERMS} terms")
        require(max(map(abs, self.mean)) <= CLIP, f"a mean lies beyond {CLIP:g} spreads")
        # What known rows add may be rounded by much more than this one's own, but by far less than the prior.
        least = _least_eigenvalue(np.reshape(self.spread, (_TERMS, _TERMS)))
        require(least > -0.5 * PRIOR_STRENGTH, "its spread is not that of any rows")


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

    def score(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the novelty (n,) of rows with terms (n, 6)."""
        mean = np.asarray(self.mean)
        with np.errstate(over="ignore", invalid="ignore"):
            standard = (terms[:, :_TERMS] - mean[:_TERMS]) / np.asarray(self.scale)
            excess = standard @ np.asarray(self.weights) - self.slope * (terms[:, _TERMS] - mean[_TERMS])
            scores = excess / self.spread + np.maximum(standard[:, REST] - GUARD, 0.0)
        # What is too large for arithmetic is as unknown as can be.
        return np.asarray(np.where(np.isfinite(scores), scores, np.finfo(np.float64).max))

    def from_units(self, units: NDArray[np.float64]) -> NoveltyStandard:
        """Return the same score of terms as they come, where this one is of terms in units (:func:`term_units`)."""
        mean, scale = units[0] + units[1] * np.asarray(self.mean), units[1, :_TERMS] * np.asarray(self.scale)
        return replace(self, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds numbers of all terms."""
        lengths = (len(self.weights), len(self.mean), len(self.scale))
        require(lengths == (_TERMS, _COLUMNS, _TERMS), f"it has {lengths} numbers of {_TERMS} terms")
        require(min(self.weights) >= 0.0 and min(self.scale) > 0.0, "a weight is negative or a spread not positive")


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
    >>> from evergrow.head.novelty import KnownTerms, NoveltyPool
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
        from scipy.optimize import nnls

        sizes = np.array([part.size for part in self.unknown], dtype=np.float64)
        shares = np.array([part.n for part in self.unknown]) * (sizes / sizes.max()) ** _UNKNOWN_AGEING
        shares = shares / shares.sum()
        mean = shares @ np.array([part.mean for part in self.unknown])
        spread = (shares @ np.array([part.spread for part in self.unknown])).reshape(_TERMS, _TERMS)
        strength = max(float(default @ mean) / max(float(default @ spread @ default), 1e-12), 1e-3)
        lower = np.linalg.cholesky(spread + PRIOR_STRENGTH * np.eye(_TERMS))
        wanted = mean + PRIOR_STRENGTH * strength * default
        found = nnls(lower.T, np.linalg.solve(lower, wanted))[0]  # |L^T w - L^-1 v|^2 is the quadratic above
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
        return mean, np.maximum(np.sqrt(variance), _FLAT * np.maximum(np.abs(mean[:_TERMS]), 1.0)), covariance


def term_units(expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return origin and unit (2, 6) of each term: what a model's statistics alone expect of known rows.

    Terms drift while a model learns classes. In these units those of a younger model can be pooled with later ones.

    Parameters
    ----------
    expected : ndarray of shape (n, 6)
        Terms of rows as the statistics expect them. 1 / count keeps its own unit.
    """
    mean = expected.mean(axis=0)
    spread = np.maximum(expected.std(axis=0), _FLAT * np.abs(mean))
    mean[_TERMS], spread[_TERMS] = 0.0, 1.0
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
    >>> from evergrow.head.novelty import ageing_weights
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
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-9 * np.abs(matrix).max()):
        return -np.inf
    return float(np.linalg.eigvalsh(matrix)[0])


# -- temperatures -------------------------------------------------------------------------------------------------

STEPS_PER_OCTAVE = 4

TEMPERATURES: tuple[float, ...] = tuple(float(2.0 ** (step / STEPS_PER_OCTAVE)) for step in range(-8, 49))
"""The grid, from 1/4 to 4,096."""

GUESS_LOSS = 0.05
"""Loss, in nats a batch, of a temperature that is off the guess by a factor of e. It decides only where the rows do
not: on rows that are all recognised without doubt the log loss has no minimum."""


def guess_losses(guess: float) -> NDArray[np.float64]:
    """Return the loss of a batch at every temperature of the grid for being off a guess."""
    return np.asarray(GUESS_LOSS * np.log(np.array(TEMPERATURES) / guess) ** 2)


def best_temperature(losses: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the temperature with the smallest loss, between the points of the grid by a parabola.

    Parameters
    ----------
    losses : sequence of 57 floats
        Loss at every temperature of the grid.

    Examples
    --------
    >>> from evergrow.head.novelty import TEMPERATURES, best_temperature
    >>>     >>> round(best_temperature([math.log(T / 3.0) ** 2 for T in TEMPERATURES]), 6)
    3.0
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.shape != (len(TEMPERATURES),):
        raise InputError(f"losses must be {len(TEMPERATURES)} numbers, got shape {values.shape}")
    place = int(values.argmin())
    if 0 < place < len(values) - 1:
        before, here, after = values[place - 1 : place + 2]
        curvature = float(before - 2.0 * here + after)
        if curvature > 0.0:
            step = 0.5 * float(before - after) / curvature
            return TEMPERATURES[place] * float(2.0 ** (step / STEPS_PER_OCTAVE))
    return TEMPERATURES[place]
