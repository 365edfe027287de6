"""How good a model is on data: accuracy, every class, what is confused with what, and the open world."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evergrow.core.errors import InputError
from evergrow.data.items import Items
from evergrow.learner.calibration import FALSE_ALARM

PAIRS = 10
"""How many confused pairs are listed."""


@dataclass(frozen=True)
class ClassScore:
    """How one class fares.

    Parameters
    ----------
    name : str
        The class.
    n : int
        Its samples in the data.
    recall, precision, f1 : float
        NaN where there is nothing to divide by: no sample, or no prediction.
    """

    name: str
    n: int
    recall: float
    precision: float
    f1: float


@dataclass(frozen=True)
class Confusion:
    """Two classes that are confused.

    Parameters
    ----------
    true, predicted : str
        The class, and what it was taken for.
    n : int
        How often.
    share : float
        Of the samples of the true class.
    """

    true: str
    predicted: str
    n: int
    share: float


@dataclass(frozen=True)
class OpenWorld:
    """How well unknown things are told from known ones.

    Parameters
    ----------
    n_known, n_unknown : int
        Samples of classes that the model knows, and of others.
    auroc : float
        Probability that an unknown sample looks more novel than a known one.
    false_alarm : float
        The share of false alarms that the threshold was calibrated for.
    threshold : float
        Novelty above which something is called unknown.
    false_alarm_rate : float
        Share of known samples that were called unknown.
    detection_rate : float
        Share of unknown samples that were called unknown.
    """

    n_known: int
    n_unknown: int
    auroc: float
    false_alarm: float
    threshold: float
    false_alarm_rate: float
    detection_rate: float


@dataclass(frozen=True, eq=False)
class SampleAnswers:
    """What a model answered about each sample of an evaluation.

    Parameters
    ----------
    items : Items or None
        Images or texts; None where samples are feature vectors.
    rows : ndarray of int of shape (n,)
        The samples that could be read, as rows of the data.
    true, predicted : ndarray of str of shape (n,)
        Labels and answers.
    certainty : ndarray of shape (n,) or None
        Probability of each answer; None where the method has none.
    """

    items: Items | None
    rows: NDArray[np.int64]
    true: NDArray[np.str_]
    predicted: NDArray[np.str_]
    certainty: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of :meth:`evergrow.Learner.evaluate`.

    Parameters
    ----------
    n_samples : int
        Samples that were looked at, of known and unknown classes.
    accuracy : float
        Share of right answers among samples of classes that the model knows; NaN where
        there are none.
    balanced_accuracy : float
        Mean recall of the classes with samples.
    classes : tuple of str
        Classes that the model knows: rows and columns of ``confusion``.
    per_class : tuple of ClassScore
        One entry for each of them.
    confusion : ndarray of int of shape (C, C)
        Samples by true class (row) and predicted class (column).
    confused : tuple of Confusion
        The most frequent confusions, most frequent first.
    unknown_classes : dict of str to int
        Samples of classes in the data that the model does not know. They count neither
        as right nor as wrong in ``accuracy``; ``accuracy_all`` counts them as wrong.
    seconds : float
        Time taken, with the extraction of features.
    left_out : tuple of str
        Items that could not be read and were skipped.
    unknown : OpenWorld or None
        How unknown things are told from known ones, where there were any to try.
    samples : SampleAnswers or None
        What was answered about each sample, where that was to be kept; not part of
        :meth:`to_dict`.

    Examples
    --------
    >>> from evergrow.learner.evaluation import evaluate_predictions
    >>> result = evaluate_predictions(["cat", "cat", "dog", "fox"], ["cat", "dog", "dog", "dog"], ["cat", "dog"])
    >>> round(result.accuracy, 3), result.balanced_accuracy, result.unknown_classes
    (0.667, 0.75, {'fox': 1})
    >>> result.confused[0]
    Confusion(true='cat', predicted='dog', n=1, share=0.5)
    """

    n_samples: int
    accuracy: float
    balanced_accuracy: float
    classes: tuple[str, ...]
    per_class: tuple[ClassScore, ...]
    confusion: NDArray[np.int64]
    confused: tuple[Confusion, ...]
    unknown_classes: dict[str, int]
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()
    unknown: OpenWorld | None = None
    samples: SampleAnswers | None = None

    @property
    def n_known(self) -> int:
        """Samples of classes that the model knows."""
        return int(self.confusion.sum())

    @property
    def n_unknown(self) -> int:
        """Samples in the data of classes that the model does not know."""
        return sum(self.unknown_classes.values())

    @property
    def accuracy_all(self) -> float:
        """Share of right answers among all samples: those of unknown classes cannot be right."""
        return float(self.confusion.trace()) / self.n_samples

    def recalls(self) -> dict[str, float]:
        """Return the share of every class in the data that was recognised, of those that the model knows."""
        return {row.name: row.recall for row in self.per_class if row.n}

    def to_dict(self, *, with_confusion: bool = True) -> dict[str, Any]:
        """Return plain values for JSON; what is not a number becomes None.

        Parameters
        ----------
        with_confusion : bool
            Whether with ``confusion``, whose size grows with the square of the classes;
            else it is empty.
        """
        names = (
            *(
                "n_samples",
                "n_known",
                "n_unknown",
                "accuracy",
                "accuracy_all",
                "balanced_accuracy",
                "classes",
            ),
            *(
                "per_class",
                "confusion",
                "confused",
                "unknown_classes",
                "seconds",
                "left_out",
                "unknown",
            ),
        )
        if with_confusion:
            left_out = ()
        else:
            left_out = ("confusion",)
        return {
            name: [] if name in left_out else _plain(getattr(self, name))
            for name in names
        }


