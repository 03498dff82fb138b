"""Builds what `decide` takes, for tests that read like the specification: policies, requests, clusters."""

import copy
import json
from typing import Any

import jsonpatch
import msgspec

from webhook.cluster.snapshot import Snapshot
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.policy.active import Policy
from webhook.policy.model import GpuPolicy
from webhook.server import wire

Json = dict[str, Any]

NOW = 1_796_155_200.0
"""2026-12-01T20:00:00Z."""
ALICE = {"username": "alice", "groups": ["system:authenticated"]}
POOL = "gpu.platform/pool"


def controller(name: str) -> Json:
    """The user of a built-in controller (W19)."""
    return {"username": f"system:serviceaccount:kube-system:{name}", "groups": ["system:serviceaccounts"]}


def policy(rule: Json | None = None, own_namespace: str = "", **spec: Any) -> Policy:
    """A policy with one rule for team namespaces: class gpu-research, pool a100, unless `rule` says otherwise."""
    first = {
        "name": "research",
        "namespaceSelector": {"matchLabels": {"gpu.platform/team": "research"}},
        "priorityClassName": "gpu-research",
        "pools": ["a100"],
        **(rule or {}),
    }
    document = {
        "apiVersion": "gpu.platform/v1",
        "kind": "GpuPolicy",
        "metadata": {"name": "test"},
        "spec": {"rules": [{k: v for k, v in first.items() if v is not None}], **spec},
    }
    return Policy(msgspec.convert(document, GpuPolicy), own_namespace=own_namespace)


def namespace(name: str = "team-a", **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels or {"gpu.platform/team": "research"}},
    }


def priority_class(name: str, value: int, policy: str = "PreemptLowerPriority", default: bool = False) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": policy,
        "globalDefault": default,
    }


def node(name: str, **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {key.replace("pool", POOL): value for key, value in labels.items()}},
    }


def quota(
    name: str = "gpu-quota", namespace: str = "team-a", scopes: Json | None = None, **amounts: tuple[str, str]
) -> Json:
    """`quota(gpu=("8", "6"))`: hard 8, used 6 of requests.nvidia.com/gpu; other keys with _ for . ."""
    keys = {"requests.nvidia.com/gpu" if k == "gpu" else k.replace("_", "."): v for k, v in amounts.items()}
    hard = {key: hard for key, (hard, _) in keys.items()}
    used = {key: used for key, (_, used) in keys.items()}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": hard, **(scopes or {})},
        "status": {"hard": hard, "used": used},
    }


CLASSES = [
    priority_class("gpu-research", 1000),
    priority_class("gpu-batch", 100, "Never"),
    priority_class("gpu-high", 5000),
]
NODES = [
    node("n1", pool="a100", zone="a"),
    node("n2", pool="a100", zone="a"),
    node("n3", pool="h100", zone="a"),
    node("n4", zone="b"),
]


def cluster(*objects: Json) -> Snapshot:
    """The namespace team-a, the classes and nodes of the field reports' fixtures, and `objects`."""
    return Snapshot.from_objects([namespace(), *CLASSES, *NODES, *objects], clock=lambda: NOW)


def container(gpus: Any = 1, name: str = "c", **resources: Any) -> Json:
    limits = {} if gpus is None else {"nvidia.com/gpu": gpus}
    return {"name": name, "resources": resources or {"limits": limits}}


def pod(name: str = "p", gpus: Any = 1, metadata: Json | None = None, **spec: Any) -> Json:
    """A Pod as its author wrote it; see `admitted` for what the Priority plugin makes of it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"containers": [container(gpus)], **spec},
    }


def admitted(obj: Json, priority: int = 0, preemption: str = "PreemptLowerPriority") -> Json:
    """A Pod after the Priority plugin's first pass (P3)."""
    result = copy.deepcopy(obj)
    result["spec"] |= {"priority": priority, "preemptionPolicy": preemption}
    return result


def workload(
    kind: str = "Deployment", name: str = "w", gpus: Any = 1, spec: Json | None = None, **pod_spec: Any
) -> Json:
    """A workload with one container; `spec` are fields of its own, `pod_spec` of its template."""
    group = {"Job": "batch/v1", "CronJob": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container(gpus)], **pod_spec}}
    if kind == "CronJob":
        body: Json = {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template, **(spec or {})}}}
    else:
        body = {"template": template, **(spec or {})}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": body}


def required(*terms: Json) -> Json:
    """An affinity with required node selector terms."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expressions(*requirements: tuple[str, str, list[str]]) -> Json:
    return {
        "matchExpressions": [
            {"key": key, "operator": operator, **({"values": values} if values else {})}
            for key, operator, values in requirements
        ]
    }


POOL_TERM = expressions((POOL, "In", ["a100"]))


def review(
    obj: Json | None,
    operation: str = "CREATE",
    old: Json | None = None,
    *,
    user: Json = ALICE,
    namespace: str = "team-a",
    sub_resource: str | None = None,
    kind: Json | None = None,
    resource: Json | None = None,
    **fields: Any,
) -> Json:
    """An AdmissionReview as the API server sends it; kind and resource come from the object unless given."""
    shown = obj or old or {}
    group, _, version = shown.get("apiVersion", "v1").rpartition("/")
    name = shown.get("kind", "Pod")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind or {"group": group, "version": version, "kind": name},
        "resource": resource or {"group": group, "version": version, "resource": f"{name.lower()}s"},
        "namespace": namespace,
        "operation": operation,
        "userInfo": user,
        "object": obj,
        "oldObject": old,
        "dryRun": False,
        **fields,
    }
    if shown.get("metadata", {}).get("name"):
        request["name"] = shown["metadata"]["name"]
    if sub_resource:
        request["subResource"] = sub_resource
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def request(
    obj: Json | None, operation: str = "CREATE", old: Json | None = None, phase: Any = "mutate", **more: Any
) -> Request:
    """The decoded request, by the road that bytes take."""
    now = more.pop("now", NOW)
    return wire.decode(json.dumps(review(obj, operation, old, **more)).encode(), phase, now)


def scale(
    replicas: int, old: int, name: str = "w", resource: str = "deployments", phase: Any = "mutate", **more: Any
) -> Request:
    """`kubectl scale`: a review of the scale subresource (W25); replicas 0 are left out (W27)."""

    def body(count: int) -> Json:
        spec = {"replicas": count} if count else {}
        return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name}, "spec": spec}

    return request(
        body(replicas),
        "UPDATE",
        body(old),
        phase,
        sub_resource="scale",
        resource={"group": "apps", "version": "v1", "resource": resource},
        **more,
    )


def patched(obj: Json, decision: Decision) -> Json:
    """The object after the decision's patch, applied by a strict RFC 6902 applier."""
    operations = json.loads(msgspec.json.encode(decision.patch))
    result: Json = jsonpatch.apply_patch(copy.deepcopy(obj), operations)
    return result


def codes(decision: Decision) -> list[str]:
    return [finding.code for finding in decision.findings]


def pod_spec(obj: Json) -> Json:
    """The PodSpec of a Pod or of a workload's template."""
    if obj["kind"] == "Pod":
        return obj["spec"]
    spec = obj["spec"]["jobTemplate"]["spec"] if obj["kind"] == "CronJob" else obj["spec"]
    return spec["template"]["spec"]


def terms(obj: Json) -> list[Json]:
    """The required node selector terms of an object's pod spec."""
    affinity = pod_spec(obj)["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
