"""The exporter's ledger: what came from pod logs lies in files that verify, each line once."""

from pathlib import Path

import pytest

from tests.audit import samples
from webhook.audit.read import Follower, Line
from webhook.audit.verify import verify
from webhook.exporter import keep
from webhook.exporter.keep import LedgerCopy


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
    give(LedgerCopy(tmp_path / "ledger"), written)
    reports = verify(tmp_path / "ledger", copy=True)
    assert [(one.state, one.records) for one in reports] == [("intact", 20), ("intact", 20)]
    assert len(list((tmp_path / "ledger").glob("*.jsonl"))) > 2, "it rotates"


def test_lines_that_come_again_after_a_crash_are_kept_once(tmp_path: Path, written: list[Line]) -> None:
    give(LedgerCopy(tmp_path / "ledger"), written[:25])
    torn = next((tmp_path / "ledger").glob("*.jsonl"))
    torn.write_bytes(torn.read_bytes()[:-30])
    give(LedgerCopy(tmp_path / "ledger"), written)
    assert [(one.state, one.records) for one in verify(tmp_path / "ledger", copy=True)] == [
        ("intact", 20),
        ("intact", 20),
    ]


def test_a_disk_that_fails_is_told_and_tried_again(
    tmp_path: Path, written: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = LedgerCopy(tmp_path / "ledger")
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
