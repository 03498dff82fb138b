"""Who is not judged, and that nothing a tenant can set on their own opens a door (DESIGN 5.7, B46)."""

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.decision.build import (
    ALICE,
    NOW,
    POOL,
    Json,
    admitted,
    cluster,
    codes,
    controller,
    patched,
    pod,
    pod_spec,
    policy,
    quota,
    request,
    workload,
)
from webhook.decision.engine import decide
from webhook.decision.exemptions import BREAK_GLASS, EXEMPT
from webhook.decision.result import Decision

FACTS = cluster(quota(gpu=("1", "1"))).current()
WRONG = workload(gpus=8, nodeSelector={POOL: "h100"})
SRE = {"username": "root", "groups": ["sre", "system:authenticated"]}
END = datetime.fromtimestamp(NOW + 4 * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def answer(obj: Json, *, entry: Json | None = None, **more: Any) -> Decision:
    exempting = {"exemptions": [{"name": "sre", "reason": "incident 7", **entry}]} if entry is not None else {}
    spec = {**exempting, "breakGlass": {"groups": ["sre"], "maxAge": "4h"}}
    return decide(request(obj, **more), policy(**spec), FACTS)


def mark(obj: Json) -> str | None:
    return (obj["spec"]["template"]["metadata"].get("annotations") or {}).get(EXEMPT)


def marked(obj: Json, value: str) -> Json:
    result = copy.deepcopy(obj)
    metadata = result["metadata"] if result["kind"] == "Pod" else result["spec"]["template"]["metadata"]
    metadata.setdefault("annotations", {})[EXEMPT] = value
    return result


def broken(obj: Json, reason: str = "burning") -> Json:
    result = copy.deepcopy(obj)
    result["metadata"].setdefault("annotations", {})[BREAK_GLASS] = reason
    return result


def replica_pod(value: str | None, **spec: Any) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w-1", "uid": "1", "controller": True}
    annotations = {EXEMPT: value} if value else {}
    return admitted(pod(metadata={"ownerReferences": [owner], "annotations": annotations}, **spec))


class TestWho:
    @pytest.mark.parametrize(
        "entry",
        [
            {"users": ["root"]},
            {"groups": ["sre", "other"]},
            {"namespaces": ["team-a"]},
            {"users": ["root"], "groups": ["sre"], "namespaces": ["team-a"]},
        ],
    )
    def test_filled_fields_are_anded_and_their_values_ored(self, entry: Json) -> None:
        decision = answer(WRONG, entry=entry, user=SRE)
        assert (decision.verdict, codes(decision)) == ("patch", ["Exempt"])

    @pytest.mark.parametrize("entry", [{"users": ["root"], "groups": ["other"]}, {"namespaces": ["team-b"]}, {}])
    def test_one_that_does_not_match_is_none(self, entry: Json) -> None:
        assert answer(WRONG, entry=entry, user=SRE).verdict == "deny"

    def test_service_accounts_are_written_as_namespace_and_name(self) -> None:
        robot = {"username": "system:serviceaccount:ci:deployer", "groups": []}
        assert answer(WRONG, entry={"serviceAccounts": ["ci/deployer"]}, user=robot).verdict == "patch"

    @pytest.mark.parametrize(
        ("expires", "verdict"), [("2026-12-01T20:00:01Z", "patch"), ("2026-12-01T20:00:00Z", "deny")]
    )
    def test_it_ends_when_it_ends(self, expires: str, verdict: str) -> None:
        assert answer(WRONG, entry={"users": ["root"], "expires": expires}, user=SRE).verdict == verdict


class TestHowItReachesThePods:
    def exempt(self, obj: Json, user: Json = SRE, **more: Any) -> Decision:
        return answer(obj, entry={"users": ["root"]}, user=user, **more)

    def test_the_template_is_marked_and_nothing_else_is_patched(self) -> None:
        decision = self.exempt(WRONG)
        result = patched(WRONG, decision)
        assert mark(result) == "sre"
        assert pod_spec(result) == pod_spec(WRONG)
        assert len(decision.patch) == 1

    def test_marking_twice_changes_nothing(self) -> None:
        once = patched(WRONG, self.exempt(WRONG))
        assert (self.exempt(once).verdict, self.exempt(once).patch) == ("allow", ())

    def test_validate_agrees_without_not_placed(self) -> None:
        decision = self.exempt(WRONG, phase="validate")
        assert (decision.verdict, codes(decision)) == ("allow", ["Exempt"])

    def test_a_controllers_pod_with_the_mark_is_exempt(self) -> None:
        decision = self.exempt(replica_pod("sre", nodeSelector={POOL: "h100"}), controller("replicaset-controller"))
        assert (decision.verdict, codes(decision)) == ("allow", ["Exempt"])

    def test_b46_a_users_pod_with_the_mark_is_not(self) -> None:
        decision = self.exempt(replica_pod("sre"), ALICE)
        assert "ExemptionRemoved" in codes(decision)
        assert decision.verdict == "deny"

    def test_b46_a_forged_mark_on_a_template_is_removed_and_recorded(self) -> None:
        forged = marked(workload(gpus=0, resourceClaims=[{"name": "g"}]), "sre")
        decision = self.exempt(forged, ALICE)
        assert mark(patched(forged, decision)) is None
        assert "ExemptionRemoved" in codes(decision)

    @pytest.mark.parametrize("value", ["gone", "break-glass/2026-12-01T19:59:59Z", "break-glass/soon", "break-glass/"])
    def test_a_mark_that_means_nothing_now_leaves_a_controllers_pod_like_any_other(self, value: str) -> None:
        decision = self.exempt(replica_pod(value), controller("replicaset-controller"))
        assert "PoolInjected" in codes(decision)
        assert not any("exempt" in each.path for each in decision.patch)

    def test_an_update_that_leaves_the_template_leaves_the_mark(self) -> None:
        old = marked(workload(), "sre")
        new = copy.deepcopy(old)
        new["metadata"]["labels"] = {"a": "b"}
        decision = answer(new, operation="UPDATE", old=old)
        assert not any("exempt" in each.path for each in decision.patch)

    def test_anybody_elses_change_of_the_template_removes_it(self) -> None:
        old = marked(workload(gpus=0, resourceClaims=[{"name": "g"}]), "sre")
        new = copy.deepcopy(old)
        pod_spec(new)["containers"][0]["image"] = "v2"
        assert mark(patched(new, answer(new, operation="UPDATE", old=old))) is None


class TestBreakGlass:
    def test_honoured_from_the_groups_that_the_policy_names(self) -> None:
        obj = broken(WRONG)
        decision = answer(obj, user=SRE)
        assert codes(decision) == ["Exempt", "BreakGlass"]
        assert mark(patched(obj, decision)) == f"break-glass/{END}"
        assert decision.findings[1].message == f"break-glass until {END}: burning"

    def test_b46_from_nobody_else(self) -> None:
        assert answer(broken(WRONG), user=ALICE).verdict == "deny"

    def test_without_a_reason_it_is_nothing(self) -> None:
        assert answer(broken(WRONG, ""), user=SRE).verdict == "deny"
        assert answer(broken(WRONG, "  "), user=SRE).verdict == "deny"

    def test_an_earlier_end_is_kept(self) -> None:
        earlier = "break-glass/2026-12-01T21:00:00Z"
        decision = answer(broken(marked(WRONG, earlier)), user=SRE)
        assert (decision.verdict, decision.patch) == ("allow", ())

    def test_a_later_end_is_cut_to_max_age(self) -> None:
        obj = broken(marked(WRONG, "break-glass/2030-01-01T00:00:00Z"))
        assert mark(patched(obj, answer(obj, user=SRE))) == f"break-glass/{END}"

    def test_an_end_that_is_past_is_not_honoured_again(self) -> None:
        assert answer(broken(marked(WRONG, "break-glass/2026-12-01T19:00:00Z")), user=SRE).verdict == "deny"

    def test_it_reaches_the_pods_until_its_end(self) -> None:
        user = controller("replicaset-controller")
        running = answer(replica_pod(f"break-glass/{END}", nodeSelector={POOL: "h100"}), user=user)
        assert codes(running) == ["Exempt", "BreakGlass"]
