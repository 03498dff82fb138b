"""The ledger: bytes of the chain, rotation, retention, faults of the disk, many threads, kill -9."""

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.audit.samples import abandon, body, write_stream
from webhook.audit import checkpoint as checkpoints
from webhook.audit.ledger import Ledger
from webhook.audit.mirror import Mirror
from webhook.audit.retention import Limits
from webhook.audit.segments import ZEROS, last_record, segments_in

WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.audit.samples import body
from webhook.audit.ledger import Ledger

ledger = Ledger(Path(sys.argv[1]), host="pod", segment_bytes=200_000, keep_segments=10_000, checkpoint_seconds=0.02)
def answer(number):
    assert ledger.append(body(number))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
with ThreadPoolExecutor(8) as threads:
    list(threads.map(answer, range(1, 200_000)))
"""


class Disk:
    """A disk that takes `room` more bytes and then is full; `torn` also refuses to take half a line back."""

    def __init__(self) -> None:
        self.room: int | None = None

    def write(self, descriptor: int, data: bytes) -> int:
        if self.room is None:
            return os.write(descriptor, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(descriptor, data[: self.room])
        self.room -= written
        return written


def lines_of(directory: Path, stream: str) -> list[bytes]:
    """All whole lines of a stream, in order, checked against the contract's words alone."""
    files = [segment.path for segment in segments_in(directory.iterdir()).get(stream, [])]
    lines = [line for path in files for line in path.read_bytes().split(b"\n")[:-1]]
    seq, previous = 0, ZEROS
    for line in lines:
        content, digest = re.fullmatch(rb'(.*),"hash":"([0-9a-f]{64})"\}', line).groups()  # type: ignore[union-attr]
        assert hashlib.sha256(content + b"}").hexdigest() == digest.decode()
        record = json.loads(line)
        assert list(record)[-3:] == ["lost", "prev", "hash"]
        assert record["stream"] == stream
        assert record["prev"] == previous
        assert record["seq"] == seq + 1 + record["lost"]
        seq, previous = record["seq"], record["hash"]
    return lines


def checkpoints_of(directory: Path, stream: str) -> list[checkpoints.Checkpoint]:
    text = (directory / f"{stream}.checkpoints").read_bytes()
    found = [checkpoints.decode(line) for line in text.splitlines()]
    assert None not in found
    return [each for each in found if each]


def test_a_record_gets_its_place_in_the_stream_and_its_hash(tmp_path: Path) -> None:
    with Ledger(tmp_path, host="webhook-7d9f", clock=lambda: 1796112000.5) as ledger:
        assert ledger.append(body(1))
        assert ledger.append(body(2))
    assert ledger.stream == f"webhook-7d9f-20261201T080000Z-{os.getpid()}"
    first, second = map(json.loads, lines_of(tmp_path, ledger.stream))
    assert list(first)[:5] == ["schema", "time", "stream", "seq", "id"]
    assert (first["seq"], first["lost"], first["prev"]) == (1, 0, ZEROS)
    assert (second["seq"], second["prev"]) == (2, first["hash"])
    assert ledger.state().head == second["hash"]


def test_rule_5_a_record_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, host="pod")
    for number in range(1, 20):
        assert ledger.append(body(number))
        assert f'"uid":"uid-{number}"'.encode() in lines_of(tmp_path, ledger.stream)[-1]
    ledger.close()


def test_one_write_for_each_record(tmp_path: Path) -> None:
    written: list[bytes] = []

    def write(descriptor: int, data: bytes) -> int:
        written.append(data)
        return os.write(descriptor, data)

    with Ledger(tmp_path, write=write) as ledger:
        ledger.append(body(1))
        ledger.append(body(2))
    assert [data.count(b"\n") for data in written] == [1, 1]


def test_segments_rotate_by_size_and_continue_the_chain(tmp_path: Path) -> None:
    stream = write_stream(tmp_path, 200, segment_bytes=20_000, keep_segments=1000)
    segments = segments_in(tmp_path.iterdir())[stream]
    assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
    assert len(segments) > 5
    assert all(segment.path.stat().st_size <= 20_000 for segment in segments)
    assert len(lines_of(tmp_path, stream)) == 200


def test_checkpoints_are_signed_at_rotation_and_at_the_end(tmp_path: Path) -> None:
    stream = write_stream(tmp_path, 60, segment_bytes=20_000)
    records = {(record["seq"], record["hash"]) for record in map(json.loads, lines_of(tmp_path, stream))}
    signed = checkpoints_of(tmp_path, stream)
    kinds = [each.kind for each in signed]
    assert kinds.count("rotation") == len(segments_in(tmp_path.iterdir())[stream]) - 1
    assert kinds[-1] == "closing"
    assert {(each.seq, each.hash) for each in signed} <= records
    public = checkpoints.load_public_key(next(tmp_path.glob("*.pub")))
    assert all(each.is_signed_by([public]) for each in signed)


