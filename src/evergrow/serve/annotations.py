"""Annotations of a labelling tool as changes of a model, each exactly once.

What an annotation taught is remembered in the model's own file, by the id of the annotation: its class and its feature
vector, never the sample. It is written, and rolled back, in one step with the model. So an annotation that comes twice
counts once, one that is updated or deleted is unlearned exactly, and one that was deleted does not come back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.archive import Archive, register_kind
from evergrow.learner.changes import Change
from evergrow.learner.learner import Learner
from evergrow.serve.drafts import Draft

KIND = register_kind("serve/annotations")
PART = "annotations"
_REMEMBERED = 10_000  # ids of deleted annotations, should one of them still be on its way


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
    since : int
        Changes of the model before it was taught: classes renamed after that have another name now.
    moment : str
        When it was last changed where it was made, as an ISO date: messages may overtake each other.
    gone : bool
        Whether it was deleted for good, rather than left without a class.
    """

    key: str
    label: str | None
    row: NDArray[Any] | None = None
    since: int = 0
    moment: str = ""
    gone: bool = False


@dataclass(frozen=True, eq=False)
class Ledger:
    """Annotations that a model has learned, and those that were deleted.

    Parameters
    ----------
    entries : dict of str to Annotation
        What is learned, by id.
    deleted : tuple of str
        Ids that must not come again.
    """

    entries: dict[str, Annotation] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()

    def to_archive(self) -> Archive:
        """Return what a file holds."""
        kept = list(self.entries.values())
        taught = [entry.row for entry in kept if entry.row is not None]  # all of them: what is kept was taught
        rows = np.stack(taught) if taught else np.empty((0, 0))
        meta = {
            "keys": [entry.key for entry in kept],
            "labels": [entry.label for entry in kept],
            "since": [entry.since for entry in kept],
            "moments": [entry.moment for entry in kept],
            "deleted": list(self.deleted),
        }
        return KIND.archive(meta, {"rows": torch.from_numpy(np.ascontiguousarray(rows))})

    @classmethod
    def from_archive(cls, archive: Archive | None) -> Ledger:
        """Return what :meth:`to_archive` described, or raise :class:`FileFormatError`; empty where there is none."""
        if archive is None:
            return cls()
        fields = archive.open(KIND.name, name="annotations of the model")
        keys, labels, since = fields.texts("keys"), fields.texts("labels"), fields.integers("since")
        moments, rows = fields.texts("moments"), fields.tensor("rows", dtype=None).numpy()
        sizes = {len(part) for part in (keys, labels, since, moments, rows)}
        fields.require(len(sizes) == 1, "it has other numbers of parts")
        entries = {k: Annotation(k, *rest) for k, *rest in zip(keys, labels, rows, since, moments, strict=True)}
        return cls(entries, tuple(fields.texts("deleted")))


def name_now(entry: Annotation, history: Sequence[Change]) -> str | None:
    """Return what the class of an annotation is called now; None where it was forgotten since."""
    name = entry.label
    for change in history[entry.since + 1 :]:
        if name is None or (change.what == "forget" and name in change.classes):
            return None
        if change.what in ("rename", "merge-classes"):
            name = change.names.get(name, name)
    return name


@dataclass(frozen=True, eq=False)
class Annotate:
    """Bring a model to what annotations say now.

    Parameters
    ----------
    annotations : tuple of Annotation
        What they say; those without a class are taken out.
    """

    annotations: tuple[Annotation, ...]

    @property
    def size(self) -> int:
        """Samples that come with them, at most."""
        return len(self.annotations)

    def on_learner(self, learner: Learner) -> None:
        """Unlearn what they said before and learn what they say now; nothing where that is the same."""
        ledger = Ledger.from_archive(learner.attached(PART))
        before = ledger
        for annotation in self.annotations:
            ledger = _settled(learner, ledger, annotation)
        if ledger is not before:
            learner.attach(PART, ledger.to_archive())
            if ledger.entries == before.entries:
                learner._snapshot = learner._state().after(_nothing_came())

    def on_draft(self, draft: Draft) -> Draft:
        """Do the same while there is no second class."""
        ledger = Ledger.from_archive(draft.parts.get(PART))
        before = ledger
        for annotation in self.annotations:
            draft, ledger = _settled_draft(draft, ledger, annotation)
        if ledger is before:
            return draft
        if ledger.entries == before.entries:
            draft = draft.after(_nothing_came(), draft.features, draft.labels)
        if draft.is_ready:  # the history of a learner begins anew
            named = [(entry, name_now(entry, draft.history)) for entry in ledger.entries.values()]
            fresh = {e.key: dataclasses.replace(e, label=name, since=0) for e, name in named if name is not None}
            ledger = Ledger(fresh, ledger.deleted)
        return dataclasses.replace(draft, parts={**draft.parts, PART: ledger.to_archive()})


