"""Finding and summing up: each filter, order over streams, how things are counted, and flat memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audit.samples import NOW, body
from webhook.audit.ledger import Ledger
from webhook.audit.query import Filter, Match, Selection, Summariser, Summary, in_order, moment, select, sources_bytes
from webhook.audit.read import files_in
from webhook.audit.record import timestamp

RECORDS = [
    body(1, "allow", namespace="ai-training", user="alice", now=NOW),
    body(2, "deny", namespace="ai-inference", user="bob", now=NOW + 10, code="QuotaExceeded", rule="inference"),
    body(3, "patch", namespace="ai-training", kind="Job", user="alice", now=NOW + 20, phase="mutate"),
    body(
        4, "deny", namespace="ai-training", kind="Pod", user="müller", now=NOW + 30, code="PoolConflict", phase="mutate"
    ),
    body(5, "deny", namespace="ai-training", user="alice", now=NOW + 40, dry_run=True),
    body(6, "allow", namespace="ai-training", user="alice", now=NOW + 50, phase="mutate"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Ledger(tmp_path, segment_bytes=2_500) as ledger:
        for each in RECORDS:
            ledger.append(each)
    return tmp_path


def found(folder: Path, **conditions: str) -> list[int]:
    return [match.entry.seq for match in select([folder], Selection(Filter(**conditions)))]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"namespace": "ai-inference"}, [2]),
        ({"user": "alice"}, [1, 3, 5, 6]),
        ({"user": "müller"}, [4]),
        ({"kind": "Job"}, [3]),
        ({"verdict": "deny"}, [2, 4, 5]),
        ({"code": "PoolConflict"}, [4]),
        ({"rule": "inference"}, [2]),
        ({"since": timestamp(NOW + 20)}, [3, 4, 5, 6]),
        ({"until": timestamp(NOW + 20)}, [1, 2]),
        ({"since": timestamp(NOW + 10), "until": timestamp(NOW + 40), "verdict": "deny"}, [2, 4]),
        ({"namespace": "ai-training", "user": "alice", "verdict": "deny"}, [5]),
        ({"namespace": "ai"}, []),
        ({"user": "QuotaExceeded"}, []),
        ({"user": "ai-training"}, []),
    ],
)
def test_all_conditions_must_hold(folder: Path, conditions: dict[str, str], expected: list[int]) -> None:
    assert found(folder, **conditions) == expected


def test_a_value_that_stands_elsewhere_in_a_record_is_no_match(tmp_path: Path) -> None:
    """`"name":"alice"` is also how an object of that name is written: bytes only rule out, they never decide."""
    with Ledger(tmp_path) as ledger:
        ledger.append(body(1, name="alice", user="bob"))
        ledger.append(body(2, name="bob", user="alice"))
    assert found(tmp_path, user="alice") == [2]


def test_streams_of_replicas_come_as_one_by_time(tmp_path: Path) -> None:
    for host, offset in (("a", 0), ("b", 5)):
        with Ledger(tmp_path, host=host) as ledger:
            for number in range(5):
                ledger.append(body(number, now=NOW + offset + 10 * number))
    times = [match.entry.time for match in select([tmp_path], Selection(Filter()))]
    assert len(times) == 10
    assert times == sorted(times)


def test_a_stream_is_opened_only_when_its_time_has_come() -> None:
    opened: list[str] = []

    def stream(name: str, times: list[str]) -> Iterator[Match]:
        opened.append(name)
        for time in times:
            yield Match(b"", entry(time))

    def entry(time: str):  # type: ignore[no-untyped-def]
        from webhook.audit.query import Entry, ObjectName

        return Entry(time=time, phase="mutate", verdict="allow", object=ObjectName())

    merged = in_order([("5", stream("late", ["5", "6"])), ("1", stream("early", ["1", "2", "5"]))])
    assert next(merged).entry.time == "1"
    assert opened == ["early"]
    assert [match.entry.time for match in merged] == ["2", "5", "5", "6"]


def test_damaged_lines_are_counted_and_lines_of_others_skipped(folder: Path) -> None:
    path = files_in(folder)[0]
    path.write_bytes(b"[INFO] booting\n" + b'{"schema":"gpu.platform/audit.v1","time":7}\n' + path.read_bytes())
    selection = Selection(Filter())
    assert [match.entry.seq for match in select([folder], selection)] == [1, 2, 3, 4, 5, 6]
    assert selection.unreadable == 1


def test_progress_adds_up_to_what_there_is(folder: Path) -> None:
    seen: list[int] = []
    list(select([folder], Selection(Filter()), seen.append))
    assert sum(seen) == sources_bytes([folder])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW - 90),
        ("30m", NOW - 1800),
        ("2h", NOW - 7200),
        ("7d", NOW - 7 * 86400),
        ("2026-12-01T08:00:00Z", 1796112000.0),
        ("2026-12-01T09:00:00+01:00", 1796112000.0),
    ],
)
def test_moments(text: str, expected: float) -> None:
    assert moment(text, NOW) == timestamp(expected)


@pytest.mark.parametrize("text", ["", "yesterday", "2h30m", "2026-12-01T08:00:00", "-2h"])
def test_what_is_no_moment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2h"):
        moment(text, NOW)


# -- summary ----------------------------------------------------------------------------------------------------------


def summary_of(folder: Path, **conditions: str) -> Summary:
    summariser = Summariser()
    for match in select([folder], Selection(Filter(**conditions))):
        summariser.add(match.entry)
    return summariser.summary()


def test_denied_counts_deny_and_admitted_counts_what_validate_allowed_and_dry_runs_never(folder: Path) -> None:
    summary = summary_of(folder)
    assert (summary.records, summary.dry_runs, summary.admitted, summary.denied) == (5, 1, 1, 2)
    assert [(each.name, each.admitted, each.denied) for each in summary.namespaces] == [
        ("ai-training", 1, 1),
        ("ai-inference", 0, 1),
    ]
    assert [(each.name, each.admitted, each.denied) for each in summary.rules] == [
        ("training", 1, 1),
        ("inference", 0, 1),
    ]
    assert {each.name: each.count for each in summary.codes} == {
        "QuotaExceeded": 1,
        "PoolInjected": 1,
        "PoolConflict": 1,
    }
    assert [(each.name, each.count) for each in summary.refused_users] == [("bob", 1), ("müller", 1)]
    assert (summary.first, summary.last) == (timestamp(NOW), timestamp(NOW + 50))


def test_latencies_are_within_two_percent(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        for number in range(1, 1001):
            ledger.append(body(number, latency_ms=number / 100))
    summary = summary_of(tmp_path)
    assert summary.latency_p50 == pytest.approx(5.0, rel=0.02)
    assert summary.latency_p99 == pytest.approx(9.9, rel=0.02)


def test_an_empty_summary_has_no_latency(tmp_path: Path) -> None:
    assert summary_of(tmp_path).latency_p50 is None


def test_many_generated_names_do_not_grow_without_bound_and_the_frequent_ones_stay(folder: Path) -> None:
    summariser = Summariser()
    often = next(iter(select([folder], Selection(Filter(user="bob"))))).entry
    import msgspec

    for number in range(60_000):
        if number % 100 == 0:
            summariser.add(often)
        name = msgspec.structs.replace(often.object, name=f"generated-{number}")
        summariser.add(msgspec.structs.replace(often, object=name))
    assert len(summariser._workloads) <= 20_000
    assert summariser.summary().refused_workloads[0].name == often.object.name
    assert summariser.summary().refused_workloads[0].count == 600
