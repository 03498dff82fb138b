"""Verification: what is whole verifies clean, and every way of tampering is detected and located."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit.samples import body, write_stream
from tests.audit.test_ledger import WRITER, Disk
from webhook.audit import checkpoint as checkpoints
from webhook.audit import verify as verification
from webhook.audit.ledger import Ledger
from webhook.audit.retention import Limits
from webhook.audit.segments import ZEROS, segment_name, segments_in
from webhook.audit.verify import Chain, StreamReport, verify, verify_lines

Lines = list[bytes]


def only(reports: list[StreamReport]) -> StreamReport:
    assert len(reports) == 1
    return reports[0]


def change(path: Path, edit: Callable[[Lines], None]) -> None:
    """Tamper with the lines of a file (newlines included)."""
    lines = path.read_bytes().splitlines(keepends=True)
    edit(lines)
    path.write_bytes(b"".join(lines))


def rehashed(line: bytes, previous: str | None = None) -> bytes:
    """A line with a hash that fits its bytes again, as somebody who knows the format would make it."""
    if previous is not None:
        line = re.sub(rb'"prev":"[0-9a-f]{64}"', b'"prev":"%b"' % previous.encode(), line)
    content = line[: line.rindex(b',"hash":"')]
    return content + b',"hash":"%b"}\n' % hashlib.sha256(content + b"}").hexdigest().encode()


def flip(line: bytes) -> bytes:
    return line.replace(b'"verdict":"deny"', b'"verdict":"allow"').replace(b'"name":"alice"', b'"name":"mallory"')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One closed stream of 60 records in several segments."""
    write_stream(tmp_path, 60, segment_bytes=15_000)
    return tmp_path


def segment(folder: Path, number: int) -> Path:
    (stream,) = segments_in(folder.iterdir())
    return folder / segment_name(stream, number)


def assert_bad(folder: Path, kind: str, path: Path, line: int, **options: bool) -> None:
    report = only(verify(folder, **options))
    assert report.state == "bad"
    assert report.problem is not None
    assert (report.problem.kind, report.problem.source, report.problem.line) == (kind, str(path), line)


# -- what is whole ----------------------------------------------------------------------------------------------------


def test_a_closed_stream_with_rotations_is_intact(folder: Path) -> None:
    report = only(verify(folder))
    assert (report.state, report.records, report.first, report.last) == ("intact", 60, 1, 60)
    assert report.signatures == "checked"
    assert len(segments_in(folder.iterdir())[report.stream]) >= 4


def test_restarts_and_replicas_are_independent_streams_and_all_reported(tmp_path: Path) -> None:
    names = {write_stream(tmp_path, 5, host=host) for host in ("pod-a", "pod-b", "pod-a")}
    reports = verify(tmp_path)
    assert {report.stream for report in reports} == names
    assert [report.state for report in reports] == ["intact"] * 3


def test_a_stream_without_a_closing_checkpoint_is_unclosed_not_bad(tmp_path: Path) -> None:
    write_stream(tmp_path, 5, closed=False)
    report = only(verify(tmp_path))
    assert report.state == "unclosed"
    assert "names record 5" in report.notes[0]


def test_a_kill_leaves_an_unclosed_stream_and_perhaps_half_a_line(tmp_path: Path) -> None:
    write_stream(tmp_path, 5, closed=False)
    with segment(tmp_path, 1).open("ab") as file:
        file.write(b'{"schema":"gpu.platform/audit.v1","ti')
    report = only(verify(tmp_path))
    assert report.state == "unclosed"
    assert any("half a line at the end (37 bytes" in note for note in report.notes)


