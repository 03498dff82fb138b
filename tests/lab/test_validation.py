"""API validation refuses what a live API server refuses, by field (422)."""

from typing import Any

import pytest

from tests.lab.conftest import Hook, allow, pod, priority_class, quota, workload
from webhook.lab import errors, resources
from webhook.lab.call import Call
from webhook.lab.resources import Object, copied
from webhook.lab.server import Lab


def refusal(lab: Lab, obj: Object) -> str:
    with pytest.raises(errors.ApiError) as caught:
        lab.create(obj)
    assert caught.value.code == 422
    return caught.value.message


def with_amounts(**amounts: Any) -> Object:
    obj = pod("p")
    obj["spec"]["containers"][0]["resources"] = amounts
    return obj


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        (
            {"limits": {"nvidia.com/gpu": "1500m"}},
            'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "1500m": must be an integer',
        ),
        ({"requests": {"nvidia.com/gpu": "1"}}, "Limit must be set for non overcommitable resources"),
        (
            {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}},
            "must be equal to nvidia.com/gpu limit of 2",
        ),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, "must be less than or equal to cpu limit of 1"),
        ({"limits": {"gpu": "1"}}, "must be a standard resource type or fully qualified"),
        ({"limits": {"cpu": "-1"}}, "must be greater than or equal to 0"),
    ],
)
def test_r8_r9_amounts(quiet_lab: Lab, amounts: Object, message: str) -> None:
    assert message in refusal(quiet_lab, with_amounts(**amounts))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (None, "nodeSelectorTerms: Required value: must have at least one node selector term"),
        ([], "nodeSelectorTerms: Required value: must have at least one node selector term"),
        (
            [{"matchExpressions": [{"key": "a", "operator": "In"}]}],
            "must be specified when `operator` is 'In' or 'NotIn'",
        ),
        ([{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}], "may not be specified when"),
        (
            [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}],
            "must be specified single value",
        ),
        ([{"matchExpressions": [{"key": "a", "operator": "Near"}]}], "not a valid selector operator"),
        ([{"matchFields": [{"key": "spec.x", "operator": "In", "values": ["n"]}]}], "not a valid field selector key"),
    ],
)
def test_n4_n9_node_affinity(quiet_lab: Lab, terms: Any, message: str) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert message in refusal(quiet_lab, pod("p", affinity={"nodeAffinity": required}))


