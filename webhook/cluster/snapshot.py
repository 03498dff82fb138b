"""Facts from files: a `List` as kubectl prints it, a folder of manifests, or objects that a test made up."""

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from webhook.cluster import kinds, manifests
from webhook.cluster.kinds import Kind
from webhook.cluster.notes import Notebook
from webhook.cluster.table import Table
from webhook.cluster.view import Nodes, State, View, classes_by_name, table_of
from webhook.decision.facts import Note
from webhook.k8s.objects import Quantities, ResourceQuota
from webhook.k8s.quantity import Quantity, QuantityError, canonical, parse

Object = dict[str, Any]


class SnapshotError(ValueError):
    """A snapshot that cannot be used; the text names the file, the place and the fix."""


class Snapshot:
    """A FactSource whose facts never change and are always fresh.

    What is not in it does not exist, with two exceptions, because people hand over parts of a cluster: a namespace that
    it does not hold has unknown labels, and where it holds no PriorityClass (or no Node) at all, those are unknown.
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        """Read a file or folder. Raises SnapshotError."""
        try:
            self._take(manifests.read(Path(path)), clock)
        except manifests.ManifestError as error:
            raise SnapshotError(str(error)) from error

    @classmethod
    def from_objects(cls, objects: Iterable[Object], *, clock: Callable[[], float] = time.time) -> "Snapshot":
        """A snapshot of objects as JSON has them; Lists are flattened. Raises SnapshotError."""
        snapshot = cls.__new__(cls)
        try:
            placed = [
                pair for number, item in enumerate(objects, 1) for pair in manifests.flatten(item, f"object {number}")
            ]
        except manifests.ManifestError as error:
            raise SnapshotError(str(error)) from error
        snapshot._take(placed, clock)
        return snapshot

    def with_objects(self, objects: Iterable[Object]) -> "Snapshot":
        """This snapshot with further objects; one of the same kind and name takes the earlier one's place."""
        return Snapshot.from_objects([*self.objects, *objects], clock=self._clock)

    def with_usage(self, namespace: str, usage: Mapping[str, Mapping[str, Quantity]]) -> "Snapshot":
        """This snapshot after pods were admitted: `usage` is added to `status.used`, by quota name and quota key.

        A key without `used` stays so: its usage is as unknown as before (Q6). The raw objects stay as they were read.
        """
        quotas = self._state.quotas
        assert quotas is not None
        raised = [_with_used(quota, usage.get(quota.metadata.name, {})) for quota in quotas.group(namespace)]
        after = copy.copy(self)
        after._state = msgspec.structs.replace(self._state, quotas=quotas.with_group(namespace, raised))
        return after

    def current(self, may_wait: bool = True) -> View:
        return View(self._state, self._notebook.notes, self._clock(), is_fresh=True)

    def fresh(self, namespace: str, timeout: float = 0.3) -> View | None:
        """The same as `current`: nothing is fresher than the file."""
        return self.current()

    def note(self, note: Note) -> None:
        self._notebook.add(note)

    def of_kind(self, kind: str) -> list[Object]:
        """The objects of a kind whose facts we learn, as they were read; of duplicates the last."""
        return list(self._raw.get(kind, {}).values())

    def _take(self, placed: Iterable[tuple[str, Object]], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notebook = Notebook()
        self.objects: list[Object] = []
        self._raw: dict[str, dict[tuple[str, str], Object]] = {}
        typed: dict[str, list[Any]] = {kind.name: [] for kind in kinds.ALL}
        for place, item in placed:
            self.objects.append(item)
            kind = kinds.kind_of(str(item.get("apiVersion") or ""), item["kind"])
            if kind is not None:
                read = _typed(kind, item, place)
                self._raw.setdefault(kind.name, {})[read.metadata.namespace, read.metadata.name] = item
                typed[kind.name].append(read)
        self._state = _state(typed)


def _typed(kind: Kind, item: Object, place: str) -> Any:
    """The struct of an object. Raises SnapshotError."""
    metadata = item.get("metadata") if isinstance(item.get("metadata"), dict) else None
    name = (metadata or {}).get("name")
    try:
        # Through JSON, because that is what the structs are made for: Raw fields, tuples, nulls.
        read = msgspec.json.decode(msgspec.json.encode(item), type=kind.type)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SnapshotError(
            f"{place}: {kind.name} {name or '(without a name)'} is not what {kind.api_version} defines: {error}; "
            "correct it there, or take the snapshot again with kubectl get ... -o json"
        ) from error
    if kind.namespaced and not read.metadata.namespace:  # as kubectl does
        read = msgspec.structs.replace(read, metadata=msgspec.structs.replace(read.metadata, namespace="default"))
    return kinds.slimmer(kind)(read)


def _with_used(quota: ResourceQuota, more: Mapping[str, Quantity]) -> ResourceQuota:
    used = quota.status.used
    if not more or used is None:
        return quota
    raised: Quantities = {key: _sum(value, more.get(key, 0)) for key, value in used.items()}
    return msgspec.structs.replace(quota, status=msgspec.structs.replace(quota.status, used=raised))


def _sum(used: Any, more: Quantity) -> Any:
    try:
        return canonical(parse(used) + more, like=used) if more else used
    except QuantityError:  # unusable here, unusable for the quota check, which says so
        return used


def _state(typed: Mapping[str, list[Any]]) -> State:
    def table(kind: Kind) -> Table[Any]:
        return table_of(kind, typed[kind.name])

    classes, nodes = table(kinds.PRIORITY_CLASS), table(kinds.NODE)
    return State(
        namespaces=table(kinds.NAMESPACE),
        quotas=table(kinds.RESOURCE_QUOTA),
        limit_ranges=table(kinds.LIMIT_RANGE),
        autoscalers=table(kinds.AUTOSCALER),
        priority_classes=classes_by_name(classes) if len(classes) else None,
        nodes=Nodes(nodes) if len(nodes) else None,
        workloads={kind.name: table(kind) for kind in kinds.WORKLOADS},
        pods=table(kinds.POD),
    )
