"""What a rule adds: the usual addition is kept, and is the one that a closer look would make."""

from typing import Any

import pytest
from msgspec import convert, structs

from webhook.decision import injection, placement
from webhook.decision.apply import Context
from webhook.decision.finding import Notes
from webhook.decision.injection import Injection
from webhook.k8s import workloads
from webhook.k8s.objects import PodSpec, PriorityClass
from webhook.language import Language, teller
from webhook.policy.model import Rule, Selector, Spec, Toleration

RULE = Rule("training", Selector(), priority_class_name="gpu-training", pools=("a", "b"))
DEFAULT_TOLERATION = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}


def context(rule: Rule = RULE, **known: Any) -> Context:
    return Context(
        rule=rule,
        pool_label="gpu.platform/pool",
        tell=teller("en", "decision", namespace="ai-training", rule=rule.name),
        classes=known.get("classes", {"gpu-training": PriorityClass()}),
        labels_of=lambda node: None,
        class_chosen=None,
    )


def usual(spec: dict[str, Any], kind: str = "Pod", language: Language = "en", **known: Any) -> Injection | None:
    found, policy = context(**known), Spec(rules=(), language=language)
    return injection.usual(workloads.KINDS[kind], convert(spec, PodSpec), found.rule, policy, found.classes)


@pytest.mark.parametrize("kind", workloads.KINDS)
@pytest.mark.parametrize(
    "rule",
    [
        RULE,
        structs.replace(RULE, pools=None),
        structs.replace(RULE, priority_class_name=None),
        structs.replace(RULE, priority_class_name=None, pools=None),
    ],
)
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"priority": 0},
        {"priority": 7, "preemptionPolicy": "Never"},
        {"preemptionPolicy": None},
        {"tolerations": [DEFAULT_TOLERATION]},
        {"affinity": None, "nodeSelector": {}, "nodeName": "", "priorityClassName": "", "tolerations": []},
    ],
)
def test_the_usual_addition_is_the_one_of_a_closer_look(kind: str, rule: Rule, spec: dict[str, Any]) -> None:
    row, read = workloads.KINDS[kind], convert(spec, PodSpec)
    before = placement.of(read)
    notes = Notes()
    closely = injection.injection(row, read, before, before, context(rule), set(), notes)
    assert usual(spec, kind, rule=rule) == closely
    assert notes.items == []


@pytest.mark.parametrize(
    "spec",
    [
        {"priorityClassName": "gpu-training"},
        {"affinity": {}},
        {"nodeSelector": {"zone": "a"}},
        {"nodeName": "node-a"},
    ],
)
def test_who_chose_something_gets_a_closer_look(spec: dict[str, Any]) -> None:
    assert usual(spec) is None


def test_so_does_a_rule_with_tolerations_or_with_a_class_that_is_not_there() -> None:
    assert usual({}, rule=structs.replace(RULE, tolerations=(Toleration("gpu"),))) is None
    assert usual({}, classes={}) is None
    assert usual({}, classes=None) is None
    assert usual({}, classes=None, rule=structs.replace(RULE, priority_class_name=None)) is not None


def test_it_is_worked_out_once_for_each_rule_kind_and_language() -> None:
    assert usual({}) is usual({"tolerations": [DEFAULT_TOLERATION]})
    assert usual({}) != usual({}, kind="Job")
    assert usual({}) != usual({}, language="zh")
    assert usual({}) != usual({}, rule=structs.replace(RULE, pools=("a",)))
