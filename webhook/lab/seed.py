"""What a fresh lab holds, and how recorded or hand-written objects get into it."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import yaml

from webhook.lab import defaults, errors, resources, strategy
from webhook.lab.call import Call
from webhook.lab.registry import Registry
from webhook.lab.resources import Object, Resource, copied
from webhook.lab.store import Store

SYSTEM_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_SYSTEM_CLASSES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def system_objects(registry: Registry, *, controllers: bool) -> None:
    """The namespaces, classes and accounts every cluster has; without controllers the accounts too."""
    call = Call(manager="kube-apiserver")
    for name in SYSTEM_NAMESPACES:
        registry.create(resources.NAMESPACES, "", {"metadata": {"name": name}}, call)
        if not controllers:
            registry.create(resources.SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}}, call)
    for name, value in _SYSTEM_CLASSES.items():
        registry.create(resources.PRIORITY_CLASSES, "", {"metadata": {"name": name}, "value": value}, call)
    spec = {"ports": [{"name": "https", "port": 443, "targetPort": 6443}], "clusterIP": "10.96.0.1"}
    registry.create(resources.SERVICES, "default", {"metadata": {"name": "kubernetes"}, "spec": spec}, call)


def nodes() -> list[Object]:
    """Three GPU nodes, one per pool, and one without GPUs: the `--nodes seed` of the command."""
    zone = {"topology.kubernetes.io/zone": "local-a"}
    pools = {"inference": ("nvidia-l4", 4), "training": ("nvidia-h100", 6), "research": ("nvidia-t4", 2)}
    return [
        node("cpu-1", zone, {}),
        *(
            node(
                f"gpu-{pool}-1",
                {"gpu.platform/pool": pool, "accelerator": kind, **zone},
                {"nvidia.com/gpu": str(count)},
            )
            for pool, (kind, count) in pools.items()
        ),
    ]


def node(name: str, labels: dict[str, str], extra: dict[str, str]) -> Object:
    """A ready node of 64 cores and 256 GiB with `extra` resources."""
    capacity = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi", **extra}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {},
        "status": {"capacity": capacity, "allocatable": dict(capacity), "conditions": [ready]},
    }


def read(path: Path) -> list[Object]:
    """The objects of a YAML or JSON file, or of every such file directly in a folder. Raises OSError, ValueError."""
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in (".yaml", ".yml", ".json"))
        return [obj for file in files for obj in read(file)]
    try:
        documents = [d for d in yaml.load_all(path.read_bytes(), Loader=_LOADER) if isinstance(d, dict)]
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    return list(flattened(documents))


_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def flattened(objects: Iterable[Object]) -> Iterator[Object]:
    """The objects, with Lists taken apart."""
    for obj in objects:
        if obj.get("kind", "").endswith("List") and isinstance(obj.get("items"), list):
            yield from flattened(obj["items"])
        else:
            yield obj


def resource_of(obj: Object) -> Resource:
    """Raises 404 for a kind the lab does not serve."""
    resource = resources.of_kind(obj.get("apiVersion", ""), obj.get("kind", ""))
    if resource is None:
        shown = f'no matches for kind "{obj.get("kind", "")}" in version "{obj.get("apiVersion", "")}"'
        raise errors.ApiError(404, "NotFound", shown)
    return resource


def load(store: Store, objects: Iterable[Object]) -> None:
    """Store objects as they are, without admission; identity and defaults are filled in where they lack."""
    with store.lock:
        for original in flattened(objects):
            obj = copied(original)
            resource = resource_of(obj)
            _complete(resource, obj)
            metadata = obj["metadata"]
            if store.get(resource, metadata.get("namespace", ""), metadata["name"]):
                store.update(resource, obj)
            else:
                store.create(resource, obj)


def _complete(resource: Resource, obj: Object) -> None:
    metadata = obj["metadata"]
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    if "uid" in metadata:
        defaults.set_defaults(resource, obj)
        return
    status = obj.get("status")
    defaults.set_defaults(resource, obj)
    strategy.prepare_create(resource, obj)
    if status:
        obj["status"] = status


def create(registry: Registry, obj: Object, call: Call) -> Object:
    """Create through the whole chain; the namespace is the object's own or `default`. Raises ApiError."""
    resource = resource_of(obj)
    namespace = obj.get("metadata", {}).get("namespace", "default") if resource.namespaced else ""
    return registry.create(resource, namespace, obj, call)


def wait(store: Store, condition: Callable[[], object], seconds: float) -> None:
    """Raises TimeoutError if the condition does not come true."""
    if not store.wait_until(condition, seconds):
        raise TimeoutError(f"the lab did not reach the awaited state within {seconds:g} s")
