"""The live source against the lab: a Kubernetes API with controllers, over TLS, that knows nothing of our tests."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cluster.fake_api import eventually
from tests.cluster.objects import GPU, node, quota, team, workload
from webhook.cluster.api import connect
from webhook.cluster.live import LiveCluster
from webhook.cluster.whole import read_whole
from webhook.decision.facts import Note
from webhook.k8s.objects import Workload
from webhook.lab.server import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as running:
        running.load(
            [{**node("n1", **{"gpu.platform/pool": "a100"}), "status": {"allocatable": {"nvidia.com/gpu": "8"}}}]
        )
        running.create(team("team-a"))
        running.create(quota("team-a", hard="8", used="0"))
        yield running


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Iterator[LiveCluster]:
    source = LiveCluster(connect(str(lab.kubeconfig(tmp_path / "kubeconfig"))))
    source.start()
    try:
        assert source.wait_synced(10)
        yield source
    finally:
        source.stop()


def deployment(name: str, replicas: int) -> dict[str, object]:
    made = workload("Deployment", "team-a", name, replicas=replicas)
    made["metadata"].pop("generation")
    made["spec"]["selector"] = {"matchLabels": {"app": name}}
    made["spec"]["template"]["metadata"] = {"labels": {"app": name}}
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "busybox"
    return made


def used(cluster: LiveCluster) -> str:
    return next((str((one.status.used or {}).get(GPU)) for one in cluster.current().quotas("team-a") or ()), "")


def test_a_deployment_on_its_way_from_note_to_pods(lab: Lab, cluster: LiveCluster) -> None:
    eventually(lambda: used(cluster) == "0", 10)
    made = deployment("web", 2)
    admitted = msgspec.convert({**made, "metadata": {"name": "web", "namespace": "team-a"}}, Workload)
    cluster.note(Note("team-a", "Deployment", "web", "", 2, admitted, time.time()))  # /validate comes before storage
    assert len(cluster.current().notes("team-a")) == 1
    lab.create(made)

    def with_both_pods() -> bool:
        facts = cluster.fresh("team-a", timeout=5)
        return facts is not None and len(facts.pods("team-a") or ()) == 2

    eventually(with_both_pods, 10)
    eventually(lambda: used(cluster) == "2", 10)
    eventually(lambda: not cluster.current().notes("team-a"), 10)
    facts = cluster.fresh("team-a", timeout=5)
    assert facts is not None
    assert {seen.workload.kind for seen in facts.workloads("team-a") or ()} == {"Deployment", "ReplicaSet"}
    assert all(time.time() - seen.seen_at < 60 for seen in facts.workloads("team-a") or ())


def test_live_facts_are_those_of_the_whole_cluster_read_at_once(lab: Lab, cluster: LiveCluster, tmp_path: Path) -> None:
    lab.create(deployment("web", 1))
    eventually(lambda: used(cluster) == "1", 10)
    api = connect(str(lab.kubeconfig(tmp_path / "again")))

    def agree() -> bool:
        whole, unreadable = read_whole(api)
        fresh, listed = cluster.fresh("team-a", timeout=5), whole.current()
        assert unreadable == {}
        assert fresh is not None
        workloads = [[seen.workload for seen in view.workloads("team-a") or ()] for view in (fresh, listed)]
        return (
            fresh.quotas("team-a") == listed.quotas("team-a")
            and fresh.pods("team-a") == listed.pods("team-a")
            and workloads[0] == workloads[1]
            and fresh.priority_classes() == listed.priority_classes()
            and fresh.namespace_labels("team-a") == listed.namespace_labels("team-a")
            and fresh.pool_sizes("gpu.platform/pool") == listed.pool_sizes("gpu.platform/pool") == {"a100": 1}
        )

    eventually(agree, 10)
    assert cluster.status().reasons == ()


def test_b61_namespace_and_workload_in_one_apply(lab: Lab, cluster: LiveCluster) -> None:
    lab.create(team("team-new"))  # the watch may or may not have told yet: the answer is the same
    assert (cluster.current().namespace_labels("team-new") or {})["gpu.platform/team"] == "research"
