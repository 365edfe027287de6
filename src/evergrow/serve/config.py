"""Settings of the service: where the models lie, who may ask, and how much at once."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import ipaddress
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_number

MIB = 2**20
Role = Literal["read", "teach", "page"]
SHORTEST_TOKEN = 16
"""Characters of a token; shorter ones can be guessed."""


@dataclass(frozen=True)
class Limits:
    """How much callers may send, ask and keep waiting.

    Parameters
    ----------
    json_bytes : int
        Size of a JSON body; eight times as much where JSON carries image files (Label
        Studio).
    json_values : int
        Values in a JSON body, and ten times its keys and lists, estimated before it is
        parsed.
    body_bytes : int
        Size of a form of images or feature rows.
    upload_bytes : int
        Size of a zip of images or of an uploaded model.
    waiting_bytes : int
        Size of all requests that are being received or answered at one moment.
    samples : int
        Samples in one request.
    pixels : int
        Pixels of an image, seen before it is decoded.
    text_characters : int
        Length of a text.
    zip_entries : int
        Files in a zip.
    zip_bytes : int
        Size of all files in a zip once they are unpacked.
    unpacked_bytes : int
        Memory for unpacked images of all jobs and for samples of all requests that
        take more memory than their bodies. Jobs wait for their share; requests are
        answered with 503.
    batch : int
        Samples that go through a backbone together.
    queue : int
        Samples that wait for a backbone; more are refused.
    writers : int
        Changes that wait for one model; more are refused.
    jobs : int
        Jobs that are open at one moment.
    requests_per_second : float
        Of one token, or one address where there are no tokens.
    refusals_per_second : float
        Refused requests of one address, for example with a wrong token or a foreign
        host; more are answered with 429. Requests with a valid token do not count.
        Behind a proxy all come from its address.
    connections : int
        Connections at one moment.
    connections_per_address : int
        Of these, connections from one address; more are closed at once. Behind a proxy
        all come from its address.
    header_seconds, body_seconds : float
        Time that the head of a request may take, and the time between two pieces of its
        body.
    lock_seconds : float
        Time that a change waits for another process that changes the same file.
    kept_images, kept_bytes : int
        Images of a model that may be kept on the server, and their size in all.
    open_models : int
        Models that are held in memory; of more, those that were not asked for longest
        are read again when they are.
    """

    json_bytes: int = 2 * MIB
    json_values: int = 1_000_000
    body_bytes: int = 64 * MIB
    upload_bytes: int = 1024 * MIB
    waiting_bytes: int = 2048 * MIB
    samples: int = 1024
    pixels: int = 50_000_000
    text_characters: int = 20_000
    zip_entries: int = 50_000
    zip_bytes: int = 4096 * MIB
    unpacked_bytes: int = 512 * MIB
    batch: int = 32
    queue: int = 2048
    writers: int = 64
    jobs: int = 4
    requests_per_second: float = 500.0
    refusals_per_second: float = 50.0
    connections: int = 512
    connections_per_address: int = 128
    header_seconds: float = 10.0
    body_seconds: float = 20.0
    lock_seconds: float = 10.0
    kept_images: int = 500
    kept_bytes: int = 128 * MIB
    open_models: int = 32

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            whole = entry.type == "int"
            check_number(
                entry.name,
                getattr(self, entry.name),
                low=1 if whole else 0,
                low_open=not whole,
                integer=whole,
            )


@dataclass(frozen=True)
class Token:
    """A token as the service remembers it.

    Parameters
    ----------
    name : str
        Name for logs; never the token itself.
    role : {"read", "teach", "page"}
        Whether its holder may only ask, or change models too; or what the page needs on
        a phone.
    expires : float
        The end of it, in seconds since 1970.
    """

    name: str
    role: Role
    expires: float = math.inf


@dataclass(frozen=True)
class Tokens:
    r"""All tokens that the service takes.

    Parameters
    ----------
    entries : dict of bytes to Token
        By their SHA-256 digests; with no entries, no token is asked for.

    Examples
    --------
    >>> from evergrow.serve.config import Tokens
    >>> tokens = Tokens.parse("teach 0123456789abcdef anna\nread fedcba9876543210", "tokens.txt")
    >>> tokens.holder("Bearer 0123456789abcdef").name, tokens.holder("Bearer fedcba9876543210").role
    ('anna', 'read')
    >>> tokens.holder("Bearer wrong") is None
    True
    """

    entries: Mapping[bytes, Token] = field(default_factory=dict)

    def holder(self, authorization: str) -> Token | None:
        """Return the token in an ``Authorization`` header, or None.

        Its digest is compared with all there are, each in constant time: how long it
        takes says nothing about any.
        """
        scheme, _, value = authorization.partition(" ")
        secret = value.strip()
        if (
            scheme.casefold() == "basic"
        ):  # labelling tools know nothing else; the user name does not matter
            try:
                secret = (
                    base64.b64decode(secret, validate=True).decode().partition(":")[2]
                )
            except ValueError:
                return None
        elif scheme.casefold() != "bearer":
            return None
        digest = token_digest(secret)
        found = [
            token
            for known, token in self.entries.items()
            if hmac.compare_digest(known, digest)
        ]
        if found and found[0].expires > time.time():
            return found[0]
        return None

    @classmethod
    def parse(cls, text: str, name: str) -> Tokens:
        """Return the tokens of a text: a role, a token and an optional name on each line.

        Parameters
        ----------
        text : str
            Lines; empty lines and those that begin with ``#`` are skipped.
        name : str
            Name of the file, for messages.

        Raises
        ------
        ParameterError
            If a line has another form, a token is short or comes twice, or there is
            none. Messages hold no token.
        """
        entries: dict[bytes, Token] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split(maxsplit=2)
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 2 or words[0] not in ("read", "teach"):
                raise ParameterError(
                    f"line {number} of {name} must be 'read TOKEN [NAME]' or 'teach TOKEN [NAME]'"
                )
            if len(words[1]) < SHORTEST_TOKEN:
                raise ParameterError(
                    f"token on line {number} of {name} must have at least {SHORTEST_TOKEN} characters"
                )
            if token_digest(words[1]) in entries:
                raise ParameterError(f"{name} holds the same token twice")
            holder = words[2] if len(words) > 2 else f"line {number}"
            entries[token_digest(words[1])] = Token(
                holder, "teach" if words[0] == "teach" else "read"
            )
        if not entries:
            raise ParameterError(
                f"{name} holds no token: write a line 'read TOKEN' or 'teach TOKEN'"
            )
        return cls(entries)


def token_digest(secret: str) -> bytes:
    """Return what is remembered of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class ServeConfig:
    """Everything that decides how the service behaves.

    Parameters
    ----------
    folder : Path
        Where the model files are; made if missing.
    host : str
        Address to bind. Any but a loopback address needs tokens.
    port : int
        Port to bind; 0 for a free one.
    tokens : Tokens
        Who may read and who may teach; with none, everybody on this machine may.
    lan : bool
        Whether phones in the local network get in too, by TLS and a token that lives an
        hour.
    read_only : bool
        Whether nothing may be changed, as for a further process on the same folder.
    allowed_hosts : tuple of str
        Names under which a browser may address the service, beside those of this
        machine: behind a proxy its name.
    device : str
        Where backbones compute.
    limits : Limits
        Bounds on what is sent.
    backbones : mapping of str to Backbone
        Backbones of yours that models may be made with, beside those of the catalogue.
    label_studio : str
        Address of a Label Studio from which its images may be fetched; with none, no
        address is ever called.
    label_studio_token : str
        Token for it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.serve.config import ServeConfig
    >>> ServeConfig(Path("models"), host="0.0.0.0")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: host '0.0.0.0' can be reached by others, who could teach the models: give ...
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8080
    tokens: Tokens = field(default_factory=Tokens)
    lan: bool = False
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    device: str = "auto"
    limits: Limits = field(default_factory=Limits)
    backbones: Mapping[str, Any] = field(default_factory=dict)
    label_studio: str = ""
    label_studio_token: str = ""

    def __post_init__(self) -> None:
        check_number("port", self.port, low=0, high=65535, integer=True)
        if self.lan and not is_loopback(self.host):
            raise ParameterError(
                "--lan takes the address of this machine in the network by itself: leave out --host"
            )
        if not is_loopback(self.host) and not self.tokens.entries:
            raise ParameterError(
                f"host {self.host!r} can be reached by others, who could teach the models: give a token file, or bind "
                "127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    Examples
    --------
    >>> from evergrow.serve.config import is_loopback
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
