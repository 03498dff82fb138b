"""The patch types of the API: JSON patch, JSON merge patch, strategic merge patch, and apply as a merge."""

import json
from collections.abc import Callable
from typing import Any, Final

import jsonpatch
import jsonpointer
import yaml

from webhook.lab import errors
from webhook.lab.resources import Object, copied

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

_MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "secrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "webhooks": "name",
    "matchConditions": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "conditions": "type",
    "addresses": "type",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
}
"""List -> the key its items are merged by; any other list of objects is replaced whole (N18)."""

_SETS: Final = ("finalizers",)
"""Lists of plain values that are merged as sets."""


def _merge_key(name: str, items: list[Any]) -> str | None:
    if name == "ports":  # a Service's ports are keyed by port, a container's by containerPort
        return "containerPort" if any("containerPort" in item for item in items if isinstance(item, dict)) else "port"
    return _MERGE_KEYS.get(name)


def apply(content_type: str, body: bytes, target: Object) -> Object:
    """`target` with the patch of a PATCH request applied; `target` is not changed. Raises 400, 415, 422."""
    document = parse(content_type, body)
    patched: Object = _BY_TYPE[content_type](copied(target), document)
    return patched


def parse(content_type: str, body: bytes) -> Any:
    """The patch document. Raises 415 for a type we do not serve, 400 for one that does not parse."""
    if content_type not in _BY_TYPE:
        supported = ", ".join(_BY_TYPE)
        message = f"the body of the request was in an unknown format - accepted media types include: {supported}"
        raise errors.ApiError(415, "UnsupportedMediaType", message)
    try:
        return yaml.safe_load(body) if content_type == APPLY_PATCH else json.loads(body)
    except (ValueError, yaml.YAMLError) as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error


def _json_patch(target: Object, operations: Any) -> Object:
    try:
        return apply_operations(target, operations)
    except PatchError as error:
        reason = "the server rejected our request due to an error in our request"
        raise errors.ApiError(422, "Invalid", f"{reason}: {error}") from error


class PatchError(Exception):
    """A JSON patch did not apply; the message is the API server's own (V20, O6)."""


def apply_operations(target: Object, operations: Any) -> Object:
    """Apply RFC 6902 operations strictly, one by one; `target` is changed. Raises PatchError."""
    patched: Any = target
    for operation in operations if isinstance(operations, list) else [operations]:
        try:
            patched = jsonpatch.JsonPatch([operation]).apply(patched, in_place=True)
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError) as error:
            raise PatchError(_failure(operation, error)) from error
    if not isinstance(patched, dict):
        raise PatchError("the patched document is not an object")
    return patched


def _failure(operation: Any, error: Exception) -> str:
    if not isinstance(operation, dict) or operation.get("op") not in ("add", "remove", "replace", "test"):
        return f"Unexpected kind: {error}"
    kind, path = operation["op"], str(operation.get("path", ""))
    key = path.rpartition("/")[2]
    if kind == "test":
        return f"testing value {path} failed: test failed"
    if kind == "remove" and "non-existent" in str(error):
        return f"remove operation does not apply: doc is missing key: {key}: missing value"
    return f'{kind} operation does not apply: doc is missing path: "{path}": missing value'


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396: null deletes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic_merge(target: Any, patch: Any) -> Any:
    """Kubernetes' own merge: lists with a merge key merge by it, `$`-directives steer it."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    merged: Object = dict(target) if isinstance(target, dict) else {}
    _retain_keys(merged, patch)
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            merged[field] = [item for item in merged.get(field) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, list):
            merged[key] = _merge_list(key, merged.get(key) or [], value, patch.get(f"$setElementOrder/{key}"))
        else:
            merged[key] = strategic_merge(merged.get(key), value)
    for key, order in patch.items():
        if key.startswith("$setElementOrder/"):
            _reorder(merged, key.partition("/")[2], order)
    return merged


def _retain_keys(merged: Object, patch: Object) -> None:
    retained = patch.get("$retainKeys")
    if retained is not None:
        for key in [key for key in merged if key not in retained]:
            del merged[key]


def _merge_list(name: str, old: list[Any], new: list[Any], order: list[Any] | None) -> list[Any]:
    if name in _SETS or (order is not None and not any(isinstance(item, dict) for item in [*old, *new])):
        return [*old, *(item for item in new if item not in old)]
    key = _merge_key(name, [*old, *new])
    items = [item for item in new if not (isinstance(item, dict) and set(item) == {"$patch"})]
    if key is None or len(items) < len(new):  # atomic, or a lone {"$patch": "replace"} among the items
        return items
    merged = [dict(item) for item in old]
    for item in items:
        place = next((i for i, held in enumerate(merged) if held.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if place is not None:
                del merged[place]
        elif place is None:
            merged.append(strategic_merge({}, item))
        else:
            merged[place] = strategic_merge(merged[place], item)
    return merged


def _reorder(merged: Object, name: str, order: list[Any]) -> None:
    """Items named by `$setElementOrder` come in its order; others keep their place after the one before them."""
    items = merged.get(name)
    if not items:
        return
    key = _merge_key(name, items) if isinstance(items[0], dict) else None
    identity: Callable[[Any], Any] = (lambda item: item.get(key)) if key else (lambda item: item)
    wanted = [identity(item) if isinstance(item, dict) else item for item in order]
    places = {value: index for index, value in enumerate(wanted)}
    rank, ranked = -1, []
    for item in items:
        rank = places.get(identity(item), rank)
        ranked.append((rank, item))
    merged[name] = [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


_BY_TYPE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    JSON_PATCH: _json_patch,
    MERGE_PATCH: merge,
    STRATEGIC_MERGE_PATCH: strategic_merge,
    APPLY_PATCH: strategic_merge,
}
