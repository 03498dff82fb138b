"""What an UPDATE does to a template: the rule of DESIGN 5.7 (H9, H10, H14), and what a client's apply may not break."""

import copy
import json
from typing import Any

from tests.decision.build import (
    POOL,
    POOL_TERM,
    Json,
    cluster,
    codes,
    expressions,
    patched,
    pod_spec,
    policy,
    priority_class,
    request,
    required,
    terms,
    workload,
)
from webhook.decision.engine import decide
from webhook.decision.injected import ANNOTATION
from webhook.decision.result import Decision

FACTS = cluster(priority_class("gpu-other", 2000)).current()


def update(new: Json, old: Json, phase: str = "mutate", **options: Any) -> Decision:
    return decide(request(new, "UPDATE", old, phase), policy(**options), FACTS)


def stored(obj: Json, **options: Any) -> Json:
    """The object as it was stored after its CREATE."""
    return patched(obj, decide(request(obj), policy(**options), FACTS))


def edited(obj: Json, **template: Any) -> Json:
    """The object with another image, or with further changes to its pod spec."""
    result = copy.deepcopy(obj)
    pod_spec(result)["containers"][0]["image"] = "train:2"
    pod_spec(result).update(template)
    return result


def annotated(obj: Json, key: str = "note", value: str = "x") -> Json:
    result = copy.deepcopy(obj)
    result["metadata"].setdefault("annotations", {})[key] = value
    return result


def record(obj: Json) -> Json:
    found: Json = json.loads(obj["metadata"]["annotations"][ANNOTATION])
    return found


def test_the_record_names_only_what_we_added_and_lies_on_the_object() -> None:
    assert record(stored(workload())) == {"rule": "research", "class": "gpu-research", "pools": ["a100"]}
    with_class = stored(workload(priorityClassName="gpu-research"))
    assert record(with_class) == {"rule": "research", "pools": ["a100"]}
    whole = workload(priorityClassName="gpu-research", affinity=required(POOL_TERM))
    assert decide(request(whole), policy(), FACTS).patch == ()


