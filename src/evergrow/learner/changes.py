"""What happened to a model: one record per change, kept in the model's file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.record import UNKNOWN, Between, require, to_values

Event = Literal[
    "begin",
    "fit",
    "update",
    "forget",
    "unlearn",
    "merge",
    "rollback",
    "redo",
    "rename",
    "merge-classes",
    "relabel",
    "answering",
]
"""What a change can be."""

Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class Tested:
    """Accuracy on test data before and after a change.

    Parameters
    ----------
    source, digest : str
        Where the data lie, and a checksum of them.
    samples_before, samples : int
        How many of them are of classes that the model knew before, and knows after.
    before, after : float or None
        Share of right answers to those; None where there are none.
    fell : dict of str to (float, float)
        Classes of which a smaller share is recognised than before, with both shares; the largest fall first.
    """

    source: str
    digest: str
    samples_before: int
    before: Share | None
    samples: int
    after: Share | None
    fell: dict[str, tuple[Share, Share]] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"fell": {}, **to_values(self)}


@dataclass(frozen=True)
class Change:
    """One change of a model.

    Parameters
    ----------
    what : str
        What was done, one of :data:`Event`.
    when : str
        When, as an ISO date in UTC.
    samples : int
        How many samples were learned or removed.
    classes : tuple of str
        Classes that came (or, for ``"forget"`` and ``"unlearn"``, that went).
    note : str
        For people.
    revision : int
        The revision of the model after it.
    data : tuple of str
        Fingerprints of what was learned, to notice what would be counted twice; no sample can be found from them.
    names : dict of str to str
        New names of classes by old ones, where classes were renamed, merged or samples relabelled.
    withdrawn : tuple of str
        Fingerprints of what was taken out while something else was learned.
    who : str
        User under whom it was written to a file; empty where it never was, or nobody was to be named.
    tested : Tested or None
        Accuracy on test data before and after it, where there were some.
    extra : dict
        Optional fields of a later evergrow, kept as they were read.

    Examples
    --------
    >>> from evergrow.learner.changes import Change
    >>> change = Change.now("fit", 120, ["cat", "dog"])
    >>> change.what, change.samples, change.classes
    ('fit', 120, ('cat', 'dog'))
    """

    what: Event
    when: str
    samples: int
    classes: tuple[str, ...] = ()
    note: str = ""
    revision: int = 0
    data: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict, hash=False)
    withdrawn: tuple[str, ...] = ()
    who: str = ""
    tested: Tested | None = None
    extra: dict[str, Any] = field(default_factory=dict, hash=False, metadata=UNKNOWN)

    @classmethod
    def now(
        cls,
        what: Event,
        samples: int,
        classes: Iterable[str] = (),
        note: str = "",
        *,
        data: Iterable[str] = (),
        names: Mapping[str, str] | None = None,
        withdrawn: Iterable[str] = (),
    ) -> Self:
        """Return a change that happens at this moment."""
        when = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return cls(
            what,
            when,
            int(samples),
            tuple(classes),
            note,
            data=tuple(data),
            names=dict(names or {}),
            withdrawn=tuple(withdrawn),
        )

    def numbered(self, revision: int) -> Self:
        """Return the change with the revision that it led to."""
        return replace(self, revision=revision)

    def by(self, who: str) -> Self:
        """Return the change with who made it, unless that is known already."""
        return self if self.who else replace(self, who=who)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        always = {"classes": [], "note": "", "data": []}
        return {**always, **to_values(self)}


@dataclass(frozen=True)
class Ancestor:
    """A revision of a model file that led to a later one.

    Parameters
    ----------
    revision : int
        Its number.
    digest : str
        Its checksum.
    """

    revision: Annotated[int, Between(1, 2**53)]
    digest: str


@dataclass(frozen=True)
class Lineage:
    """Where a model stands among the revisions of its file.

    Parameters
    ----------
    number : int
        The revision that it was written as; 0 for one that never was.
    ancestors : tuple of Ancestor
        The revisions before it, the oldest first. Their checksums vouch for what lies in the history.
    """

    number: int = 0
    ancestors: tuple[Ancestor, ...] = ()

    def next(self, number: int, digest: str) -> Lineage:
        """Return the lineage of the revision that follows this one, whose checksum is given."""
        return Lineage(number, (*self.ancestors, Ancestor(self.number, digest)))

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless revisions ascend."""
        numbers = [*(entry.revision for entry in self.ancestors), self.number]
        require(all(a < b for a, b in pairwise(numbers)), f"its revisions do not ascend: {numbers[-10:]}")


