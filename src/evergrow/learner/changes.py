"""What happened to a model: one record per change, kept in the model's file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.fields import Fields

EVENTS = (
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
)
"""What a change can be."""


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
    before: float | None
    samples: int
    after: float | None
    fell: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**vars(self), "fell": {name: list(shares) for name, shares in self.fell.items()}}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Return what :meth:`to_dict` described, or raise :class:`FileFormatError`."""
        entries = fields.fields("fell")
        fell = {}
        for name in fields.mapping("fell"):
            shares = entries.numbers(name)
            right = len(shares) == 2 and all(0.0 <= share <= 1.0 for share in shares)
            fields.require(right, f"what {name!r} fell from and to are not two shares")
            fell[name] = (shares[0], shares[1])
        return cls(
            fields.text("source"),
            fields.text("digest"),
            fields.integer("samples_before"),
            fields.optional_number("before", low=0.0, high=1.0),
            fields.integer("samples"),
            fields.optional_number("after", low=0.0, high=1.0),
            fell,
        )


@dataclass(frozen=True)
class Change:
    """One change of a model.

    Parameters
    ----------
    what : str
        What was done, one of :data:`EVENTS`.
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
    >>> from evergrow.core.fields import Fields
    >>> from evergrow.learner.changes import Change
    >>> change = Change.now("fit", 120, ["cat", "dog"])
    >>> change.what, change.samples, change.classes
    ('fit', 120, ('cat', 'dog'))
    >>> Change.from_fields(Fields(change.to_dict(), {}, {}, "a change")) == change
    True
    """

    what: str
    when: str
    samples: int
    classes: tuple[str, ...] = ()
    note: str = ""
    revision: int = 0
    data: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    withdrawn: tuple[str, ...] = ()
    who: str = ""
    tested: Tested | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def now(
        cls,
        what: str,
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
        return {
            "what": self.what,
            "when": self.when,
            "samples": self.samples,
            "classes": list(self.classes),
            "note": self.note,
            "revision": self.revision,
            "data": list(self.data),
            **self._optional(),
            **self.extra,
        }

    def _optional(self) -> dict[str, Any]:
        """Return the fields that most changes do not have."""
        values = {
            "names": dict(self.names),
            "withdrawn": list(self.withdrawn),
            "who": self.who,
            "tested": None if self.tested is None else self.tested.to_dict(),
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Return the change that :meth:`to_dict` described, or raise :class:`FileFormatError`."""
        return cls(
            what=fields.text("what", choices=EVENTS),
            when=fields.text("when"),
            samples=fields.integer("samples"),
            classes=tuple(fields.texts("classes", [])),
            note=fields.text("note", default=""),
            revision=fields.integer("revision"),
            data=tuple(fields.texts("data", [])),
            names=_read_names(fields.fields("names")) if fields.has("names") else {},
            withdrawn=tuple(fields.texts("withdrawn", [])),
            who=fields.text("who", default=""),
            tested=Tested.from_fields(fields.fields("tested")) if fields.has("tested") else None,
            extra=fields.unknown(),
        )


def _read_names(fields: Fields) -> dict[str, str]:
    return {old: fields.text(old) for old in fields.names()}


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
