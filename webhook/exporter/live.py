"""The exporter's own watch of a cluster: what a ClusterView holds, kept by the reflectors of `webhook.cluster`."""

import threading
from typing import Any, Protocol

from webhook.cluster import kinds
from webhook.cluster.api import Api, connect
from webhook.cluster.kinds import Kind
from webhook.cluster.manifests import read
from webhook.cluster.reflector import Change, Reflector
from webhook.exporter.view import ATTRIBUTES, EVENT, ClusterView, view_of

WATCHED = (
    *(kinds.NAMESPACE, kinds.RESOURCE_QUOTA, kinds.PRIORITY_CLASS, kinds.NODE, kinds.POD, EVENT),
    *kinds.WORKLOADS,
)


class ViewSource(Protocol):
    """Where views come from."""

    def view(self) -> ClusterView: ...

    def problems(self) -> list[str]:
        """What cannot be read at present, with the fix; empty when all is well."""

    def close(self) -> None: ...


class SnapshotSource:
    """A file or folder of manifests, read once."""

    def __init__(self, path: Any) -> None:
        """Raises `webhook.cluster.manifests.ManifestError` or ValueError for input that cannot be read."""
        self._view = view_of(item for _, item in read(path))

    def view(self) -> ClusterView:
        return self._view

    def problems(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class LiveSource:
    """A Sink that keeps every watched object and hands out consistent copies of the whole."""

    def __init__(self, api: Api | None = None) -> None:
        """Raises `webhook.cluster.api.ClusterError` if no cluster is configured."""
        self._api = api or connect()
        self._lock = threading.Lock()
        self._objects: dict[str, dict[tuple[str, str], Any]] = {kind.name: {} for kind in WATCHED}
        self._reflectors = [Reflector(self._api, kind, self) for kind in WATCHED]
        for reflector in self._reflectors:
            reflector.start()

    def wait(self, seconds: float) -> None:
        """Until every kind was listed or refused once, at most so long."""
        waiter = threading.Thread(target=self._settle, args=(seconds,), daemon=True)
        waiter.start()
        waiter.join(seconds)

    def _settle(self, seconds: float) -> None:
        for reflector in self._reflectors:
            reflector.settled.wait(seconds)

    def view(self) -> ClusterView:
        with self._lock:
            found: dict[str, list[Any]] = {attribute: [] for attribute in ATTRIBUTES.values()}
            for kind, objects in self._objects.items():
                found[ATTRIBUTES[kind]].extend(objects.values())
        age = max(reflector.age for reflector in self._reflectors)
        lists: dict[str, Any] = {attribute: tuple(items) for attribute, items in found.items()}
        return ClusterView(context=self._api.context, age=age, **lists)

    def problems(self) -> list[str]:
        return [text for r in self._reflectors if (text := r.refused or r.failure)]

    def close(self) -> None:
        for reflector in self._reflectors:
            reflector.stop()
        self._api.close()

    # -- what a reflector calls -------------------------------------------------------------------------------------

    def replace(self, kind: Kind, items: list[Any]) -> None:
        kept = {_key(item): item for item in items}
        with self._lock:
            self._objects[kind.name] = kept

    def apply(self, kind: Kind, change: Change, item: Any) -> None:
        with self._lock:
            if change == "DELETED":
                self._objects[kind.name].pop(_key(item), None)
            else:
                self._objects[kind.name][_key(item)] = item

    def lose(self, kind: Kind) -> None:
        with self._lock:
            self._objects[kind.name] = {}


def _key(item: Any) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name
