"""Label selectors: null and empty, the four operators, and what API validation refuses."""

import msgspec
import pytest

from webhook.k8s.objects import LabelSelector
from webhook.k8s.selectors import compiled, matches, problems


def selector(**parts: object) -> LabelSelector:
    return msgspec.convert(parts, LabelSelector)


def expression(operator: str, *values: str, key: str = "tier") -> LabelSelector:
    return selector(matchExpressions=[{"key": key, "operator": operator, "values": list(values)}])


def test_null_selects_nothing_and_empty_selects_everything() -> None:
    assert not matches(None, {"app": "web"})
    assert matches(LabelSelector(), {"app": "web"})
    assert matches(LabelSelector(), None)


def test_match_labels_are_anded() -> None:
    both = selector(matchLabels={"app": "web", "tier": "gold"})
    assert matches(both, {"app": "web", "tier": "gold", "more": "x"})
    assert not matches(both, {"app": "web"})


@pytest.mark.parametrize(
    ("operator", "values", "labels", "matched"),
    [
        ("In", ["gold"], {"tier": "gold"}, True),
        ("In", ["gold"], {"tier": "tin"}, False),
        ("In", ["gold"], {}, False),
        ("NotIn", ["gold"], {"tier": "tin"}, True),
        ("NotIn", ["gold"], {}, True),
        ("NotIn", ["gold"], {"tier": "gold"}, False),
        ("Exists", [], {"tier": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"tier": ""}, False),
        ("Gt", ["1"], {"tier": "2"}, False),
    ],
)
def test_operators(operator: str, values: list[str], labels: dict[str, str], matched: bool) -> None:
    assert matches(expression(operator, *values), labels) is matched


def test_labels_and_expressions_are_anded() -> None:
    one = msgspec.structs.replace(expression("Exists"), match_labels={"app": "web"})
    assert matches(one, {"app": "web", "tier": "x"})
    assert not matches(one, {"tier": "x"})


@pytest.mark.parametrize(
    "selector",
    [
        LabelSelector(),
        LabelSelector(match_labels={"a": "1"}),
        LabelSelector(match_labels={"a": "1", "b": "2"}),
        msgspec.convert({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, LabelSelector),
    ],
)
def test_a_compiled_selector_matches_the_same(selector: LabelSelector) -> None:
    for labels in ({}, {"a": "1"}, {"a": "2"}, {"b": "2"}, {"a": "1", "b": "2"}):
        assert compiled(selector)(labels) == matches(selector, labels)


def test_a_good_selector_has_no_problems() -> None:
    assert problems(selector(matchLabels={"gpu.platform/team": "training"})) == []
    assert problems(expression("NotIn", "a", "b")) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (expression("In"), "matchExpressions[0].values: must be specified when `operator` is 'In' or 'NotIn'"),
        (expression("Exists", "x"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        (expression("Equals", "x"), "'Equals' is not a valid selector operator"),
        (expression("In", "a b"), "matchExpressions[0].values: 'a b'"),
        (expression("Exists", key="a/b/c"), "matchExpressions[0].key: 'a/b/c'"),
        (selector(matchLabels={"-": "x"}), "matchLabels: key '-'"),
        (selector(matchLabels={"app": "x" * 64}), "matchLabels.app"),
    ],
)
def test_problems_name_the_field(bad: LabelSelector, said: str) -> None:
    assert any(said in problem for problem in problems(bad))