def test_a_real_kill_9_verifies(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(300):
        process.stdout.readline()
    process.kill()
    process.communicate()
    report = only(verify(tmp_path))
    assert (report.state, report.problem) == ("unclosed", None)
    assert report.checkpoints > 0


def test_retention_verifies_and_says_from_where_the_chain_goes_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, segment_bytes=15_000, keep_segments=3)
    for number in range(1, 101):
        ledger.append(body(number))
    ledger.retain()
    ledger.close()
    report = only(verify(tmp_path))
    assert report.state == "intact"
    assert report.first > 1
    assert report.notes == [f"records up to {report.first - 1} were removed (retention)"]


def test_a_crash_between_the_word_and_the_removal_verifies(tmp_path: Path) -> None:
    """The retention checkpoint is written first; fewer segments may be gone than it says."""
    ledger = Ledger(tmp_path, segment_bytes=15_000, keep_segments=1000)
    for number in range(1, 101):
        ledger.append(body(number))
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    ledger.limits = Limits(segments=2)
    ledger.retain()
    ledger.close()
    for path in sorted(kept)[2:]:
        path.write_bytes(kept[path])
    assert only(verify(tmp_path)).state == "intact"


def test_retention_while_a_stream_is_being_verified_is_no_false_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path, segment_bytes=15_000, keep_segments=1000)
    for number in range(1, 101):
        ledger.append(body(number))
    read_before = verification._checkpoints_by_stream
    calls: list[Path] = []

    def read_and_remove(audit: Path) -> dict[str, list[tuple[bytes, str, int]]]:
        found = read_before(audit)
        if not calls:
            ledger.limits = Limits(segments=2)
            ledger.retain()
        calls.append(audit)
        return found

    monkeypatch.setattr(verification, "_checkpoints_by_stream", read_and_remove)
    report = only(verify(tmp_path))
    ledger.close()
    assert (report.state, report.last) == ("unclosed", 100)
    assert len(calls) > 1


def test_a_stream_that_retention_removed_altogether_is_intact(tmp_path: Path) -> None:
    write_stream(tmp_path, 5)
    ledger = Ledger(tmp_path, host="next", keep_segments=1)
    ledger.retain()
    ledger.close()
    assert {report.state for report in verify(tmp_path)} == {"intact"}
    assert len(verify(tmp_path)) == 2


def test_b72c_records_lost_to_a_full_disk_are_counted_and_the_chain_holds(tmp_path: Path) -> None:
    disk = Disk()
    with Ledger(tmp_path, write=disk.write) as ledger:
        for number in range(1, 21):
            disk.room = 0 if number in (1, 2, 10, 11, 12) else None
            ledger.append(body(number))
    report = only(verify(tmp_path))
    assert (report.state, report.records, report.lost, report.last) == ("intact", 15, 5, 20)


def test_half_a_line_of_a_full_disk_in_the_middle_of_a_stream_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    with Ledger(tmp_path, write=disk.write) as ledger:
        ledger.append(body(1))
        with monkeypatch.context() as patch:
            patch.setattr("os.ftruncate", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error")))
            disk.room = 100
            assert not ledger.append(body(2))
        disk.room = None
        ledger.append(body(3))
    report = only(verify(tmp_path))
    assert (report.state, report.lost) == ("intact", 1)


def test_a_new_optional_field_of_a_later_version_keeps_old_chains_valid(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(body(1))
        ledger.append(body(2)[:-1] + b',"somethingNew":{"deep":[1,2]}}')
        ledger.append(body(3))
    assert only(verify(tmp_path)).state == "intact"


# -- tampering --------------------------------------------------------------------------------------------------------


def test_an_edited_verdict_is_found_at_its_line(folder: Path) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.__setitem__(3, flip(lines[3])))
    assert_bad(folder, "edited", path, 4)


def test_a_record_that_was_broken_is_edited_not_foreign(folder: Path) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.__setitem__(3, lines[3].replace(b'"verdict":"', b'"verdict":')))
    assert_bad(folder, "edited", path, 4)


def test_an_edited_verdict_with_a_fresh_hash_is_found_by_its_successor(folder: Path) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.__setitem__(3, rehashed(flip(lines[3]))))
    assert_bad(folder, "edited", path, 4)


