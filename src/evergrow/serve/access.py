"""Who may ask the service: tokens and their roles, host names, and how often each caller may come."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from evergrow.core.errors import ParameterError

Role = Literal["read", "teach"]
SHORTEST_TOKEN = 16
"""Characters of a token; shorter ones can be guessed."""
_GUARDED = ("/api/", "/v2/models", "/label-studio/", "/metrics")
_READING_METHODS = ("GET", "HEAD", "OPTIONS")
_READING_POSTS = ("/predict", "/evaluate", "/infer", "/health", "/setup")
_CALLERS = 10_000


def needs_token(path: str) -> bool:
    """Return whether a path is guarded by tokens. The page and its documentation hold nothing of a model."""
    return path.startswith(_GUARDED)


def only_reads(method: str, path: str) -> bool:
    """Return whether a request changes nothing, so that the role ``read`` suffices."""
    return method in _READING_METHODS or (method == "POST" and path.endswith(_READING_POSTS))


@dataclass(frozen=True)
class Token:
    """A token as the service remembers it.

    Parameters
    ----------
    name : str
        Name for logs; never the token itself.
    role : {"read", "teach"}
        Whether its holder may only ask, or change models too.
    digest : bytes
        SHA-256 of the token.
    """

    name: str
    role: Role
    digest: bytes


@dataclass(frozen=True)
class Tokens:
    r"""All tokens that the service takes.

    Parameters
    ----------
    entries : tuple of Token
        With no entries, no token is asked for.

    Examples
    --------
    >>> from evergrow.serve.access import Tokens
    >>> tokens = Tokens.parse("teach 0123456789abcdef anna\nread fedcba9876543210", "tokens.txt")
    >>> tokens.holder("Bearer 0123456789abcdef").name, tokens.holder("Bearer fedcba9876543210").role
    ('anna', 'read')
    >>> tokens.holder("Bearer wrong") is None
    True
    """

    entries: tuple[Token, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def holder(self, authorization: str) -> Token | None:
        """Return the token in an ``Authorization`` header, or None.

        The time taken does not depend on how much of the token is right.
        """
        scheme, _, value = authorization.partition(" ")
        secret = value.strip()
        if scheme.casefold() == "basic":  # labelling tools know nothing else; the user name does not matter
            try:
                secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return None
        elif scheme.casefold() != "bearer":
            return None
        given = _digest(secret)
        found = None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, given):
                found = entry
        return found

    @classmethod
    def parse(cls, text: str, name: str) -> Tokens:
        """Return the tokens of a text that has a role, a token and an optional name on each line.

        Parameters
        ----------
        text : str
            Lines; empty lines and those that begin with ``#`` are skipped.
        name : str
            Name of the file, for messages.

        Raises
        ------
        ParameterError
            If a line has another form, a token is short or comes twice, or there is none. Messages hold no token.
        """
        entries: list[Token] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split(maxsplit=2)
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 2 or words[0] not in ("read", "teach"):
                raise ParameterError(f"line {number} of {name} must be 'read TOKEN [NAME]' or 'teach TOKEN [NAME]'")
            if len(words[1]) < SHORTEST_TOKEN:
                raise ParameterError(f"token on line {number} of {name} must have at least {SHORTEST_TOKEN} characters")
            role: Role = "teach" if words[0] == "teach" else "read"
            entries.append(Token(words[2] if len(words) > 2 else f"line {number}", role, _digest(words[1])))
        if not entries:
            raise ParameterError(f"{name} holds no token: write a line 'read TOKEN' or 'teach TOKEN'")
        if len({entry.digest for entry in entries}) < len(entries):
            raise ParameterError(f"{name} holds the same token twice")
        return cls(tuple(entries))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Tokens:
        """Return the tokens of a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ParameterError(f"the token file {os.fspath(path)!r} cannot be read: {reason}") from error
        return cls.parse(text, os.fspath(path))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class RateLimit:
    """Limits how often each caller may come, by a bucket that refills.

    Parameters
    ----------
    per_second : float
        Requests in a second; as many may come at once.
    """

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str, now: float | None = None) -> bool:
        """Count a request and return whether it may pass.

        Examples
        --------
        >>> from evergrow.serve.access import RateLimit
        >>> limit = RateLimit(2)
        >>> [limit.allows("anna", now) for now in (0.0, 0.0, 0.1, 0.6)]
        [True, True, False, True]
        """
        at = time.monotonic() if now is None else now
        left, since = self._buckets.pop(caller, (self._rate, at))
        left = min(self._rate, left + (at - since) * self._rate)
        allowed = left >= 1
        self._buckets[caller] = (left - 1 if allowed else left, at)
        while len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        return allowed


def host_name(host: str) -> str:
    """Return the name in a Host header without the port, or an empty string if the header is malformed.

    Examples
    --------
    >>> from evergrow.serve.access import host_name
    >>> host_name("LocalHost:8080"), host_name("[::1]:8080"), host_name("a b")
    ('localhost', '::1', '')
    """
    try:
        parts = urlsplit(f"//{host}")
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        return ""
    plain = parts.netloc == host and not set(host) & set(" @/\\?#") and port_is_number
    return (parts.hostname or "").casefold() if plain else ""
