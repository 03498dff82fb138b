"""A policy ready for use: which rules a namespace has, and which of them counts."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.decision.build import policy
from webhook.policy.active import first_for

LABELS = st.dictionaries(st.sampled_from(["team", "zone"]), st.sampled_from(["", "a", "b"]))
SELECTORS = st.one_of(
    st.just({}),
    st.builds(lambda labels: {"matchLabels": labels}, LABELS),
    st.builds(lambda value: {"matchLabels": {"team": value}}, st.sampled_from(["", "a", "b"])),
    st.just({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}),
)


def rule(number: int, selector: dict[str, Any], pods: dict[str, str]) -> dict[str, Any]:
    return {"name": f"r{number}", "namespaceSelector": selector, "workloadSelector": {"matchLabels": pods}}


@given(st.lists(st.tuples(SELECTORS, LABELS), min_size=1, max_size=5), LABELS, LABELS)
def test_the_rules_of_a_namespace_are_those_that_select_it_in_order(
    rules: list[tuple[dict[str, Any], dict[str, str]]], labels: dict[str, str], pod_labels: dict[str, str]
) -> None:
    active = policy(rules=[rule(number, *each) for number, each in enumerate(rules)])
    selecting = [each for each in active.rules if each.matches_namespace(labels)]
    assert list(active.rules_for(labels)) == selecting
    assert active.covers_namespace(labels) is bool(selecting)
    counts = [each.rule for each in selecting if each.matches_pod(pod_labels)]
    assert first_for(active.rules_for(labels), pod_labels) == (counts[0] if counts else None)


def test_rules_that_all_ask_for_one_label_are_looked_up_by_it() -> None:
    teams = [{"matchLabels": {"team": f"t{number}"}} for number in range(300)]
    active = policy(rules=[rule(number, each, {}) for number, each in enumerate(teams)])
    assert [each.rule.name for each in active.rules_for({"team": "t7"})] == ["r7"]
    assert active.rules_for({"zone": "t7"}) == ()
