"""Who wrote which field: `metadata.managedFields`, kept so far that O2 and `kubectl --show-managed-fields` work."""

import json
from collections.abc import Iterator
from typing import Any, Final

from webhook.lab.resources import Object

Path = tuple[str, ...]

_LIST_KEYS: Final = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port", "protocol"),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
    "webhooks": ("name",),
}
_SET_LISTS: Final = ("finalizers",)
_ATOMIC: Final = ("selector", "requiredDuringSchedulingIgnoredDuringExecution", "hard", "used", "capacity")
_WITHOUT_DOT: Final = (
    "metadata", "spec", "status", "template", "jobTemplate", "containers", "strategy", "updateStrategy",
)  # fmt: skip
"""Fields that are structs in Go and so are never listed themselves (compare the recorded reviews)."""
_UNTRACKED: Final = {
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields",
    "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink",
}  # fmt: skip


def record(obj: Object, old: Object | None, *, manager: str, operation: str, subresource: str, time: str) -> None:
    """Credit `manager` with every field of `obj` that differs from `old`, and take it from the others."""
    new_paths = paths(obj)
    changed = set(new_paths) if old is None else _changed(new_paths, paths(old))
    if operation == "Apply":  # an applied configuration is credited whole
        changed = set(new_paths)
    entries = [dict(entry) for entry in ((old or {}).get("metadata", {}).get("managedFields") or [])]
    own: Object | None = None
    kept = []
    for entry in entries:
        mine = entry.get("manager") == manager and entry.get("operation") == operation
        if mine and entry.get("subresource", "") == subresource:
            own = entry
            continue
        owned = {p for p in _flat(entry.get("fieldsV1", {})) if _owned(p, new_paths)} - changed
        if owned:
            kept.append({**entry, "fieldsV1": _tree(owned)})
    mine_before = {p for p in _flat(own["fieldsV1"]) if _owned(p, new_paths)} if own else set()
    if changed or mine_before:
        entry = {"manager": manager, "operation": operation, "apiVersion": obj["apiVersion"]}
        entry |= {"time": time if changed or not own else own["time"], "fieldsType": "FieldsV1"}
        entry["fieldsV1"] = _tree(changed | mine_before)
        kept.append(entry | ({"subresource": subresource} if subresource else {}))
    obj["metadata"]["managedFields"] = kept


def _owned(path: Path, present: dict[Path, Any]) -> bool:
    return path in present


def _changed(new: dict[Path, Any], old: dict[Path, Any]) -> set[Path]:
    return {path for path, value in new.items() if path not in old or old[path] != value}


def paths(obj: Object) -> dict[Path, Any]:
    """Every field of an object as FieldsV1 steps, with its value where it is a leaf (None where it is not)."""
    found: dict[Path, Any] = {}
    for key, value in obj.items():
        if key in ("kind", "apiVersion"):
            continue
        if key == "metadata":
            value = {k: v for k, v in value.items() if k not in _UNTRACKED}
        found.update(_walk((f"f:{key}",), key, value))
    return found


def _walk(path: Path, name: str, value: Any) -> Iterator[tuple[Path, Any]]:
    if name in _ATOMIC or not isinstance(value, dict | list) or not value:
        if name not in ("metadata", "status") or value:
            yield path, value
    elif isinstance(value, dict):
        if name not in _WITHOUT_DOT:
            yield (*path, "."), None
        for key, child in value.items():
            yield from _walk((*path, f"f:{key}"), key, child)
    else:
        yield from _walk_list(path, name, value)


def _walk_list(path: Path, name: str, items: list[Any]) -> Iterator[tuple[Path, Any]]:
    keys = _LIST_KEYS.get(name)
    if name in _SET_LISTS:
        yield (*path, "."), None
        for item in items:
            yield (*path, f"v:{json.dumps(item)}"), None
    elif keys is None or not all(isinstance(item, dict) for item in items):
        yield path, items
    else:
        if name not in _WITHOUT_DOT:
            yield (*path, "."), None
        for item in items:
            identity = {key: item[key] for key in keys if key in item}
            step = f"k:{json.dumps(identity, separators=(',', ':'), sort_keys=True)}"
            yield (*path, step, "."), None
            if name != "ownerReferences":
                for key, child in item.items():
                    yield from _walk((*path, step, f"f:{key}"), key, child)


def _tree(leaves: set[Path]) -> Object:
    root: Object = {}
    for path in sorted(leaves):
        node = root
        for step in path:
            node = node.setdefault(step, {})
    return root


def _flat(tree: Object, prefix: Path = ()) -> Iterator[Path]:
    for step, child in tree.items():
        if child:
            yield from _flat(child, (*prefix, step))
        else:
            yield (*prefix, step)
