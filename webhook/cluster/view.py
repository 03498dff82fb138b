"""Facts as decisions read them: one immutable view over tables of objects, the same for live and for snapshot."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from webhook.cluster.kinds import WORKLOAD_KINDS, Kind
from webhook.cluster.notes import LIFETIME, Notes
from webhook.cluster.table import Table, by_name, by_namespace
from webhook.decision.facts import Note, SeenWorkload
from webhook.k8s.objects import (
    HorizontalPodAutoscaler,
    LimitRange,
    Namespace,
    Node,
    Pod,
    PriorityClass,
    ResourceQuota,
    Workload,
)

Labels = Mapping[str, str]


class Lookup(Protocol):
    """Who answers when a table does not: one bounded live read, None when it fails (H16)."""

    def namespace_labels(self, namespace: str) -> Labels | None: ...

    def node_labels(self, node: str) -> Labels | None: ...

    def workload(self, kind: str, namespace: str, name: str) -> Workload | None: ...


class Nodes:
    """The nodes by name, and how many carry each value of a label, counted when it is first asked for."""

    def __init__(self, table: Table[Node]) -> None:
        self.table = table
        self._sizes: dict[str, dict[str, int]] = {}

    def labels(self, node: str) -> Labels | None:
        found = self.table.only(node)
        return None if found is None else found.metadata.labels or {}

    def sizes(self, label: str) -> Mapping[str, int]:
        counted = self._sizes.get(label)
        if counted is None:
            counted = {}
            for node in self.table:
                value = (node.metadata.labels or {}).get(label)
                if value is not None:
                    counted[value] = counted.get(value, 0) + 1
            self._sizes[label] = counted
        return counted


class State(msgspec.Struct, frozen=True, gc=False):
    """All that is known at one moment. A table that is None could not be learned, an empty one is truly empty.

    `partial` are the namespaces whose workloads are not all in `workloads`; they are kept for GPU namespaces only.
    """

    namespaces: Table[Namespace] | None = None
    quotas: Table[ResourceQuota] | None = None
    limit_ranges: Table[LimitRange] | None = None
    autoscalers: Table[HorizontalPodAutoscaler] | None = None
    priority_classes: Mapping[str, PriorityClass] | None = None
    nodes: Nodes | None = None
    workloads: Mapping[str, Table[SeenWorkload] | None] = {}
    pods: Table[Pod] | None = None
    partial: frozenset[str] = frozenset()


class View(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Implements `webhook.decision.facts.Facts` over one State.

    `only` is the namespace whose quotas, workloads and pods a fresh read brought; those of others it does not know.
    """

    state: State
    noted: Notes
    now: float
    is_fresh: bool
    lookup: Lookup | None = None
    only: str | None = None

    def namespace_labels(self, namespace: str) -> Labels | None:
        table = self.state.namespaces
        found = table.only(namespace) if table is not None else None
        if found is not None:
            return found.metadata.labels or {}
        return self.lookup.namespace_labels(namespace) if self.lookup else None

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...] | None:
        table = self.state.quotas
        return None if table is None else table.group(namespace)

    def limit_ranges(self, namespace: str) -> tuple[LimitRange, ...] | None:
        table = self.state.limit_ranges
        return None if table is None else table.group(namespace)

    def priority_classes(self) -> Mapping[str, PriorityClass] | None:
        return self.state.priority_classes

    def pool_sizes(self, label: str) -> Mapping[str, int] | None:
        return None if self.state.nodes is None else self.state.nodes.sizes(label)

    def node_labels(self, node: str) -> Labels | None:
        found = self.state.nodes.labels(node) if self.state.nodes is not None else None
        if found is not None:
            return found
        return self.lookup.node_labels(node) if self.lookup else None

    def parent(self, namespace: str, kind: str, name: str) -> Workload | None:
        table = self.state.workloads.get(kind)
        seen = table.get(namespace, name) if table is not None else None
        if seen is not None:
            return seen.workload
        return self.lookup.workload(kind, namespace, name) if self.lookup else None

    def autoscalers(self, namespace: str) -> tuple[HorizontalPodAutoscaler, ...] | None:
        table = self.state.autoscalers
        return None if table is None else table.group(namespace)

    def workloads(self, namespace: str) -> tuple[SeenWorkload, ...] | None:
        if namespace in self.state.partial or self._is_elsewhere(namespace):
            return None
        return Table.together(map(self.state.workloads.get, WORKLOAD_KINDS), namespace)

    def pods(self, namespace: str) -> tuple[Pod, ...] | None:
        if self.state.pods is None or self._is_elsewhere(namespace):
            return None
        return self.state.pods.group(namespace)

    def notes(self, namespace: str) -> tuple[Note, ...]:
        notes = self.noted.get(namespace, ())
        return tuple(note for note in notes if self.now - note.at < LIFETIME) if notes else notes

    def _is_elsewhere(self, namespace: str) -> bool:
        return self.only is not None and self.only != namespace


def workload_key(seen: SeenWorkload) -> tuple[str, str]:
    return seen.workload.metadata.namespace, seen.workload.metadata.name


def first_listed(workload: Workload) -> SeenWorkload:
    """A workload from a list: nobody saw its generation come, so the time of its creation stands for it."""
    return SeenWorkload(workload, epoch(workload.metadata.creation_timestamp))


def epoch(timestamp: str | None) -> float:
    """RFC 3339 text as seconds since the epoch; 0 if it is absent or cannot be read."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except ValueError:
        return 0.0


def classes_by_name(classes: Table[PriorityClass]) -> Mapping[str, PriorityClass]:
    return {item.metadata.name: item for item in classes}


def table_of(kind: Kind, items: list[Any]) -> Table[Any]:
    """The table in which a kind's objects are looked up."""
    if kind.type is Workload:
        return Table([first_listed(item) for item in items], workload_key)
    return Table(items, by_namespace if kind.namespaced else by_name)
