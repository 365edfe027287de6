"""Annotations of a labelling tool as changes of a model, each exactly once.

The model file remembers what each annotation taught, by its id: its class and its feature vector, never the sample. The
ledger is written, and rolled back, in one step with the model. So an annotation that comes twice counts once, one that
is updated or deleted is unlearned exactly, and one that was deleted does not come back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.record import Spec, from_archive, record, require, to_archive
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Change

PART = "annotations"
_REMEMBERED = 10_000  # ids of deleted annotations, in case one of them still comes


@dataclass(frozen=True, eq=False)
class Annotation:
    """What an annotation says.

    Parameters
    ----------
    key : str
        Its id.
    label : str or None
        The class; None where it was deleted or skipped, or has none.
    row : ndarray of shape (d,) or None
        The features of its sample.
    moment : str
        When it was last changed, as an ISO date: messages may overtake each other.
    gone : bool
        Whether it was deleted for good, rather than left without a class.
    """

    key: str
    label: str | None
    row: NDArray[Any] | None = None
    moment: str = ""
    gone: bool = False


@dataclass(frozen=True)
class TaughtAnnotation:
    """An annotation that a model has learned.

    Parameters
    ----------
    key, label, moment : str
        As for :class:`Annotation`.
    since : int
        Changes of the model before it was taught: classes renamed after that have another name now.
    """

    key: str
    label: str
    since: int
    moment: str = ""

    def current_label(self, changes: Sequence[Change]) -> str | None:
        """Return the name of its class now, or None if it was forgotten since."""
        name = self.label
        for change in changes[self.since + 1 :]:
            if change.what == "forget" and name in change.classes:
                return None
            if change.what in ("rename", "merge-classes"):
                name = change.names.get(name, name)
        return name


@record("serve/annotations")
@dataclass(frozen=True, eq=False)
class Ledger:
    """Annotations that a model has learned, and those that were deleted.

    Parameters
    ----------
    taught : tuple of TaughtAnnotation
        What is learned.
    rows : ndarray of shape (n, d)
        Its feature vectors.
    deleted : tuple of str
        Ids that must not come again.
    """

    taught: tuple[TaughtAnnotation, ...] = ()
    rows: Annotated[NDArray[Any], Spec((None, None), dtype=None)] = field(default_factory=lambda: np.empty((0, 0)))
    deleted: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise unless there is a row for each annotation."""
        require(len(self.rows) == len(self.taught), "it has other numbers of annotations and rows")

    @classmethod
    def of(cls, learner: Learner) -> Ledger:
        """Return the ledger in a model."""
        archive = learner.attached(PART)
        return cls() if archive is None else from_archive(cls, archive, name="annotations of the model")

    def attach(self, learner: Learner) -> None:
        """Keep the ledger in a model."""
        learner.attach(PART, to_archive(self))

    def kept(self, keep: Iterable[bool]) -> Ledger:
        """Return the ledger with some of its annotations."""
        mask = np.fromiter(keep, dtype=bool, count=len(self.taught))
        taught = tuple(entry for entry, keep in zip(self.taught, mask, strict=True) if keep)
        return dataclasses.replace(self, taught=taught, rows=self.rows[mask])


def annotate(learner: Learner, annotations: Iterable[Annotation]) -> None:
    """Bring a model to what annotations say now; nothing changes where it says the same."""
    before = ledger = Ledger.of(learner)
    n_changes = len(learner.history_)
    for annotation in annotations:
        ledger = _annotated(learner, ledger, annotation)
    if ledger is not before:
        ledger.attach(learner)
        if len(learner.history_) == n_changes:  # the ids of deleted annotations must be remembered too
            learner.note("an annotation was deleted before it came")


def _annotated(learner: Learner, ledger: Ledger, annotation: Annotation) -> Ledger:
    known = {entry.key: (entry, row) for entry, row in zip(ledger.taught, ledger.rows, strict=True)}
    if annotation.key in ledger.deleted:
        return ledger
    if annotation.key not in known:
        if annotation.label is None and not annotation.gone:
            return ledger
    else:
        entry, row = known[annotation.key]
        label = entry.current_label(learner.history_)
        overtaken = bool(annotation.moment) and annotation.moment < entry.moment
        same = annotation.row is not None and label == annotation.label and np.array_equal(row, annotation.row)
        if overtaken or same:
            return ledger
        ledger = ledger.kept(other is not entry for other in ledger.taught)
        if label is not None:
            learner.unlearn((row[None], [label]))
    if annotation.label is None or annotation.row is None:
        deleted = (*ledger.deleted, annotation.key) if annotation.gone else ledger.deleted
        return dataclasses.replace(ledger, deleted=deleted[-_REMEMBERED:])
    taught = TaughtAnnotation(annotation.key, annotation.label, len(learner.history_), annotation.moment)
    learner.partial_fit((annotation.row[None], [annotation.label]))
    rows = np.concatenate([ledger.rows, annotation.row[None]]) if ledger.taught else annotation.row[None]
    return dataclasses.replace(ledger, taught=(*ledger.taught, taught), rows=rows)


def forget_classes(learner: Learner, names: Iterable[str]) -> None:
    """Forget classes, and with them the feature vectors of their annotations."""
    learner.forget_classes(list(names))
    ledger = Ledger.of(learner)
    kept = ledger.kept(entry.current_label(learner.history_) is not None for entry in ledger.taught)
    if len(kept.taught) < len(ledger.taught):
        kept.attach(learner)
