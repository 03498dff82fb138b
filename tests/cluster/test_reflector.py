"""One kind, copied for ever: pages, events, and every way in which an API server breaks off."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster import fake_api
from tests.cluster.fake_api import FakeApi, eventually, gone, quick_backoff, status, stream
from tests.cluster.objects import namespace, workload
from webhook.cluster import kinds
from webhook.cluster.kinds import Kind
from webhook.cluster.reflector import Backoff, Change, Reflector

PATH = "/api/v1/namespaces"


class Recorder:
    """Writes down what a reflector says."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.events: list[tuple[str, str]] = []
        self.lost = 0

    def replace(self, kind: Kind, items: list[Any]) -> None:
        self.lists.append([item.metadata.name for item in items])

    def apply(self, kind: Kind, change: Change, item: Any) -> None:
        self.events.append((change, item.metadata.name))

    def lose(self, kind: Kind) -> None:
        self.lost += 1


@contextmanager
def reflecting(fake: FakeApi, kind: Kind = kinds.NAMESPACE, backoff: Backoff | None = None) -> Iterator[Any]:
    sink = Recorder()
    reflector = Reflector(fake.api(), kind, sink, backoff=backoff or quick_backoff())
    reflector.start()
    try:
        yield reflector, sink
    finally:
        reflector.stop()
        assert not reflector._thread.is_alive()


def versioned(item: dict[str, Any], version: int) -> dict[str, Any]:
    return {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}


def test_a_list_comes_in_pages_and_is_handed_on_whole(fake: FakeApi) -> None:
    names = [f"ns-{number:04}" for number in range(1100)]
    for name in names:
        fake.put(namespace(name))
    with reflecting(fake) as (reflector, sink):
        assert reflector.settled.wait(5)
        assert sink.lists == [names]
        assert reflector.synced
        assert fake.count(PATH, limit="500") == 3


def test_events_follow_the_list_without_a_gap(fake: FakeApi) -> None:
    fake.put(namespace("a"))
    with reflecting(fake) as (reflector, sink):
        assert reflector.settled.wait(5)
        fake.put(namespace("b"))
        fake.put(namespace("a", tier="x"))
        fake.delete("Namespace", "", "a")
        eventually(lambda: len(sink.events) == 3)
        assert sink.events == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_items_of_a_list_get_the_kind_that_the_api_leaves_out(fake: FakeApi) -> None:
    fake.put(workload("Deployment", "team-a", "web"))
    seen: list[Any] = []

    class Sink(Recorder):
        def replace(self, kind: Kind, items: list[Any]) -> None:
            seen.extend(items)

    reflector = Reflector(fake.api(), kinds.WORKLOAD_KINDS["Deployment"], Sink(), backoff=quick_backoff())
    reflector.start()
    assert reflector.settled.wait(5)
    reflector.stop()
    assert [(item.kind, item.api_version) for item in seen] == [("Deployment", "apps/v1")]


def test_b62_a_410_inside_a_200_stream_then_a_closed_socket_a_401_and_a_500(fake: FakeApi) -> None:
    fake.put(namespace("a"))
    first, second = versioned(namespace("b"), 101), versioned(namespace("c"), 102)
    fake.script[PATH] = fake_api.deque(
        [
            fake_api.answer,  # the first list
            stream(("ADDED", first), ("ADDED", second), gone()),
            fake_api.cut,  # the relist: the socket closes
            status(401),
            status(500),
            fake_api.answer,  # the relist that succeeds
        ]
    )
    with reflecting(fake) as (reflector, sink):
        assert reflector.settled.wait(5)
        eventually(lambda: len(sink.lists) == 2)
        assert sink.events == [("ADDED", "b"), ("ADDED", "c")]  # nothing twice
        fake.put(namespace("d"))
        eventually(lambda: len(sink.events) == 3)  # the thread is alive and well
        assert reflector.failure is None
    versions = [query.get("resourceVersion") for _, path, query in fake.requests if query.get("watch")]
    assert None not in versions  # no resource_version=None is ever sent back


def test_b62_the_age_rises_while_nothing_is_heard(fake: FakeApi) -> None:
    with reflecting(fake) as (reflector, _):
        assert reflector.settled.wait(5)
        fake.every[PATH] = status(500, "etcd is away")
        reflector.relist()
        eventually(lambda: reflector.failure is not None)
        heard = reflector.last_contact
        eventually(lambda: fake.count(PATH) > 5)
        assert reflector.last_contact == heard
        assert reflector.age >= time.monotonic() - heard - 0.01
        assert "HTTP 500: etcd is away" in reflector.failure
        del fake.every[PATH]
        eventually(lambda: reflector.last_contact > heard)
        assert reflector.failure is None


def test_a_watch_that_breaks_off_is_taken_up_where_it_was(fake: FakeApi) -> None:
    fake.script[PATH] = fake_api.deque(
        [fake_api.answer, stream(("ADDED", versioned(namespace("b"), 107)), end=False), fake_api.answer]
    )
    with reflecting(fake) as (_, sink):
        eventually(lambda: fake.count(PATH, watch="true", resourceVersion="107") == 1)
        assert len(sink.lists) == 1
        assert sink.events == [("ADDED", "b")]


