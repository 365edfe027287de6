"""Test whether new samples still look like the training data, class by class.

Samples are grouped by predicted class. Their novelty is compared with the held-out
novelty of the training data: ranks are turned into normal scores z, and each class is
tested by its mean z. Means differ a little between classes without any drift. The
variance tau^2 of this difference is estimated robustly from all classes together, so
that a few drifted classes do not hide themselves.

If labels are given, a second test compares the number of wrong predictions with the
number that their probabilities imply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.data.inputs import as_names
from evergrow.learner.calibration import FALSE_ALARM

if TYPE_CHECKING:
    from evergrow.learner.calibration import Calibration
    from evergrow.learner.learner import Learner

MIN_SAMPLES = 3
"""Predicted classes with fewer new samples are not tested."""


@dataclass(frozen=True)
class ClassDrift:
    """The drift test of one class.

    Parameters
    ----------
    name : str
        Predicted class.
    samples : int
        Number of new samples.
    novelty : float
        Mean normal score of their novelty. 0 without drift.
    p : float
        p-value of the test.
    changed : bool
        Whether the p-value is below the false alarm rate.
    """

    name: str
    samples: int
    novelty: float
    p: float
    changed: bool


@dataclass(frozen=True)
class Drift:
    """The drift tests of all classes.

    Parameters
    ----------
    classes : tuple of ClassDrift
        The tested classes, the smallest p-value first.
    untested : int
        Number of samples in classes with too few samples.
    false_alarm : float
        Fraction of unchanged classes that may be reported as changed.
    """

    classes: tuple[ClassDrift, ...]
    untested: int
    false_alarm: float

    @property
    def fraction(self) -> float:
        """Fraction of the tested classes that changed."""
        n_changed = sum(entry.changed for entry in self.classes)
        return n_changed / max(len(self.classes), 1)


def drift(
    learner: Learner, data: Any, y: Any = None, *, false_alarm: float = FALSE_ALARM
) -> Drift:
    """Test for every class whether new samples still look like the training data.

    The learner is not changed; :meth:`evergrow.Learner.fade` reduces the weight of what
    it has learned.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : object
        New samples, in any form that `Learner.predict` takes.
    y : array-like of shape (n,), optional
        True labels of the new samples. If given, predictions are tested as well.
    false_alarm : float, default=0.05
        Fraction of unchanged classes that may be reported as changed.

    Returns
    -------
    Drift
        One test per predicted class with enough samples.

    Raises
    ------
    InputError
        If no class has enough samples.
    UnsupportedError
        If the method of the learner cannot score novelty.
    NotFittedError
        If nothing was learned yet, or the calibration has no held-out sample.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Learner
    >>> from evergrow.tools import drift
    >>> X, y = load_digits(return_X_y=True)
    >>> learner = Learner(None, options={"n_units": 100}).fit(X[:900], y[:900])
    >>> drift(learner, 16 - X[900:]).fraction
    1.0
    """
    predictions = learner.predictions(data, false_alarm=false_alarm)
    best = predictions.values.argmax(axis=1)
    labels = None
    if y is not None:
        n_items = len(predictions.rows) + len(predictions.failures)
        labels = as_names(y, n_items)[predictions.rows]
    assert predictions.novelty is not None
    return find_drift(
        learner.state_.calibration,
        predictions.novelty,
        predictions.classes[best],
        predictions.values.max(axis=1),
        labels,
        false_alarm,
    )


def find_drift(
    calibration: Calibration,
    novelty: NDArray[np.float64],
    predicted: NDArray[np.str_],
    probability: NDArray[np.float64],
    labels: NDArray[np.str_] | None,
    false_alarm: float,
) -> Drift:
    """Test every predicted class for drift, with predictions at hand.

    Parameters
    ----------
    calibration : Calibration
        Held-out novelty of the training data.
    novelty : ndarray of shape (n,)
        Novelty of the new samples.
    predicted : ndarray of str of shape (n,)
        Predicted classes.
    probability : ndarray of shape (n,)
        Probability of each prediction.
    labels : ndarray of str of shape (n,) or None
        True classes, if known.
    false_alarm : float
        Fraction of unchanged classes that may be reported as changed.
    """
    from scipy.stats import norm

    held_out = calibration.scores
    ranks = np.searchsorted(held_out, novelty, side="left")
    scores = norm.ppf((ranks + 0.5) / (len(held_out) + 1.0))
    names, codes, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    tested = np.flatnonzero(counts >= MIN_SAMPLES)
    if len(tested) == 0:
        raise InputError(
            f"No class has {MIN_SAMPLES} of the {len(novelty):,} samples: "
            "nothing can be tested. Use more samples."
        )
    means = np.bincount(codes, scores) / counts
    residuals = (scores - means[codes])[counts[codes] >= MIN_SAMPLES]
    spread = float(np.sqrt(np.mean(residuals**2)) or 1.0)  # 1 if all are equal
    noise = spread**2 / counts[tested]
    between = _variance_between_classes(means[tested], noise)
    # The last term is the noise of the held-out scores.
    p_values = norm.sf(means[tested] / np.sqrt(between + noise + 1.0 / len(held_out)))
    if labels is not None:
        p_wrong = _p_wrong_predictions(
            codes, counts, tested, probability, labels == predicted
        )
        # Smaller of two p-values, corrected for the choice (Sidak).
        p_values = 1.0 - (1.0 - np.minimum(p_values, p_wrong)) ** 2
    classes = [
        ClassDrift(
            str(names[code]), int(counts[code]), float(means[code]), p, p < false_alarm
        )
        for code, p in zip(tested, p_values.tolist(), strict=True)
    ]
    classes.sort(key=lambda entry: entry.p)
    untested = int(counts.sum() - counts[tested].sum())
    return Drift(tuple(classes), untested, false_alarm)


def _p_wrong_predictions(
    codes: NDArray[np.int64],
    counts: NDArray[np.int64],
    tested: NDArray[np.int64],
    probability: NDArray[np.float64],
    is_right: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return p-values for more wrong predictions than the probabilities imply.

    Parameters
    ----------
    codes, probability, is_right : ndarray of shape (n,)
        Predicted class number, its probability, and whether it is right, per sample.
    counts : ndarray of shape (C,)
        Number of samples of each predicted class.
    tested : ndarray of int of shape (T,)
        The classes to test.

    Returns
    -------
    ndarray of shape (T,)
    """
    from scipy.stats import pearson3

    n_rows = counts[tested]
    row_variance = probability * (1.0 - probability)
    row_third_moment = row_variance * (2.0 * probability - 1.0)

    excess = np.bincount(codes, probability - is_right)[tested] / n_rows
    noise = (np.bincount(codes, row_variance)[tested] + 0.25) / n_rows**2
    variance = _variance_between_classes(excess, noise) + noise
    # The distribution of few errors is skewed.
    third_moment = np.bincount(codes, row_third_moment)[tested] / n_rows**3
    skewness = third_moment / variance**1.5
    z = excess / np.sqrt(variance)
    return np.asarray(pearson3.sf(z, skewness))


def _variance_between_classes(
    means: NDArray[np.float64], noise: NDArray[np.float64]
) -> float:
    """Estimate the variance of class means beyond noise, robust to a few outliers."""
    from scipy.stats import median_abs_deviation

    variance = median_abs_deviation(means, scale="normal") ** 2
    return float(max(variance - np.median(noise), 0.0))
