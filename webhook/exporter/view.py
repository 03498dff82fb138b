"""What the exporter reads of a cluster, in one immutable object that live and snapshot sources both make."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from webhook.cluster import kinds
from webhook.cluster.kinds import Kind
from webhook.k8s.objects import Namespace, Node, ObjectMeta, Pod, PriorityClass, ResourceQuota, Workload


class ObjectReference(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The object that an event speaks of."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSeries(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """How often a repeated event was seen; null unless it repeated."""

    count: int | None = None
    last_observed_time: str | None = None


class Event(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A core/v1 Event; every time in it may be null (B64)."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str | None = None
    message: str | None = None
    type: str | None = None
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None


@dataclass(frozen=True)
class ClusterView:
    """Everything that the status is computed from. `context` is the kubeconfig's context, or `snapshot`.

    `age` is how old the oldest of these lists may be, in seconds; 0 for a snapshot.
    """

    context: str = "snapshot"
    namespaces: tuple[Namespace, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    workloads: tuple[Workload, ...] = ()
    events: tuple[Event, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    age: float = 0.0
    labels: Mapping[str, Mapping[str, str]] = field(init=False, repr=False, compare=False)
    """Namespace -> its labels."""

    def __post_init__(self) -> None:
        labels = {namespace.metadata.name: namespace.metadata.labels or {} for namespace in self.namespaces}
        object.__setattr__(self, "labels", labels)


EVENT = Kind("Event", "", "v1", "events", Event)

ATTRIBUTES: Mapping[str, str] = {
    "Namespace": "namespaces",
    "ResourceQuota": "quotas",
    "Pod": "pods",
    "Node": "nodes",
    "Event": "events",
    "PriorityClass": "priority_classes",
    **dict.fromkeys(kinds.WORKLOAD_KINDS, "workloads"),
}
"""Kind -> the attribute of ClusterView that holds its objects."""


def view_of(objects: Iterable[Mapping[str, Any]], context: str = "snapshot") -> ClusterView:
    """The view of plain Kubernetes objects, each with its `kind`; kinds that are not read are skipped.

    Raises ValueError that names the object and the field if one has the wrong type.
    """
    found: dict[str, list[Any]] = {attribute: [] for attribute in ATTRIBUTES.values()}
    for plain in objects:
        kind = kind_of(str(plain.get("apiVersion", "")), str(plain.get("kind", "")))
        if kind is None or kind.name not in ATTRIBUTES:
            continue
        try:
            found[ATTRIBUTES[kind.name]].append(msgspec.convert(_without_nulls(plain), kind.type))
        except msgspec.ValidationError as error:
            metadata = plain.get("metadata") or {}
            name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
            raise ValueError(f"{kind.name} {name}: {error}") from error
    lists: dict[str, Any] = {attribute: tuple(values) for attribute, values in found.items()}
    return ClusterView(context=context, **lists)


def kind_of(api_version: str, name: str) -> Kind | None:
    """Events beside the kinds that decisions read."""
    return EVENT if (name, api_version) == ("Event", "v1") else kinds.kind_of(api_version, name)


def _without_nulls(value: Any) -> Any:
    """Absent and null read the same, as the API server reads them."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
