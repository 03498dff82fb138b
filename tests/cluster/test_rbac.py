"""Least privilege: what the live code asks of the API is what `deploy/base` grants, no less and no more."""

from pathlib import Path

import pytest
import yaml

from tests.cluster.fake_api import FakeApi, _parse, eventually, quick_backoff
from tests.cluster.objects import namespace, quota, team
from webhook.cluster import kinds
from webhook.cluster.live import LiveCluster

RBAC = Path(__file__).parents[2] / "deploy" / "base" / "rbac.yaml"
Grants = dict[tuple[str, str], set[str]]


def granted() -> Grants:
    """(API group, resource) -> verbs of the webhook's ClusterRole."""
    documents = yaml.safe_load_all(RBAC.read_text(encoding="utf-8"))
    (role,) = [d for d in documents if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "gpu-webhook"]
    found: Grants = {}
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def used(fake: FakeApi) -> Grants:
    """The same for the requests that a fake API recorded; anything but reading kinds that we know fails."""
    found: Grants = {}
    for method, path, query in fake.requests:
        kind, _, name = _parse(path)
        assert method == "GET"
        assert kind is not None, path
        verb = "get" if name else "watch" if query.get("watch") else "list"
        found.setdefault((kind.group, kind.plural), set()).add(verb)
    return found


@pytest.fixture
def recorded(fake: FakeApi) -> Grants:
    """Everything that the live source can be made to do."""
    fake.put(team("team-a"))
    fake.put(quota("team-a"))
    cluster = LiveCluster(fake.api(), backoff=quick_backoff, stale_after=0.0)
    cluster.start()
    try:
        assert cluster.wait_synced(10)
        facts = cluster.current()
        facts.namespace_labels("new")
        facts.node_labels("new")
        for kind in kinds.WORKLOADS:
            facts.parent("team-a", kind.name, "new")
        facts.parent("team-a", "JobSet", "new")
        assert cluster.fresh("team-a", timeout=5) is not None
        assert cluster.status().stale  # which takes a direct read
        fake.put(namespace("team-b"))
        fake.put(team("team-b"))  # which lists workloads again
        eventually(lambda: fake.count(kinds.WORKLOADS[-1].path(), watch="true") >= 2)
    finally:
        cluster.stop()
    return used(fake)


def test_the_live_code_uses_what_it_says_it_uses(recorded: Grants) -> None:
    assert recorded == {resource: set(verbs) for resource, verbs in kinds.permissions().items()}


def test_the_cluster_role_grants_what_the_live_code_uses_and_nothing_else(recorded: Grants) -> None:
    assert granted() == recorded
