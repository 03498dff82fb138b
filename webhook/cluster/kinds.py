"""The kinds whose facts we learn: where the API serves each, and the struct that holds what we read of it."""

from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec

from webhook.k8s.objects import (
    HorizontalPodAutoscaler,
    LimitRange,
    Namespace,
    Node,
    ObjectMeta,
    Pod,
    PriorityClass,
    ResourceQuota,
    Workload,
)
from webhook.k8s.workloads import KINDS

OWN_PREFIX = "gpu.platform/"
"""Annotations that decisions read; others (last-applied is as big as the object) are not kept."""


class Kind(msgspec.Struct, frozen=True):
    """One kind of object: its group and version, its plural in URLs, and its type here."""

    name: str
    group: str
    version: str
    plural: str
    type: Any
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """The URL path of one object, of a namespace's objects, or of all objects of the kind.

        Names are quoted: they come from reviews, and must not lead anywhere else.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        return f"{root}{scope}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")


NAMESPACE = Kind("Namespace", "", "v1", "namespaces", Namespace, namespaced=False)
NODE = Kind("Node", "", "v1", "nodes", Node, namespaced=False)
PRIORITY_CLASS = Kind("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", PriorityClass, namespaced=False)
RESOURCE_QUOTA = Kind("ResourceQuota", "", "v1", "resourcequotas", ResourceQuota)
LIMIT_RANGE = Kind("LimitRange", "", "v1", "limitranges", LimitRange)
AUTOSCALER = Kind("HorizontalPodAutoscaler", "autoscaling", "v2", "horizontalpodautoscalers", HorizontalPodAutoscaler)
POD = Kind("Pod", "", "v1", "pods", Pod)

WORKLOADS = tuple(
    Kind(row.kind, row.group, row.version, row.resource, Workload) for row in KINDS.values() if row.kind != POD.name
)
WORKLOAD_KINDS = {kind.name: kind for kind in WORKLOADS}

WATCHED = (NAMESPACE, RESOURCE_QUOTA, LIMIT_RANGE, PRIORITY_CLASS, NODE, AUTOSCALER, *WORKLOADS)
"""What the live source keeps watches on; pods are read only when a decision needs them."""

READ_BY_NAME = (NAMESPACE, NODE, *WORKLOADS)
"""What a look-up reads when the watches do not know it (H16, W25)."""

ALL = (*WATCHED, POD)
_BY_NAME = {kind.name: kind for kind in ALL}


def permissions() -> dict[tuple[str, str], frozenset[str]]:
    """(API group, plural) -> the verbs that the live source uses: what `deploy/base/rbac.yaml` grants, and no more."""
    needed = {(kind.group, kind.plural): frozenset({"list", "watch"}) for kind in WATCHED}
    for kind in READ_BY_NAME:
        needed[kind.group, kind.plural] |= {"get"}
    return {**needed, (POD.group, POD.plural): frozenset({"list"})}


def kind_of(api_version: str, name: str) -> Kind | None:
    """The kind of a manifest, or None if we learn nothing from it: a `Job` of another group is not our Job."""
    kind = _BY_NAME.get(name)
    group = api_version.rpartition("/")[0]
    return kind if kind is not None and kind.group == group else None


def _kept(metadata: ObjectMeta) -> ObjectMeta:
    """The metadata without managedFields and foreign annotations: nobody asks for them, and they are half of it."""
    annotations = metadata.annotations
    if annotations:
        annotations = {key: value for key, value in annotations.items() if key.startswith(OWN_PREFIX)} or None
    return msgspec.structs.replace(metadata, annotations=annotations, managed_fields=msgspec.UNSET)


def slimmer(kind: Kind) -> Callable[[Any], Any]:
    """A function that drops what is never read, and gives list items of a workload kind the kind they lack."""
    if kind.type is Workload:
        return lambda item: msgspec.structs.replace(
            item, kind=kind.name, api_version=kind.api_version, metadata=_kept(item.metadata)
        )
    return lambda item: msgspec.structs.replace(item, metadata=_kept(item.metadata))


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


@cache
def list_decoder(kind: Kind) -> Any:
    """A decoder for a list of a kind, or one page of it: `metadata` and `items`."""
    items: Any = list[kind.type] | None  # type: ignore[name-defined]
    fields = [("metadata", ListMeta, ListMeta()), ("items", items, None)]
    return msgspec.json.Decoder(msgspec.defstruct(f"{kind.name}List", fields))
