"""Event objects in both styles, repeated ones counted and similar ones combined as client-go does."""

import time
from collections import OrderedDict
from typing import Final, TypeVar

from webhook.lab import errors, resources, strategy
from webhook.lab.call import Call
from webhook.lab.registry import Registry
from webhook.lab.resources import Object, copied

_SIMILAR: Final = 10
"""Different messages of one reason after which they are combined."""

_BURST: Final = 25
_REFILL: Final = 300.0
"""Events about one object: 25 at once, then one in this many seconds."""

_REMEMBERED: Final = 4096
K = TypeVar("K")
V = TypeVar("V")

_EVENTS_NAMESPACE: Final = "default"
"""Where events about cluster-scoped objects go."""


class Recorder:
    """Writes events as one component; an event never fails what it is about."""

    def __init__(self, registry: Registry, call: Call, component: str) -> None:
        self._registry = registry
        self._component = component
        self._call = call
        self._known: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._messages: OrderedDict[tuple[str, ...], set[str]] = OrderedDict()
        self._budget: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def record(self, about: Object, kind: str, reason: str, message: str) -> None:
        """A core/v1 event with `count` and `source`, as controllers write them."""
        uid = about["metadata"]["uid"]
        if not self._within_budget(uid):
            return
        group = (uid, kind, reason)
        messages = _remember(self._messages, group, set())
        messages.add(message)
        combined = len(messages) >= _SIMILAR
        text = f"(combined from similar events): {message}" if combined else message
        key = (*group, "" if combined else message)
        if not self._repeat(key, about, text):
            self._create(key, about, _counted(self._component, kind, reason, text))

    def record_series(self, about: Object, kind: str, reason: str, action: str, message: str) -> None:
        """An event with `eventTime` and, once repeated, a `series`, as the scheduler writes them."""
        key = (about["metadata"]["uid"], kind, reason, message)
        if not self._repeat(key, about, message):
            self._create(key, about, _timed(self._component, kind, reason, action, message))

    def _within_budget(self, uid: str) -> bool:
        left, since = _remember(self._budget, uid, (float(_BURST), time.monotonic()))
        now = time.monotonic()
        left = min(float(_BURST), left + (now - since) / _REFILL)
        self._budget[uid] = (left - 1 if left >= 1 else left, now)
        return left >= 1

    def _repeat(self, key: tuple[str, ...], about: Object, message: str) -> bool:
        name = self._known.get(key)
        record = self._registry.store.get(resources.EVENTS, _namespace(about), name) if name else None
        if record is None:
            return False
        event = copied(record.object)
        event["message"] = message
        if event.get("eventTime"):
            count = (event.get("series") or {}).get("count", 1) + 1
            event["series"] = {"count": count, "lastObservedTime": strategy.now_micro()}
        else:
            event["count"] = event.get("count", 1) + 1
            event["lastTimestamp"] = strategy.now()
        key_of_event = event["metadata"]["namespace"], event["metadata"]["name"]
        try:
            self._registry.update(resources.EVENTS, *key_of_event, event, self._call)
        except errors.ApiError:
            return False
        return True

    def _create(self, key: tuple[str, ...], about: Object, event: Object) -> None:
        metadata = about["metadata"]
        name = f"{metadata['name']}.{time.time_ns():x}"
        involved = {"apiVersion": about["apiVersion"], "kind": about["kind"]}
        involved |= {k: metadata[k] for k in ("name", "namespace", "resourceVersion", "uid") if k in metadata}
        event["metadata"] = {"name": name, "namespace": _namespace(about)}
        event["involvedObject"] = involved
        try:
            self._registry.create(resources.EVENTS, _namespace(about), event, self._call)
        except errors.ApiError:
            return
        _remember(self._known, key, name)


def _namespace(about: Object) -> str:
    return str(about["metadata"].get("namespace", _EVENTS_NAMESPACE))


def _counted(component: str, kind: str, reason: str, message: str) -> Object:
    now = strategy.now()
    return {"reason": reason, "message": message, "source": {"component": component}, "firstTimestamp": now,
            "lastTimestamp": now, "count": 1, "type": kind, "eventTime": None,
            "reportingComponent": component, "reportingInstance": ""}  # fmt: skip


def _timed(component: str, kind: str, reason: str, action: str, message: str) -> Object:
    return {"reason": reason, "message": message, "source": {}, "firstTimestamp": None, "lastTimestamp": None,
            "type": kind, "eventTime": strategy.now_micro(), "action": action,
            "reportingComponent": component, "reportingInstance": f"{component}-lab"}  # fmt: skip


def _remember(memory: "OrderedDict[K, V]", key: K, value: V) -> V:
    """`setdefault` in a memory that forgets its oldest entries."""
    found = memory.setdefault(key, value)
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
    return found
