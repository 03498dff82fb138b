"""Policy tests: what of an expectation an outcome does not meet, and what no case reaches."""

from typing import Any

import msgspec
import pytest

from tests.decision import build
from webhook.policy.suite import CaseError, CaseResult, Expect, GpuPolicyTest, Outcome, compare, coverage, run

OUTCOME = Outcome(
    verdict="patch",
    would=None,
    rule="research",
    codes=("PoolInjected",),
    message="",
    warnings=("one of two",),
    patched={"spec": {"a/b": [1, {"c": None}]}},
)


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (Expect(), []),
        (Expect(verdict="patch", rule="research", codes=("PoolInjected",), not_codes=("NoRule",)), []),
        (Expect(patched={"/spec/a~1b/0": 1, "/spec/a~1b/1/c": None, "/spec/nothing/there": None}), []),
        (Expect(warnings_contain=("of two",)), []),
        (Expect(verdict="deny"), ["verdict: expected deny, got patch"]),
        (Expect(would="deny"), ["would: expected deny, got -"]),
        (Expect(codes=("PoolConflict",)), ["no finding PoolConflict; found PoolInjected"]),
        (Expect(not_codes=("PoolInjected",)), ["unwanted finding PoolInjected"]),
        (Expect(patched={"/spec/a~1b": [1]}), ['/spec/a~1b: expected [1], got [1,{"c":null}]']),
        (Expect(message_contains=("x",)), ["the denial does not contain 'x': -"]),
        (Expect(warnings_contain=("three",)), ["no warning contains 'three': one of two"]),
    ],
)
def test_what_is_not_met_is_said_and_what_is_left_out_is_not_looked_at(expect: Expect, said: list[str]) -> None:
    assert list(compare(expect, OUTCOME, "en")) == said


def test_coverage_names_rules_and_codes_that_no_case_reaches() -> None:
    results = [CaseResult("s", "one", (), "research", ("PoolInjected",)), CaseResult("s", "two", ("failed",))]
    reached = coverage(build.policy(), results, ["PoolInjected", "NoRule"])
    assert (reached.missed_rules, reached.missed_codes) == ((), ("NoRule",))
    assert coverage(build.policy(), results[1:], []).missed_rules == ("research",)


def test_a_case_that_cannot_be_judged_fails_and_the_others_go_on() -> None:
    cases: list[dict[str, Any]] = [
        {"name": name, "given": {"objects": ["x.yaml"]}, "expect": {"verdict": "patch"}} for name in ("a", "b")
    ]
    head = {"apiVersion": "gpu.platform/v1", "kind": "GpuPolicyTest", "metadata": {"name": "s"}}
    test = msgspec.convert({**head, "spec": {"cases": cases}}, GpuPolicyTest)

    def judge(_: GpuPolicyTest, case: Any) -> Outcome:
        if case.name == "a":
            raise CaseError("x.yaml: no such file")
        return OUTCOME

    assert [(result.name, result.failures) for result in run([test], judge, "en")] == [
        ("a", ("x.yaml: no such file",)),
        ("b", ()),
    ]
