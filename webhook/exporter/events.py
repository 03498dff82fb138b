"""Events of the scheduler and the controllers: when, how often, at which gate, and why in plain words."""

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from webhook.exporter.view import Event

Gate = Literal["namespace", "policy", "quota", "pool", "capacity", "running"]
GATES: tuple[Gate, ...] = ("namespace", "policy", "quota", "pool", "capacity", "running")
"""DESIGN 2, in the order in which a GPU pod passes them."""

SCHEDULING = "FailedScheduling"
CREATING = "FailedCreate"
REASONS = frozenset({SCHEDULING, CREATING})

COMBINED = "(combined from similar events): "
"""What client-go puts before the message of an event that stands for many."""


class Stop(msgspec.Struct, frozen=True):
    """Which gate stopped something; `code` and `values` make the sentence (`exporter.<code>` in the language files)."""

    gate: Gate
    code: str
    values: Mapping[str, Any] = {}


def time_of(event: Event) -> str:
    """RFC 3339 text: series, then last, then first, then creation (B64); "" only if the event has none of them."""
    series = event.series.last_observed_time if event.series else None
    return (
        series
        or event.last_timestamp
        or event.first_timestamp
        or event.metadata.creation_timestamp
        or event.event_time
        or ""
    )


def occurrences(event: Event) -> int:
    """How often it happened; an event without a count happened once."""
    series = event.series.count if event.series else None
    return max(series or event.count or 1, 1)


def message_of(event: Event) -> str:
    """The message without client-go's "combined" prefix."""
    return (event.message or "").removeprefix(COMBINED)


def stop_of(event: Event) -> Stop | None:
    """The gate behind a FailedScheduling or FailedCreate event; None for any other event."""
    if event.reason == SCHEDULING:
        return scheduling_stop(message_of(event))
    if event.reason == CREATING:
        return creation_stop(message_of(event))
    return None


# -- the scheduler's sentence ---------------------------------------------------------------------------------------

_NODES = re.compile(r"^0/(\d+) nodes are available: (.*)$", re.DOTALL)
_REASON = re.compile(r"(\d+) (.+?)(?=, \d+ |\.? ?preemption:|\. |\.?$)", re.DOTALL)


def scheduling_stop(message: str) -> Stop:
    """Gate 4 (pool) if no node lets the pod in, gate 5 (capacity) if a node does but has no room.

    Filters run in the order unschedulable, taints, affinity, resources, and a node is counted under the first that
    refuses it: "Insufficient" therefore means that the node lies in the pod's pool.
    """
    head = message.split(" preemption: ", 1)[0]
    match = _NODES.match(head)
    if match is None:
        return Stop("capacity", "scheduling-other", {"message": _first_line(message)})
    total, reasons = int(match[1]), _reasons(match[2])
    full = {text.removeprefix("Insufficient "): n for n, text in reasons if text.startswith("Insufficient ")}
    tainted = sum(n for n, text in reasons if "taint" in text)
    outside = sum(n for n, text in reasons if "node affinity/selector" in text)
    cordoned = sum(n for n, text in reasons if "unschedulable" in text)
    known = tainted + outside + cordoned
    if full:
        where = {"resources": ", ".join(sorted(full)), "full": max(full.values()), "elsewhere": known, "total": total}
        return Stop("capacity", "no-room", where)
    if known < total and any(not _is_known(text) for _, text in reasons):
        return Stop("capacity", "scheduling-other", {"message": _first_line(head)})
    if cordoned and not outside and not tainted:
        return Stop("capacity", "all-cordoned", {"total": total})
    code = "no-node-tainted" if tainted else "no-node-in-pool"
    return Stop("pool", code, {"total": total, "outside": outside + cordoned, "tainted": tainted})


def _reasons(text: str) -> list[tuple[int, str]]:
    return [(int(n), reason.strip()) for n, reason in _REASON.findall(text.split(". ", 1)[0])]