def _settled(learner: Learner, ledger: Ledger, wanted: Annotation) -> Ledger:
    entry = ledger.entries.get(wanted.key)
    name = None if entry is None else name_now(entry, learner.history_)
    if _says_the_same(entry, name, wanted, ledger):
        return ledger
    if entry is not None and entry.row is not None and name is not None:
        learner.unlearn((entry.row[None], [name]))
    since = len(learner.history_)
    if wanted.label is not None and wanted.row is not None:
        learner.partial_fit((wanted.row[None], [wanted.label]))
    return _with(ledger, dataclasses.replace(wanted, since=since))


def _settled_draft(draft: Draft, ledger: Ledger, wanted: Annotation) -> tuple[Draft, Ledger]:
    entry = ledger.entries.get(wanted.key)
    name = None if entry is None else name_now(entry, draft.history)
    if _says_the_same(entry, name, wanted, ledger):
        return draft, ledger
    if entry is not None and entry.row is not None and name is not None:
        draft = draft.unlearned(entry.row[None], np.asarray([name]))
    since = len(draft.history)
    if wanted.label is not None and wanted.row is not None:
        draft = draft.taught(wanted.row[None], np.asarray([wanted.label]))
    return draft, _with(ledger, dataclasses.replace(wanted, since=since))


def _says_the_same(entry: Annotation | None, name: str | None, wanted: Annotation, ledger: Ledger) -> bool:
    """Return whether a model has learned exactly what an annotation says or something later, or has seen it deleted."""
    if wanted.key in ledger.deleted:
        return True
    if entry is None:
        return wanted.label is None and not wanted.gone
    if wanted.moment and wanted.moment < entry.moment:  # overtaken by a later one
        return True
    if entry.row is None or wanted.row is None:
        return False
    return name == wanted.label and np.array_equal(entry.row, wanted.row)


def _with(ledger: Ledger, wanted: Annotation) -> Ledger:
    entries = {key: entry for key, entry in ledger.entries.items() if key != wanted.key}
    if wanted.label is None:
        return Ledger(entries, (*ledger.deleted, *([wanted.key] if wanted.gone else ()))[-_REMEMBERED:])
    return Ledger({**entries, wanted.key: wanted}, ledger.deleted)


def _nothing_came() -> Change:
    """Return a change of no samples: ids of annotations that were deleted before they came must be remembered too."""
    return Change.now("update", 0, note="an annotation was deleted before it came")


def without_forgotten(archive: Archive | None, history: Sequence[Change]) -> Archive | None:
    """Return the annotations that a model keeps, without the feature vectors of classes that it has forgotten.

    Parameters
    ----------
    archive : Archive or None
        What :meth:`Ledger.to_archive` gave; None where there are none.
    history : sequence of Change
        All changes of the model.

    Returns
    -------
    Archive or None
        None where nothing is to be left out.
    """
    ledger = Ledger.from_archive(archive)
    kept = {key: entry for key, entry in ledger.entries.items() if name_now(entry, history) is not None}
    return None if len(kept) == len(ledger.entries) else dataclasses.replace(ledger, entries=kept).to_archive()


def deletions(keys: Iterable[str]) -> tuple[Annotation, ...]:
    """Return annotations that are no more."""
    return tuple(Annotation(key, None, gone=True) for key in keys)
