"""Asks a running server which certificates it really serves."""

import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509

from webhook.certs.describe import Certificate

TIMEOUT = 5.0


def served_chain(url: str) -> tuple[Certificate, ...]:
    """The chain that `https://host:port` sends, leaf first, trusted or not.

    Raises ValueError for another kind of URL and OSError when there is no TLS server there.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(f"{url}: must be https://HOST:PORT")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # to see a bad certificate one must accept it first
    with (
        socket.create_connection((parts.hostname, parts.port or 443), timeout=TIMEOUT) as connection,
        context.wrap_socket(connection, server_hostname=parts.hostname) as tls,
    ):
        return tuple(Certificate(x509.load_der_x509_certificate(der)) for der in _chain(tls))


def _chain(tls: ssl.SSLSocket) -> list[bytes]:
    """Python 3.13 has a method for it; before, the one of the object underneath."""
    public: Any = getattr(tls, "get_unverified_chain", None)
    if public is not None:
        return list(public())
    below: Any = tls._sslobj  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(cert.public_bytes()) for cert in below.get_unverified_chain()]
