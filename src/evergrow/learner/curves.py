"""Are there enough samples? Accuracy against samples per class, and what ten more of each would give.

Samples with labels are divided: a third of each class is asked about, and 1, 2, 5, 10, ... of the others are learned
through the model's own layer, several times over. Errors fall as ``e + b k^-c``. The gain of more samples is read off
that curve, and its interval off curves that fit as well: with errors drawn anew as so many samples would scatter, and
with every exponent c that is likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.seeding import derive_seed

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier

MORE = 10
"""Samples more of each class whose gain is foretold."""

ENOUGH = 0.005
"""Gain in accuracy below which more samples would not help."""

COVERAGE = 0.9
"""Share of gains that should lie in their interval."""

_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_DRAWS, _REDRAWN = 3, 400
_EXPONENTS = np.array([0.2, 0.35, 0.5, 0.7, 1.0, 1.4])
_LEAST = 3


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Accuracy against samples per class.

    Parameters
    ----------
    sizes : ndarray of int of shape (m,)
        Samples learned of each class.
    accuracy : ndarray of shape (m,)
        Share of right answers, mean over draws.
    interval : ndarray of shape (m, 2)
        Where it would lie in 9 of 10 cases.
    samples : int
        Samples of each class that the data hold, in the middle.
    gain : (float, float, float)
        What ten more of each class would add to the accuracy with all of the data, and from where to where.
    classes : dict of str to float
        What the last doubling of samples gave each class, the most first.
    """

    sizes: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    interval: NDArray[np.float64]
    samples: int
    gain: tuple[float, float, float]
    classes: dict[str, float]

    @property
    def is_enough(self) -> bool:
        """Whether more samples would hardly help."""
        return self.gain[0] < ENOUGH

    def to_values(self) -> dict[str, Any]:
        """Return plain values, with ``is_enough``."""
        parts = {
            name: part.tolist() if isinstance(part, np.ndarray) else part
            for name, part in vars(self).items()
        }
        return {**parts, "is_enough": self.is_enough}


