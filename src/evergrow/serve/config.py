"""Settings of the service: folder, address, tokens and limits."""

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
from evergrow.core.validation import check_integer, check_number

MIB = 2**20
Role = Literal["read", "teach", "page"]
SHORTEST_TOKEN = 16
"""Minimum length of a token in characters. Shorter tokens can be guessed."""


@dataclass(frozen=True)
class Limits:
    """Limits on sizes, counts, rates and times.

    Parameters
    ----------
    json_bytes : int
        Size of a JSON body. Requests of Label Studio and the Open Inference Protocol
        may be eight times as large, because their JSON contains image files.
    json_values : int
        Number of values in a JSON body, estimated before it is parsed. Keys and lists
        count ten times.
    body_bytes : int
        Size of a form with images or feature vectors, or of a body with binary tensors.
    upload_bytes : int
        Size of a zip of images or of an uploaded model.
    waiting_bytes : int
        Total size of all request bodies held at one time.
    samples : int
        Samples per request.
    pixels : int
        Pixels per image, checked before it is decoded.
    text_characters : int
        Characters per text.
    zip_entries : int
        Files per zip.
    zip_bytes : int
        Total unpacked size of the files in a zip.
    unpacked_bytes : int
        Memory for unpacked images of all jobs and for samples that take more memory
        than their request body. Jobs wait until enough is free; requests are answered
        with 503.
    batch : int
        Samples per batch of a backbone.
    queue : int
        Samples that may wait for a backbone. More are answered with 503.
    writers : int
        Changes that may wait for one model. More are answered with 503.
    jobs : int
        Open jobs.
    requests_per_second : float
        Requests per second of one token, or of one address if tokens are not used.
    refusals_per_second : float
        Refused requests per second of one address, for example with a wrong token or a
        foreign host. More are answered with 429. Requests with a valid token do not
        count. Behind a proxy, all requests have the address of the proxy.
    connections : int
        Open connections.
    connections_per_address : int
        Open connections of one address. More are closed immediately. Behind a proxy,
        all connections have the address of the proxy.
    header_seconds : float
        Maximum time to receive the head of a request.
    body_seconds : float
        Maximum time between two pieces of a request body.
    lock_seconds : float
        How long a change waits for another process that is changing the same file.
    kept_images : int
        Number of images of one model stored on the server.
    kept_bytes : int
        Total size of the images of one model stored on the server.
    open_models : int
        Models held in memory. The least recently used ones are closed and read again
        when needed.
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
            value = getattr(self, entry.name)
            if entry.type == "int":
                check_integer(entry.name, value)
            else:
                check_number(entry.name, value, low=0, low_open=True)


@dataclass(frozen=True)
class Token:
    """An access token, without its secret.

    Parameters
    ----------
    name : str
        Name of the holder, for logs.
    role : {"read", "teach", "page"}
        ``read`` may predict and evaluate, ``teach`` may also change models, and
        ``page`` may do what the page needs on a phone.
    expires : float
        Expiry time in seconds since 1970.
    """

    name: str
    role: Role
    expires: float = math.inf


@dataclass(frozen=True)
class Tokens:
    r"""The access tokens of the service.

    Parameters
    ----------
    entries : dict of bytes to Token
        Tokens by the SHA-256 digest of their secret. If empty, no token is required.

    Examples
    --------
    >>> from evergrow.serve import Tokens
    >>> text = "teach 0123456789abcdef anna\nread fedcba9876543210"
    >>> tokens = Tokens.parse(text, "tokens.txt")
    >>> tokens.find("Bearer 0123456789abcdef").name
    'anna'
    >>> tokens.find("Bearer fedcba9876543210").role
    'read'
    >>> tokens.find("Bearer wrong") is None
    True
    """

    entries: Mapping[bytes, Token] = field(default_factory=dict)

    def find(self, authorization: str) -> Token | None:
        """Return the valid token in an ``Authorization`` header, or None.

        The digest is compared with every entry in constant time, so that the response
        time reveals nothing about the tokens.
        """
        secret = _secret_in_header(authorization)
        if secret is None:
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
        """Parse the text of a token file.

        Parameters
        ----------
        text : str
            Lines of the form ``ROLE TOKEN [NAME]``. Empty lines and lines that begin
            with ``#`` are ignored.
        name : str
            Name of the file, for error messages.

        Raises
        ------
        ParameterError
            If a line is malformed, a token is too short or occurs twice, or the text
            contains no token. Messages contain no token.
        """
        entries: dict[bytes, Token] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split(maxsplit=2)
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 2 or words[0] not in ("read", "teach"):
                raise ParameterError(
                    f"line {number} of {name} must be "
                    "'read TOKEN [NAME]' or 'teach TOKEN [NAME]'"
                )
            if len(words[1]) < SHORTEST_TOKEN:
                raise ParameterError(
                    f"token on line {number} of {name} "
                    f"must have at least {SHORTEST_TOKEN} characters"
                )
            digest = token_digest(words[1])
            if digest in entries:
                raise ParameterError(f"{name} contains the same token twice")
            holder = words[2] if len(words) > 2 else f"line {number}"
            role: Role = "teach" if words[0] == "teach" else "read"
            entries[digest] = Token(holder, role)
        if not entries:
            raise ParameterError(
                f"{name} contains no token: add a line 'read TOKEN' or 'teach TOKEN'"
            )
        return cls(entries)


def _secret_in_header(authorization: str) -> str | None:
    """Return the secret in an ``Authorization`` header.

    It is the token after ``Bearer``, or the password after ``Basic``. None for other
    schemes and malformed headers.
    """
    scheme, _, value = authorization.partition(" ")
    secret = value.strip()
    if scheme.casefold() == "bearer":
        return secret
    if scheme.casefold() == "basic":
        # Some labelling tools support no other scheme. The user name is ignored.
        try:
            decoded = base64.b64decode(secret, validate=True).decode()
        except ValueError:
            return None
        return decoded.partition(":")[2]
    return None


def token_digest(secret: str) -> bytes:
    """Return the SHA-256 digest of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class ServeConfig:
    """All settings of the service.

    Parameters
    ----------
    folder : Path
        Folder with the model files. Created if missing.
    host : str
        Address to bind. Any address except a loopback address requires tokens.
    port : int
        Port to bind. 0 selects a free port.
    tokens : Tokens
        Access tokens, for example from :meth:`Tokens.parse`. If empty, everybody on
        this machine has full access.
    lan : bool
        Whether phones in the local network get access, over TLS and with a token that
        is valid for one hour.
    read_only : bool
        Whether all changes are refused, for example for a second process on the same
        folder.
    allowed_hosts : tuple of str
        Further host names of the service, for example its name behind a proxy. The
        names of this machine are always allowed.
    device : str
        Device of the backbones.
    limits : Limits
        Limits on sizes, counts, rates and times.
    backbones : mapping of str to Backbone
        Further backbones for new models, by name.
    label_studio : str
        Address of a Label Studio. Images of tasks are fetched from this address only.
        If empty, no images are fetched.
    label_studio_token : str
        Access token of this Label Studio.

    Raises
    ------
    ParameterError
        If `port` is not a port number, `lan` is used with another host than a loopback
        address, or such a host has no tokens.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.serve import ServeConfig, Tokens
    >>> tokens = Tokens.parse("teach 0123456789abcdef anna", "tokens.txt")
    >>> ServeConfig(Path("models"), host="0.0.0.0", tokens=tokens).port
    8080
    >>> ServeConfig(Path("models"), host="0.0.0.0")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: host '0.0.0.0' can be reached by other ...
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
        check_integer("port", self.port, low=0, high=65535)
        if self.lan and not is_loopback(self.host):
            raise ParameterError(
                "--lan finds the address of this machine in the network: "
                "leave out --host"
            )
        if not is_loopback(self.host) and not self.tokens.entries:
            raise ParameterError(
                f"host {self.host!r} can be reached by other machines, which could "
                "change the models: give a token file, or bind 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    Names other than ``localhost`` are not looked up and count as reachable.

    Examples
    --------
    >>> from evergrow.serve.config import is_loopback
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost")
    (True, True, True)
    >>> is_loopback("0.0.0.0")
    False
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