def test_a_bookmark_is_contact_and_moves_the_resource_version(fake: FakeApi) -> None:
    bookmark = ("BOOKMARK", {"kind": "Namespace", "metadata": {"resourceVersion": "555"}})
    fake.script[PATH] = fake_api.deque([fake_api.answer, stream(bookmark), fake_api.answer])
    with reflecting(fake) as (reflector, sink):
        eventually(lambda: fake.count(PATH, watch="true", resourceVersion="555") == 1)
        assert sink.events == []
        assert reflector.age < 5
    assert fake.count(PATH, watch="true", allowWatchBookmarks="true") == 2
    asked = [int(query["timeoutSeconds"]) for _, _, query in fake.requests if query.get("watch")]
    assert all(60 <= seconds <= 120 for seconds in asked)


def test_a_410_over_http_lists_anew(fake: FakeApi) -> None:
    fake.script[PATH] = fake_api.deque([fake_api.answer, status(410)])
    with reflecting(fake) as (_, sink):
        eventually(lambda: len(sink.lists) == 2)


def test_an_expired_continue_token_starts_the_list_over(fake: FakeApi) -> None:
    for number in range(501):
        fake.put(namespace(f"ns-{number:04}"))
    fake.script[PATH] = fake_api.deque([fake_api.answer, status(410)])
    with reflecting(fake) as (reflector, sink):
        assert reflector.settled.wait(5)
        assert [len(names) for names in sink.lists] == [501]


def test_without_permission_the_kind_is_lost_and_the_fix_is_named(fake: FakeApi) -> None:
    kind = kinds.AUTOSCALER
    fake.every[kind.path()] = status(403, "forbidden for system:serviceaccount:gpu-webhook:webhook")
    with reflecting(fake, kind) as (reflector, sink):
        assert reflector.settled.wait(5)
        assert sink.lost >= 1
        assert not reflector.synced
        assert (
            "allow this service account to get, list and watch horizontalpodautoscalers of API group autoscaling"
            in (reflector.refused)
        )
        del fake.every[kind.path()]  # somebody grants it
        eventually(lambda: reflector.synced)
        assert reflector.refused is None


@pytest.mark.parametrize(
    "line", [b"{not json\n", b'{"type": "ODD", "object": {}}\n', b'{"type": "ADDED", "object": 7}\n']
)
def test_what_cannot_be_read_leads_to_a_new_list(fake: FakeApi, line: bytes) -> None:
    def garbage(handler: fake_api.Handler) -> None:
        handler.open_stream()
        handler.send_raw(line)
        handler.end_stream()

    fake.script[PATH] = fake_api.deque([fake_api.answer, garbage])
    with reflecting(fake) as (_, sink):
        eventually(lambda: len(sink.lists) == 2)
        assert sink.events == []


def test_half_a_line_at_a_broken_end_is_no_event(fake: FakeApi) -> None:
    def half(handler: fake_api.Handler) -> None:
        handler.open_stream()
        handler.send_raw(b'{"type": "ADDED", "object": {"metadata": {"name": "half"')
        handler.close_connection = True

    fake.script[PATH] = fake_api.deque([fake_api.answer, half])
    with reflecting(fake) as (_, sink):
        eventually(lambda: fake.count(PATH, watch="true") == 2)
        assert sink.events == []
        assert len(sink.lists) == 1


def test_a_watch_that_ends_at_once_is_not_asked_for_in_a_loop(fake: FakeApi) -> None:
    def ended(handler: fake_api.Handler) -> None:
        stream()(handler) if handler.query.get("watch") else fake_api.answer(handler)

    fake.every[PATH] = ended
    with reflecting(fake, backoff=Backoff(base=0.2, cap=0.2)) as (reflector, _):
        assert reflector.settled.wait(5)
        eventually(lambda: fake.count(PATH, watch="true") == 3)
        began = time.monotonic()
        eventually(lambda: fake.count(PATH, watch="true") == 6)
        assert time.monotonic() - began > 0.25


def test_stopping_interrupts_a_silent_watch(fake: FakeApi) -> None:
    with reflecting(fake) as (reflector, _):
        eventually(lambda: fake.count(PATH, watch="true") == 1)
        began = time.monotonic()
        reflector.stop()
        assert time.monotonic() - began < 1


def test_relist_interrupts_a_silent_watch_and_lists_again(fake: FakeApi) -> None:
    with reflecting(fake) as (reflector, sink):
        eventually(lambda: fake.count(PATH, watch="true") == 1)
        fake.log.clear()  # the watch would never tell
        reflector.relist()
        eventually(lambda: len(sink.lists) == 2)


def test_pauses_double_up_to_a_cap_with_jitter_and_start_over_after_a_quiet_time() -> None:
    now = [0.0]
    backoff = Backoff(base=1, cap=8, clock=lambda: now[0])
    pauses = [backoff.next() for _ in range(8)]
    for pause, full in zip(pauses, [1, 2, 4, 8, 8, 8, 8, 8], strict=True):
        assert full / 2 <= pause <= full
    now[0] = 100
    assert backoff.next() <= 1


def test_an_exception_in_the_sink_does_not_end_the_thread(fake: FakeApi) -> None:
    failed = threading.Event()

    class Sink(Recorder):
        def replace(self, kind: Kind, items: list[Any]) -> None:
            if not failed.is_set():
                failed.set()
                raise RuntimeError("unforeseen")
            super().replace(kind, items)

    sink = Sink()
    reflector = Reflector(fake.api(), kinds.NAMESPACE, sink, backoff=quick_backoff())
    reflector.start()
    assert reflector.settled.wait(5)
    reflector.stop()
    assert failed.is_set()
    assert sink.lists == [[]]
