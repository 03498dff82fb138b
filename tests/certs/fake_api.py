"""As much of a Kubernetes API as certificates need: Secrets with optimistic locking, and webhook configurations."""

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jsonpatch
from kubernetes import client

Objects = dict[str, dict[str, Any]]


class FakeApi:
    """Objects by URL path. `on_request` may raise or change objects before a request is answered."""

    def __init__(self) -> None:
        self.objects: Objects = {}
        self.requests: list[tuple[str, str]] = []
        self.on_request: Callable[[str, str], None] = lambda method, path: None
        self._lock = threading.Lock()
        self._version = 100

    def put(self, path: str, manifest: dict[str, Any]) -> None:
        self._version += 1
        stored = copy.deepcopy(manifest)
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = stored

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        self.on_request(method, path)
        with self._lock:
            self.requests.append((method, path))
            verbs = {"GET": self._get, "POST": self._post, "PUT": self._put, "PATCH": self._patch}
            return verbs[method](path, body)

    def _get(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        return (200, self.objects[path]) if path in self.objects else _failure(404, "NotFound", f"{path} not found")

    def _post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        where = f"{path}/{body['metadata']['name']}"
        if where in self.objects:
            return _failure(409, "AlreadyExists", f"{where} already exists")
        self.put(where, body)
        return 201, self.objects[where]

    def _put(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if body["metadata"].get("resourceVersion") != self.objects[path]["metadata"]["resourceVersion"]:
            return _failure(409, "Conflict", "the object has been modified")
        self.put(path, body)
        return 200, self.objects[path]

    def _patch(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        try:
            self.put(path, jsonpatch.apply_patch(self.objects[path], body))
        except jsonpatch.JsonPatchException as error:
            return _failure(422, "Invalid", str(error))
        return 200, self.objects[path]


def _failure(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


@contextmanager
def serving(api: FakeApi) -> Iterator[str]:
    """The URL under which the fake API answers, on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, answer = api.answer(self.command, self.path, json.loads(body) if body else None)
            payload = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PUT = do_PATCH = _handle  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def client_for(url: str) -> client.ApiClient:
    configuration = client.Configuration(host=url)
    configuration.retries = False
    return client.ApiClient(configuration)
