"""Conditions of a change: ``If-Match`` and ``Idempotency-Key``."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from pydantic import AfterValidator, Field

from evergrow.learner.snapshot import Change
from evergrow.serve.problems import Problem
from evergrow.serve.schemas import Omittable

_REQUESTS = "requests"
"""Field of a change in the history: the keys of the requests that it fulfilled."""


@dataclass(frozen=True)
class ChangeRequest:
    """A requested change and its conditions.

    The key is stored in the model file together with the change. A repeated request
    therefore counts once, also after a restart and after a rollback, because the
    rollback log lists the undone changes.

    Parameters
    ----------
    model : str
        Name of the model.
    if_match : str
        ETag expected by the client, or empty.
    key : str
        Hash of the ``Idempotency-Key``, or empty.
    content : str
        Hash of the request, to detect a key that is used for two requests.
    note : str
        Note for the history.
    who : str, optional
        Author of the change. Default: the user who runs the service.
    """

    model: str
    if_match: str = ""
    key: str = ""
    content: str = ""
    note: str = ""
    who: str | None = None

    def with_content(self, *content: bytes, note: str = "") -> ChangeRequest:
        """Return a copy of the request with the hash of its content and a note.

        Without an idempotency key there is no hash.

        Parameters
        ----------
        *content : bytes
            Parts of the request that determine the change.
        note : str
            Note for the history.

        Examples
        --------
        >>> from evergrow.serve.change_requests import ChangeRequest
        >>> request = ChangeRequest("birds", key="k")
        >>> first = request.with_content(b"teach", b"a")
        >>> first.content == request.with_content(b"teacha").content
        False
        """
        if not self.key:
            return dataclasses.replace(self, content="", note=note)
        digest = hashlib.blake2b(digest_size=12)
        for part in content:
            # With the lengths, parts cannot be divided in another way.
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return dataclasses.replace(self, content=digest.hexdigest(), note=note)

    def extra(self) -> dict[str, Any]:
        """Return the fields that the change gets in the history, besides its own."""
        if self.key:
            return {_REQUESTS: [{"key": self.key, "content": self.content}]}
        return {}

    def fulfilled_by(self, change: Change) -> bool:
        """Return whether a change in the history fulfilled this request.

        A request without an idempotency key was never fulfilled.

        Raises
        ------
        Problem
            422 if the change fulfilled another request with the same key.
        """
        if not self.key:
            return False
        entries = change.extra.get(_REQUESTS)
        if not isinstance(entries, list):
            return False
        contents = [
            entry.get("content")
            for entry in entries
            if isinstance(entry, dict) and entry.get("key") == self.key
        ]
        if contents and self.content not in contents:
            raise Problem(
                422,
                "this Idempotency-Key was used for another request: use a new key",
                "KeyReused",
            )
        return bool(contents)


IfMatch = Annotated[
    str,
    Header(
        description="Expected ETag of the model. If it differs, the response is 412.",
        examples=['"7-3f9c1a"'],
    ),
]


def _check_key(key: str) -> str:
    """Return a valid Idempotency-Key. Raise ValueError for others."""
    if not (key.isascii() and key.isprintable()):
        raise ValueError(
            "an Idempotency-Key must contain printable ASCII characters only"
        )
    return key


KeyText = Annotated[
    str,
    Field(min_length=1, max_length=200, json_schema_extra={"pattern": "^[ -~]+$"}),
    AfterValidator(_check_key),
]


def _change_request(
    request: Request,
    if_match: IfMatch = "",
    idempotency_key: Annotated[
        Omittable[KeyText],
        Header(
            description="Repeated requests with the same key count once, also after a "
            "restart."
        ),
    ] = None,
) -> ChangeRequest:
    """Return the conditions in the headers of a request. A dependency of routes."""
    key = ""
    if idempotency_key:
        key = hashlib.blake2b(idempotency_key.encode(), digest_size=12).hexdigest()
    return ChangeRequest(
        request.path_params["m"],
        if_match,
        key,
        # Set by the middleware if a token is required.
        who=getattr(request.state, "token", "") or None,
    )


ChangeRequestDep = Annotated[ChangeRequest, Depends(_change_request)]
