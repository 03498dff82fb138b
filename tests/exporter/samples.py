"""Recorded clusters, small made-up ones, and records as a webhook writes them."""

import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tests.audit import samples as audit
from webhook.exporter.status import Observed, PolicyState, status_of
from webhook.exporter.view import ClusterView, view_of
from webhook.policy.load import load

DATA = Path(__file__).parents[1] / "data"
POLICIES = Path(__file__).parents[2] / "policies"
NOW = datetime(2026, 12, 1, 21, 0, tzinfo=UTC)
CREATED = "2026-12-01T20:00:00Z"
Json = dict[str, Any]


@cache
def policy() -> PolicyState:
    """The policy and prices that ship."""
    return PolicyState(load(POLICIES))


@cache
def recorded(name: str) -> ClusterView:
    """`seed-cluster` or `busy-cluster`."""
    return view_of(json.loads((DATA / name / "cluster.json").read_text())["items"])


def status(view: ClusterView, observed: Observed | None = None, now: datetime = NOW) -> Json:
    return status_of(view, policy(), observed or Observed(), now)


def namespace(name: str, team: str | None = "inference") -> Json:
    labels = {"kubernetes.io/metadata.name": name} | ({"gpu.platform/team": team} if team else {})
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(
    name: str,
    gpu: int | str | None = 1,
    *,
    namespace: str = "team-a",
    phase: str = "Running",
    node: str | None = None,
    resource: str = "nvidia.com/gpu",
    message: str = "",
    **spec: Any,
) -> Json:
    """A pod; it is on node n1 unless it is pending."""
    resources = {"limits": {resource: str(gpu)}, "requests": {resource: str(gpu)}} if gpu is not None else {}
    where = node if node is not None else "" if phase == "Pending" else "n1"
    status: Json = {"phase": phase}
    if message:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        status["conditions"] = [{**condition, "lastTransitionTime": CREATED}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": CREATED},
        "spec": {
            "containers": [{"name": "main", "resources": resources}],
            **({"nodeName": where} if where else {}),
            **spec,
        },
        "status": status,
    }


def quota(hard: Json, used: Json | None, *, name: str = "gpu-quota", namespace: str = "team-a", **spec: Any) -> Json:
    status = {"hard": hard, "used": used} if used is not None else {}
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": hard, **spec},
        "status": status,
    }


def node(name: str = "n1", pool: str = "inference", gpu: int = 8, **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"gpu.platform/pool": pool, **labels}},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpu)}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def event(
    name: str,
    reason: str = "FailedScheduling",
    message: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    *,
    about: tuple[str, str] = ("Pod", "p"),
    namespace: str = "team-a",
    uid: str = "",
    **fields: Any,
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "creationTimestamp": CREATED},
        "involvedObject": {"kind": about[0], "name": about[1], "namespace": namespace},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "eventTime": None,
        **fields,
    }


def record(number: int, verdict: str = "allow", **fields: Any) -> bytes:
    """One line of a stream as far as counting goes; its chain is not real."""
    body = audit.body(number, verdict, **fields)  # type: ignore[arg-type]
    return body[:-1] + f',"stream":"s","seq":{number},"lost":0,"prev":"{"0" * 64}","hash":"{"0" * 64}"}}'.encode()
