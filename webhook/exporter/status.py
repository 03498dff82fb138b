"""The dashboard data of DESIGN 5.6, computed from one view of the cluster and the aggregates of the audit streams."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from webhook.exporter.cost import WHOLE_GPU, Utilisation, costs_of, tidy
from webhook.exporter.decisions import Tally
from webhook.exporter.events import CREATING, REASONS, SCHEDULING, EventTally, occurrences, stop_of, time_of
from webhook.exporter.exceptions import exceptions_of
from webhook.exporter.findings import findings_of, outside_policy
from webhook.exporter.gates import STUCK_SECONDS, gates_of
from webhook.exporter.gpu_pods import TEAM_LABEL, CountedPod, Owners, counted_pods
from webhook.exporter.missing import missing_records
from webhook.exporter.quotas import Limit, by_namespace, limits_of, number
from webhook.exporter.view import ClusterView, Event
from webhook.exporter.wanted import committed_gpus
from webhook.exporter.wording import both
from webhook.k8s.objects import Node
from webhook.k8s.quantity import canonical
from webhook.policy.active import Policy
from webhook.policy.model import PricingSpec
from webhook.policy.registration import NAMESPACE_LABEL

SCHEMA_VERSION = 1
EVENT_LIMIT = 500  # listed; the summary counts all
GPU_KEY = f"requests.{WHOLE_GPU}"
_GIB = 2**30


@dataclass(frozen=True)
class PolicyState:
    """The policy in force, and why a newer one is not, if so."""

    policy: Policy
    error: str = ""

    @property
    def pricing(self) -> PricingSpec:
        return self.policy.pricing.spec if self.policy.pricing else PricingSpec()


@dataclass(frozen=True)
class Observed:
    """What the exporter knows beside the cluster itself."""

    tally: Tally = field(default_factory=Tally)
    events: EventTally = field(default_factory=EventTally)
    streams: Sequence[Mapping[str, Any]] = ()
    stream_totals: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    utilisation: Utilisation = field(default_factory=Utilisation)
    problems: Sequence[str] = ()
    """What cannot be read of the cluster at present."""
    has_audit: bool = False
    """Whether any audit stream is read at all; without one no record can be missing."""
    namespace_label: str = NAMESPACE_LABEL
    """The label by which the registration selects namespaces."""


def status_of(view: ClusterView, state: PolicyState, observed: Observed, now: datetime) -> dict[str, Any]:
    """The whole object of `cluster-status.json`."""
    policy = state.policy
    pods = counted_pods(view, policy)
    owners = Owners(view)
    teams = _teams(view, pods, owners, policy)
    requested = {team["namespace"]: float(team["gpuRequested"]) for team in teams}
    costs = costs_of(pods, state.pricing, observed.utilisation, requested, policy.spec.pool_label)
    stuck_since = rfc3339(now - timedelta(seconds=STUCK_SECONDS))
    return {
        "generatedAt": rfc3339(now),
        "context": view.context,
        "summary": {
            "gpuRequested": tidy(sum(team["gpuRequested"] for team in teams)),
            "gpuQuota": tidy(sum(team["gpuQuota"] for team in teams)),
            "pendingPods": sum(team["pendingPods"] for team in teams),
            "failedSchedulingEvents": sum(event.reason == SCHEDULING for event in view.events),
            "failedCreateEvents": sum(event.reason == CREATING for event in view.events),
            "estimatedIdleCostPerHour": costs.idle_upper_bound,
        },
        "teams": teams,
        "nodes": [_node(node, policy) for node in sorted(view.nodes, key=lambda node: node.metadata.name)],
        "events": _events(view.events),
        "schemaVersion": SCHEMA_VERSION,
        "decisions": _decisions(observed, view, pods, policy, now),
        "cost": costs.document,
        "gates": gates_of(view, pods, observed.tally, observed.events, owners, stuck_since),
        "history": dict(observed.history),
        "findings": findings_of(view, policy, observed.namespace_label),
        "streams": list(observed.streams),
        "streamTotals": dict(observed.stream_totals),
        "outsidePolicy": outside_policy(pods, view, policy),
        "policy": _policy(state, view, now, observed.tally.last_revision),
        "factsAgeSeconds": round(view.age, 1),
        "problems": list(observed.problems),
    }


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- teams ------------------------------------------------------------------------------------------------------------


def _teams(view: ClusterView, pods: Sequence[CountedPod], owners: Owners, policy: Policy) -> list[dict[str, Any]]:
    quotas = by_namespace(view.quotas)
    grouped: dict[str, list[CountedPod]] = {}
    for pod in pods:
        grouped.setdefault(pod.namespace, []).append(pod)
    committed = committed_gpus(view, pods, owners)
    return [
        _team(namespace, labels[TEAM_LABEL], grouped.get(namespace, []), limits_of(quotas.get(namespace, ())), policy)
        | {"gpuCommitted": tidy(committed.get(namespace, 0.0))}
        for namespace, labels in sorted(view.labels.items())
        if TEAM_LABEL in labels
    ]


def _team(
    namespace: str, team: str, pods: Sequence[CountedPod], limits: Mapping[str, Limit], policy: Policy
) -> dict[str, Any]:
    def used(key: str, resource: str, divisor: int = 1) -> float | int:
        """From the quota, or from the pods where no quota counts the resource."""
        limit = limits.get(key)
        amount = limit.used if limit is not None else None
        return tidy(float(sum(p.requests.get(resource, 0) for p in pods) if amount is None else amount) / divisor)

    def hard(key: str, divisor: int = 1) -> float | int:
        return tidy(float(limits[key].hard) / divisor) if key in limits else 0

    return {
        "namespace": namespace,
        "team": team,
        "pods": len(pods),
        "pendingPods": sum(pod.is_pending for pod in pods),
        "gpuRequested": used(GPU_KEY, WHOLE_GPU),
        "gpuQuota": hard(GPU_KEY),
        "cpuRequested": used("requests.cpu", "cpu"),
        "cpuQuota": hard("requests.cpu"),
        "memoryRequestedGi": used("requests.memory", "memory", _GIB),
        "memoryQuotaGi": hard("requests.memory", _GIB),
        "hasGpuQuota": GPU_KEY in limits,
        "gpus": _gpu_rows(pods, limits, policy),
    }


def _gpu_rows(pods: Sequence[CountedPod], limits: Mapping[str, Limit], policy: Policy) -> list[dict[str, Any]]:
    """Each GPU resource apart (B41): MIG slices are never summed with whole GPUs. `hard` is null without a quota."""
    running: dict[str, float] = {}
    pending: dict[str, float] = {}
    for pod in pods:
        table = running if pod.node else pending
        for resource, amount in pod.gpus.items():
            table[resource] = table.get(resource, 0.0) + float(amount)
    quoted = {key.removeprefix("requests.") for key in limits if key.startswith("requests.")}
    rows = []
    for resource in sorted({*running, *pending, *(name for name in quoted if policy.is_gpu(name))}):
        limit = limits.get(f"requests.{resource}")
        held = running.get(resource, 0.0) + pending.get(resource, 0.0)
        used = held if limit is None or limit.used is None else float(limit.used)
        rows.append(
            {
                "resource": resource,
                "used": tidy(used),
                "hard": None if limit is None else tidy(float(limit.hard)),
                "running": tidy(running.get(resource, 0.0)),
                "pending": tidy(pending.get(resource, 0.0)),
            }
        )
    return rows


# -- nodes and events -------------------------------------------------------------------------------------------------


def _node(node: Node, policy: Policy) -> dict[str, Any]:
    labels = node.metadata.labels or {}
    allocatable = node.status.allocatable or {}
    gpus = {name: _printed(amount) for name, amount in sorted(allocatable.items()) if policy.is_gpu(name)}
    return {
        "name": node.metadata.name,
        "ready": any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ()),
        "pool": labels.get(policy.spec.pool_label, ""),
        "accelerator": labels.get("accelerator", ""),
        "zone": labels.get("topology.kubernetes.io/zone", ""),
        "allocatableGpu": gpus.get(WHOLE_GPU, "0"),
        "gpus": gpus,
        "schedulable": not node.spec.unschedulable,
    }


def _printed(amount: Any) -> str:
    value = number(amount)
    return "0" if value is None else canonical(value)


def _events(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Scheduling and quota events, newest first."""
    chosen = [event for event in events if event.reason in REASONS]
    chosen.sort(key=lambda event: (time_of(event), event.metadata.name), reverse=True)
    return [_event(event) for event in chosen[:EVENT_LIMIT]]


