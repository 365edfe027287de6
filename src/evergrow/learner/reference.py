"""Test data that a model remembers: its accuracy before and after every change on them, in the model's history.

Only the place of the data, a checksum of their features and the number of samples are kept, never a sample.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import EvergrowError
from evergrow.data import DataOptions
from evergrow.data.intake import read_labelled
from evergrow.data.items import Samples
from evergrow.learner.evaluation import Evaluation, evaluate_predictions
from evergrow.learner.snapshot import READING, Reference, Tested, fingerprint

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner


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
class _Rows:
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
    >>> from evergrow.learner.reference import measured_change
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
    rows = _rows(learner, data, options, trial) if fitted else None
    before = None if rows is None else _measured(learner, rows)
    samples = (
        None if fitted or data is None else read_labelled(data, "test", options=options)
    )  # errors come before the work
    yield trial
    if samples is not None:
        rows = _encoded(learner, samples, _found(data, options))
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


def _rows(learner: Learner, data: Any, options: DataOptions | None, trial: Trial) -> _Rows | None:
    """Return the test data that were given, or those that are remembered and still there."""
    kind = learner._encoder.kind
    if data is not None:
        return _encoded(learner, read_labelled(data, "test", kind, options), _found(data, options))
    known = learner._state().reference
    if known is None:
        return None
    if not known.source or not (os.path.isfile(known.source) or os.path.isdir(known.source)):
        where = known.source or "data in memory"
        trial.remark = f"the test data of this model ({where}) are not there any more: nothing was tested"
        return None
    try:
        rows = _encoded(learner, read_labelled(known.source, "test", kind, known.options()), known)
    except (EvergrowError, OSError) as error:
        trial.remark = f"the test data of this model ({known.source}) cannot be read any more: {error}"
        return None
    if rows.reference.digest != known.digest:
        trial.remark = (
            f"the test data of this model ({known.source}) changed since: accuracy before and after is that on the "
            "data as they are now"
        )
    return rows


def _found(data: Any, options: DataOptions | None) -> Reference:
    """Return a reference to data that were given, still without what they hold."""
    named = isinstance(data, (str, os.PathLike)) and os.path.exists(data)
    given, usual = options or DataOptions(), DataOptions()
    reading = {name: getattr(given, name) for name in READING if getattr(given, name) != getattr(usual, name)}
    return Reference(os.path.abspath(data) if named else "", "", 0, reading=reading)


def _encoded(learner: Learner, samples: Samples, reference: Reference) -> _Rows:
    """Return features and classes of test data, and the reference to them as they are."""
    encoded = learner._encoded(samples)
    labels = samples.required_labels()[encoded.rows]
    current = dataclasses.replace(reference, digest=fingerprint(encoded.X, labels), samples=len(labels))
    known = np.array([reference.names.get(name, name) for name in labels.tolist()], dtype=np.str_)
    return _Rows(encoded.X, known, current)


def _measured(learner: Learner, rows: _Rows) -> Evaluation:
    answers = learner._answers_to(rows.X)
    return evaluate_predictions(rows.labels.tolist(), answers.tolist(), learner.class_names_.tolist())
