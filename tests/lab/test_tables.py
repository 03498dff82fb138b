"""`kubectl get` prints what it prints on a real cluster."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.lab.conftest import pod, quota, workload
from webhook.lab import resources, tables
from webhook.lab.resources import Object, Resource


def cells(resource: Resource, obj: Object) -> dict[str, Any]:
    table = tables.render(resource, [obj], 1)
    names = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(names, table["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(5, "5s"), (119, "119s"), (150, "2m30s"), (3600, "60m"), (4 * 3600 + 120, "4h2m"), (30 * 3600, "30h"),
     (3 * 86400 + 7200, "3d2h"), (20 * 86400, "20d")],
)  # fmt: skip
def test_ages_are_shortened_as_kubectl_does(seconds: int, shown: str) -> None:
    since = (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert tables.age(since) in (shown, shown.replace("119s", "2m"))


def test_o7_a_quota_shows_its_ineffective_key_as_unused() -> None:
    obj = quota("q", "n")
    hard = {"limits.nvidia.com/gpu": "4", "requests.nvidia.com/gpu": "4"}
    obj |= {"status": {"hard": hard, "used": {"requests.nvidia.com/gpu": "3"}}}
    row = cells(resources.RESOURCE_QUOTAS, obj)
    assert (row["Request"], row["Limit"]) == ("requests.nvidia.com/gpu: 3/4", "limits.nvidia.com/gpu: 0/4")


COMPLETED = [{"state": {"terminated": {"reason": "Completed"}}}]


@pytest.mark.parametrize(
    ("status", "deleting", "shown"),
    [
        ({"phase": "Pending"}, False, "Pending"),
        ({"phase": "Failed", "reason": "NodeAffinity"}, False, "NodeAffinity"),
        ({"phase": "Running"}, True, "Terminating"),
        ({"phase": "Succeeded", "containerStatuses": COMPLETED}, False, "Completed"),
        ({"phase": "Pending", "conditions": [{"reason": "SchedulingGated"}]}, False, "SchedulingGated"),
    ],
)  # fmt: skip
def test_status_of_a_pod(status: Object, deleting: bool, shown: str) -> None:
    obj = {**pod("p"), "status": status}
    if deleting:
        obj["metadata"]["deletionTimestamp"] = "2026-12-01T00:00:00Z"
    assert cells(resources.PODS, obj)["Status"] == shown


def test_repeated_events_show_how_often() -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event: Object = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "reason": "FailedScheduling",
    }
    event |= {"eventTime": now, "series": {"count": 3, "lastObservedTime": now}, "type": "Warning", "message": "m"}
    row = cells(resources.EVENTS, event)
    assert row["Last Seen"].endswith("s)") and "(x3 over " in row["Last Seen"]
    assert row["Object"] == "pod/p"


def test_job_and_deployment_counts() -> None:
    job = {**workload("Job", "j", "n", completions=3, parallelism=2), "status": {"succeeded": 1}}
    assert cells(resources.JOBS, job)["Completions"] == "1/3"
    web = {**workload("Deployment", "w", "n", replicas=3), "status": {"readyReplicas": 2, "updatedReplicas": 3}}
    row = cells(resources.DEPLOYMENTS, web)
    assert (row["Ready"], row["Up-to-date"], row["Images"]) == ("2/3", 3, "busybox:1.36")