def _event(event: Event) -> dict[str, Any]:
    about, stop = event.involved_object, stop_of(event)
    return {
        "namespace": about.namespace or event.metadata.namespace,
        "reason": event.reason or "",
        "type": event.type or "",
        "object": f"{about.kind.lower()}/{about.name}",
        "message": event.message or "",
        "lastTimestamp": time_of(event),
        "occurrences": occurrences(event),
        "gate": stop.gate if stop else "",
        **(both(stop.code, **stop.values) if stop else {}),
    }


# -- decisions and policy ---------------------------------------------------------------------------------------------


def _decisions(
    observed: Observed, view: ClusterView, pods: Sequence[CountedPod], policy: Policy, now: datetime
) -> dict[str, Any]:
    tally = observed.tally
    minute = int(now.timestamp()) // 60
    midnight = minute - minute % 1440
    return {
        "records": tally.records,
        "dryRun": tally.dry_run,
        "unreadable": tally.unreadable,
        "admitted": tally.admitted,
        "denied": tally.denied,
        "patched": tally.patched,
        "wouldDeny": tally.would_deny,
        "deniedToday": tally.denied_since(midnight),
        "admittedToday": tally.admitted_since(midnight),
        "deniedLast24h": tally.denied_since(minute - 1440),
        "firstTime": tally.first_time or None,
        "lastTime": tally.last_time or None,
        "counts": _counts(tally),
        "codes": _codes(tally),
        "refusedUsers": _top(tally.refused_users),
        "refusedWorkloads": _refused_workloads(tally),
        "recent": tally.recent(),
        "missing": missing_records(pods, view, policy, tally, observed.namespace_label if observed.has_audit else None),
    }


