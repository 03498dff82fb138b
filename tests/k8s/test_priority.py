"""The Priority plugin: P2-P7, O1, O2, and its second pass over every golden Pod (B01, B03)."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from tests.k8s.recorded import cluster, reviews, typed
from webhook.k8s.objects import Pod, PodSpec, PriorityClass
from webhook.k8s.priority import (
    Admitted,
    PriorityError,
    admit,
    class_chosen_by_user,
    class_of_pods,
    consistent,
    global_default,
)


def classes(**values: Any) -> dict[str, PriorityClass]:
    """name=value, or name={...}; underscores stand for dashes."""
    found = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        parts = value if isinstance(value, dict) else {"value": value}
        found[name] = msgspec.convert({"metadata": {"name": name}, **parts}, PriorityClass)
    return found


GPU = classes(gpu_high=1000, gpu_batch={"value": 10, "preemptionPolicy": "Never"})
RECORDED = {item["metadata"]["name"]: typed(item, PriorityClass) for item in cluster("seed-cluster")["PriorityClass"]}


def spec(**parts: Any) -> PodSpec:
    return msgspec.convert(parts, PodSpec)


def golden_pods() -> list[Any]:
    return [
        pytest.param(request["object"], id=f"{scenario}-{phase}")
        for scenario, phase, request in reviews()
        if request["resource"]["resource"] == "pods"
        and not request.get("subResource")
        and request["operation"] == "CREATE"
    ]


def test_p2_without_class_and_without_default() -> None:
    assert admit(spec(), GPU) == Admitted("", 0, "PreemptLowerPriority")
    assert class_of_pods(spec(), GPU) == ""


def test_p2_the_lowest_global_default_is_taken() -> None:
    known = GPU | classes(b={"value": 7, "globalDefault": True}, a={"value": 9, "globalDefault": True})
    assert admit(spec(), known) == Admitted("b", 7, "PreemptLowerPriority")
    assert class_of_pods(spec(), known) == "b"
    assert class_of_pods(spec(priorityClassName="gpu-high"), known) == "gpu-high"
    assert global_default(GPU) is None


def test_p2_a_class_that_does_not_exist() -> None:
    with pytest.raises(PriorityError) as refused:
        admit(spec(priorityClassName="nope"), GPU)
    assert refused.value.message("x") == 'pods "x" is forbidden: no PriorityClass with name nope was found'


def test_p4_the_integer_left_behind() -> None:
    with pytest.raises(PriorityError) as refused:
        admit(spec(priorityClassName="gpu-high", priority=0, preemptionPolicy="PreemptLowerPriority"), GPU)
    assert refused.value.message("x") == (
        'pods "x" is forbidden: the integer value of priority (0) must not be provided in pod spec; '
        "priority admission controller computed 1000 from the given PriorityClass name"
    )


def test_p5_b03_the_policy_left_behind() -> None:
    with pytest.raises(PriorityError) as refused:
        admit(spec(priorityClassName="gpu-batch", preemptionPolicy="PreemptLowerPriority"), GPU)
    assert refused.value.message("web-5d8c-") == (
        'pods "web-5d8c-" is forbidden: the string value of PreemptionPolicy (PreemptLowerPriority) must not be '
        "provided in pod spec; priority admission controller computed Never from the given PriorityClass name"
    )


@pytest.mark.parametrize(
    ("parts", "agrees"),
    [
        ({"priorityClassName": "gpu-batch"}, True),
        ({"priorityClassName": "gpu-batch", "priority": None, "preemptionPolicy": None}, True),
        ({"priorityClassName": "gpu-batch", "priority": 10, "preemptionPolicy": "Never"}, True),
        ({"priorityClassName": "gpu-batch", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"}, False),
        ({"priorityClassName": "gpu-batch", "preemptionPolicy": "PreemptLowerPriority"}, False),
        ({"priorityClassName": "gone"}, False),
        ({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}, True),
    ],
)
def test_b01_class_number_and_policy_agree(parts: dict[str, Any], agrees: bool) -> None:
    assert consistent(spec(**parts), GPU) is agrees


@pytest.mark.parametrize("pod", golden_pods())
def test_every_golden_pod_shows_what_the_plugin_had_computed(pod: Any) -> None:
    seen = typed(pod, Pod).spec
    assert seen is not None
    admitted = admit(seen, RECORDED)
    assert (admitted.priority, admitted.preemption_policy) == (seen.priority, seen.preemption_policy)
    assert admitted.class_name == (seen.priority_class_name or "")


@pytest.mark.parametrize("pod", golden_pods())
def test_p7_o1_second_pass_over_golden_pods_after_injection(pod: Any) -> None:
    seen = typed(pod, Pod).spec
    assert seen is not None
    class_alone = msgspec.structs.replace(seen, priority_class_name="gpu-critical-inference")
    both_removed = msgspec.structs.replace(class_alone, priority=UNSET, preemption_policy=UNSET)
    assert not consistent(class_alone, RECORDED)
    assert admit(both_removed, RECORDED) == Admitted("gpu-critical-inference", 100000, "PreemptLowerPriority")


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:priorityClassName": {}}}}], True),
        ([{"fieldsV1": {"f:spec": {"f:containers": {}}}}, {"fieldsV1": {"f:spec": {"f:priorityClassName": {}}}}], True),
        ([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:containers": {}}}}], False),
        ([{"manager": "x"}], False),
        ([], None),
        (None, None),
        ("garbage", None),
    ],
)
def test_o2_a_class_the_user_wrote_is_in_managed_fields(fields: Any, chosen: bool | None) -> None:
    assert class_chosen_by_user(msgspec.Raw(msgspec.json.encode(fields))) is chosen


def test_o2_without_managed_fields_nothing_is_known() -> None:
    assert class_chosen_by_user(UNSET) is None
    assert class_chosen_by_user(None) is None


def test_o2_on_golden_pods_as_users_sent_them() -> None:
    known: dict[str, bool | None] = {}
    for scenario, phase, request in reviews():
        if request["resource"]["resource"] == "pods" and phase == "mutate" and request["operation"] == "CREATE":
            pod = typed(request["object"], Pod)
            known.setdefault(scenario, class_chosen_by_user(pod.metadata.managed_fields))
    assert known["pod-with-class"] is True
    assert known["pod-create"] is False
