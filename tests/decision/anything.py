"""Random requests, policies and clusters that meet each other often: few names, few values, every shape."""

import copy
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.decision.build import (
    ALICE,
    POOL,
    Json,
    admitted,
    cluster,
    controller,
    expressions,
    pod,
    pod_spec,
    policy,
    priority_class,
    quota,
    request,
    required,
    scale,
    workload,
)
from tests.decision.test_fit import deployment, running
from webhook.cluster.snapshot import Snapshot
from webhook.decision.request import Request
from webhook.policy.active import Policy

KINDS = ["Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "DaemonSet", "Job", "CronJob"]
SRE = {"username": "root", "groups": ["sre", "system:authenticated"]}
OPERATOR = {"username": "system:serviceaccount:argo:rollouts", "groups": []}
USERS = st.sampled_from(
    [
        ALICE,
        ALICE,
        SRE,
        OPERATOR,
        {"username": "system:kube-controller-manager", "groups": []},
        {"username": "system:node:n1", "groups": ["system:nodes"]},
        *map(
            controller, ["replicaset-controller", "cronjob-controller", "job-controller", "horizontal-pod-autoscaler"]
        ),
        *map(controller, ["daemon-set-controller", "deployment-controller"]),
    ]
)
RECORDS = [
    '{"rule":"research","class":"gpu-research","pools":["a100"]}',
    '{"rule":"x","pools":["h100"]}',
    '{"rule":"x","class":"gpu-high","tolerations":[{"key":"gpu","operator":"Exists"}]}',
    "not json",
    "",
]
MARKS = ["sre", "gone", "break-glass/2026-12-01T21:00:00Z", "break-glass/2026-12-01T19:00:00Z", "break-glass/x"]
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "gpu.platform/injected": st.sampled_from(RECORDS),
        "gpu.platform/exempt": st.sampled_from(MARKS),
        "gpu.platform/break-glass": st.sampled_from(["burning", ""]),
        "kubernetes.io/config.mirror": st.just("x"),
    },
)
AFFINITIES = st.sampled_from(
    [
        None,
        {},
        {"nodeAffinity": None},
        required(),
        required({}),
        required(expressions((POOL, "In", ["a100"]))),
        required(expressions((POOL, "In", ["h100"]))),
        required(expressions(("zone", "In", ["a"])), expressions((POOL, "NotIn", ["a100"]))),
        required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}),
        {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["x"]}]}},
    ]
)
AMOUNTS = st.sampled_from([None, "0", "1", "2", "3", "9", "500m", "1k", "-1", "abc", 1])
RESOURCES = st.builds(
    lambda gpu, cpu, field: {
        field: {k: v for k, v in (("nvidia.com/gpu", gpu), ("cpu", cpu), ("limits", None)) if v is not None}
    },
    AMOUNTS,
    st.sampled_from([None, "1", "500m"]),
    st.sampled_from(["limits", "limits", "requests"]),
)
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["c", "d"]), "resources": RESOURCES}), min_size=1, max_size=2
)
INIT = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("i"), "resources": RESOURCES}, optional={"restartPolicy": st.just("Always")}
    ),
    max_size=2,
)
POD_SPECS = st.fixed_dictionaries(
    {"containers": CONTAINERS},
    optional={
        "initContainers": INIT,
        "affinity": AFFINITIES,
        "nodeSelector": st.sampled_from([{POOL: "a100"}, {POOL: "h100"}, {"zone": "a"}, None]),
        "priorityClassName": st.sampled_from(["gpu-research", "gpu-batch", "gpu-high", "house-default", "nowhere"]),
        "priority": st.sampled_from([0, 1000, None]),
        "nodeName": st.sampled_from(["n1", "n3", "n9"]),
        "tolerations": st.sampled_from([None, [], [{"operator": "Exists"}], [{"key": "gpu", "operator": "Exists"}]]),
        "resourceClaims": st.just([{"name": "g", "resourceClaimName": "r"}]),
        "overhead": st.just({"cpu": "100m"}),
        "activeDeadlineSeconds": st.just(60),
    },
)
OWNERS = st.sampled_from(
    [("apps/v1", "ReplicaSet"), ("apps/v1", "DaemonSet"), ("batch/v1", "Job"), ("v1", "Node"), ("ray.io/v1", "RayJob")]
)
FIELDS = {
    "Deployment": {"replicas": st.integers(0, 4), "paused": st.booleans()},
    "Job": {"parallelism": st.integers(0, 4), "completions": st.integers(1, 4), "suspend": st.booleans()},
    "CronJob": {"parallelism": st.integers(0, 4)},
}
STATUS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 4),
        "succeeded": st.integers(0, 3),
        "active": st.integers(0, 3),
        "conditions": st.just([{"type": "Complete", "status": "True"}]),
    },
)