def _counts(tally: Tally) -> list[dict[str, Any]]:
    rows = []
    for key, count in sorted(tally.counts.items()):
        namespace, rule, phase, verdict = key.split("\t")
        rows.append({"namespace": namespace, "rule": rule, "phase": phase, "verdict": verdict, "count": count})
    return rows


def _codes(tally: Tally) -> list[dict[str, Any]]:
    """Finding code -> how often, over all namespaces."""
    sums: dict[str, int] = {}
    for key, count in tally.codes.items():
        code = key.partition("\t")[2]
        sums[code] = sums.get(code, 0) + count
    return [{"code": row["name"], "count": row["count"]} for row in _top(sums)]


def _top(counts: Mapping[str, int], limit: int = 50) -> list[dict[str, Any]]:
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"name": name, "count": count} for name, count in order[:limit]]


def _refused_workloads(tally: Tally) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for key, refused in tally.refused_workloads.items():
        namespace, kind, name = key.split("/", 2)
        last = refused.last
        row = {"namespace": namespace, "kind": kind, "name": name, "count": refused.count}
        if last is not None:
            row |= {"lastTime": last.time, "code": last.code, "message": last.message, "id": last.id}
        rows.append(row)
    return sorted(rows, key=lambda row: (-row["count"], row["namespace"], row["name"]))[:50]


def _policy(state: PolicyState, view: ClusterView, now: datetime, recorded_revision: str) -> dict[str, Any]:
    policy = state.policy
    return {
        "name": policy.name,
        "revision": policy.revision,
        "recordedRevision": recorded_revision or None,
        "mode": policy.spec.mode,
        "loaded": not state.error,
        "error": state.error,
        "contact": policy.spec.contact,
        "rules": [
            {
                "name": active.rule.name,
                "mode": active.rule.mode or policy.spec.mode,
                "pools": list(active.rule.pools or ()),
                "priorityClassName": active.rule.priority_class_name or "",
                "namespaces": sum(active.matches_namespace(labels) for labels in view.labels.values()),
            }
            for active in policy.rules
        ],
        "exceptions": exceptions_of(view, policy, now),
    }