def test_the_signature_covers_the_words_of_the_contract(tmp_path: Path) -> None:
    stream = write_stream(tmp_path, 1)
    signed = checkpoints_of(tmp_path, stream)[-1]
    assert list(json.loads((tmp_path / f"{stream}.checkpoints").read_bytes())) == [
        *("stream", "seq", "hash", "time", "kind", "signature")
    ]
    assert signed.signed_bytes == f"{stream}\n1\n{signed.hash}\n{signed.time}\nclosing".encode()


def test_checkpoints_are_signed_every_so_many_seconds_while_something_happens(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, checkpoint_seconds=0.01)
    ledger.append(body(1))
    path = tmp_path / f"{ledger.stream}.checkpoints"
    for _ in range(500):
        if path.exists() and path.stat().st_size:
            break
        threading.Event().wait(0.01)
    ledger.checkpoint()  # nothing new: nothing signed
    ledger.close()
    assert [(each.kind, each.seq) for each in checkpoints_of(tmp_path, ledger.stream)] == [
        ("periodic", 1),
        ("closing", 1),
    ]


def test_a_given_key_signs_and_none_is_made(tmp_path: Path) -> None:
    key = checkpoints.load_or_create_key(tmp_path / "secret.pem")
    write_stream(tmp_path / "audit", 1, key=key)
    assert not (tmp_path / "audit" / "audit.key").exists()
    assert (tmp_path / "secret.pem").stat().st_mode & 0o777 == 0o600
    assert checkpoints.load_key(tmp_path / "secret.pem").private_bytes_raw() == key.private_bytes_raw()


def test_an_unusable_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(checkpoints.KeyFileError, match=r"bad\.pem.*openssl genpkey"):
        checkpoints.load_key(tmp_path / "bad.pem")


def test_a_restart_begins_a_new_stream_even_within_the_same_second(tmp_path: Path) -> None:
    streams = [write_stream(tmp_path, 3, clock=lambda: 1796112000.0) for _ in range(3)]
    assert len(set(streams)) == 3
    assert all(len(lines_of(tmp_path, stream)) == 3 for stream in streams)


# -- retention --------------------------------------------------------------------------------------------------------


def test_retention_removes_the_oldest_segments_and_names_the_last_record_that_went(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, host="pod", segment_bytes=20_000, keep_segments=1000)
    for number in range(1, 201):
        ledger.append(body(number))
    removed = last_record(segments_in(tmp_path.iterdir())[ledger.stream][-4].path)
    ledger.limits = Limits(segments=3)
    ledger.retain()
    ledger.close()
    segments = segments_in(tmp_path.iterdir())[ledger.stream]
    assert len(segments) == 3
    retention = next(each for each in checkpoints_of(tmp_path, ledger.stream) if each.kind == "retention")
    assert (retention.seq, retention.hash) == removed
    first = json.loads(segments[0].path.read_bytes().split(b"\n")[0])
    assert (first["seq"], first["prev"]) == (retention.seq + 1, retention.hash)
    assert all(each.seq >= retention.seq for each in checkpoints_of(tmp_path, ledger.stream))


def test_retention_by_age_never_touches_the_segment_being_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, segment_bytes=20_000, keep_segments=1000, keep_seconds=3600)
    for number in range(1, 101):
        ledger.append(body(number))
    segments = segments_in(tmp_path.iterdir())[ledger.stream]
    for segment in segments:
        os.utime(segment.path, (0, 0))
    ledger.retain()
    ledger.close()
    assert [each.path for each in segments_in(tmp_path.iterdir())[ledger.stream]] == [segments[-1].path]


def test_retention_removes_streams_of_processes_that_are_gone_but_not_of_one_that_lives(tmp_path: Path) -> None:
    gone = write_stream(tmp_path, 40, segment_bytes=20_000, closed=False)
    living = Ledger(tmp_path, host="other")
    living.append(body(1))
    ledger = Ledger(tmp_path, host="pod", keep_segments=1)
    ledger.retain()
    left = segments_in(tmp_path.iterdir())
    assert gone not in left
    assert [each.kind for each in checkpoints_of(tmp_path, gone)] == ["retention"]
    assert living.stream in left
    living.close()
    ledger.close()


# -- faults -----------------------------------------------------------------------------------------------------------


def test_b72c_a_full_disk_uses_up_seqs_and_the_next_record_carries_how_many(tmp_path: Path) -> None:
    disk = Disk()
    ledger = Ledger(tmp_path, write=disk.write)
    assert ledger.append(body(1))
    disk.room = 0
    assert [ledger.append(body(number)) for number in (2, 3, 4)] == [False, False, False]
    state = ledger.state()
    assert (state.seq, state.written, state.gaps) == (4, 1, 3)
    assert state.degraded is not None
    assert "No space left on device" in state.degraded
    assert str(tmp_path) in state.degraded
    disk.room = None
    assert ledger.append(body(5))
    assert ledger.state().degraded is None
    ledger.close()
    after = json.loads(lines_of(tmp_path, ledger.stream)[-1])
    assert (after["seq"], after["lost"]) == (5, 3)


