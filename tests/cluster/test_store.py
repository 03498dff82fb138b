"""Lists and events in whatever order they come: the view they lead to, and when a generation was first seen."""

from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.objects import autoscaler, namespace, node, priority_class, quota, team, workload
from webhook.cluster import kinds
from webhook.cluster.kinds import Kind
from webhook.cluster.notes import Notebook
from webhook.cluster.reflector import Change
from webhook.cluster.store import Store
from webhook.cluster.view import View
from webhook.decision.facts import Note

DEPLOYMENT = kinds.WORKLOAD_KINDS["Deployment"]
Object = dict[str, Any]


class Bench:
    """A Store that is fed by hand, with a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.notebook = Notebook()
        self.relists = 0
        self.label = "gpu.platform/team"
        self.store = Store(lambda labels: self.label in labels, self.notebook, self._relist, lambda: self.now)

    def _relist(self) -> None:
        self.relists += 1

    def list(self, kind: Kind, *items: Object) -> None:
        self.store.replace(kind, [typed(kind, item) for item in items])

    def event(self, change: Change, item: Object, version: int | None = None) -> None:
        kind = kinds.kind_of(item["apiVersion"], item["kind"])
        assert kind is not None
        if version is not None:
            item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}
        self.store.apply(kind, change, typed(kind, item))

    def view(self) -> View:
        return View(self.store.state, self.notebook.notes, self.now, is_fresh=False)

    def start(self) -> None:
        """Every kind listed, and empty."""
        for kind in kinds.WATCHED:
            self.list(kind)


def typed(kind: Kind, item: Object) -> Any:
    return kinds.slimmer(kind)(msgspec.json.decode(msgspec.json.encode(item), type=kind.type))


# -- any order ---------------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Change, Object]]:
    """What happens to a small cluster, in the order in which the API server stores it."""
    stored: dict[tuple[str, str, str], Object] = {}
    events: list[tuple[Change, Object]] = []

    def happen(change: Change, item: Object) -> None:
        version = str(100 + len(events))
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": version}}
        key = (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
        uid = stored[key]["metadata"]["uid"] if key in stored else f"uid-{version}"
        item["metadata"]["uid"] = uid
        stored[key] = item
        if change == "DELETED":
            del stored[key]
        events.append((change, item))

    for _ in range(draw(st.integers(1, 25))):
        ns, name = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
        item = draw(
            st.sampled_from(
                [
                    namespace(ns, other="x"),
                    team(ns),
                    quota(ns, name=name),
                    workload("Deployment", ns, name, replicas=draw(st.integers(0, 3))),
                    workload("Job", ns, name),
                    node(name, **{"gpu.platform/pool": ns}),
                    priority_class(name, draw(st.integers(1, 9))),
                    autoscaler(ns, name, "web", draw(st.integers(1, 9))),
                ]
            )
        )
        key = (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
        if key in stored and draw(st.booleans()):
            if item["kind"] == "Namespace":  # its content goes first
                for inside in [one for one in stored if one[1] == ns]:
                    happen("DELETED", stored[inside])
            happen("DELETED", stored[key])
        elif key[1] == "" or ("Namespace", "", ns) in stored:
            happen("MODIFIED" if key in stored else "ADDED", item)
    return events


def answers(view: View) -> Object:
    """Everything that a view says about the small cluster, without the times."""
    each = {
        ns: {
            "labels": view.namespace_labels(ns),
            "quotas": view.quotas(ns),
            "autoscalers": view.autoscalers(ns),
            "workloads": seen and [one.workload for one in seen] if (seen := view.workloads(ns)) is not None else None,
            "parent": view.parent(ns, "Deployment", "a") if ns not in view.state.partial else None,
        }
        for ns in NAMES
    }
    nodes = {name: view.node_labels(name) for name in NAMES}
    return {
        "each": each,
        "nodes": nodes,
        "pools": view.pool_sizes("gpu.platform/pool"),
        "classes": view.priority_classes(),
    }


@given(histories(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_events_in_any_order_between_kinds_give_the_view_of_a_list(
    history: list[tuple[Change, Object]], random: Random
) -> None:
    """Each kind's events keep their order, as a watch does; between kinds anything goes, and some come twice."""
    final: dict[tuple[str, str, str], Object] = {}
    queues: dict[str, list[tuple[Change, Object]]] = {}
    for change, item in history:
        key = (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
        final[key] = item
        if change == "DELETED":
            del final[key]
        queues.setdefault(item["kind"], []).append((change, item))

    watched = Bench()
    watched.start()
    while queues:
        kind = random.choice(sorted(queues))
        change, item = queues[kind].pop(0)
        watched.event(change, item)
        if random.random() < 0.5:
            watched.event(change, item)
        if not queues[kind]:
            del queues[kind]
    listed = Bench()
    for kind_ in kinds.WATCHED:
        items = [item for key, item in final.items() if key[0] == kind_.name]
        listed.list(kind_, *items)
        if watched.relists and kind_.name in kinds.WORKLOAD_KINDS:
            watched.list(kind_, *items)
    assert _without_forgotten(answers(watched.view()), final) == _without_forgotten(answers(listed.view()), final)


def _without_forgotten(said: Object, final: dict[tuple[str, str, str], Object]) -> Object:
    """Only namespaces that exist: of one that is gone, one road may say "unknown" and the other "nothing"."""
    each = {ns: value for ns, value in said["each"].items() if ("Namespace", "", ns) in final}
    return {**said, "each": each}


# -- times -------------------------------------------------------------------------------------------------------------

CREATED = "2026-12-01T08:00:00Z"
CREATED_AT = 1796112000.0


def deployment(generation: int = 1, version: int = 1, uid: str = "u1", **more: Any) -> Object:
    metadata = {"creationTimestamp": CREATED, "resourceVersion": str(version), "uid": uid}
    return workload("Deployment", "team-a", "web", generation=generation, **metadata, **more)


def seen_at(bench: Bench) -> float:
    (seen,) = bench.view().workloads("team-a") or ()
    return seen.seen_at


def test_a_workload_from_a_list_counts_from_its_creation() -> None:
    bench = Bench()
    bench.start()
    bench.list(DEPLOYMENT, deployment())
    assert seen_at(bench) == CREATED_AT


def test_a_workload_that_the_watch_saw_come_counts_from_then() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", deployment())
    assert seen_at(bench) == 5000.0


def test_only_a_new_generation_counts_anew() -> None:
    bench = Bench()
    bench.start()
    bench.list(DEPLOYMENT, deployment(generation=1, version=1))
    bench.now = 6000.0
    bench.event("MODIFIED", deployment(generation=1, version=2, status={"replicas": 1}))
    assert seen_at(bench) == CREATED_AT
    bench.event("MODIFIED", deployment(generation=2, version=3))
    assert seen_at(bench) == 6000.0
    bench.now = 7000.0
    bench.event("MODIFIED", deployment(generation=2, version=4))
    assert seen_at(bench) == 6000.0


def test_a_relist_keeps_the_time_of_a_generation_that_was_seen() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", deployment(version=1))
    bench.now = 6000.0
    bench.list(DEPLOYMENT, deployment(version=9))
    assert seen_at(bench) == 5000.0
    bench.list(DEPLOYMENT, deployment(version=12, uid="u2"))  # deleted and made again meanwhile
    assert seen_at(bench) == CREATED_AT


def test_a_change_of_a_workload_that_was_let_go_does_not_make_it_new() -> None:
    bench = Bench()
    bench.start()
    bench.event("MODIFIED", deployment(generation=7))
    assert seen_at(bench) == CREATED_AT


def test_b62_an_old_event_that_comes_again_changes_nothing() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", quota("team-a", used="1"), version=10)
    bench.event("MODIFIED", quota("team-a", used="3"), version=12)
    bench.event("ADDED", quota("team-a", used="1"), version=10)
    bench.event("DELETED", quota("team-a"), version=9)  # of an earlier one of that name
    (known,) = bench.view().quotas("team-a") or ()
    assert known.status.used == {"requests.nvidia.com/gpu": "3"}
    bench.event("DELETED", quota("team-a"), version=12)  # some servers repeat the last version here
    assert bench.view().quotas("team-a") == ()


# -- which workloads are kept ------------------------------------------------------------------------------------------


def test_workloads_are_kept_for_gpu_namespaces_only() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", team("team-a"), version=1)
    bench.event("ADDED", namespace("web-shop"), version=2)
    bench.event("ADDED", workload("Deployment", "web-shop", "cart"), version=3)
    bench.event("ADDED", workload("Deployment", "team-a", "web"), version=4)
    assert len(bench.view().workloads("team-a") or ()) == 1
    assert bench.view().workloads("web-shop") is None  # not learned, which is not the same as none


def test_a_list_of_workloads_that_comes_before_the_namespaces_is_sifted_when_they_come() -> None:
    bench = Bench()
    bench.list(DEPLOYMENT, workload("Deployment", "web-shop", "cart"), deployment())
    bench.list(kinds.NAMESPACE, team("team-a"), namespace("web-shop"))
    table = bench.store.state.workloads["Deployment"]
    assert table is not None
    assert [seen.workload.metadata.name for seen in table] == ["web"]


def test_a_namespace_that_becomes_a_gpu_namespace_is_unknown_until_its_workloads_were_listed() -> None:
    bench = Bench()
    bench.list(kinds.NAMESPACE, namespace("team-a"))
    for kind in kinds.WORKLOADS:
        bench.list(kind)
    bench.event("ADDED", deployment())
    bench.event("MODIFIED", team("team-a"), version=5)
    assert bench.relists == 1
    for kind in kinds.WORKLOADS:
        assert bench.view().workloads("team-a") is None
        bench.list(kind, *([deployment()] if kind is DEPLOYMENT else []))
    assert [seen.workload.metadata.name for seen in bench.view().workloads("team-a") or ()] == ["web"]


def test_a_changed_policy_asks_about_every_namespace_again() -> None:
    bench = Bench()
    bench.start()
    bench.list(kinds.NAMESPACE, namespace("team-a", tier="x"), team("team-b"))
    bench.event("ADDED", workload("Deployment", "team-b", "b"))
    bench.label = "tier"
    bench.store.reconsider()
    assert bench.relists == 1
    assert bench.view().workloads("team-b") is None
    for kind in kinds.WORKLOADS:
        bench.list(kind)
    assert bench.view().workloads("team-a") == ()


def test_a_namespace_made_again_with_the_label_does_not_miss_a_workload_that_came_early() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", namespace("team-a"), version=1)
    bench.event("ADDED", deployment(version=4))  # of the namespace that is still to come
    bench.event("DELETED", namespace("team-a"), version=2)
    bench.event("ADDED", team("team-a"), version=3)
    assert bench.relists == 1
    assert bench.view().workloads("team-a") is None


def test_a_kind_that_is_lost_makes_the_workloads_unknown() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", deployment())
    bench.store.lose(kinds.WORKLOAD_KINDS["CronJob"])
    assert bench.view().workloads("team-a") is None
    for kind in (kinds.NAMESPACE, kinds.NODE, kinds.PRIORITY_CLASS, kinds.RESOURCE_QUOTA, kinds.AUTOSCALER):
        bench.store.lose(kind)
    view = bench.view()
    assert view.namespace_labels("team-a") is None
    assert view.quotas("team-a") is None
    assert view.autoscalers("team-a") is None
    assert view.priority_classes() is None
    assert view.pool_sizes("gpu.platform/pool") is None


def test_a_nodes_status_is_no_news() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", node("n1", pool="a"), version=1)
    before = bench.store.state.nodes
    bench.event("MODIFIED", {**node("n1", pool="a"), "status": {"allocatable": {"cpu": "4"}}}, version=2)
    assert bench.store.state.nodes is before
    assert bench.view().pool_sizes("pool") == {"a": 1}
    bench.event("MODIFIED", node("n1", pool="b"), version=3)
    assert bench.view().pool_sizes("pool") == {"b": 1}


# -- notes -------------------------------------------------------------------------------------------------------------


def noted(bench: Bench, item: Object, pods: int = 2, at: float = 5000.0) -> Note:
    admitted = typed(DEPLOYMENT, item)
    note = Note("team-a", "Deployment", "web", admitted.metadata.uid, pods, admitted, at)
    bench.notebook.add(note)
    return note


def test_a_note_ends_when_the_pods_appear() -> None:
    bench = Bench()
    bench.start()
    note = noted(bench, deployment(replicas=2))
    bench.event("ADDED", deployment(version=1, replicas=2))
    bench.event("MODIFIED", deployment(version=2, replicas=2, status={"replicas": 1}))
    assert bench.view().notes("team-a") == (note,)
    bench.event("MODIFIED", deployment(version=3, replicas=2, status={"replicas": 2}))
    assert bench.view().notes("team-a") == ()


def test_a_note_ends_when_its_object_is_gone() -> None:
    bench = Bench()
    bench.start()
    noted(bench, deployment())
    bench.event("ADDED", deployment(version=1))
    bench.event("DELETED", deployment(version=2))
    assert bench.view().notes("team-a") == ()


def test_the_end_of_an_earlier_object_of_that_name_does_not_end_a_note() -> None:
    bench = Bench()
    bench.start()
    bench.event("ADDED", deployment(version=1, uid="u0"))
    note = noted(bench, deployment())
    bench.event("DELETED", deployment(version=2, uid="u0"))
    assert bench.view().notes("team-a") == (note,)


def test_the_same_write_asked_about_twice_is_noted_once() -> None:
    bench = Bench()
    noted(bench, deployment(generation=2))
    second = noted(bench, deployment(generation=2))
    third = noted(bench, deployment(generation=3))
    assert bench.view().notes("team-a") == (second, third)
    recreated = noted(bench, deployment(uid="u9"))
    assert bench.view().notes("team-a") == (recreated,)


def test_notes_that_had_their_time_are_forgotten_when_the_next_one_comes() -> None:
    bench = Bench()
    noted(bench, deployment())
    other = typed(DEPLOYMENT, workload("Deployment", "team-b", "x"))
    bench.notebook.add(Note("team-b", "Deployment", "x", "", 1, other, 5015.0))
    assert set(bench.notebook.notes) == {"team-b"}
