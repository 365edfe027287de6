"""Accuracy within tasks: what a finished run puts on record about it.

A method whose classifier is trained task by task can tell the classes of every task apart and still confuse the tasks;
the accuracy over all classes alone does not show which.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import EvergrowWarning
from evergrow.metrics import first_tasks, within_tasks
from evergrow.streams import Stream


def within_results(learner: Any, X: Any, y: NDArray[Any], stream: Stream) -> dict[str, Any]:
    """Return the accuracy within tasks after the last session, as entries of a record's results.

    The scores are asked for on their own: ``predict`` need not be their argmax, and the answers on record are its.
    Whatever goes wrong here is a warning, since the run itself has succeeded by now.

    Parameters
    ----------
    learner : object
        What answers after the last session.
    X, y : array-like, ndarray of shape (n,)
        Test samples of all tasks and their labels.
    stream : Stream
        The tasks; a class that comes in several belongs to the first.

    Returns
    -------
    dict
        ``a_last_within`` and ``within_tasks``, or nothing where the learner gives no scores.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.bench.within import within_results
    >>> from evergrow.methods import create_method
    >>> from evergrow.streams import Protocol, make_stream
    >>> X, y = np.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.1], [0.1, 3.0]]), np.array([0, 1, 2, 3])
    >>> stream = make_stream(y, y, Protocol(increment=2, shuffle=False))
    >>> head = create_method("simplecil").fit(X, y)
    >>> Z = X[[2, 3, 0, 1]]  # each looks most like a class of the other task
    >>> (head.predict(Z) == y).mean().item(), within_results(head, Z, y, stream)["a_last_within"]
    (0.0, 1.0)
    """
    if not callable(getattr(learner, "decision_function", None)):
        return {}
    class_tasks = first_tasks(task.classes for task in stream)
    try:
        found = within_tasks(_scores(learner, X), learner.classes_, y, class_tasks, len(stream))
    except Exception as error:  # a diagnostic must not cost a run that has ended well
        warnings.warn(
            f"accuracy within tasks is not on record: {type(error).__name__}: {error}", EvergrowWarning, stacklevel=2
        )
        return {}
    return {"a_last_within": found.accuracy, "within_tasks": found.by_task}


def _scores(learner: Any, X: Any) -> NDArray[Any]:
    """Return one column of scores per class, also of two classes, for which scikit-learn has a single signed one."""
    scores = np.asarray(learner.decision_function(X))
    return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores
