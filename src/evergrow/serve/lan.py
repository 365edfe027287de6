"""A phone in one minute: a second address in the local network, with TLS and a token that lives an hour.

The certificate is made at the start and forgotten at the end. A QR code holds the
address and the token, in the part of an address that browsers do not send. Without
``--lan`` none of this is there.
"""

from __future__ import annotations

import io
import ipaddress
import secrets
import socket
import ssl
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from evergrow.core.errors import ParameterError
from evergrow.core.optional import require
from evergrow.serve.config import Token, Tokens, token_digest
from evergrow.serve.schemas import LanRecord

LIFE = 3600.0
"""Seconds that a token lives."""


class LanAccess:
    """The address of the service in the local network, and the tokens that are taken there.

    Parameters
    ----------
    host : str
        Address of this machine.
    port : int
        Port there.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.tokens = Tokens()
        self._port = port
        self._secret = ""
        self._expires = 0.0

    def link(self) -> str:
        """Return the address with a token in it that is good for half its life at least."""
        now = time.time()
        if self._expires - now < LIFE / 2:
            self._secret = secrets.token_urlsafe(24)
            self._expires = now + LIFE
            living = {
                digest: token
                for digest, token in self.tokens.entries.items()
                if token.expires > now
            }
            self.tokens = Tokens(
                {
                    **living,
                    token_digest(self._secret): Token("phone", "page", self._expires),
                }
            )
        return f"https://{self.host}:{self._port}/#token={self._secret}"

    def record(self) -> LanRecord:
        """Return the address, and its QR code as a picture."""
        address = self.link()
        picture = io.BytesIO()
        _code(address).save(picture, kind="svg", scale=6, light="white", xmldecl=False)
        ends = datetime.fromtimestamp(self._expires, timezone.utc).isoformat(
            timespec="seconds"
        )
        seconds = int(self._expires - time.time())
        return LanRecord(
            address=address,
            expires=ends,
            seconds=seconds,
            svg=picture.getvalue().decode(),
        )

    def printed(self) -> str:
        """Return the QR code for a terminal, and what to do with it."""
        address = self.link()
        drawn = io.StringIO()
        _code(address).terminal(drawn, border=2, compact=True)
        return (
            f"{drawn.getvalue()}\nscan it with a phone in the same network, or open {address} there\n"
            "the phone asks once whether to trust the certificate, which was made just now; the code lasts an hour"
        )


def _code(address: str) -> Any:
    return require("segno", extra="serve", purpose="a QR code").make(
        address, micro=False
    )


def lan_host() -> str:
    """Return the address of this machine in the local network, or raise :class:`ParameterError` if it is in none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(
                ("192.0.2.1", 9)
            )  # nothing is sent: the system says which of its addresses it would use
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ParameterError(
            "--lan needs a network, and this machine is in none: connect it first"
        ) from error


def tls_context(host: str) -> ssl.SSLContext:
    """Return TLS with a certificate of its own for an address; the key is on disk only while it is read."""
    require("cryptography", extra="serve", purpose="--lan")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "evergrow")])
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
            critical=False,
        )
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory(
        prefix="evergrow-"
    ) as folder:  # which nobody else may read
        file = Path(folder, "key.pem")
        file.write_bytes(
            key.private_bytes(*form)
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context.load_cert_chain(file)
    return context
