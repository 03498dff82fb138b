"""A cluster of 10,000 namespaces: how long until ready, how much memory, and whether a review takes longer in it."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.bench.measure import Row, alternate, load, review, serving, webhook
from webhook.certs.issue import LocalFiles

NAMESPACES = 10_000
WORKLOADS = 2_000
_QUOTAS = "/api/v1/resourcequotas"
_PAGES = ("/api/v1/namespaces", _QUOTAS, "/apis/apps/v1/deployments")


class BigCluster:
    """An API that lists so many namespaces, each with a quota, and so many Deployments.

    Its watches are quiet, but for so many `changes` of quotas a second.
    """

    def __init__(self, namespaces: int, workloads: int, changes: float = 0.0) -> None:
        self.changes = changes
        self.sent = 0
        lists = (
            [_namespace(number) for number in range(namespaces)],
            [_quota(number) for number in range(namespaces)],
            [_deployment(number, namespaces) for number in range(workloads)],
        )
        self.items = dict(zip(_PAGES, lists, strict=True))
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), lambda *arguments: _Handler(self, *arguments))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "BigCluster":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, path: Path) -> str:
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": server}}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        }
        path.write_text(json.dumps(config))
        return str(path)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, cluster: BigCluster, *arguments: Any) -> None:
        self._cluster = cluster
        super().__init__(*arguments)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if query.get("watch") == "true":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self._watch(url.path, float(query.get("timeoutSeconds", "60")))
            return
        items = self._cluster.items.get(url.path, [])
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 500)
        metadata = {"resourceVersion": "1"}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        body = json.dumps({"metadata": metadata, "items": items[start : start + limit]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, path: str, seconds: float) -> None:
        """Hold the watch; a changed quota is one that uses another number of GPUs."""
        cluster, until = self._cluster, time.monotonic() + seconds
        if not cluster.changes or path != _QUOTAS:
            cluster.closing.wait(seconds)
            return
        while not cluster.closing.wait(1 / cluster.changes) and time.monotonic() < until:
            cluster.sent += 1
            quota = cluster.items[path][cluster.sent % len(cluster.items[path])]
            quota["status"]["used"] = quota["status"]["used"] | {"requests.nvidia.com/gpu": str(cluster.sent % 60)}
            quota["metadata"]["resourceVersion"] = str(cluster.sent + 1)
            self.wfile.write(json.dumps({"type": "MODIFIED", "object": quota}).encode() + b"\n")
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def rows(folder: Path, files: LocalFiles, seconds: float = 3.0) -> Iterator[Row]:
    body = folder / "pod-create.json"
    body.write_bytes(review("pod-create"))
    with BigCluster(NAMESPACES, WORKLOADS) as big, BigCluster(10, 10) as small:
        environment = {"KUBECONFIG": big.kubeconfig(folder / "big")}
        start = time.monotonic()
        with serving(webhook(files, folder / "audit-big", "live"), files.ca, environment) as ours:
            ours.wait_ready()
            yield Row(f"{NAMESPACES} namespaces: start to ready", time.monotonic() - start, "s", 15)
            beside = {"KUBECONFIG": small.kubeconfig(folder / "small")}
            with serving(webhook(files, folder / "audit-small", "live"), files.ca, beside) as other:
                other.wait_ready()
                many, few = alternate(
                    3,
                    lambda: load(ours, body, connections=1, seconds=seconds)["p50_ms"],
                    lambda: load(other, body, connections=1, seconds=seconds)["p50_ms"],
                )
            yield Row("the same: memory of the process", ours.memory() / (1 << 20), "MiB", 250)
            detail = f"{many:.2f} ms, with ten {few:.2f} ms"
            yield Row("the same: latency beside 10 namespaces", many / few, "x", 1.1, is_ratio=True, detail=detail)


def _namespace(number: int) -> dict[str, Any]:
    name = "ai-training" if number == 0 else f"team-{number}"
    labels = {"gpu.platform/team": "training", "kubernetes.io/metadata.name": name}
    return {"metadata": {"name": name, "uid": f"n{number}", "resourceVersion": "1", "labels": labels}}


def _quota(number: int) -> dict[str, Any]:
    namespace = "ai-training" if number == 0 else f"team-{number}"
    hard = {"requests.nvidia.com/gpu": "64", "requests.cpu": "500", "requests.memory": "2Ti", "pods": "100"}
    used = {"requests.nvidia.com/gpu": "2", "requests.cpu": "9", "requests.memory": "20Gi", "pods": "3"}
    return {
        "metadata": {"name": "gpu-quota", "namespace": namespace, "uid": f"q{number}", "resourceVersion": "1"},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used},
    }


def _deployment(number: int, namespaces: int) -> dict[str, Any]:
    namespace = "ai-training" if number % namespaces == 0 else f"team-{number % namespaces}"
    metadata = {
        "name": f"serve-{number}",
        "namespace": namespace,
        "uid": f"d{number}",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": "2026-11-01T08:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {f"f:{field}": {} for field in range(60)}}],
    }
    resources = {"limits": {"nvidia.com/gpu": "1", "cpu": "4", "memory": "16Gi"}}
    container = {"name": "serve", "image": "registry.example/serve:1", "resources": resources}
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"app": "serve"}}
    return {
        "metadata": metadata,
        "spec": {"replicas": 1, "selector": selector, "template": template},
        "status": {"replicas": 1, "readyReplicas": 1, "observedGeneration": 1},
    }
