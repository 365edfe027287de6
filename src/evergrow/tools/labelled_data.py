"""Feature vectors of labelled data, through the learner's backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.data.inputs import labelled_chunks

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner


def labelled_features(
    learner: Learner, data: Any, y: Any = None
) -> tuple[NDArray[Any], NDArray[np.str_]]:
    """Return feature vectors and class names of labelled samples.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data, y : object
        Labelled samples, in any form that `Learner.fit` takes.

    Returns
    -------
    X : ndarray of shape (n, d)
        Feature vectors of the samples that could be read.
    labels : ndarray of str of shape (n,)
        Class name of each row.
    """
    vectors = []
    labels = []
    for samples in labelled_chunks(data, y, None, "train", learner.state_.kind):
        features = learner.encode(samples)
        vectors.append(features.X)
        labels.append(samples.required_labels()[features.rows])
    return np.concatenate(vectors), np.concatenate(labels)
