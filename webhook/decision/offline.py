"""Manifests -> requests as a real API server would send them, and what an admitted object then uses of its quotas."""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.decision.facts import Facts
from webhook.decision.request import Phase, Request, User, decision_id
from webhook.k8s import limit_range, priority, quota, workloads
from webhook.k8s.objects import Pod, PodSpec, PriorityClass, Workload
from webhook.k8s.quantity import Quantity
from webhook.k8s.quota import Demand
from webhook.k8s.workloads import WorkloadKind

Manifest = dict[str, Any]

_DERIVED = frozenset({"priority", "preemptionPolicy"})
"""Fields whose null must stay visible (P7, V20); every other null reads as absent (B14)."""


class ManifestError(ValueError):
    """A manifest that the API server could not decode; the text names kind, name and place."""


def kind_of(manifest: Manifest) -> WorkloadKind | None:
    """The row of a manifest that we judge, None for every other kind."""
    return workloads.by_kind(str(manifest.get("kind")), workloads.group_of(str(manifest.get("apiVersion") or "")))


def namespace_of(manifest: Manifest, namespace: str = "") -> str:
    """Where kubectl would put a manifest: its own namespace, else the given one, else `default`."""
    metadata = manifest.get("metadata")
    own = metadata.get("namespace") if isinstance(metadata, dict) else None
    return str(own or namespace or "default")


def request_of(
    manifest: Manifest,
    facts: Facts,
    *,
    user: User,
    now: float,
    namespace: str = "",
    phase: Phase = "mutate",
    old: Manifest | None = None,
) -> tuple[Request, Manifest]:
    """The request that creates a manifest (or, with `old`, updates it), and the manifest with the API's defaults.

    Its uid is the hex SHA-256 of the manifest's canonical JSON, so the same input always has the same decision id.
    Raises ManifestError for what the API server could not decode, and for kinds that we do not judge.
    """
    row = kind_of(manifest)
    if row is None:
        raise ManifestError(f"{manifest.get('kind')}: not a kind that is judged")
    place = namespace_of(manifest, namespace)
    new, stored = _admitted(row, manifest, place, facts)
    before, stored_before = _admitted(row, old, place, facts) if old is not None else (None, None)
    uid = uid_of(manifest)
    return Request(
        id=decision_id(uid, phase),
        uid=uid,
        phase=phase,
        operation="CREATE" if old is None else "UPDATE",
        group=row.group,
        version=row.version,
        kind=row.kind,
        resource=row.resource,
        now=now,
        namespace=place,
        name=new.metadata.name,
        user=user,
        object=new,
        old_object=before,
        raw_object=msgspec.json.encode(stored) if stored_before is not None else None,
        raw_old_object=msgspec.json.encode(stored_before) if stored_before is not None else None,
    ), stored


def uid_of(manifest: Manifest) -> str:
    """The hex SHA-256 of the manifest's canonical JSON."""
    return hashlib.sha256(canonical(manifest).encode()).hexdigest()


def canonical(manifest: Manifest) -> str:
    """JSON with sorted keys and without blanks."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def typed(row: WorkloadKind, manifest: Manifest) -> Pod | Workload:
    """The struct of a manifest. Raises ManifestError."""
    type_: type[Pod] | type[Workload] = Pod if row.kind == "Pod" else Workload
    try:
        # Through JSON, because that is what the structs are made for: Raw fields, tuples, nulls.
        return msgspec.json.decode(msgspec.json.encode(_without_nulls(manifest)), type=type_)
    except (msgspec.MsgspecError, RecursionError) as error:
        metadata = manifest.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        raise ManifestError(f"{row.kind} {name or '(without a name)'}: {error}") from error


def charges(admitted: Manifest, facts: Facts, namespace: str) -> Mapping[str, Mapping[str, Quantity]]:
    """What the pods of an admitted object will use, by quota name and quota key, once all of them run."""
    row = kind_of(admitted)
    if row is None:
        return {}
    found = typed(row, admitted)
    if isinstance(found, Pod):
        spec, pods = found.spec, 1
    else:
        template = workloads.template_of(found)
        spec, pods = template.spec if template else None, workloads.pods_wanted(row.kind, found) or 0
    if spec is None or not pods:
        return {}
    spec = limit_range.apply(spec, facts.limit_ranges(namespace) or ())
    use = quota.spec_use(spec, priority.class_of_pods(spec, facts.priority_classes() or {}))
    return {each.metadata.name: quota.increase(each, Demand(use, pods)) for each in facts.quotas(namespace) or ()}


# -- what the API server does before admission ------------------------------------------------------------------------


def _admitted(row: WorkloadKind, manifest: Manifest, namespace: str, facts: Facts) -> tuple[Pod | Workload, Manifest]:
    """The object as our webhook would first see it: typed, and as JSON."""
    stored = copy.deepcopy(manifest)
    metadata = stored.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise ManifestError(f"{row.kind}: metadata is not a mapping")
    metadata["namespace"] = namespace
    found = typed(row, stored)
    if isinstance(found, Pod):
        _default_pod(stored, found, facts, namespace)
    else:
        _default_workload(row.kind, stored, found)
    return typed(row, stored), stored


def _default_workload(kind: str, stored: Manifest, found: Workload) -> None:
    """Replicas, strategy, parallelism, completions, suspend (W1, W2, W11); templates get none of a pod's (A12)."""
    spec = stored.get("spec")
    if not isinstance(spec, dict):
        return
    defaulted = msgspec.to_builtins(workloads.defaulted(kind, msgspec.structs.replace(found, kind=kind)).spec)
    for key in ("replicas", "strategy", "parallelism", "completions", "suspend", "concurrencyPolicy"):
        if spec.get(key) is None and defaulted.get(key) is not None:
            spec[key] = defaulted[key]
        elif key == "strategy" and key in defaulted:
            spec[key] = {**spec[key], **defaulted[key]}


def _default_pod(stored: Manifest, found: Pod, facts: Facts, namespace: str) -> None:
    """Requests from limits (R1), LimitRange amounts (A13), class and priority of a pod that names none (P2)."""
    spec = stored.get("spec")
    if not isinstance(spec, dict) or found.spec is None:
        return
    filled = limit_range.apply(found.spec, facts.limit_ranges(namespace) or ())
    for key, containers in (("containers", filled.containers), ("initContainers", filled.init_containers)):
        for raw, container in zip(_mappings(spec.get(key)), containers or (), strict=False):
            resources = container.resources
            if resources is not None and (resources.requests or resources.limits):
                requests = {**(resources.limits or {}), **(resources.requests or {})}
                raw["resources"] = {**(raw.get("resources") or {}), "requests": requests}
                if resources.limits:
                    raw["resources"]["limits"] = dict(resources.limits)
    _default_priority(spec, found.spec, facts.priority_classes())


def _default_priority(raw: Manifest, spec: PodSpec, classes: Mapping[str, PriorityClass] | None) -> None:
    try:
        given = priority.admit(spec, classes or {})
    except priority.PriorityError:
        return  # the API server refuses the pod before it asks us; review judges it all the same
    if given.class_name:
        raw["priorityClassName"] = given.class_name
    if classes is not None:
        raw["priority"], raw["preemptionPolicy"] = given.priority, given.preemption_policy


def _mappings(value: Any) -> Sequence[Manifest]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None or k in _DERIVED}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
