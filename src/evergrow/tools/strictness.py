"""Decide which predictions to act on, and estimate how many of them are wrong.

A prediction has two doubts: which class, and whether any learned class. `STRICTNESS`
names three pairs of limits for both. Held-out rows of known classes, and rows of
classes that were unknown when they were measured, show what a pair of limits costs.
The predictions of a set of images show how many of them are of unknown classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_choice, check_number

if TYPE_CHECKING:
    from evergrow.learner.calibration import Calibration, ScoredRows
    from evergrow.learner.predictions import Predictions


class AcceptanceLimits(NamedTuple):
    """Limits within which a prediction is accepted; all others are unsure.

    Parameters
    ----------
    false_alarm : float
        Fraction of known samples above the novelty limit.
    probability : float
        Smallest probability of the predicted class.
    """

    false_alarm: float
    probability: float


STRICTNESS = {
    "few": AcceptanceLimits(0.05, 0.8),
    "some": AcceptanceLimits(0.15, 0.7),
    "many": AcceptanceLimits(0.3, 0.7),
}
"""Limits by how many samples of unknown classes are expected."""

USUAL = "some"
"""Default strictness."""

BIN_ALARMS = (0.5, 0.25, 0.1, 0.03)
"""Fractions of known samples above the edges between bins of novelty."""

N_BINS = len(BIN_ALARMS) + 1
"""Number of bins of novelty, among accepted and among other predictions."""

N_RESAMPLES = 200
"""Number of bootstrap samples of an interval."""

INTERVAL = (5.0, 95.0)
"""Percentiles of an interval."""

PRIOR_CLASSES = 0.1
"""Weight of a class that looks known, next to the classes that were measured while they
were unknown. Without it, a model of few classes could promise that no sample of an
unknown class is accepted."""

MIN_UNKNOWN_CLASSES = 4
"""Classes of unknown rows that an estimate needs."""

_EM_STEPS = 100

_SMALLEST_FRACTION = 1e-3  # of a bin, so that no bin is impossible


def limits_of(strangers: str, probability: float | None = None) -> AcceptanceLimits:
    """Return the limits for an expected number of samples of unknown classes.

    Parameters
    ----------
    strangers : {"few", "some", "many"}
        How many samples of unknown classes to expect.
    probability : float, optional
        Another limit of probability.
    """
    check_choice("strangers", strangers, STRICTNESS)
    limits = STRICTNESS[strangers]
    if probability is None:
        return limits
    check_number("least", probability, low=0, high=1)
    return AcceptanceLimits(limits.false_alarm, float(probability))


def unsure_mask(
    calibration: Calibration, predictions: Predictions, limits: AcceptanceLimits
) -> NDArray[np.bool_]:
    """Return which predictions are outside of the limits.

    Unknown samples are always outside. With a single class only the limit of novelty
    holds.

    Parameters
    ----------
    calibration : Calibration
        The held-out rows of the model. Without any, only the limit of probability
        holds.
    predictions : Predictions
        Predictions of the model. Without novelty, only the limit of probability holds.
    limits : AcceptanceLimits
        The limits.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.tools.strictness import STRICTNESS, unsure_mask
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(300) % 6
    >>> X = rng.normal(size=(300, 8)) + 4 * np.eye(8)[y]
    >>> learner = Learner(None, options={"n_units": 20}).fit(X, y)
    >>> predictions = learner.predictions(X[:100], false_alarm=0.05)
    >>> mask = unsure_mask(learner.state_.calibration, predictions, STRICTNESS["few"])
    >>> mask.shape
    (100,)
    """
    mask = np.zeros(len(predictions.values), dtype=bool)
    if predictions.measure == "probability":
        mask |= predictions.values.max(axis=1) < limits.probability
    if predictions.novelty is not None and calibration.n:
        # A novelty that is not finite is outside, too.
        mask |= ~(predictions.novelty <= calibration.threshold(limits.false_alarm))
    if predictions.unknown is not None:
        mask |= predictions.unknown
    return np.asarray(mask)


def unsure_predictions(
    calibration: Calibration, predictions: Predictions, strangers: str = USUAL
) -> NDArray[np.bool_] | None:
    """Return which predictions are unsure; None if they have scores only.

    Parameters
    ----------
    calibration : Calibration
        The held-out rows of the model.
    predictions : Predictions
        Predictions of the model.
    strangers : {"few", "some", "many"}, default="some"
        How many samples of unknown classes to expect.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.tools.strictness import unsure_predictions
    >>> learner = Learner(None, options={"n_units": 20})
    >>> learner = learner.fit(np.eye(4).repeat(6, axis=0), list("abcd") * 6)
    >>> predictions = learner.predictions(np.eye(4), false_alarm=0.05)
    >>> unsure_predictions(learner.state_.calibration, predictions)
    array([ True,  True,  True,  True])
    """
    limits = limits_of(strangers)
    if predictions.measure == "score":
        return None
    return unsure_mask(calibration, predictions, limits)


@dataclass(frozen=True)
class ExpectedRates:
    """Fractions of samples that limits reject or accept, measured on held-out rows.

    Parameters
    ----------
    known_not_accepted : float
        Fraction of samples of known classes that are not accepted under their
        class.
    unknown_accepted : float or None
        Fraction of samples of unknown classes that are accepted. None if no class was
        measured while it was unknown.
    """

    known_not_accepted: float
    unknown_accepted: float | None


def expected_rates(calibration: Calibration, limits: AcceptanceLimits) -> ExpectedRates:
    """Return the fractions of samples that limits reject or accept.

    Parameters
    ----------
    calibration : Calibration
        The held-out rows of a model.
    limits : AcceptanceLimits
        The limits.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.tools.strictness import STRICTNESS, expected_rates
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(300) % 6
    >>> X = rng.normal(size=(300, 8)) + 4 * np.eye(8)[y]
    >>> learner = Learner(None, options={"n_units": 20}).fit(X, y)
    >>> rates = expected_rates(learner.state_.calibration, STRICTNESS["some"])
    >>> 0.1 < rates.known_not_accepted < 0.3
    True
    """
    threshold = calibration.threshold(limits.false_alarm)
    known = calibration.known_rows()
    unknown = calibration.unknown_rows()
    is_accepted = _is_accepted(known, threshold, limits)
    not_accepted = 1.0 - float(np.average(is_accepted, weights=known.weights))
    unknown_accepted = None
    n_classes = len(np.unique(unknown.codes))
    if n_classes >= MIN_UNKNOWN_CLASSES:
        accepted = _is_accepted(unknown, threshold, limits)
        measured = float(np.average(accepted, weights=unknown.weights))
        like_known = 1.0 - not_accepted
        total = n_classes * measured + PRIOR_CLASSES * like_known
        unknown_accepted = total / (n_classes + PRIOR_CLASSES)
    return ExpectedRates(not_accepted, unknown_accepted)


def _is_accepted(
    rows: ScoredRows, threshold: float, limits: AcceptanceLimits
) -> NDArray[np.bool_]:
    """Return a mask of the rows within both limits."""
    return np.asarray(
        (rows.novelty <= threshold) & (rows.probability >= limits.probability)
    )


@dataclass(frozen=True)
class UnknownEstimate:
    """Estimated number of samples of unknown classes, with intervals of 90 %.

    Parameters
    ----------
    unknown : float
        Number among all samples.
    unknown_interval : tuple of float
        Its interval.
    accepted : float
        Number among the accepted samples.
    accepted_interval : tuple of float
        Its interval.
    """

    unknown: float
    unknown_interval: tuple[float, float]
    accepted: float
    accepted_interval: tuple[float, float]


def estimate_unknown(
    calibration: Calibration,
    novelty: NDArray[np.float64],
    probability: NDArray[np.float64],
    limits: AcceptanceLimits,
    seed: int = 0,
) -> UnknownEstimate | None:
    """Estimate how many samples are of unknown classes, and how many are accepted.

    The samples are a mixture of known ones, of unknown ones like those in the
    calibration, and of unknown ones above the highest bin of novelty. The fractions
    that maximise the likelihood of the counts per bin are estimated; the interval is a
    bootstrap over samples, held-out rows and unknown classes.

    Parameters
    ----------
    calibration : Calibration
        The held-out rows of the model.
    novelty : ndarray of shape (n,)
        Novelty scores of the samples.
    probability : ndarray of shape (n,)
        Largest class probability of each sample.
    limits : AcceptanceLimits
        The limits within which samples are accepted.
    seed : int, default=0
        Seed of the bootstrap.

    Returns
    -------
    UnknownEstimate or None
        None if the model has measured too few classes while they were unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.tools.strictness import STRICTNESS, estimate_unknown
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(400) % 8
    >>> X = rng.normal(size=(400, 9)) + 3 * rng.normal(size=(8, 9))[y]
    >>> learner = Learner(None, options={"n_units": 20}).fit(X, y)
    >>> new = 3 * rng.normal(size=(50, 9))
    >>> predictions = learner.predictions(new, false_alarm=0.05)
    >>> found = estimate_unknown(
    ...     learner.state_.calibration,
    ...     predictions.novelty,
    ...     predictions.values.max(axis=1),
    ...     STRICTNESS["some"],
    ... )
    >>> found.unknown > 25
    True
    """
    unknown = calibration.unknown_rows()
    n_classes = len(np.unique(unknown.codes))
    if n_classes < MIN_UNKNOWN_CLASSES or not len(novelty):
        return None
    binning = _Binning.of(calibration, limits)
    known = calibration.known_rows()
    known_bins = binning.of_rows(known.novelty, known.probability)
    unknown_bins = binning.of_rows(unknown.novelty, unknown.probability)
    per_class = [
        _fractions(unknown_bins[unknown.codes == code]) for code in range(n_classes)
    ]
    known_fractions = _fractions(known_bins, known.weights)
    # One more class, which looks known, stands for the classes not measured.
    class_fractions = np.stack([*per_class, known_fractions])
    sample_bins = binning.of_rows(novelty, probability)
    counts = np.bincount(sample_bins, minlength=2 * N_BINS)
    unknown_fractions = _unknown_fractions(
        known_fractions, class_fractions.mean(axis=0), counts
    )

    rng = np.random.default_rng(derive_seed(seed, "strictness", "bootstrap"))
    draws = []
    for _ in range(N_RESAMPLES):
        row_weights = known.weights * rng.exponential(size=len(known))
        class_weights = rng.dirichlet(np.ones(len(class_fractions)))
        drawn_fractions = _unknown_fractions(
            _fractions(known_bins, row_weights),
            class_weights @ class_fractions,
            rng.multinomial(len(novelty), counts / len(novelty)),
        )
        # The fraction per bin is expected; the number of unknown samples varies.
        draws.append(rng.binomial(counts, drawn_fractions))
    unknown_counts = np.array(draws)
    return UnknownEstimate(
        unknown=float(unknown_fractions @ counts),
        unknown_interval=_interval(unknown_counts.sum(axis=1)),
        accepted=float(unknown_fractions[N_BINS:] @ counts[N_BINS:]),
        accepted_interval=_interval(unknown_counts[:, N_BINS:].sum(axis=1)),
    )


def _interval(draws: NDArray[np.int64]) -> tuple[float, float]:
    """Return the interval of bootstrap draws (N_RESAMPLES,)."""
    low, high = np.percentile(draws, INTERVAL)
    return float(low), float(high)


class _Binning(NamedTuple):
    """Bins by novelty: the first half for unsure samples, the second for accepted ones.

    Parameters
    ----------
    edges : ndarray of shape (N_BINS - 1,)
        Edges between bins of novelty, ascending.
    threshold : float
        Largest novelty of accepted samples.
    probability : float
        Smallest probability of accepted samples.
    """

    edges: NDArray[np.float64]
    threshold: float
    probability: float

    @classmethod
    def of(cls, calibration: Calibration, limits: AcceptanceLimits) -> _Binning:
        """Return the bins of a model, with the same fractions of known samples."""
        edges = np.array([calibration.threshold(rate) for rate in BIN_ALARMS])
        threshold = calibration.threshold(limits.false_alarm)
        return cls(edges, threshold, limits.probability)

    def of_rows(
        self, novelty: NDArray[np.float64], probability: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the bin of each row, from 0 to ``2 * N_BINS - 1``."""
        is_accepted = (novelty <= self.threshold) & (probability >= self.probability)
        return np.asarray(np.searchsorted(self.edges, novelty) + N_BINS * is_accepted)


def _fractions(
    bins: NDArray[np.int64], weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the fraction of some rows, or of their weight, in each bin."""
    totals = np.bincount(bins, weights, 2 * N_BINS)
    return np.asarray(totals / totals.sum())


def _unknown_fractions(
    known: NDArray[np.float64],
    unknown: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the probability that a sample of each bin is of an unknown class.

    Parameters
    ----------
    known, unknown : ndarray of shape (2 * N_BINS,)
        Fraction of known and of unknown rows in each bin. The last half is accepted.
    counts : ndarray of shape (2 * N_BINS,)
        Samples in each bin.
    """
    far = np.zeros(2 * N_BINS)
    far[N_BINS - 1] = 1.0
    parts = np.stack([known, unknown, far]) + _SMALLEST_FRACTION
    parts = parts / parts.sum(axis=1, keepdims=True)
    fractions = np.array([0.6, 0.3, 0.1])
    posterior = parts
    for _ in range(_EM_STEPS):
        posterior = fractions[:, None] * parts
        posterior = posterior / posterior.sum(axis=0)
        fractions = posterior @ counts / counts.sum()
    return np.asarray(np.clip(1.0 - posterior[0], 0.0, 1.0))
