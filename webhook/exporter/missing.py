"""Pods in GPU namespaces for which no record exists: the webhook was skipped, or down, when they were created."""

from collections.abc import Sequence
from typing import Any

from webhook.exporter.decisions import Tally
from webhook.exporter.gpu_pods import CountedPod
from webhook.exporter.view import ClusterView
from webhook.policy.active import Policy

LIMIT = 500  # pods that are listed; the number of all is given beside the list
MIRROR = "kubernetes.io/config.mirror"


def missing_records(
    pods: Sequence[CountedPod], view: ClusterView, policy: Policy, tally: Tally, namespace_label: str | None
) -> dict[str, Any]:
    """Pods without a record, and the interval in which they were created.

    Pods that are older than the first record we ever read were not expected to have one: they are counted apart, as
    `beforeFirstRecord`. `namespace_label` is that of the registration; None: no stream is read, so nothing is claimed.
    """
    if namespace_label is None:
        return {"checked": False, "count": 0, "beforeFirstRecord": 0, "from": None, "to": None, "pods": []}
    found, before = [], 0
    for pod in pods:
        if not _is_reviewed(pod, view, policy, namespace_label) or f"{pod.namespace}/{pod.name}" in tally.pods:
            continue
        created = pod.pod.metadata.creation_timestamp or ""
        if tally.first_time and created < tally.first_time[: len("2026-12-01T08:15:30")]:
            before += 1
            continue
        found.append((created, pod))
    found.sort(key=lambda one: (one[0], one[1].namespace, one[1].name))
    return {
        "checked": True,
        "count": len(found),
        "beforeFirstRecord": before,
        "from": found[0][0] if found else None,
        "to": found[-1][0] if found else None,
        "pods": [
            {"namespace": pod.namespace, "pod": pod.name, "created": created, "gpu": pod.wants_gpu}
            for created, pod in found[:LIMIT]
        ],
    }


def _is_reviewed(pod: CountedPod, view: ClusterView, policy: Policy, namespace_label: str) -> bool:
    """Whether the registration (DESIGN 5.7) sends this pod's CREATE to us; static pods never pass admission."""
    labels = view.labels.get(pod.namespace, {})
    annotations = pod.pod.metadata.annotations or {}
    return namespace_label in labels and pod.namespace not in policy.never_judged and MIRROR not in annotations
