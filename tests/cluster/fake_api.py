"""A Kubernetes API that plays what a test tells it: pages, events, errors in every place, silence. Loopback only."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kubernetes.client import Configuration

from webhook.cluster import kinds
from webhook.cluster.api import Api
from webhook.cluster.kinds import Kind
from webhook.cluster.reflector import Backoff

Object = dict[str, Any]
Play = Callable[["Handler"], None]

WATCH_SECONDS = 30.0
"""No watch is held longer than this, whatever is asked: a test that forgets one still ends."""


def quick_backoff() -> Backoff:
    return Backoff(base=0.01, cap=0.05)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # all watches connect at once; a full queue would cost them a second


class FakeApi:
    """Objects by kind, changed with `put` and `delete`; requests are recorded as (method, path, query).

    `script` holds answers that take the place of the next requests to a path; `every` an answer to all of them.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[tuple[str, str], Object]] = {kind.name: {} for kind in kinds.ALL}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.script: dict[str, deque[Play]] = {}
        self.every: dict[str, Play] = {}
        self.extra: dict[str, Any] = {}
        """Path -> a JSON answer, for what is not a kind of ours."""
        self.version = 100
        self.changed = threading.Condition()
        self.log: list[tuple[int, str, str, Object]] = []
        self.closing = False
        self._server = _Server(("127.0.0.1", 0), lambda *args: Handler(self, *args))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def api(self) -> Api:
        configuration = Configuration(host=self.url)
        configuration.proxy = None
        return Api(configuration, "fake")

    def put(self, item: Object) -> Object:
        """Store an object as the API would, with uid, resourceVersion and creationTimestamp, and tell the watches."""
        kind = kinds.kind_of(item["apiVersion"], item["kind"])
        assert kind is not None
        with self.changed:
            key = (item["metadata"].get("namespace", ""), item["metadata"]["name"])
            known = self.objects[kind.name].get(key)
            self.version += 1
            metadata = {
                "uid": f"uid-{self.version}",
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                **({} if known is None else {name: known["metadata"][name] for name in ("uid", "creationTimestamp")}),
                **item["metadata"],
                "resourceVersion": str(self.version),
            }
            stored = {**item, "metadata": metadata}
            self.objects[kind.name][key] = stored
            self._tell("ADDED" if known is None else "MODIFIED", kind, stored)
        return stored

    def delete(self, kind: str, namespace: str, name: str) -> None:
        with self.changed:
            gone = self.objects[kind].pop((namespace, name))
            self.version += 1
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self._tell("DELETED", next(one for one in kinds.ALL if one.name == kind), gone)

    def _tell(self, change: str, kind: Kind, item: Object) -> None:
        self.log.append((self.version, kind.name, change, item))
        self.changed.notify_all()

    def count(self, path: str, **query: str) -> int:
        """How many requests there were to a path with (at least) these query parameters."""
        return sum(1 for _, asked, given in list(self.requests) if asked == path and query.items() <= given.items())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def __init__(self, fake: FakeApi, *args: Any) -> None:
        self.fake = fake
        super().__init__(*args)

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.where = unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.fake.requests.append((self.command, self.where, self.query))
        script = self.fake.script.get(self.where)
        play = script.popleft() if script else self.fake.every.get(self.where, answer)
        try:
            play(self)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        self.do_GET()

    def send_json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def open_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def send_event(self, change: str, item: Any) -> None:
        self.send_raw(json.dumps({"type": change, "object": item}).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


# -- what can be played -----------------------------------------------------------------------------------------------


def answer(handler: Handler) -> None:
    """As a healthy API server would."""
    fake = handler.fake
    if handler.where in fake.extra:
        reply = fake.extra[handler.where]
        handler.send_json(200, reply(handler) if callable(reply) else reply)
        return
    kind, namespace, name = _parse(handler.where)
    if kind is None:
        handler.send_json(404, {"kind": "Status", "code": 404, "message": "not served"})
    elif name:
        item = fake.objects[kind.name].get((namespace, name))
        handler.send_json(200 if item else 404, item or {"kind": "Status", "code": 404, "message": f"{name} not found"})
    elif handler.query.get("watch"):
        _watch(handler, kind)
    else:
        _list(handler, kind, namespace)


def status(code: int, message: str = "played") -> Play:
    """An error as the API words it."""
    return lambda handler: handler.send_json(code, {"kind": "Status", "code": code, "message": message})


def stream(*events: tuple[str, Any], end: bool = True) -> Play:
    """A watch that sends these events, then ends cleanly, or breaks off."""

    def play(handler: Handler) -> None:
        handler.open_stream()
        for change, item in events:
            handler.send_event(change, item)
        if end:
            handler.end_stream()
        handler.close_connection = True

    return play


def gone() -> tuple[str, Any]:
    """The ERROR event that comes inside a 200 stream when history was compacted (B62)."""
    return "ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def silent(seconds: float) -> Play:
    """A black hole: takes the request and says nothing."""

    def play(handler: Handler) -> None:
        deadline = time.monotonic() + seconds
        with handler.fake.changed:
            while not handler.fake.closing and time.monotonic() < deadline:
                handler.fake.changed.wait(deadline - time.monotonic())
        handler.close_connection = True

    return play


def dripping(seconds: float) -> Play:
    """Bytes that keep coming, too slowly to be of use."""

    def play(handler: Handler) -> None:
        handler.open_stream()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not handler.fake.closing:
            handler.send_raw(b" ")
            time.sleep(0.02)
        handler.close_connection = True

    return play


def cut(handler: Handler) -> None:
    """The connection closes without an answer."""
    handler.close_connection = True


def _list(handler: Handler, kind: Kind, namespace: str) -> None:
    fake = handler.fake
    with fake.changed:
        items = [item for key, item in sorted(fake.objects[kind.name].items()) if namespace in ("", key[0])]
        version = fake.version
    start, limit = int(handler.query.get("continue", 0)), int(handler.query.get("limit", 0)) or len(items)
    page = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    metadata = {"resourceVersion": str(version)}
    if start + limit < len(page):
        metadata["continue"] = str(start + limit)
    listed = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
    handler.send_json(200, {**listed, "items": page[start : start + limit]})


def _watch(handler: Handler, kind: Kind) -> None:
    fake, since = handler.fake, int(handler.query["resourceVersion"])
    deadline = time.monotonic() + min(WATCH_SECONDS, float(handler.query.get("timeoutSeconds", WATCH_SECONDS)))
    handler.open_stream()
    while not fake.closing and time.monotonic() < deadline:
        with fake.changed:
            news = [entry for entry in fake.log if entry[0] > since and entry[1] == kind.name]
            if not news:
                fake.changed.wait(deadline - time.monotonic())
                continue
        for version, _, change, item in news:
            handler.send_event(change, item)
            since = version
    handler.end_stream()


def _parse(path: str) -> tuple[Kind | None, str, str]:
    """Kind, namespace ("" for all) and name ("" for a list) of a path."""
    for kind in kinds.ALL:
        root = kind.path()
        if path == root:
            return kind, "", ""
        if not kind.namespaced and path.startswith(root + "/") and "/" not in path[len(root) + 1 :]:
            return kind, "", path[len(root) + 1 :]
        head, middle, tail = path.partition(f"/{kind.plural}")
        prefix = root.removesuffix(f"/{kind.plural}") + "/namespaces/"
        if kind.namespaced and middle and head.startswith(prefix) and (not tail or tail.startswith("/")):
            return kind, head[len(prefix) :], tail[1:]
    return None, "", ""


@contextmanager
def running() -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()


def eventually(condition: Callable[[], object], timeout: float = 5.0) -> None:
    """Wait until something that another thread does has happened."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