@pytest.mark.parametrize("room", [1, 100, 800])
def test_b72c_a_line_that_the_disk_cut_off_is_taken_back(tmp_path: Path, room: int) -> None:
    disk = Disk()
    ledger = Ledger(tmp_path, write=disk.write)
    ledger.append(body(1))
    disk.room = room
    assert not ledger.append(body(2))
    disk.room = None
    assert ledger.append(body(3))
    ledger.close()
    assert len(lines_of(tmp_path, ledger.stream)) == 2
    assert len(segments_in(tmp_path.iterdir())[ledger.stream]) == 1


def test_half_a_line_that_cannot_be_taken_back_ends_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    ledger = Ledger(tmp_path, write=disk.write)
    ledger.append(body(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        disk.room = 100
        assert not ledger.append(body(2))
    disk.room = None
    assert ledger.append(body(3))
    ledger.close()
    first, second = segments_in(tmp_path.iterdir())[ledger.stream]
    assert not first.path.read_bytes().endswith(b"\n")
    after = json.loads(second.path.read_bytes())
    assert (after["seq"], after["lost"], after["prev"]) == (3, 1, last_record(first.path)[1])  # type: ignore[index]


def test_a_folder_that_cannot_be_written_is_told_and_used_once_it_can_be(tmp_path: Path) -> None:
    obstacle = tmp_path / "audit"
    obstacle.write_text("a file where a folder should be")
    ledger = Ledger(obstacle)
    assert not ledger.append(body(1))
    degraded = ledger.state().degraded
    assert degraded is not None
    assert str(obstacle) in degraded
    obstacle.unlink()
    assert ledger.append(body(2))
    ledger.close()
    assert json.loads(lines_of_unstarted(obstacle, ledger.stream))["lost"] == 1


def lines_of_unstarted(directory: Path, stream: str) -> bytes:
    return (directory / f"{stream}.000001.jsonl").read_bytes()


def test_a_segment_that_cannot_rotate_grows_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path, segment_bytes=3_000)
    assert ledger.append(body(1))
    real_open = os.open

    def refuse(path: object, flags: int, *rest: int, **options: int) -> int:
        if flags & os.O_EXCL:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real_open(path, flags, *rest, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert all(ledger.append(body(number)) for number in range(2, 9))
        degraded = ledger.state().degraded
    assert degraded is not None
    assert "segments cannot rotate" in degraded
    assert ledger.append(body(9))
    ledger.close()
    assert len(lines_of(tmp_path, ledger.stream)) == 9


def test_a_closed_ledger_loses_records_and_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.close()
    ledger.close()
    assert not ledger.append(body(1))
    assert "is closed" in (ledger.state().degraded or "")


# -- stdout -----------------------------------------------------------------------------------------------------------


def test_stdout_gets_the_same_lines_and_the_checkpoints(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with Ledger(tmp_path, stdout=writer) as ledger:
        for number in range(1, 11):
            ledger.append(body(number))
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        seen = file.read().splitlines()
    assert seen[:-1] == lines_of(tmp_path, ledger.stream)
    assert checkpoints.decode(seen[-1]) == checkpoints_of(tmp_path, ledger.stream)[-1]


def test_a_stalled_collector_costs_lines_there_and_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.audit.ledger._MIRROR_SECONDS", 0.05)
    monkeypatch.setattr("webhook.audit.ledger.Mirror", partial(Mirror, limit=100_000))
    reader, writer = os.pipe()
    ledger = Ledger(tmp_path, stdout=writer)
    for number in range(1, 501):
        assert ledger.append(body(number))
    ledger.close()
    state = ledger.state()
    assert state.gaps == 0
    assert state.stdout_dropped > 100
    assert len(lines_of(tmp_path, ledger.stream)) == 500
    os.close(reader)  # wakes the writer thread with EPIPE, so that it ends
    assert ledger._mirror is not None
    ledger._mirror._thread.join(5)
    os.close(writer)


# -- threads and kills ------------------------------------------------------------------------------------------------


def test_32_threads_make_one_chain(tmp_path: Path) -> None:
    with Ledger(tmp_path, segment_bytes=100_000, keep_segments=1000) as ledger, ThreadPoolExecutor(32) as threads:
        assert all(threads.map(lambda number: ledger.append(body(number)), range(1, 2001)))
    lines = lines_of(tmp_path, ledger.stream)
    assert {json.loads(line)["uid"] for line in lines} == {f"uid-{number}" for number in range(1, 2001)}


@pytest.mark.parametrize("round_", range(5))
def test_rule_5_kill_9_under_load_loses_no_answered_decision(tmp_path: Path, round_: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    answered = [int(process.stdout.readline()) for _ in range(200 + 150 * round_)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    answered += [int(line) for line in rest.split(b"\n")[:-1]]
    (stream,) = segments_in(tmp_path.iterdir())
    recorded = {json.loads(line)["uid"] for line in lines_of(tmp_path, stream)}
    assert {f"uid-{number}" for number in answered} <= recorded


def test_abandoned_streams_have_no_closing_checkpoint(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(body(1))
    abandon(ledger)
    assert not (tmp_path / f"{ledger.stream}.checkpoints").exists()
