"""Between the JSON the store holds and the typed structs that `webhook.k8s` reads."""

from typing import Any, Final, TypeVar

import msgspec

from webhook.k8s import objects
from webhook.k8s.pod_resources import is_best_effort
from webhook.k8s.quantity import QuantityError, parse, parse_amount
from webhook.lab import errors
from webhook.lab.resources import Object, Resource

T = TypeVar("T")

_STRUCTS: Final[dict[str, type[Any]]] = {
    "Pod": objects.Pod,
    "Node": objects.Node,
    "Namespace": objects.Namespace,
    "ResourceQuota": objects.ResourceQuota,
    "LimitRange": objects.LimitRange,
    "PriorityClass": objects.PriorityClass,
    "HorizontalPodAutoscaler": objects.HorizontalPodAutoscaler,
    **dict.fromkeys(
        ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "CronJob"),
        objects.Workload,
    ),
}


_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def read(source: Object | bytes, struct: type[T]) -> T:
    """`source` as a struct. Raises msgspec.ValidationError where a field has the wrong type."""
    decoder = _DECODERS.setdefault(struct, msgspec.json.Decoder(struct))
    found: T = decoder.decode(source if isinstance(source, bytes) else msgspec.json.encode(source))
    return found


def check(resource: Resource, obj: Object) -> None:
    """Refuse an object whose fields have the wrong type, as decoding does. Raises 400."""
    plain = obj
    if resource.kind == "ReplicationController":  # its selector is a plain map
        plain = {**obj, "spec": {k: v for k, v in (obj.get("spec") or {}).items() if k != "selector"}}
    try:
        read(plain, _STRUCTS.get(resource.kind, objects.Namespace))  # of other kinds the metadata
    except (msgspec.ValidationError, TypeError) as error:
        raise undecodable(resource, str(error)) from error


def undecodable(resource: Resource, why: str) -> errors.ApiError:
    """The 400 of an object that does not decode."""
    shown = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    return errors.bad_request(f"{shown}: {why}")


def canonicalize(resource: Resource, parent: Object, key: str) -> None:
    """Spell the quantities of `parent[key]` as the API server stores them (R10, O3). Raises 400."""
    amounts = parent.get(key)
    if not isinstance(amounts, dict):
        return
    for name, value in amounts.items():
        try:
            amounts[name] = str(parse_amount(value))
        except QuantityError as error:
            why = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            raise undecodable(resource, why) from error


def qos_class(pod: Object) -> str:
    """BestEffort, Guaranteed or Burstable, from cpu and memory alone (R14)."""
    spec = pod["spec"]
    try:
        if is_best_effort(read(spec, objects.PodSpec)):
            return "BestEffort"
    except msgspec.ValidationError:
        return "BestEffort"
    guaranteed = True
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        limits = container.get("resources", {}).get("limits") or {}
        requests = container.get("resources", {}).get("requests") or {}
        for name in ("cpu", "memory"):
            if name not in limits or parse(requests.get(name, limits[name])) != parse(limits[name]):
                guaranteed = False
    return "Guaranteed" if guaranteed else "Burstable"
