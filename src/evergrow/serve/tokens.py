"""Tokens and their roles, from a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evergrow.core.errors import ParameterError

Role = Literal["read", "teach"]
ROLES: tuple[Role, ...] = ("read", "teach")
SHORTEST = 16
"""Characters of a token: shorter ones can be guessed."""


@dataclass(frozen=True)
class Token:
    """A token as the service remembers it.

    Parameters
    ----------
    name : str
        For logs; never the token itself.
    role : {"read", "teach"}
        Whether its holder may ask only, or change models too.
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
        None of them means that no token is asked for.

    Examples
    --------
    >>> from evergrow.serve.tokens import Tokens
    >>> tokens = Tokens.parse("teach 0123456789abcdef anna\nread fedcba9876543210", "tokens.txt")
    >>> tokens.holder("0123456789abcdef").name, tokens.holder("fedcba9876543210").role, tokens.holder("wrong")
    ('anna', 'read', None)
    """

    entries: tuple[Token, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def holder(self, secret: str) -> Token | None:
        """Return whose token it is; the time taken does not depend on how much of it is right."""
        given = _digest(secret)
        found = None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, given):
                found = entry
        return found

    @classmethod
    def parse(cls, text: str, name: str) -> Tokens:
        """Return the tokens of a text: on each line a role, a token and, if you like, a name.

        Parameters
        ----------
        text : str
            Lines; empty ones and those that begin with ``#`` are left out.
        name : str
            What messages call the file.

        Raises
        ------
        ParameterError
            If a line is none of these, a token is short, or there is none. No token is ever in the message.
        """
        entries: list[Token] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split(maxsplit=2)
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 2 or words[0] not in ROLES:
                raise ParameterError(f"line {number} of {name} must be 'read TOKEN [NAME]' or 'teach TOKEN [NAME]'")
            if len(words[1]) < SHORTEST:
                raise ParameterError(f"token on line {number} of {name} must have at least {SHORTEST} characters")
            role: Role = "teach" if words[0] == "teach" else "read"
            entries.append(Token(words[2] if len(words) > 2 else f"line {number}", role, _digest(words[1])))
        if not entries:
            raise ParameterError(f"{name} must hold at least one token, got none")
        if len({entry.digest for entry in entries}) < len(entries):
            raise ParameterError(f"tokens in {name} must differ, got one twice")
        return cls(tuple(entries))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Tokens:
        """Return the tokens of a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise ParameterError(f"token file must be readable, got {os.fspath(path)!r}: {reason}") from error
        return cls.parse(text, os.fspath(path))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