def test_the_last_line_of_a_segment_with_a_fresh_hash_is_found_too(folder: Path) -> None:
    path = segment(folder, 1)
    change(path, lambda lines: lines.__setitem__(-1, rehashed(flip(lines[-1]))))
    report = only(verify(folder))
    assert report.problem is not None
    assert (report.problem.kind, report.problem.source) == ("edited", str(path))


def test_a_chain_that_was_rewritten_to_its_end_is_found_by_the_signed_checkpoints(folder: Path) -> None:
    (names,) = segments_in(folder.iterdir()).values()
    previous = ZEROS
    for each in names:
        lines = each.path.read_bytes().splitlines(keepends=True)
        for index, line in enumerate(lines):
            lines[index] = rehashed(flip(line), previous)
            previous = json.loads(lines[index])["hash"]
        each.path.write_bytes(b"".join(lines))
    report = only(verify(folder))
    assert report.problem is not None
    assert report.problem.kind == "edited"
    assert "not the one that was signed" in report.problem.text


def test_a_deleted_line_is_found_at_the_line_after_it(folder: Path) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.__delitem__(3))
    assert_bad(folder, "deleted", path, 4)


def test_swapped_lines_are_told_from_deleted_ones(folder: Path) -> None:
    path = segment(folder, 2)

    def swap(lines: Lines) -> None:
        lines[3], lines[4] = lines[4], lines[3]

    change(path, swap)
    assert_bad(folder, "swapped", path, 4)


def test_a_line_moved_to_another_segment_is_swapped(folder: Path) -> None:
    moved: Lines = []
    change(segment(folder, 1), lambda lines: moved.append(lines.pop(2)))
    change(segment(folder, 3), lambda lines: lines.insert(0, moved[0]))
    assert_bad(folder, "swapped", segment(folder, 1), 3)


@pytest.mark.parametrize("whole_lines", [True, False])
def test_a_cut_tail_is_found_against_the_last_checkpoint(folder: Path, whole_lines: bool) -> None:
    path = sorted(folder.glob("*.jsonl"))[-1]
    count = len(path.read_bytes().splitlines())
    if whole_lines:
        change(path, lambda lines: lines.__delitem__(slice(-2, None)))
    else:
        path.write_bytes(path.read_bytes()[:-10])
    assert_bad(folder, "cut", path, count - 2 if whole_lines else count - 1)


def test_the_cut_tail_of_an_unclosed_stream_is_found_too(tmp_path: Path) -> None:
    write_stream(tmp_path, 10, closed=False)
    path = segment(tmp_path, 1)
    change(path, lambda lines: lines.__delitem__(slice(-1, None)))
    assert_bad(tmp_path, "cut", path, 9)


def test_a_missing_segment_is_named(folder: Path) -> None:
    segment(folder, 2).unlink()
    assert_bad(folder, "missing-segment", segment(folder, 3), 1)
    problem = only(verify(folder)).problem
    assert problem is not None
    assert segment(folder, 2).name in problem.text


def test_the_first_segment_missing_without_a_retention_record_is_bad(folder: Path) -> None:
    name = segment(folder, 1).name
    segment(folder, 1).unlink()
    report = only(verify(folder))
    assert report.problem is not None
    assert report.problem.kind == "missing-segment"
    assert name in report.problem.text


def test_the_last_segment_missing_is_bad(folder: Path) -> None:
    paths = sorted(folder.glob("*.jsonl"))
    paths[-1].unlink()
    report = only(verify(folder))
    assert report.problem is not None
    assert (report.problem.kind, report.problem.source) == ("missing-segment", str(paths[-2]))


