"""Selectors as sets: against brute force over all small sets of labels."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from webhook.k8s import selectors
from webhook.policy import overlap
from webhook.policy.model import Rule, Selector, SelectorRequirement

KEYS = ("a", "b")
VALUES = ("x", "y", "z", None)
EVERY = [
    {key: value for key, value in zip(KEYS, chosen, strict=True) if value is not None}
    for chosen in product(VALUES, repeat=2)
]

_values = st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2, unique=True).map(tuple)
_requirements = st.one_of(
    st.builds(SelectorRequirement, st.sampled_from(KEYS), st.sampled_from(["In", "NotIn"]), _values),
    st.builds(SelectorRequirement, st.sampled_from(KEYS), st.sampled_from(["Exists", "DoesNotExist"])),
)
_selectors = st.builds(
    Selector,
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["x", "y"]), max_size=2),
    st.lists(_requirements, max_size=3).map(tuple),
)
_rules = st.builds(
    lambda namespaces, pods: Rule(name="r", namespace_selector=namespaces, workload_selector=pods),
    _selectors,
    _selectors,
)


def matched(rule: Rule) -> set[int]:
    """Which of all pairs of small label sets (namespace's, pod's) a rule matches, by asking one after another."""
    namespaces, pods = rule.namespace_selector.as_label_selector(), rule.workload_selector.as_label_selector()
    return {
        number
        for number, (namespace, pod) in enumerate(product(EVERY, EVERY))
        if selectors.matches(namespaces, namespace) and selectors.matches(pods, pod)
    }


@given(_rules)
def test_an_empty_box_matches_nothing(rule: Rule) -> None:
    assert overlap.is_empty(overlap.box_of(rule)) == (not matched(rule))


@given(_rules, _rules)
def test_two_boxes_meet_when_something_matches_both(one: Rule, other: Rule) -> None:
    both = overlap.meet(overlap.box_of(one), overlap.box_of(other))
    assert (both is not None) == bool(matched(one) & matched(other))
    if both is not None:
        namespace, pod = overlap.example(both, "namespace"), overlap.example(both, "pod")
        for rule in (one, other):
            assert selectors.matches(rule.namespace_selector.as_label_selector(), namespace)
            assert selectors.matches(rule.workload_selector.as_label_selector(), pod)


@given(_rules, st.lists(_rules, min_size=1, max_size=3))
def test_a_box_is_covered_when_everything_it_matches_is_matched_by_some_other(rule: Rule, others: list[Rule]) -> None:
    left = overlap.without(overlap.box_of(rule), map(overlap.box_of, others))
    assert (left == []) == (matched(rule) <= set().union(*map(matched, others)))


def test_a_label_that_only_two_rules_together_exhaust() -> None:
    def rule(operator: str, *values: str) -> overlap.Box:
        selector = Selector(match_expressions=(SelectorRequirement("team", operator, values),))  # type: ignore[arg-type]
        return overlap.box_of(Rule(name="r", namespace_selector=selector))

    either = rule("In", "a", "b")
    assert overlap.without(either, [rule("In", "a")]) != []
    assert overlap.without(either, [rule("In", "a"), rule("In", "b")]) == []
    assert overlap.without(rule("Exists"), [rule("In", "a"), rule("NotIn", "a")]) == []
