"""Prediction sets: the classes that a sample may belong to, with a stated coverage.

The coverage is the fraction of new samples of learned classes whose set has their true
class. Limits on the log loss and on the novelty are quantiles of the held-out rows of
the calibration (split conformal prediction). A class belongs to the set of a sample if
both are within the limits. The log loss of the most likely class counts as 0, so that a
set is empty only if the sample looks unknown.

Most of the allowed misses are spent on mistaken classes, and a tenth on novelty. If the
model is right more often than the coverage asks for, sets of one class suffice, and all
other misses are spent on novelty: more samples are called unknown.

Held-out rows are weighted, so that rows of smaller models count less. A new sample
counts as one row of the largest weight: with n rows of equal weight, the limit is the
``ceil((n + 1) * coverage)``-th smallest loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import NotFittedError, UnsupportedError
from evergrow.core.validation import check_number

if TYPE_CHECKING:
    from evergrow.learner.calibration import Calibration, RankedRows
    from evergrow.learner.predictions import Predictions

COVERAGE = 0.95
"""Default coverage."""

NOVELTY_SHARE = 0.1
"""Fraction of the allowed misses that is spent on novelty. With 0.2, sets of 100
species of birds are a tenth larger."""

INTERVAL = (0.05, 0.95)
"""Quantiles between which the reached coverage is stated."""

_ROUNDING = 1.0 - 1e-12  # so that a sum of weights reaches its own value


@dataclass(frozen=True, eq=False)
class SetLimits:
    """Limits within which a class belongs to a prediction set.

    Parameters
    ----------
    coverage : float
        The stated coverage.
    losses : ndarray of shape (C,)
        Largest log loss of each class. Infinite if there are too few held-out rows.
    novelty : ndarray of shape (C,)
        Largest novelty of a sample of each class.
    n_rows : float
        Effective number of held-out rows. Rows of smaller models count less.
    pooled : tuple of str or None
        Classes with too few held-out rows for their own limits. They have the limits of
        all rows. None if the coverage holds for all classes together.
    """

    coverage: float
    losses: NDArray[np.float64]
    novelty: NDArray[np.float64]
    n_rows: float
    pooled: tuple[str, ...] | None = None

    @property
    def needed_rows(self) -> int:
        """Number of held-out rows that the coverage needs."""
        return required_rows(self.coverage)

    @property
    def is_trivial(self) -> bool:
        """Whether there are too few held-out rows, so that sets have all classes."""
        return self.n_rows < self.needed_rows

    @property
    def interval(self) -> tuple[float, float]:
        """Interval that has the reached coverage in nine of ten cases.

        The coverage of a model depends on which rows were held out. It has a beta
        distribution.
        """
        from scipy.stats import beta

        n_missed = (self.n_rows + 1.0) * (1.0 - self.coverage)
        if n_missed < 1.0:
            return self.coverage, 1.0
        low, high = beta.ppf(INTERVAL, self.n_rows + 1.0 - n_missed, n_missed)
        return float(low), float(high)

    @property
    def note(self) -> str:
        """What limits the guarantee, in a sentence; empty if nothing does."""
        if self.is_trivial:
            largest = self.n_rows / (self.n_rows + 1.0)
            return (
                f"A coverage of {self.coverage:g} needs {self.needed_rows} held-out "
                f"samples, and this model has {self.n_rows:.0f}: every set has all "
                f"classes. Ask for at most {np.floor(1000 * largest) / 1000:g}, or "
                "teach more samples."
            )
        if self.pooled:
            return (
                f"{len(self.pooled)} of {len(self.losses)} classes have fewer than "
                f"{self.needed_rows} held-out samples and share one limit: the "
                "coverage holds for all samples, and not for each of these classes."
            )
        if len(self.losses) == 1:
            return "The model has one class: a set has this class or is empty."
        low, high = self.interval
        if self.coverage - low > 0.5 * (1.0 - self.coverage):
            return (
                f"The coverage rests on {self.n_rows:.0f} held-out samples. Probably "
                f"{100 * low:.1f} to {100 * high:.1f} % of new samples will be covered."
            )
        return ""


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """Prediction sets, one per readable sample.

    Parameters
    ----------
    predictions : Predictions
        Probabilities and novelty of the samples, and their row numbers.
    members : ndarray of bool of shape (n, C)
        Whether each class belongs to the set of each sample.
    limits : SetLimits
        The limits that decided it.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(400) % 4
    >>> X = rng.normal(size=(400, 6)) + 2 * np.eye(6)[y]
    >>> learner = Learner(None, options={"n_units": 20}).fit(X[:300], y[:300])
    >>> found = learner.predict_set(X[300:], coverage=0.9)
    >>> bool(found.covered(y[300:]).mean() > 0.85)
    True
    """

    predictions: Predictions
    members: NDArray[np.bool_]
    limits: SetLimits

    def __len__(self) -> int:
        return len(self.members)

    @property
    def coverage(self) -> float:
        """The stated coverage."""
        return self.limits.coverage

    @property
    def note(self) -> str:
        """What limits the guarantee, in a sentence; empty if nothing does."""
        return self.limits.note

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of classes in each set."""
        return np.asarray(self.members.sum(axis=1), dtype=np.int64)

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Whether each sample looks unknown, so that its set is empty."""
        return np.asarray(~self.members.any(axis=1))

    @property
    def labels(self) -> list[NDArray[Any]]:
        """The labels of each set, most likely first, in the type passed to `fit`."""
        labels = self.predictions.labels
        order = self.predictions.ranked(len(labels))
        sizes = self.sizes.tolist()
        # In each row, members come first.
        is_member = np.take_along_axis(self.members, order, axis=1)
        first = np.argsort(~is_member, axis=1, kind="stable")
        columns = np.take_along_axis(order, first, axis=1)
        return [labels[row[:size]] for row, size in zip(columns, sizes, strict=True)]

    def covered(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each set has the label of its sample.

        Parameters
        ----------
        y : array-like of shape (n,)
            One label per readable sample. Labels of other classes are never covered.
        """
        labels = self.predictions.labels.tolist()
        columns = {label: column for column, label in enumerate(labels)}
        found = [columns.get(label, -1) for label in np.asarray(y).tolist()]
        codes = np.array(found, dtype=np.int64)
        rows = np.arange(len(self.members))
        return np.asarray(self.members[rows, codes] & (codes >= 0))


