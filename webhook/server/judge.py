"""One review from request to decision, within its time: decide, and once more on fresh facts before a quota denial."""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from webhook.decision.engine import decide, unjudged
from webhook.decision.facts import Facts, FactSource, MustWaitError
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.language import say
from webhook.policy.active import Policy

log = logging.getLogger(__name__)

BUDGET: Final = 2.0
"""Seconds from the moment a review could be read to its answer; the API server gives up after three (5.7, B53)."""
FRESH_READ: Final = 0.3
"""Seconds that a fresh read may take at most."""


class Decide(Protocol):
    """`webhook.decision.engine.decide`, or what a test puts in its place."""

    def __call__(self, request: Request, policy: Policy, facts: Facts, *, fresh_failed: bool = False) -> Decision: ...


class Judge:
    """Takes requests to the engine. Whatever happens there, the answer is a Decision, and in time (DESIGN 6)."""

    def __init__(
        self,
        source: FactSource,
        on_fault: Callable[[], None],
        decide: Decide = decide,
        budget: float = BUDGET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_fault` is called at every fault of ours; `clock` counts seconds and never jumps."""
        self._source = source
        self._on_fault = on_fault
        self._decide = decide
        self._budget = budget
        self._clock = clock

    def judge(self, request: Request, policy: Policy, asked_at: float, may_wait: bool = True) -> Decision:
        """The decision about a request that could be read at `asked_at` (of `clock`).

        Raises nothing but MustWaitError, and that only without `may_wait`, where a live read is needed.
        """
        try:
            decision = self._decided(request, policy, asked_at, may_wait)
        except MustWaitError:
            raise
        except Exception:
            log.exception("decision %s: allowed unchecked after a fault of ours (uid %r)", request.id, request.uid)
            self._on_fault()
            return _unchecked(request, policy, "InternalError", "decision.internal_error")
        if decision is None or self._left(asked_at) <= 0:
            return _unchecked(request, policy, "OverBudget", "decision.over_budget")
        return decision

    def _decided(self, request: Request, policy: Policy, asked_at: float, may_wait: bool) -> Decision | None:
        """None when there is no time left to start or to go on."""
        if self._left(asked_at) <= 0:
            return None
        facts = self._source.current(may_wait)
        decision = self._decide(request, policy, facts)
        if not decision.stale:
            return decision
        if not may_wait:
            raise MustWaitError
        left = self._left(asked_at)
        if left <= 0:
            return None
        fresh = self._source.fresh(request.namespace, min(FRESH_READ, left))
        if fresh is None:
            return self._decide(request, policy, facts, fresh_failed=True)
        return self._decide(request, policy, fresh)

    def _left(self, asked_at: float) -> float:
        return asked_at + self._budget - self._clock()


def _unchecked(request: Request, policy: Policy, code: str, key: str) -> Decision:
    """Allowed with a warning: no fault and no slowness of ours stops a workload (rule 6)."""
    return unjudged(request, policy, code, say(policy.spec.language, key, id=request.id))
