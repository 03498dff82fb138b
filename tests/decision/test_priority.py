"""Which class a pod gets: injected without breaking the Priority plugin, never against an allowed choice (P, O2)."""

from typing import Any

import msgspec
import pytest

from tests.decision.build import (
    Json,
    admitted,
    cluster,
    codes,
    controller,
    namespace,
    patched,
    pod,
    pod_spec,
    policy,
    priority_class,
    request,
    workload,
)
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import decide
from webhook.decision.result import Decision
from webhook.k8s import priority
from webhook.k8s.objects import PodSpec

FACTS = cluster().current()
CHOSEN = [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:priorityClassName": {}}}}]
NOT_CHOSEN = [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:containers": {}}}}]


def judge(
    obj: Json, snapshot: Snapshot | None = None, phase: str = "mutate", user: Json | None = None, **rule: Any
) -> Decision:
    more = {"user": user} if user else {}
    facts = snapshot.current() if snapshot else FACTS
    return decide(request(obj, phase=phase, **more), policy(rule={"pools": None, **rule}), facts)


def class_after(obj: Json, decision: Decision) -> str | None:
    return pod_spec(patched(obj, decision)).get("priorityClassName")


def accepted_by_priority_plugin(obj: Json, facts: Any = FACTS) -> bool:
    """A simulated second pass of the in-tree plugin (A7, P4, P5)."""
    return priority.consistent(msgspec.convert(pod_spec(obj), PodSpec), facts.priority_classes())


@pytest.mark.parametrize(
    ("rule_class", "preemption"),
    [("gpu-batch", "PreemptLowerPriority"), ("gpu-research", "Never"), ("gpu-batch", "Never")],
)
def test_b01_b03_class_number_and_preemption_policy_agree_after_the_patch(rule_class: str, preemption: str) -> None:
    obj = admitted(pod(), priority=0, preemption=preemption)
    result = patched(obj, judge(obj, priorityClassName=rule_class))
    assert pod_spec(result)["priorityClassName"] == rule_class
    assert accepted_by_priority_plugin(result)


def test_p3_priority_zero_is_present_and_removed() -> None:
    decision = judge(admitted(pod(), priority=0))
    assert [(each.op, each.path) for each in decision.patch[:3]] == [
        ("remove", "/spec/priority"),
        ("remove", "/spec/preemptionPolicy"),
        ("add", "/spec/priorityClassName"),
    ]


def test_p7_only_what_exists_is_removed() -> None:
    obj = pod(priority=0)
    assert [each.path for each in judge(obj).patch][:2] == ["/spec/priority", "/spec/priorityClassName"]
    assert class_after(obj, judge(obj)) == "gpu-research"


def test_p9_the_second_round_answers_an_empty_patch() -> None:
    first = admitted(pod())
    second = admitted(patched(first, judge(first)), priority=1000)
    decision = judge(second)
    assert (decision.verdict, decision.patch) == ("allow", ())


def test_p11_a_template_copied_from_a_live_pod_loses_its_derived_fields() -> None:
    obj = workload(priority=0, preemptionPolicy="PreemptLowerPriority")
    result = patched(obj, judge(obj))
    assert {"priority", "preemptionPolicy"}.isdisjoint(pod_spec(result))
    assert accepted_by_priority_plugin(result)


@pytest.mark.parametrize(
    "kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"]
)
def test_p12_every_kind_gets_it_where_its_template_lies(kind: str) -> None:
    obj = workload(kind)
    assert class_after(obj, judge(obj)) == "gpu-research"


class TestGlobalDefault:
    """O2: a class that the Priority plugin filled in is not the user's choice."""

    CLUSTER = cluster(priority_class("house-default", 10, default=True))

    def pod(self, managed: Any, name: str = "house-default") -> Json:
        fields = {} if managed is None else {"managedFields": managed}
        return admitted(pod(priorityClassName=name, metadata=fields), priority=10)

    @pytest.mark.parametrize("managed", [NOT_CHOSEN, None])
    def test_filled_in_is_replaced(self, managed: Any) -> None:
        obj = self.pod(managed)
        decision = judge(obj, self.CLUSTER)
        assert class_after(obj, decision) == "gpu-research"
        assert accepted_by_priority_plugin(patched(obj, decision), self.CLUSTER.current())

    def test_chosen_by_the_user_is_a_conflict(self) -> None:
        decision = judge(self.pod(CHOSEN), self.CLUSTER)
        assert codes(decision) == ["PriorityConflict"]
        assert decision.class_chosen is True

    def test_chosen_in_a_template_is_a_conflict(self) -> None:
        assert codes(judge(workload(priorityClassName="house-default"), self.CLUSTER)) == ["PriorityConflict"]


class TestConflict:
    """A class above its station."""

    def test_denied_with_what_is_allowed(self) -> None:
        decision = judge(workload(priorityClassName="gpu-high"), allowedPriorityClasses=["gpu-batch"])
        assert decision.verdict == "deny"
        assert decision.message.splitlines()[:3] == [
            "Priority class not allowed in namespace team-a (rule research): "
            "asks for gpu-high, allowed gpu-research or gpu-batch",
            "  field      spec.template.spec.priorityClassName",
            "  to fix     remove priorityClassName (gpu-research is set for you), "
            "or set it to gpu-research or gpu-batch",
        ]

    def test_an_allowed_choice_stays(self) -> None:
        obj = admitted(pod(priorityClassName="gpu-batch"), 100, "Never")
        assert judge(obj, allowedPriorityClasses=["gpu-batch"]).patch == ()

    def test_overridden(self) -> None:
        obj = admitted(pod(priorityClassName="gpu-high"), 5000)
        decision = judge(obj, onPriorityConflict="override")
        result = patched(obj, decision)
        assert pod_spec(result)["priorityClassName"] == "gpu-research"
        assert accepted_by_priority_plugin(result)
        assert decision.warnings == ("priorityClassName gpu-high replaced by gpu-research (rule research)",)

    def test_kept(self) -> None:
        obj = workload(priorityClassName="gpu-high")
        decision = judge(obj, onPriorityConflict="keep")
        assert (decision.verdict, codes(decision)) == ("allow", ["PriorityConflict"])

    def test_a_system_class_is_never_overridden(self) -> None:
        obj = admitted(pod(priorityClassName="system-node-critical"), 2000001000)
        decision = judge(obj, onPriorityConflict="override")
        assert (decision.verdict, codes(decision)) == ("allow", ["PriorityConflict"])

    def test_a_controllers_pod_is_left_as_it_is(self) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w-1", "uid": "1", "controller": True}
        obj = admitted(pod(priorityClassName="gpu-high", metadata={"ownerReferences": [owner]}), 5000)
        decision = judge(obj, user=controller("replicaset-controller"))
        assert (decision.verdict, codes(decision)) == ("allow", ["ControllerPod"])


@pytest.mark.parametrize("obj", [admitted(pod()), workload()], ids=["Pod", "Deployment"])
def test_b04_a_class_that_exists_nowhere_is_not_injected(obj: Json) -> None:
    decision = judge(obj, priorityClassName="gpu-reserch")
    assert (decision.verdict, codes(decision)) == ("allow", ["PriorityClassMissing"])
    assert "PriorityClass gpu-reserch of rule research does not exist" in decision.warnings[0]


def test_unknown_classes_are_never_guessed() -> None:
    bare = Snapshot.from_objects([namespace()])
    decision = judge(admitted(pod()), bare)
    assert (decision.verdict, codes(decision)) == ("allow", ["FactsUnknown"])


def test_a_class_that_vanished_does_not_take_the_injected_one_away() -> None:
    first = admitted(pod())
    second = patched(first, judge(first))
    without = Snapshot.from_objects([namespace(), priority_class("other", 1)])
    assert judge(second, without).patch == ()


def test_a_rule_without_a_class_leaves_priority_alone() -> None:
    assert judge(admitted(pod()), priorityClassName=None).patch == ()
