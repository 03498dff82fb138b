"""Utilisation over HTTP: whatever the other side does, the answer comes in time, and failure means unknown."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from webhook.exporter.prometheus import Prometheus, PrometheusUrlError

VECTOR = [{"metric": {"UUID": "GPU-1", "exported_namespace": "team-a", "exported_pod": "p"}, "value": [1, "40"]}]
GOOD = json.dumps({"status": "success", "data": {"resultType": "vector", "result": VECTOR}})


@contextmanager
def serving(status: int, body: str) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_the_vector_becomes_samples() -> None:
    with serving(200, GOOD) as (url, asked):
        utilisation = Prometheus(f"{url}/").utilisation()
    assert (utilisation.source, utilisation.error) == ("prometheus", "")
    assert [(one.value, one.namespace, one.pod) for one in utilisation.samples] == [(40.0, "team-a", "p")]
    assert asked == ["/api/v1/query?query=DCGM_FI_DEV_GPU_UTIL"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, '{"status": "error", "error": "starting"}', "HTTP 503: starting"),
        (200, '{"status": "error", "error": "bad query"}', "bad query"),
        (200, "<html>", "does not answer as a Prometheus"),
        (200, '{"status": "success", "data": null}', "does not answer as a Prometheus"),
        (200, '{"status": "success", "data": {"result": [1, 2]}}', "does not answer as a Prometheus"),
        (200, "[]", "does not answer as a Prometheus"),
    ],
)
def test_anything_else_is_unknown_with_the_reason(status: int, body: str, words: str) -> None:
    with serving(status, body) as (url, _):
        utilisation = Prometheus(url).utilisation()
    assert utilisation.samples == () and words in utilisation.error


def test_nobody_there_is_unknown_too() -> None:
    with serving(200, GOOD) as (url, _):
        pass
    assert "does not answer" in Prometheus(url).utilisation().error


@pytest.mark.parametrize("url", ["prometheus:9090", "file:///etc/passwd", "", "ftp://x"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(PrometheusUrlError, match="--prometheus"):
        Prometheus(url)
