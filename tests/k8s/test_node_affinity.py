"""Node selection: N1-N12 and the recorded matcher, where R goes, and what a label can still be (B08-B16)."""

from typing import Any

import msgspec
import pytest

from tests.k8s.recorded import lines, typed
from webhook.k8s.node_affinity import (
    NodeLookup,
    allowed_nodes,
    anded,
    is_possible,
    matches,
    required_terms,
    term_problem,
)
from webhook.k8s.objects import NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec

POOL = "gpu.platform/pool"
F5 = {
    "n1": {POOL: "a100", "zone": "a"},
    "n2": {POOL: "a100", "zone": "a"},
    "n3": {POOL: "h100", "zone": "a"},
    "n4": {"zone": "b"},
}


def expr(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def term(*expressions: dict[str, Any], fields: Any = None) -> dict[str, Any]:
    return {"matchExpressions": list(expressions) or None, "matchFields": fields}


def name_in(node: str) -> list[dict[str, Any]]:
    return [expr("metadata.name", "In", node)]


def spec(*terms: dict[str, Any], **parts: Any) -> PodSpec:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return msgspec.convert({"affinity": {"nodeAffinity": required}, **parts}, PodSpec)


# -- one node ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lines("affinity-cases/pods.jsonl")[1:], ids=lambda c: c["pod"]["metadata"]["name"])
def test_recorded_affinity_case(case: Any) -> None:
    nodes = {n["metadata"]["name"]: n["metadata"]["labels"] for n in lines("affinity-cases/pods.jsonl")[0]["nodes"]}
    pod = typed(case["pod"], Pod).spec
    assert pod is not None
    assert allowed_nodes(pod, nodes) == set(case["allowed"])


def test_n1_terms_are_ored_and_the_node_selector_is_anded() -> None:
    either = spec(term(expr("zone", "In", "b")), term(expr(POOL, "In", "a100"), expr("zone", "In", "a")))
    assert allowed_nodes(either, F5) == {"n1", "n2", "n4"}
    assert allowed_nodes(msgspec.structs.replace(either, node_selector={POOL: "a100"}), F5) == {"n1", "n2"}
    assert matches(PodSpec(), "n4", None)
    assert not matches(msgspec.convert({"nodeSelector": {"zone": ""}}, PodSpec), "n4", None)


def test_n2_empty_terms_match_nothing() -> None:
    assert allowed_nodes(spec({}), F5) == set()
    assert allowed_nodes(spec({}, term(expr("zone", "In", "b"))), F5) == {"n4"}


@pytest.mark.parametrize(
    ("operator", "values", "value", "matched"),
    [
        ("In", ["1"], "1", True),
        ("In", ["1"], None, False),
        ("NotIn", ["1"], None, True),
        ("NotIn", ["1"], "1", False),
        ("Exists", [], "", True),
        ("DoesNotExist", [], None, True),
        ("Gt", ["4"], "08", True),
        ("Gt", ["4"], "4", False),
        ("Gt", ["4"], "x", False),
        ("Gt", ["4"], None, False),
        ("Lt", ["4"], "-2", True),
        ("Lt", ["4"], "3", True),
        ("Lt", ["9223372036854775807"], "9223372036854775806", True),
        ("Lt", ["4"], "-9223372036854775809", False),
    ],
)
def test_n3_operators(operator: str, values: list[str], value: str | None, matched: bool) -> None:
    labels = {} if value is None else {"gpus": value}
    assert matches(spec(term(expr("gpus", operator, *values))), "n", labels) is matched


@pytest.mark.parametrize(
    "bad",
    [
        expr("gpus", "Gt", "4.0"),
        expr("gpus", "Gt", "-3"),  # an integer, but no label value
        expr("gpus", "Gt", "9223372036854775808"),
        expr("gpus", "Gt", "1", "2"),
        expr("gpus", "Lt"),
        expr("gpus", "In"),
        expr("gpus", "Exists", "x"),
        expr("gpus", "Equals", "x"),
        expr("a/b/c", "Exists"),
        expr("gpus", "NotIn", "a b"),
    ],
)
def test_n4_a_term_with_a_parse_error_matches_nothing(bad: dict[str, Any]) -> None:
    assert term_problem(msgspec.convert(term(bad), NodeSelectorTerm))
    assert not matches(spec(term(bad)), "n", {"gpus": "5"})
    assert matches(spec(term(bad), term(expr("gpus", "Exists"))), "n", {"gpus": "5"})


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        (name_in("n1"), {"n1"}),
        ([expr("metadata.name", "NotIn", "n1")], {"n2", "n3", "n4"}),
        ([expr("metadata.name", "In", "n1", "n2")], set()),
        ([expr("metadata.name", "Exists")], set()),
        ([expr("metadata.uid", "In", "n1")], set()),
    ],
)
def test_n5_match_fields(fields: list[dict[str, Any]], allowed: set[str]) -> None:
    assert allowed_nodes(spec(term(fields=fields)), F5) == allowed


# -- adding a requirement ---------------------------------------------------------------------------------------------


R = NodeSelectorRequirement(POOL, "In", ("a100",))


def after(pod: PodSpec, *pools: str) -> list[tuple[NodeSelectorRequirement, ...]]:
    """The expressions of each required term once the pools are ANDed in."""
    terms = anded(required_terms(pod), NodeSelectorRequirement(POOL, "In", pools))
    return [each.match_expressions or () for each in terms]


def possible(pod: PodSpec, key: str, values: list[str], labels_of: NodeLookup = lambda _: None) -> set[str]:
    """Those of `values` that the label can still have."""
    terms = required_terms(pod)
    return {value for value in values if is_possible(pod.node_selector, terms, key, [value], labels_of)}


