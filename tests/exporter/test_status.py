"""The dashboard data of DESIGN 5.6: its figures on the recorded clusters, its types, and what it refuses to count."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.exporter.samples import (
    CREATED,
    Json,
    event,
    namespace,
    node,
    pod,
    quota,
    record,
    recorded,
    status,
)
from webhook.exporter import publish
from webhook.exporter.decisions import Reader, Tally
from webhook.exporter.status import Observed
from webhook.exporter.view import ClusterView, view_of

FIXED_KEYS = {"generatedAt", "context", "summary", "teams", "nodes", "events"}


def team_of(document: Json, name: str = "team-a") -> Json:
    found: Json = next(team for team in document["teams"] if team["namespace"] == name)
    return found


def small(*objects: Json) -> Json:
    return status(view_of([namespace("team-a"), node(), *objects]))


def tallied(*lines: bytes) -> Observed:
    tally = Tally()
    reader = Reader(tally)
    reader.add(lines)
    reader.flush()
    return Observed(tally=tally, has_audit=True)


def test_the_seed_cluster_in_figures() -> None:
    document = status(recorded("seed-cluster"))
    assert document["summary"] == {
        "gpuRequested": 5,
        "gpuQuota": 12,
        "pendingPods": 5,
        "failedSchedulingEvents": 5,
        "failedCreateEvents": 10,
        "estimatedIdleCostPerHour": 12,
    }
    fixed = ("namespace", "team", "pods", "pendingPods", "gpuRequested", "gpuQuota")
    assert [tuple(team[key] for key in fixed) for team in document["teams"]] == [
        ("ai-inference", "inference", 3, 3, 3, 4),
        ("ai-research", "research", 0, 0, 0, 2),
        ("ai-training", "training", 2, 2, 2, 6),
    ]
    inference = team_of(document, "ai-inference")
    amounts = ("cpuRequested", "cpuQuota", "memoryRequestedGi", "memoryQuotaGi")
    assert [inference[key] for key in amounts] == [4.1, 32, 16.12, 128]
    assert [
        {key: one[key] for key in ("name", "ready", "pool", "accelerator", "zone", "allocatableGpu")}
        for one in document["nodes"]
    ] == [
        {
            "name": "llm-platform-control-plane",
            "ready": True,
            "pool": "inference",
            "accelerator": "nvidia-a100",
            "zone": "local-a",
            "allocatableGpu": "0",
        }
    ]


def test_the_busy_cluster_in_figures() -> None:
    document = status(recorded("busy-cluster"))
    summary = document["summary"]
    assert (summary["gpuRequested"], summary["gpuQuota"], summary["pendingPods"]) == (38, 42, 6)
    assert summary["estimatedIdleCostPerHour"] == 91.2
    training = team_of(document, "ai-training")
    assert training["pods"] == 4, "two of its six pods have finished"
    assert len(document["nodes"]) == 9
    assert {one["name"]: one["allocatableGpu"] for one in document["nodes"]}["train-h100-1"] == "8"


@pytest.mark.parametrize("cluster", ["seed-cluster", "busy-cluster"])
def test_the_types_are_those_that_dashboards_read(cluster: str) -> None:
    document = json.loads(publish.as_json(status(recorded(cluster))))
    assert document.keys() >= FIXED_KEYS
    numbers: list[Any] = [*document["summary"].values()]
    for team in document["teams"]:
        numbers += [
            value
            for key, value in team.items()
            if key.endswith(("Requested", "Quota", "Gi", "pods", "Pods")) and key != "hasGpuQuota"
        ]
    assert all(type(value) in (int, float) for value in numbers)
    assert all(type(one["ready"]) is bool and type(one["allocatableGpu"]) is str for one in document["nodes"])
    times = [one["lastTimestamp"] for one in document["events"]]
    assert times == sorted(times, reverse=True)
    assert all("/" in one["object"] and one["object"].islower() for one in document["events"])


def test_the_context_is_snapshot_for_a_file() -> None:
    assert status(recorded("seed-cluster"))["context"] == "snapshot"
    assert status(ClusterView(context="prod"))["context"] == "prod"


def test_labels_that_are_missing_are_empty_text() -> None:
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}}
    (found,) = status(view_of([bare]))["nodes"]
    expected = {"ready": False, "pool": "", "accelerator": "", "zone": "", "allocatableGpu": "0"}
    assert expected.items() <= found.items()


def test_b45_finished_pods_are_not_counted() -> None:
    document = small(
        pod("done", 8, phase="Succeeded"),
        pod("failed", 8, phase="Failed"),
        pod("running", 1),
        pod("waiting", 2, phase="Pending"),
    )
    team = team_of(document)
    assert (team["gpuRequested"], team["pods"], team["pendingPods"]) == (3, 2, 1)
    assert [(row["running"], row["pending"]) for row in team["gpus"]] == [(1, 2)]


def test_effective_requests_count_not_sums() -> None:
    init = [{"name": "load", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]
    document = small(pod("p", 1, initContainers=init))
    assert team_of(document)["gpuRequested"] == 4, "R2: the init container's peak, not 1 + 4"


def test_quotas_of_one_namespace_are_not_pooled() -> None:
    hard = ({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "8"})
    used = {"requests.nvidia.com/gpu": "3"}
    document = small(quota(hard[0], used, name="a"), quota(hard[1], used, name="b"))
    assert (team_of(document)["gpuRequested"], team_of(document)["gpuQuota"]) == (3, 4), "Q10"


def test_scoped_quotas_add_up_where_none_counts_all_pods() -> None:
    high, other = {"scopes": ["Terminating"]}, {"scopes": ["NotTerminating"]}
    hard, used = {"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "1"}
    document = small(quota(hard, used, name="a", **high), quota(hard, used, name="b", **other))
    assert (team_of(document)["gpuRequested"], team_of(document)["gpuQuota"]) == (2, 8), "Q11"


def test_a_key_that_does_nothing_is_a_finding_not_a_zero() -> None:
    document = small(quota({"limits.nvidia.com/gpu": "4"}, {}), pod("p", 2))
    team = team_of(document)
    assert (team["gpuRequested"], team["hasGpuQuota"]) == (2, False)
    (finding,) = [one for one in document["findings"] if one["code"] == "QuotaKeyIneffective"]
    assert finding["namespace"] == "team-a"
    assert "limits.nvidia.com/gpu" in finding["message"] and "requests.nvidia.com/gpu" in finding["message"]
    assert "limits.nvidia.com/gpu" in finding["messageZh"]


def test_a_quota_without_status_is_not_zero_either() -> None:
    document = small(quota({"requests.nvidia.com/gpu": "4"}, None), pod("p", 2))
    assert team_of(document)["gpuRequested"] == 2
    assert "QuotaUnknown" in {one["code"] for one in document["findings"]}


def test_findings_about_the_policy() -> None:
    codes = {(one["code"], one["object"]) for one in status(recorded("seed-cluster"))["findings"]}
    assert ("PoolEmpty", "rule/training") in codes
    document = status(
        view_of(
            [
                namespace("x", "nobody"),
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": "other"},
                    "value": 1,
                },
            ]
        )
    )
    codes = {(one["code"], one["object"]) for one in document["findings"]}
    assert ("NoRule", "namespace/x") in codes
    assert ("PriorityClassMissing", "rule/inference") in codes


def test_gpu_pods_outside_every_rule_are_named() -> None:
    document = status(
        view_of([namespace("free", None), pod("loose", 1, namespace="free"), pod("cpu", None, namespace="free")])
    )
    assert [(one["namespace"], one["pod"]) for one in document["outsidePolicy"]] == [("free", "loose")]


def test_slices_and_whole_gpus_are_kept_apart() -> None:
    document = small(pod("whole", 2), pod("slice", 3, resource="nvidia.com/mig-1g.10gb"))
    team = team_of(document)
    assert team["gpuRequested"] == 2, "B41"
    assert {row["resource"]: row["used"] for row in team["gpus"]} == {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 3}


def test_committed_is_what_workloads_still_want() -> None:
    template = {"spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "team-a"},
        "spec": {"replicas": 3, "template": template},
    }
    owner = [{"kind": "Deployment", "name": "d", "controller": True}]
    made = pod("d-1", 2)
    made["metadata"]["ownerReferences"] = owner
    assert team_of(small(deployment, made))["gpuCommitted"] == 4
    assert team_of(status(recorded("seed-cluster")), "ai-inference")["gpuCommitted"] == 2


def test_each_gate_names_what_is_stuck_and_why() -> None:
    document = status(recorded("busy-cluster"))
    gates = {gate["gate"]: gate for gate in document["gates"]}
    assert [gate["number"] for gate in document["gates"]] == [1, 2, 3, 4, 5, 6]
    assert [item["object"] for item in gates["pool"]["items"]] == ["pod/wrong-pool-964c856dd-jdbdn"]
    assert [item["object"] for item in gates["quota"]["items"]] == ["replicaset/rerank-over-quota-59b4d484b4"]
    assert gates["quota"]["items"][0]["missingPods"] == 3
    assert (gates["capacity"]["stuck"], gates["running"]["stuck"]) == (5, 15)
    starved = next(item for item in gates["capacity"]["items"] if item["object"].startswith("pod/no-memory"))
    assert "memory, nvidia.com/gpu" in starved["why"] and "memory" in starved["whyZh"]


def test_b44_a_failed_create_is_joined_with_the_decision_about_its_workload() -> None:
    line = record(7, "patch", namespace="ai-inference", name="rerank-over-quota", phase="mutate")
    gates = {gate["gate"]: gate for gate in status(recorded("busy-cluster"), tallied(line))["gates"]}
    decision = gates["quota"]["items"][0]["decision"]
    assert decision["verdict"] == "patch" and len(decision["id"]) == 12
    pods = [item for item in gates["capacity"]["items"] if item["object"].startswith("pod/rerank")]
    assert pods[0]["decision"] == decision, "its pod leads to the same workload"


def test_a_refusal_is_stuck_at_its_gate_until_it_is_accepted() -> None:
    refused = record(1, "deny", namespace="team-a", name="web", phase="mutate", code="PoolConflict")
    view = view_of([namespace("team-a")])
    now = status(view, tallied(refused))
    (item,) = next(gate for gate in now["gates"] if gate["gate"] == "policy")["items"]
    assert (item["object"], item["refusedAtApply"], item["decision"]["verdict"]) == ("deployment/web", True, "deny")
    accepted = record(2, "patch", namespace="team-a", name="web", phase="mutate", now=1796112990.0)
    later = status(view, tallied(refused, accepted))
    assert next(gate for gate in later["gates"] if gate["gate"] == "policy")["items"] == []


def test_pods_without_a_record_are_listed_with_their_interval() -> None:
    pods = [pod("seen"), pod("skipped-1"), pod("skipped-2"), pod("older")]
    pods[1]["metadata"]["creationTimestamp"] = "2026-12-01T20:10:00Z"
    pods[2]["metadata"]["creationTimestamp"] = "2026-12-01T20:20:00Z"
    pods[3]["metadata"]["creationTimestamp"] = "2026-12-01T01:00:00Z"
    line = record(1, namespace="team-a", kind="Pod", name="seen")  # written at 08:15
    view = view_of([namespace("team-a"), *pods])
    missing = status(view, tallied(line))["decisions"]["missing"]
    assert (missing["count"], missing["beforeFirstRecord"]) == (2, 1)
    assert (missing["from"], missing["to"]) == ("2026-12-01T20:10:00Z", "2026-12-01T20:20:00Z")
    assert [one["pod"] for one in missing["pods"]] == ["skipped-1", "skipped-2"]
    assert status(view)["decisions"]["missing"]["checked"] is False, "without a stream nothing is claimed"


def test_which_pods_need_a_record_is_told_by_the_label_of_the_registration() -> None:
    """`teams` stay what DESIGN 5.6 says they are."""
    other = namespace("team-b", team=None)
    other["metadata"]["labels"]["gpus"] = "yes"
    view = view_of([namespace("team-a"), pod("one"), other, pod("two", namespace="team-b")])
    observed = replace(tallied(record(1)), namespace_label="gpus")
    document = status(view, observed)
    assert [one["pod"] for one in document["decisions"]["missing"]["pods"]] == ["two"]
    assert [team["namespace"] for team in document["teams"]] == ["team-a"]
    assert [one["object"] for one in document["findings"] if one["code"] == "NoRule"] == ["namespace/team-b"]


def test_exceptions_in_force_have_their_end() -> None:
    template = {"metadata": {"annotations": {"gpu.platform/exempt": "break-glass/2026-12-01T22:00:00Z"}}, "spec": {}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "rescue", "namespace": "team-a"},
        "spec": {"template": template},
    }
    (found,) = small(job)["policy"]["exceptions"]["workloads"]
    assert (found["object"], found["kind"], found["active"]) == ("job/rescue", "breakGlass", True)
    assert found["ends"] == "2026-12-01T22:00:00Z"
    template["metadata"] = {"annotations": {"gpu.platform/exempt": "break-glass/2026-12-01T20:00:00Z"}}
    assert small(job)["policy"]["exceptions"]["workloads"][0]["active"] is False


def test_an_empty_cluster_is_a_status_like_any_other() -> None:
    document = status(ClusterView())
    assert document["summary"]["gpuRequested"] == 0 and document["teams"] == []
    assert document["cost"]["total"]["allocatedPerHour"] == 0


def test_events_of_any_age_are_counted_and_a_bounded_number_listed() -> None:
    events = [event(f"e{number}") for number in range(700)]
    document = small(*events)
    assert document["summary"]["failedSchedulingEvents"] == 700
    assert len(document["events"]) == 500
    assert document["events"][0]["lastTimestamp"] == CREATED
