"""ResourceQuotas as the dashboard sums them up: hard and used per namespace, and keys that do nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webhook.k8s.objects import Quantities, ResourceQuota
from webhook.k8s.pod_resources import is_extended
from webhook.k8s.quantity import Quantity, QuantityError, parse

_NOT_PREFIXES = ("requests.", "limits.", "count/")


@dataclass(frozen=True)
class Limit:
    """What quotas say about one key of one namespace."""

    hard: Quantity
    used: Quantity | None
    """None where `status.used` lacks the key (Q6)."""


def limits_of(quotas: Iterable[ResourceQuota]) -> dict[str, Limit]:
    """Quota key -> limit of one namespace, from `status` (Q4).

    Quotas are never pooled: of several that count all pods the smallest rules (Q10). Scoped quotas each see a part of
    the pods (Q11), so they are added up, and only where no quota counts them all.
    """
    everywhere: dict[str, Limit] = {}
    scoped: dict[str, Limit] = {}
    for quota in quotas:
        is_scoped = bool(quota.spec.scopes or quota.spec.scope_selector)
        for key, limit in _limits(quota.status.hard, quota.status.used).items():
            known = (scoped if is_scoped else everywhere).get(key)
            if is_scoped:
                scoped[key] = limit if known is None else _added(known, limit)
            elif known is None or limit.hard < known.hard:
                everywhere[key] = limit
    return {**scoped, **everywhere}


def _limits(hard: Quantities | None, used: Quantities | None) -> dict[str, Limit]:
    found = {}
    for key, value in (hard or {}).items():
        amount = number(value)
        if amount is not None:
            found[key] = Limit(amount, number((used or {}).get(key)))
    return found


def _added(one: Limit, other: Limit) -> Limit:
    used = None if one.used is None or other.used is None else one.used + other.used
    return Limit(one.hard + other.hard, used)


def number(value: Any) -> Quantity | None:
    """The quantity, or None for one that is absent or that Kubernetes would refuse."""
    try:
        return None if value is None else parse(value)
    except QuantityError:
        return None


def ineffective_keys(quota: ResourceQuota) -> list[tuple[str, str]]:
    """(key, resource) of keys that Kubernetes accepts and never counts: extended resources without `requests.` (Q2)."""
    found = []
    for key in quota.spec.hard or {}:
        resource = key.removeprefix("limits.")
        if (key.startswith("limits.") or not key.startswith(_NOT_PREFIXES)) and is_extended(resource):
            found.append((key, resource))
    return found


def is_computed(quota: ResourceQuota) -> bool:
    """Whether the quota controller has filled the status; until then nothing is enforced (Q5)."""
    return bool(quota.status.hard) or not quota.spec.hard


def by_namespace(quotas: Iterable[ResourceQuota]) -> Mapping[str, Sequence[ResourceQuota]]:
    grouped: dict[str, list[ResourceQuota]] = {}
    for quota in quotas:
        grouped.setdefault(quota.metadata.namespace, []).append(quota)
    return grouped
