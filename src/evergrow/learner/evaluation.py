"""Measure predictions: accuracy, per-class scores, confusions and novelty detection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evergrow.core.errors import InputError
from evergrow.data.items import Items, concat_items
from evergrow.learner.calibration import FALSE_ALARM

PAIRS = 10
"""Number of confused pairs listed."""


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class.

    Parameters
    ----------
    name : str
        The class.
    n : int
        Number of samples in the data.
    recall, precision, f1 : float
        NaN if undefined: the class has no sample, or was never predicted.
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
        The true class and the predicted one.
    n : int
        Number of samples.
    share : float
        Fraction of the samples of the true class.
    """

    true: str
    predicted: str
    n: int
    share: float


@dataclass(frozen=True)
class OpenWorld:
    """How well novelty scores separate unknown samples from known ones.

    Parameters
    ----------
    n_known, n_unknown : int
        Number of samples of known and of unknown classes.
    auroc : float
        Probability that an unknown sample has a higher novelty score than a known one.
    false_alarm : float
        The false alarm rate that the threshold was calibrated for.
    threshold : float
        Novelty score above which a sample is called unknown.
    false_alarm_rate : float
        Fraction of known samples called unknown.
    detection_rate : float
        Fraction of unknown samples called unknown.
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
    """The prediction for each sample of an evaluation.

    Parameters
    ----------
    items : Items or None
        Images or texts; None if samples are feature vectors.
    rows : ndarray of int of shape (n,)
        Row numbers of the readable samples in the data.
    true, predicted : ndarray of str of shape (n,)
        Labels and predictions.
    certainty : ndarray of shape (n,) or None
        Probability of each prediction; None if the method has no probabilities.
    """

    items: Items | None
    rows: NDArray[np.int64]
    true: NDArray[np.str_]
    predicted: NDArray[np.str_]
    certainty: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class AnsweredSamples:
    """Predictions for one chunk of labelled samples.

    Parameters
    ----------
    items : Items or None
        Images or texts of the chunk; None if samples are feature vectors.
    n_items : int
        Number of samples in the chunk, readable or not.
    rows : ndarray of int of shape (n,)
        Row numbers of the readable samples in the chunk.
    true, predicted : ndarray of str of shape (n,)
        Labels and predictions.
    certainty, novelty : ndarray of shape (n,) or None
        Probability of each prediction, and novelty scores, if requested.
    left_out : tuple of str
        Names of the unreadable items.
    """

    items: Items | None
    n_items: int
    rows: NDArray[np.int64]
    true: NDArray[np.str_]
    predicted: NDArray[np.str_]
    certainty: NDArray[np.float64] | None
    novelty: NDArray[np.float64] | None
    left_out: tuple[str, ...]

    def as_sample_answers(self) -> SampleAnswers:
        """Return the part that an :class:`Evaluation` keeps."""
        return SampleAnswers(
            self.items, self.rows, self.true, self.predicted, self.certainty
        )


def join_answered(chunks: Sequence[AnsweredSamples]) -> AnsweredSamples:
    """Join consecutive chunks; row numbers count through all of them."""
    starts = np.cumsum([0, *(chunk.n_items for chunk in chunks)])
    items = None
    if chunks[0].items is not None:
        items = concat_items(
            [chunk.items for chunk in chunks if chunk.items is not None]
        )
    certainty = None
    if chunks[0].certainty is not None:
        certainty = np.concatenate([chunk.certainty for chunk in chunks])
    novelty = None
    if chunks[0].novelty is not None:
        novelty = np.concatenate([chunk.novelty for chunk in chunks])
    return AnsweredSamples(
        items,
        int(starts[-1]),
        np.concatenate(
            [chunk.rows + start for chunk, start in zip(chunks, starts, strict=False)]
        ),
        np.concatenate([chunk.true for chunk in chunks]),
        np.concatenate([chunk.predicted for chunk in chunks]),
        certainty,
        novelty,
        tuple(name for chunk in chunks for name in chunk.left_out),
    )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of :meth:`evergrow.Learner.evaluate`.

    Parameters
    ----------
    n_samples : int
        Number of samples, of known and unknown classes.
    accuracy : float
        Fraction of correct predictions among samples of known classes; NaN if there are
        none.
    balanced_accuracy : float
        Mean recall over the classes with samples.
    classes : tuple of str
        Classes known to the model: rows and columns of ``confusion``.
    per_class : tuple of ClassScore
        One entry per class.
    confusion : ndarray of int of shape (C, C)
        Number of samples by true class (row) and predicted class (column).
    confused : tuple of Confusion
        The most frequent confusions, most frequent first.
    unknown_classes : dict of str to int
        Number of samples per class that the model does not know. ``accuracy`` ignores
        them; ``accuracy_all`` counts them as wrong.
    seconds : float
        Time taken, including feature extraction.
    left_out : tuple of str
        Names of unreadable items, which were skipped.
    unknown : OpenWorld or None
        Quality of the novelty detection; None if there were no unknown samples.
    samples : SampleAnswers or None
        The prediction per sample, if requested; not part of :meth:`to_dict`.

    Examples
    --------
    >>> from evergrow.learner.evaluation import evaluate_predictions
    >>> true = ["cat", "cat", "dog", "fox"]
    >>> predicted = ["cat", "dog", "dog", "dog"]
    >>> result = evaluate_predictions(true, predicted, ["cat", "dog"])
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
        """Number of samples of known classes."""
        return int(self.confusion.sum())

    @property
    def n_unknown(self) -> int:
        """Number of samples of unknown classes."""
        return sum(self.unknown_classes.values())

    @property
    def accuracy_all(self) -> float:
        """Fraction of correct predictions; unknown classes count as wrong."""
        return float(self.confusion.trace()) / self.n_samples

    def recalls(self) -> dict[str, float]:
        """Return the recall of each known class that has samples."""
        return {row.name: row.recall for row in self.per_class if row.n}

    def to_dict(self, *, with_confusion: bool = True) -> dict[str, Any]:
        """Return plain values for JSON; NaN becomes None.

        Parameters
        ----------
        with_confusion : bool, default=True
            Whether to include ``confusion``, whose size grows with the square of the
            number of classes. Otherwise it is an empty list.
        """
        names = (
            "n_samples",
            "n_known",
            "n_unknown",
            "accuracy",
            "accuracy_all",
            "balanced_accuracy",
            "classes",
            "per_class",
            "confusion",
            "confused",
            "unknown_classes",
            "seconds",
            "left_out",
            "unknown",
        )
        values = {name: _plain(getattr(self, name)) for name in names}
        if not with_confusion:
            values["confusion"] = []
        return values


def _plain(value: Any) -> Any:
    """Convert to lists, dicts, numbers and strings; NaN and infinity become None."""
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
    unknown_novelty: ArrayLike = (),
    threshold: float | None = None,
    false_alarm: float = FALSE_ALARM,
) -> Evaluation:
    """Compare predictions with labels.

    Parameters
    ----------
    truth : sequence of str
        Labels; some classes may be unknown to the model.
    guess : sequence of str
        Predictions.
    classes : sequence of str
        Classes known to the model, sorted.
    novelty : ndarray of shape (n,), optional
        Novelty score of each sample.
    unknown_novelty : sequence of float
        Novelty scores of further samples of unknown classes.
    threshold, false_alarm : float
        Novelty score above which a sample is called unknown, and the false alarm rate
        that it was calibrated for.
    """
    labels = np.asarray(truth, dtype=np.str_)
    predicted = np.asarray(guess, dtype=np.str_)
    if labels.ndim != 1 or labels.shape != predicted.shape or len(labels) == 0:
        raise InputError(
            "labels and predictions must have the same length and at least one entry, "
            f"got shapes {labels.shape}, {predicted.shape}"
        )
    names = np.asarray(classes, dtype=np.str_)
    known = np.isin(labels, names)
    confusion = _count_pairs(labels[known], predicted[known], names)
    n_correct = confusion.diagonal()
    n_true = confusion.sum(axis=1)
    per_class = _score_classes(confusion, names)
    unknown_names, unknown_counts = np.unique(labels[~known], return_counts=True)
    recalls = [row.recall for row in per_class if row.n]
    open_world_result = None
    if novelty is not None and threshold is not None:
        unknown = np.concatenate([novelty[~known], unknown_novelty])
        if known.any() and len(unknown):
            open_world_result = open_world(
                novelty[known], unknown, threshold, false_alarm
            )
    return Evaluation(
        n_samples=len(labels),
        accuracy=_ratio(n_correct.sum(), n_true.sum()),
        balanced_accuracy=float(np.mean(recalls)) if recalls else math.nan,
        classes=tuple(names.tolist()),
        per_class=per_class,
        confusion=confusion,
        confused=_most_confused(confusion, names),
        unknown_classes=dict(
            zip(unknown_names.tolist(), unknown_counts.tolist(), strict=True)
        ),
        unknown=open_world_result,
    )


def _count_pairs(
    labels: NDArray[np.str_], predicted: NDArray[np.str_], names: NDArray[np.str_]
) -> NDArray[np.int64]:
    """Return the confusion matrix: rows are true classes, columns predicted ones."""
    confusion = np.zeros((len(names), len(names)), dtype=np.int64)
    rows = np.searchsorted(names, labels)
    columns = np.searchsorted(names, predicted)
    np.add.at(confusion, (rows, columns), 1)
    return confusion


def _score_classes(
    confusion: NDArray[np.int64], names: NDArray[np.str_]
) -> tuple[ClassScore, ...]:
    n_correct = confusion.diagonal()
    n_true = confusion.sum(axis=1)
    n_predicted = confusion.sum(axis=0)
    return tuple(
        ClassScore(
            str(name),
            int(n),
            _ratio(hits, n),
            _ratio(hits, predictions),
            _ratio(2 * hits, n + predictions) if n else math.nan,
        )
        for name, hits, n, predictions in zip(
            names, n_correct, n_true, n_predicted, strict=True
        )
    )


def _most_confused(
    confusion: NDArray[np.int64], names: NDArray[np.str_]
) -> tuple[Confusion, ...]:
    """Return the most frequent confusions, most frequent first."""
    n_true = confusion.sum(axis=1)
    rows, columns = np.nonzero(confusion)
    wrong = np.flatnonzero(rows != columns)
    order = np.argsort(-confusion[rows[wrong], columns[wrong]], kind="stable")
    most = wrong[order[:PAIRS]]
    return tuple(
        Confusion(
            str(names[row]),
            str(names[column]),
            int(confusion[row, column]),
            _ratio(confusion[row, column], n_true[row]),
        )
        for row, column in zip(rows[most], columns[most], strict=True)
    )


def open_world(
    known: NDArray[np.float64],
    unknown: NDArray[np.float64],
    threshold: float,
    false_alarm: float,
) -> OpenWorld:
    """Compare the novelty scores of known and unknown samples.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.evaluation import open_world
    >>> known, unknown = np.array([0.0, 1.0, 2.0]), np.array([1.5, 3.0])
    >>> result = open_world(known, unknown, threshold=1.8, false_alarm=0.05)
    >>> round(result.auroc, 3), round(result.false_alarm_rate, 3), result.detection_rate
    (0.833, 0.333, 0.5)
    """
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([known, unknown]))
    # Mann-Whitney U: the rank sum of the unknown samples minus its minimum.
    n_smallest = len(unknown) * (len(unknown) + 1) / 2
    ordered_pairs = float(ranks[len(known) :].sum()) - n_smallest
    return OpenWorld(
        n_known=len(known),
        n_unknown=len(unknown),
        auroc=_ratio(ordered_pairs, len(known) * len(unknown)),
        false_alarm=false_alarm,
        threshold=threshold,
        false_alarm_rate=_ratio(int((known > threshold).sum()), len(known)),
        detection_rate=_ratio(int((unknown > threshold).sum()), len(unknown)),
    )


def _ratio(part: float, whole: float) -> float:
    if whole:
        return float(part) / float(whole)
    return math.nan