def _is_known(reason: str) -> bool:
    return any(part in reason for part in ("taint", "node affinity/selector", "unschedulable"))


# -- the controllers' sentence --------------------------------------------------------------------------------------

_EXCEEDED = re.compile(r"exceeded quota: ([^,\s]+), requested: (\S+), used: (\S+), limited: (\S+)")
_MUST_SET = re.compile(r"failed quota: ([^:\s]+): must specify (.+)", re.DOTALL)
_UNKNOWN = re.compile(r"status unknown for quota: ([^,\s]+)")
_REFUSED = re.compile(r'admission webhook "([^"]+)" denied the request: (.*)', re.DOTALL)
_NAMESPACE = re.compile(r'namespaces? "?([^"\s]+)"? not found|because it is being terminated')
_NO_CLASS = re.compile(r"no PriorityClass with name (\S+) was found")
_QUOTA_SENTENCES = ("GPU quota", "Quota exceeded", "GPU 配额", "配额")


def creation_stop(message: str) -> Stop:
    """Which gate refused a pod that a controller tried to create (Q9, Q18, P12)."""
    if match := _EXCEEDED.search(message):
        key, asks = _amount(match[2])
        values = {"quota": match[1], "quota_key": key, "asks": asks, "used": _value(match[3], key)}
        return Stop("quota", "quota-full", {**values, "hard": _value(match[4], key)})
    if match := _MUST_SET.search(message):
        return Stop("quota", "quota-must-specify", {"quota": match[1], "keys": _first_line(match[2])})
    if match := _UNKNOWN.search(message):
        return Stop("quota", "quota-unknown", {"quota": match[1]})
    if match := _REFUSED.search(message):
        first = _first_line(match[2])
        gate: Gate = "quota" if first.startswith(_QUOTA_SENTENCES) else "policy"
        return Stop(gate, "refused", {"message": first})
    if match := _NO_CLASS.search(message):
        return Stop("policy", "class-missing", {"name": match[1]})
    if _NAMESPACE.search(message):
        return Stop("namespace", "namespace-gone", {"message": _first_line(message)})
    if "usage per" in message:
        return Stop("quota", "limit-range", {"message": _first_line(message.split("is forbidden: ", 1)[-1])})
    return Stop("policy", "creation-other", {"message": _first_line(message)})


def _amount(amounts: str) -> tuple[str, str]:
    """The first `key=amount` of a comma list; GPU keys first, because they are what people ask about."""
    pairs = [pair.partition("=")[::2] for pair in amounts.split(",")]
    key, amount = min(pairs, key=lambda pair: "/" not in pair[0])
    return key, amount


def _value(amounts: str, key: str) -> str:
    return dict(pair.partition("=")[::2] for pair in amounts.split(",")).get(key, "?")


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= 300 else line[:299] + "…"


# -- counting -------------------------------------------------------------------------------------------------------


SEEN_LIMIT = 50_000
"""Events that are remembered; the API server forgets them after an hour, so this is generous."""


class EventTally(msgspec.Struct, rename="camel"):
    """How often each gate stopped something, counted once per occurrence, kept on disk between runs.

    `seen`: identity of an Event object -> the count already counted. Only the identity decides: a count that grows adds
    its growth, a message that gains a prefix or an event that is listed again adds nothing.
    """

    since: str = ""
    seen: dict[str, int] = {}
    by_gate: dict[str, int] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Count what is new in a listing."""
        for event in events:
            stop = stop_of(event)
            if stop is None:
                continue
            key = event.metadata.uid or f"{event.metadata.namespace}/{event.metadata.name}"
            count, before = occurrences(event), self.seen.pop(key, 0)
            self.seen[key] = max(count, before)  # put back at the end: the oldest are dropped first
            if count > before:
                self.by_gate[stop.gate] = self.by_gate.get(stop.gate, 0) + count - before
        if len(self.seen) > SEEN_LIMIT:
            for old in list(islice(self.seen, len(self.seen) - SEEN_LIMIT)):
                del self.seen[old]
