"""The serving certificate: read again for new handshakes when its files change, the last good pair kept on errors."""

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the files: a rotated pair is served after at most this long (B55)."""

_Signature = tuple[tuple[int, int, int] | None, ...]


class CertificateError(Exception):
    """The pair cannot be served; the message names the file and what is wrong."""


class Certificate:
    """A certificate and key on disk and the TLS context made of them. Any thread may ask for the context."""

    def __init__(self, cert: Path, key: Path, socket_class: type[ssl.SSLSocket] = ssl.SSLSocket) -> None:
        """Raises CertificateError when there is no good pair to start with."""
        self.cert = cert
        self.key = key
        self._ca = cert.with_name("ca.crt")
        self._socket_class = socket_class
        self._lock = threading.Lock()
        self.error: str | None = None
        """Why the files that lie there now are not the ones that are served; None while they are."""
        self.leaf: tuple[float, float] = (0.0, 0.0)
        """Start and end of the served leaf, epoch seconds."""
        self.ca: tuple[float, float] | None = None
        """Start and end of its authority, of `ca.crt` beside it or of the chain; None if neither is there."""
        self._seen = self._signature()
        self._next_look = time.monotonic() + LOOK_EVERY
        try:
            self._context = self._read()
        except (OSError, ValueError) as error:
            raise CertificateError(self._explain(error)) from error

    def context(self) -> ssl.SSLContext:
        """The context for a new handshake; looks at the files at most once a second."""
        if time.monotonic() >= self._next_look and self._lock.acquire(blocking=False):
            try:
                self._look()
                self._next_look = time.monotonic() + LOOK_EVERY
            finally:
                self._lock.release()
        return self._context

    def reasons(self, now: float) -> Iterator[str]:
        """What an operator should know, for `/readyz`; `now` in epoch seconds."""
        self.context()
        if self.error is not None:
            yield f"certificate: still serving the previous pair, because {self.error}"
        for name, period in (("serving certificate", self.leaf), ("its authority", self.ca)):
            if period is not None and ends_soon(period, now):
                left = max(0, int(period[1] - now))
                yield f"certificate: the {name} ends in {left} s; renew it (docs: certificate drill)"

    def _look(self) -> None:
        found = self._signature()
        if found == self._seen and self.error is None:
            return
        try:
            self._context = self._read()
        except (OSError, ValueError) as error:
            text = self._explain(error)
            if text != self.error:
                log.error("certificate not taken over, the last good pair stays: %s", text)
            self.error = text
            return
        self._seen = found
        self.error = None
        log.info("certificate read from %s, good until %s", self.cert, _iso(self.leaf[1]))

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslsocket_class = self._socket_class
        context.load_cert_chain(self.cert, self.key)
        chain = x509.load_pem_x509_certificates(self.cert.read_bytes())
        ca: list[x509.Certificate] = []
        with contextlib.suppress(OSError, ValueError):  # ca.crt is only looked at, never needed
            ca = x509.load_pem_x509_certificates(self._ca.read_bytes())
        issuer = next((cert for cert in (*ca, *chain[1:]) if cert.subject == chain[0].issuer), None)
        self.leaf = _period(chain[0])
        self.ca = _period(issuer) if issuer is not None else None
        return context

    def _signature(self) -> _Signature:
        return tuple(_stat(path) for path in (self.cert, self.key, self._ca))

    def _explain(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError):
            what = "do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else f"are no PEM pair ({error})"
            return f"{self.cert} and {self.key} {what}"
        if isinstance(error, OSError):
            return f"{error.filename or self.cert}: {error.strerror}" if error.filename else self._missing(error)
        return f"{self.cert}: {error}"

    def _missing(self, error: OSError) -> str:
        """OpenSSL does not say which of the two files it could not open."""
        for path in (self.cert, self.key):
            try:
                path.read_bytes()
            except OSError as found:
                return f"{path}: {found.strerror}"
        return f"{self.cert}, {self.key}: {error}"


def ends_soon(period: tuple[float, float], now: float) -> bool:
    """Whether renewal is overdue: a sixth of the life (it is due at a third) or an hour is left."""
    start, end = period
    return end - now < max(3600.0, (end - start) / 6)


def gunicorn_hook(certificate: Certificate) -> Any:
    """What gunicorn's setting `ssl_context` wants: it is called for every new connection."""

    def ssl_context(_config: Any, _default: Any) -> ssl.SSLContext:
        return certificate.context()

    return ssl_context


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _period(cert: x509.Certificate) -> tuple[float, float]:
    return cert.not_valid_before_utc.timestamp(), cert.not_valid_after_utc.timestamp()


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
