"""Single steps of a review, for `pytest --benchmark-only tests/bench`; the bars are those of `make bench`."""

import time

from pytest_benchmark.fixture import BenchmarkFixture

from tests.bench.measure import POLICY, SEED, review
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import decide
from webhook.policy.load import load
from webhook.server import wire
from webhook.server.metrics import Metrics

POD = review("pod-create")


def test_decode(benchmark: BenchmarkFixture) -> None:
    assert benchmark(wire.decode, POD, "mutate", time.time()).kind == "Pod"


def test_decide(benchmark: BenchmarkFixture) -> None:
    request, policy, facts = wire.decode(POD, "mutate", time.time()), load(POLICY), Snapshot(SEED).current()
    assert benchmark(decide, request, policy, facts).verdict == "patch"


def test_encode(benchmark: BenchmarkFixture) -> None:
    request = wire.decode(POD, "mutate", time.time())
    decision = decide(request, load(POLICY), Snapshot(SEED).current())
    assert b'"patchType":"JSONPatch"' in benchmark(wire.encode, request, decision)


def test_count(benchmark: BenchmarkFixture) -> None:
    request = wire.decode(POD, "mutate", time.time())
    decision = decide(request, load(POLICY), Snapshot(SEED).current())
    metrics = Metrics()
    benchmark(metrics.decided, request, decision, 0.001)
    assert b"gpu_webhook_decisions_total" in metrics.render()
