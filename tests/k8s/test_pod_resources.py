"""What a pod asks for: the sums of R1-R16 and the amounts that Kubernetes would refuse (B38-B42)."""

import sys
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from webhook.k8s.objects import PodSpec
from webhook.k8s.pod_resources import (
    is_best_effort,
    is_extended,
    kept_by_resources,
    limit_amounts,
    pod_limits,
    pod_requests,
    request_amounts,
    resource_problems,
)

GPU = "nvidia.com/gpu"


def spec(**parts: Any) -> PodSpec:
    return msgspec.convert(parts, PodSpec)


def container(name: str = "c", restart: str | None = None, **resources: Any) -> dict[str, Any]:
    return {"name": name, "resources": resources} | ({"restartPolicy": restart} if restart else {})


def asks(amount: Any, resource: str = GPU) -> dict[str, Any]:
    return container(requests={resource: amount}, limits={resource: amount})


def one(**resources: Any) -> PodSpec:
    return spec(containers=[container(**resources)])


@pytest.mark.parametrize(
    ("init", "containers", "answer"),
    [
        ("", "2 1", 3),
        ("I4", "1 1", 4),
        ("I1", "2", 2),
        ("S1", "2", 3),
        ("I3 S1", "2", 3),
        ("S1 I3", "2", 4),
        ("S1 I2 S2", "1", 4),
        ("S1 S1 I4", "1", 6),
        ("", "1", 1),
    ],
)
def test_r4_worked_table(init: str, containers: str, answer: int) -> None:
    pod = spec(
        containers=[asks(amount) for amount in containers.split()],
        initContainers=[asks(i[1:]) | ({"restartPolicy": "Always"} if i[0] == "S" else {}) for i in init.split()],
    )
    assert pod_requests(pod)[GPU] == answer
    assert pod_limits(pod)[GPU] == answer


def test_r1_b39_requests_come_from_limits_in_templates_too() -> None:
    template = one(limits={GPU: "2"})
    assert pod_requests(template) == {GPU: 2}
    assert pod_requests(template, from_limits=False) == {}
    assert pod_requests(one(requests={GPU: "2"}, limits={GPU: "2"})) == {GPU: 2}
    assert pod_requests(one(requests={"cpu": "1"}, limits={"cpu": "2", GPU: "3"})) == {"cpu": 1, GPU: 3}


def test_r5_each_resource_peaks_on_its_own() -> None:
    pod = spec(
        containers=[container(requests={"cpu": "1", GPU: "2"})],
        initContainers=[container(requests={"cpu": "4"}), container(requests={GPU: "5"})],
    )
    assert pod_requests(pod) == {"cpu": 4, GPU: 5}


def test_r6_overhead_is_added_after_the_maximum_and_raises_only_existing_limits() -> None:
    pod = spec(
        containers=[container(requests={"cpu": "1"}, limits={"cpu": "2"})],
        initContainers=[container(requests={"cpu": "3"})],
        overhead={"cpu": "500m", "memory": "1Gi"},
    )
    assert pod_requests(pod) == {"cpu": Decimal("3.5"), "memory": 2**30}
    assert pod_limits(pod) == {"cpu": Decimal("2.5")}


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        (GPU, True),
        ("nvidia.com/mig-1g.10gb", True),
        ("amd.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("gpu", False),
        ("cpu", False),
        ("kubernetes.io/batteries", False),
        ("requests.nvidia.com/gpu", False),
        ("NVIDIA.com/gpu", False),
    ],
)
def test_r7_extended_resources(name: str, extended: bool) -> None:
    assert is_extended(name) is extended


def test_r11_pod_level_resources_replace_the_sum_but_never_for_gpus() -> None:
    two = [container(requests={"cpu": "1", GPU: "1"}, limits={GPU: "1"})] * 2
    pod = spec(containers=two, resources={"requests": {"cpu": "8", GPU: "9"}})
    assert pod_requests(pod) == {"cpu": 8, GPU: 2}
    limited = spec(containers=two, resources={"limits": {"cpu": "8", "memory": "1Gi"}})
    assert pod_requests(limited) == {"cpu": 2, GPU: 2, "memory": 2**30}
    assert pod_limits(limited) == {"cpu": 8, GPU: 2, "memory": 2**30}


@pytest.mark.parametrize(
    ("resources", "best_effort"),
    [
        ({"limits": {GPU: "1"}}, True),
        ({"requests": {"cpu": "0"}}, True),
        ({"requests": {"cpu": "1m"}}, False),
        ({"limits": {"memory": "1Gi"}}, False),
        ({"requests": {"cpu": "abc"}}, True),
        ({}, True),
    ],
)
def test_r14_gpu_only_pods_are_best_effort(resources: dict[str, Any], best_effort: bool) -> None:
    assert is_best_effort(one(**resources)) is best_effort
    assert is_best_effort(spec(containers=[], initContainers=[container(**resources)])) is best_effort


def test_r14_pod_level_resources_decide_the_qos_alone() -> None:
    assert is_best_effort(spec(containers=[container(requests={"cpu": "1"})], resources={}))
    assert not is_best_effort(spec(containers=[container()], resources={"limits": {"cpu": "1"}}))


def test_r16_b40_zero_is_kept_as_zero() -> None:
    assert pod_requests(one(limits={GPU: "0"})) == {GPU: 0}


