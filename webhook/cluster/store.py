"""The tables that the watches fill: takes lists and events, publishes one immutable State after each."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from webhook.cluster import kinds
from webhook.cluster.kinds import WORKLOAD_KINDS, Kind
from webhook.cluster.notes import Notebook
from webhook.cluster.reflector import Change
from webhook.cluster.table import Table
from webhook.cluster.view import Labels, Nodes, State, classes_by_name, first_listed, table_of, workload_key
from webhook.decision.facts import Note, SeenWorkload
from webhook.k8s.objects import Namespace, Node, ObjectMeta, Workload
from webhook.k8s.workloads import pods_wanted

FIELDS = {
    kinds.NAMESPACE.name: "namespaces",
    kinds.NODE.name: "nodes",
    kinds.PRIORITY_CLASS.name: "priority_classes",
    kinds.RESOURCE_QUOTA.name: "quotas",
    kinds.LIMIT_RANGE.name: "limit_ranges",
    kinds.AUTOSCALER.name: "autoscalers",
}
"""Kind -> the field of State that holds it; the workload kinds share `workloads`."""


class Store:
    """Implements `webhook.cluster.reflector.Sink`. Readers take `state`, which is never changed, without a lock.

    Workloads are kept for the namespaces that `covers` (a question on namespace labels) says yes to, and for those that
    are not known yet, because the watch of namespaces may come second. `relist` is called when a namespace has become
    one whose workloads are kept: those that it has already were let go, and must be listed again.
    """

    def __init__(
        self,
        covers: Callable[[Labels], bool],
        notebook: Notebook,
        relist: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = State()
        self._covers = covers
        self._notebook = notebook
        self._relist = relist
        self._clock = clock
        self._lock = threading.Lock()
        self._uncovered: set[str] = set()
        self._awaited: dict[str, set[str]] = {}
        """Namespace -> the workload kinds still to be listed before its workloads are all known."""

    def replace(self, kind: Kind, items: list[Any]) -> None:
        """Take in a list."""
        with self._lock:
            if kind.name in WORKLOAD_KINDS:
                self._replace_workloads(kind, items)
            elif kind is kinds.NODE:
                self._publish(nodes=Nodes(table_of(kind, [_bare(item) for item in items])))
            elif kind is kinds.PRIORITY_CLASS:
                self._publish(priority_classes=classes_by_name(table_of(kind, items)))
            else:
                self._publish(**{FIELDS[kind.name]: table_of(kind, items)})
        if kind is kinds.NAMESPACE:
            self.reconsider()

    def apply(self, kind: Kind, change: Change, item: Any) -> None:
        """Take in one event of a watch. What was taken in before is not taken in again."""
        with self._lock:
            if kind.name in WORKLOAD_KINDS:
                self._apply_workload(kind, change, item)
            elif kind is kinds.NODE:
                self._apply_node(change, _bare(item))
            elif kind is kinds.PRIORITY_CLASS:
                classes = table_of(kind, list((self.state.priority_classes or {}).values()))
                self._publish(priority_classes=classes_by_name(_changed(classes, change, item)))
            else:
                table = getattr(self.state, FIELDS[kind.name])
                table = table_of(kind, []) if table is None else table
                self._publish(**{FIELDS[kind.name]: _changed(table, change, item)})
        if kind is kinds.NAMESPACE:
            self._reconsider_one(change, item)

    def lose(self, kind: Kind) -> None:
        """From now on nothing is known about a kind."""
        with self._lock:
            if kind.name in WORKLOAD_KINDS:
                self._publish(workloads={**self.state.workloads, kind.name: None})
            else:
                self._publish(**{FIELDS[kind.name]: None})

    def reconsider(self) -> None:
        """Ask `covers` about every namespace again: after a list, and when the policy has changed."""
        with self._lock:
            namespaces = self.state.namespaces
            known = () if namespaces is None else namespaces
            asked = {item.metadata.name: self._covers(item.metadata.labels or {}) for item in known}
            self._uncovered &= asked.keys()
            for name in self._awaited.keys() - asked.keys():
                del self._awaited[name]
            gained = self._cover(asked)
        if gained:
            self._relist()

    def _reconsider_one(self, change: Change, item: Namespace) -> None:
        name = item.metadata.name
        with self._lock:
            if change == "DELETED":
                self._forget(name)
                return
            gained = self._cover({name: self._covers(item.metadata.labels or {})})
        if gained:
            self._relist()

    def _forget(self, name: str) -> None:
        """A namespace is gone. An uncovered one stays noted, for workloads of a next one of its name may come first."""
        if self._awaited.pop(name, None):
            self._publish_partial()
        namespaces = self.state.namespaces
        if namespaces is not None and len(self._uncovered) > 2 * len(namespaces) + 1000:
            self._uncovered &= {item.metadata.name for item in namespaces}
            self._publish_partial()

    def _cover(self, asked: Mapping[str, bool]) -> bool:
        """Note which namespaces are covered. Returns whether one is that was known and was not."""
        covered = {name for name, yes in asked.items() if yes}
        gained = covered & self._uncovered
        lost = asked.keys() - covered - self._uncovered
        for name in gained:
            self._awaited[name] = set(WORKLOAD_KINDS)
        for name in lost:
            self._awaited.pop(name, None)
        self._uncovered = (self._uncovered - gained) | lost
        if gained or lost:
            self._publish_partial()
            self._publish(
                workloads={kind: _without_groups(table, lost) for kind, table in self.state.workloads.items()}
            )
        return bool(gained)

    def _publish_partial(self) -> None:
        self._publish(partial=frozenset(self._uncovered | self._awaited.keys()))

    def _replace_workloads(self, kind: Kind, items: list[Workload]) -> None:
        before = self.state.workloads.get(kind.name)
        table: Table[SeenWorkload] = Table(
            (
                SeenWorkload(item, seen_before(before, item, None))
                for item in items
                if item.metadata.namespace not in self._uncovered
            ),
            workload_key,
        )
        self._publish(workloads={**self.state.workloads, kind.name: table})
        for name, missing in list(self._awaited.items()):
            missing.discard(kind.name)
            if not missing:
                del self._awaited[name]
                self._publish_partial()

    def _apply_workload(self, kind: Kind, change: Change, item: Workload) -> None:
        table = self.state.workloads.get(kind.name)
        if table is None:
            table = Table((), workload_key)
        known = table.get(item.metadata.namespace, item.metadata.name)
        if known is not None and not _is_news(change, item.metadata, known.workload.metadata):
            return
        if change == "DELETED" or item.metadata.namespace in self._uncovered:
            table = table if known is None else table.without(known)
        else:
            # An object that changes but was not known was let go earlier, and is as old as it says.
            unknown_since = self._clock() if change == "ADDED" else None
            since = seen_before(table, item, self._clock() if known is not None else unknown_since)
            table = table.with_item(SeenWorkload(item, since))
        self._publish(workloads={**self.state.workloads, kind.name: table})
        self._notebook.drop(item.metadata.namespace, lambda note: _ends(note, change, item))

    def _apply_node(self, change: Change, item: Node) -> None:
        nodes = self.state.nodes or Nodes(table_of(kinds.NODE, []))
        known = nodes.table.find(item)
        if change != "DELETED" and known is not None and known.metadata.labels == item.metadata.labels:
            return  # kubelets report their status all day; only labels matter here
        self._publish(nodes=Nodes(_changed(nodes.table, change, item)))

    def _publish(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


def seen_before(table: Table[SeenWorkload] | None, item: Workload, otherwise: float | None) -> float:
    """When the present generation of `item` was first seen, epoch seconds: as `table` has it if it knows it.

    If not: `otherwise`, or, where that is None, the time of its creation.
    """
    known = table.get(item.metadata.namespace, item.metadata.name) if table is not None else None
    if known is not None:
        metadata = known.workload.metadata
        if (metadata.uid, metadata.generation) == (item.metadata.uid, item.metadata.generation):
            return known.seen_at
    return first_listed(item).seen_at if otherwise is None else otherwise


def superseded(note: Note, item: Workload) -> bool:
    """Whether `item` is the object of the note, as the note's request left it or later: its own gap now tells more."""
    if (note.kind, note.name) != (item.kind, item.metadata.name):
        return False
    if note.uid and note.uid != item.metadata.uid:
        return False
    noted, now = note.workload.metadata.generation or 0, item.metadata.generation or 0
    return now > noted or (now == noted and item.spec == note.workload.spec)


