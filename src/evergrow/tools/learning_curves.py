"""Learning curves: accuracy against samples per class, and the gain of more samples.

A third of each class is held out. 1, 2, 5, 10, ... of the other samples are learned
through the model's own layer, several times over. Errors are modelled as
``e + b k^-c``. The gain of more samples is read off this curve. Its interval comes from
curves that fit about as well: errors are redrawn with their sampling noise, for every
likely exponent c.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.seeding import derive_seed
from evergrow.tools.labelled_data import labelled_features

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier
    from evergrow.learner.learner import Learner

EXTRA_SAMPLES = 10
"""Additional samples per class whose gain is predicted."""

ENOUGH_GAIN = 0.005
"""With a smaller predicted gain in accuracy, more samples would not help."""

COVERAGE = 0.9
"""Fraction of true gains that should lie in their interval."""

CURVE_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Samples per class at which the accuracy is measured, if there are as many."""

MIN_SAMPLES_PER_CLASS = 3
"""A third of each class is held out, so fewer leave no sample to test or to learn."""

N_SPLITS = 3
"""Random splits over which accuracies are averaged."""

N_REDRAWS = 400
"""Redrawn error curves, whose quantiles give the interval of the gain."""

EXPONENTS = np.array([0.2, 0.35, 0.5, 0.7, 1.0, 1.4])


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Accuracy against samples per class.

    Parameters
    ----------
    sizes : ndarray of int of shape (m,)
        Samples per class that were learned.
    accuracy : ndarray of shape (m,)
        Accuracy on held-out samples, averaged over splits.
    interval : ndarray of shape (m, 2)
        90 % interval of the accuracy.
    median_samples : int
        Median number of samples per class in the data.
    gain : (float, float, float)
        Predicted gain in accuracy of :data:`EXTRA_SAMPLES` more samples per class, and
        both ends of its 90 % interval.
    recall_gains : dict of str to float
        Gain in recall of each class from the last doubling of samples, largest first.
    left_out : tuple of str
        Names of unreadable items, which were skipped.
    """

    sizes: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    interval: NDArray[np.float64]
    median_samples: int
    gain: tuple[float, float, float]
    recall_gains: dict[str, float]
    left_out: tuple[str, ...] = ()

    @property
    def is_enough(self) -> bool:
        """Whether more samples would hardly improve the accuracy."""
        return self.gain[0] < ENOUGH_GAIN

    def to_values(self) -> dict[str, Any]:
        """Return the fields and ``is_enough`` as lists, numbers and strings."""
        values: dict[str, Any] = {}
        for name, value in vars(self).items():
            is_array = isinstance(value, np.ndarray)
            values[name] = value.tolist() if is_array else value
        values["is_enough"] = self.is_enough
        return values


def learning_curve(learner: Learner, data: Any, y: Any = None) -> LearningCurve:
    """Measure accuracy against samples per class, and predict the gain of more samples.

    The learner is not changed. Parts of the data are learned through its layer and
    tested on the rest.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data, y : object
        Labelled samples, in any form that `Learner.fit` takes.

    Returns
    -------
    LearningCurve

    Raises
    ------
    InputError
        If the data has fewer than two classes, or a median of fewer than three samples
        per class.
    UnsupportedError
        If the method of the learner cannot be trained anew with the same layer.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Learner
    >>> from evergrow.tools import learning_curve
    >>> X, y = load_digits(return_X_y=True)
    >>> learner = Learner(None, options={"n_units": 50}).fit(X[:200], y[:200])
    >>> learning_curve(learner, X[200:400], y[200:400]).sizes.tolist()
    [1, 2, 5, 10, 14]
    """
    X, labels, left_out = labelled_features(learner, data, y)
    seed = 0
    if isinstance(learner.random_state, int):
        seed = learner.random_state
    curve = _measure_curve(learner.head_, X, labels, seed)
    return replace(curve, left_out=left_out)


def _measure_curve(
    head: IncrementalClassifier, X: NDArray[Any], labels: NDArray[np.str_], seed: int
) -> LearningCurve:
    """Measure the learning curve of labelled feature vectors.

    Parameters
    ----------
    head : IncrementalClassifier
        Supplies the layer. It is not changed.
    X : ndarray of shape (n, d)
        Feature vectors.
    labels : ndarray of str of shape (n,)
        Class names.
    seed : int
        Seed of the splits.
    """
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    median_count = int(np.median(counts))
    if len(names) < 2 or median_count < MIN_SAMPLES_PER_CLASS:
        raise InputError(
            "A learning curve needs at least two classes and "
            f"{MIN_SAMPLES_PER_CLASS} samples per class, got {len(names)} classes "
            f"with {median_count} samples."
        )
    sizes = _curve_sizes(median_count)
    split_accuracy = np.zeros((N_SPLITS, len(sizes)))
    right_per_class = np.zeros((len(sizes), len(names)))
    for split in range(N_SPLITS):
        rng = np.random.default_rng(derive_seed(seed, "learning curve", split))
        rank = _rank_in_class(codes, len(names), rng)
        held_out = rank < 0
        for step, size in enumerate(sizes):
            rows = np.flatnonzero(~held_out & (rank < size))
            trained = head.spawn().partial_fit(X[rows], labels[rows])
            is_right = trained.predict(X[held_out]) == labels[held_out]
            split_accuracy[split, step] = is_right.mean()
            right_per_class[step] += np.bincount(
                codes[held_out], is_right, minlength=len(names)
            )
    n_held_out = int(held_out.sum())
    accuracy = split_accuracy.mean(axis=0)
    recalls = right_per_class / np.maximum(N_SPLITS * (counts // 3), 1)
    return LearningCurve(
        sizes=sizes,
        accuracy=accuracy,
        interval=_accuracy_interval(accuracy, n_held_out),
        median_samples=median_count,
        gain=_predicted_gain(1.0 - accuracy, sizes, n_held_out, median_count, seed),
        recall_gains=_recall_gains(names.tolist(), recalls, sizes),
    )


def _curve_sizes(median_count: int) -> NDArray[np.int64]:
    """Return the numbers of samples per class at which accuracy is measured."""
    largest = max(median_count - median_count // 3, 2)
    sizes = [size for size in CURVE_SIZES if size < 0.8 * largest]
    return np.array([*sizes, largest])


def _rank_in_class(
    codes: NDArray[np.int64], n_classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the random rank of each row in its class.

    Held-out rows, a third of each class, have negative ranks.
    """
    order = rng.permutation(len(codes))
    rank = np.empty(len(codes), dtype=np.int64)
    for code in range(n_classes):
        rows = order[codes[order] == code]
        rank[rows] = np.arange(len(rows)) - len(rows) // 3
    return rank