def test_all_segments_missing_is_bad(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        path.unlink()
    report = only(verify(folder))
    assert report.problem is not None
    assert report.problem.kind == "missing-segment"


@pytest.mark.parametrize(
    "line",
    [b"hello\n", b"\n", b"{}\n", b"\0\0\0\n", b'{"schema":"gpu.platform/audit.v1","stream":"x","seq":9}\n'],
    ids=["text", "blank", "json", "nul", "alike"],
)
def test_a_foreign_line_is_found(folder: Path, line: bytes) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.insert(5, line))
    assert_bad(folder, "foreign", path, 6)


def test_a_line_of_another_stream_is_foreign(tmp_path: Path) -> None:
    write_stream(tmp_path, 5, host="a")
    write_stream(tmp_path, 5, host="b")
    first, second = sorted(tmp_path.glob("*.jsonl"))
    change(first, lambda lines: lines.insert(2, second.read_bytes().splitlines(keepends=True)[2]))
    bad, good = verify(tmp_path)
    assert (bad.state, good.state) == ("bad", "intact")
    assert bad.problem is not None
    assert (bad.problem.kind, bad.problem.line) == ("foreign", 3)


def test_a_repeated_line_is_foreign(folder: Path) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.insert(4, lines[3]))
    assert_bad(folder, "foreign", path, 5)


def test_records_after_the_closing_checkpoint_are_foreign(folder: Path) -> None:
    path = sorted(folder.glob("*.jsonl"))[-1]

    def forge(lines: Lines) -> None:
        last = json.loads(lines[-1])
        seq = last["seq"]
        lines.append(rehashed(lines[-1].replace(f'"seq":{seq},'.encode(), f'"seq":{seq + 1},'.encode()), last["hash"]))

    change(path, forge)
    assert_bad(folder, "foreign", path, len(path.read_bytes().splitlines()))


def test_bytes_after_a_closed_stream_are_foreign(folder: Path) -> None:
    path = sorted(folder.glob("*.jsonl"))[-1]
    count = len(path.read_bytes().splitlines())
    path.write_bytes(path.read_bytes() + b"half a line")
    assert_bad(folder, "foreign", path, count + 1)


def test_a_checkpoint_that_another_key_signed_is_found(folder: Path) -> None:
    path = next(folder.glob("*.checkpoints"))

    def forge(lines: Lines) -> None:
        known = checkpoints.decode(lines[1])
        assert known is not None
        lines[1] = checkpoints.encode(known.sign(Ed25519PrivateKey.generate())) + b"\n"

    change(path, forge)
    assert_bad(folder, "signature", path, 2)


def test_a_forged_retention_does_not_explain_a_missing_segment(folder: Path) -> None:
    gone = json.loads(segment(folder, 1).read_bytes().splitlines()[-1])
    segment(folder, 1).unlink()
    forged = checkpoints.Checkpoint(gone["stream"], gone["seq"], gone["hash"], gone["time"], "retention")
    line = checkpoints.encode(forged.sign(Ed25519PrivateKey.generate())) + b"\n"
    change(next(folder.glob("*.checkpoints")), lambda lines: lines.insert(0, line))
    assert only(verify(folder)).state == "bad"


def test_rewriting_with_a_key_of_ones_own_is_found_with_the_public_key_from_elsewhere(tmp_path: Path) -> None:
    trusted = Ed25519PrivateKey.generate()
    write_stream(tmp_path, 5)  # signed by the key in the folder
    assert only(verify(tmp_path)).state == "intact"
    report = only(verify(tmp_path, [trusted.public_key()]))
    assert report.problem is not None
    assert report.problem.kind == "signature"


def test_a_line_in_the_checkpoints_that_is_none_is_foreign(folder: Path) -> None:
    path = next(folder.glob("*.checkpoints"))
    change(path, lambda lines: lines.insert(1, b"nonsense\n"))
    assert_bad(folder, "foreign", path, 2)


def test_without_any_key_signatures_are_not_checked_and_the_report_says_so(folder: Path) -> None:
    next(folder.glob("*.pub")).unlink()
    report = only(verify(folder))
    assert (report.state, report.signatures) == ("intact", "not checked")