def test_n6_b08_b09_every_non_empty_branch_gets_it() -> None:
    three = spec(term(expr("zone", "In", "a")), term(expr("zone", "In", "b")), term(expr("name", "Exists")))
    assert [each[-1] for each in after(three, "a100")] == [R, R, R]
    assert [len(each) for each in after(three, "a100")] == [2, 2, 2]


def test_n7_an_empty_term_is_never_filled() -> None:
    assert [len(each) for each in after(spec({}, term(expr("zone", "In", "a"))), "a100")] == [0, 2]
    assert after(spec({}, {}), "a100") == [(), ()]


def test_n8_b11_a_branch_with_only_fields_needs_the_list_itself() -> None:
    pinned = required_terms(spec(term(fields=name_in("n3"))))
    assert pinned is not None
    assert anded(pinned, R) == (NodeSelectorTerm((R,), pinned[0].match_fields),)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"affinity": None},
        {"affinity": {}},
        {"affinity": {"nodeAffinity": None}},
        {"affinity": {"nodeAffinity": {}}},
        {"affinity": {"podAntiAffinity": {}}},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
    ],
)
def test_n9_n12_b14_no_required_affinity(shape: dict[str, Any]) -> None:
    assert after(msgspec.convert(shape, PodSpec), "a100") == [(R,)]


@pytest.mark.parametrize("terms", [{"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}, {}])
def test_n9_b13_an_empty_list_is_left_for_api_validation(terms: dict[str, Any]) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    broken = msgspec.convert({"affinity": {"nodeAffinity": required}}, PodSpec)
    assert after(broken, "a100") == []
    assert possible(broken, POOL, ["a100"]) == {"a100"}
    assert not matches(broken, "n1", F5["n1"])


def test_n10_b07_the_same_set_in_any_order_is_enough() -> None:
    has = spec(term(expr(POOL, "In", "h100", "a100")))
    assert [len(each) for each in after(has, "a100", "h100")] == [1]
    assert [len(each) for each in after(has, "a100")] == [2]
    mixed = spec(term(expr(POOL, "In", "a100")), term(expr("zone", "In", "a")), {})
    assert [len(each) for each in after(mixed, "a100")] == [1, 2, 0]


# -- what a label can still be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "left"),
    [
        ([term(expr(POOL, "In", "h100", "a100"))], {"a100"}),
        ([term(expr(POOL, "NotIn", "h100"))], {"a100"}),
        ([term(expr(POOL, "NotIn", "a100"))], set()),
        ([term(expr(POOL, "DoesNotExist"))], set()),
        ([term(expr(POOL, "In", "h100")), term(expr(POOL, "In", "a100"))], {"a100"}),
        ([term(expr(POOL, "Exists"))], {"a100"}),
        ([term(expr(POOL, "In", "a100"), expr(POOL, "NotIn", "a100"))], set()),
        ([term(expr(POOL, "In", "h100")), {}], set()),
        ([term(expr("zone", "In", "a"))], {"a100"}),
        ([term(expr(POOL, "Gt", "1"))], set()),
        ([term(expr(POOL, "In", "h100"), expr("gpus", "Gt", "many"))], {"a100"}),
    ],
)
def test_b16_overlap_is_not_conflict(terms: list[dict[str, Any]], left: set[str]) -> None:
    assert possible(spec(*terms), POOL, ["a100"]) == left


def test_b16_several_pools_keep_what_is_left() -> None:
    assert possible(spec(term(expr(POOL, "NotIn", "h100"))), POOL, ["a100", "h100", "l4"]) == {"a100", "l4"}
    assert possible(spec(term(expr("gen", "Gt", "7"))), "gen", ["7", "8", "x"]) == {"8"}


def test_n11_b15_a_node_selector_pins_the_pool() -> None:
    pinned = msgspec.convert({"nodeSelector": {POOL: "h100"}}, PodSpec)
    assert possible(pinned, POOL, ["a100"]) == set()
    assert possible(pinned, POOL, ["a100", "h100"]) == {"h100"}
    both = spec(term(expr(POOL, "In", "a100")), nodeSelector={POOL: "h100"})
    assert possible(both, POOL, ["a100", "h100"]) == set()


def test_b11_a_term_pinned_to_a_node_of_another_pool() -> None:
    pinned = spec(term(fields=name_in("n3")))
    assert possible(pinned, POOL, ["a100"]) == {"a100"}
    assert possible(pinned, POOL, ["a100"], F5.get) == set()
    assert possible(pinned, POOL, ["a100", "h100"], F5.get) == {"h100"}
    assert possible(spec(term(fields=name_in("gone"))), POOL, ["a100"], F5.get) == {"a100"}
    zone_b = spec(term(expr("zone", "In", "b"), fields=name_in("n1")))
    assert possible(zone_b, POOL, ["a100"], F5.get) == {"a100"}, "its zone, not its pool, is what excludes n1"
    not_n3 = spec(term(fields=[expr("metadata.name", "NotIn", "n3")]))
    assert possible(not_n3, POOL, ["a100"], F5.get) == {"a100"}


@pytest.mark.parametrize("case", lines("affinity-cases/pods.jsonl")[1:], ids=lambda c: c["pod"]["metadata"]["name"])
def test_recorded_case_never_calls_a_possible_pool_impossible(case: Any) -> None:
    """Whatever pool Kubernetes' matcher lets the pod run in must stay possible by logic."""
    labels = {n["metadata"]["name"]: n["metadata"]["labels"] for n in lines("affinity-cases/pods.jsonl")[0]["nodes"]}
    pod = typed(case["pod"], Pod).spec
    assert pod is not None
    reachable = {labels[name][POOL] for name in case["allowed"] if POOL in labels[name]}
    assert reachable <= possible(pod, POOL, ["training", "inference", "research", ""], labels.get)
