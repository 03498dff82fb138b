"""Where a pod may run after we patched it: the nodes allowed before, intersected with the pool (rule 1)."""

import copy
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.decision.build import (
    NODES,
    POOL,
    POOL_TERM,
    Json,
    admitted,
    cluster,
    codes,
    expressions,
    patched,
    pod,
    pod_spec,
    policy,
    request,
    required,
    terms,
    workload,
)
from tests.oracle import evaluator as oracle
from webhook.decision.engine import decide
from webhook.decision.placement import REQUIRED
from webhook.decision.result import Decision

FACTS = cluster().current()


def judge(obj: Json, **options: Any) -> Decision:
    return decide(request(obj), policy(**options), FACTS)


def allowed(obj: Json, nodes: list[Json] = NODES) -> set[str]:
    """Nodes that the independent evaluator lets the object's pods run on."""
    labels = {n["metadata"]["name"]: n["metadata"]["labels"] for n in nodes}
    return oracle.allowed_nodes(pod_spec(obj), labels)


def placed_on(obj: Json, **options: Any) -> set[str]:
    """Allowed nodes after our patch; the patch must apply, and judging its result again must change nothing (B07)."""
    decision = judge(obj, **options)
    assert decision.verdict == "patch"
    result = patched(obj, decision)
    again = judge(result, **options)
    assert (again.verdict, again.patch) == ("allow", ())
    return allowed(result)


def test_b08_new_term_is_anded_not_ored() -> None:
    deployment = workload(affinity=required(expressions(("zone", "In", ["a"]))))
    assert placed_on(deployment) == {"n1", "n2"}
    assert terms(patched(deployment, judge(deployment))) == [expressions(("zone", "In", ["a"]), (POOL, "In", ["a100"]))]


def test_b09_every_branch_is_constrained() -> None:
    branches = [("zone", "In", ["a"]), ("zone", "In", ["b"]), ("name", "Exists", [])]
    deployment = workload(affinity=required(*(expressions(each) for each in branches)))
    assert placed_on(deployment) == {"n1", "n2"}
    result = patched(deployment, judge(deployment))
    assert all(term["matchExpressions"][-1] == POOL_TERM["matchExpressions"][0] for term in terms(result))


def test_b11_branch_with_only_match_fields_pinned_outside_the_pool_is_refused_by_name() -> None:
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}
    decision = judge(admitted(pod(affinity=required(fields))))
    assert decision.verdict == "deny"
    assert codes(decision) == ["PoolConflict"]
    assert "pinned to node n3, which is in pool h100; allowed a100" in decision.message


def test_b11_branch_with_only_match_fields_in_the_pool_keeps_its_fields() -> None:
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    obj = admitted(pod(affinity=required(fields)))
    assert placed_on(obj) == {"n1"}
    assert terms(patched(obj, judge(obj))) == [{**fields, **POOL_TERM}]


def test_b12_two_pools_stay_one_flat_list() -> None:
    obj = workload(affinity=required(expressions(("zone", "In", ["a"]))))
    rule = {"pools": ["a100", "h100"]}
    assert placed_on(obj, rule=rule) == {"n1", "n2", "n3"}
    result = terms(patched(obj, judge(obj, rule=rule)))
    assert all(isinstance(term, dict) for term in result)
    assert result[0]["matchExpressions"][1]["values"] == ["a100", "h100"]