# -- copies -----------------------------------------------------------------------------------------------------------


def test_in_a_copy_a_missing_record_is_a_gap_and_in_own_files_it_is_bad(folder: Path) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.__delitem__(slice(3, 5)))
    report = only(verify(folder, copy=True))
    assert (report.state, report.problem) == ("gap", None)
    assert [(gap.source, gap.line) for gap in report.gaps] == [(str(path), 4)]
    assert only(verify(folder)).state == "bad"


def test_in_a_copy_a_missing_start_and_end_are_gaps(folder: Path) -> None:
    paths = sorted(folder.glob("*.jsonl"))
    change(paths[0], lambda lines: lines.__delitem__(slice(0, 2)))
    change(paths[-1], lambda lines: lines.__delitem__(slice(-1, None)))
    report = only(verify(folder, copy=True))
    assert report.state == "gap"
    assert [gap.text for gap in report.gaps] == [
        "records 1 to 2 are missing in this copy",
        "records 60 to 60 are missing in this copy",
    ]


def test_an_edited_record_is_bad_in_a_copy_as_well(folder: Path) -> None:
    path = segment(folder, 2)
    change(path, lambda lines: lines.__setitem__(3, flip(lines[3])))
    assert_bad(folder, "edited", path, 4, copy=True)


def test_pod_logs_are_verified_with_their_checkpoints_among_the_lines(folder: Path) -> None:
    lines: list[tuple[bytes, str, int]] = []
    known = [checkpoints.decode(line) for line in next(folder.glob("*.checkpoints")).read_bytes().splitlines()]
    by_seq = {each.seq: each for each in known if each}
    for path in sorted(folder.glob("*.jsonl")):
        for raw in path.read_bytes().splitlines():
            lines += [(b"[INFO] a line of the server's own", "pod ns/a", 0), (raw, "pod ns/a", 0)]
            if (signed := by_seq.get(json.loads(raw)["seq"])) is not None:
                lines.append((checkpoints.encode(signed), "pod ns/a", 0))
    keys = [checkpoints.load_public_key(next(folder.glob("*.pub")))]
    report = only(verify_lines(lines, keys, source="kubernetes"))
    assert (report.state, report.records, report.signatures) == ("intact", 60, "checked")
    assert report.notes == ["60 lines that are not records were skipped"]


def test_one_file_with_several_streams_is_verified_by_stream(tmp_path: Path) -> None:
    write_stream(tmp_path / "x", 5, host="a")
    write_stream(tmp_path / "x", 5, host="b")
    first, second = (path.read_bytes().splitlines(keepends=True) for path in sorted((tmp_path / "x").glob("*.jsonl")))
    collected = tmp_path / "collected.jsonl"
    collected.write_bytes(b"".join(line for pair in zip(first, second, strict=True) for line in pair))
    reports = verify(collected, copy=True)
    assert [(report.state, report.records) for report in reports] == [("unclosed", 5), ("unclosed", 5)]


def test_a_collector_goes_on_with_the_chain_after_a_restart(folder: Path) -> None:
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    (stream,) = segments_in(folder.iterdir())
    chain = Chain(stream, copy=True)
    assert [chain.feed(line, "log", 0) for line in lines[:30]] == [None] * 30
    chain = Chain(stream, copy=True, seq=chain.seq, head=chain.head)
    assert [chain.feed(line, "log", 0) for line in lines[30:]] == [None] * 30
    chain = Chain(stream, copy=True, seq=30, head=ZEROS)
    problem = chain.feed(lines[30], "log", 0)
    assert problem is not None
    assert problem.kind == "edited"


def test_progress_counts_all_bytes(folder: Path) -> None:
    seen: list[int] = []
    verify(folder, progress=seen.append)
    assert sum(seen) == sum(path.stat().st_size for path in folder.glob("*.jsonl"))
