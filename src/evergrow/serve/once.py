"""Requests that were fulfilled, kept with the change that fulfilled them: a repeated one then counts once.

The record of a request is written into the model file in the same step as what it changed, as a further field of the
change. What a rollback takes away keeps its requests in the record of the rollback, so that a late repetition of one
that was undone does not teach it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evergrow.learner.changes import Change
from evergrow.serve.problems import Problem

FIELD = "requests"


@dataclass(frozen=True)
class Once:
    """A request that is to count once.

    Parameters
    ----------
    key : str
        Hash of the caller's ``Idempotency-Key``; empty where there was none.
    content : str
        Hash of what was asked, to notice a key that is used twice for different things.
    """

    key: str = ""
    content: str = ""

    @classmethod
    def of(cls, key: str | None, *content: bytes) -> Once:
        """Return the record of a request with this key and content.

        Examples
        --------
        >>> from evergrow.serve.once import Once
        >>> Once.of("a", b"teach") == Once.of("a", b"teach"), Once.of("a", b"teach") == Once.of("a", b"forget")
        (True, False)
        """
        if not key:
            return cls()
        digest = hashlib.blake2b(digest_size=12)
        for part in content:
            digest.update(len(part).to_bytes(8, "little") + part)
        return cls(
            hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest(), digest.hexdigest()
        )

    def extra(self, before: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the further field of a change that fulfils the request, and earlier ones that go with it."""
        entries = [dict(entry) for entry in before]
        if self.key:
            entries.append({"key": self.key, "content": self.content})
        return {FIELD: entries} if entries else {}

    def fulfilled_by(self, changes: Iterable[Change]) -> Change | None:
        """Return the change that fulfilled the request before, if one did.

        Raises
        ------
        Problem
            If the key was used for something else.
        """
        if not self.key:
            return None
        for change in changes:
            for entry in requests_of(change):
                if entry.get("key") == self.key:
                    if entry.get("content") != self.content:
                        raise Problem(
                            422, "Idempotency-Key must be a new one for every request, got one of another", "KeyReused"
                        )
                    return change
        return None


def requests_of(change: Change) -> list[Mapping[str, Any]]:
    """Return the requests that a change fulfilled; what a file has there may be anything."""
    entries = change.extra.get(FIELD, [])
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]
