"""The path of a review may not quietly become slower: ratios to reading the same JSON, which hold on any machine.

The limits are about twice what was measured when they were set; the figures that count are those of `make bench`.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.facts import SMALL
from tests.bench.measure import POLICY, review
from webhook.audit import record
from webhook.audit.ledger import Ledger
from webhook.decision.engine import judge
from webhook.policy.load import load
from webhook.server import wire

NOW = 1_800_000_000.0


def fastest(*calls: Callable[[], object], rounds: int = 400) -> list[float]:
    """The best time of each call in seconds; they take turns, so that all see the same machine."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


@pytest.mark.parametrize(
    ("scenario", "verdict", "most"), [("pod-create", "patch", 5), ("deployment-over-quota", "deny", 8)]
)
def test_a_review_costs_a_few_times_what_reading_its_json_costs(scenario: str, verdict: str, most: float) -> None:
    body, policy = review(scenario), load(POLICY)

    def answer() -> bytes:
        request = wire.decode(body, "mutate", NOW)
        decision = judge(request, policy, SMALL)
        assert decision.verdict == verdict
        return wire.encode(request, decision)

    ours, reading = fastest(answer, lambda: json.loads(body))
    assert ours / reading < most


def test_a_record_costs_less_than_a_few_readings_of_the_review(tmp_path: Path) -> None:
    body, policy = review("pod-create"), load(POLICY)
    request = wire.decode(body, "mutate", NOW)
    decision = judge(request, policy, SMALL)
    with Ledger(tmp_path) as ledger:
        ours, reading = fastest(
            lambda: ledger.append(record.encode(request, decision, policy.name, policy.revision, 0.5)),
            lambda: json.loads(body),
        )
        assert ledger.state().gaps == 0
    assert ours / reading < 3
