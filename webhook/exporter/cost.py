"""What GPUs cost: allocated, requested but pending, and idle, by namespace, team, pool and GPU type."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from webhook.exporter.gpu_pods import CountedPod, gpu_type
from webhook.exporter.wording import both
from webhook.policy.model import PricingSpec

WHOLE_GPU = "nvidia.com/gpu"
"""The resource of the quotas that the dashboard sums up, and the only one that DCGM's utilisation speaks of."""


@dataclass(frozen=True)
class GpuSample:
    """Utilisation of one GPU as a Prometheus that scrapes DCGM reports it, 0 to 100 before any clamping."""

    value: float
    namespace: str = ""
    pod: str = ""
    is_slice: bool = False
    """A MIG instance: its utilisation says nothing about a whole GPU."""


@dataclass(frozen=True)
class Utilisation:
    """What is known about how busy GPUs are. Without a source, or when it failed, nothing is known."""

    source: Literal["none", "prometheus"] = "none"
    samples: tuple[GpuSample, ...] = ()
    error: str = ""


def samples_of(series: Iterable[Mapping[str, Any]]) -> tuple[GpuSample, ...]:
    """Samples of a Prometheus instant vector of DCGM_FI_DEV_GPU_UTIL, one per GPU (B67).

    The same GPU may appear with `namespace` and with `exported_namespace` in one scrape: it counts once, and the
    exported label wins, because the plain one then names the namespace of the DCGM exporter itself.
    """
    best: dict[tuple[str, ...], tuple[bool, GpuSample]] = {}
    for number, one in enumerate(series):
        labels: Mapping[str, str] = one.get("metric") or {}
        exported = "exported_namespace" in labels or "exported_pod" in labels
        sample = GpuSample(
            value=_float((one.get("value") or (0, "NaN"))[1]),
            namespace=labels.get("exported_namespace", "") if exported else labels.get("namespace", ""),
            pod=labels.get("exported_pod", "") if exported else labels.get("pod", ""),
            is_slice=bool(labels.get("GPU_I_ID") or labels.get("GPU_I_PROFILE")),
        )
        key = _identity(labels) or (str(number),)
        if key not in best or (exported and not best[key][0]):
            best[key] = (exported, sample)
    return tuple(sample for _, sample in best.values())


def _identity(labels: Mapping[str, str]) -> tuple[str, ...]:
    """What makes a GPU the same GPU: its UUID, else its host and index; a MIG instance has its own id."""
    device = (labels.get("UUID", ""),) if labels.get("UUID") else (labels.get("Hostname", ""), labels.get("gpu", ""))
    return (*device, labels.get("GPU_I_ID", "")) if any(device) else ()


