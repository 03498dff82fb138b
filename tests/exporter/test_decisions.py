"""Aggregates over records: what counts, what does not, and that nothing grows with the names that users invent."""

import json

import msgspec
import pytest

from tests.exporter.samples import record
from webhook.exporter import decisions
from webhook.exporter.decisions import OTHER, RECENT_OTHERS, RECENT_REFUSED, Reader, Tally

T0815 = 1796112930.0  # 2026-12-01T08:15:30Z
MINUTE = int(T0815) // 60


def read(*lines: bytes, tally: Tally | None = None) -> Tally:
    tally = tally if tally is not None else Tally()
    reader = Reader(tally)
    reader.add(lines)
    reader.flush()
    return tally


def test_denied_and_admitted_are_counted_as_the_design_says() -> None:
    tally = read(
        record(1, "patch", phase="mutate"),
        record(2, "allow", phase="validate"),
        record(3, "allow", phase="mutate"),
        record(4, "deny", phase="mutate"),
        record(5, "deny", phase="validate"),
    )
    assert (tally.admitted, tally.denied, tally.patched, tally.records) == (1, 2, 1, 5)
    assert tally.minutes == {MINUTE: [1, 2]}


def test_dry_runs_never_count_but_are_shown() -> None:
    tally = read(record(1, "deny", dry_run=True), record(2, "allow", dry_run=True))
    assert (tally.denied, tally.admitted, tally.dry_run, tally.counts) == (0, 0, 2, {})
    assert [one["dryRun"] for one in tally.recent()] == [True, True]


def test_lines_that_are_no_records_are_counted_apart() -> None:
    tally = read(b"{}", b"not json", b"\xff\xfe", record(1))
    assert (tally.unreadable, tally.records) == (3, 1)


def test_records_with_their_keys_in_another_order_count_the_same() -> None:
    lines = [record(1, "deny"), record(2, "allow", phase="validate")]
    turned = [json.dumps(dict(sorted(json.loads(line).items(), reverse=True))).encode() for line in lines]
    assert read(*turned).counts == read(*lines).counts
    assert read(*turned).unreadable == 0


def test_a_torn_record_is_none() -> None:
    whole = record(1, "deny")
    assert read(*(whole[:end] for end in range(len(whole)))).records == 0


def test_a_record_that_is_damaged_where_nothing_is_counted_counts_and_is_not_shown() -> None:
    start, end = record(1, "deny").split(b'"facts":')
    tally = read(start + b'"facts":' + end.replace(b"{", b"\x00", 1), record(2, "deny"))
    assert tally.denied == 2
    assert [one["seq"] for one in tally.recent()] == [2]
    assert tally.last_revision
    assert all(last.id for last in tally.workloads.values())


def test_b66_names_and_namespaces_do_not_make_it_grow() -> None:
    tally = Tally()
    reader = Reader(tally)
    for start in range(0, 50_000, 1_000):
        numbers = range(start, start + 1_000)
        reader.add([_generated(number) for number in numbers])
    reader.flush()
    assert tally.denied == 50_000
    assert len({key.partition("\t")[0] for key in tally.counts}) == 300
    assert len(tally.counts) == 300
    assert len(tally.refused_workloads) <= decisions.NAME_LIMIT + 1
    assert len(tally.refused_users) <= decisions.NAME_LIMIT + 1
    assert len(tally.workloads) <= decisions.WORKLOAD_LIMIT * 1.25
    assert sum(one.count for one in tally.refused_workloads.values()) == 50_000
    assert tally.refused_workloads[f"{OTHER}/{OTHER}/{OTHER}"].count > 0


def _generated(number: int) -> bytes:
    return record(
        number, "deny", namespace=f"ns-{number % 300}", name=f"job-{number % 5_000}", user=f"u{number}", phase="mutate"
    )


def test_b66_more_namespaces_than_the_limit_are_one_bucket() -> None:
    lines = [record(number, "allow", namespace=f"ns-{number}") for number in range(decisions.NAMESPACE_LIMIT + 50)]
    tally = read(*lines)
    assert len(tally.namespaces) == decisions.NAMESPACE_LIMIT
    other = sum(count for key, count in tally.counts.items() if key.startswith(f"{OTHER}\t"))
    assert other == 50 and sum(tally.counts.values()) == len(lines)


def test_b66_deleted_namespaces_expire() -> None:
    tally = read(record(1, "deny", namespace="gone"), record(2, "deny", namespace="here"))
    tally.forget_namespaces({"here"})
    assert list(tally.namespaces) == ["here"]
    assert tally.counts == {"here\ttraining\tvalidate\tdeny": 1, "other\tother\tvalidate\tdeny": 1}
    assert tally.codes == {"here\tQuotaExceeded": 1, "other\tother": 1}


def test_recent_records_keep_refusals_longer_than_the_rest() -> None:
    refused = record(0, "deny", namespace="first")
    tally = read(refused, *(record(number) for number in range(1, 2_000)))
    recent = tally.recent()
    assert len(recent) == RECENT_OTHERS + 1
    assert recent[-1]["object"]["namespace"] == "first"
    tally = read(*(record(number, "deny") for number in range(1, 2_000)))
    assert len(tally.recent()) == RECENT_REFUSED and tally.recent()[0]["seq"] == 1_999, "newest first"


def test_a_long_record_is_shown_without_input_and_facts() -> None:
    (shown,) = read(record(1, "deny", message="m" * decisions.RECENT_BYTES)).recent()
    assert (shown["shortened"], shown["input"], shown["facts"], shown["verdict"]) == (True, None, None, "deny")


def test_the_last_decision_about_a_workload_is_found_by_name_and_by_owner() -> None:
    tally = read(record(1, "deny", name="web", phase="mutate"), record(2, "patch", name="web", phase="mutate"))
    last = tally.last_about("ai-training", [("Pod", "web-1"), ("ReplicaSet", "web-x"), ("Deployment", "web")])
    assert last is not None and last.verdict == "patch"
    assert tally.last_about("ai-training", [("Deployment", "other")]) is None


def test_minutes_are_those_of_the_last_day() -> None:
    lines = [record(number, "deny", now=T0815 + 60 * number) for number in range(3_000)]
    tally = read(*lines)
    assert len(tally.minutes) == decisions.MINUTES
    assert tally.denied_since(MINUTE + 2_990) == 10
    assert tally.denied == 3_000


def test_reviewed_pods_that_still_exist_are_forgotten_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "POD_LIMIT", 1_000)
    tally = read(record(0, kind="Pod", name="old"))
    tally.keep_pods(["ai-training/old"])
    lines = [record(number, kind="Pod", name=f"p{number}") for number in range(1, decisions.POD_LIMIT)]
    read(*lines, tally=tally)
    tally.keep_pods(["ai-training/old"])
    more = [record(number, kind="Pod", name=f"q{number}") for number in range(decisions.POD_LIMIT // 2)]
    read(*more, tally=tally)
    assert len(tally.pods) <= decisions.POD_LIMIT * 1.25
    assert "ai-training/old" in tally.pods and "ai-training/p1" not in tally.pods


def test_a_tally_outlives_the_process() -> None:
    tally = read(record(1, "deny", name="web", phase="mutate"), record(2, kind="Pod", name="p"))
    again = msgspec.json.decode(msgspec.json.encode(tally), type=Tally)
    assert again.recent() == tally.recent()
    assert (again.counts, again.minutes, again.pods, again.workloads) == (
        tally.counts,
        tally.minutes,
        tally.pods,
        tally.workloads,
    )
    assert again.last_revision == tally.last_revision != ""
