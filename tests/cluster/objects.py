"""Small objects for the tests of this room."""

from typing import Any

Object = dict[str, Any]
GPU = "requests.nvidia.com/gpu"


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def team(name: str, team_name: str = "research") -> Object:
    """A namespace that the registration covers."""
    labels = {"gpu.platform/team": team_name, "kubernetes.io/metadata.name": name}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def quota(ns: str, hard: str = "8", used: str = "6", name: str = "gpu-quota") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": ns},
        "spec": {"hard": {GPU: hard}},
        "status": {"hard": {GPU: hard}, "used": {GPU: used}},
    }


def workload(
    kind: str,
    ns: str,
    name: str,
    *,
    replicas: int = 1,
    generation: int = 1,
    status: Object | None = None,
    **metadata: Any,
) -> Object:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "batch/v1" if kind in ("Job", "CronJob") else "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": ns, "generation": generation, **metadata},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [container]}}},
        **({} if status is None else {"status": status}),
    }


def pod(ns: str, name: str, phase: str = "Running") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": ns},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": phase},
    }


def node(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def priority_class(name: str, value: int) -> Object:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}


def autoscaler(ns: str, name: str, target: str, ceiling: int) -> Object:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": ns},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": target}, "maxReplicas": ceiling},
    }
