"""Reads certificates: who they are for, until when, and which authority vouches for them."""

import datetime as dt
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization


@dataclass(frozen=True)
class Certificate:
    """One certificate with the answers that rotation and `certs show` need. Times are UTC."""

    x509: x509.Certificate

    @property
    def not_before(self) -> dt.datetime:
        return self.x509.not_valid_before_utc

    @property
    def not_after(self) -> dt.datetime:
        return self.x509.not_valid_after_utc

    @property
    def renew_at(self) -> dt.datetime:
        """Two thirds of its life: a month before the end of a 90-day leaf, so that a failed renewal is no emergency."""
        return self.not_before + (self.not_after - self.not_before) * 2 / 3

    @property
    def is_ca(self) -> bool:
        try:
            return bool(self.x509.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
        except x509.ExtensionNotFound:
            return False

    @property
    def names(self) -> tuple[str, ...]:
        """DNS names and IP addresses of the SAN, the only place where Go looks (V25)."""
        try:
            san = self.x509.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return ()
        addresses = (str(address) for address in san.get_values_for_type(x509.IPAddress))
        return (*san.get_values_for_type(x509.DNSName), *addresses)

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the DER, as `openssl x509 -fingerprint -sha256` prints it, without colons."""
        return hashlib.sha256(self.x509.public_bytes(serialization.Encoding.DER)).hexdigest()

    def valid_at(self, now: dt.datetime) -> bool:
        return self.not_before <= now <= self.not_after

    def issued_by(self, authority: "Certificate") -> bool:
        """Whether the authority's name and signature are on it; validity in time is another question."""
        try:
            self.x509.verify_directly_issued_by(authority.x509)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def has_key(self, key: bytes) -> bool:
        """Whether a PEM private key belongs to it; an unreadable key does not."""
        try:
            private = serialization.load_pem_private_key(key, password=None)
        except (ValueError, TypeError):
            return False
        return _public_bytes(private.public_key()) == _public_bytes(self.x509.public_key())

    @property
    def pem(self) -> bytes:
        return self.x509.public_bytes(serialization.Encoding.PEM)


def read_certificates(pem: bytes) -> tuple[Certificate, ...]:
    """All certificates of a PEM text, in its order. Raises ValueError when there is none or one is broken."""
    return tuple(Certificate(cert) for cert in x509.load_pem_x509_certificates(pem))


def trusted(leaf: Certificate, bundle: Iterable[Certificate], now: dt.datetime) -> bool:
    """Whether a client that trusts `bundle` accepts the leaf at that time, its name aside."""
    return leaf.valid_at(now) and any(ca.valid_at(now) and leaf.issued_by(ca) for ca in bundle)


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert isinstance(encoded, bytes)
    return encoded