class TestSameTemplate:
    """New = old: no patch, whatever else changed (H9)."""

    def test_h9_an_unrelated_edit_of_an_old_workload_starts_no_rollout(self) -> None:
        old = workload()
        new = annotated(workload(spec={"replicas": 3}))
        decision = update(new, old)
        assert (decision.verdict, decision.template_change) == ("allow", "same")

    def test_b59_a_policy_change_leaves_the_template_and_warns_in_one_line(self) -> None:
        old = stored(workload())
        new = annotated(old)
        decision = update(new, old, rule={"pools": ["h100"]})
        assert decision.patch == ()
        assert codes(decision) == ["PolicyDrift"]
        assert "kubectl rollout restart" in decision.warnings[0]

    def test_b59_rollout_restart_converges(self) -> None:
        old = stored(workload())
        new = copy.deepcopy(old)
        new["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
        result = patched(new, update(new, old, rule={"pools": ["h100"], "priorityClassName": "gpu-other"}))
        assert terms(result) == [expressions((POOL, "In", ["h100"]))]
        assert pod_spec(result)["priorityClassName"] == "gpu-other"
        assert record(result) == {"rule": "research", "class": "gpu-other", "pools": ["h100"]}

    def test_a_dropped_record_is_written_again(self) -> None:
        old = stored(workload())
        new = copy.deepcopy(old)
        del new["metadata"]["annotations"]
        assert patched(new, update(new, old)) == old

    def test_a_changed_record_is_put_right(self) -> None:
        old = stored(workload())
        new = annotated(old, ANNOTATION, '{"rule":"forged","pools":["h100"]}')
        assert patched(new, update(new, old)) == old

    def test_a_forged_record_is_taken_away(self) -> None:
        old = workload(affinity=required(POOL_TERM), priorityClassName="gpu-research")
        new = annotated(old, ANNOTATION, '{"rule":"forged","pools":["a100"]}')
        assert ANNOTATION not in patched(new, update(new, old))["metadata"]["annotations"]


class TestDroppedFields:
    """strip(new) = strip(old): the old template comes back byte for byte (H10)."""

    def test_h10_a_replace_without_our_fields(self) -> None:
        old = stored(workload())
        decision = update(workload(), old)
        assert decision.template_change == "dropped"
        assert patched(workload(), decision) == old

    def test_b58_ten_applies_of_a_manifest_with_its_own_affinity_move_nothing(self) -> None:
        manifest = workload(affinity=required(expressions(("zone", "In", ["a"])), expressions(("zone", "In", ["b"]))))
        current = stored(manifest)
        for _ in range(10):
            sent = copy.deepcopy(current)  # kubectl sends its own atomic list, and leaves what only we set (H11)
            pod_spec(sent)["affinity"] = pod_spec(manifest)["affinity"]
            after = patched(sent, update(sent, current))
            assert after == current
            current = after

    def test_only_a_part_was_dropped(self) -> None:
        old = stored(workload())
        new = copy.deepcopy(old)
        del pod_spec(new)["priorityClassName"]
        assert patched(new, update(new, old)) == old

    def test_nulls_and_empty_lists_are_not_changes(self) -> None:
        old = stored(workload())
        new = workload(affinity=None, tolerations=[], initContainers=None)
        decision = update(new, old)
        assert decision.template_change == "dropped"
        assert pod_spec(patched(new, decision))["affinity"] == pod_spec(old)["affinity"]

    def test_it_comes_back_even_after_the_policy_changed(self) -> None:
        old = stored(workload())
        assert patched(workload(), update(workload(), old, rule={"pools": ["h100"]})) == old


class TestChangedTemplate:
    """Anything else is placed by the current policy."""

    def test_h14_an_injected_pool_is_replaced_never_stacked(self) -> None:
        old = stored(workload())
        new = edited(old)
        result = patched(new, update(new, old, rule={"pools": ["h100"]}))
        assert terms(result) == [expressions((POOL, "In", ["h100"]))]

    def test_h14_a_users_own_pool_is_not_ours_to_replace(self) -> None:
        old = workload(affinity=required(POOL_TERM), priorityClassName="gpu-research")
        decision = update(edited(old), old, rule={"pools": ["h100"]})
        assert decision.verdict == "allow"
        assert "PoolConflict" in codes(decision)

    def test_h21_a_conflict_that_was_there_before_is_left_with_a_warning(self) -> None:
        old = workload(nodeSelector={POOL: "h100"})
        decision = update(edited(old), old)
        assert decision.verdict == "patch"
        assert decision.warnings[0].startswith("Wrong GPU pool")
        assert "affinity" not in pod_spec(patched(edited(old), decision))

    def test_a_new_conflict_is_refused(self) -> None:
        old = stored(workload())
        assert update(edited(old, nodeSelector={POOL: "h100"}), old).verdict == "deny"
        other = workload(nodeSelector={POOL: "h100"})
        assert update(edited(other, nodeSelector={POOL: "b200"}), other).verdict == "deny"

    def test_an_image_change_injects_what_was_never_there(self) -> None:
        old = workload()
        new = edited(old)
        assert terms(patched(new, update(new, old))) == [POOL_TERM]

    def test_an_image_change_keeps_what_is_right(self) -> None:
        old = stored(workload())
        assert update(edited(old), old).patch == ()

    def test_a_rollout_undo_is_understood(self) -> None:
        """It brings back the old template while the object's record is the new one's."""
        first = stored(workload())
        second = patched(edited(first), update(edited(first), first, rule={"pools": ["h100"]}))
        undone = copy.deepcopy(second)
        undone["spec"]["template"] = first["spec"]["template"]
        undone["metadata"]["annotations"] = first["metadata"]["annotations"]
        result = patched(undone, update(undone, second, rule={"pools": ["h100"]}))
        assert terms(result) == [expressions((POOL, "In", ["h100"]))]
        assert record(result)["pools"] == ["h100"]

    def test_a_forged_record_gains_nothing(self) -> None:
        forged = annotated(workload(nodeSelector={POOL: "h100"}), ANNOTATION, '{"rule":"x","pools":["h100"]}')
        assert decide(request(forged), policy(), FACTS).verdict == "deny"
        wider = annotated(
            workload(affinity=required(expressions((POOL, "In", ["h100"])))),
            ANNOTATION,
            '{"rule":"x","pools":["h100"]}',
        )
        assert terms(patched(wider, decide(request(wider), policy(), FACTS))) == [POOL_TERM]

    def test_a_record_that_is_no_json_is_replaced(self) -> None:
        broken = annotated(workload(), ANNOTATION, "not json")
        assert record(patched(broken, decide(request(broken), policy(), FACTS)))["pools"] == ["a100"]

    def test_only_another_order_is_not_patched(self) -> None:
        old = stored(workload(affinity=required(expressions(("zone", "In", ["a"])))))
        new = edited(old)
        terms(new)[0]["matchExpressions"].reverse()
        assert update(new, old).patch == ()


class TestJobs:
    """A Job's template is immutable: patched on CREATE only (H3)."""

    def test_h3_no_patch_on_update(self) -> None:
        old = workload("Job", spec={"suspend": True})
        decision = update(edited(old), old)
        assert decision.patch == ()

    def test_a_conflict_that_an_update_brings_is_refused(self) -> None:
        old = workload("Job", spec={"suspend": True})
        assert update(edited(old, nodeSelector={POOL: "h100"}), old).verdict == "deny"

    def test_unsuspending_changes_no_template(self) -> None:
        old = workload("Job", spec={"suspend": True})
        assert update(workload("Job", spec={"suspend": False}), old).patch == ()


def test_b58_pods_only_leaves_workloads_alone() -> None:
    decision = decide(request(workload()), policy(workloads=["Pod"]), FACTS)
    assert (decision.verdict, codes(decision)) == ("allow", [])


def test_a_validate_phase_placement_explained_by_a_record_is_no_conflict() -> None:
    """In /validate a pool that our own record explains is missing placement, not the user's conflict (DESIGN 5.7)."""
    old = stored(workload())
    decision = decide(request(old, phase="validate"), policy(rule={"pools": ["h100"]}), FACTS)
    assert (decision.verdict, codes(decision)) == ("allow", ["NotPlaced"])