def _float(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def price_of(pricing: PricingSpec, resource: str, labels: Mapping[str, str]) -> float | None:
    """Price per hour of one of `resource` on a node with these labels.

    Slices and shares have no price of their own unless `byNodeLabel` names it: a quarter GPU is never billed as one
    (B68). None means "has no price".
    """
    for entry in pricing.by_node_label:
        if labels.get(entry.label) == entry.value and resource in entry.price:
            return entry.price[resource]
    return None if is_part_of_gpu(resource) else pricing.default


def is_part_of_gpu(resource: str) -> bool:
    """Whether one of `resource` is less than a whole GPU (MIG slices, time-sliced shares)."""
    return "/mig-" in resource or resource.endswith(".shared")


@dataclass
class _Share:
    """How much of a pod's GPUs has a known utilisation."""

    known: float = 0.0
    busy: float = 0.0


@dataclass
class Attribution:
    """Samples laid on pods: (namespace, pod) -> share; the rest belongs to nobody, which is never a guess (B68)."""

    shares: dict[tuple[str, str], _Share] = field(default_factory=dict)
    unattributed: int = 0
    clamped: int = 0


def attribute(samples: Sequence[GpuSample], pods: Sequence[CountedPod]) -> Attribution:
    """Lay each sample on the pod that it names, else on a pod of the namespace that it names, else on nobody."""
    result = Attribution()
    room = {(p.namespace, p.name): float(p.gpus[WHOLE_GPU]) for p in pods if p.node and WHOLE_GPU in p.gpus}
    by_namespace: dict[str, list[tuple[str, str]]] = {}
    for key in room:
        by_namespace.setdefault(key[0], []).append(key)
    for sample in sorted(samples, key=lambda s: (s.namespace, s.pod) not in room):  # pods that are named go first
        if math.isnan(sample.value):
            continue
        named = (sample.namespace, sample.pod)
        candidates = [named] if named in room else by_namespace.get(sample.namespace, [])
        place = next((key for key in candidates if room[key] >= 1), None)
        if sample.is_slice or place is None:
            result.unattributed += 1
            continue
        value = min(max(sample.value, 0.0), 100.0)
        result.clamped += value != sample.value
        share = result.shares.setdefault(place, _Share())
        share.known += 1
        share.busy += value / 100
        room[place] -= 1
    return result


@dataclass
class _Sum:
    """One row of the cost table; all amounts per hour."""

    gpus: float = 0.0
    pending_gpus: float = 0.0
    allocated: float = 0.0
    pending: float = 0.0
    idle: float = 0.0
    unknown: float = 0.0
    known_gpus: float = 0.0
    busy_gpus: float = 0.0

    def row(self) -> dict[str, Any]:
        """As JSON. What is not known is the word "unknown", never a number (B68)."""
        known = self.known_gpus > 0
        nothing = self.gpus == 0
        return {
            "gpus": tidy(self.gpus),
            "pendingGpus": tidy(self.pending_gpus),
            "allocatedPerHour": tidy(self.allocated),
            "pendingPerHour": tidy(self.pending),
            "idlePerHour": tidy(self.idle) if known or nothing else "unknown",
            "unknownPerHour": tidy(self.unknown),
            "utilisation": tidy(self.busy_gpus / self.known_gpus) if known else "unknown",
        }


@dataclass(frozen=True)
class Costs:
    """The `cost` object of the status, and the summary's upper bound of what idles."""

    document: dict[str, Any]
    idle_upper_bound: float


def costs_of(
    pods: Sequence[CountedPod],
    pricing: PricingSpec,
    utilisation: Utilisation,
    requested: Mapping[str, float],
    pool_label: str,
) -> Costs:
    """Cost of all GPU pods. `requested`: team namespace -> whole GPUs in its quota's `used`, for the upper bound."""
    attribution = attribute(utilisation.samples, pods)
    tables: dict[str, dict[str, _Sum]] = {"byNamespace": {}, "byTeam": {}, "byPool": {}, "byGpuType": {}}
    total, unpriced = _Sum(), set[str]()
    upper: dict[str, float] = {}
    counted: dict[str, float] = {}
    for pod in pods:
        for resource, amount in pod.gpus.items():
            price = price_of(pricing, resource, pod.node_labels)
            if price is None:
                unpriced.add(resource)
                continue
            share = attribution.shares.get((pod.namespace, pod.name)) if resource == WHOLE_GPU else None
            sums = [total, *(tables[t].setdefault(k, _Sum()) for t, k in _keys(pod, resource, pool_label))]
            for one in sums:
                _add(one, pod, float(amount), price, share)
            if resource == WHOLE_GPU and pod.namespace in requested:
                counted[pod.namespace] = counted.get(pod.namespace, 0.0) + float(amount)
                busy = share.busy if share else 0.0
                upper[pod.namespace] = upper.get(pod.namespace, 0.0) + price * max(float(amount) - busy, 0.0)
    for namespace, gpus in requested.items():
        # what quota still charges beyond the pods we see (deletions under way, claims) is idle at the default price
        missing = max(gpus - counted.get(namespace, 0.0), 0.0)
        upper[namespace] = upper.get(namespace, 0.0) + missing * pricing.default
    document = {
        "currency": pricing.currency,
        "defaultPerGpuHour": pricing.default,
        "utilisationSource": utilisation.source,
        "total": total.row(),
        **{name: _rows(table) for name, table in tables.items()},
        "unattributedGpus": attribution.unattributed,
        "clampedValues": attribution.clamped,
        "flags": _flags(attribution, utilisation, unpriced),
    }
    return Costs(document, tidy(sum(upper.values())))


def _keys(pod: CountedPod, resource: str, pool_label: str) -> tuple[tuple[str, str], ...]:
    kind = gpu_type(pod.node_labels) or resource
    pool = pod.node_labels.get(pool_label, "")
    return (("byNamespace", pod.namespace), ("byTeam", pod.team), ("byPool", pool), ("byGpuType", kind))


def _add(row: _Sum, pod: CountedPod, amount: float, price: float, share: _Share | None) -> None:
    if not pod.node:
        row.pending_gpus += amount
        row.pending += amount * price
        return
    known, busy = (share.known, share.busy) if share else (0.0, 0.0)
    row.gpus += amount
    row.allocated += amount * price
    row.idle += max(known - busy, 0.0) * price
    row.unknown += (amount - known) * price
    row.known_gpus += known
    row.busy_gpus += busy


def _rows(table: Mapping[str, _Sum]) -> list[dict[str, Any]]:
    """The most expensive first."""
    order = sorted(table.items(), key=lambda item: (-(item[1].allocated + item[1].pending), item[0]))
    return [{"name": name, **row.row()} for name, row in order]


def _flags(attribution: Attribution, utilisation: Utilisation, unpriced: Iterable[str]) -> list[dict[str, str]]:
    """What a reader must know about the quality of these figures."""
    flags = [{"code": "unpriced", **both("resource-unpriced", resource=resource)} for resource in sorted(unpriced)]
    if attribution.clamped:
        flags.append({"code": "clamped", **both("utilisation-clamped", count=attribution.clamped)})
    if attribution.unattributed:
        flags.append({"code": "unattributed", **both("utilisation-unattributed", count=attribution.unattributed)})
    if utilisation.error:
        flags.append({"code": "failed", **both("utilisation-failed", message=utilisation.error)})
    return flags


def tidy(value: float) -> float | int:
    """Two decimals, and no decimals where there are none."""
    rounded = round(float(value), 2)
    return int(rounded) if rounded == int(rounded) else rounded
