"""Following the logs of the webhook's pods through the API: restarts, replaced pods, an API that is away."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from tests.audit.samples import write_stream
from webhook.audit import pod_logs
from webhook.audit.pod_logs import PodLogs, lines_now
from webhook.audit.read import Follower, Line, Notices, Sorter

NAMESPACE = "gpu-webhook"


class Api:
    """A small Kubernetes API: pods and their logs, which tests let grow, break off and go."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[tuple[str, bool], list[bytes]] = {}
        self.queries: list[dict[str, str]] = []
        self.fail_with: int | None = None
        self.changed = threading.Condition()
        self.connections = 0  # a new number ends every log that is being followed
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                api.answer(self)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def client(self) -> client.CoreV1Api:
        configuration = client.Configuration(host=f"http://127.0.0.1:{self.server.server_port}")
        configuration.retries = False
        return client.CoreV1Api(client.ApiClient(configuration))

    def add(self, name: str, restarts: int = 0) -> None:
        containers = [{"name": "webhook"}, {"name": "istio-proxy"}]
        status = {"phase": "Running", "containerStatuses": [{"name": "webhook", "restartCount": restarts}]}
        metadata = {"name": name, "uid": f"uid-{name}"}
        self.pods[name] = {"metadata": metadata, "spec": {"containers": containers}, "status": status}
        self.logs.setdefault((name, False), [])

    def write(self, name: str, lines: list[bytes], previous: bool = False) -> None:
        with self.changed:
            self.logs.setdefault((name, previous), []).extend(
                b"2026-12-01T08:15:30.123456789Z " + line for line in lines
            )
            self.changed.notify_all()

    def break_off(self) -> None:
        with self.changed:
            self.connections += 1
            self.changed.notify_all()

    def close(self) -> None:
        self.break_off()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if self.fail_with:
            self._json(handler, self.fail_with, {"kind": "Status", "message": "away"})
        elif url.path.endswith("/pods"):
            self.queries.append(query)
            self._json(handler, 200, {"items": list(self.pods.values())})
        else:
            name = url.path.split("/")[-2]
            lines = self.logs.get((name, query.get("previous", "").lower() == "true"))
            if lines is None:
                self._json(handler, 400, {"kind": "Status", "message": "previous terminated container not found"})
            else:
                self.queries.append(query)
                self._stream(handler, lines, query.get("follow", "").lower() == "true")

    def _stream(self, handler: BaseHTTPRequestHandler, lines: list[bytes], follow: bool) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        sent, connection = 0, self.connections
        while True:
            with self.changed:
                new = b"".join(line + b"\n" for line in lines[sent:])
                sent = len(lines)
            if new:
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(new), new))
            with self.changed:
                if not follow or connection != self.connections:
                    break
                if sent == len(lines):
                    self.changed.wait(5)
        handler.wfile.write(b"0\r\n\r\n")

    def _json(self, handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(pod_logs, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(pod_logs, "_LONGEST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(pod_logs, "_LIST_SECONDS", 0.02)
    served = Api()
    yield served
    served.close()


class Reader:
    """PodLogs with a sorter behind it, as the Follower has it."""

    def __init__(
        self, api: Api, streams: dict[str, int] | None = None, positions: dict[str, str] | None = None
    ) -> None:
        self.sorter = Sorter(streams or {})
        self.logs = PodLogs(api.client(), NAMESPACE, positions or {}, self.sorter.notices, list_seconds=0.02)
        self.lines: list[Line] = []

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline, [line.seq for line in self.lines]
            for raw, source, number in self.logs.poll():
                self.lines += self.sorter.take(raw, source, number)
            time.sleep(0.005)

    def seqs(self) -> list[int]:
        return [line.seq for line in self.lines if line.kind == "record"]


@pytest.fixture
def reader_of(api: Api) -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(**options: Any) -> Reader:
        made.append(Reader(api, **options))
        return made[-1]

    yield make
    for each in made:
        each.logs.close()


def stream(folder: Path, count: int, host: str) -> tuple[str, list[bytes]]:
    name = write_stream(folder / host, count, host=host)
    return name, (folder / host / f"{name}.000001.jsonl").read_bytes().splitlines()


def test_lines_of_all_pods_come_with_their_pod(api: Api, reader_of: Callable[..., Reader], tmp_path: Path) -> None:
    (_, first), (_, second) = stream(tmp_path, 5, "a"), stream(tmp_path, 5, "b")
    api.add("pod-a")
    api.add("pod-b")
    api.write("pod-a", [b"[INFO] booting", *first])
    reader = reader_of()
    reader.until(lambda: len(reader.lines) == 5)
    api.write("pod-b", second)
    reader.until(lambda: len(reader.lines) == 10)
    assert {line.source for line in reader.lines} == {"pod gpu-webhook/pod-a", "pod gpu-webhook/pod-b"}
    assert [line.raw for line in reader.lines[:5]] == first
    assert {query.get("labelSelector") for query in api.queries if "labelSelector" in query} == {pod_logs.SELECTOR}
    assert {query["container"] for query in api.queries if "container" in query} == {"webhook"}


def test_a_log_that_breaks_off_is_resumed_and_each_record_comes_once(
    api: Api, reader_of: Callable[..., Reader], tmp_path: Path
) -> None:
    _, lines = stream(tmp_path, 30, "a")
    api.add("pod-a")
    reader = reader_of()
    for start in range(0, 30, 10):
        api.write("pod-a", lines[start : start + 10])
        reader.until(lambda: len(reader.lines) == start + 10)  # noqa: B023
        api.break_off()
    reader.until(lambda: any("sinceSeconds" in query for query in api.queries))
    assert reader.seqs() == list(range(1, 31))


def test_a_restarted_container_is_asked_for_its_previous_log(
    api: Api, reader_of: Callable[..., Reader], tmp_path: Path
) -> None:
    (old, first), (new, second) = stream(tmp_path, 6, "a"), stream(tmp_path, 3, "b")
    api.add("pod-a")
    api.write("pod-a", first[:4])
    reader = reader_of()
    reader.until(lambda: len(reader.lines) == 4)
    api.write("pod-a", first, previous=True)  # what it wrote before it was killed
    api.logs["pod-a", False] = []
    api.write("pod-a", second)
    api.add("pod-a", restarts=1)
    api.break_off()
    reader.until(lambda: len(reader.lines) == 9)
    assert [line.seq for line in reader.lines if line.stream == old] == [1, 2, 3, 4, 5, 6]
    assert [line.seq for line in reader.lines if line.stream == new] == [1, 2, 3]


def test_a_replaced_pod_is_found_and_the_old_one_forgotten(
    api: Api, reader_of: Callable[..., Reader], tmp_path: Path
) -> None:
    (_, first), (_, second) = stream(tmp_path, 3, "a"), stream(tmp_path, 3, "b")
    api.add("pod-a")
    api.write("pod-a", first)
    reader = reader_of()
    reader.until(lambda: len(reader.lines) == 3)
    del api.pods["pod-a"], api.logs["pod-a", False]
    api.add("pod-b")
    api.write("pod-b", second)
    api.break_off()
    reader.until(lambda: len(reader.lines) == 6)
    reader.until(lambda: set(reader.logs.positions()) == {"uid-pod-b"})


def test_a_restarted_exporter_resumes_by_time_and_seq_and_a_missing_record_is_a_gap(
    api: Api, reader_of: Callable[..., Reader], tmp_path: Path
) -> None:
    name, lines = stream(tmp_path, 10, "a")
    api.add("pod-a")
    api.write("pod-a", lines[:5])
    first = reader_of()
    first.until(lambda: len(first.lines) == 5)
    first.logs.close()
    api.write("pod-a", lines[7:])  # two were dropped on the way to the log
    second = reader_of(streams=first.sorter.streams, positions=dict(first.logs.positions()))
    second.until(lambda: len(second.lines) == 3)
    assert second.seqs() == [8, 9, 10]
    assert any("sinceSeconds" in query for query in api.queries)
    gap = next(notice for notice in second.sorter.notices.take() if notice.kind == "gap")
    assert (gap.stream, gap.count, gap.text) == (name, 2, "records 6 to 7 are missing")


def test_an_api_that_is_away_is_told_and_comes_back(api: Api, reader_of: Callable[..., Reader], tmp_path: Path) -> None:
    _, lines = stream(tmp_path, 3, "a")
    api.add("pod-a")
    api.write("pod-a", lines)
    api.fail_with = 503
    reader = reader_of()
    told: list[str] = []
    reader.until(lambda: bool(told.extend(each.text for each in reader.sorter.notices.take()) or told))
    assert "cannot list pods: 503" in told[0]
    api.fail_with = None
    reader.until(lambda: len(reader.lines) == 3)


def test_the_follower_takes_kubernetes_as_a_source_and_keeps_the_position(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, lines = stream(tmp_path, 4, "a")
    api.add("pod-a")
    api.write("pod-a", lines)
    monkeypatch.setattr(pod_logs, "api_client", api.client)
    follower = Follower(["kubernetes"])
    seen: list[Line] = []
    deadline = time.monotonic() + 10
    while len(seen) < 4 and time.monotonic() < deadline:
        seen += follower.poll()
        time.sleep(0.005)
    follower.close()
    assert [line.seq for line in seen] == [1, 2, 3, 4]
    assert follower.position.streams == {name: 4}
    assert follower.position.pods == {"uid-pod-a": "2026-12-01T08:15:30.123456789Z"}


def test_logs_as_they_are_now_include_those_of_previous_containers(api: Api, tmp_path: Path) -> None:
    _, lines = stream(tmp_path, 4, "a")
    api.add("pod-a", restarts=1)
    api.write("pod-a", lines[:2], previous=True)
    api.write("pod-a", lines[2:])
    api.add("pod-b", restarts=1)  # the kubelet has no previous log any more
    assert [raw for _, raw in lines_now("", api.client())] == lines


def test_positions_are_kept_until_the_pods_are_known() -> None:
    class Never:
        def list_namespaced_pod(self, *_: object, **__: object) -> None:
            raise OSError("no route")

    logs = PodLogs(Never(), NAMESPACE, {"uid": "2026-12-01T00:00:00Z"}, Notices(), list_seconds=60)
    assert logs.positions() == {"uid": "2026-12-01T00:00:00Z"}
    logs.close()
