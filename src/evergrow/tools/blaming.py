"""Find the labelled samples that are to blame for an answer.

Every sample is taken out of the model by subtraction, and the answer to one question is
computed again. Nothing is trained again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, LabelError, UnlearnError
from evergrow.tools.left_out import LeftOutSamples, read_left_out

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner


@dataclass(frozen=True)
class BlamedSample:
    """A labelled sample, and the answer without it.

    Parameters
    ----------
    row : int
        Row number in the data.
    name : str
        File name, or its row.
    label : str
        Its label.
    effect : float
        How far the log-odds of the answer fall without the sample. Negative if they
        rise.
    probability : float
        Probability of the answer without the sample.
    answer : str
        The most probable class without the sample.
    """

    row: int
    name: str
    label: str
    effect: float
    probability: float
    answer: str


@dataclass(frozen=True)
class Blame:
    """The answer to a question, and the samples that it depends on.

    Parameters
    ----------
    answer : str
        The class in question: by default the most probable one.
    probability : float
        Its probability.
    predicted : str
        The most probable class.
    samples : tuple of BlamedSample
        The sample that supports the answer most comes first, the one that opposes it
        most last.
    alone : tuple of str
        Names of samples that are the only learned one of their class. Without them the
        model lacks the class, so they have no effect.
    unread : tuple of str
        Names of unreadable samples.
    """

    answer: str
    probability: float
    predicted: str
    samples: tuple[BlamedSample, ...]
    alone: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def deciding(self) -> tuple[BlamedSample, ...]:
        """Samples without which the most probable class is another one."""
        return tuple(
            sample for sample in self.samples if sample.answer != self.predicted
        )


def blame(
    learner: Learner,
    question: Any,
    data: Any,
    y: Any = None,
    *,
    label: Any = None,
    sample_weight: Any = None,
) -> Blame:
    """Rank labelled samples by how much an answer would change without each of them.

    Each sample is taken out of the model by subtraction. The scores are then those of
    the model after :meth:`Learner.unlearn`, up to rounding. The temperature of
    probabilities stays the same, while `unlearn` calibrates it again. With more than
    1,024 classes, the prior of the class means and the noise of a sample stay the same
    too. The ridge, the weights of feature blocks and the strength of class shapes are
    chosen anew only if the number of samples changes by a quarter.

    Parameters
    ----------
    learner : Learner
        A fitted learner. It does not change.
    question : object
        One sample: a path, an image, a text or a feature vector, in any form that
        `Learner.predict` takes.
    data, y : object
        Samples that the learner has learned, with their labels, in any form that
        `Learner.fit` takes. If the data has train and test splits, only train is used.
    label : label, optional
        The class to explain. By default the most probable one.
    sample_weight : array-like of shape (n,), optional
        The weights that the samples were learned with.

    Returns
    -------
    Blame
        All samples, the strongest support of the answer first.

    Raises
    ------
    InputError
        If `question` is not one sample of the kind that the learner takes.
    LabelError
        If the learner knows fewer than two classes, or not all classes of the data, or
        not `label`.
    UnlearnError
        If samples were never learned.
    UnsupportedError
        If the method cannot leave out samples, or has no probabilities.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Learner, tools
    >>> X, y = load_digits(return_X_y=True)
    >>> y[7] = 3                                     # a wrong label
    >>> learner = Learner(options={"n_units": 200}).fit(X[:900], y[:900])
    >>> found = tools.blame(learner, X[7:8] + 0.5, X[:900], y[:900], label=3)
    >>> found.answer, found.samples[0].row
    ('3', 7)
    """
    head: Any = learner.head_
    _ = head.scores_without_one  # raises an error if unsupported
    classes = np.asarray(head.classes_, dtype=np.str_)
    if label is not None and str(label) not in classes:
        known = ", ".join(map(repr, learner.classes_.tolist()[:5]))
        raise LabelError(
            f"label must be a class that the model knows, such as {known}; got "
            f"{label!r}"
        )
    asked = learner.encode(question, on_error="raise").X
    if len(asked) != 1:
        raise InputError(f"question must be one sample, got {len(asked):,}")
    samples = read_left_out(learner, data, y, sample_weight)
    rows = np.flatnonzero(samples.can_leave_out(learner))
    _check_counts(learner, samples)
    before = head.class_scores(asked)
    predicted = int(before[0].argmax())
    code = predicted
    if label is not None:
        code = int(np.flatnonzero(classes == str(label))[0])
    scores = before[:0]
    if len(rows):
        scores = head.scores_without_one(
            samples.X[rows], samples.labels[rows], samples.weights[rows], question=asked
        )
    n_new = int(np.isnan(scores).any(axis=1).sum())
    if n_new:
        raise UnlearnError(
            f"data must be samples that the model has learned: {n_new:,} of "
            f"{len(samples.labels):,} were never learned, or with another label"
        )
    odds_before = _log_odds(before / head.temperature_, code)[0]
    odds = _log_odds(scores / head.temperature_, code)
    effects = odds_before - odds
    answers = classes[scores.argmax(axis=1)]
    found = []
    for place in np.argsort(-effects, kind="stable").tolist():
        row = rows[place]
        found.append(
            BlamedSample(
                int(samples.rows[row]),
                str(samples.names[row]),
                str(samples.labels[row]),
                float(effects[place]),
                _probability(odds[place]),
                str(answers[place]),
            )
        )
    is_alone = np.ones(len(samples.labels), dtype=bool)
    is_alone[rows] = False
    return Blame(
        str(classes[code]),
        _probability(odds_before),
        str(classes[predicted]),
        tuple(found),
        tuple(str(name) for name in samples.names[is_alone]),
        samples.left_out,
    )


def _check_counts(learner: Learner, samples: LeftOutSamples) -> None:
    """Raise :class:`UnlearnError` if a class has more samples than were learned."""
    counts = learner.state_.counts
    names, sizes = np.unique(samples.labels, return_counts=True)
    for name, size in zip(names.tolist(), sizes.tolist(), strict=True):
        if size > counts[name]:
            raise UnlearnError(
                f"data must be samples that the model has learned: it has {size:,} of "
                f"{name!r}, and the model learned {counts[name]:,}"
            )


def _log_odds(logits: NDArray[np.float64], code: int) -> NDArray[np.float64]:
    """Return the log-odds (n,) of a class against all others."""
    from scipy.special import logsumexp

    others = np.delete(logits, code, axis=1)
    return np.asarray(logits[:, code] - logsumexp(others, axis=1))


def _probability(log_odds: float) -> float:
    """Return the probability of some log-odds."""
    return float(1.0 / (1.0 + np.exp(-np.clip(log_odds, -500.0, 500.0))))