def check_history(history: Sequence[Change], lineage: Lineage) -> None:
    """Raise :class:`FileFormatError` unless the changes of a model go with its place among the revisions."""
    numbers = [change.revision for change in history]
    require(numbers == sorted(numbers), "the revisions of its changes do not ascend")
    written = not numbers or lineage.number <= numbers[-1]
    require(written, f"it was written as revision {lineage.number} and its last change is {numbers[-1:]}")


def changed_names(history: Iterable[Change]) -> dict[str, str]:
    """Return what classes are called after changes, by the names they had before, where these differ.

    Examples
    --------
    >>> from evergrow.learner.changes import Change, changed_names
    >>> changes = [Change.now("rename", 1, names={"a": "b"}), Change.now("rename", 1, names={"b": "c", "x": "y"})]
    >>> changed_names(changes)
    {'a': 'c', 'b': 'c', 'x': 'y'}
    """
    names: dict[str, str] = {}
    for change in history:
        if change.what in ("rename", "merge-classes"):
            names = renamed(names, change.names)
    return names


def renamed(names: Mapping[str, str], later: Mapping[str, str]) -> dict[str, str]:
    """Return names by former ones after classes were renamed once more."""
    moved = {former: later.get(name, name) for former, name in names.items()}
    return {**moved, **{old: new for old, new in later.items() if old not in moved}}


def fingerprint(X: NDArray[Any], labels: NDArray[np.str_], weights: NDArray[np.float64] | None = None) -> str:
    """Identify a batch by its content."""
    digest = hashlib.blake2b("\0".join(labels.tolist()).encode("utf-8", "surrogatepass"), digest_size=12)
    digest.update(np.ascontiguousarray(X, dtype=np.float32).data)
    if weights is not None:
        digest.update(np.ascontiguousarray(weights, dtype=np.float64).data)
    return digest.hexdigest()


def fingerprints(
    X: NDArray[Any],
    labels: NDArray[np.str_],
    history: Sequence[Change],
    weights: NDArray[np.float64] | None = None,
) -> tuple[str, ...]:
    """Identify a batch by its content, with the labels that it has and those it had before classes were renamed.

    What was learned before a class got another name is so noticed when it comes again under the new one. Of classes
    that were merged nobody knows which label a sample had.

    Parameters
    ----------
    X, labels : ndarray of shapes (n, d) and (n,)
        The batch.
    history : sequence of Change
        What the model went through.
    weights : ndarray of shape (n,), optional
        What the samples count for, where that is not one.
    """
    found = [fingerprint(X, labels, weights)]
    present = set(labels.tolist())
    former = {name: name for name in present}
    for change in reversed(history):
        if change.what != "rename":
            continue
        before = {new: old for old, new in change.names.items()}
        former = {name: before.get(old, old) for name, old in former.items()}
        found.append(fingerprint(X, np.array([former[name] for name in labels.tolist()], dtype=np.str_), weights))
    return tuple(dict.fromkeys(found))


def learned_data(history: Iterable[Change]) -> frozenset[str]:
    """Return the fingerprints of what was learned and not taken out again."""
    held: set[str] = set()
    for change in history:
        held -= set(change.withdrawn)
        if change.what == "fit":
            held = set(change.data)
        elif change.what == "unlearn":
            held -= set(change.data)
        else:
            held |= set(change.data)
    return frozenset(held)