def _plain(value: Any) -> Any:
    """Return lists, dicts, numbers and texts; None for what is not a number."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def evaluate_predictions(
    truth: ArrayLike,
    guess: ArrayLike,
    classes: ArrayLike,
    novelty: NDArray[np.float64] | None = None,
    strange: ArrayLike = (),
    threshold: float | None = None,
    false_alarm: float = FALSE_ALARM,
) -> Evaluation:
    """Compare predictions with labels.

    Parameters
    ----------
    truth : sequence of str
        Labels; some may be of classes that the model does not know.
    guess : sequence of str
        Predictions.
    classes : sequence of str
        Classes that the model knows, sorted.
    novelty : ndarray of shape (n,), optional
        How unlike anything learned each sample is.
    strange : sequence of float
        Novelty of further samples, of classes that the model does not know.
    threshold, false_alarm : float
        Novelty above which something is unknown, and the share of false alarms that it
        is for.
    """
    labels = np.asarray(truth, dtype=np.str_)
    answers = np.asarray(guess, dtype=np.str_)
    if labels.ndim != 1 or labels.shape != answers.shape or len(labels) == 0:
        raise InputError(
            f"labels and predictions must be as many and at least one, got shapes {labels.shape}, {answers.shape}"
        )
    names = np.asarray(classes, dtype=np.str_)
    known = np.isin(labels, names)
    confusion = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(
        confusion,
        (np.searchsorted(names, labels[known]), np.searchsorted(names, answers[known])),
        1,
    )
    hits = confusion.diagonal()
    there = confusion.sum(axis=1)
    said = confusion.sum(axis=0)
    per_class = tuple(
        ClassScore(
            str(name),
            int(n),
            _ratio(hit, n),
            _ratio(hit, told),
            _ratio(2 * hit, n + told) if n else math.nan,
        )
        for name, hit, n, told in zip(names, hits, there, said, strict=True)
    )
    rows, columns = np.nonzero(confusion)
    wrong = np.flatnonzero(rows != columns)
    most = wrong[
        np.argsort(-confusion[rows[wrong], columns[wrong]], kind="stable")[:PAIRS]
    ]
    confused = tuple(
        Confusion(
            str(names[row]),
            str(names[column]),
            int(confusion[row, column]),
            _ratio(confusion[row, column], there[row]),
        )
        for row, column in zip(rows[most], columns[most])
    )
    others, counts = np.unique(labels[~known], return_counts=True)
    recalls = [row.recall for row in per_class if row.n]
    compared = None
    if novelty is not None and threshold is not None:
        strange = np.concatenate([novelty[~known], strange])
        if known.any() and len(strange):
            compared = open_world(novelty[known], strange, threshold, false_alarm)
    return Evaluation(
        n_samples=len(labels),
        accuracy=_ratio(hits.sum(), there.sum()),
        balanced_accuracy=float(np.mean(recalls)) if recalls else math.nan,
        classes=tuple(names.tolist()),
        per_class=per_class,
        confusion=confusion,
        confused=confused,
        unknown_classes=dict(zip(others.tolist(), counts.tolist(), strict=True)),
        unknown=compared,
    )


def open_world(
    known: NDArray[np.float64],
    unknown: NDArray[np.float64],
    threshold: float,
    false_alarm: float,
) -> OpenWorld:
    """Compare the novelty of known and of unknown samples.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.evaluation import open_world
    >>> result = open_world(np.array([0.0, 1.0, 2.0]), np.array([1.5, 3.0]), threshold=1.8, false_alarm=0.05)
    >>> round(result.auroc, 3), round(result.false_alarm_rate, 3), result.detection_rate
    (0.833, 0.333, 0.5)
    """
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([known, unknown]))
    # The rank sum of the unknown, less what it is if all of them come first, counts the
    # pairs in the right order.
    pairs = float(ranks[len(known) :].sum()) - len(unknown) * (len(unknown) + 1) / 2
    return OpenWorld(
        n_known=len(known),
        n_unknown=len(unknown),
        auroc=_ratio(pairs, len(known) * len(unknown)),
        false_alarm=false_alarm,
        threshold=threshold,
        false_alarm_rate=_ratio(int((known > threshold).sum()), len(known)),
        detection_rate=_ratio(int((unknown > threshold).sum()), len(unknown)),
    )


def _ratio(part: float, whole: float) -> float:
    if whole:
        return float(part) / float(whole)
    return math.nan
