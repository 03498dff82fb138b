"""A live cluster as decisions see it: watches, look-ups of what they do not know, fresh reads, health."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fake_api
from tests.cluster.fake_api import FakeApi, dripping, eventually, quick_backoff, silent, status
from tests.cluster.objects import GPU, autoscaler, namespace, node, pod, priority_class, quota, team, workload
from webhook.cluster import kinds
from webhook.cluster.api import Api, ClusterError, connect
from webhook.cluster.live import LiveCluster
from webhook.cluster.reads import THREADS
from webhook.cluster.snapshot import Snapshot
from webhook.decision.facts import MustWaitError, Note

DATA = Path(__file__).parents[1] / "data"
DEPLOYMENTS = kinds.WORKLOAD_KINDS["Deployment"].path()
NAMESPACES = "/api/v1/namespaces"


@contextmanager
def live(fake: FakeApi, **options: Any) -> Iterator[LiveCluster]:
    cluster = LiveCluster(fake.api(), backoff=quick_backoff, **options)
    cluster.start()
    try:
        assert cluster.wait_synced(10)
        yield cluster
    finally:
        cluster.stop()


def small_cluster(fake: FakeApi) -> None:
    fake.put(team("team-a"))
    fake.put(quota("team-a"))
    fake.put(workload("Deployment", "team-a", "web", replicas=2))
    fake.put(workload("ReplicaSet", "team-a", "web-1", replicas=2))
    fake.put(pod("team-a", "web-1-x"))
    fake.put(pod("other", "elsewhere"))


# -- watches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["seed-cluster", "busy-cluster"])
def test_a_live_cluster_gives_the_facts_of_its_snapshot(fake: FakeApi, name: str) -> None:
    items = json.loads((DATA / name / "cluster.json").read_text())["items"]
    wanted = [item for item in items if kinds.kind_of(item["apiVersion"], item["kind"])]
    stored = [fake.put({**item, "metadata": dict(item["metadata"])}) for item in wanted]
    snapshot = Snapshot.from_objects(stored).current()
    with live(fake) as cluster:
        current = cluster.current()
        assert current.priority_classes() == snapshot.priority_classes()
        assert current.pool_sizes("gpu.platform/pool") == snapshot.pool_sizes("gpu.platform/pool")
        for ns in ("ai-inference", "ai-training", "ai-research"):
            fresh = cluster.fresh(ns, timeout=5)
            assert fresh is not None
            assert (current.is_fresh, fresh.is_fresh, snapshot.is_fresh) == (False, True, True)
            assert current.pods(ns) is None
            assert fresh.pods(ns) == snapshot.pods(ns)
            for view in (current, fresh):
                assert view.namespace_labels(ns) == snapshot.namespace_labels(ns)
                assert view.quotas(ns) == snapshot.quotas(ns)
                assert view.limit_ranges(ns) == snapshot.limit_ranges(ns)
                assert view.autoscalers(ns) == snapshot.autoscalers(ns)
                assert view.workloads(ns) == snapshot.workloads(ns)


def test_what_changes_is_seen(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        before = cluster.current()
        fake.put(quota("team-a", used="8"))
        fake.put(priority_class("gpu-training", 50000))
        fake.put(node("n1", **{"gpu.platform/pool": "a100"}))
        fake.put(autoscaler("team-a", "web", "web", 20))
        eventually(lambda: "gpu-training" in (cluster.current().priority_classes() or {}))
        eventually(lambda: cluster.current().pool_sizes("gpu.platform/pool") == {"a100": 1})
        eventually(lambda: cluster.current().autoscalers("team-a"))
        eventually(lambda: _used(cluster.current().quotas("team-a")) == ["8"])
        assert _used(before.quotas("team-a")) == ["6"]  # a view that was handed out does not change


def _used(quotas: Any) -> list[Any]:
    return [one.status.used[GPU] for one in quotas]


def test_a_namespace_that_a_rule_covers_is_watched_without_the_team_label(fake: FakeApi) -> None:
    fake.put(namespace("lab", tier="research"))
    fake.put(workload("Deployment", "lab", "web"))
    with live(fake) as cluster:
        assert cluster.current().workloads("lab") is None
    with live(fake, covers=lambda labels: labels.get("tier") == "research") as cluster:
        assert len(cluster.current().workloads("lab") or ()) == 1


def test_a_namespace_that_gets_the_label_later_has_its_workloads_listed(fake: FakeApi) -> None:
    fake.put(namespace("team-a"))
    fake.put(workload("Deployment", "team-a", "web"))
    with live(fake) as cluster:
        fake.put(team("team-a"))
        eventually(lambda: len(cluster.current().workloads("team-a") or ()) == 1)
        assert fake.count(DEPLOYMENTS, limit="500") == 2


# -- a miss costs one bounded read (H16) -------------------------------------------------------------------------------


def test_b61_namespace_and_workload_in_one_apply(fake: FakeApi) -> None:
    """The namespace is 5 ms old and its watch event is delayed: one live read, not "no labels"."""
    with live(fake) as cluster:
        fake.objects["Namespace"]["", "team-new"] = team("team-new")  # stored, but the watch says nothing
        for _ in range(3):
            labels = cluster.current().namespace_labels("team-new")
            assert labels is not None
            assert labels["gpu.platform/team"] == "research"
        assert fake.count(f"{NAMESPACES}/team-new") == 1


def test_b61_a_namespace_in_terminating_keeps_its_labels(fake: FakeApi) -> None:
    terminating = team("team-old")
    terminating["metadata"]["deletionTimestamp"] = "2026-12-01T08:00:00Z"
    fake.put(terminating)
    with live(fake) as cluster:
        assert (cluster.current().namespace_labels("team-old") or {})["gpu.platform/team"] == "research"


def test_b61_if_the_live_read_fails_too_the_labels_are_unknown(fake: FakeApi) -> None:
    with live(fake) as cluster:
        fake.every[f"{NAMESPACES}/team-new"] = status(500)
        assert cluster.current().namespace_labels("team-new") is None
        fake.every[f"{NAMESPACES}/team-dead"] = silent(5)
        began = time.monotonic()
        assert cluster.current().namespace_labels("team-dead") is None
        assert time.monotonic() - began < 1.0
        assert cluster.current().namespace_labels("team-dead") is None  # remembered for a moment
        assert fake.count(f"{NAMESPACES}/team-dead") == 1


def test_a_name_that_does_not_exist_is_asked_for_once_in_a_moment(fake: FakeApi) -> None:
    with live(fake) as cluster:
        for _ in range(5):
            assert cluster.current().node_labels("no-such-node") is None
            assert cluster.current().parent("team-a", "Deployment", "no-such") is None
        assert fake.count("/api/v1/nodes/no-such-node") == 1
        assert fake.count("/apis/apps/v1/namespaces/team-a/deployments/no-such") == 1


def test_a_node_that_is_younger_than_the_watch_is_read(fake: FakeApi) -> None:
    with live(fake) as cluster:
        fake.objects["Node"]["", "n9"] = node("n9", pool="a100")
        assert cluster.current().node_labels("n9") == {"pool": "a100"}


def test_the_parent_of_a_scale_is_read_where_workloads_are_not_kept(fake: FakeApi) -> None:
    fake.put(namespace("web-shop"))
    fake.put(workload("StatefulSet", "web-shop", "db", replicas=3))
    with live(fake) as cluster:
        parent = cluster.current().parent("web-shop", "StatefulSet", "db")
        assert parent is not None
        assert (parent.kind, parent.spec.replicas) == ("StatefulSet", 3)
        assert cluster.current().parent("web-shop", "JobSet", "db") is None


def test_whoever_may_not_wait_gets_what_is_known_and_is_told_where_a_read_is_needed(fake: FakeApi) -> None:
    fake.put(team("team-a"))
    with live(fake) as cluster:
        fake.objects["Namespace"]["", "team-new"] = team("team-new")
        fake.objects["Node"]["", "n9"] = node("n9", pool="a100")
        at_once = cluster.current(may_wait=False)
        assert at_once.namespace_labels("team-a") is not None
        for asks in (
            lambda: at_once.namespace_labels("team-new"),
            lambda: at_once.node_labels("n9"),
            lambda: at_once.parent("team-a", "Deployment", "no-such"),
        ):
            with pytest.raises(MustWaitError):
                asks()
        assert fake.count(f"{NAMESPACES}/team-new") == 0
        waited = cluster.current().namespace_labels("team-new")
        assert at_once.namespace_labels("team-new") == waited  # what somebody else waited for is known now


def test_names_from_reviews_lead_nowhere_else(fake: FakeApi) -> None:
    with live(fake) as cluster:
        cluster.current().namespace_labels("../../../apis/apps/v1/deployments?x=")
        # By its path and not as the last request: the watches ask at the same time.
        (asked,) = [request for request in fake.requests if "deployments?x=" in request[1]]
        assert asked[1] == f"{NAMESPACES}/../../../apis/apps/v1/deployments?x="  # quoted on the wire
        assert asked[2] == {}


# -- fresh reads -------------------------------------------------------------------------------------------------------


def test_a_fresh_read_brings_quotas_workloads_and_pods_of_one_namespace(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        stale = {**quota("team-a", used="8"), "metadata": {**quota("team-a")["metadata"], "resourceVersion": "9"}}
        fake.objects["ResourceQuota"]["team-a", "gpu-quota"] = stale  # the watch has not told
        facts = cluster.fresh("team-a", timeout=2)
        assert facts is not None
        assert facts.is_fresh
        assert _used(facts.quotas("team-a")) == ["8"]
        assert [one.metadata.name for one in facts.pods("team-a") or ()] == ["web-1-x"]
        assert [seen.workload.kind for seen in facts.workloads("team-a") or ()] == ["Deployment", "ReplicaSet"]
        assert facts.pods("other") is None  # only one namespace was read
        assert facts.workloads("other") is None
        assert _used(cluster.current().quotas("team-a")) == ["6"]
        assert facts.namespace_labels("team-a") == cluster.current().namespace_labels("team-a")


def test_a_fresh_read_keeps_the_times_that_the_watch_saw(fake: FakeApi) -> None:
    small_cluster(fake)
    now = [2e9]
    with live(fake, clock=lambda: now[0]) as cluster:
        fake.put(workload("Deployment", "team-a", "late"))
        eventually(lambda: len(cluster.current().workloads("team-a") or ()) == 3)
        now[0] = 2e9 + 5
        newer = fake.objects["Deployment"]["team-a", "web"]
        fake.objects["Deployment"]["team-a", "web"] = {**newer, "metadata": {**newer["metadata"], "generation": 2}}
        unseen = workload("Deployment", "team-a", "unseen", creationTimestamp="2026-12-01T08:00:00Z")
        fake.objects["Deployment"]["team-a", "unseen"] = unseen
        facts = cluster.fresh("team-a", timeout=2)
        assert facts is not None
        times = {seen.workload.metadata.name: seen.seen_at for seen in facts.workloads("team-a") or ()}
        assert times["late"] == 2e9  # as the watch saw it
        assert times["web"] == 2e9 + 5  # a generation that the watch is about to see
        assert times["unseen"] == 1796112000.0  # not known to the watch: as old as it says
        assert times["web-1"] < 2e9  # from the list: since its creation


def test_the_api_server_is_asked_for_live_pods_only(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        cluster.fresh("team-a", timeout=2)
        selector = "status.phase!=Succeeded,status.phase!=Failed"
        assert fake.count("/api/v1/namespaces/team-a/pods", fieldSelector=selector) == 1
        assert fake.count("/api/v1/pods") == 0  # pods are never watched


@pytest.mark.parametrize("kind", ["ResourceQuota", "Pod", "Job"])
def test_a_fresh_read_that_fails_is_none_and_in_time(fake: FakeApi, kind: str) -> None:
    small_cluster(fake)
    row = next(one for one in kinds.ALL if one.name == kind)
    with live(fake) as cluster:
        for play in (silent(5), dripping(5), status(500), status(429), fake_api.cut):
            fake.every[row.path("team-a")] = play
            began = time.monotonic()
            assert cluster.fresh("team-a") is None
            assert time.monotonic() - began < 1.0  # 0.3 s, and a busy machine
        del fake.every[row.path("team-a")]
        assert cluster.fresh("team-a", timeout=2) is not None  # nothing was left behind


def test_a_connection_that_was_closed_meanwhile_costs_a_fresh_read_nothing(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        fake.script[kinds.RESOURCE_QUOTA.path("team-a")] = fake_api.deque([fake_api.cut])
        assert cluster.fresh("team-a", timeout=2) is not None


def test_a_dead_api_server_holds_few_threads_and_nobody_for_long(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        for kind in kinds.ALL:
            fake.every[kind.path("team-a")] = silent(5)
        earlier = set(threading.enumerate())
        took, answers, readers = [], [], []

        def ask() -> None:
            began = time.monotonic()
            answers.append(cluster.fresh("team-a"))
            took.append(time.monotonic() - began)
            ours = [thread for thread in threading.enumerate() if thread.name.startswith("live-read")]
            readers.append(len(set(ours) - earlier))

        askers = [threading.Thread(target=ask) for _ in range(40)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(5)
        assert answers == [None] * 40
        assert max(took) < 1.5
        assert 0 < max(readers) <= THREADS


def test_what_may_not_be_read_is_unknown_in_a_fresh_read_but_quotas_must_be_readable(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        fake.every["/api/v1/namespaces/team-a/pods"] = status(403)
        fake.every[kinds.WORKLOAD_KINDS["Job"].path("team-a")] = status(403)
        facts = cluster.fresh("team-a", timeout=2)
        assert facts is not None
        assert facts.pods("team-a") is None
        assert facts.workloads("team-a") is None
        assert _used(facts.quotas("team-a")) == ["6"]
        fake.every[kinds.RESOURCE_QUOTA.path("team-a")] = status(403)
        assert cluster.fresh("team-a", timeout=2) is None


def test_a_note_gives_way_to_its_object_in_a_fresh_read(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        parent = cluster.current().parent("team-a", "Deployment", "web")
        assert parent is not None
        uid = parent.metadata.uid
        seen = Note("team-a", "Deployment", "web", uid, 2, parent, time.time())
        cluster.note(seen)
        assert cluster.current().notes("team-a") == (seen,)
        facts = cluster.fresh("team-a", timeout=2)
        assert facts is not None
        assert facts.notes("team-a") == ()  # its own gap is known now
        coming = workload("Deployment", "team-a", "web", replicas=5, generation=2)
        admitted = kinds.list_decoder(kinds.WORKLOAD_KINDS["Deployment"]).decode(json.dumps({"items": [coming]}))
        later = Note("team-a", "Deployment", "web", uid, 3, admitted.items[0], time.time())
        cluster.note(later)
        facts = cluster.fresh("team-a", timeout=2)
        assert facts is not None
        assert facts.notes("team-a") == (later,)  # admitted, not stored yet


# -- permissions and health --------------------------------------------------------------------------------------------


def test_a_missing_permission_degrades_one_kind_and_says_what_to_grant(fake: FakeApi) -> None:
    small_cluster(fake)
    fake.every[kinds.AUTOSCALER.path()] = status(403, "horizontalpodautoscalers.autoscaling is forbidden")
    with live(fake) as cluster:
        assert cluster.current().autoscalers("team-a") is None
        assert len(cluster.current().quotas("team-a") or ()) == 1
        told = cluster.status()
        assert told.synced
        assert not told.stale
        assert len(told.reasons) == 1
        assert "horizontalpodautoscalers" in told.reasons[0]
        assert "allow this service account to get, list and watch" in told.reasons[0]


def test_all_is_well(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake) as cluster:
        told = cluster.status()
        assert (told.synced, told.reasons, told.stale) == (True, (), False)
        assert told.age == pytest.approx(cluster.age(), abs=1)
        assert cluster.age() < 10


def test_nothing_is_synced_while_the_api_server_is_down(fake: FakeApi) -> None:
    for kind in kinds.WATCHED:
        fake.every[kind.path()] = status(503)
    cluster = LiveCluster(fake.api(), backoff=quick_backoff)
    cluster.start()
    try:
        assert not cluster.wait_synced(0.2)
        told = cluster.status()
        assert not told.synced
        assert "HTTP 503" in told.reasons[0]
        assert cluster.current().quotas("team-a") is None
        fake.every.clear()
        assert cluster.wait_synced(5)
    finally:
        cluster.stop()


def test_stale_watches_while_a_direct_read_succeeds_are_this_process_fault(fake: FakeApi) -> None:
    """DESIGN 5.8: not ready then, but only then; an API server that is down for all must not empty the endpoints."""
    small_cluster(fake)
    with live(fake, stale_after=0.2) as cluster:  # the fake sends no bookmarks, so its watches fall silent
        eventually(lambda: cluster.age() > 0.2)
        told = cluster.status()
        assert told.stale
        assert "the watches are stale though the API server answers" in told.reasons[0]


def test_stale_watches_of_an_api_server_that_is_down_are_not(fake: FakeApi) -> None:
    small_cluster(fake)
    with live(fake, stale_after=0.2) as cluster:
        for kind in kinds.WATCHED:
            fake.every[kind.path()] = silent(0.6)
        eventually(lambda: cluster.age() > 0.2)
        began = time.monotonic()
        told = cluster.status()
        assert time.monotonic() - began < 1.5
        assert not told.stale
        assert told.reasons
        assert "s old" in told.reasons[0]


# -- which cluster -----------------------------------------------------------------------------------------------------


def test_a_kubeconfig_names_the_cluster(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "lab",
                "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": fake.url}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    fake.put(team("team-a"))
    api = connect()
    assert (api.context, api.host) == ("lab", fake.url)
    assert b"team-a" in api.get(NAMESPACES)


@pytest.mark.parametrize(("text", "told"), [(None, "no cluster can be read from it"), ("{", "no cluster can be read")])
def test_a_bad_kubeconfig_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, told: str
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(ClusterError, match=told) as error:
        connect()
    assert str(file) in str(error.value)


def test_without_any_cluster_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterError, match="set KUBECONFIG to a kubeconfig file"):
        connect()


def test_every_failure_of_a_request_is_one_kind_of_error(fake: FakeApi) -> None:
    from webhook.cluster.api import ApiError

    api: Api = fake.api()
    for play, told in [
        (status(403, "no"), "/x: HTTP 403: no"),
        (fake_api.cut, "does not answer"),
        (silent(2), "does not answer"),
        (dripping(2), "the answer took too long"),
    ]:
        fake.every["/x"] = play
        with pytest.raises(ApiError, match=told):
            api.get("/x", timeout=0.1)