def required_rows(coverage: float) -> int:
    """Return how many held-out rows a coverage needs.

    It is the smallest n with ``ceil((n + 1) * coverage) <= n``.

    Examples
    --------
    >>> from evergrow.learner.prediction_sets import required_rows
    >>> [required_rows(coverage) for coverage in (0.9, 0.95, 0.99)]
    [9, 19, 99]
    """
    return int(np.ceil(coverage / (1.0 - coverage) * (1.0 - 1e-9)))


def prediction_sets(predictions: Predictions, limits: SetLimits) -> PredictionSets:
    """Return the prediction sets of samples.

    Parameters
    ----------
    predictions : Predictions
        Probabilities and novelty of the samples. In the result, samples with an empty
        set are unknown.
    limits : SetLimits
        The limits of the model, from :func:`set_limits`.
    """
    novelty = predictions.novelty
    assert novelty is not None, "predictions of a calibrated model have novelty"
    with np.errstate(divide="ignore"):
        losses = -np.log(predictions.values)
    top = predictions.ranked(1)[:, 0]
    losses[np.arange(len(losses)), top] = 0.0
    # A NaN counts as unknown.
    is_known = novelty[:, None] <= limits.novelty
    members = (losses <= limits.losses) & is_known
    unknown = np.asarray(~members.any(axis=1))
    predictions = replace(predictions, unknown=unknown, threshold=limits.novelty[top])
    return PredictionSets(predictions, members, limits)


