"""The server over TLS: beside the smallest Flask view under the same worker, and beside kopf's admission server."""

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import GOLDEN, Row, Server, alternate, compact, load, review, serving, webhook
from tests.server.clients import post
from webhook.certs.issue import LocalFiles

LARGE_REVIEWS = 100
QUIET_SECONDS = 30.0


def rows(folder: Path, files: LocalFiles, seconds: float = 3.0) -> Iterator[Row]:
    """`seconds` of load for each round of each figure."""
    body = folder / "pod-create.json"
    body.write_bytes(review("pod-create"))
    pair = (str(files.cert), str(files.key))
    with (
        serving(webhook(files, folder / "audit"), files.ca) as ours,
        serving(("tests.bench.echo", *pair), files.ca) as echo,
        serving(("tests.bench.echo", *pair, "at-once"), files.ca) as constant,
        serving(("tests.bench.kopf_server", *pair), files.ca) as kopf,
    ):
        ours.wait_ready()
        yield _latency(ours, echo, body, seconds)
        for connections in (8, 32):
            yield _throughput(ours, echo, constant, body, connections, seconds)
        yield from _beside_kopf(ours, kopf, body, seconds)
    with serving(webhook(files, folder / "audit-large"), files.ca) as ours:
        ours.wait_ready()
        yield from _large(ours)


def _latency(ours: Server, echo: Server, body: Path, seconds: float) -> Row:
    our, their = alternate(
        3,
        lambda: load(ours, body, connections=1, seconds=seconds)["p50_ms"],
        lambda: load(echo, body, connections=1, seconds=seconds)["p50_ms"],
    )
    detail = f"median {our:.2f} ms, echo {their:.2f} ms"
    return Row("one connection, median latency, beside an echo", our / their, "x", 1.35, is_ratio=True, detail=detail)


def _throughput(ours: Server, echo: Server, constant: Server, body: Path, connections: int, seconds: float) -> Row:
    our, their, bare = alternate(
        3,
        lambda: load(ours, body, connections=connections, seconds=seconds)["per_second"],
        lambda: load(echo, body, connections=connections, seconds=seconds)["per_second"],
        lambda: load(constant, body, connections=connections, seconds=seconds)["per_second"],
    )
    return Row(
        f"throughput, {connections} connections, beside an echo",
        our / their,
        "x",
        0.80,
        at_least=True,
        is_ratio=True,
        detail=f"{our:.0f}/s, echo {their:.0f}/s, a constant without Flask {bare:.0f}/s",
    )


def _beside_kopf(ours: Server, kopf: Server, body: Path, seconds: float) -> Iterator[Row]:
    our_rate, kopf_rate = alternate(
        2,
        lambda: load(ours, body, connections=32, seconds=seconds)["per_second"],
        lambda: load(kopf, body, connections=32, seconds=seconds)["per_second"],
    )
    our_p99, kopf_p99 = alternate(
        2,
        lambda: load(ours, body, connections=32, rate=300, seconds=2 * seconds)["p99_ms"],
        lambda: load(kopf, body, connections=32, rate=300, seconds=2 * seconds)["p99_ms"],
    )
    yield Row("p99 at 300 reviews/s offered", our_p99, "ms", 10)
    yield Row(
        "throughput, 32 connections, beside kopf",
        our_rate / kopf_rate,
        "x",
        1.7,
        at_least=True,
        is_ratio=True,
        detail=f"{our_rate:.0f}/s, kopf {kopf_rate:.0f}/s",
    )
    yield Row(
        "p99 at 300 reviews/s offered, beside kopf",
        our_p99 / kopf_p99,
        "x",
        0.5,
        is_ratio=True,
        detail=f"{our_p99:.1f} ms, kopf {kopf_p99:.1f} ms",
    )


def _large(ours: Server) -> Iterator[Row]:
    small, large = post("/mutate", review("pod-create")), post("/mutate", large_review())
    taken = []
    with ours.client() as client:
        for _ in range(300):
            client.send(small)
        before = ours.memory()
        for _ in range(LARGE_REVIEWS):
            start = time.perf_counter()
            client.send(large)
            taken.append(time.perf_counter() - start)
    size = f"{len(large) / (1 << 20):.1f} MiB"
    yield Row("2.5 MiB review (old and new object), median", statistics.median(taken) * 1000, "ms", 25, detail=size)
    time.sleep(QUIET_SECONDS)
    after = ours.memory()
    yield Row(
        f"resident memory {QUIET_SECONDS:.0f} s after {LARGE_REVIEWS} such reviews",
        after / before,
        "x",
        1.1,
        is_ratio=True,
        detail=f"{before >> 20} MiB, then {after >> 20} MiB",
    )


def large_review() -> bytes:
    """A rollout of a Deployment as large as the API server takes them: environment, last-applied, managedFields."""
    recorded = json.loads((GOLDEN / "deployment-rollout.json").read_text(encoding="utf-8"))["reviews"][0]["review"]
    for name in ("object", "oldObject"):
        found = recorded["request"][name]
        container = found["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": f"VARIABLE_{number}", "value": "x" * 60} for number in range(5500)]
        found["metadata"]["annotations"] = {
            "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": found["spec"]})
        }
        fields = {f'k:{{"name":"VARIABLE_{number}"}}': {".": {}, "f:name": {}} for number in range(4500)}
        found["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsType": "FieldsV1", "fieldsV1": fields}]
    return compact(recorded)
