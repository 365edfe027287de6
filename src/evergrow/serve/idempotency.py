"""Requests that were fulfilled, kept with the change that fulfilled them, so that a repeated request counts once.

The record of a request is written into the model file in the same step as its change, as a further field of it. A
rollback keeps the requests of what it undid, so that a late repetition of one does not teach it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evergrow.learner.snapshot import Change
from evergrow.serve.problems import Problem

FIELD = "requests"


@dataclass(frozen=True)
class IdempotencyKey:
    """The key of a request that is to count once.

    Parameters
    ----------
    key : str
        Hash of the caller's ``Idempotency-Key``; empty without one.
    content : str
        Hash of what was asked, to notice a key that is used for two requests.
    """

    key: str = ""
    content: str = ""

    @classmethod
    def of(cls, key: str | None, *content: bytes) -> IdempotencyKey:
        """Return the record of a key and the content of its request.

        Examples
        --------
        >>> from evergrow.serve.idempotency import IdempotencyKey
        >>> first = IdempotencyKey.of("a", b"teach")
        >>> first == IdempotencyKey.of("a", b"teach"), first == IdempotencyKey.of("a", b"forget")
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

    def extra(self, earlier: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the further field of a change that fulfils the request, with earlier requests that it takes over."""
        entries = [dict(entry) for entry in earlier]
        if self.key:
            entries.append({"key": self.key, "content": self.content})
        return {FIELD: entries} if entries else {}

    def find(self, changes: Iterable[Change]) -> Change | None:
        """Return the change that fulfilled the request before, or None.

        Raises
        ------
        Problem
            If the key was used for another request.
        """
        if not self.key:
            return None
        for change in changes:
            for entry in requests_of(change):
                if entry.get("key") == self.key:
                    if entry.get("content") != self.content:
                        raise Problem(
                            422, "this Idempotency-Key was used for another request: take a new one", "KeyReused"
                        )
                    return change
        return None


def requests_of(change: Change) -> list[Mapping[str, Any]]:
    """Return the requests that a change fulfilled. A file may hold anything there."""
    entries = change.extra.get(FIELD, [])
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]
