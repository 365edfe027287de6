"""Feature vectors of labelled data, through the learner's backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evergrow.data.inputs import labelled_chunks

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner


class LabelledFeatures(NamedTuple):
    """Feature vectors and class names of the samples that could be read.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Feature vectors.
    labels : ndarray of str of shape (n,)
        Class name of each row.
    left_out : tuple of str
        Names of unreadable items, which were skipped.
    """

    X: NDArray[Any]
    labels: NDArray[np.str_]
    left_out: tuple[str, ...]


def labelled_features(learner: Learner, data: Any, y: Any = None) -> LabelledFeatures:
    """Return feature vectors and class names of labelled samples.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data, y : object
        Labelled samples, in any form that `Learner.fit` takes.
    """
    vectors = []
    labels = []
    left_out: list[str] = []
    for samples in labelled_chunks(data, y, None, "train", learner.state_.kind):
        features = learner.encode(samples)
        vectors.append(features.X)
        labels.append(samples.required_labels()[features.rows])
        left_out += [name for name, _ in features.failures]
    return LabelledFeatures(
        np.concatenate(vectors), np.concatenate(labels), tuple(left_out)
    )
