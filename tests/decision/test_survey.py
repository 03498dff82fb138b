"""A whole cluster under a policy: drift, and what would happen if everything were created now."""

from typing import Any

import msgspec
import pytest

from tests.decision import build
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import judge
from webhook.decision.survey import Drift, Estate, Survey, drift, preview, volume_nodes
from webhook.k8s.objects import Node, Pod, Workload
from webhook.policy.active import Policy

Json = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "CronJob")


def estate(*objects: Json, nodes: list[Json] | None = None) -> Estate:
    """A cluster with these objects in team-a, and the nodes of the field reports."""
    placed = [{**each, "metadata": {"namespace": "team-a", **each["metadata"]}} for each in objects]
    snapshot = Snapshot.from_objects(
        [build.namespace(), *build.CLASSES, *(nodes or build.NODES), *placed], clock=lambda: build.NOW
    )

    def typed(type_: Any, *kinds: str) -> list[Any]:
        return [
            msgspec.json.decode(msgspec.json.encode(each), type=type_)
            for kind in kinds
            for each in snapshot.of_kind(kind)
        ]

    return Estate(
        facts=snapshot.current(),
        workloads=typed(Workload, *WORKLOADS),
        pods=typed(Pod, "Pod"),
        nodes=typed(Node, "Node"),
        volumes=volume_nodes(snapshot.objects),
    )


def stored(policy: Policy, obj: Json) -> Json:
    """An object as it is stored after it was created under a policy."""
    return build.patched(obj, judge(build.request(obj), policy, build.cluster()))


def running(name: str, on: str, owner: tuple[str, str] | None = None, gpus: Any = 1, **spec: Any) -> Json:
    references = [{"apiVersion": "apps/v1", "kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    requests = {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "ownerReferences": references},
        "spec": {
            "nodeName": on,
            "containers": [{"name": "c", "resources": {"limits": requests, "requests": requests}}],
            **spec,
        },
        "status": {"phase": "Running"},
    }


def roomy(*names: tuple[str, str, int]) -> list[Json]:
    """Nodes (name, pool, GPUs)."""
    return [
        {**build.node(name, pool=pool), "status": {"allocatable": {"nvidia.com/gpu": str(gpus), "pods": "10"}}}
        for name, pool, gpus in names
    ]


# -- drift ------------------------------------------------------------------------------------------------------------


def drifts(policy: Policy, *objects: Json) -> list[Drift]:
    return list(drift(policy, estate(*objects), build.NOW))


def test_b58_what_the_policy_itself_wrote_does_not_drift() -> None:
    policy = build.policy()
    assert drifts(policy, *(stored(policy, build.workload(kind, kind.lower(), 1)) for kind in WORKLOADS)) == []


def test_b59_after_a_pool_change_drift_lists_what_a_restart_would_converge() -> None:
    old, new = build.policy(), build.policy({"pools": ["h100"], "priorityClassName": "gpu-high"})
    [found] = drifts(new, stored(old, build.workload("Deployment", "serve", 1)))
    assert (found.kind, found.name, found.rule, found.verdict) == ("Deployment", "serve", "research", "patch")
    assert found.now == {"priorityClassName": "gpu-research", "pools": "a100"}
    assert found.wanted == {"priorityClassName": "gpu-high", "pools": "h100"}


def test_h14_a_pool_that_the_user_wrote_drifts_and_says_why_it_stays() -> None:
    pinned = build.workload("Deployment", "pinned", 1, nodeSelector={build.POOL: "h100"})
    [found] = drifts(build.policy(), pinned)
    assert found.now["pools"] == "h100"
    assert "Wrong GPU pool" in found.message


def test_drift_is_the_same_in_audit_mode_and_skips_what_cannot_change() -> None:
    old, audit = build.policy(), build.policy({"pools": ["h100"]}, mode="audit")
    owned = stored(old, build.workload("ReplicaSet", "serve-1", 1))
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "serve", "controller": True}
    ]
    found = drifts(
        audit,
        stored(old, build.workload("Deployment", "serve", 1)),
        stored(old, build.workload("Job", "train", 1)),
        build.workload("Deployment", "cpu", None),
        owned,
    )
    assert [each.name for each in found] == ["serve"]


# -- preview ----------------------------------------------------------------------------------------------------------