def _accuracy_interval(accuracy: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return 90 % intervals (m, 2) of m accuracies measured on n rows each."""
    variance = np.maximum(accuracy * (1.0 - accuracy), 1.0 / n)
    margin = 1.645 * np.sqrt(variance / n)
    interval = np.stack([accuracy - margin, accuracy + margin], axis=1)
    return np.asarray(interval.clip(0.0, 1.0))


def _recall_gains(
    names: list[str], recalls: NDArray[np.float64], sizes: NDArray[np.int64]
) -> dict[str, float]:
    """Return the gain in recall from the last doubling of samples, largest first."""
    half = int(np.abs(sizes - sizes[-1] / 2).argmin())
    gains = (recalls[-1] - recalls[half]).tolist()
    pairs = zip(names, gains, strict=True)
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def _predicted_gain(
    errors: NDArray[np.float64], sizes: NDArray[np.int64], n: int, k: int, seed: int
) -> tuple[float, float, float]:
    """Return the gain of ten more samples per class, with its interval.

    Parameters
    ----------
    errors : ndarray of shape (m,)
        Error rates, measured on n rows.
    sizes : ndarray of int of shape (m,)
        Samples per class.
    n, k : int
        Held-out rows, and samples per class in the data.
    seed : int
        Seed of the redrawn errors.

    Returns
    -------
    (float, float, float)
        Median gain, and both ends of its interval.
    """
    rng = np.random.default_rng(derive_seed(seed, "gain", n))
    noise = np.sqrt(np.maximum(errors * (1.0 - errors), 1.0 / n) / n)
    # The held-out rows are the same at all sizes: half of the noise is common to all.
    common = rng.normal(size=(N_REDRAWS, 1))
    independent = rng.normal(size=(N_REDRAWS, len(sizes)))
    redrawn = errors + noise * (common + independent) / np.sqrt(2.0)
    misfits, gains = _fit_curves(redrawn, noise, sizes, k)
    exponent = _draw_exponents(misfits, rng)
    drawn_gains = gains[np.arange(N_REDRAWS), exponent]
    # A measured gain has sampling noise as well.
    gain_noise = np.sqrt(np.maximum(drawn_gains, 0.0) / n)
    drawn_gains = drawn_gains + rng.normal(size=N_REDRAWS) * gain_noise
    tail = (1.0 - COVERAGE) / 2
    low, high = np.quantile(drawn_gains, [tail, 1.0 - tail])
    return float(np.median(drawn_gains)), float(low), float(high)


def _draw_exponents(
    misfits: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the index of an exponent for every redrawn curve, by its likelihood.

    Parameters
    ----------
    misfits : ndarray of shape (n_redraws, n_exponents)
        Weighted residual norms.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    ndarray of int of shape (n_redraws,)
    """
    best = misfits.min(axis=1, keepdims=True)
    likelihood = np.exp(-0.5 * (misfits**2 - best**2))
    probability = likelihood / likelihood.sum(axis=1, keepdims=True)
    cumulative = np.cumsum(probability, axis=1)
    uniform = rng.random((len(misfits), 1))
    exponent = (uniform > cumulative).sum(axis=1)
    return np.asarray(np.minimum(exponent, misfits.shape[1] - 1))


def _fit_curves(
    errors: NDArray[np.float64],
    noise: NDArray[np.float64],
    sizes: NDArray[np.int64],
    k: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit ``e + b k^-c`` to every row of errors, for every exponent.

    Returns
    -------
    misfits, gains : ndarray of shape (n_redraws, n_exponents)
        Weighted residual norm, and gain of more samples beyond k.
    """
    from scipy.optimize import nnls

    misfits = np.empty((len(errors), len(EXPONENTS)))
    gains = np.empty((len(errors), len(EXPONENTS)))
    # Points near the end of the curve say most about its continuation.
    weights = np.sqrt(sizes / sizes.max()) / noise
    weighted_errors = errors * weights
    for column, exponent in enumerate(EXPONENTS):
        powers = sizes.astype(np.float64) ** -exponent
        design = np.column_stack([weights, powers * weights])
        decrease = k**-exponent - (k + EXTRA_SAMPLES) ** -exponent
        for row, target in enumerate(weighted_errors):
            coefficients, misfit = nnls(design, target)
            misfits[row, column] = misfit
            gains[row, column] = coefficients[1] * decrease
    return misfits, gains


def curve_svg(curve: LearningCurve) -> str:
    """Return the curve as an SVG image, with its interval and the predicted gain."""
    sizes = np.append(curve.sizes, curve.median_samples + EXTRA_SAMPLES)
    measured = np.column_stack([curve.accuracy, curve.interval])
    predicted = curve.accuracy[-1] + np.array(curve.gain)
    values = np.vstack([measured, predicted]).clip(0.0, 1.0)
    lowest = max(float(values.min()) - 0.02, 0.0)
    log_sizes = np.log(sizes / sizes[0])
    x = 50.0 + 400.0 * log_sizes / log_sizes[-1]
    y = 200.0 - 180.0 * (values - lowest) / (1.0 - lowest)
    points = [f"{left:.1f},{top:.1f}" for left, top in zip(x, y[:, 0], strict=True)]
    marks = "".join(
        f'<line x1="{left:.1f}" y1="{bottom:.1f}" x2="{left:.1f}" y2="{top:.1f}" '
        'stroke="#069"/>'
        f'<text x="{left:.1f}" y="218" text-anchor="middle">{size}</text>'
        for left, (_, bottom, top), size in zip(x, y, sizes, strict=True)
    )
    tick_values = np.linspace(lowest, 1.0, 4)
    ticks = "".join(
        f'<text x="44" y="{top:.0f}" text-anchor="end">{100 * value:.0f} %</text>'
        for value, top in zip(tick_values, (204, 144, 84, 24), strict=True)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 240" width="520" '
        'role="img" aria-label="learning curve" font-size="11" fill="#444">'
        f'<polyline points="{" ".join(points[:-1])}" fill="none" stroke="#069" '
        'stroke-width="2"/>'
        f'<polyline points="{" ".join(points[-2:])}" fill="none" stroke="#069" '
        f'stroke-dasharray="4 3"/>{marks}{ticks}'
        '<text x="250" y="236" text-anchor="middle">samples per class</text></svg>'
    )