@st.composite
def objects(draw: st.DrawFn, kind: str) -> Json:
    spec = draw(POD_SPECS)
    if kind == "Pod":
        obj = pod(**spec)
        obj = admitted(obj) if draw(st.booleans()) else obj
        metadata = [obj["metadata"]]
    else:
        fields = FIELDS.get(kind, {"replicas": st.integers(0, 4)})
        obj = workload(kind, spec=draw(st.fixed_dictionaries({}, optional=fields)), **spec)
        holder = obj["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else obj["spec"]
        metadata = [obj["metadata"], holder["template"]["metadata"]]
    for each in metadata:
        if draw(st.booleans()):
            each["annotations"] = draw(ANNOTATIONS)
    if draw(st.integers(0, 2)) == 0:
        api, owner = draw(OWNERS)
        obj["metadata"]["ownerReferences"] = [
            {"apiVersion": api, "kind": owner, "name": "o", "uid": "1", "controller": True}
        ]
    if kind in ("Deployment", "Job") and draw(st.booleans()):
        obj["status"] = draw(STATUS)
    return obj


@st.composite
def updates(draw: st.DrawFn, kind: str) -> tuple[Json, Json]:
    """An old object, and what a client made of it."""
    old = draw(objects(kind))
    if draw(st.booleans()):
        return draw(objects(kind)), old
    new = copy.deepcopy(old)
    for key, values in FIELDS.get(kind, {"replicas": st.integers(0, 4)}).items():
        if draw(st.booleans()):
            target = new["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else new["spec"]
            target[key] = draw(values)
    edits = draw(st.fixed_dictionaries({}, optional={"image": st.just("v2"), "drop": st.just(True)}))
    if "image" in edits:
        pod_spec(new)["containers"][0]["image"] = "v2"
    if "drop" in edits:
        pod_spec(new).pop("priorityClassName", None)
        pod_spec(new).pop("affinity", None)
    return new, old


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kind = draw(st.sampled_from(["Pod", "Scale", *KINDS]))
    more = {"user": draw(USERS), "phase": draw(st.sampled_from(["mutate", "validate"])), "dryRun": draw(st.booleans())}
    if kind == "Scale":
        name, resource = draw(st.sampled_from([("w", "deployments"), ("old-1", "replicasets"), ("gone", "rollouts")]))
        return scale(draw(st.integers(0, 9)), draw(st.integers(0, 9)), name, resource, **more)
    if kind != "Pod" and draw(st.booleans()):
        new, old = draw(updates(kind))
        return request(new, "UPDATE", old, **more)
    return request(draw(objects(kind)), **more)


SCOPES = st.sampled_from(
    [
        None,
        None,
        {"scopes": ["NotTerminating"]},
        {"scopes": ["BestEffort"]},
        {"scopes": ["CrossNamespacePodAffinity"]},
        *(
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, **values}]}}
            for operator, values in (
                ("In", {"values": ["gpu-research"]}),
                ("NotIn", {"values": ["gpu-research"]}),
                ("DoesNotExist", {}),
            )
        ),
    ]
)


@st.composite
def quotas(draw: st.DrawFn) -> list[Json]:
    found = []
    for number in range(draw(st.integers(0, 2))):
        keys = draw(st.lists(st.sampled_from(["gpu", "requests_cpu", "limits_cpu", "pods"]), min_size=1, unique=True))
        amounts = {key: draw(st.sampled_from([("8", "6"), ("4", "0"), ("2", "5"), ("0", "0")])) for key in keys}
        each = quota(f"q{number}", scopes=draw(SCOPES), **amounts)
        match draw(st.sampled_from(["whole", "whole", "whole", "no status", "no used"])):
            case "no status":
                each["status"] = {}
            case "no used":
                each["status"]["used"] = {}
        found.append(each)
    return found


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    others: list[Json] = draw(quotas())
    if draw(st.booleans()):
        others += deployment("old", draw(st.integers(1, 3)), 2, age=draw(st.sampled_from([1, 60])), existing=1)
    if draw(st.booleans()):
        others += deployment("w", draw(st.integers(0, 3)), 1, age=5, existing=draw(st.integers(0, 1)))
    if draw(st.booleans()):
        others.append(running("gone-1-0", 2, "gone-1", deleted="2026-12-01T19:59:50Z"))
    if draw(st.booleans()):
        others.append(priority_class("house-default", 10, default=True))
    if draw(st.booleans()):
        limits = [{"type": "Container", "max": {"nvidia.com/gpu": "4"}, "default": {"cpu": "1"}}]
        others.append(
            {
                "apiVersion": "v1",
                "kind": "LimitRange",
                "metadata": {"name": "l", "namespace": "team-a"},
                "spec": {"limits": limits},
            }
        )
    return cluster(*others)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    rule: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "pools": st.sampled_from([None, ["h100"], ["a100", "h100"], ["b200"]]),
                "priorityClassName": st.sampled_from([None, "gpu-batch", "nowhere"]),
                "allowedPriorityClasses": st.just(["gpu-high"]),
                "onPriorityConflict": st.sampled_from(["override", "keep"]),
                "onPoolConflict": st.just("keep"),
                "onQuotaExceeded": st.just("warn"),
                "tolerations": st.just([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
                "mode": st.sampled_from(["warn", "audit"]),
            },
        )
    )
    spec: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "appliesTo": st.just("allWorkloads"),
                "onUnplaced": st.just("deny"),
                "language": st.just("zh"),
                "workloads": st.sampled_from([["Pod"], ["Pod", "Deployment", "CronJob"]]),
                "trustedControllers": st.just([OPERATOR["username"]]),
                "exemptions": st.just([{"name": "sre", "users": ["root"], "reason": "7"}]),
                "breakGlass": st.just({"groups": ["sre"], "maxAge": "4h"}),
                "quota": st.fixed_dictionaries(
                    {},
                    optional={
                        "waitingKinds": st.just(["Job"]),
                        "onUnknown": st.just("deny"),
                        "resources": st.just("gpu"),
                    },
                ),
            },
        )
    )
    return policy(rule, **spec)


class World(NamedTuple):
    asked: Request
    policy: Policy
    cluster: Snapshot
    fresh_failed: bool


WORLDS = st.builds(World, requests(), policies(), clusters(), st.sampled_from([False, False, False, True]))
