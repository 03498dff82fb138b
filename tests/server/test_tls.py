"""Certificates change while they are served: new ones soon, bad ones never (B54, B55)."""

import datetime as dt
import logging
import os
import ssl
from pathlib import Path

import pytest

from webhook.certs.issue import LocalFiles, Pair, local_pair, new_ca, new_leaf, write_files
from webhook.server import tls
from webhook.server.gauges import of_certificate
from webhook.server.tls import Certificate, CertificateError, ends_soon

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every request instead of once a second."""
    monkeypatch.setattr(tls, "LOOK_EVERY", 0.0)


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return local_pair(tmp_path / "pair")


def served(certificate: Certificate, ca: Path) -> bytes:
    """The leaf (DER) that a client gets in a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificate.context().wrap_bio(to_server, to_client, server_side=True)
    client = ssl.create_default_context(cafile=str(ca)).wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def leaf_of(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(
        path.read_text().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----"
    )


def test_the_pair_is_served_with_tls_1_2_or_better(files: LocalFiles) -> None:
    certificate = Certificate(files.cert, files.key)
    assert served(certificate, files.ca) == leaf_of(files.cert)
    assert certificate.context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_b55_a_new_pair_is_served_to_new_handshakes(files: LocalFiles) -> None:
    certificate = Certificate(files.cert, files.key)
    old = served(certificate, files.ca)
    local_pair(files.cert.parent)
    assert served(certificate, files.ca) == leaf_of(files.cert) != old


def test_b55_a_swap_of_the_data_link_is_noticed(tmp_path: Path) -> None:
    for version in ("first", "second"):
        local_pair(tmp_path / f"..{version}")
    (tmp_path / "..data").symlink_to("..first")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    old = served(certificate, tmp_path / "ca.crt")
    (tmp_path / "..tmp").symlink_to("..second")
    (tmp_path / "..tmp").replace(tmp_path / "..data")
    assert served(certificate, tmp_path / "ca.crt") != old


@pytest.mark.parametrize("harm", ["only the certificate", "only the key", "garbage", "empty", "missing"])
def test_b55_a_bad_pair_keeps_the_last_good_one_and_is_told_once(
    files: LocalFiles, tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = Certificate(files.cert, files.key)
    good, other, ca = served(certificate, files.ca), local_pair(tmp_path / "other"), tmp_path / "old-ca.crt"
    ca.write_bytes(files.ca.read_bytes())
    with caplog.at_level(logging.INFO):
        if harm == "only the certificate":
            files.cert.write_bytes(other.cert.read_bytes())
        elif harm == "only the key":
            files.key.write_bytes(other.key.read_bytes())
        elif harm == "missing":
            files.key.unlink()
        else:
            files.cert.write_text("" if harm == "empty" else "garbage")
        assert [served(certificate, ca) for _ in range(3)] == [good] * 3
        assert certificate.error is not None
        assert str(files.key if harm == "missing" else files.cert) in certificate.error
        assert len([line for line in caplog.records if line.levelno == logging.ERROR]) == 1
        assert any("still serving the previous pair" in reason for reason in certificate.reasons(NOW.timestamp()))
        for source, target in ((other.cert, files.cert), (other.key, files.key), (other.ca, files.ca)):
            target.write_bytes(source.read_bytes())
        assert served(certificate, files.ca) == leaf_of(other.cert)
    assert certificate.error is None


def test_looking_at_the_files_is_rare(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_EVERY", 1.0)
    certificate = Certificate(files.cert, files.key)
    context = certificate.context()
    files.cert.unlink()
    assert certificate.context() is context
    assert certificate.error is None


def test_b54_five_minutes_left_is_told_and_measured(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)  # of this test: the whole suite takes longer than five minutes
    ca = new_ca(now - dt.timedelta(days=80))
    leaf = new_leaf(ca, ["localhost"], now - dt.timedelta(days=80), dt.timedelta(days=80, minutes=5))
    files = write_files(tmp_path, ca.cert, leaf)
    certificate = Certificate(files.cert, files.key)
    reasons = list(certificate.reasons(now.timestamp()))
    assert len(reasons) == 1
    assert "serving certificate ends in" in reasons[0]
    left = {reading.labels["certificate"]: reading.value for reading in of_certificate(certificate)() if reading.labels}
    assert 0 < left["leaf"] <= 300
    assert left["ca"] > 600 * 86400


def test_b54_an_authority_that_ends_is_told_too(tmp_path: Path) -> None:
    start = NOW - dt.timedelta(days=700)
    ca = new_ca(start, dt.timedelta(days=720))
    files = write_files(tmp_path, ca.cert, new_leaf(ca, ["localhost"], NOW, dt.timedelta(days=90)))
    reasons = list(Certificate(files.cert, files.key).reasons(NOW.timestamp()))
    assert any("authority ends" in reason for reason in reasons)


def test_b54_a_bundle_of_old_and_new_authority(tmp_path: Path) -> None:
    """During an overlap ca.crt holds both; the one that signed the leaf is the one that counts."""
    old, new = new_ca(NOW, dt.timedelta(days=10)), new_ca(NOW, dt.timedelta(days=700))
    leaf: Pair = new_leaf(new, ["localhost"], NOW, dt.timedelta(days=90))
    files = write_files(tmp_path, old.cert + new.cert, leaf)
    certificate = Certificate(files.cert, files.key)
    assert certificate.ca is not None
    assert certificate.ca[1] > (NOW + dt.timedelta(days=600)).timestamp()


def test_a_certificate_is_due_when_renewal_is_overdue() -> None:
    day = 86400.0
    assert not ends_soon((0.0, 90 * day), 60 * day)
    assert ends_soon((0.0, 90 * day), 76 * day)
    assert ends_soon((0.0, 7200.0), 7200.0 - 1800)


@pytest.mark.parametrize("harm", ["no certificate", "no key", "no PEM", "other key"])
def test_without_a_good_pair_there_is_no_start(files: LocalFiles, tmp_path: Path, harm: str) -> None:
    if harm == "no certificate":
        files.cert.unlink()
    elif harm == "no key":
        files.key.unlink()
    elif harm == "no PEM":
        files.cert.write_text("hello")
    else:
        files.key.write_bytes(local_pair(tmp_path / "other").key.read_bytes())
    with pytest.raises(CertificateError) as caught:
        Certificate(files.cert, files.key)
    named = files.key if harm == "no key" else files.cert
    assert str(named) in str(caught.value)
    assert os.linesep not in str(caught.value)
