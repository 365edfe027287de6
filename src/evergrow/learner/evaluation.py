"""Evaluate a learner: accuracy, scores per class, confusions and novelty detection."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evergrow.core.errors import InputError
from evergrow.core.record import to_json_values
from evergrow.data.inputs import labelled_chunks, read_unknown
from evergrow.data.items import Items, Samples, concat_items
from evergrow.learner.calibration import FALSE_ALARM

if TYPE_CHECKING:
    from evergrow.features import Features
    from evergrow.learner.learner import Learner

MAX_CONFUSIONS = 10
"""Largest number of confused pairs of classes that are listed."""


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
    fraction : float
        Fraction of the samples of the true class.
    """

    true: str
    predicted: str
    n: int
    fraction: float


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
class EvaluatedSamples:
    """The prediction for each readable sample of an evaluation.

    Parameters
    ----------
    items : Items or None
        Images or texts, readable or not; None if samples are feature vectors.
    rows : ndarray of int of shape (n,)
        Row numbers of the readable samples in the data.
    true, predicted : ndarray of str of shape (n,)
        Labels and predictions.
    certainty : ndarray of shape (n,) or None
        Probability of each prediction; None if the method has no probabilities.
    novelty : ndarray of shape (n,) or None
        Novelty scores; None if the model has no calibrated novelty.
    """

    items: Items | None
    rows: NDArray[np.int64]
    true: NDArray[np.str_]
    predicted: NDArray[np.str_]
    certainty: NDArray[np.float64] | None = None
    novelty: NDArray[np.float64] | None = None


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
        Names of unreadable items, which were skipped: of the labelled data, then of
        the data of unknown classes.
    unknown : OpenWorld or None
        Quality of the novelty detection; None if there were no unknown samples.
    samples : EvaluatedSamples or None
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
    Confusion(true='cat', predicted='dog', n=1, fraction=0.5)
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
    samples: EvaluatedSamples | None = None

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
        values = {name: to_json_values(getattr(self, name)) for name in names}
        if not with_confusion:
            values["confusion"] = []
        return values


# -- evaluating a learner --------------------------------------------------------------


def evaluate_learner(
    learner: Learner,
    data: Any,
    y: Any,
    *,
    unknown: Any,
    false_alarm: float,
    keep_samples: bool,
) -> Evaluation:
    """Compare the predictions of a learner with labels.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data, y, unknown, false_alarm, keep_samples
        As for :meth:`evergrow.Learner.evaluate`.
    """
    started = time.perf_counter()
    head = learner.head_
    state = learner.state_
    has_novelty = hasattr(head, "novelty_score") and bool(state.calibration.n)
    threshold = None
    if has_novelty or unknown is not None:
        # Raises an error before any work is done if there is no threshold.
        threshold = state.threshold(false_alarm)
    n_rows = 0
    chunks: list[EvaluatedSamples] = []
    left_out: list[str] = []
    for samples in labelled_chunks(data, y, None, "test", state.kind):
        features = learner.encode(samples)
        predicted = _predict_samples(
            learner,
            samples,
            features,
            with_novelty=has_novelty,
            with_items=keep_samples,
        )
        chunks.append(replace(predicted, rows=predicted.rows + n_rows))
        left_out += [name for name, _ in features.failures]
        n_rows += len(samples)
    evaluated = _join_samples(chunks)
    unknown_novelty = np.empty(0)
    if unknown is not None:
        unknown_novelty, unreadable = _novelty_of_unknown(learner, unknown)
        left_out += unreadable
    result = evaluate_predictions(
        evaluated.true,
        evaluated.predicted,
        state.classes,
        evaluated.novelty,
        unknown_novelty,
        threshold,
        false_alarm,
    )
    return replace(
        result,
        left_out=tuple(left_out),
        samples=evaluated if keep_samples else None,
        seconds=time.perf_counter() - started,
    )


def _predict_samples(
    learner: Learner,
    samples: Samples,
    features: Features,
    *,
    with_novelty: bool,
    with_items: bool,
) -> EvaluatedSamples:
    """Predict encoded samples; with items also the probability of each prediction."""
    head: Any = learner.head_
    predicted = np.asarray(head.predict(features.X), dtype=np.str_)
    certainty = None
    if with_items and hasattr(head, "predict_proba"):
        probabilities = np.asarray(head.predict_proba(features.X))
        columns = np.searchsorted(learner.state_.classes, predicted)
        certainty = np.take_along_axis(probabilities, columns[:, None], axis=1)[:, 0]
    return EvaluatedSamples(
        samples.items if with_items else None,
        features.rows,
        samples.required_labels()[features.rows],
        predicted,
        certainty,
        head.novelty_score(features.X) if with_novelty else None,
    )


def _join_samples(chunks: Sequence[EvaluatedSamples]) -> EvaluatedSamples:
    """Join chunks whose row numbers already count from the first chunk."""
    joined: dict[str, Any] = {}
    for name in ("rows", "true", "predicted", "certainty", "novelty"):
        if getattr(chunks[0], name) is not None:
            joined[name] = np.concatenate([getattr(chunk, name) for chunk in chunks])
    if chunks[0].items is not None:
        joined["items"] = concat_items(
            [chunk.items for chunk in chunks if chunk.items is not None]
        )
    return replace(chunks[0], **joined)


def _novelty_of_unknown(
    learner: Learner, unknown: Any
) -> tuple[NDArray[np.float64], list[str]]:
    """Return the novelty of samples; samples labelled with known classes are ignored.

    Returns
    -------
    novelty : ndarray of shape (n,)
        Novelty score of each readable sample.
    left_out : list of str
        Names of unreadable samples.

    Raises
    ------
    InputError
        If no sample is left.
    """
    samples = read_unknown(unknown, learner.state_.kind)
    if samples.labels is not None:
        is_known = np.isin(samples.labels, learner.state_.classes)
        samples = samples.take(np.flatnonzero(~is_known))
    if not len(samples):
        raise InputError(
            "unknown must contain classes that the model does not know, got known "
            "classes only"
        )
    features = learner.encode(samples)
    return learner.novelty_score(features), [name for name, _ in features.failures]


# -- evaluating predictions ------------------------------------------------------------


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
    truth : sequence of str of length n
        Labels; some classes may be unknown to the model.
    guess : sequence of str of length n
        Predictions, all of known classes.
    classes : sequence of str
        Classes known to the model, sorted.
    novelty : ndarray of shape (n,), optional
        Novelty score of each sample. Novelty detection is measured only if this and
        `threshold` are given, and there are known and unknown samples.
    unknown_novelty : sequence of float
        Novelty scores of further samples of unknown classes.
    threshold : float, optional
        Novelty score above which a sample is called unknown.
    false_alarm : float
        The false alarm rate that the threshold was calibrated for.

    Raises
    ------
    InputError
        If there are no samples, or the numbers of labels and predictions differ.
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
    """Return recall, precision and F1 of each class, from the confusion matrix."""
    n_correct = confusion.diagonal()
    n_true = confusion.sum(axis=1)
    n_predicted = confusion.sum(axis=0)
    return tuple(
        ClassScore(
            name=str(name),
            n=int(n),
            recall=_ratio(hits, n),
            precision=_ratio(hits, predictions),
            f1=_ratio(2 * hits, n + predictions) if n else math.nan,
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
    most = wrong[order[:MAX_CONFUSIONS]]
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
    """Return the quotient; NaN if `whole` is 0."""
    if whole:
        return float(part) / float(whole)
    return math.nan
