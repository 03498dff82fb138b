"""The exporter's ledger: what came from pod logs lies in files that verify, each line once."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit import samples
from webhook.audit.read import Follower, Line
from webhook.audit.retention import Limits
from webhook.audit.verify import keys_beside, verify
from webhook.exporter import keep
from webhook.exporter.keep import LedgerCopy

KEY = Ed25519PrivateKey.generate()


def lines_of(folder: Path) -> list[Line]:
    follower, lines = Follower([folder]), []
    while found := follower.poll():
        lines += found
    follower.close()
    return lines


def give(copy: LedgerCopy, lines: list[Line]) -> None:
    for line in lines:
        if line.kind == "record":
            copy.records(line.stream, [line])
        else:
            copy.checkpoint(line)


@pytest.fixture
def written(tmp_path: Path) -> list[Line]:
    for host in ("one", "two"):
        samples.write_stream(tmp_path / "pod", 20, host=host, segment_bytes=8_000)
    return lines_of(tmp_path / "pod")


def test_the_copy_verifies_like_the_original(
    tmp_path: Path, written: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep, "SEGMENT_BYTES", 6_000)
    give(LedgerCopy(tmp_path / "ledger", KEY), written)
    reports = verify(tmp_path / "ledger", copy=True)
    assert [(one.state, one.records) for one in reports] == [("intact", 20), ("intact", 20)]
    assert len(list((tmp_path / "ledger").glob("*.jsonl"))) > 2, "it rotates"


def test_lines_that_come_again_after_a_crash_are_kept_once(tmp_path: Path, written: list[Line]) -> None:
    give(LedgerCopy(tmp_path / "ledger", KEY), written[:25])
    torn = next((tmp_path / "ledger").glob("*.jsonl"))
    torn.write_bytes(torn.read_bytes()[:-30])
    give(LedgerCopy(tmp_path / "ledger", KEY), written)
    assert [(one.state, one.records) for one in verify(tmp_path / "ledger", copy=True)] == [
        ("intact", 20),
        ("intact", 20),
    ]


@pytest.mark.parametrize("limits", [Limits(segments=3), Limits(bytes=20_000)], ids=["count", "size"])
def test_the_oldest_goes_with_a_signed_note_and_the_rest_verifies(
    tmp_path: Path, written: list[Line], monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr(keep, "SEGMENT_BYTES", 6_000)
    ledger = tmp_path / "ledger"
    give(LedgerCopy(ledger, KEY, limits), written)
    segments = list(ledger.glob("*.jsonl"))
    assert len(segments) <= limits.segments
    assert sum(path.stat().st_size for path in segments) <= limits.bytes + 8_000, "and the one being written"
    keys = [KEY.public_key(), *keys_beside(tmp_path / "pod")]
    for reports in (verify(ledger, copy=True), verify(ledger, keys, copy=True)):
        assert [one.state for one in reports] == ["intact", "intact"]
        assert sum(one.records for one in reports) < 40
    signed = b"".join(path.read_bytes() for path in ledger.glob("*.checkpoints"))
    assert b'"kind":"retention"' in signed
    (strangers, _) = verify(ledger, [Ed25519PrivateKey.generate().public_key()], copy=True)
    assert strangers.problem is not None and strangers.problem.kind == "signature"


def test_a_stream_that_was_removed_altogether_may_go_on(
    tmp_path: Path, written: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger"
    one, two = ([line for line in written if line.kind == "record" and host in line.stream] for host in ("one", "two"))
    copy = LedgerCopy(ledger, KEY, Limits(segments=1))
    give(copy, one[:9])
    give(copy, two[:9])
    assert [path.name[:3] for path in ledger.glob("*.jsonl")] == ["two"]
    give(copy, one[9:])
    (report, gone) = verify(ledger, copy=True)
    assert (report.state, report.first, report.last) == ("unclosed", 10, 20)
    assert (gone.state, gone.records) == ("intact", 0)


def test_a_disk_that_fails_is_told_and_tried_again(
    tmp_path: Path, written: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = LedgerCopy(tmp_path / "ledger", KEY)
    records = [line for line in written if line.kind == "record"]

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        give(copy, records[:1])
    assert "No space left" in copy.problem
    give(copy, records)
    assert copy.problem == ""
    assert sum(one.records for one in verify(tmp_path / "ledger", copy=True)) == 40