def test_an_empty_term_is_accepted(quiet_lab: Lab) -> None:
    """N2."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
    assert quiet_lab.create(pod("p", affinity={"nodeAffinity": required}))


def test_workload_templates_are_checked(quiet_lab: Lab) -> None:
    web = workload("Deployment", "web", "default", selector={"matchLabels": {"app": "other"}})
    assert "`selector` does not match template `labels`" in refusal(quiet_lab, web)
    job = workload("Job", "work", "default")
    job["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    assert 'Unsupported value: "Always": supported values: "OnFailure", "Never"' in refusal(quiet_lab, job)
    late = workload("Deployment", "web", "default")
    late["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 5  # Q15
    assert "activeDeadlineSeconds in Deployment is not Supported" in refusal(quiet_lab, late)
    controller = {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": "rc"},
        "spec": {"template": None},
    }
    assert "spec.template: Required value" in refusal(quiet_lab, controller)


def test_h3_a_job_template_is_fixed_once_it_ran(quiet_lab: Lab) -> None:
    quiet_lab.create(workload("Job", "work", "default"))
    quiet_lab.create(workload("Job", "waiting", "default", suspend=True))

    def place(obj: Object) -> Object:
        obj["spec"]["template"]["spec"]["nodeSelector"] = {"a": "b"}
        return obj

    def prioritise(obj: Object) -> Object:
        obj["spec"]["template"]["spec"]["priorityClassName"] = "x"
        return obj

    quiet_lab.registry.patch(resources.JOBS, "default", "waiting", place, Call())
    for name, change in (("work", place), ("waiting", prioritise)):
        with pytest.raises(errors.ApiError, match=r"spec.template: Invalid value: .*field is immutable"):
            quiet_lab.registry.patch(resources.JOBS, "default", name, change, Call())


def terms(*expressions: list[str]) -> Object:
    made = [{"matchExpressions": [{"key": key, "operator": "Exists"} for key in keys]} for keys in expressions]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": made}}}


@pytest.mark.parametrize(
    ("gated", "new", "accepted"),
    [
        (True, [["a", "r"]], True),
        (True, [["r", "a"]], False),
        (True, [["a"], ["r"]], False),
        (False, [["a", "r"]], False),
    ],
)
def test_n13_only_a_gated_pod_may_be_narrowed(
    quiet_lab: Lab, gated: bool, new: list[list[str]], accepted: bool
) -> None:
    gates = {"schedulingGates": [{"name": "lab.test/gate"}]} if gated else {}
    quiet_lab.create(pod("p", affinity=terms(["a"]), **gates))

    def change(obj: Object) -> Object:
        obj["spec"]["affinity"] = terms(*new)
        return obj

    if accepted:
        quiet_lab.registry.patch(resources.PODS, "default", "p", change, Call())
    else:
        with pytest.raises(errors.ApiError) as caught:
            quiet_lab.registry.patch(resources.PODS, "default", "p", change, Call())
        assert caught.value.code == 422


def test_n14_gates_are_only_removed(quiet_lab: Lab) -> None:
    quiet_lab.create(pod("p"))

    def gate(obj: Object) -> Object:
        obj["spec"]["schedulingGates"] = [{"name": "lab.test/gate"}]
        return obj

    with pytest.raises(errors.ApiError, match="only deletion is allowed"):
        quiet_lab.registry.patch(resources.PODS, "default", "p", gate, Call())
    both = pod("q", nodeName="n", schedulingGates=[{"name": "lab.test/gate"}])
    assert "cannot be set until all schedulingGates have been cleared" in refusal(quiet_lab, both)


def test_images_labels_and_tolerations_of_a_pod_may_change(quiet_lab: Lab) -> None:
    quiet_lab.create(pod("p"))

    def change(obj: Object) -> Object:
        obj["spec"]["containers"][0]["image"] = "busybox:1.37"
        obj["spec"]["tolerations"].append({"key": "x", "operator": "Exists"})
        obj["metadata"]["labels"] = {"a": "b"}
        return obj

    assert quiet_lab.registry.patch(resources.PODS, "default", "p", change, Call())["metadata"]["labels"] == {"a": "b"}


def test_p14_classes(quiet_lab: Lab) -> None:
    assert "maximum allowed value of a user defined priority is 1000000000" in refusal(
        quiet_lab, priority_class("x", 2_000_000_000)
    )
    assert "reserved for system use only" in refusal(quiet_lab, priority_class("system-mine", 1))


def test_q3_bare_gpu_keys_of_quotas_are_whole(quiet_lab: Lab) -> None:
    obj = quota("q", "default")
    obj["spec"]["hard"] = {"nvidia.com/gpu": "1500m"}
    assert "must be an integer" in refusal(quiet_lab, obj)
    obj["spec"]["hard"] = {"requests.nvidia.com/gpu": "1500m", "limits.nvidia.com/gpu": "4"}
    assert quiet_lab.create(obj)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "short", "should be a domain with at least three segments"),
        ("sideEffects", "Some", 'supported values: "None", "NoneOnDryRun"'),
        ("admissionReviewVersions", ["v2"], "must include at least one of v1, v1beta1"),
        ("timeoutSeconds", 31, "must be between 1 and 30 seconds"),
        ("clientConfig", {}, "exactly one of url or service is required"),
        ("clientConfig", {"url": "http://x/y"}, "'https' is the only allowed URL scheme"),
        ("clientConfig", {"url": "https://x/y?z=1"}, "query is not permitted in the URL"),
        ("failurePolicy", "Maybe", 'supported values: "Fail", "Ignore"'),
    ],
)
def test_v23_registrations(quiet_lab: Lab, field: str, value: Any, message: str) -> None:
    with Hook(allow) as hook:
        obj = copied(hook.registration())
    obj["webhooks"][0][field] = value
    assert message in refusal(quiet_lab, obj)


def test_names(quiet_lab: Lab) -> None:
    assert "a lowercase RFC 1123 subdomain" in refusal(quiet_lab, pod("Not_Good"))
    nameless = pod("x")
    nameless["metadata"].pop("name")
    assert "name or generateName is required" in refusal(quiet_lab, nameless)