def previewed(policy: Policy, *objects: Json, nodes: list[Json] | None = None) -> Survey:
    return preview(policy, estate(*objects, nodes=nodes), build.NOW)


def outcomes(survey: Survey) -> dict[str, str]:
    return {each.name: each.outcome for each in survey.objects}


def test_preview_shows_what_enforce_would_do_whatever_the_mode() -> None:
    survey = previewed(
        build.policy(mode="audit"),
        build.workload("Deployment", "free", 1),
        build.workload("Deployment", "pinned", 1, nodeSelector={build.POOL: "h100"}),
        build.workload("Deployment", "cpu", None),
        stored(build.policy(), build.workload("Deployment", "placed", 1)),
        build.pod("lone"),
    )
    assert outcomes(survey) == {
        "free": "patched",
        "pinned": "refused",
        "cpu": "unchanged",
        "placed": "unchanged",
        "lone": "patched",
    }
    assert survey.is_bad_news
    assert next(each for each in survey.objects if each.name == "pinned").message.startswith("Wrong GPU pool")


def test_what_runs_does_not_stand_in_its_own_way() -> None:
    """Quota 4, all of it used by this Deployment: created now it would fit; together with another it would not."""
    mine = build.workload("Deployment", "mine", 1, {"replicas": 4})
    replica_set = build.workload("ReplicaSet", "mine-1", 1, {"replicas": 4})
    replica_set["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "mine", "controller": True}
    ]
    pods = [running(f"mine-1-{n}", "n1", ("ReplicaSet", "mine-1")) for n in range(4)]
    quota = build.quota(gpu=("4", "4"))
    survey = previewed(build.policy(), mine, replica_set, *pods, quota)
    assert outcomes(survey) == {"mine": "patched"}
    assert survey.objects[0].restarts
    other = build.workload("Deployment", "other", 1)
    assert outcomes(previewed(build.policy(), mine, replica_set, *pods, quota, other)) == {
        "mine": "patched",
        "other": "refused",
    }


def test_running_pods_that_stay_move_or_do_not_come_back() -> None:
    nodes = roomy(("a", "a100", 2), ("h", "h100", 8))
    survey = previewed(
        build.policy(),
        running("stays", "a", ("StatefulSet", "s")),
        running("moves", "h", ("StatefulSet", "s")),
        running("no-room", "h", ("StatefulSet", "s")),
        nodes=nodes,
    )
    assert {pod.name: (pod.fate, pod.reason) for pod in survey.pods} == {
        "moves": ("moves", "node"),
        "no-room": ("lost", "room"),
    }
    assert survey.pods[0].message == "a"
    assert "Insufficient nvidia.com/gpu" in survey.pods[1].message
    assert survey.pods[1].owner == "StatefulSet s"


def test_a_pod_whose_volume_is_outside_the_pool_does_not_come_back() -> None:
    terms = [build.expressions(("kubernetes.io/hostname", "In", ["h"]))]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"volumeName": "disk"},
    }
    nodes = roomy(("a", "a100", 8), ("h", "h100", 8))
    nodes[1]["metadata"]["labels"]["kubernetes.io/hostname"] = "h"
    pod = running("db-0", "h", ("StatefulSet", "db"), volumes=[{"persistentVolumeClaim": {"claimName": "data"}}])
    survey = previewed(build.policy(), volume, claim, pod, nodes=nodes)
    assert [(each.name, each.fate, each.reason) for each in survey.pods] == [("db-0", "lost", "volume")]


def test_a_pool_without_nodes_brings_no_pod_back() -> None:
    survey = previewed(build.policy(), running("p", "h", ("Job", "j")), nodes=roomy(("h", "h100", 8)))
    assert [(each.fate, each.reason) for each in survey.pods] == [("lost", "node")]


@pytest.mark.parametrize("user_placed", [True, False])
def test_a_controllers_pod_with_a_conflicting_pool_is_left_where_it_is(user_placed: bool) -> None:
    """It is made again as it was (DESIGN 5.7), so it does not move."""
    spec = {"nodeSelector": {build.POOL: "h100"}} if user_placed else {}
    survey = previewed(
        build.policy(), running("p", "h", ("ReplicaSet", "r"), **spec), nodes=roomy(("a", "a100", 1), ("h", "h100", 8))
    )
    assert [each.fate for each in survey.pods] == ([] if user_placed else ["moves"])
