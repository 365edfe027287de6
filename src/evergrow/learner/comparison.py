"""Two models, or a model before and after a change, side by side: classes, counts, accuracy and changed answers.

Of the test data that a model remembers only the place, a checksum of the features and the number of samples are kept,
never a sample.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import EvergrowError, InputError
from evergrow.data import DataOptions
from evergrow.data.intake import read_labelled
from evergrow.data.items import Samples
from evergrow.learner.edits import backbone_differences
from evergrow.learner.evaluation import Evaluation, evaluate_predictions
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import READING, Change, Reference, Tested, changed_names, fingerprint


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

    def to_dict(self) -> dict[str, str]:
        """Return plain values for JSON."""
        return dict(vars(self))


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
        Names that classes of the first have in the second, where it came of the first by renaming or merging.
    results : pair of Evaluation or None
        How both did on data; answers of the first are under the names of the second.
    changed : tuple of ChangedAnswer
        Samples whose answer differs.
    """

    first_only: tuple[str, ...]
    second_only: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]
    names: Mapping[str, str] = field(default_factory=dict)
    results: tuple[Evaluation, Evaluation] | None = None
    changed: tuple[ChangedAnswer, ...] = ()

    def recalls(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the share of every class in the data that each model recognises; None where it does not know it."""
        if self.results is None:
            return {}
        found = [{row.name: row.recall for row in result.per_class if row.n} for result in self.results]
        return {name: (found[0].get(name), found[1].get(name)) for name in sorted({*found[0], *found[1]})}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "first_only": list(self.first_only),
            "second_only": list(self.second_only),
            "counts": {name: list(pair) for name, pair in self.counts.items()},
            "names": dict(self.names),
            "first": None if self.results is None else _figures(self.results[0]),
            "second": None if self.results is None else _figures(self.results[1]),
            "per_class": {name: list(pair) for name, pair in self.recalls().items()},
            "changed": [entry.to_dict() for entry in self.changed],
        }


def compare_learners(first: Learner, second: Learner, data: Any = None) -> Comparison:
    """Return what differs between two learners.

    Parameters
    ----------
    first, second : Learner
        Of the same kind of samples.
    data : path-like, RawSet, FeatureSet or (items, labels), optional
        Labelled data to ask both about; of sources with two parts the test part.

    Raises
    ------
    InputError
        If one takes images and the other texts or features, and there are data to ask about.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.comparison import compare_learners
    >>> from evergrow.learner.learner import Learner
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.repeat(["crow", "jay", "owl", "rook"], 10)
    >>> old, new = (Learner(options={"n_units": 20}).fit((X[:n], y[:n])) for n in (25, 40))
    >>> found = compare_learners(old, new)
    >>> found.second_only, found.counts
    (('rook',), {'owl': (5, 10)})
    """
    later = later_names(first.history_, second.history_)
    names = {old: new for old, new in later.items() if old in first.samples_by_name_ and new != old}
    mine: dict[str, int] = {}
    for name, n in first.samples_by_name_.items():
        mine[names.get(name, name)] = mine.get(names.get(name, name), 0) + n
    theirs = second.samples_by_name_
    counts = {name: (mine[name], theirs[name]) for name in sorted(mine.keys() & theirs) if mine[name] != theirs[name]}
    alone = tuple(sorted(mine.keys() - theirs.keys())), tuple(sorted(theirs.keys() - mine.keys()))
    if data is None:
        return Comparison(*alone, counts, names)
    if first.kind_ != second.kind_:
        raise InputError(f"models must take the same kind of samples, got {first.kind_} and {second.kind_}")
    return _asked(Comparison(*alone, counts, names), first, second, data)


def later_names(before: list[Change], after: list[Change]) -> dict[str, str]:
    """Return what classes of a model are called later, where one history goes on from the other."""
    shared = len(before)
    if _marks(after[:shared]) != _marks(before):
        return {}
    return changed_names(after[shared:])


def _asked(found: Comparison, first: Learner, second: Learner, data: Any) -> Comparison:
    """Return the comparison with answers to data; samples go through the backbone once where both have the same."""
    samples = read_labelled(data, "test", first.kind_)
    mine = first._encoded(samples)
    same = not backbone_differences(first.spec_, second.spec_)
    theirs = mine if same else second._encoded(samples)
    both = np.intersect1d(mine.rows, theirs.rows)
    rows = [np.searchsorted(encoded.rows, both) for encoded in (mine, theirs)]
    # Data may still have the names that classes had in the first.
    former = {old: new for old, new in found.names.items() if old not in second.n_samples_}
    labels, items = _translated(samples.required_labels()[both], former), samples.names()
    answers = first._answers_to(mine.X[rows[0]]), second._answers_to(theirs.X[rows[1]])
    answers = _translated(answers[0], found.names), answers[1]
    known = sorted({found.names.get(name, name) for name in first.samples_by_name_}), sorted(second.samples_by_name_)
    changed = tuple(
        ChangedAnswer(items[int(row)], str(label), str(a), str(b))
        for row, label, a, b in zip(both, labels, *answers, strict=True)
        if a != b
    )
    results = tuple(
        evaluate_predictions(labels.tolist(), said.tolist(), classes)
        for said, classes in zip(answers, known, strict=True)
    )
    return Comparison(found.first_only, found.second_only, found.counts, found.names, (results[0], results[1]), changed)


def _translated(answers: NDArray[np.str_], names: Mapping[str, str]) -> NDArray[np.str_]:
    return np.array([names.get(name, name) for name in answers.tolist()], dtype=np.str_)


def _marks(history: list[Change]) -> list[tuple[str, str]]:
    return [(change.what, change.when) for change in history]


def _figures(result: Evaluation) -> dict[str, Any]:
    plain = result.to_dict()
    return {name: plain[name] for name in ("n_samples", "n_known", "accuracy", "accuracy_all", "balanced_accuracy")}


# -- before and after a change -----------------------------------------------------------------------------------


@dataclass
class Trial:
    """A change and what it did to the accuracy on test data.

    Parameters
    ----------
    tested : Tested or None
        The outcome, once the change is done; None where there was nothing to test on.
    remark : str
        What is worth knowing: test data that changed, or are gone.
    """

    tested: Tested | None = None
    remark: str = ""


@dataclass(frozen=True, eq=False)
class _TestRows:
    X: NDArray[Any]
    labels: NDArray[np.str_]
    reference: Reference


@contextmanager
def measured_change(learner: Learner, data: Any = None, options: DataOptions | None = None) -> Iterator[Trial]:
    """Test a learner before and after what the block does to it, and write the outcome into its history.

    Parameters
    ----------
    learner : Learner
        To be changed in the block, by one change.
    data : path-like, RawSet, FeatureSet or (items, labels), optional
        Labelled data, of sources with two parts the test part; they are remembered. None tests on what is remembered,
        as long as that is a file or folder that is still there.
    options : DataOptions, optional
        Columns of a table and depth of class folders in given data, remembered with them.

    Yields
    ------
    Trial
        Its ``tested`` is there after the block.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.learner import Learner
    >>> from evergrow.learner.comparison import measured_change
    >>> y = np.repeat(["crow", "jay", "owl"], 20)
    >>> X = np.random.default_rng(0).normal(size=(60, 4)) + 4 * np.eye(4)[np.repeat([0, 1, 2], 20)]
    >>> learner = Learner(options={"n_units": 20})
    >>> with measured_change(learner, (X[1::2], y[1::2])) as trial:
    ...     _ = learner.fit((X[::2], y[::2]))
    >>> trial.tested.before, trial.tested.after > 0.9, learner.history_[-1].tested == trial.tested
    (None, True, True)
    """
    trial, start = Trial(), learner._snapshot
    fitted = start is not None
    rows = _test_rows(learner, data, options, trial) if fitted else None
    before = None if rows is None else _measured(learner, rows)
    samples = (
        None if fitted or data is None else read_labelled(data, "test", options=options)
    )  # errors come before the work
    yield trial
    if samples is not None:
        rows = _measured_rows(learner, samples, _reference_to(data, options))
    if rows is None or learner._snapshot is start:  # nothing to test on, or nothing was changed
        return
    now = learner._state()
    trial.tested = outcome(before, _measured(learner, rows), rows.reference)
    latest = dataclasses.replace(now.history[-1], tested=trial.tested)
    learner._snapshot = dataclasses.replace(now, history=(*now.history[:-1], latest), reference=rows.reference)


def outcome(before: Evaluation | None, after: Evaluation, reference: Reference) -> Tested:
    """Return how a change did on test data, for its record."""
    fell = {}
    if before is not None:
        recalls = {row.name: row.recall for row in before.per_class if row.n}
        fell = {
            row.name: (recalls[row.name], row.recall)
            for row in after.per_class
            if row.n and row.recall < recalls.get(row.name, 0.0)
        }
    return Tested(
        reference.source,
        reference.digest,
        0 if before is None else before.n_known,
        None if before is None or not before.n_known else before.accuracy,
        after.n_known,
        after.accuracy if after.n_known else None,
        dict(sorted(fell.items(), key=lambda entry: (entry[1][1] - entry[1][0], entry[0]))),
    )


def _test_rows(learner: Learner, data: Any, options: DataOptions | None, trial: Trial) -> _TestRows | None:
    """Return the test data that were given, or those that are remembered and still there."""
    kind = learner._encoder.kind
    if data is not None:
        return _measured_rows(learner, read_labelled(data, "test", kind, options), _reference_to(data, options))
    known = learner._state().reference
    if known is None:
        return None
    if not known.source or not (os.path.isfile(known.source) or os.path.isdir(known.source)):
        where = known.source or "data in memory"
        trial.remark = f"the test data of this model ({where}) are not there any more: nothing was tested"
        return None
    try:
        rows = _measured_rows(learner, read_labelled(known.source, "test", kind, known.options()), known)
    except (EvergrowError, OSError) as error:
        trial.remark = f"the test data of this model ({known.source}) cannot be read any more: {error}"
        return None
    if rows.reference.digest != known.digest:
        trial.remark = (
            f"the test data of this model ({known.source}) changed since: accuracy before and after is that on the "
            "data as they are now"
        )
    return rows


def _reference_to(data: Any, options: DataOptions | None) -> Reference:
    """Return a reference to data that were given, still without what they hold."""
    named = isinstance(data, (str, os.PathLike)) and os.path.exists(data)
    given, usual = options or DataOptions(), DataOptions()
    reading = {name: getattr(given, name) for name in READING if getattr(given, name) != getattr(usual, name)}
    return Reference(os.path.abspath(data) if named else "", "", 0, reading=reading)


def _measured_rows(learner: Learner, samples: Samples, reference: Reference) -> _TestRows:
    """Return features and classes of test data, and the reference to them as they are."""
    encoded = learner._encoded(samples)
    labels = samples.required_labels()[encoded.rows]
    current = dataclasses.replace(reference, digest=fingerprint(encoded.X, labels), samples=len(labels))
    known = _translated(labels, reference.names)
    return _TestRows(encoded.X, known, current)


def _measured(learner: Learner, rows: _TestRows) -> Evaluation:
    answers = learner._answers_to(rows.X)
    return evaluate_predictions(rows.labels.tolist(), answers.tolist(), learner.class_names_.tolist())
