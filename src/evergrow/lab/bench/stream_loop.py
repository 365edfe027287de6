"""Learn a stream task by task, with an evaluation on all seen classes after each."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import EvergrowWarning, InputError
from evergrow.core.validation import resolve_device, synchronize
from evergrow.data import Dataset
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.head.scl import SCLClassifier
from evergrow.lab.bench.data import ImageData, fingerprint_of, rows_of
from evergrow.lab.bench.run import Run
from evergrow.lab.heads import SCLDiscriminantClassifier, SCSMClassifier
from evergrow.lab.methods import FsaClassifier, ImageClassifier, create_method
from evergrow.lab.methods.fsa_classifier import with_blocks
from evergrow.lab.metrics import (
    accuracy_matrix,
    first_tasks,
    session_accuracies,
    summarize,
    task_accuracies,
    within_tasks,
)
from evergrow.lab.streams import Stream, Task, stream_of


@dataclass
class StreamLog:
    """Measurements of a run so far, also available after a failure."""

    rows: list[NDArray[np.float64]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    learn: list[float] = field(default_factory=list)
    predict: list[float] = field(default_factory=list)
    only_last: bool = False
    """Whether only the last session is evaluated."""
    answers: tuple[NDArray[Any], NDArray[Any]] | None = None
    """True and predicted labels of the last session."""
    class_names: tuple[str, ...] = ()
    """Names of labels 0, 1, ..., if the data have them."""
    last: tuple[Any, Any, NDArray[Any], Stream] | None = None
    """Learner, test samples, their labels and the stream after the last session."""
    within: dict[str, Any] = field(default_factory=dict)
    """Accuracy within tasks after the last session, if computed."""


def run_stream(
    run: Run, data: Dataset | ImageData, log: StreamLog
) -> IncrementalClassifier | ImageClassifier:
    """Learn and evaluate task by task, fill the log, and return the method."""
    device = resolve_device(run.device)
    stream = stream_of(
        require_unchanged(data, run),
        run.protocol,
        seed=run.seed,
        earlier_seeds=run.earlier_seeds,
    )
    options = run.options
    if isinstance(data, Dataset):
        options = with_blocks(HEADS[run.method.name], data.train.widths, options)
    method: Any = create_method(run.method.name, **options)
    learner: Any = method
    log.only_last = getattr(method, "joint", False)
    log.class_names = data.class_names
    if isinstance(data, ImageData):
        learner.backbone = data.backbone
    last_index = len(stream) - 1
    for task in stream:
        log.learn.append(_learn(learner, stream, task, data, device))
        if isinstance(learner, FsaClassifier) and isinstance(data, ImageData):
            # The backbone is frozen from now on. Encode every image once and continue
            # with the head alone.
            data = data.encoded_by(learner.backbone_)
            learner = learner.head_
        rows, task_ids = stream.seen_test(task.index)
        if len(rows) == 0 or (log.only_last and task.index < last_index):
            # There are no test samples yet, or the method trains once at the end.
            log.rows.append(np.full(task.index + 1, np.nan))
            log.counts.append(len(task.test))
            continue
        X, y = rows_of(data, "test", rows)
        synchronize(device)
        start = time.perf_counter()
        predictions = learner.predict(X)
        log.predict.append(time.perf_counter() - start)
        log.answers = y, predictions
        accuracies, counts = task_accuracies(y, predictions, task_ids, task.index + 1)
        log.rows.append(accuracies)
        log.counts.append(int(counts[-1]))
        if task.index == last_index:
            log.last = learner, X, y, stream
    return cast("IncrementalClassifier | ImageClassifier", method)


DataT = TypeVar("DataT", bound=Dataset | ImageData)


def require_unchanged(data: DataT, run: Run) -> DataT:
    """Return the data; raise if they differ from the data of the plan."""
    if isinstance(data, Dataset):
        found = fingerprint_of(data)
    else:
        found = data.fingerprint
    if found != run.dataset["fingerprint"]:
        raise InputError(
            f"The contents of dataset {data.name!r} changed while the grid was "
            "running. Start it again."
        )
    return data


def _learn(
    learner: Any,
    stream: Stream,
    task: Task,
    data: Dataset | ImageData,
    device: torch.device,
) -> float:
    """Learn one task and return the seconds, without the time to load the rows."""
    seconds = 0.0
    batches = stream.batches(task)
    if task.index == 0:
        min_classes = 2 if isinstance(learner, _GUIDED) else 1
        batches = _merge_first(batches, data.y_train, min_classes)
    for number, rows in enumerate(batches):
        X, y = rows_of(data, "train", rows)
        synchronize(device)
        start = time.perf_counter()
        if task.index == 0 and number == 0:
            learner.fit(X, y)
        else:
            learner.partial_fit(X, y)
        synchronize(device)
        seconds += time.perf_counter() - start
    return seconds


_GUIDED = (SCLClassifier, SCLDiscriminantClassifier, SCSMClassifier, FsaClassifier)
"""Methods whose first batch must have two classes."""


def _merge_first(
    batches: Iterator[NDArray[np.int64]], labels: NDArray[Any], min_classes: int
) -> Iterator[NDArray[np.int64]]:
    """Join the first mini-batches of an online stream until they have the classes."""
    first = next(batches)
    for rows in batches:
        if len(np.unique(labels[first])) >= min_classes:
            yield first
            yield rows
            yield from batches
            return
        first = np.concatenate([first, rows])
    yield first


def stream_results(log: StreamLog, *, complete: bool) -> dict[str, Any]:
    """Return the results entry of a record; only complete runs have summary values."""
    if not log.rows:
        return {}
    matrix = accuracy_matrix(log.rows)
    counts = log.counts[: len(log.rows)]
    if complete:
        summary = asdict(summarize(matrix, counts))
        if log.only_last:
            summary |= dict.fromkeys(("a_avg", "a_avg_tasks", "f_avg"))
        return {"matrix": matrix, "counts": counts, **summary, **log.within}
    return {
        "matrix": matrix,
        "counts": counts,
        "by_samples": session_accuracies(matrix, counts),
        "by_tasks": session_accuracies(matrix, convention="tasks"),
    }


def within_results(
    learner: Any, X: Any, y: NDArray[Any], stream: Stream
) -> dict[str, Any]:
    """Return the accuracy within tasks after the last session, as record entries.

    A method whose classifier is trained task by task may separate the classes of every
    task and still confuse tasks. The accuracy over all classes does not show which.
    Scores are computed separately, because ``predict`` need not be their argmax. Any
    error becomes a warning, because the run itself has succeeded.

    Parameters
    ----------
    learner : object
        The learner after the last session.
    X, y : array-like, ndarray of shape (n,)
        Test samples of all tasks and their labels.
    stream : Stream
        The tasks. A recurring class belongs to its first task.

    Returns
    -------
    dict
        ``a_last_within`` and ``within_tasks``, or nothing for a learner without scores.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.lab.bench.stream_loop import within_results
    >>> from evergrow.lab.methods import create_method
    >>> from evergrow.lab.streams import Protocol, make_stream
    >>> X = np.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.1], [0.1, 3.0]])
    >>> y = np.array([0, 1, 2, 3])
    >>> stream = make_stream(y, y, Protocol(increment=2, shuffle=False))
    >>> head = create_method("simplecil").fit(X, y)
    >>> Z = X[[2, 3, 0, 1]]  # each is most similar to a class of the other task
    >>> (head.predict(Z) == y).mean().item()
    0.0
    >>> within_results(head, Z, y, stream)["a_last_within"]
    1.0
    """
    if not callable(getattr(learner, "decision_function", None)):
        return {}
    class_tasks = first_tasks(task.classes for task in stream)
    try:
        within = within_tasks(
            _scores(learner, X), learner.classes_, y, class_tasks, len(stream)
        )
    except Exception as error:  # an optional diagnostic must not fail a finished run
        warnings.warn(
            f"accuracy within tasks was not recorded: {type(error).__name__}: {error}",
            EvergrowWarning,
            stacklevel=2,
        )
        return {}
    return {"a_last_within": within.accuracy, "within_tasks": within.by_task}


def _scores(learner: Any, X: Any) -> NDArray[Any]:
    """Return one column of scores per class, also for two classes."""
    scores = np.asarray(learner.decision_function(X))
    if scores.ndim == 1:
        return np.stack([np.zeros_like(scores), scores], axis=1)
    return scores
