"""Events: none is dropped, none is counted twice, and each says in plain words at which gate something stopped."""

import msgspec
import pytest

from tests.exporter.samples import Json, event, recorded
from webhook.exporter.events import (
    COMBINED,
    EventTally,
    creation_stop,
    occurrences,
    scheduling_stop,
    stop_of,
    time_of,
)
from webhook.exporter.view import Event, view_of
from webhook.exporter.wording import both

QUOTA = (
    'Error creating: pods "x" is forbidden: exceeded quota: q, requested: pods=1,requests.nvidia.com/gpu=2, '
    "used: pods=5,requests.nvidia.com/gpu=3, limited: pods=5,requests.nvidia.com/gpu=4"
)


def events(*objects: Json) -> tuple[Event, ...]:
    return view_of(objects).events


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"series": {"count": 2, "lastObservedTime": "2026-12-01T20:05:00.5Z"}, "lastTimestamp": None},
            "2026-12-01T20:05:00.5Z",
        ),
        ({"series": None, "lastTimestamp": "2026-12-01T20:04:00Z"}, "2026-12-01T20:04:00Z"),
        ({"lastTimestamp": None, "firstTimestamp": "2026-12-01T20:03:00Z"}, "2026-12-01T20:03:00Z"),
        ({"lastTimestamp": None, "firstTimestamp": None, "series": None}, "2026-12-01T20:00:00Z"),
    ],
)
def test_b64_the_time_is_taken_from_whatever_is_there(fields: Json, expected: str) -> None:
    (found,) = events(event("e", **fields))
    assert time_of(found) == expected


def test_b64_no_event_is_dropped_for_a_null() -> None:
    fields = ("lastTimestamp", "firstTimestamp", "eventTime", "series", "count", "message", "type")
    found = events(event("e", **dict.fromkeys(fields)))
    assert len(found) == 1 and occurrences(found[0]) == 1
    assert stop_of(found[0]) is not None


def test_repeated_events_are_counted_by_their_growth() -> None:
    tally = EventTally()
    tally.add(events(event("e", count=3)))
    tally.add(events(event("e", count=3)))
    tally.add(events(event("e", count=5)))
    assert tally.by_gate == {"capacity": 5}


def test_a_prefix_that_appears_later_is_no_new_event() -> None:
    tally = EventTally()
    tally.add(events(event("e", "FailedCreate", QUOTA, count=1)))
    tally.add(events(event("e", "FailedCreate", COMBINED + QUOTA, count=2)))
    assert tally.by_gate == {"quota": 2}


def test_a_restart_counts_nothing_twice() -> None:
    tally = EventTally()
    tally.add(recorded("seed-cluster").events)
    before = dict(tally.by_gate)
    again = msgspec.json.decode(msgspec.json.encode(tally), type=EventTally)
    again.add(recorded("seed-cluster").events)
    assert again.by_gate == before == {"capacity": 3, "pool": 2, "quota": 12}


def test_an_event_that_is_made_anew_under_the_same_name_is_another_one() -> None:
    tally = EventTally()
    tally.add(events(event("e", uid="one", count=4)))
    tally.add(events(event("e", uid="two", count=1)))
    assert tally.by_gate == {"capacity": 5}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.exporter.events.SEEN_LIMIT", 500)
    tally = EventTally()
    for start in range(0, 1_000, 100):
        tally.add(events(*(event(f"e{number}") for number in range(start, start + 100))))
    assert len(tally.seen) == 500
    assert tally.by_gate["capacity"] == 1_000


@pytest.mark.parametrize(
    ("message", "gate", "code"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "capacity", "no-room"),
        (
            "0/9 nodes are available: 2 Insufficient memory, 2 Insufficient nvidia.com/gpu, 7 node(s) didn't match "
            "Pod's node affinity/selector. no new claims to deallocate, preemption: 0/9 nodes are available: 9.",
            "capacity",
            "no-room",
        ),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "pool", "no-node-in-pool"),
        (
            "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
            "1 node(s) had untolerated taint(s).",
            "pool",
            "no-node-tainted",
        ),
        ("0/2 nodes are available: 2 node(s) were unschedulable.", "capacity", "all-cordoned"),
        ("0/1 nodes are available: 1 node(s) had volume node affinity conflict.", "capacity", "scheduling-other"),
        ("no nodes available to schedule pods", "capacity", "scheduling-other"),
    ],
)
def test_what_the_scheduler_says_is_one_of_two_gates(message: str, gate: str, code: str) -> None:
    stop = scheduling_stop(message)
    assert (stop.gate, stop.code) == (gate, code)


@pytest.mark.parametrize(
    ("message", "gate", "words"),
    [
        (QUOTA, "quota", "asks for 2, 3 of 4 in use (requests.nvidia.com/gpu)"),
        (
            'pods "x" is forbidden: failed quota: q: must specify limits.memory for: c1',
            "quota",
            "limits.memory for: c1",
        ),
        ('pods "x" is forbidden: status unknown for quota: q, resources: requests.nvidia.com/gpu', "quota", "q"),
        (
            'pods "x" is forbidden: maximum nvidia.com/gpu usage per Container is 1, but limit is 2',
            "quota",
            "maximum nvidia.com/gpu",
        ),
        (
            'admission webhook "gpu" denied the request: GPU quota exceeded in namespace a: asks\n  detail',
            "quota",
            "GPU quota exceeded",
        ),
        ('admission webhook "gpu" denied the request: nodeSelector excludes pool a', "policy", "excludes pool"),
        ('pods "x" is forbidden: no PriorityClass with name gpu-high was found', "policy", "gpu-high"),
        ('namespaces "gone" not found', "namespace", "gone"),
        ("something else entirely", "policy", "something else"),
    ],
)
def test_what_a_controller_says_is_one_of_three_gates(message: str, gate: str, words: str) -> None:
    stop = creation_stop(message)
    sentences = both(stop.code, **stop.values)
    assert stop.gate == gate
    assert words in sentences["why"] and "\n" not in sentences["why"]
    assert sentences["whyZh"] != sentences["why"]


def test_other_events_stop_nothing() -> None:
    (found,) = events(event("e", "Scheduled", "Successfully assigned"))
    assert stop_of(found) is None
