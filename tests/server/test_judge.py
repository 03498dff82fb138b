"""From a request to a decision in time, with one fresh look before a quota denial, and never an exception."""

import time
from typing import Any

import pytest

from tests.server.standin import Source, View, golden, policy
from webhook.decision.facts import Facts, MustWaitError
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.policy.active import Policy
from webhook.server.judge import Judge
from webhook.server.wire import decode

REQUEST = decode(golden("deployment-over-quota"), "mutate", 0.0)


class Clock:
    """Counts seconds only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """Denies for quota: stale on watched facts, final on fresh ones; each look takes `seconds` of the clock."""

    def __init__(self, clock: Clock | None = None, seconds: float = 0.0) -> None:
        self.calls: list[tuple[bool, bool]] = []
        self._clock = clock
        self._seconds = seconds

    def __call__(self, request: Request, _policy: Policy, facts: Facts, *, fresh_failed: bool = False) -> Decision:
        self.calls.append((facts.is_fresh, fresh_failed))
        if self._clock is not None:
            self._clock.now += self._seconds
        if fresh_failed:
            return Decision(id=request.id, verdict="allow", warnings=("unverified",))
        return Decision(id=request.id, verdict="deny", message="quota", stale=not facts.is_fresh)


def judged(engine: Any, source: Source, clock: Clock | None = None, faults: list[int] | None = None) -> Decision:
    clock = clock or Clock()
    judge = Judge(source, lambda: (faults if faults is not None else []).append(1), engine, clock=clock)
    return judge.judge(REQUEST, policy(), asked_at=100.0)


def test_rule_3_a_quota_denial_is_looked_at_again_on_one_fresh_read() -> None:
    engine, source = Engine(), Source(View(is_fresh=True))
    assert judged(engine, source).verdict == "deny"
    assert engine.calls == [(False, False), (True, False)]
    assert source.asked == [("ai-training", 0.3)]


def test_rule_3_without_a_fresh_read_the_policys_on_unknown_decides() -> None:
    engine, source = Engine(), Source()
    decision = judged(engine, source)
    assert (decision.verdict, decision.warnings) == ("allow", ("unverified",))
    assert engine.calls == [(False, False), (False, True)]


def test_what_is_not_stale_costs_no_read() -> None:
    source = Source()

    def engine(request: Request, *_: Any, **__: Any) -> Decision:
        return Decision(id=request.id, verdict="allow")

    assert judged(engine, source).verdict == "allow"
    assert source.asked == []


def test_b53_a_fresh_read_gets_no_more_than_the_time_that_is_left() -> None:
    clock = Clock()
    source = Source(View(is_fresh=True))
    judged(Engine(clock, seconds=1.9), source, clock)
    assert source.asked[0][1] == pytest.approx(0.1)


def test_a_spent_budget_is_answered_with_allow_and_a_warning() -> None:
    clock = Clock()
    decision = judged(Engine(clock, seconds=2.5), Source(View(is_fresh=True)), clock)
    assert decision.verdict == "allow"
    assert [finding.code for finding in decision.findings] == ["OverBudget"]
    assert "time" in decision.warnings[0]


def test_a_request_that_waited_too_long_is_not_even_started() -> None:
    clock, engine = Clock(), Engine()
    clock.now += 2.1
    assert judged(engine, Source(), clock).findings[0].code == "OverBudget"
    assert engine.calls == []


def test_a_fault_of_ours_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    faults: list[int] = []

    def engine(*_: Any, **__: Any) -> Decision:
        raise ZeroDivisionError("secret detail")

    decision = judged(engine, Source(), faults=faults)
    assert decision.verdict == "allow"
    assert decision.findings[0].code == "InternalError"
    assert REQUEST.id in decision.warnings[0]
    assert "secret detail" not in str(decision)
    assert faults == [1]
    assert REQUEST.id in caplog.text
    assert "secret detail" in caplog.text


def test_the_warning_is_in_the_policys_language() -> None:
    def engine(*_: Any, **__: Any) -> Decision:
        raise ZeroDivisionError

    judge = Judge(Source(), lambda: None, engine)
    warning = judge.judge(REQUEST, policy(language="zh"), asked_at=0.0).warnings[0]
    assert not warning.isascii()


def test_whoever_may_not_wait_is_told_that_a_fresh_read_is_needed() -> None:
    engine, source = Engine(), Source(View(is_fresh=True))
    judge = Judge(source, lambda: None, engine, clock=Clock())
    with pytest.raises(MustWaitError):
        judge.judge(REQUEST, policy(), asked_at=100.0, may_wait=False)
    assert (engine.calls, source.asked) == ([(False, False)], [])


def test_whoever_may_not_wait_is_told_so_by_the_facts_too() -> None:
    def looks_up(*_: Any, **__: Any) -> Decision:
        raise MustWaitError

    with pytest.raises(MustWaitError):
        Judge(Source(), lambda: None, looks_up).judge(REQUEST, policy(), time.monotonic(), may_wait=False)
