"""The exporter's own watch: what it keeps is what the API would list, also after 410, 401 and 500 (B62)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import fake_api
from tests.cluster.fake_api import FakeApi, Handler, eventually, gone, quick_backoff, silent, status, stream
from tests.exporter.samples import Json, event, namespace, pod
from webhook.cluster import reflector
from webhook.exporter.live import WATCHED, LiveSource

PODS, EVENTS = "/api/v1/pods", "/api/v1/events"
RBAC = Path(__file__).parents[2] / "deploy" / "base" / "rbac.yaml"


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with fake_api.running() as running:
        running.every[EVENTS] = _events()
        yield running


@pytest.fixture
def source(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], LiveSource]]:
    monkeypatch.setattr(reflector, "Backoff", quick_backoff)
    opened: list[LiveSource] = []

    def start() -> LiveSource:
        opened.append(LiveSource(fake.api()))
        opened[-1].wait(10)
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def _events(*items: Json) -> Callable[[Handler], None]:
    """The fake serves the kinds that decisions read; events are played."""

    def play(handler: Handler) -> None:
        if handler.query.get("watch"):
            handler.open_stream()
            silent(30)(handler)
        else:
            handler.send_json(200, {"metadata": {"resourceVersion": "1"}, "items": list(items)})

    return play


def names(live: LiveSource) -> list[str]:
    return sorted(one.metadata.name for one in live.view().pods)


def test_a_view_holds_what_the_api_lists(fake: FakeApi, source: Callable[[], LiveSource]) -> None:
    fake.put(namespace("team-a"))
    fake.put(pod("a"))
    fake.every[EVENTS] = _events(event("e", lastTimestamp=None, series=None))
    live = source()
    view = live.view()
    assert (view.context, names(live), len(view.events)) == ("fake", ["a"], 1)
    assert view.labels["team-a"]["gpu.platform/team"] == "inference"
    assert live.problems() == []
    fake.put(pod("b"))
    eventually(lambda: names(live) == ["a", "b"])
    fake.delete("Pod", "team-a", "a")
    eventually(lambda: names(live) == ["b"])


def test_b62_a_410_inside_the_stream_leaves_no_duplicates(fake: FakeApi, source: Callable[[], LiveSource]) -> None:
    fake.put(pod("a"))
    late = {**pod("b"), "metadata": {**pod("b")["metadata"], "resourceVersion": "900"}}
    fake.script[PODS] = fake_api.deque([fake_api.answer, stream(("ADDED", late), ("MODIFIED", late), gone())])
    live = source()
    eventually(lambda: fake.count(PODS) >= 3)
    eventually(lambda: names(live) == ["a"])  # listed anew: b was never in the API's store
    fake.put(pod("c"))
    eventually(lambda: names(live) == ["a", "c"])


def test_b62_errors_are_told_while_the_last_view_stays(fake: FakeApi, source: Callable[[], LiveSource]) -> None:
    fake.put(pod("a"))
    fake.script[PODS] = fake_api.deque([fake_api.answer])
    fake.every[PODS] = status(500, "etcd is away")
    live = source()
    eventually(lambda: any("etcd is away" in problem for problem in live.problems()))
    assert names(live) == ["a"]
    fake.every[PODS] = status(401, "who are you")
    eventually(lambda: any("who are you" in problem for problem in live.problems()))
    age = live.view().age
    eventually(lambda: live.view().age > age)
    del fake.every[PODS]
    fake.put(pod("b"))
    eventually(lambda: names(live) == ["a", "b"])
    eventually(lambda: live.problems() == [])


def test_a_kind_that_may_not_be_read_is_named_with_the_fix(fake: FakeApi, source: Callable[[], LiveSource]) -> None:
    fake.every["/api/v1/nodes"] = status(403, "forbidden")
    live = source()
    eventually(lambda: any("allow this service account to get, list and watch nodes" in p for p in live.problems()))
    assert live.view().nodes == ()


def test_workloads_know_their_kind(fake: FakeApi, source: Callable[[], LiveSource]) -> None:
    template = {"metadata": {}, "spec": {"containers": []}}
    metadata = {"name": "d", "namespace": "team-a"}
    fake.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}})
    assert [(one.kind, one.metadata.name) for one in source().view().workloads] == [("Deployment", "d")]
    assert len(WATCHED) == len({kind.name for kind in WATCHED}) == 13
    assert json.dumps([kind.plural for kind in WATCHED])


def test_it_asks_for_what_its_cluster_role_grants_and_nothing_else(
    fake: FakeApi, source: Callable[[], LiveSource]
) -> None:
    source()
    watched = {kind.path() for kind in WATCHED}
    eventually(lambda: watched <= {path for _, path, query in list(fake.requests) if query.get("watch")})
    plurals = {kind.path(): (kind.group, kind.plural) for kind in WATCHED}
    asked: dict[tuple[str, str], set[str]] = {}
    for method, path, query in fake.requests:
        assert method == "GET"
        asked.setdefault(plurals[path], set()).add("watch" if query.get("watch") else "list")
    (role,) = [
        each
        for each in yaml.safe_load_all(RBAC.read_text(encoding="utf-8"))
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "gpu-webhook-exporter")
    ]
    granted = {
        (group, plural): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    }
    assert asked == granted
