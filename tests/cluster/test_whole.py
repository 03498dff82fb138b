"""A live cluster read once: all pages, the kind on every item, and what may not be read named."""

import pytest

from tests.cluster.fake_api import FakeApi, status
from tests.cluster.objects import namespace, pod, workload
from webhook.cluster import kinds
from webhook.cluster.api import ApiError
from webhook.cluster.whole import read_whole


def test_all_pages_and_all_kinds(fake: FakeApi) -> None:
    for number in range(1001):
        fake.put(namespace(f"ns-{number}"))
    fake.put(workload("Deployment", "ns-1", "web"))
    fake.put(pod("ns-1", "p"))
    whole, unreadable = read_whole(fake.api())
    assert unreadable == {}
    assert len(whole.of_kind("Namespace")) == 1001
    assert [(item["apiVersion"], item["kind"]) for item in whole.of_kind("Deployment")] == [("apps/v1", "Deployment")]
    assert len(whole.current().pods("ns-1") or ()) == 1
    assert fake.count("/api/v1/namespaces", limit="500") == 3


def test_what_may_not_be_read_is_left_out_and_named(fake: FakeApi) -> None:
    fake.every["/api/v1/nodes"] = status(403, "nodes is forbidden")
    fake.every[kinds.AUTOSCALER.path()] = status(404)
    whole, unreadable = read_whole(fake.api())
    assert set(unreadable) == {"Node", "HorizontalPodAutoscaler"}
    assert "nodes is forbidden" in unreadable["Node"]
    assert whole.current().pool_sizes("x") is None


def test_an_api_server_that_fails_is_an_error(fake: FakeApi) -> None:
    fake.every["/api/v1/pods"] = status(500)
    with pytest.raises(ApiError, match="HTTP 500"):
        read_whole(fake.api())
