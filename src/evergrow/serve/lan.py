"""Access for phones in the local network: a second address with TLS and a token.

The certificate is created when the service starts and is never stored. A QR code
contains the address and the token. The token is in the fragment of the address, which
browsers do not send. All of this requires ``--lan``.
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
from evergrow.core.imports import import_extra
from evergrow.serve.config import Token, Tokens, token_digest
from evergrow.serve.schemas import LanRecord

TOKEN_SECONDS = 3600.0
"""How long a token is valid."""


class LanAccess:
    """The address of the service in the local network and its tokens.

    Parameters
    ----------
    host : str
        Address of this machine.
    port : int
        Port of the service.

    Attributes
    ----------
    host : str
        Address of this machine.
    tokens : Tokens
        Valid tokens. :meth:`link` adds a token, and then drops the expired ones.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.tokens = Tokens()
        self._port = port
        self._secret = ""
        self._expires = 0.0

    def link(self) -> str:
        """Return the address with a token that is valid for at least half an hour.

        Makes a new token if the latest one expires earlier. Older tokens stay valid.
        """
        now = time.time()
        if self._expires - now < TOKEN_SECONDS / 2:
            self._secret = secrets.token_urlsafe(24)
            self._expires = now + TOKEN_SECONDS
            entries = {
                digest: token
                for digest, token in self.tokens.entries.items()
                if token.expires > now
            }
            entries[token_digest(self._secret)] = Token("phone", "page", self._expires)
            self.tokens = Tokens(entries)
        return f"https://{self.host}:{self._port}/#token={self._secret}"

    def record(self) -> LanRecord:
        """Return the address and its QR code as SVG. May make a token, see `link`."""
        address = self.link()
        svg = io.BytesIO()
        _qr_code(address).save(svg, kind="svg", scale=6, light="white", xmldecl=False)
        expires = datetime.fromtimestamp(self._expires, timezone.utc)
        return LanRecord(
            address=address,
            expires=expires.isoformat(timespec="seconds"),
            seconds=int(self._expires - time.time()),
            svg=svg.getvalue().decode(),
        )

    def terminal_text(self) -> str:
        """Return the QR code for a terminal, with instructions. May make a token."""
        address = self.link()
        code = io.StringIO()
        _qr_code(address).terminal(code, border=2, compact=True)
        return (
            f"{code.getvalue()}\n"
            f"scan it with a phone in the same network, or open {address} there\n"
            "the phone asks once whether to trust the new certificate; "
            "the code is valid for an hour"
        )


def _qr_code(address: str) -> Any:
    """Return the code of an address, an object of segno."""
    segno = import_extra("segno", extra="serve", purpose="a QR code")
    return segno.make(address, micro=False)


def lan_host() -> str:
    """Return the address of this machine in the local network.

    Raises
    ------
    ParameterError
        If the machine is not connected to a network.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Sends nothing: the system selects the address that it would send from.
            # 192.0.2.1 is reserved for documentation; any foreign address would do.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ParameterError(
            "--lan needs a network, but this machine is not connected to one: "
            "connect it first"
        ) from error


def tls_context(host: str) -> ssl.SSLContext:
    """Return a TLS context with a new self-signed certificate for an address.

    The key is on disk only while OpenSSL reads it.
    """
    import_extra("cryptography", extra="serve", purpose="--lan")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_signed(key, host)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Only the owner of the process can read the temporary folder.
    with tempfile.TemporaryDirectory(prefix="evergrow-") as folder:
        file = Path(folder, "key.pem")
        file.write_bytes(key_pem + certificate_pem)
        context.load_cert_chain(file)
    return context


def _self_signed(key: Any, host: str) -> Any:
    """Return a certificate for an address, signed with `key`, valid for 30 days."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "evergrow")])
    address = x509.IPAddress(ipaddress.ip_address(host))
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number()
    )
    return (
        builder.not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
