"""LimitRanger: what it fills into pods (A13, A14) and its refusals."""

from typing import Any

import msgspec
import pytest

from webhook.k8s.limit_range import aggregate, apply, defaulted, violations
from webhook.k8s.objects import LimitRange, LimitRangeItem, PodSpec
from webhook.k8s.pod_resources import pod_limits, pod_requests

GPU = "nvidia.com/gpu"


def spec(init: list[Any] | None = None, **resources: Any) -> PodSpec:
    containers = [{"name": "c", "resources": resources}]
    return msgspec.convert({"containers": containers, "initContainers": init}, PodSpec)


def limits(*items: dict[str, Any]) -> LimitRange:
    filled = [{"type": "Container", **item} for item in items]
    return msgspec.convert({"metadata": {"name": "l"}, "spec": {"limits": filled}}, LimitRange)


def test_a14_max_becomes_default_limit_and_request() -> None:
    item = msgspec.convert({"type": "Container", "max": {GPU: "4"}}, LimitRangeItem)
    assert defaulted(item).default == {GPU: "4"}
    assert defaulted(item).default_request == {GPU: "4"}


def test_a14_a_pod_that_names_no_gpus_is_given_four() -> None:
    pod = spec(init=[{"name": "i"}])
    filled = apply(pod, [limits({"max": {GPU: "4"}})])
    assert pod_requests(pod) == {}
    assert pod_requests(filled) == {GPU: 4}
    assert pod_limits(filled) == {GPU: 4}


def test_defaults_come_in_order_default_request_default_min() -> None:
    item = {
        "default": {"cpu": "2"},
        "defaultRequest": {"memory": "1Gi"},
        "min": {"cpu": "1", "ephemeral-storage": "1Gi"},
    }
    stored = defaulted(msgspec.convert({"type": "Container", **item}, LimitRangeItem))
    assert stored.default_request == {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    assert defaulted(stored) == stored


def test_a13_only_what_is_missing_is_filled() -> None:
    filled = apply(spec(limits={"cpu": "4"}), [limits({"default": {"cpu": "1", "memory": "1Gi"}})])
    assert pod_limits(filled) == {"cpu": 4, "memory": 2**30}
    assert pod_requests(filled) == {"cpu": 4, "memory": 2**30}


def test_r1_requests_come_from_limits_before_the_limit_range_is_asked() -> None:
    filled = apply(spec(limits={"cpu": "4"}), [limits({"defaultRequest": {"cpu": "1"}})])
    assert pod_requests(filled) == {"cpu": 4}


def test_the_first_limit_range_that_has_a_default_wins() -> None:
    filled = apply(spec(), [limits({"default": {"cpu": "1"}}), limits({"default": {"cpu": "2", "memory": "1Gi"}})])
    assert pod_limits(filled) == {"cpu": 1, "memory": 2**30}


@pytest.mark.parametrize("ranges", [[], [limits({"type": "Pod", "max": {"cpu": "1"}})], [limits()]])
def test_without_container_defaults_the_spec_comes_back_as_it_was(ranges: list[LimitRange]) -> None:
    pod = spec(limits={"cpu": "2"})
    assert apply(pod, ranges) is pod


def test_null_containers_are_tolerated() -> None:
    filled = apply(msgspec.convert({"containers": None}, PodSpec), [limits({"max": {GPU: "4"}})])
    assert filled.containers is None


@pytest.mark.parametrize(
    ("item", "resources", "said"),
    [
        (
            {"max": {"cpu": "800m"}},
            {"limits": {"cpu": "1500m"}},
            "maximum cpu usage per Container is 800m, but limit is 1500m",
        ),
        ({"max": {"cpu": "1"}}, {}, "maximum cpu usage per Container is 1. No limit is specified"),
        (
            {"max": {"cpu": "1"}},
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "maximum cpu usage per Container is 1, but request is 2",
        ),
        (
            {"min": {"memory": "1Gi"}},
            {"requests": {"memory": "512Mi"}},
            "minimum memory usage per Container is 1Gi, but request is 512Mi",
        ),
        ({"min": {"memory": "1Gi"}}, {}, "minimum memory usage per Container is 1Gi. No request is specified"),
        (
            {"min": {"cpu": "1"}},
            {"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}},
            "minimum cpu usage per Container is 1, but limit is 500m",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}},
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"requests": {"cpu": "1"}},
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {},
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
    ],
)
def test_refusals_in_limit_rangers_words(item: dict[str, Any], resources: dict[str, Any], said: str) -> None:
    assert violations(spec(**resources), [limits(item)]) == [said]


def test_what_keeps_the_limits_is_not_refused() -> None:
    item = {"max": {"cpu": "2", GPU: "4"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}}
    assert violations(spec(requests={"cpu": "1"}, limits={"cpu": "2", GPU: "4"}), [limits(item)]) == []


def test_pod_items_judge_the_whole_pod() -> None:
    pod = spec(limits={"cpu": "2"}, init=[{"name": "i", "resources": {"limits": {"cpu": "5"}}}])
    assert violations(pod, [limits({"type": "Pod", "max": {"cpu": "4"}})]) == [
        "maximum cpu usage per Pod is 4, but limit is 5"
    ]


def test_several_refusals_are_one_text() -> None:
    assert aggregate(["a"]) == "a"
    assert aggregate(["a", "b", "a"]) == "[a, b]"
