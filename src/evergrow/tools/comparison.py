"""Compare two models, or a model before and after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, NotFittedError
from evergrow.data import DataOptions
from evergrow.data.inputs import read_labelled
from evergrow.learner.edits import backbone_differences
from evergrow.learner.evaluation import Evaluation, evaluate_predictions
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Change, Snapshot, Tested, changed_names
from evergrow.tools.labelled_data import LabelledFeatures, labelled_features

_SUMMARY_KEYS = (
    "n_samples",
    "n_known",
    "accuracy",
    "accuracy_all",
    "balanced_accuracy",
)


@dataclass(frozen=True)
class ChangedPrediction:
    """A sample for which two models predict different classes.

    Parameters
    ----------
    item : str
        Name of the sample.
    label : str
        Its true class.
    first, second : str
        The predictions of both models.
    """

    item: str
    label: str
    first: str
    second: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """Differences between two models.

    Parameters
    ----------
    first_only, second_only : tuple of str
        Classes of only one model.
    counts : dict of str to (int, int)
        Numbers of learned samples in both models, of every common class for which they
        differ.
    names : dict of str to str
        If the second model is a later version of the first: new names, by old names, of
        classes that were renamed or merged since.
    results : pair of Evaluation or None
        Results of both models on test data, with the class names of the second.
    changed : tuple of ChangedPrediction
        Samples with different predictions.
    """

    first_only: tuple[str, ...]
    second_only: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]
    names: Mapping[str, str] = field(default_factory=dict)
    results: tuple[Evaluation, ...] | None = None
    changed: tuple[ChangedPrediction, ...] = ()

    def recalls(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the recall of every class with test samples, of both models.

        A recall is None if the model does not know the class. Without test data the
        result is empty.
        """
        if self.results is None:
            return {}
        first, second = (result.recalls() for result in self.results)
        names = sorted({*first, *second})
        return {name: (first.get(name), second.get(name)) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        Returns
        -------
        dict
            The attributes, with three keys in place of ``results``: ``first`` and
            ``second``, the sample counts and accuracies of the two models (None
            without test data), and ``per_class``, the recalls of :meth:`recalls`.
        """
        summaries: list[dict[str, Any] | None] = [None, None]
        if self.results is not None:
            results = [result.to_dict() for result in self.results]
            summaries = [
                {name: result[name] for name in _SUMMARY_KEYS} for result in results
            ]
        return {
            "first_only": list(self.first_only),
            "second_only": list(self.second_only),
            "counts": {name: list(pair) for name, pair in self.counts.items()},
            "names": dict(self.names),
            "first": summaries[0],
            "second": summaries[1],
            "per_class": {name: list(pair) for name, pair in self.recalls().items()},
            "changed": [dict(vars(entry)) for entry in self.changed],
        }


def compare_learners(first: Learner, second: Learner, data: Any = None) -> Comparison:
    """Compare the classes of two learners, and their predictions on test data.

    Parameters
    ----------
    first, second : Learner
        Fitted learners.
    data : path-like, Dataset or (items, labels), optional
        Labelled test data. If a source has train and test parts, the test part is used.

    Raises
    ------
    InputError
        If test data is given and the learners take different kinds of samples.
    NotFittedError
        If a learner has learned nothing yet.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.tools import compare_learners
    >>> X = np.random.default_rng(0).normal(size=(40, 5))
    >>> y = np.repeat(["crow", "jay", "owl", "rook"], 10)
    >>> old = Learner(options={"n_units": 20}).fit((X[:25], y[:25]))
    >>> new = Learner(options={"n_units": 20}).fit((X, y))
    >>> found = compare_learners(old, new)
    >>> found.second_only, found.counts
    (('rook',), {'owl': (5, 10)})
    """
    names = _renamed_classes(first, second)
    comparison = _compare_classes(first, second, names)
    if data is None:
        return comparison
    if first.state_.kind != second.state_.kind:
        raise InputError(
            "models must take the same kind of samples, "
            f"got {first.state_.kind} and {second.state_.kind}"
        )
    return _compare_predictions(first, second, data, comparison)


def _renamed_classes(first: Learner, second: Learner) -> dict[str, str]:
    """Return the new names of classes of `first` by their old names.

    The result is empty unless `second` is a later version of `first`.
    """
    before = first.state_.history
    history = second.state_.history
    if _identities(history[: len(before)]) != _identities(before):
        return {}
    known = first.state_.counts
    later = changed_names(history[len(before) :])
    return {old: new for old, new in later.items() if old in known and new != old}


def _identities(changes: Sequence[Change]) -> list[tuple[str, str]]:
    return [(change.what, change.when) for change in changes]


def _compare_classes(
    first: Learner, second: Learner, names: Mapping[str, str]
) -> Comparison:
    """Compare classes and counts, with the first model's classes renamed."""
    first_counts = _renamed_counts(first, names)
    second_counts = second.state_.counts
    counts = {}
    for name in sorted(first_counts.keys() & second_counts):
        if first_counts[name] != second_counts[name]:
            counts[name] = (first_counts[name], second_counts[name])
    return Comparison(
        tuple(sorted(first_counts.keys() - second_counts.keys())),
        tuple(sorted(second_counts.keys() - first_counts.keys())),
        counts,
        names,
    )


def _renamed_counts(learner: Learner, names: Mapping[str, str]) -> dict[str, int]:
    """Return learned samples per class, by new name."""
    counts: Counter[str] = Counter()
    for name, n in learner.state_.counts.items():
        counts[names.get(name, name)] += n
    return counts


def _compare_predictions(
    first: Learner, second: Learner, data: Any, comparison: Comparison
) -> Comparison:
    """Add the results of both models on test data to a comparison."""
    names = comparison.names
    samples = read_labelled(data, "test", first.state_.kind)
    first_features = first.encode(samples)
    second_features = first_features
    if backbone_differences(first.state_.spec, second.state_.spec):
        second_features = second.encode(samples)
    # Only samples that both could read are compared.
    rows = np.intersect1d(first_features.rows, second_features.rows)
    X = first_features.X[np.searchsorted(first_features.rows, rows)]
    first_predictions = _rename(_predict(first, X), names)
    X = second_features.X[np.searchsorted(second_features.rows, rows)]
    second_predictions = _predict(second, X)

    # The data may use class names from before the renaming.
    known = second.state_.counts
    former = {old: new for old, new in names.items() if old not in known}
    labels = _rename(samples.required_labels()[rows], former)
    results = (
        evaluate_predictions(
            labels, first_predictions, sorted(_renamed_counts(first, names))
        ),
        evaluate_predictions(labels, second_predictions, sorted(known)),
    )
    items = samples.names()
    changed = tuple(
        ChangedPrediction(items[int(row)], str(label), str(one), str(other))
        for row, label, one, other in zip(
            rows, labels, first_predictions, second_predictions, strict=True
        )
        if one != other
    )
    return replace(comparison, results=results, changed=changed)


def _predict(learner: Learner, X: NDArray[Any]) -> NDArray[np.str_]:
    """Return predicted class names of features."""
    return np.asarray(learner.head_.predict(X), dtype=np.str_)


def _rename(labels: NDArray[np.str_], names: Mapping[str, str]) -> NDArray[np.str_]:
    return np.array([names.get(name, name) for name in labels.tolist()], dtype=np.str_)


# -- before and after a change


@contextmanager
def measured_change(
    learner: Learner, data: Any = None, options: DataOptions | None = None
) -> Iterator[None]:
    """Test a learner before and after a ``with`` block that changes it.

    The result is stored in the change log, as ``state_.history[-1].tested``. Nothing is
    stored if the block did not change the learner. Unreadable images do not count, if
    ``extract`` of the learner sets ``on_error="skip"``.

    Parameters
    ----------
    learner : Learner
        The learner. The block changes it once.
    data : path-like, Dataset or (items, labels), optional
        Labelled test data. If a source has train and test parts, the test part is used.
        Without data nothing is tested.
    options : DataOptions, optional
        Table columns and folder depth of the data.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.tools.comparison import measured_change
    >>> classes = np.repeat([0, 1, 2], 20)
    >>> X = np.random.default_rng(0).normal(size=(60, 4)) + 4 * np.eye(4)[classes]
    >>> y = np.array(["crow", "jay", "owl"])[classes]
    >>> learner = Learner(options={"n_units": 20})
    >>> with measured_change(learner, (X[1::2], y[1::2])):
    ...     _ = learner.fit((X[::2], y[::2]))
    >>> tested = learner.state_.history[-1].tested
    >>> tested.before, tested.after > 0.9
    (None, True)
    """
    if data is None:
        yield
        return
    start = _state(learner)
    # Invalid data is found before the work.
    kind = None if start is None else start.kind
    samples = read_labelled(data, "test", kind, options)
    rows = None
    before = None
    if start is not None:
        rows = labelled_features(learner, samples)
        if not start.is_empty:
            before = _evaluate(learner, rows)
    yield
    now = _state(learner)
    history_before = () if start is None else start.history
    if now is None or now.history == history_before:
        return
    if rows is None:
        rows = labelled_features(learner, samples)
    tested = _tested(before, _evaluate(learner, rows))
    latest = replace(now.history[-1], tested=tested)
    learner.state_ = replace(learner.state_, history=(*now.history[:-1], latest))


def _state(learner: Learner) -> Snapshot | None:
    """Return the state of a learner; None if it neither began nor learned."""
    try:
        return learner.state_
    except NotFittedError:
        return None


def _evaluate(learner: Learner, rows: LabelledFeatures) -> Evaluation:
    return evaluate_predictions(
        rows.labels, _predict(learner, rows.X), learner.state_.classes
    )


def _tested(before: Evaluation | None, after: Evaluation) -> Tested:
    """Return the test record of a change; `before` is None for a new model."""
    recalls_before: Mapping[str, float] = {} if before is None else before.recalls()
    fell = {
        name: (recalls_before[name], recall)
        for name, recall in after.recalls().items()
        if recall < recalls_before.get(name, 0.0)
    }
    largest_fall_first = sorted(
        fell.items(), key=lambda entry: (entry[1][1] - entry[1][0], entry[0])
    )
    return Tested(
        *_known_accuracy(before), *_known_accuracy(after), dict(largest_fall_first)
    )


def _known_accuracy(result: Evaluation | None) -> tuple[int, float | None]:
    """Return the number of samples of known classes, and the accuracy, None if 0."""
    if result is None or not result.n_known:
        return 0, None
    return result.n_known, result.accuracy
