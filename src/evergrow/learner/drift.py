"""Do new samples still look like what was learned? One test for each class, with a stated share of false alarms.

Samples are taken by the class that is answered. Their novelty is compared with that of samples scored as if they had
not been learned: ranks among those as normal scores z, of which a class has a mean. Classes differ a little even
where nothing changed; the variance tau^2 of that is taken from all classes together, robustly, so that a few which did
change do not hide it. Labelled samples are asked a second question: answers of probability p should be right in a share
p of cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError

if TYPE_CHECKING:
    from evergrow.learner.calibration import Calibration

LEAST = 3
"""Samples below which a class is not tested."""


@dataclass(frozen=True)
class ClassDrift:
    """The test of one class.

    Parameters
    ----------
    name : str
        The class that was answered.
    samples : int
        New samples of it.
    novelty : float
        Mean normal score of their novelty; 0 where nothing changed.
    p : float
        How likely so large a change is where nothing changed.
    changed : bool
        Whether that is less than the share of false alarms.
    """

    name: str
    samples: int
    novelty: float
    p: float
    changed: bool


@dataclass(frozen=True)
class Drift:
    """Whether new samples look like what was learned.

    Parameters
    ----------
    classes : tuple of ClassDrift
        The classes that could be tested, the most changed first.
    untested : int
        Samples of classes with too few of them.
    false_alarm : float
        Share of unchanged classes that are called changed.
    """

    classes: tuple[ClassDrift, ...]
    untested: int
    false_alarm: float

    @property
    def share(self) -> float:
        """Share of the tested classes that changed."""
        return sum(entry.changed for entry in self.classes) / max(len(self.classes), 1)


def find_drift(
    calibration: Calibration,
    novelty: NDArray[np.float64],
    answers: NDArray[np.str_],
    probability: NDArray[np.float64],
    labels: NDArray[np.str_] | None,
    false_alarm: float,
) -> Drift:
    """Test samples of every class that was answered.

    Parameters
    ----------
    calibration : Calibration
        Novelty of known things.
    novelty, answers, probability : ndarray of shape (n,)
        Of new samples, with the probability of each answer.
    labels : ndarray of shape (n,) or None
        What they really are, where that is known.
    false_alarm : float
        Share of unchanged classes that may be called changed.
    """
    from scipy.stats import norm, pearson3

    points = calibration.scores
    ranks = np.searchsorted(points, novelty, side="left")
    scores = norm.ppf((ranks + 0.5) / (len(points) + 1.0))
    names, codes, counts = np.unique(answers, return_inverse=True, return_counts=True)
    tested = np.flatnonzero(counts >= LEAST)
    if not len(tested):
        raise InputError(
            f"no class has {LEAST} of the {len(novelty):,} samples, so that nothing can be tested"
        )
    means = np.bincount(codes, scores) / counts
    spread = float(
        np.sqrt(np.mean((scores - means[codes])[counts[codes] >= LEAST] ** 2)) or 1.0
    )
    noise = spread**2 / counts[tested]
    between = _between(means[tested], noise)
    p = norm.sf(means[tested] / np.sqrt(between + noise + 1.0 / len(points)))
    if (
        labels is not None
    ):  # the share of wrong answers beyond what their probabilities say
        excess = (np.bincount(codes, probability - (labels == answers)) / counts)[
            tested
        ]
        chance = probability * (1.0 - probability)
        expected = ((np.bincount(codes, chance) + 0.25) / counts**2)[tested]
        variance = _between(excess, expected) + expected
        third = (np.bincount(codes, chance * (2.0 * probability - 1.0)) / counts**3)[
            tested
        ]  # few errors are skewed
        wrong = pearson3.sf(excess / np.sqrt(variance), third / variance**1.5)
        p = 1.0 - (1.0 - np.minimum(p, wrong)) ** 2
    found = [
        ClassDrift(
            str(names[code]),
            int(counts[code]),
            float(means[code]),
            unlikely,
            unlikely < false_alarm,
        )
        for code, unlikely in zip(tested, p.tolist(), strict=True)
    ]
    untested = int(counts.sum() - counts[tested].sum())
    return Drift(tuple(sorted(found, key=lambda entry: entry.p)), untested, false_alarm)


def _between(means: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    """Return by how much classes differ beyond noise, as a variance; a few that changed do not count."""
    from scipy.stats import median_abs_deviation

    return float(
        max(median_abs_deviation(means, scale="normal") ** 2 - np.median(noise), 0.0)
    )
