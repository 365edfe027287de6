"""Two models, or a model before and after a change, side by side: classes, counts, accuracy and changed answers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.data import DataOptions
from evergrow.data.inputs import read_labelled
from evergrow.data.items import Samples
from evergrow.learner.edits import backbone_differences
from evergrow.learner.evaluation import Evaluation, evaluate_predictions
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Tested, changed_names


@dataclass(frozen=True)
class ChangedAnswer:
    """A sample to which two models give different answers.

    Parameters
    ----------
    item : str
        Its name.
    label : str
        Its class.
    first, second : str
        The answers.
    """

    item: str
    label: str
    first: str
    second: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """What differs between two models.

    Parameters
    ----------
    first_only, second_only : tuple of str
        Classes that only one of them knows.
    counts : dict of str to (int, int)
        Samples learned of classes that both know, where the number differs.
    names : dict of str to str
        Names that classes of the first have in the second, where it came of the first
        by renaming or merging.
    results : pair of Evaluation or None
        How both did on data; answers of the first are under the names of the second.
    changed : tuple of ChangedAnswer
        Samples whose answer differs.
    """

    first_only: tuple[str, ...]
    second_only: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]
    names: Mapping[str, str] = field(default_factory=dict)
    results: tuple[Evaluation, ...] | None = None
    changed: tuple[ChangedAnswer, ...] = ()

    def recalls(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the share of every class in the data that each model recognises; None where it does not know it."""
        if self.results is None:
            return {}
        found = [result.recalls() for result in self.results]
        return {
            name: (found[0].get(name), found[1].get(name))
            for name in sorted({*found[0], *found[1]})
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        figures: list[dict[str, Any] | None] = [None, None]
        if self.results is not None:
            shown = (
                "n_samples",
                "n_known",
                "accuracy",
                "accuracy_all",
                "balanced_accuracy",
            )
            figures = [
                {name: result.to_dict()[name] for name in shown}
                for result in self.results
            ]
        return {
            "first_only": list(self.first_only),
            "second_only": list(self.second_only),
            "counts": {name: list(pair) for name, pair in self.counts.items()},
            "names": dict(self.names),
            "first": figures[0],
            "second": figures[1],
            "per_class": {name: list(pair) for name, pair in self.recalls().items()},
            "changed": [dict(vars(entry)) for entry in self.changed],
        }


def compare_learners(first: Learner, second: Learner, data: Any = None) -> Comparison:
    """Return what differs between two learners.

    Parameters
    ----------
    first, second : Learner
        Of the same kind of samples.
    data : path-like, Dataset, FeatureSet or (items, labels), optional
        Labelled data to ask both about; of sources with two parts the test part.

    Raises
    ------
    InputError
        If one takes images and the other texts or features, and there are data to ask
        about.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.tools.comparison import compare_learners
    >>> from evergrow.learner.learner import Learner
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.repeat(["crow", "jay", "owl", "rook"], 10)
    >>> old, new = (Learner(options={"n_units": 20}).fit((X[:n], y[:n])) for n in (25, 40))
    >>> found = compare_learners(old, new)
    >>> found.second_only, found.counts
    (('rook',), {'owl': (5, 10)})
    """
    known = first.state_.counts
    theirs = second.state_.counts
    names = {}
    history = second.state_.history
    before = first.state_.history
    if [(change.what, change.when) for change in before] == [
        (c.what, c.when) for c in history[: len(before)]
    ]:
        later = changed_names(history[len(before) :])
        names = {old: new for old, new in later.items() if old in known and new != old}
    mine: Counter[str] = Counter()
    for name, n in known.items():
        mine[names.get(name, name)] += n
    found = Comparison(
        tuple(sorted(mine.keys() - theirs.keys())),
        tuple(sorted(theirs.keys() - mine.keys())),
        {
            name: (mine[name], theirs[name])
            for name in sorted(mine.keys() & theirs)
            if mine[name] != theirs[name]
        },
        names,
    )
    if data is None:
        return found
    if first.state_.kind != second.state_.kind:
        raise InputError(
            f"models must take the same kind of samples, got {first.state_.kind} and {second.state_.kind}"
        )
    samples = read_labelled(data, "test", first.state_.kind)
    encoded = [first.encode(samples)]  # once where both have the same backbone
    encoded.append(
        second.encode(samples)
        if backbone_differences(first.state_.spec, second.state_.spec)
        else encoded[0]
    )
    both = np.intersect1d(encoded[0].rows, encoded[1].rows)
    X = [part.X[np.searchsorted(part.rows, both)] for part in encoded]
    # Data may still have the names that classes had in the first.
    former = {old: new for old, new in names.items() if old not in theirs}
    labels = _translated(samples.required_labels()[both], former)
    items = samples.names()
    answers = (
        _translated(_predicted_names(first, X[0]), names),
        _predicted_names(second, X[1]),
    )
    results = tuple(
        evaluate_predictions(labels, said, sorted(known))
        for said, known in zip(answers, (mine, theirs), strict=True)
    )
    changed = tuple(
        ChangedAnswer(items[int(row)], str(label), str(a), str(b))
        for row, label, a, b in zip(both, labels, *answers, strict=True)
        if a != b
    )
    return dataclasses.replace(found, results=results, changed=changed)


def _predicted_names(learner: Learner, X: NDArray[Any]) -> NDArray[np.str_]:
    """Return the predicted class names of feature vectors."""
    return np.asarray(learner.head_.predict(X), dtype=np.str_)


def _translated(labels: NDArray[np.str_], names: Mapping[str, str]) -> NDArray[np.str_]:
    return np.array([names.get(name, name) for name in labels.tolist()], dtype=np.str_)


# -- before and after a change ---------------------------------------------------------


@contextmanager
def measured_change(
    learner: Learner, data: Any = None, options: DataOptions | None = None
) -> Iterator[None]:
    """Test a learner before and after what the block does to it; ``state_.history[-1].tested`` has the outcome.

    Parameters
    ----------
    learner : Learner
        To be changed in the block, by one change.
    data : path-like, Dataset, FeatureSet or (items, labels), optional
        Labelled data, of sources with two parts the test part. Without them nothing is
        tested.
    options : DataOptions, optional
        Columns of a table and depth of class folders in the data.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.learner import Learner
    >>> from evergrow.tools.comparison import measured_change
    >>> y = np.repeat(["crow", "jay", "owl"], 20)
    >>> X = np.random.default_rng(0).normal(size=(60, 4)) + 4 * np.eye(4)[np.repeat([0, 1, 2], 20)]
    >>> learner = Learner(options={"n_units": 20})
    >>> with measured_change(learner, (X[1::2], y[1::2])):
    ...     _ = learner.fit((X[::2], y[::2]))
    >>> tested = learner.state_.history[-1].tested
    >>> tested.before, tested.after > 0.9
    (None, True)
    """
    start = getattr(learner, "state_", None)
    rows = None
    if data is not None:  # errors come before the work
        samples = read_labelled(
            data, "test", None if start is None else start.kind, options
        )
        rows = None
        if start is not None:
            rows = _test_rows(learner, samples)
    before = None
    if not (rows is None or start is None or start.is_empty):
        before = _measured(learner, rows)
    yield
    if data is None or getattr(learner, "state_", None) is start:
        return
    rows = rows or _test_rows(learner, samples)
    after = _measured(learner, rows)
    if before is None:
        recalls = {}
    else:
        recalls = before.recalls()
    fell = {
        name: (recalls[name], now)
        for name, now in after.recalls().items()
        if now < recalls.get(name, 0.0)
    }
    tested = Tested(
        0 if before is None else before.n_known,
        None if before is None or not before.n_known else before.accuracy,
        after.n_known,
        after.accuracy if after.n_known else None,
        dict(
            sorted(
                fell.items(), key=lambda entry: (entry[1][1] - entry[1][0], entry[0])
            )
        ),
    )
    now = learner.state_
    latest = dataclasses.replace(now.history[-1], tested=tested)
    learner.state_ = dataclasses.replace(now, history=(*now.history[:-1], latest))


def _test_rows(
    learner: Learner, samples: Samples
) -> tuple[NDArray[Any], NDArray[np.str_]]:
    """Return features and classes of test data."""
    encoded = learner.encode(samples)
    return encoded.X, samples.required_labels()[encoded.rows]


def _measured(
    learner: Learner, rows: tuple[NDArray[Any], NDArray[np.str_]]
) -> Evaluation:
    return evaluate_predictions(
        rows[1], _predicted_names(learner, rows[0]), learner.state_.classes
    )