def learning_curve(
    head: IncrementalClassifier, X: NDArray[Any], labels: NDArray[np.str_], seed: int
) -> LearningCurve:
    """Measure the curve of labelled feature vectors.

    Parameters
    ----------
    head : IncrementalClassifier
        Whose layer to learn through; it is not changed.
    X, labels : ndarray of shapes (n, d) and (n,)
        The samples.
    seed : int
        Of the divisions.
    """
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    k = int(np.median(counts))
    if len(names) < 2 or k < _LEAST:
        raise InputError(
            f"a learning curve takes two classes and {_LEAST} samples of most, got {len(names)} classes"
        )
    most = max(k - k // 3, 2)
    sizes = np.array([size for size in _SIZES if size < 0.8 * most] + [most])
    shares, found = np.zeros((_DRAWS, len(sizes))), np.zeros((len(sizes), len(names)))
    for draw in range(_DRAWS):
        order = np.random.default_rng(
            derive_seed(seed, "learning curve", draw)
        ).permutation(len(codes))
        place = np.empty(len(codes), dtype=np.int64)
        for code in range(len(names)):
            own = order[codes[order] == code]
            place[own] = np.arange(len(own)) - len(own) // 3  # below zero: asked about
        asked = place < 0
        for step, size in enumerate(sizes):
            rows = np.flatnonzero(~asked & (place < size))
            right = (
                head.spawn().partial_fit(X[rows], labels[rows]).predict(X[asked])
                == labels[asked]
            )
            shares[draw, step] = right.mean()
            found[step] += np.bincount(codes[asked], right, minlength=len(names))
    n, accuracy = int(asked.sum()), shares.mean(axis=0)
    gains = _gains(1.0 - accuracy, sizes, n, k, seed)
    low, high = np.quantile(gains, [(1.0 - COVERAGE) / 2, (1.0 + COVERAGE) / 2])
    margin = 1.645 * np.sqrt(np.maximum(accuracy * (1.0 - accuracy), 1.0 / n) / n)
    recalls = found / np.maximum(_DRAWS * (counts // 3), 1)
    half = int(np.abs(sizes - sizes[-1] / 2).argmin())
    by_class = sorted(
        zip(names.tolist(), (recalls[-1] - recalls[half]).tolist()),
        key=lambda entry: -entry[1],
    )
    interval = np.stack([accuracy - margin, accuracy + margin], axis=1).clip(0.0, 1.0)
    gain = float(np.median(gains)), float(low), float(high)
    return LearningCurve(sizes, accuracy, interval, k, gain, dict(by_class))


def _gains(
    errors: NDArray[np.float64], sizes: NDArray[np.int64], n: int, k: int, seed: int
) -> NDArray[np.float64]:
    """Return gains of MORE samples, beyond k, of curves that fit errors measured on n rows about as well as can be."""
    from scipy.optimize import nnls

    rng = np.random.default_rng(derive_seed(seed, "gain", n))
    noise = np.sqrt(np.maximum(errors * (1.0 - errors), 1.0 / n) / n)
    # The rows asked about are the same at all sizes: half of the scatter moves the whole curve.
    drawn = errors + noise * (
        rng.normal(size=(_REDRAWN, 1)) + rng.normal(size=(_REDRAWN, len(sizes)))
    ) / np.sqrt(2.0)
    misfits, gains = (
        np.empty((_REDRAWN, len(_EXPONENTS))),
        np.empty((_REDRAWN, len(_EXPONENTS))),
    )
    weights = (
        np.sqrt(sizes / sizes.max()) / noise
    )  # what is near the end says most of what comes after it
    for column, c in enumerate(_EXPONENTS):
        design = (
            np.stack([np.ones(len(sizes)), sizes.astype(np.float64) ** -c], axis=1)
            * weights[:, None]
        )
        for row in range(_REDRAWN):
            (_, slope), misfits[row, column] = nnls(design, drawn[row] * weights)
            gains[row, column] = slope * (k**-c - (k + MORE) ** -c)
    likely = np.exp(-0.5 * (misfits**2 - misfits.min(axis=1, keepdims=True) ** 2))
    chosen = (
        rng.random((_REDRAWN, 1))
        > np.cumsum(likely / likely.sum(axis=1, keepdims=True), axis=1)
    ).sum(axis=1)
    found = gains[np.arange(_REDRAWN), np.minimum(chosen, len(_EXPONENTS) - 1)]
    # A gain that is measured scatters, too.
    return np.asarray(
        found + rng.normal(size=_REDRAWN) * np.sqrt(np.maximum(found, 0.0) / n)
    )


def curve_svg(curve: LearningCurve) -> str:
    """Return the curve as an SVG image: accuracy against samples per class, its interval, and what ten more give."""
    sizes = np.append(curve.sizes, curve.samples + MORE)
    last = curve.accuracy[-1] + np.array(curve.gain)
    values = np.vstack([np.column_stack([curve.accuracy, curve.interval]), last]).clip(
        0.0, 1.0
    )
    low = max(float(values.min()) - 0.02, 0.0)
    steps = np.log(sizes / sizes[0])
    across, down = (
        50.0 + 400.0 * steps / steps[-1],
        200.0 - 180.0 * (values - low) / (1.0 - low),
    )
    points = [f"{x:.1f},{y:.1f}" for x, y in zip(across, down[:, 0])]
    marks = "".join(
        f'<line x1="{x:.1f}" y1="{bottom:.1f}" x2="{x:.1f}" y2="{top:.1f}" stroke="#069"/>'
        f'<text x="{x:.1f}" y="218" text-anchor="middle">{size}</text>'
        for x, (_, bottom, top), size in zip(across, down, sizes)
    )
    ticks = "".join(
        f'<text x="44" y="{y:.0f}" text-anchor="end">{100 * share:.0f} %</text>'
        for share, y in zip(np.linspace(low, 1.0, 4), (204, 144, 84, 24))
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 240" width="520" role="img" '
        'aria-label="learning curve" font-size="11" fill="#444">'
        f'<polyline points="{" ".join(points[:-1])}" fill="none" stroke="#069" stroke-width="2"/>'
        f'<polyline points="{" ".join(points[-2:])}" fill="none" stroke="#069" stroke-dasharray="4 3"/>{marks}{ticks}'
        '<text x="250" y="236" text-anchor="middle">samples per class</text></svg>'
    )
