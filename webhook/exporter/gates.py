"""Where GPU work is stopped: the six gates of DESIGN 2, what is stuck at each now, and why."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from webhook.exporter.cost import tidy
from webhook.exporter.decisions import Last, Tally
from webhook.exporter.events import (
    CREATING,
    GATES,
    EventTally,
    Stop,
    creation_stop,
    message_of,
    scheduling_stop,
    time_of,
)
from webhook.exporter.gpu_pods import CountedPod, Owners
from webhook.exporter.view import ClusterView, Event
from webhook.exporter.wording import both
from webhook.k8s.workloads import pods_wanted

ITEM_LIMIT = 200  # listed per gate; the number of all is given beside the list
STUCK_SECONDS = 86_400.0
"""A refusal that is older is history, not something that waits."""


def gates_of(
    view: ClusterView,
    pods: Sequence[CountedPod],
    tally: Tally,
    events: EventTally,
    owners: Owners,
    since: str,
) -> list[dict[str, Any]]:
    """One entry per gate, in order. `occurrences` counts events and refusals; `stuck` what is stopped there now.

    `since` is the RFC 3339 time before which a refusal no longer counts as stuck.
    """
    items: dict[str, list[dict[str, Any]]] = {gate: [] for gate in GATES}
    for gate, item in (
        *_pending(pods, tally, owners),
        *_not_created(view, tally, owners),
        *_refused(view, tally, since),
    ):
        items[gate].append(item)
    running = [pod for pod in pods if pod.wants_gpu and pod.node]
    refusals = _refusals_by_gate(tally)
    return [
        {
            "gate": gate,
            "number": number,
            "stuck": len(running) if gate == "running" else len(items[gate]),
            "pendingPods": sum(
                item["object"].startswith("pod/") and not item.get("refusedAtApply") for item in items[gate]
            ),
            "gpus": tidy(sum(_gpus(p) for p in running) if gate == "running" else sum(i["gpus"] for i in items[gate])),
            "occurrences": events.by_gate.get(gate, 0) + refusals.get(gate, 0),
            "events": events.by_gate.get(gate, 0),
            "refusals": refusals.get(gate, 0),
            "items": sorted(items[gate], key=lambda i: (i["namespace"], i["object"]))[:ITEM_LIMIT],
        }
        for number, gate in enumerate(GATES, 1)
    ]


def _refusals_by_gate(tally: Tally) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for refused in tally.refused_workloads.values():
        if refused.last is not None:
            counts[refused.last.gate] = counts.get(refused.last.gate, 0) + refused.count
    return counts


def _gpus(pod: CountedPod) -> float:
    return float(sum(pod.gpus.values()))


def _pending(pods: Iterable[CountedPod], tally: Tally, owners: Owners) -> Iterable[tuple[str, dict[str, Any]]]:
    """GPU pods that no node was found for. Their own condition is newer than any event."""
    for pod in pods:
        if pod.node or not pod.wants_gpu:
            continue
        stop, since = _scheduling(pod)
        chain = owners.chain(pod.namespace, "Pod", pod.name, pod.pod)
        yield (
            stop.gate,
            _item(pod.namespace, f"pod/{pod.name}", stop, since, _gpus(pod), tally.last_about(pod.namespace, chain)),
        )


def _scheduling(pod: CountedPod) -> tuple[Stop, str]:
    created = pod.pod.metadata.creation_timestamp or ""
    for condition in (pod.pod.status.conditions if pod.pod.status else None) or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            since = condition.last_transition_time or created
            if condition.reason == "SchedulingGated":
                return Stop("pool", "gated"), since
            if condition.message:
                return scheduling_stop(condition.message), since
    return Stop("capacity", "waiting"), created


def _not_created(view: ClusterView, tally: Tally, owners: Owners) -> Iterable[tuple[str, dict[str, Any]]]:
    """Controllers that still lack pods and whose last attempt to make one failed."""
    for (namespace, kind, name), event in _latest_failures(view.events).items():
        workload = owners.find(namespace, kind, name)
        if workload is None:
            continue
        wanted = pods_wanted(kind, workload)
        have = workload.status.replicas or 0 if workload.status else 0
        if kind == "Job":
            have = workload.status.active or 0 if workload.status and isinstance(workload.status.active, int) else 0
        if wanted is None or wanted <= have:
            continue
        stop = creation_stop(message_of(event))
        last = tally.last_about(namespace, owners.chain(namespace, kind, name))
        item = _item(namespace, f"{kind.lower()}/{name}", stop, time_of(event), _asked(stop) * (wanted - have), last)
        yield stop.gate, {**item, "missingPods": wanted - have}


def _latest_failures(events: Iterable[Event]) -> dict[tuple[str, str, str], Event]:
    latest: dict[tuple[str, str, str], Event] = {}
    for event in events:
        if event.reason != CREATING:
            continue
        about = event.involved_object
        key = (about.namespace or event.metadata.namespace, about.kind, about.name)
        if key not in latest or time_of(event) >= time_of(latest[key]):
            latest[key] = event
    return latest


def _asked(stop: Stop) -> float:
    """GPUs that the refused pod asked for, where the quota's message says so."""
    asks = str(stop.values.get("asks", ""))
    return float(asks) if asks.isdigit() and "/" in str(stop.values.get("quota_key", "")) else 0.0


def _refused(view: ClusterView, tally: Tally, since: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """What people applied and this webhook refused, unless it was accepted later."""
    for key, refused in tally.refused_workloads.items():
        last = refused.last
        namespace, kind, name = key.split("/", 2)
        if last is None or last.time < since or (view.namespaces and namespace not in view.labels):
            continue
        newest = tally.last_about(namespace, [(kind, name)])
        if newest is not None and newest.verdict != "deny" and newest.time > last.time:
            continue
        stop = Stop(last.gate, "refused", {"message": last.message})
        yield (
            last.gate,
            {**_item(namespace, f"{kind.lower()}/{name}", stop, last.time, 0.0, last), "refusedAtApply": True},
        )


def _item(namespace: str, what: str, stop: Stop, since: str, gpus: float, last: Last | None) -> dict[str, Any]:
    decision = {"id": last.id, "verdict": last.verdict, "rule": last.rule, "time": last.time} if last else None
    return {
        "namespace": namespace,
        "object": what,
        "code": stop.code,
        **both(stop.code, **stop.values),
        "since": since,
        "gpus": tidy(gpus),
        "decision": decision,
    }