@pytest.mark.parametrize("block", [{"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}, {}])
def test_b13_an_invalid_term_list_is_left_for_api_validation(block: Json) -> None:
    obj = workload(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": block}})
    decision = judge(obj)
    assert decision.verdict == "patch"
    assert not any("affinity" in operation.path for operation in decision.patch)
    assert pod_spec(patched(obj, decision))["affinity"] == pod_spec(obj)["affinity"]


@pytest.mark.parametrize(
    "nulls",
    [
        {"affinity": None},
        {"affinity": {"nodeAffinity": None}},
        {"affinity": {}},
        {"affinity": {"nodeAffinity": {}}},
        {"initContainers": None, "nodeSelector": None, "tolerations": None},
    ],
)
def test_b14_nulls_and_empty_parents_read_as_absence(nulls: Json) -> None:
    with_nulls = workload(**nulls)
    with_nulls["metadata"] |= {"labels": None, "annotations": None}
    assert placed_on(with_nulls) == {"n1", "n2"}
    assert pod_spec(patched(with_nulls, judge(with_nulls)))["affinity"] == required(POOL_TERM)


def test_b15_the_refusal_names_field_value_pool_rule_and_next_step() -> None:
    decision = judge(workload(nodeSelector={POOL: "h100"}))
    assert decision.verdict == "deny"
    assert decision.message.splitlines() == [
        "Wrong GPU pool in namespace team-a (rule research): asks for gpu.platform/pool=h100, allowed a100",
        "  field      spec.template.spec.nodeSelector",
        "  to fix     remove gpu.platform/pool from spec.template.spec.nodeSelector, or set it to a100",
        f"  decision   {decision.id}",
    ]


@pytest.mark.parametrize(
    ("branches", "nodes"),
    [
        ([expressions((POOL, "In", ["h100", "a100"]))], {"n1", "n2"}),
        ([expressions((POOL, "NotIn", ["h100"]))], {"n1", "n2"}),
        ([expressions((POOL, "NotIn", ["a100"]))], None),
        ([expressions((POOL, "DoesNotExist", []))], None),
        ([expressions((POOL, "In", ["h100"])), expressions((POOL, "In", ["a100"]))], {"n1", "n2"}),
    ],
)
def test_b16_overlap_is_not_conflict(branches: list[Json], nodes: set[str] | None) -> None:
    obj = workload(affinity=required(*branches))
    if nodes is None:
        assert codes(judge(obj)) == ["PoolConflict"]
    else:
        assert placed_on(obj) == nodes


def test_b17_a_cronjob_is_changed_in_its_pod_template() -> None:
    obj = workload("CronJob")
    decision = judge(obj)
    inside = "/spec/jobTemplate/spec/template/spec/"
    assert all(each.path.startswith((inside, "/metadata/annotations")) for each in decision.patch)
    assert terms(patched(obj, decision)) == [POOL_TERM]


def test_b18_the_users_other_placement_stays() -> None:
    preferred = [{"weight": w, "preference": expressions(("zone", "In", [z]))} for w, z in ((10, "a"), (90, "b"))]
    anti = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {}}]}
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    obj = workload(
        affinity={
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
            "podAntiAffinity": anti,
        },
        topologySpreadConstraints=spread,
    )
    result = pod_spec(patched(obj, judge(obj)))
    assert result["affinity"]["nodeAffinity"].pop("requiredDuringSchedulingIgnoredDuringExecution") == {
        "nodeSelectorTerms": [POOL_TERM]
    }
    del result["priorityClassName"]
    assert result == pod_spec(obj)


def test_n2_an_empty_term_is_never_filled() -> None:
    obj = workload(affinity=required({}, expressions(("zone", "In", ["a"]))))
    assert terms(patched(obj, judge(obj))) == [{}, expressions(("zone", "In", ["a"]), (POOL, "In", ["a100"]))]


def test_n7_only_empty_terms_match_nothing_and_stay_so() -> None:
    obj = workload(affinity=required({}))
    result = patched(obj, judge(obj))
    assert terms(result) == [{}]
    assert allowed(result) == set()


@pytest.mark.parametrize("values", [["a100", "h100"], ["h100", "a100"]])
def test_n10_an_equal_requirement_is_recognised_whatever_the_order_of_values(values: list[str]) -> None:
    obj = workload(affinity=required(expressions((POOL, "In", values))))
    decision = judge(obj, rule={"pools": ["a100", "h100"]})
    assert not any("affinity" in each.path for each in decision.patch)
    assert "PoolInjected" not in codes(decision)


def test_a_narrower_rule_is_added_to_a_wider_requirement() -> None:
    obj = workload(affinity=required(expressions((POOL, "In", ["h100", "a100"]))))
    assert len(terms(patched(obj, judge(obj)))[0]["matchExpressions"]) == 2


def test_pool_conflicts_can_be_kept_by_the_rule() -> None:
    obj = workload(nodeSelector={POOL: "h100"})
    decision = judge(obj, rule={"onPoolConflict": "keep"})
    assert decision.verdict == "patch"
    assert "affinity" not in pod_spec(patched(obj, decision))
    assert "PoolConflict" in codes(decision)
    assert decision.warnings[0].startswith("Wrong GPU pool")


def test_a_rule_without_pools_leaves_placement_alone() -> None:
    decision = judge(workload(nodeSelector={POOL: "h100"}), rule={"pools": None})
    assert [each.path for each in decision.patch] == ["/spec/template/spec/priorityClassName", "/metadata/annotations"]


def test_an_empty_pool_is_injected_with_a_warning() -> None:
    decision = judge(workload(), rule={"pools": ["b200"]})
    assert codes(decision) == ["PriorityInjected", "PoolInjected", "PoolEmpty"]
    assert decision.warnings == ("no node carries gpu.platform/pool=b200 now: pods wait until one does",)


class TestNodeName:
    """N17: nodeName skips the scheduler, not the kubelet."""

    def test_in_the_pool(self) -> None:
        assert placed_on(admitted(pod(nodeName="n1"))) == {"n1", "n2"}

    def test_outside_the_pool(self) -> None:
        decision = judge(admitted(pod(nodeName="n3")))
        assert decision.verdict == "deny"
        assert codes(decision) == ["NodeNameOutsidePool"]
        assert "n3 is in pool h100, allowed a100" in decision.message

    def test_on_a_node_without_a_pool(self) -> None:
        assert "n4 is in no pool" in judge(admitted(pod(nodeName="n4"))).message

    def test_on_an_unknown_node(self) -> None:
        assert "FactsUnknown" in codes(judge(admitted(pod(nodeName="n9"))))


class TestTolerations:
    """Added if none that exists covers them."""

    RULE: ClassVar[Json] = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}

    def test_added_to_none(self) -> None:
        obj = workload()
        decision = judge(obj, rule=self.RULE)
        assert pod_spec(patched(obj, decision))["tolerations"] == self.RULE["tolerations"]
        assert "TolerationInjected" in codes(decision)

    def test_appended_to_others(self) -> None:
        other = {"key": "spot", "operator": "Exists"}
        obj = workload(tolerations=[other])
        assert pod_spec(patched(obj, judge(obj, rule=self.RULE)))["tolerations"] == [other, *self.RULE["tolerations"]]

    @pytest.mark.parametrize(
        "covering",
        [{"operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}],
    )
    def test_not_added_where_covered(self, covering: Json) -> None:
        obj = workload(tolerations=[covering])
        assert pod_spec(patched(obj, judge(obj, rule=self.RULE)))["tolerations"] == [covering]

    @pytest.mark.parametrize(
        "other",
        [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
            {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
            {"operator": "Exists", "tolerationSeconds": 60},
        ],
    )
    def test_added_beside_what_covers_less(self, other: Json) -> None:
        obj = workload(tolerations=[other])
        assert len(pod_spec(patched(obj, judge(obj, rule=self.RULE)))["tolerations"]) == 2


def _affinity_cases() -> tuple[list[Json], list[Json]]:
    lines = Path("tests/data/affinity-cases/pods.jsonl").read_text().splitlines()
    first, *cases = map(json.loads, lines)
    return first["nodes"], cases


AFFINITY_NODES, AFFINITY_CASES = _affinity_cases()


@pytest.mark.parametrize("case", AFFINITY_CASES, ids=lambda case: case["pod"]["metadata"]["name"])
def test_recorded_pods_run_where_they_ran_before_and_in_the_pool(case: Json) -> None:
    """affinity-cases: allowed(after) = allowed(before) and pool, or refused exactly when the pool key empties it."""
    facts = cluster(*({"apiVersion": "v1", "kind": "Node", **node} for node in AFFINITY_NODES)).current()
    pools = ["training", "inference"]
    in_pools = {n["metadata"]["name"] for n in AFFINITY_NODES if n["metadata"]["labels"].get(POOL) in pools}
    decision = decide(request(case["pod"]), policy(rule={"pools": pools}), facts)
    if decision.verdict == "deny":
        assert codes(decision) == ["PoolConflict"]
        assert set(case["allowed"]) & in_pools == set()
        assert decide(request(_without_pool_key(case["pod"])), policy(rule={"pools": pools}), facts).verdict == "patch"
    else:
        after = patched(case["pod"], decision)
        assert allowed(after, AFFINITY_NODES) == set(case["allowed"]) & in_pools


def _without_pool_key(obj: Json) -> Json:
    """The pod without a word about pools: what is refused only for them must pass then."""
    result = copy.deepcopy(obj)
    spec = result["spec"]
    spec.get("nodeSelector", {}).pop(POOL, None)
    required_affinity = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {})
    for term in required_affinity.get("nodeSelectorTerms") or ():
        term["matchExpressions"] = [each for each in term.get("matchExpressions") or () if each["key"] != POOL]
        term.pop("matchFields", None)
    return result
