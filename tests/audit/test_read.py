"""Following streams: each record exactly once, whatever is done to the files meanwhile."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from tests.audit.samples import body, write_stream
from webhook.audit import read
from webhook.audit.ledger import Ledger
from webhook.audit.read import Follower, Notices, Position, files_in, lines_in
from webhook.audit.segments import segments_in


def stream_lines(tmp_path: Path, count: int, host: str = "pod") -> list[bytes]:
    """The lines of a stream, with newlines, for files that something else than a ledger writes."""
    folder = tmp_path / "made"
    stream = write_stream(folder, count, host=host)
    lines = (folder / f"{stream}.000001.jsonl").read_bytes().splitlines(keepends=True)
    shutil.rmtree(folder)
    return lines


def drain(follower: Follower) -> list[int]:
    """The seqs of all records that a follower has to give."""
    seqs: list[int] = []
    while lines := follower.poll():
        seqs += [line.seq for line in lines if line.kind == "record"]
    return seqs


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def resumed(audits: list[Path], follower: Follower, **options: float) -> Follower:
    """A new follower from the position that the old one left on disk."""
    saved = msgspec.json.encode(follower.position)
    follower.close()
    return Follower(audits, msgspec.json.decode(saved, type=Position), **options)


# -- files at rest ----------------------------------------------------------------------------------------------------


def test_a_folder_is_read_by_stream_and_segment(tmp_path: Path) -> None:
    write_stream(tmp_path, 60, segment_bytes=20_000)
    names = [path.name for path in files_in(tmp_path)]
    assert len(names) > 1
    assert names == sorted(names)
    assert all(name.endswith(".jsonl") for name in names)


def test_files_that_something_else_rotated_are_read_in_the_order_of_their_records(tmp_path: Path) -> None:
    lines = stream_lines(tmp_path, 30)
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines[20:]))
    (tmp_path / "audit.jsonl.1").write_bytes(b"".join(lines[10:20]))
    (tmp_path / "audit.jsonl.2").write_bytes(b"".join(lines[:10]))
    (tmp_path / "audit.jsonl.3.gz").write_bytes(b"not ours")
    assert [path.name for path in files_in(tmp_path)] == ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"]


def test_half_a_line_at_the_end_is_left_out_and_nuls_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\0\0\0one\ntwo\nthr")
    seen: list[int] = []
    assert list(lines_in(path, seen.append)) == [b"one", b"two"]
    assert sum(seen) == path.stat().st_size


def test_b65_a_line_separator_of_unicode_does_not_split_a_line(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(body(1, "deny", message="a\u2028b\x85c"))
    (path,) = files_in(tmp_path)
    assert len(list(lines_in(path))) == 1
    assert drain(Follower([tmp_path])) == [1]


def test_a_missing_file_is_an_error_where_files_are_at_rest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files_in(tmp_path / "nowhere")


# -- following --------------------------------------------------------------------------------------------------------


def test_lines_come_with_their_stream_seq_and_place(tmp_path: Path) -> None:
    stream = write_stream(tmp_path, 3)
    lines = Follower([tmp_path]).poll()
    records = [line for line in lines if line.kind == "record"]
    assert [(line.stream, line.seq, line.number) for line in records] == [
        (stream, 1, 1),
        (stream, 2, 2),
        (stream, 3, 3),
    ]
    assert records[0].source == str(tmp_path / f"{stream}.000001.jsonl")
    assert [line.kind for line in lines[3:]] == ["checkpoint"]


def test_records_that_follow_each_other_come_as_one_run_and_anything_else_ends_it(tmp_path: Path) -> None:
    path, other = tmp_path / "audit.jsonl", stream_lines(tmp_path, 1, host="other")
    lines = stream_lines(tmp_path, 6)
    path.write_bytes(b"".join([*lines[:3], b"foreign\n", lines[3], lines[3], *other, lines[5]]))
    runs = Follower([path]).poll_runs()
    expected = [([1], [1]), ([2, 3], [2, 3]), ([4], [5]), ([1], [7]), ([6], [8])]
    assert [([each.seq for each in run.each()], [each.number for each in run.each()]) for run in runs] == expected
    assert b"\n".join(line for run in runs for line in run.lines) + b"\n" == b"".join([*lines[:4], *other, lines[5]]), (
        "each line once, without its newline"
    )


def test_nothing_new_is_an_empty_list(tmp_path: Path) -> None:
    write_stream(tmp_path, 3)
    follower = Follower([tmp_path])
    assert drain(follower) == [1, 2, 3]
    assert follower.poll() == []
    assert follower.take_notices() == []


def test_a_file_may_appear_later(tmp_path: Path) -> None:
    follower = Follower([tmp_path / "audit.jsonl"])
    assert follower.poll() == []
    append(tmp_path / "audit.jsonl", b"".join(stream_lines(tmp_path, 2)))
    assert drain(follower) == [1, 2]


def test_a_ledger_is_followed_through_its_own_rotation_while_it_writes(tmp_path: Path) -> None:
    follower = Follower([tmp_path])
    ledger = Ledger(tmp_path, segment_bytes=8_000, keep_segments=10_000)
    writer = threading.Thread(target=lambda: [ledger.append(body(number)) for number in range(1, 2001)])
    writer.start()
    seqs: list[int] = []
    while writer.is_alive():
        seqs += drain(follower)
    ledger.close()
    seqs += drain(follower)
    assert seqs == list(range(1, 2001))
    assert follower.take_notices() == []


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
def test_b72a_rename_and_new_file_each_record_exactly_once(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "audit.jsonl"
    lines = stream_lines(tmp_path, 100)
    follower = Follower([tmp_path if folder else path])
    seqs: list[int] = []
    for start in range(0, 100, 10):
        append(path, b"".join(lines[start : start + 4]))
        seqs += drain(follower)
        append(path, b"".join(lines[start + 4 : start + 7]))
        path.rename(tmp_path / f"audit.jsonl.{start}")
        append(tmp_path / f"audit.jsonl.{start}", lines[start + 7])  # the writer has not noticed yet
        if start % 20:
            seqs += drain(follower)
        append(path, b"".join(lines[start + 8 : start + 10]))
    seqs += drain(follower)
    assert seqs == list(range(1, 101))
    assert follower.take_notices() == []


def test_b72a_a_renamed_file_is_left_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = stream_lines(tmp_path, 4)
    append(path, b"".join(lines[:2]))
    follower = Follower([path], grace=0)
    assert drain(follower) == [1, 2]
    path.rename(tmp_path / "old")
    append(path, b"".join(lines[2:]))
    assert drain(follower) == [3, 4]
    assert [Path(file.path) for file in follower.position.files] == [path]


def test_b72b_copy_and_truncate_shows_what_was_lost_as_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = stream_lines(tmp_path, 30)
    append(path, b"".join(lines[:10]))
    follower = Follower([path])
    assert drain(follower) == list(range(1, 11))
    append(path, b"".join(lines[10:15]))  # lost: written after the copy, before the truncation
    os.truncate(path, 0)
    append(path, b"".join(lines[15:20]))
    assert drain(follower) == list(range(16, 21))
    truncated, gap = follower.take_notices()
    assert (truncated.kind, gap.kind, gap.count) == ("truncated", "gap", 5)
    assert gap.text == "records 11 to 15 are missing"


def test_b72b_truncation_is_noticed_also_when_the_file_is_longer_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = stream_lines(tmp_path, 30)
    append(path, b"".join(lines[:5]))
    follower = Follower([path])
    drain(follower)
    os.truncate(path, 0)
    append(path, b"".join(lines[5:30]))
    assert drain(follower) == list(range(6, 31))
    assert [notice.kind for notice in follower.take_notices()] == ["truncated"]


def test_b72b_nuls_that_truncation_leaves_are_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = stream_lines(tmp_path, 20)
    with path.open("wb", buffering=0) as writer:  # not appending: it goes on at its old offset
        writer.write(b"".join(lines[:10]))
        follower = Follower([path])
        drain(follower)
        hole = path.stat().st_size
        os.truncate(path, 0)
        writer.write(b"".join(lines[10:]))
    assert drain(follower) == list(range(11, 21))
    assert [(notice.kind, notice.count) for notice in follower.take_notices()] == [("truncated", 0), ("nul", hole)]


def test_b72c_what_a_full_disk_cost_is_no_gap_because_the_next_record_says_so(tmp_path: Path) -> None:
    room = [True]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        return os.write(descriptor, data)

    with Ledger(tmp_path, write=write) as ledger:
        for number in range(1, 11):
            room[0] = not 4 <= number <= 6
            ledger.append(body(number))
    follower = Follower([tmp_path])
    assert drain(follower) == [1, 2, 3, 7, 8, 9, 10]
    assert follower.take_notices() == []


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
def test_b72d_a_restarted_follower_goes_on_where_it_stopped_though_the_file_rotated_twice(
    tmp_path: Path, folder: bool
) -> None:
    path = tmp_path / "audit.jsonl"
    audits = [tmp_path if folder else path]
    lines = stream_lines(tmp_path, 40)
    append(path, b"".join(lines[:10]))
    follower = Follower(audits)
    seqs = drain(follower)
    append(path, b"".join(lines[10:20]))
    path.rename(tmp_path / "audit.jsonl.1")
    append(path, b"".join(lines[20:30]))
    (tmp_path / "audit.jsonl.1").rename(tmp_path / "audit.jsonl.2")
    path.rename(tmp_path / "audit.jsonl.1")
    append(path, b"".join(lines[30:]))
    follower = resumed(audits, follower)
    seqs += drain(follower)
    assert seqs == list(range(1, 41))
    assert follower.take_notices() == []


def test_b72e_a_half_written_last_line_waits_for_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first, second = stream_lines(tmp_path, 2)
    append(path, first + second[:100])
    follower = Follower([path])
    assert drain(follower) == [1]
    assert drain(follower) == []
    follower = resumed([path], follower)
    append(path, second[100:])
    assert drain(follower) == [2]
    assert follower.take_notices() == []


def test_a_position_of_a_file_that_was_replaced_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append(path, b"".join(stream_lines(tmp_path, 5)))
    follower = Follower([path])
    drain(follower)
    other = stream_lines(tmp_path, 7, host="another")
    path.write_bytes(b"".join(other))  # same inode, other words
    assert drain(resumed([path], follower)) == list(range(1, 8))


def test_lines_of_others_are_counted_not_given(tmp_path: Path) -> None:
    path = tmp_path / "pod.jsonl"
    lines = stream_lines(tmp_path, 2)
    path.write_bytes(lines[0] + b"[INFO] booting\n" * 500 + b'{"schema":"gpu.platform/audit.v1","seq":\n\n' + lines[1])
    follower = Follower([path])
    assert drain(follower) == [1, 2]
    assert [(notice.kind, notice.count) for notice in follower.take_notices()] == [("foreign", 501)]


def test_repeated_lines_come_once(tmp_path: Path) -> None:
    lines = stream_lines(tmp_path, 5)
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[3:]))
    assert drain(Follower([tmp_path])) == [1, 2, 3, 4, 5]


def test_a_stream_that_does_not_start_at_its_start_is_late_not_a_gap(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(stream_lines(tmp_path, 5)[2:]))
    follower = Follower([tmp_path])
    drain(follower)
    assert [(notice.kind, notice.count) for notice in follower.take_notices()] == [("late", 2)]


def test_a_line_longer_than_a_chunk_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_READ", 300)
    write_stream(tmp_path, 4)
    assert drain(Follower([tmp_path])) == [1, 2, 3, 4]


def test_files_larger_than_a_chunk_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CHUNK", 3_000)
    monkeypatch.setattr(read, "_READ", 1_500)
    write_stream(tmp_path, 100, segment_bytes=20_000)
    follower = Follower([tmp_path])
    assert drain(follower) == list(range(1, 101))
    assert follower.take_notices() == []


def test_endless_bytes_without_a_newline_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_READ", 1000)
    monkeypatch.setattr(read, "MAX_LINE", 16_000)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"x" * 100_000 + b"\n" + stream_lines(tmp_path, 1)[0])
    follower = Follower([path])
    assert drain(follower) == [1]
    assert follower.take_notices()[0].kind == "foreign"


def test_a_segment_that_retention_removes_is_read_to_its_end(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, segment_bytes=4_000, keep_segments=10_000)
    for number in range(1, 21):
        ledger.append(body(number))
    follower = Follower([tmp_path])
    first = follower.poll()[:0] + [segment.path for segment in segments_in(tmp_path.iterdir())[ledger.stream]]
    for number in range(21, 31):
        ledger.append(body(number))
    first[0].unlink()
    assert drain(follower) == list(range(21, 31))
    ledger.close()


def test_notices_are_bounded() -> None:
    notices = Notices()
    for number in range(5000):
        notices.add(read.Notice("gap", "file", "stream", 1, f"record {number}"))
    found = notices.take()
    assert len(found) < 1100
    assert sum(notice.count for notice in found) == 5000


def test_stdin_is_followed(tmp_path: Path) -> None:
    script = (
        "from webhook.audit.read import Follower\n"
        "import time\n"
        "f = Follower(['-']); seqs = []\n"
        "while len(seqs) < 5: seqs += [line.seq for line in f.poll()]; time.sleep(0.01)\n"
        "print(seqs)"
    )
    lines = stream_lines(tmp_path, 5)
    process = subprocess.run([sys.executable, "-c", script], input=b"".join(lines), capture_output=True, timeout=20)
    assert process.stdout == b"[1, 2, 3, 4, 5]\n"
