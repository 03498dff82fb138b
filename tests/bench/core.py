"""The path of a review without a network: decode, decide, encode, and the ledger's part."""

import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.facts import SMALL
from tests.bench.measure import POLICY, SEED, Row, review
from webhook.audit import record
from webhook.audit.ledger import Ledger
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import decide
from webhook.policy.load import load
from webhook.server import wire


def rows(folder: Path) -> Iterator[Row]:
    """In a small namespace; `detail` has the seed cluster, with its LimitRange, a quota with a dead key (a finding each
    time), and running pods."""
    policy, seed = load(POLICY), Snapshot(SEED)

    def judged(body: bytes, source: Snapshot, expected: bytes) -> float:
        def once() -> bytes:
            request = wire.decode(body, "mutate", time.time())
            return wire.encode(request, decide(request, policy, source.current()))

        assert expected in once()
        return microseconds(once)

    for name, scenario, expected, bar in (
        ("decode + decide + encode, a Pod", "pod-create", b"patch", 60),
        ("the same, a Deployment of 9 replicas over quota", "deployment-over-quota", b"exceeded", 150),
    ):
        body = review(scenario)
        detail = f"in the seed cluster {judged(body, seed, expected):.0f} us"
        yield Row(name, judged(body, SMALL, expected), "us", bar, detail=detail)

    request = wire.decode(review("pod-create"), "mutate", time.time())
    decision = decide(request, policy, seed.current())
    with Ledger(folder / "ledger") as ledger:
        body = record.encode(request, decision, policy.name, policy.revision, 0.5)
        yield Row("ledger, chain and write of one record", microseconds(lambda: ledger.append(body)), "us", 40)


def microseconds(call: Callable[[], object], times: int = 400, rounds: int = 25) -> float:
    """The median round's processor time for one call: what else the machine does must not count."""
    call()
    found = sorted(timeit.repeat(call, timer=time.thread_time, number=times, repeat=rounds))
    return found[rounds // 2] / times * 1e6
