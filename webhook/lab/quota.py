"""ResourceQuota at work: the refusal and the charge when an object is stored, and the controller's recount."""

import time
from collections.abc import Iterable
from typing import Final

from webhook.k8s import objects
from webhook.k8s import quota as k8s_quota
from webhook.k8s.quantity import Quantity, canonical, counts_bytes, parse, whole
from webhook.lab import errors, resources, typed
from webhook.lab.resources import Object, Resource, copied
from webhook.lab.store import Store

_SHORT_COUNTS: Final = (
    "configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services",
)  # fmt: skip
"""Kinds whose objects can also be counted by their bare plural."""


def admit_create(store: Store, resource: Resource, obj: Object) -> list[Object]:
    """The namespace's quotas with this object charged; call it under the store's lock. Raises 403 (Q9, Q18)."""
    quotas = _quotas(store, obj)
    if not quotas:
        return []
    if resource is resources.PODS:
        pod = typed.read(obj, objects.Pod)
        demand = k8s_quota.Demand(k8s_quota.pod_use(pod))
        return _admit_pod(quotas, obj, demand, None, pod.spec)
    return _admit_count(quotas, resource, obj)


def admit_update(store: Store, resource: Resource, obj: Object, old: Object, sub: str) -> list[Object]:
    """Of updates, only a pod that enters or leaves the Terminating scope is charged (Q23). Raises 403."""
    if resource is not resources.PODS or sub or obj["spec"] == old["spec"]:
        return []
    new_use, old_use = (k8s_quota.pod_use(typed.read(each, objects.Pod)) for each in (obj, old))
    if new_use.terminating == old_use.terminating:
        return []
    new, before = k8s_quota.Demand(new_use), k8s_quota.Demand(old_use)
    return _admit_pod(_quotas(store, obj), obj, new, before, None)


def _quotas(store: Store, obj: Object) -> list[Object]:
    namespace = obj["metadata"].get("namespace", "")
    return store.objects(resources.RESOURCE_QUOTAS, namespace) if namespace else []


def _admit_pod(
    quotas: list[Object],
    pod: Object,
    new: k8s_quota.Demand,
    old: k8s_quota.Demand | None,
    spec: objects.PodSpec | None,
) -> list[Object]:
    structs = [typed.read(each, objects.ResourceQuota) for each in quotas]
    refusals = k8s_quota.check(structs, new, old, spec)
    if refusals:
        name = pod["metadata"]["name"]
        text = k8s_quota.message(refusals[0], name).partition(" is forbidden: ")[2]
        raise errors.forbidden(resources.PODS, name, text)
    charged = []
    for quota, struct in zip(quotas, structs, strict=True):
        more = k8s_quota.increase(struct, new, old)
        if more:
            charged.append(_charged(quota, more))
    return charged


def _charged(quota: Object, more: dict[str, Quantity]) -> Object:
    raised = copied(quota)
    used = raised["status"]["used"]
    for key, amount in more.items():
        used[key] = _spelled(key, parse(used[key]) + amount)
    return raised


def _count_keys(resource: Resource) -> tuple[str, ...]:
    key = f"count/{resource.qualified}"
    return (key, resource.plural) if resource.plural in _SHORT_COUNTS and not resource.group else (key,)


def _admit_count(quotas: list[Object], resource: Resource, obj: Object) -> list[Object]:
    """Object counts (Q24)."""
    charged = []
    for quota in quotas:
        hard, used = (quota["status"].get(key) or {} for key in ("hard", "used"))
        keys = [key for key in _count_keys(resource) if key in hard]
        over = [key for key in keys if parse(used.get(key, "0")) + 1 > parse(hard[key])]
        if over:
            texts = [",".join(f"{key}={values.get(key, '0')}" for key in sorted(over)) for values in (used, hard)]
            asked = ",".join(f"{key}=1" for key in sorted(over))
            name = quota["metadata"]["name"]
            why = f"exceeded quota: {name}, requested: {asked}, used: {texts[0]}, limited: {texts[1]}"
            raise errors.forbidden(resource, obj["metadata"]["name"], why)
        if keys:
            charged.append(_charged(quota, dict.fromkeys(keys, 1)))
    return charged


def status(store: Store, quota: Object) -> Object:
    """What the quota controller writes: `hard` as specified, `used` counted afresh (Q19-Q21)."""
    struct = typed.read(quota, objects.ResourceQuota)
    namespace = quota["metadata"]["namespace"]
    uses = (k8s_quota.pod_use(typed.read(r.raw, objects.Pod)) for r in store.records(resources.PODS, namespace))
    used = k8s_quota.used(struct, uses, time.time())
    used |= _counts(store, namespace, struct.spec.hard or {})
    return {
        "hard": dict(struct.spec.hard or {}),
        "used": {key: _spelled(key, amount) for key, amount in used.items()},
    }


def _counts(store: Store, namespace: str, hard: Iterable[str]) -> dict[str, Quantity]:
    wanted = set(hard)
    counted: dict[str, Quantity] = {}
    for resource in resources.RESOURCES:
        if resource is resources.PODS:
            continue
        for key in wanted.intersection(_count_keys(resource)):
            counted[key] = len(store.records(resource, namespace))
    return counted


def _spelled(key: str, amount: Quantity) -> str:
    return canonical(whole(amount), "1Gi" if counts_bytes(key) else "1")
