"""Find labelled samples that are probably mislabelled.

Every sample is scored as if it had not been learned: it is subtracted from the
statistics of the model. A sample is suspect if its own class is then improbable.
Nothing is trained again.

On training samples of birds and intents with wrong labels, the probability of the own
class ranks wrong labels better than its margin to the best other class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.tools.left_out import LeftOutSamples, read_left_out

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

LIKELY = 0.95
"""Score from which a label is called likely wrong.

Chosen on training samples of birds and intents in other draws than the reported ones.
"""


@dataclass(frozen=True)
class Suspect:
    """A sample whose label may be wrong.

    Parameters
    ----------
    row : int
        Row number in the data.
    name : str
        File name, or its row.
    label : str
        Its label.
    suggestion : str
        The most probable other class.
    score : float
        Probability that the label is wrong: one minus the probability of its class.
    likely : bool
        Whether the label is likely wrong: the score is at least :data:`LIKELY`.
    """

    row: int
    name: str
    label: str
    suggestion: str
    score: float
    likely: bool


@dataclass(frozen=True)
class Suspects:
    """Labelled samples by how likely their labels are wrong.

    Parameters
    ----------
    samples : tuple of Suspect
        All scored samples, the most suspect first.
    n_new : int
        Number of samples that were scored as they are, because the model has not
        learned them.
    alone : tuple of str
        Names of samples that are the only learned one of their class. Without them the
        model lacks the class, so they have no score.
    unread : tuple of str
        Names of unreadable samples.
    """

    samples: tuple[Suspect, ...]
    n_new: int = 0
    alone: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def likely(self) -> tuple[Suspect, ...]:
        """The samples whose labels are likely wrong, the most suspect first."""
        return tuple(sample for sample in self.samples if sample.likely)


def suspects(
    learner: Learner,
    data: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    learned: bool | None = None,
) -> Suspects:
    """Rank labelled samples by how likely their labels are wrong.

    Each sample is scored as if it had not been learned. The model does not change, and
    no sample is stored. With feature vectors, this takes two to three times as long as
    predicting.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data, y : object
        Labelled samples, in any form that `Learner.fit` takes. If the data has train
        and test splits, only train is used.
    sample_weight : array-like of shape (n,), optional
        The weights that the samples were learned with.
    learned : bool, optional
        Whether the model has learned the samples. Samples that it has not learned are
        scored by the model as it is. By default, each sample is subtracted unless the
        statistics show that it cannot have been learned. With few learned samples per
        feature, the statistics always show this. With many, some samples that were not
        learned are subtracted too, which changes their scores little.

    Returns
    -------
    Suspects
        All samples, the most suspect first.

    Raises
    ------
    LabelError
        If the model knows fewer than two classes, or not all classes of the data.
    UnsupportedError
        If the method cannot leave out samples, or has no probabilities.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Learner, tools
    >>> X, y = load_digits(return_X_y=True)
    >>> y[7] = 3                                     # a wrong label
    >>> learner = Learner(options={"n_units": 200}).fit(X[:900], y[:900])
    >>> worst = tools.suspects(learner, X[:900], y[:900]).samples[0]
    >>> worst.row, worst.label, worst.suggestion
    (7, '3', '7')
    """
    head: Any = learner.head_
    _ = head.scores_without_one  # raises an error if unsupported
    samples = read_left_out(learner, data, y, sample_weight)
    scores, is_new = _scores(learner, samples, learned)
    is_scored = ~np.isnan(scores).any(axis=1)
    classes = np.asarray(head.classes_, dtype=np.str_)
    codes = np.searchsorted(classes, samples.labels[is_scored])
    log_probabilities = _log_softmax(scores[is_scored] / head.temperature_)
    each = np.arange(len(codes))
    own = log_probabilities[each, codes]
    log_probabilities[each, codes] = -np.inf
    others = log_probabilities.argmax(axis=1)
    rows = np.flatnonzero(is_scored)
    found = []
    for place in np.argsort(own, kind="stable").tolist():
        row = rows[place]
        score = float(-np.expm1(own[place]))
        found.append(
            Suspect(
                int(samples.rows[row]),
                str(samples.names[row]),
                str(samples.labels[row]),
                str(classes[others[place]]),
                score,
                score >= LIKELY,
            )
        )
    return Suspects(
        tuple(found),
        int(is_new.sum()),
        tuple(str(name) for name in samples.names[~is_scored]),
        samples.left_out,
    )


def _scores(
    learner: Learner, samples: LeftOutSamples, learned: bool | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return class scores (n, C), and which samples (n,) were not learned.

    Scores of a sample that is the only learned one of its class are NaN.
    """
    head = learner.head_
    n_samples = len(samples.labels)
    scores = np.full((n_samples, len(head.classes_)), np.nan)
    if learned is False:
        return head.class_scores(samples.X), np.ones(n_samples, dtype=bool)
    can_leave_out = samples.can_leave_out(learner)
    rows = np.flatnonzero(can_leave_out)
    if len(rows):
        scores[rows] = head.scores_without_one(
            samples.X[rows], samples.labels[rows], samples.weights[rows]
        )
    # Scores are NaN if a sample cannot have been learned.
    is_new = np.isnan(scores).any(axis=1) & can_leave_out
    if is_new.any():
        scores[is_new] = head.class_scores(samples.X[is_new])
    return scores, is_new


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log-probabilities (n, C)."""
    from scipy.special import log_softmax

    return np.asarray(log_softmax(logits, axis=1))
