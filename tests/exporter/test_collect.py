"""Following streams: each record once through rotation, truncation, restarts and half lines; chains are verified."""

import hashlib
import threading
import time
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit import samples
from webhook.audit import checkpoint as checkpoints
from webhook.audit.ledger import Ledger
from webhook.exporter.chains import STREAM_LIMIT, ChainStates
from webhook.exporter.collect import STATE_NAME, Collector

SILENT = "2026-01-01T00:00:00Z"


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    folder = tmp_path / "audit"
    folder.mkdir()
    return folder


def collect(audit: Path, state: Path | None = None) -> Collector:
    collector = Collector([str(audit)], state)
    collector.collect()
    return collector


def states(collector: Collector, silent_before: str = SILENT) -> dict[str, str]:
    return {row["stream"]: row["state"] for row in collector.state.chains.document(silent_before)}


def test_b72_two_hundred_records_a_second_through_rotation_and_restart(tmp_path: Path, audit: Path) -> None:
    """(a) and (d): the ledger rotates every few records while collectors come and go in the middle of it."""
    total, written = 600, threading.Event()
    ledger = Ledger(audit, segment_bytes=20_000)

    def write() -> None:
        for number in range(1, total + 1):
            assert ledger.append(samples.body(number, "deny" if number % 3 == 0 else "allow"))
            time.sleep(0.001)  # faster than 200 a second, so that the test is short
        ledger.close()
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while True:
        finished = written.is_set()
        collector = Collector([str(audit)], tmp_path / "state")  # a new process each time
        seen += collector.collect(seconds=0.05)
        collector.close()
        if finished:
            break
    writer.join()
    last = collect(audit, tmp_path / "state")
    assert last.state.tally.records == total, "each exactly once"
    assert last.state.tally.denied == total // 3
    assert states(last) == {ledger.stream: "intact"}
    assert len(list(audit.glob("*.jsonl"))) > 5, "it did rotate"
    assert seen >= total


def test_b72_copy_and_truncate_is_reported_as_a_gap_and_nuls_are_skipped(audit: Path) -> None:
    """(b): what nobody had read before the truncation is missing, and said to be."""
    stream = samples.write_stream(audit.parent / "made", 30)
    lines = next((audit.parent / "made").glob("*.jsonl")).read_bytes().splitlines(keepends=True)
    file = audit / f"{stream}.000001.jsonl"
    file.write_bytes(b"".join(lines[:10]))
    collector = collect(audit)
    file.write_bytes(b"\0" * 500 + b"".join(lines[20:]))
    collector.collect()
    assert collector.state.tally.records == 20
    (row,) = collector.state.chains.document(SILENT)
    assert (row["state"], row["missing"]) == ("gap", 10)
    assert "11" in row["problem"] and "20" in row["problem"]
    assert "truncated" in {notice.kind for notice in collector.notices}