def _ends(note: Note, change: Change, item: Workload) -> bool:
    """Whether an event ends a note: its object is gone, or its pods have appeared."""
    if change == "DELETED":
        return (note.kind, note.name) == (item.kind, item.metadata.name) and note.uid in ("", item.metadata.uid)
    if not superseded(note, item) or item.status is None:
        return False
    pods = item.status.replicas if item.status.replicas is not None else item.status.active
    return isinstance(pods, int) and pods >= (pods_wanted(item.kind, item) or 0)


def _changed(table: Table[Any], change: Change, item: Any) -> Table[Any]:
    """The table after an event; the same table if the event is no news."""
    known = table.find(item)
    if known is not None and not _is_news(change, item.metadata, known.metadata):
        return table
    if change != "DELETED":
        return table.with_item(item)
    return table if known is None else table.without(item)


def _is_news(change: Change, new: ObjectMeta, old: ObjectMeta) -> bool:
    """Whether an event is later than what is known: a watch that was taken up again may repeat itself (B62)."""
    try:
        later = int(new.resource_version) - int(old.resource_version)
    except ValueError:
        return new.resource_version != old.resource_version or change == "DELETED"
    return later > 0 or (later == 0 and change == "DELETED")


def _without_groups(table: Table[Any] | None, names: Iterable[str]) -> Table[Any] | None:
    if table is not None:
        for name in names:
            if table.group(name):
                table = table.with_group(name, ())
    return table


def _bare(node: Node) -> Node:
    """Only the metadata: a node's status is large and changes every minute."""
    return Node(metadata=node.metadata)
