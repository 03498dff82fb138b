"""Makes certificate authorities and serving certificates, as PEM."""

import datetime as dt
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = dt.timedelta(days=730)
LEAF_LIFE = dt.timedelta(days=90)
BACKDATE = dt.timedelta(minutes=10)
"""A certificate is valid from a little before it is made: the API server's clock may be behind ours."""

LOCAL_NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM."""

    cert: bytes
    key: bytes


@dataclass(frozen=True)
class LocalFiles:
    """Where a local authority and serving pair lie; `ca` is what a client or a `caBundle` trusts."""

    ca: Path
    cert: Path
    key: Path


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The names under which the API server calls a Service; the first one is what it verifies (V25)."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")


def new_ca(now: dt.datetime, life: dt.timedelta = CA_LIFE) -> Pair:
    """A self-signed ECDSA P-256 authority that signs leaves only; each has a subject of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpu-webhook CA {serial:x}"[:64])])
    cert = (
        _builder(subject, subject, key, serial, now, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(cert, key)


def new_leaf(ca: Pair, names: Sequence[str], now: dt.datetime, life: dt.timedelta = LEAF_LIFE) -> Pair:
    """A serving certificate for DNS names and IP addresses, never valid longer than its authority.

    Raises ValueError when `names` is empty: Go clients refuse a certificate without a SAN (V25).
    """
    if not names:
        raise ValueError("a serving certificate needs at least one DNS name or IP address")
    issuer = x509.load_pem_x509_certificate(ca.cert)
    issuer_key = serialization.load_pem_private_key(ca.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    end = min(now + life, issuer.not_valid_after_utc)
    issuer_id = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    cert = (
        _builder(subject, issuer.subject, key, x509.random_serial_number(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(cert, key)


def local_pair(directory: Path | str, names: Iterable[str] = LOCAL_NAMES, now: dt.datetime | None = None) -> LocalFiles:
    """Make a new authority and a serving pair in `directory`: `ca.crt`, `tls.crt`, `tls.key` (mode 0600).

    The authority's key is thrown away. `webhook.certs.local.ensure` keeps a pair that is still good.
    """
    now = now or dt.datetime.now(dt.UTC)
    ca = new_ca(now)
    return write_files(directory, ca.cert, new_leaf(ca, tuple(names), now))


def write_files(directory: Path | str, bundle: bytes, leaf: Pair) -> LocalFiles:
    """Write the three files, each by renaming, so that a server that reloads never reads half a file."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    files = LocalFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
    for path, content in ((files.ca, bundle), (files.key, leaf.key), (files.cert, leaf.cert)):
        write_file(path, content)
    return files


def write_file(path: Path, content: bytes) -> None:
    """Replace one file at once; private keys (`*.key`) are for their owner alone."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    mode = 0o600 if path.suffix == ".key" else 0o644
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    serial: int,
    now: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(cert.public_bytes(serialization.Encoding.PEM), private)
