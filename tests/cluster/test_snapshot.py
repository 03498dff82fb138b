"""Facts from files: what a snapshot holds, what it does not know, and how it says that it cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from webhook.cluster.snapshot import Snapshot, SnapshotError
from webhook.decision.facts import Note
from webhook.k8s.objects import Workload

DATA = Path(__file__).parents[1] / "data"

QUOTA: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpu-quota", "namespace": "team-a"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
    "status": {"hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "6"}},
}
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "team-a", "creationTimestamp": "2026-12-01T08:00:00Z"},
    "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "main"}]}}},
}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def test_the_seed_cluster_as_kubectl_printed_it() -> None:
    facts = Snapshot(DATA / "seed-cluster" / "cluster.json").current()
    assert facts.is_fresh
    assert (facts.namespace_labels("ai-training") or {})["gpu.platform/team"] == "training"
    (quota,) = facts.quotas("ai-inference") or ()
    assert quota.metadata.name == "inference-gpu-quota"
    assert (quota.status.used or {})["requests.nvidia.com/gpu"] == "3"
    assert {seen.workload.kind for seen in facts.workloads("ai-inference") or ()} == {"Deployment", "ReplicaSet"}
    assert len(facts.pods("ai-inference") or ()) == 3
    assert (facts.priority_classes() or {})["gpu-training"].value == 50000
    parent = facts.parent("ai-inference", "Deployment", "quota-exceed-inference-demo")
    assert parent is not None
    assert parent.kind == "Deployment"
    assert facts.parent("ai-inference", "StatefulSet", "quota-exceed-inference-demo") is None


def test_the_busy_cluster_counts_the_nodes_of_each_pool() -> None:
    facts = Snapshot(DATA / "busy-cluster" / "cluster.json").current()
    nodes = [
        item
        for item in json.loads((DATA / "busy-cluster" / "cluster.json").read_text())["items"]
        if item["kind"] == "Node"
    ]
    expected: dict[str, int] = {}
    for node in nodes:
        pool = node["metadata"]["labels"].get("gpu.platform/pool")
        if pool:
            expected[pool] = expected.get(pool, 0) + 1
    assert facts.pool_sizes("gpu.platform/pool") == expected
    assert sum(expected.values()) == len(nodes) - 1  # one node has no pool
    assert facts.node_labels(nodes[0]["metadata"]["name"]) == nodes[0]["metadata"]["labels"]
    assert facts.node_labels("no-such-node") is None


def test_a_workload_in_a_snapshot_was_first_seen_when_it_was_created() -> None:
    (seen,) = Snapshot.from_objects([DEPLOYMENT]).current().workloads("team-a") or ()
    assert seen.seen_at == 1796112000.0


def test_what_a_snapshot_does_not_hold_does_not_exist() -> None:
    facts = Snapshot.from_objects([namespace("team-a", tier="research")]).current()
    assert facts.quotas("team-a") == ()
    assert facts.limit_ranges("team-a") == ()
    assert facts.workloads("team-a") == ()
    assert facts.autoscalers("team-a") == ()
    assert facts.pods("team-a") == ()


def test_what_nobody_would_leave_out_of_a_whole_cluster_is_unknown_instead() -> None:
    facts = Snapshot.from_objects([QUOTA]).current()
    assert facts.namespace_labels("team-a") is None
    assert facts.priority_classes() is None
    assert facts.pool_sizes("gpu.platform/pool") is None
    assert facts.node_labels("n1") is None


def test_a_namespace_without_labels_has_none_and_is_known() -> None:
    assert Snapshot.from_objects([namespace("team-a")]).current().namespace_labels("team-a") == {}


def test_a_folder_of_manifests_in_yaml_and_json(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: team-a\n  creationTimestamp: 2026-12-01T08:00:00Z\n"
        "---\n# nothing here\n---\n"
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n"
    )
    (tmp_path / "sub" / "b.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [QUOTA]}))
    (tmp_path / "notes.txt").write_text("not read")
    snapshot = Snapshot(tmp_path)
    assert snapshot.current().namespace_labels("team-a") == {}
    assert [quota.metadata.name for quota in snapshot.current().quotas("team-a") or ()] == ["gpu-quota"]
    assert [item["kind"] for item in snapshot.objects] == ["Namespace", "Kustomization", "ResourceQuota"]
    assert [item["metadata"]["name"] for item in snapshot.of_kind("ResourceQuota")] == ["gpu-quota"]


def test_items_of_a_typed_list_get_the_kind_that_the_api_leaves_out() -> None:
    bare = {key: value for key, value in DEPLOYMENT.items() if key not in ("kind", "apiVersion")}
    listed = {"kind": "DeploymentList", "apiVersion": "apps/v1", "metadata": {}, "items": [bare]}
    (seen,) = Snapshot.from_objects([listed]).current().workloads("team-a") or ()
    assert (seen.workload.kind, seen.workload.api_version) == ("Deployment", "apps/v1")


def test_a_kind_of_the_same_name_in_another_group_is_not_ours() -> None:
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j", "namespace": "a"}}
    assert Snapshot.from_objects([volcano]).current().workloads("a") == ()


def test_an_object_without_a_namespace_lies_in_default_as_for_kubectl() -> None:
    quota = {**QUOTA, "metadata": {"name": "q"}}
    assert len(Snapshot.from_objects([quota]).current().quotas("default") or ()) == 1


def test_managed_fields_and_foreign_annotations_are_not_kept() -> None:
    metadata = {
        **DEPLOYMENT["metadata"],
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "gpu.platform/injected": "x"},
    }
    parent = (
        Snapshot.from_objects([{**DEPLOYMENT, "metadata": metadata}]).current().parent("team-a", "Deployment", "web")
    )
    assert parent is not None
    assert parent.metadata.annotations == {"gpu.platform/injected": "x"}
    assert not parent.metadata.managed_fields


def test_of_two_objects_with_one_name_the_later_counts() -> None:
    changed = {**QUOTA, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    (quota,) = Snapshot.from_objects([QUOTA]).with_objects([changed]).current().quotas("team-a") or ()
    assert quota.spec.hard == {"requests.nvidia.com/gpu": "1"}


def test_an_accepted_object_uses_up_quota_for_the_next() -> None:
    before = Snapshot.from_objects([QUOTA, namespace("team-a")])
    after = before.with_usage("team-a", {"gpu-quota": {"requests.nvidia.com/gpu": 2, "pods": 1}})
    (quota,) = after.current().quotas("team-a") or ()
    assert quota.status.used == {"requests.nvidia.com/gpu": "8"}  # `pods` had no used: as unknown as before (Q6)
    (untouched,) = before.current().quotas("team-a") or ()
    assert untouched.status.used == {"requests.nvidia.com/gpu": "6"}


def test_notes_are_kept_for_fifteen_seconds() -> None:
    now = [1000.0]
    snapshot = Snapshot.from_objects([namespace("team-a")], clock=lambda: now[0])
    note = Note("team-a", "Deployment", "web", "u1", 2, Workload(kind="Deployment"), 1000.0)
    snapshot.note(note)
    assert snapshot.current().notes("team-a") == (note,)
    assert snapshot.current().notes("team-b") == ()
    now[0] = 1014.9
    assert snapshot.current().notes("team-a") == (note,)
    now[0] = 1015.0
    assert snapshot.current().notes("team-a") == ()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("c.json", '{"kind": "List", "items": [', "c.json: is not JSON: "),
        ("c.yaml", "kind: Pod\n  spec: x\n", "c.yaml, line 2, column 7: is not YAML: "),
        ("c.yaml", "- a\n- b\n", "c.yaml: is not a Kubernetes object"),
        ("c.json", '{"kind": "List", "items": [7]}', "c.json, items[0]: is not a Kubernetes object"),
        ("c.yaml", "kind: Namespace\napiVersion: v1\n---\nkind: 5\n", "c.yaml, document 2: is not a Kubernetes object"),
        (
            "c.yaml",
            "kind: List\nitems:\n- {apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: []}}\n",
            "c.yaml, items[0]: ResourceQuota q is not what v1 defines: Expected `object | null`, got `array` "
            "- at `$.spec.hard`",
        ),
        ("c.json", "[" * 100000, "nests too deeply"),
        ("c.yaml", "[" * 100000, "nests too deeply"),
        ("c.json", "\xff", "c.json: cannot be read: it is not UTF-8 text"),
    ],
)
def test_unreadable_input_names_file_place_and_fix(tmp_path: Path, name: str, text: str, told: str) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SnapshotError) as error:
        Snapshot(file)
    assert told in str(error.value)
    assert str(file) in str(error.value)


def test_a_path_that_leads_nowhere_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no such file or folder; give a List or a folder"):
        Snapshot(tmp_path / "missing")
    with pytest.raises(SnapshotError, match=r"holds no \*\.json"):
        Snapshot(tmp_path)


def test_several_json_values_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "stream"
    file.write_text(json.dumps(QUOTA) + "\n" + json.dumps(namespace("team-a")))
    assert [item["kind"] for item in Snapshot(file).objects] == ["ResourceQuota", "Namespace"]
