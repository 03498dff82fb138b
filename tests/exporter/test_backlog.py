"""What several processes read at the start is what one would have read; whatever is not plain is left to that one."""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit import samples
from tests.exporter.samples import record
from webhook.audit.ledger import Ledger
from webhook.audit.read import Position
from webhook.exporter import backlog
from webhook.exporter.backlog import Backlog
from webhook.exporter.collect import Collector
from webhook.exporter.decisions import NAME_LIMIT, Reader, Tally

PER_STREAM = 300


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    folder = tmp_path / "audit"
    for host in ("one", "two"):
        write(folder, host, PER_STREAM)
    return folder


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of any size, on a machine with cores to spare."""
    monkeypatch.setattr(backlog, "LEAST_BYTES", 0)
    monkeypatch.setattr(backlog, "_cores", lambda: 2)


def write(folder: Path, host: str, count: int) -> None:
    """A closed stream in segments of about a hundred records: of each verdict some, of dry runs, of Pods."""
    with Ledger(folder, host=host, segment_bytes=130_000) as ledger:
        for number in range(count):
            verdict = ("allow", "deny", "patch")[number % 3]
            options: dict[str, Any] = {"phase": "mutate" if verdict == "patch" else "validate"}
            options |= {
                "kind": ("Pod", "Deployment")[number % 2],
                "name": f"w-{number % 40}",
                "now": samples.NOW + number,
            }
            options |= {"user": f"user-{number % 7}", "namespace": f"ai-{number % 5}", "dry_run": number % 50 == 0}
            assert ledger.append(samples.body(number, verdict, **options))


def alone(audits: list[str], monkeypatch: pytest.MonkeyPatch) -> Collector:
    """One process, one line after the other."""
    with monkeypatch.context() as patched:
        patched.setattr(backlog, "_cores", lambda: 1)
        collector = Collector(audits, None)
        collector.collect()
    return collector


def together(audits: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Collector, int]:
    """Several processes; also how many records they read."""
    taken: list[int] = []
    take = Backlog.take

    def counted(self: Backlog) -> backlog.Part | None:
        part = take(self)
        taken.append(part.tally.records if part else 0)
        return part

    with monkeypatch.context() as patched:
        patched.setattr(Backlog, "take", counted)
        collector = Collector(audits, None)
        collector.collect()
    return collector, sum(taken)


def as_kept(collector: Collector) -> tuple[bytes, list[Any]]:
    """All that would be saved, and all that was noticed."""
    collector.state.position = collector._follower.position
    return msgspec.json.encode(collector.state), collector.notices


def segments(audit: Path) -> list[Path]:
    return sorted(audit.glob("*.jsonl"))


def test_the_sums_of_several_processes_are_those_of_one(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(segments(audit)) >= 6
    collector, shared = together([str(audit)], monkeypatch)
    assert shared == 2 * PER_STREAM, "all of it"
    assert as_kept(collector) == as_kept(alone([str(audit)], monkeypatch))
    assert {row["state"] for row in collector.state.chains.document("")} == {"intact"}


def _change_a_byte(audit: Path) -> None:
    path = segments(audit)[1]
    path.write_bytes(path.read_bytes().replace(b'"user-3"', b'"user-4"', 1))


def _lose_a_segment(audit: Path) -> None:
    segments(audit)[1].unlink()


def _forget_the_first(audit: Path) -> None:
    segments(audit)[0].unlink()


def _add_a_foreign_line(audit: Path) -> None:
    with segments(audit)[0].open("ab") as file:
        file.write(b"hello\n")


def _leave_a_hole(audit: Path) -> None:
    path = segments(audit)[2]
    path.write_bytes(b"\0" * 100 + path.read_bytes())


def _cut_the_end(audit: Path) -> None:
    path = segments(audit)[-1]
    path.write_bytes(path.read_bytes()[:-50])


def _mix_two_streams(audit: Path) -> None:
    first, other = segments(audit)[0], segments(audit)[-1]
    first.write_bytes(first.read_bytes() + other.read_bytes())


def _add_another_file(audit: Path) -> None:
    (audit / "copied.jsonl").write_bytes(segments(audit)[0].read_bytes())


def _forge_a_checkpoint(audit: Path) -> None:
    path = next(audit.glob("*.checkpoints"))
    path.write_bytes(path.read_bytes().replace(b'"seq":3', b'"seq":4'))


@pytest.mark.parametrize(
    "change",
    [
        _change_a_byte,
        _lose_a_segment,
        _forget_the_first,
        _add_a_foreign_line,
        _leave_a_hole,
        _cut_the_end,
        _mix_two_streams,
        _add_another_file,
        _forge_a_checkpoint,
    ],
)
def test_so_they_are_whatever_is_odd(
    audit: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    change(audit)
    collector, _ = together([str(audit)], monkeypatch)
    assert as_kept(collector) == as_kept(alone([str(audit)], monkeypatch))


def test_what_retention_left_is_taken_from_where_it_begins(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _forget_the_first(audit)
    collector, shared = together([str(audit)], monkeypatch)
    assert shared == collector.state.tally.records > PER_STREAM
    assert [notice.kind for notice in collector.notices] == ["late"]


def test_the_same_stream_in_two_folders_counts_once(
    audit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in audit.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    collector, _ = together([str(audit), str(copy)], monkeypatch)
    assert collector.state.tally.records == 2 * PER_STREAM


def test_rounds_that_are_cut_short_come_to_the_same(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector([str(audit)], None)
    rounds = list(itertools.takewhile(bool, (collector.collect(seconds=0.0) for _ in range(100))))
    assert len(rounds) >= 6
    whole = alone([str(audit)], monkeypatch)
    assert collector.state.tally == whole.state.tally
    assert collector.state.chains == whole.state.chains


def test_an_exporter_that_ends_in_the_middle_counts_once(audit: Path, tmp_path: Path) -> None:
    first = Collector([str(audit)], tmp_path / "state")
    assert 0 < first.collect(seconds=0.0) < PER_STREAM
    first.close()
    again = Collector([str(audit)], tmp_path / "state")
    again.collect()
    assert again.state.tally.records == 2 * PER_STREAM
    assert {row["state"] for row in again.state.chains.document("")} == {"intact"}


def test_a_segment_that_is_still_written_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = tmp_path / "live"
    with Ledger(audit, host="one", segment_bytes=20_000) as ledger:
        for number in range(50):
            assert ledger.append(samples.body(number))
        collector, shared = together([str(audit)], monkeypatch)
        assert shared == 50
        for number in range(50, 90):
            assert ledger.append(samples.body(number))
    assert collector.collect() >= 40
    assert collector.state.tally.records == 90


@pytest.mark.parametrize("error", [BrokenProcessPool("killed"), OSError("no semaphores"), ImportError("none here")])
def test_without_helpers_one_process_reads_it_all(
    audit: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(backlog, "ProcessPoolExecutor", fail)
    collector, shared = together([str(audit)], monkeypatch)
    assert (shared, collector.state.tally.records) == (0, 2 * PER_STREAM)
    assert str(error) in caplog.text


def test_a_small_backlog_is_not_worth_it(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "LEAST_BYTES", 1 << 30)
    assert Backlog([str(audit)], Position()).take() is None


def test_a_stream_that_was_begun_is_left_to_who_began_it(audit: Path) -> None:
    begun = Position(streams={segments(audit)[0].name.partition(".")[0]: 5})
    waiting = Backlog([str(audit)], begun)
    part = waiting.take()
    waiting.close()
    assert part is not None
    assert part.stream == segments(audit)[-1].name.partition(".")[0]


def test_more_names_than_are_counted_call_for_one_count_of_all(tmp_path: Path) -> None:
    """What comes first is counted by name: two that count apart would not agree on it."""
    with Ledger(tmp_path, host="one") as ledger:
        for number in range(NAME_LIMIT):
            assert ledger.append(samples.body(number, namespace=f"ai-{number}"))
    (path,) = segments(tmp_path)
    assert backlog.read(path) is None


@pytest.mark.parametrize("odd", [{"namespace": "a\tb"}, {"rule": "a\tb"}, {"code": "A\tB"}])
def test_a_name_that_cannot_be_told_apart_does_too(tmp_path: Path, odd: dict[str, Any]) -> None:
    with Ledger(tmp_path, host="one") as ledger:
        assert ledger.append(samples.body(1, "deny", **odd))
    (path,) = segments(tmp_path)
    assert backlog.read(path) is None


def test_a_file_that_is_gone_or_empty_comes_to_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "a.000001.jsonl"
    empty.touch()
    assert backlog.read(empty) is None
    assert backlog.read(tmp_path / "gone.000001.jsonl") is None


def test_helpers_end_with_an_exporter_that_is_killed(audit: Path) -> None:
    script = (
        "import sys, time\n"
        "from webhook.audit.read import Position\n"
        "from webhook.exporter import backlog\n"
        "if __name__ == '__main__':\n"
        "    backlog.LEAST_BYTES, backlog._cores = 0, lambda: 2\n"
        "    waiting = backlog.Backlog(sys.argv[1:], Position())\n"
        "    waiting.take()\n"
        "    print(*waiting._pool._processes, flush=True)\n"
        "    time.sleep(60)\n"
    )
    (audit / "exporter.py").write_text(script)
    exporter = subprocess.Popen([sys.executable, audit / "exporter.py", audit], stdout=subprocess.PIPE)
    assert exporter.stdout is not None
    helpers = [int(pid) for pid in exporter.stdout.readline().split()]
    assert helpers and all(map(_is_alive, helpers))
    exporter.kill()
    exporter.communicate()
    deadline = time.monotonic() + 10
    while any(map(_is_alive, helpers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_alive, helpers))


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(["allow", "deny", "patch"]), st.integers(0, 4)), max_size=40),
    cut=st.integers(0, 40),
)
def test_sums_added_up_are_the_sum(kinds: list[tuple[Any, int]], cut: int) -> None:
    lines = [
        record(
            number, verdict, name=f"w-{who}", namespace=f"ai-{who % 2}", user=f"u-{who}", now=samples.NOW + 40 * number
        )
        for number, (verdict, who) in enumerate(kinds, 1)
    ]
    added, whole = _tally(lines[:cut]), _tally(lines)
    added.add(_tally(lines[cut:]))
    assert msgspec.json.encode(added) == msgspec.json.encode(whole)


def _tally(lines: list[bytes]) -> Tally:
    tally = Tally()
    reader = Reader(tally)
    reader.add(lines)
    reader.flush()
    return tally
