"""Certificates that Go's and Python's strict verifiers accept under every name the API server uses."""

import datetime as dt
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from webhook.certs import issue

NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def leaf_for(*names: str, **life: dt.timedelta) -> tuple[x509.Certificate, x509.Certificate]:
    ca = issue.new_ca(NOW)
    leaf = issue.new_leaf(ca, names, NOW, **life)
    return x509.load_pem_x509_certificate(ca.cert), x509.load_pem_x509_certificate(leaf.cert)


def test_leaf_carries_both_service_names() -> None:
    _, leaf = leaf_for(*issue.service_names("gpu-webhook", "gpu-system"))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "gpu-webhook.gpu-system.svc",
        "gpu-webhook.gpu-system.svc.cluster.local",
    ]


def test_keys_are_p256_and_leaf_is_signed_by_ca() -> None:
    ca, leaf = leaf_for("localhost")
    for cert in (ca, leaf):
        key = cert.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    leaf.verify_directly_issued_by(ca)


def test_backdated_for_a_clock_that_is_behind() -> None:
    ca, leaf = leaf_for("localhost")
    assert ca.not_valid_before_utc == leaf.not_valid_before_utc == NOW - issue.BACKDATE


def test_leaf_never_outlives_its_ca() -> None:
    ca, leaf = leaf_for("localhost", life=dt.timedelta(days=1000))
    assert leaf.not_valid_after_utc == ca.not_valid_after_utc


def test_two_authorities_have_different_subjects() -> None:
    one, two = (x509.load_pem_x509_certificate(issue.new_ca(NOW).cert) for _ in range(2))
    assert one.subject != two.subject


def test_a_leaf_without_names_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one DNS name"):
        issue.new_leaf(issue.new_ca(NOW), (), NOW)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_local_pair_serves_a_strict_client(tmp_path: Path, name: str) -> None:
    files = issue.local_pair(tmp_path / "certs")
    assert files.key.stat().st_mode & 0o777 == 0o600
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.cert, files.key)
    client = ssl.create_default_context(cafile=str(files.ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()
    left.settimeout(5)
    right.settimeout(5)
    thread = threading.Thread(target=lambda: server.wrap_socket(left, server_side=True).close(), daemon=True)
    thread.start()
    with client.wrap_socket(right, server_hostname=name) as tls:
        assert tls.version() in ("TLSv1.2", "TLSv1.3")
    thread.join(5)


def test_nothing_temporary_stays_behind(tmp_path: Path) -> None:
    issue.local_pair(tmp_path)
    issue.local_pair(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
