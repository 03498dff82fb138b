"""The scheduler's filters and its own sentence, held to every recorded cluster."""

from typing import Any

import msgspec
import pytest

from tests.k8s.recorded import cluster, lines, typed
from webhook.k8s.objects import Node, Pod, PodSpec
from webhook.k8s.pod_resources import pod_requests
from webhook.k8s.scheduling import Placed, place, tolerates, untolerated

GPU = "nvidia.com/gpu"
NEVER = "no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."


def node(name: str, gpus: int = 0, taints: Any = None, unschedulable: bool = False, **labels: str) -> Node:
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "10", GPU: str(gpus)}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": unschedulable},
            "status": {"allocatable": allocatable},
        },
        Node,
    )


def pod(gpus: Any = "1", **parts: Any) -> PodSpec:
    containers = [{"name": "c", "resources": {"limits": {GPU: gpus}}}]
    return msgspec.convert({"containers": containers, "preemptionPolicy": "Never", **parts}, PodSpec)


# -- recorded clusters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lines("scheduler-cases/cases.jsonl"), ids=lambda case: case["case"])
def test_recorded_cluster(case: Any) -> None:
    """Every pod in its turn: the node it got is one of ours, or our sentence is the scheduler's."""
    nodes = typed(case["nodes"], list[Node])
    placed: list[Placed] = []
    for step in case["steps"]:
        spec = typed(step["pod"], Pod).spec
        assert spec is not None
        answer = place(msgspec.structs.replace(spec, preemption_policy="Never"), nodes, placed)
        assert answer.message == (step["message"] or "")
        if step["node"]:
            assert step["node"] in answer.feasible
            placed.append(Placed(step["node"], pod_requests(spec)))
        else:
            assert answer.feasible == ()


@pytest.mark.parametrize("name", ["seed-cluster", "busy-cluster"])
def test_recorded_events(name: str) -> None:
    """Each pending pod of a recorded cluster waits for the reason that its last event gives."""
    objects = cluster(name)
    nodes = [typed(each, Node) for each in objects["Node"]]
    pods = {each["metadata"]["name"]: typed(each, Pod) for each in objects["Pod"]}
    placed = [
        Placed(p.spec.node_name, pod_requests(p.spec), p.spec.priority if isinstance(p.spec.priority, int) else 0)
        for p in pods.values()
        if p.spec is not None and p.spec.node_name and p.status is not None and p.status.phase == "Running"
    ]
    said: dict[str, set[str]] = {}
    for event in objects["Event"]:
        if event["reason"] == "FailedScheduling" and event["involvedObject"]["name"] in pods:
            said.setdefault(event["involvedObject"]["name"], set()).add(event["message"])
    pending = {key: p for key, p in pods.items() if p.status is not None and p.status.phase == "Pending"}
    assert len(pending) >= 5
    for key, waiting in pending.items():
        assert waiting.spec is not None
        assert place(waiting.spec, nodes, placed).message in said[key]


# -- filters ----------------------------------------------------------------------------------------------------------


def test_a_node_counts_under_the_first_filter_that_stops_it() -> None:
    taint = [{"key": "gpu", "effect": "NoSchedule"}]
    nodes = [
        node("a", 0, taint, unschedulable=True),
        node("b", 0, taint),
        node("c", 0, zone="b"),
        node("d", 1, zone="a"),
    ]
    answer = place(pod("2", nodeSelector={"zone": "a"}), nodes, [])
    assert answer.message == (
        f"0/4 nodes are available: 1 Insufficient {GPU}, 1 node(s) didn't match Pod's node affinity/selector, "
        f"1 node(s) had untolerated taint(s), 1 node(s) were unschedulable. {NEVER}"
    )


def test_every_shortage_of_a_node_is_counted() -> None:
    big = msgspec.convert(
        {"containers": [{"name": "c", "resources": {"limits": {GPU: "2", "cpu": "9"}}}], "preemptionPolicy": "Never"},
        PodSpec,
    )
    assert place(big, [node("a", 1)], []).message == (
        f"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient {GPU}. {NEVER}"
    )


def test_what_is_placed_takes_room_and_zero_needs_none() -> None:
    full = [Placed("a", {GPU: 2})]
    assert place(pod("1"), [node("a", 2)], full).feasible == ()
    assert place(pod("0"), [node("a", 2)], full).feasible == ("a",)
    assert place(pod("1"), [node("a", 2)], [Placed("elsewhere", {GPU: 2})]).node == "a"


def test_a_node_holds_only_so_many_pods() -> None:
    crowd = [Placed("a", {}) for _ in range(10)]
    assert "1 Too many pods" in place(pod("0"), [node("a")], crowd).message


def test_the_emptiest_feasible_node_is_chosen() -> None:
    busy = [Placed("a", {"cpu": 6})]
    answer = place(pod("1"), [node("a", 4), node("b", 4)], busy)
    assert (answer.node, answer.feasible, answer.message) == ("b", ("a", "b"), "")


def test_without_nodes() -> None:
    assert place(pod(), [], []).message == "no nodes available to schedule pods"


@pytest.mark.parametrize(
    ("toleration", "covered"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "cpu", "operator": "Exists"}, False),
        ({"value": "yes"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], covered: bool) -> None:
    tainted = node("a", 1, [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    spec = pod(tolerations=[toleration])
    assert tainted.spec.taints is not None
    assert tolerates(spec.tolerations, tainted.spec.taints[0]) is covered
    assert (untolerated(spec, tainted) == []) is covered


def test_only_hard_taints_stop_a_pod_and_cordons_can_be_tolerated() -> None:
    soft = node("a", 1, [{"key": "gpu", "effect": "PreferNoSchedule"}])
    assert place(pod(), [soft], []).node == "a"
    assert place(pod(), [node("a", 1, [{"key": "x", "effect": "NoExecute"}])], []).node == ""
    cordoned = node("a", 1, unschedulable=True)
    tolerated = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]
    assert place(pod(tolerations=tolerated), [cordoned], []).node == "a"


# -- preemption -------------------------------------------------------------------------------------------------------


def test_preemption_says_nothing_when_lower_pods_will_make_room() -> None:
    low = [Placed("a", {GPU: 2}, priority=10)]
    high = pod("1", priority=100, preemptionPolicy="PreemptLowerPriority")
    assert place(high, [node("a", 2)], low).message == f"0/1 nodes are available: 1 Insufficient {GPU}."


def test_preemption_counts_why_it_cannot_help() -> None:
    placed = [Placed("a", {GPU: 2}, priority=100), Placed("b", {GPU: 1}, priority=10), Placed("b", {GPU: 1}, 100)]
    high = pod("2", priority=100, preemptionPolicy="PreemptLowerPriority")
    assert place(high, [node("a", 2), node("b", 2), node("c", 1)], placed).message == (
        f"0/3 nodes are available: 3 Insufficient {GPU}. no new claims to deallocate, preemption: "
        f"0/3 nodes are available: 1 Insufficient {GPU}, 1 No preemption victims found for incoming pod, "
        "1 Preemption is not helpful for scheduling."
    )