def test_b72_records_that_a_full_disk_cost_are_counted(
    tmp_path: Path, audit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(c): the chain admits to them, so it is no gap."""
    ledger = Ledger(audit)
    ledger.append(samples.body(1))
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "_store", lambda line: False)
        for number in (2, 3):
            assert not ledger.append(samples.body(number))
    ledger.append(samples.body(4))
    ledger.close()
    collector = collect(audit)
    (row,) = collector.state.chains.document(SILENT)
    assert (row["records"], row["lost"], row["missing"], row["state"]) == (2, 2, 0, "intact")


def test_b72_half_a_line_waits_for_its_newline(audit: Path) -> None:
    """(e)"""
    samples.write_stream(audit.parent / "made", 2, closed=False)
    source = next((audit.parent / "made").glob("*.jsonl"))
    whole = source.read_bytes()
    file = audit / source.name
    file.write_bytes(whole[:-40])
    collector = collect(audit)
    assert collector.state.tally.records == 1
    file.write_bytes(whole)
    collector.collect()
    assert collector.state.tally.records == 2 and collector.state.tally.unreadable == 0
    assert set(states(collector).values()) == {"open"}


def test_a_stream_is_never_read_twice(tmp_path: Path, audit: Path) -> None:
    samples.write_stream(audit, 50)
    first = collect(audit, tmp_path / "state")
    first.close()
    again = Collector([str(audit)], tmp_path / "state")
    assert again.collect() == 0
    assert again.state.tally.records == 50
    samples.write_stream(audit, 7, host="other")
    again.collect()
    assert again.state.tally.records == 57


def test_what_was_not_saved_is_read_once_more_and_counted_once(tmp_path: Path, audit: Path) -> None:
    """A kill between two saves: positions and aggregates lie in one file, so they cannot disagree."""
    samples.write_stream(audit, 20)
    saved = collect(audit, tmp_path / "state")
    saved.close()
    samples.write_stream(audit, 30, host="other")
    killed = Collector([str(audit)], tmp_path / "state")
    killed.collect()  # and never saved
    after = collect(audit, tmp_path / "state")
    assert after.state.tally.records == 50


def test_a_state_file_that_cannot_be_used_is_put_aside(tmp_path: Path, audit: Path) -> None:
    samples.write_stream(audit, 3)
    (tmp_path / STATE_NAME).write_bytes(b'{"version": 1, "tally": ')
    collector = collect(audit, tmp_path)
    assert collector.state.tally.records == 3
    assert (tmp_path / "exporter-state.unusable").exists()
    collector.close()
    assert msgspec.json.decode((tmp_path / STATE_NAME).read_bytes())["tally"]["records"] == 3


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"verdict":"allow"', b'"verdict":"deny" '), *lines[2:]], "bad"),
        (lambda lines: [lines[0], *lines[2:]], "gap"),
        (lambda lines: lines, "intact"),
    ],
    ids=["an edited verdict", "a deleted line", "as it was written"],
)
def test_chains_are_verified_as_they_come(audit: Path, tamper: object, expected: str) -> None:
    samples.write_stream(audit, 4)
    file = next(audit.glob("*.jsonl"))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(tamper(lines)))  # type: ignore[operator]
    assert set(states(collect(audit)).values()) == {expected}


def test_a_chain_goes_on_where_the_last_process_stopped(tmp_path: Path, audit: Path) -> None:
    samples.write_stream(audit, 6, closed=False)
    file = next(audit.glob("*.jsonl"))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]))
    collect(audit, tmp_path / "state").close()
    file.write_bytes(b"".join(lines[:3]) + _on_another_chain(lines[3]))
    assert set(states(collect(audit, tmp_path / "state")).values()) == {"bad"}


def _on_another_chain(line: bytes) -> bytes:
    """A record that is sound in itself, but follows another one."""
    content = line.rpartition(b',"hash":"')[0]
    content = content[:-65] + b"f" * 64 + b'"'
    digest = hashlib.sha256(content + b"}").hexdigest()
    return content + f',"hash":"{digest}"}}\n'.encode()


def test_streams_end_as_intact_unclosed_or_open(audit: Path) -> None:
    closed = samples.write_stream(audit, 2, host="closed")
    killed = samples.write_stream(audit, 2, host="killed", closed=False)
    collector = collect(audit)
    assert states(collector) == {closed: "intact", killed: "open"}
    assert states(collector, "2027-01-01T00:00:00Z") == {closed: "intact", killed: "unclosed"}
    assert collector.state.chains.totals(SILENT)["states"]["intact"] == 1


def test_a_tail_that_was_signed_and_never_came_is_a_gap_once_the_stream_is_silent(audit: Path) -> None:
    stream = samples.write_stream(audit, 5)
    file = next(audit.glob("*.jsonl"))
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]))
    collector = collect(audit)
    assert states(collector) == {stream: "open"}, "the rest may be on its way"
    (row,) = collector.state.chains.document("2027-01-01T00:00:00Z")
    assert (row["state"], row["missing"]) == ("gap", 2)
    assert row["problem"] == "the end is missing: record 5 was signed, the last here is 3"


# -- who signed -------------------------------------------------------------------------------------------------------


def _signed_by_another(audit: Path) -> None:
    (file,) = audit.glob("*.checkpoints")
    forger = Ed25519PrivateKey.generate()
    signed = [checkpoints.decode(line) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"".join(checkpoints.encode(one.sign(forger)) + b"\n" for one in signed if one))


def test_a_checkpoint_that_no_known_key_signed_makes_its_stream_bad(audit: Path) -> None:
    samples.write_stream(audit, 3)
    _signed_by_another(audit)
    (row,) = collect(audit).state.chains.document(SILENT)
    assert row["state"] == "bad"
    assert row["problem"] == "the closing checkpoint of record 3 was not signed by a known key"


def test_keys_beside_the_files_vouch_for_them_and_none_for_those_that_have_none(audit: Path) -> None:
    samples.write_stream(audit, 3)
    (row,) = collect(audit).state.chains.document(SILENT)
    assert (row["state"], row["signatures"]) == ("intact", 1)
    next(audit.glob("*.pub")).unlink()
    (row,) = collect(audit).state.chains.document(SILENT)
    assert (row["state"], row["signatures"]) == ("intact", 0)


def test_only_a_key_that_was_given_counts(audit: Path) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    stream = samples.write_stream(audit, 3, key=key)
    for given, state in ((key, "intact"), (other, "bad")):
        collector = Collector([str(audit)], None, [given.public_key()])
        collector.collect()
        assert states(collector) == {stream: state}


def test_a_stream_whose_start_is_not_to_be_had_is_no_forgery(audit: Path) -> None:
    samples.write_stream(audit, 5)
    file = next(audit.glob("*.jsonl"))
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[2:]))
    collector = collect(audit)
    assert set(states(collector).values()) == {"intact"}
    assert collector.state.tally.records == 3


def test_the_number_of_streams_is_bounded() -> None:
    states = ChainStates()
    assert len(states.document(SILENT)) == 0 and STREAM_LIMIT == 1_000


def test_an_empty_folder_and_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    collector = collect(tmp_path / "later")
    assert collector.state.tally.records == 0
    samples.write_stream(tmp_path / "later", 2)
    assert collector.collect() > 0
    assert collector.state.tally.records == 2
