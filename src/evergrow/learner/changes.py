"""What happened to a model: one record per change, kept in the model's file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any

from typing_extensions import Self

from evergrow.core.errors import FileFormatError

KINDS = ("fit", "update", "forget", "unlearn", "merge", "rollback")
"""What a change can be."""


@dataclass(frozen=True)
class Change:
    """One change of a model.

    Parameters
    ----------
    what : {"fit", "update", "forget", "unlearn", "merge", "rollback"}
        What was done.
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

    Examples
    --------
    >>> from evergrow.learner.changes import Change
    >>> change = Change.now("fit", 120, ["cat", "dog"])
    >>> change.what, change.samples, change.classes
    ('fit', 120, ('cat', 'dog'))
    >>> Change.from_dict(change.to_dict()) == change
    True
    """

    what: str
    when: str
    samples: int
    classes: tuple[str, ...] = ()
    note: str = ""
    revision: int = 0
    data: tuple[str, ...] = ()

    @classmethod
    def now(
        cls, what: str, samples: int, classes: Iterable[str] = (), note: str = "", *, data: Iterable[str] = ()
    ) -> Self:
        """Return a change that happens at this moment."""
        when = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return cls(what, when, int(samples), tuple(classes), note, data=tuple(data))

    def numbered(self, revision: int) -> Self:
        """Return the change with the revision that it led to."""
        return replace(self, revision=revision)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        return {**values, "classes": list(self.classes), "data": list(self.data)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the change that :meth:`to_dict` gave, or raise :class:`FileFormatError`."""
        known = {item.name for item in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != known or values["what"] not in KINDS:
            raise FileFormatError(f"a change must be described by {sorted(known)}, got {values!r}")
        lists = {name: tuple(str(item) for item in values[name]) for name in ("classes", "data")}
        return cls(**{**values, **lists})


def learned_data(history: Iterable[Change]) -> frozenset[str]:
    """Return the fingerprints of what was learned and not taken out again."""
    held: set[str] = set()
    for change in history:
        if change.what == "fit":
            held = set(change.data)
        elif change.what == "unlearn":
            held -= set(change.data)
        else:
            held |= set(change.data)
    return frozenset(held)