def set_limits(
    calibration: Calibration,
    classes: NDArray[np.str_],
    coverage: float,
    *,
    per_class: bool = False,
    false_alarm: float | None = None,
) -> SetLimits:
    """Return the limits of the prediction sets of a model.

    Parameters
    ----------
    calibration : Calibration
        The held-out rows of the model.
    classes : ndarray of str of shape (C,)
        Names of its classes.
    coverage : float
        Fraction of samples of known classes whose set has their class, between 0 and 1.
    per_class : bool, default=False
        Whether the coverage holds for the samples of each class. Classes with too few
        held-out rows have the limits of all rows.
    false_alarm : float, optional
        Fraction of known samples that may be called unknown. The coverage then holds
        for the other samples.

    Raises
    ------
    ParameterError
        If the coverage or the false alarm rate is not between 0 and 1.
    NotFittedError
        If there are no held-out rows.
    UnsupportedError
        If the method keeps no log losses.
    """
    check_number("coverage", coverage, low=0, high=1, low_open=True, high_open=True)
    rows = calibration.ranked_rows
    if not len(rows):
        if calibration.n:
            raise UnsupportedError(
                "this model has no log losses of held-out samples, which prediction "
                "sets need: use the method 'evergrow', or teach more samples if an "
                "older evergrow wrote the model"
            )
        raise NotFittedError(
            "prediction sets need held-out samples: learn at least two samples of a "
            "class at once"
        )
    largest = np.inf
    if false_alarm is not None:
        largest = calibration.threshold(false_alarm)
        rows = rows.take(rows.novelty <= largest)
    loss, novelty = _limits_of(rows, coverage, largest)
    losses = np.full(len(classes), loss)
    novelties = np.full(len(classes), novelty)
    pooled: list[str] | None = None
    if per_class:
        pooled = []
        for column, name in enumerate(classes.tolist()):
            own = rows.take(rows.classes == name)
            if _effective_rows(own) < required_rows(coverage):
                pooled.append(name)
            else:
                losses[column], novelties[column] = _limits_of(own, coverage, largest)
    return SetLimits(
        coverage,
        losses,
        novelties,
        _effective_rows(rows),
        None if pooled is None else tuple(pooled),
    )


def _effective_rows(rows: RankedRows) -> float:
    """Return the sum of weights, in units of the largest one."""
    if not len(rows):
        return 0.0
    return float(rows.weights.sum() / rows.weights.max())


def _limits_of(
    rows: RankedRows, coverage: float, largest: float
) -> tuple[float, float]:
    """Return the limits of loss and of novelty within which enough rows are.

    Parameters
    ----------
    rows : RankedRows
        The rows. With too few, the limit of the loss is infinite.
    coverage : float
        Fraction of new rows within both limits.
    largest : float
        Largest novelty of known samples. If it is infinite, the limit of novelty is
        computed too.
    """
    weights = rows.weights
    total = float(weights.sum() + weights.max(initial=0.0))
    needed = coverage * total * _ROUNDING
    if not len(rows) or needed > weights.sum():
        return np.inf, largest
    if np.isfinite(largest):
        return _quantile(rows.losses, weights, needed), largest
    within = 1.0 - NOVELTY_SHARE * (1.0 - coverage)
    novelty = _quantile(rows.novelty, weights, within * total * _ROUNDING)
    is_known = rows.novelty <= novelty
    is_top = rows.losses == 0.0
    if weights[is_top & is_known].sum() >= needed:
        # Sets of one class suffice.
        return 0.0, _quantile(rows.novelty[is_top], weights[is_top], needed)
    return _quantile(rows.losses[is_known], weights[is_known], needed), novelty


def _quantile(
    values: NDArray[np.float64], weights: NDArray[np.float64], needed: float
) -> float:
    """Return the smallest value up to which the weights sum to `needed`.

    If all weights together are less, the largest value is returned.
    """
    order = np.argsort(values, kind="stable")
    index = int(np.searchsorted(np.cumsum(weights[order]), needed))
    return float(values[order[min(index, len(order) - 1)]])