@pytest.mark.parametrize(
    "empty",
    [
        {},
        {"containers": None},
        {"containers": [{"name": "c", "resources": None}]},
        {"containers": [{"name": "c", "resources": {"requests": None, "limits": None}}], "initContainers": None},
        {"containers": [container(requests={GPU: None}, limits={GPU: None})]},
    ],
)
def test_r17_missing_and_null_parts_ask_for_nothing(empty: dict[str, Any]) -> None:
    assert pod_requests(spec(**empty)) == {}
    assert pod_limits(spec(**empty)) == {}
    assert resource_problems(spec(**empty)) == ()


def test_null_request_is_absent_and_taken_from_the_limit() -> None:
    assert pod_requests(one(requests={GPU: None}, limits={GPU: "2"})) == {GPU: 2}


@pytest.mark.parametrize("spelling", ["1", 1, 1.0, "1e0", "1E0", "01", " 1", "1000m"])
def test_b38_spellings_ask_for_one_and_are_fine(spelling: Any) -> None:
    assert pod_requests(spec(containers=[asks(spelling)])) == {GPU: 1}
    assert resource_problems(spec(containers=[asks(spelling)])) == ()


@pytest.mark.parametrize("unusable", ["", True, "abc", [], {}, "-1"])
def test_b38_unusable_amounts_are_named_and_leave_the_total_unknown(unusable: Any) -> None:
    pod = spec(containers=[asks(unusable) | {"name": "bad"}, asks("1")])
    assert GPU not in pod_requests(pod)
    assert GPU not in pod_limits(pod)
    assert GPU not in request_amounts(pod)
    reason = "negative" if unusable == "-1" else "unparsable"
    found = [(p.container, p.field, p.resource, p.reason, p.value) for p in resource_problems(pod)]
    assert found == [
        ("bad", "requests", GPU, reason, unusable),
        ("bad", "limits", GPU, reason, unusable),
    ]


def test_b38_half_a_device_is_a_problem_and_half_a_cpu_is_not() -> None:
    assert {p.reason for p in resource_problems(one(limits={GPU: "500m"}))} == {"fractional"}
    assert resource_problems(one(limits={"cpu": "500m"})) == ()


def test_b39_requests_that_differ_from_limits_or_lack_them() -> None:
    unequal = resource_problems(one(requests={GPU: "1"}, limits={GPU: "2"}))
    assert [(p.reason, p.value) for p in unequal] == [("unequal", "1")]
    alone = resource_problems(one(requests={GPU: "1"}))
    assert [(p.field, p.reason) for p in alone] == [("requests", "no-limit")]
    assert resource_problems(one(requests={GPU: "2"}, limits={GPU: "2000m"})) == ()
    assert resource_problems(one(requests={"cpu": "1"}, limits={"cpu": "2"})) == ()
    assert resource_problems(one(requests={"cpu": "1"})) == ()


def test_problems_of_the_pod_itself_carry_no_container_name() -> None:
    pod = spec(containers=[], resources={"requests": {"cpu": "x"}}, overhead={"memory": "-1"})
    assert [(p.container, p.field, p.reason) for p in resource_problems(pod)] == [
        ("", "requests", "unparsable"),
        ("", "overhead", "negative"),
    ]


def test_b41_b42_slices_and_vendors_are_kept_apart() -> None:
    names = {"nvidia.com/mig-1g.10gb": "3", "nvidia.com/gpu.shared": "1", "amd.com/gpu": "2", "gpu.intel.com/i915": "1"}
    assert pod_requests(one(limits=names)) == {name: int(amount) for name, amount in names.items()}
    assert all(is_extended(name) for name in names)


def test_o3_amounts_keep_how_they_were_written() -> None:
    pod = spec(containers=[asks("2e0"), container(requests={"memory": "128Mi"}, limits={"memory": "1.5Gi"})])
    assert {k: str(v) for k, v in request_amounts(pod).items()} == {GPU: "2e0", "memory": "128Mi"}
    assert str(limit_amounts(pod)["memory"]) == "1536Mi"
    assert str(request_amounts(spec(containers=[asks("2e0")] * 2))[GPU]) == "4"


def test_reading_does_not_change_what_was_read() -> None:
    pod = spec(containers=[asks("1"), asks("2")], initContainers=[asks("3") | {"restartPolicy": "Always"}])
    assert pod_requests(pod) == pod_requests(pod) == {GPU: 6}


class TestWhatIsKeptByResources:
    """Pods come from templates: what one of them asks for is worked out once."""

    def test_the_same_resources_are_looked_at_once(self) -> None:
        looked_at: list[PodSpec] = []
        count = kept_by_resources(lambda spec: looked_at.append(spec) or len(spec.containers or ()))
        pod = one(requests={"cpu": "1"})
        same = msgspec.structs.replace(one(requests={"cpu": "1"}), priority_class_name="another")
        assert (count(pod), count(same)) == (1, 1)
        assert looked_at == [pod]

    @pytest.mark.parametrize("other", [1, 1.0, True, "01", None, ["1"]])
    def test_what_is_written_differently_is_another_question(self, other: Any) -> None:
        spelling = kept_by_resources(lambda spec: repr(spec))
        assert spelling(one(limits={GPU: "1"})) != spelling(one(limits={GPU: other}))
        assert spelling(one(limits={GPU: 1})) != spelling(one(limits={GPU: True}))

    def test_what_is_huge_or_nested_deeply_is_answered_and_not_kept(self) -> None:
        deep: list[Any] = []
        for _ in range(sys.getrecursionlimit() * 2):
            deep = [deep]
        asked = kept_by_resources(lambda spec: [spec])
        for odd in (one(limits={"x" * 10_000: "1"}), msgspec.structs.replace(one(), overhead={"cpu": deep})):
            assert asked(odd) == [odd]
            assert asked(odd) is not asked(odd)
