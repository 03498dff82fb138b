"""Pods are placed, or stay Pending with the scheduler's own sentence, in events and in their status."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.conftest import DATA, events, pod, pods_of, priority_class
from webhook.lab import resources, seed
from webhook.lab.call import Call
from webhook.lab.resources import Object
from webhook.lab.server import Lab


@pytest.fixture
def bare() -> Iterator[Lab]:
    """A lab of its own, with controllers and without nodes."""
    with Lab(tls=False) as running:
        yield running


def said(lab: Lab, namespace: str, name: str) -> tuple[str | None, str | None] | None:
    """(node, message) as the scheduler last left the pod, None if it has not looked at it."""
    found = lab.registry.get(resources.PODS, namespace, name)
    conditions = [c for c in found["status"].get("conditions") or [] if c["type"] == "PodScheduled"]
    return (found["spec"].get("nodeName"), conditions[0].get("message")) if conditions else None


def scheduled(lab: Lab, namespace: str, name: str) -> tuple[str | None, str | None]:
    """(node, message) once the scheduler has looked at the pod."""
    lab.wait(lambda: said(lab, namespace, name))
    return said(lab, namespace, name) or (None, None)


CASES = [json.loads(line) for line in (DATA / "scheduler-cases" / "cases.jsonl").read_text().splitlines()[:6]]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_recorded_clusters_end_to_end(bare: Lab, case: Any) -> None:
    """The message of every refusal is that of the live scheduler; the sum over all cases is tested in k8s."""
    for name in ("gpu-batch-low", "gpu-training", "gpu-critical-inference"):
        bare.create(priority_class(name, 10, "Never"))
    bare.load(case["nodes"])
    for step in case["steps"]:
        wanted: Object = {**step["pod"], "metadata": {**step["pod"]["metadata"], "namespace": "default"}}
        if step["node"] is not None:  # the recorded node, so that what follows finds the recorded room
            wanted["spec"] = {**wanted["spec"], "nodeSelector": {"kubernetes.io/hostname": step["node"]}}
        bare.create(wanted)
        node, message = scheduled(bare, "default", wanted["metadata"]["name"])
        assert (node, message) == (step["node"], step["message"])


def test_no_nodes_at_all(bare: Lab) -> None:
    bare.create(pod("p"))
    assert scheduled(bare, "default", "p") == (None, "no nodes available to schedule pods")


def test_a_relabelled_node_lets_the_pod_in_and_repeats_are_counted(bare: Lab) -> None:
    bare.load([seed.node("n", {"gpu.platform/pool": "training"}, {"nvidia.com/gpu": "1"})])
    bare.create(pod("p", gpus="2", nodeSelector={"gpu.platform/pool": "inference"}))
    text = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    assert str(scheduled(bare, "default", "p")[1]).startswith(text)

    def relabel(node: Object) -> Object:
        node["metadata"]["labels"]["gpu.platform/pool"] = "inference"
        return node

    bare.registry.patch(resources.NODES, "", "n", relabel, Call())
    bare.wait(lambda: len(events(bare, "default", "FailedScheduling")) == 2)
    messages = [e["message"].partition(".")[0] for e in events(bare, "default", "FailedScheduling")]
    assert "0/1 nodes are available: 1 Insufficient nvidia" in messages[1] + messages[0]

    def taint(node: Object) -> Object:
        node["spec"]["unschedulable"] = True
        return node

    def untaint(node: Object) -> Object:
        del node["spec"]["unschedulable"]
        return node

    for step in (taint, untaint):
        bare.registry.patch(resources.NODES, "", "n", step, Call())
        bare.wait(lambda: bare.store.version)
    bare.wait(lambda: any(e.get("series", {}).get("count", 0) > 1 for e in events(bare, "default", "FailedScheduling")))


def test_a_gated_pod_waits_for_its_gates(bare: Lab) -> None:
    bare.load(seed.nodes())
    bare.create(pod("p", schedulingGates=[{"name": "lab.test/gate"}]))
    assert scheduled(bare, "default", "p")[1] == "Scheduling is blocked due to non-empty scheduling gates"

    def open_gate(obj: Object) -> Object:
        obj["spec"]["schedulingGates"] = []
        return obj

    bare.registry.patch(resources.PODS, "default", "p", open_gate, Call())
    bare.wait(lambda: bare.registry.get(resources.PODS, "default", "p")["spec"].get("nodeName"))


def test_n17_a_node_named_by_the_user_is_checked_by_its_kubelet(bare: Lab) -> None:
    bare.load(seed.nodes())
    bare.create(pod("p", nodeName="cpu-1", nodeSelector={"gpu.platform/pool": "training"}))
    bare.wait(lambda: bare.registry.get(resources.PODS, "default", "p")["status"]["phase"] == "Failed")
    assert bare.registry.get(resources.PODS, "default", "p")["status"]["reason"] == "NodeAffinity"


@pytest.mark.parametrize("cluster", ["seed-cluster", "busy-cluster"])
def test_recorded_clusters_load_and_stay_as_they_were(bare: Lab, cluster: str) -> None:
    """The same pods pend with the same words, and the quota controller counts the same use."""
    recorded = list(seed.flattened([json.loads((DATA / cluster / "cluster.json").read_text())]))
    bare.load(recorded)
    pending = {}
    for obj in recorded:
        if obj["kind"] == "Pod" and obj["status"]["phase"] == "Pending":
            condition = next(c for c in obj["status"]["conditions"] if c["type"] == "PodScheduled")
            pending[obj["metadata"]["namespace"], obj["metadata"]["name"]] = condition["message"]
    poke = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "poke"}, "spec": {"unschedulable": True}}
    bare.create(poke)
    bare.registry.delete(resources.NODES, "", "poke", {}, Call())  # every waiting pod is looked at again
    bare.create(pod("after", priorityClassName="system-node-critical", nodeSelector={"no": "where"}))
    scheduled(bare, "default", "after")
    assert pending
    # Not at once: a pod that was looked at while the poke stood counts one node more until its next turn.
    bare.wait(lambda: {key: said(bare, *key) for key in pending} == {key: (None, pending[key]) for key in pending})
    names = {(o["metadata"]["namespace"], o["metadata"]["name"]) for o in recorded if o["kind"] == "Pod"}
    kept = {(p["metadata"]["namespace"], p["metadata"]["name"]) for p in pods_of(bare, "")} - {("default", "after")}
    assert kept == names
    for obj in recorded:
        if obj["kind"] == "ResourceQuota":
            key = obj["metadata"]["namespace"], obj["metadata"]["name"]
            bare.wait(
                lambda key=key, want=obj["status"]: bare.registry.get(resources.RESOURCE_QUOTAS, *key)["status"] == want
            )
