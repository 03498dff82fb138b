"""The built-in plugins fill in and refuse what the real ones do, in their order (A2-A18, P1-P16)."""

import pytest

from tests.lab.conftest import Hook, allow, namespace_object, pod, priority_class, workload
from webhook.lab import errors, resources
from webhook.lab.call import Call
from webhook.lab.resources import Object
from webhook.lab.server import Lab


@pytest.fixture
def lab(quiet_lab: Lab) -> Lab:
    return quiet_lab


def limit_range(**item: Object) -> Object:
    spec = {"limits": [{"type": "Container", **item}]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": "default"}, "spec": spec}


def refusal(lab: Lab, obj: Object) -> errors.ApiError:
    with pytest.raises(errors.ApiError) as caught:
        lab.create(obj)
    return caught.value


def test_a_pod_leaves_with_everything_the_plugins_add(lab: Lab) -> None:
    """A11."""
    spec = lab.create(pod("p"))["spec"]
    assert spec["serviceAccountName"] == "default"
    assert spec["volumes"][0]["name"].startswith("kube-api-access-")
    assert spec["containers"][0]["volumeMounts"][0]["name"] == spec["volumes"][0]["name"]
    assert [t["key"].rpartition("/")[2] for t in spec["tolerations"]] == ["not-ready", "unreachable"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")


def test_templates_get_none_of_it(lab: Lab) -> None:
    """A12."""
    spec = lab.create(workload("Deployment", "web", "default", gpus="1"))["spec"]["template"]["spec"]
    assert not {"priority", "serviceAccountName", "volumes", "tolerations"} & set(spec)
    assert "requests" not in spec["containers"][0]["resources"]


def test_limit_range_fills_and_says_so(lab: Lab) -> None:
    """A13, A14: a maximum alone becomes default limit and request, of GPUs too."""
    lab.create(limit_range(max={"nvidia.com/gpu": "4"}))
    made = lab.create(pod("p"))
    amounts = made["spec"]["containers"][0]["resources"]
    assert (amounts["limits"]["nvidia.com/gpu"], amounts["requests"]["nvidia.com/gpu"]) == ("4", "4")
    assert made["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: nvidia.com/gpu request for container train; nvidia.com/gpu limit for container train"
    )


def test_limit_range_refuses_what_is_too_much(lab: Lab) -> None:
    lab.create(limit_range(max={"cpu": "500m"}))
    error = refusal(lab, pod("p"))
    assert error.message == 'pods "p" is forbidden: maximum cpu usage per Container is 500m, but limit is 1'


def test_violations_are_found_after_the_mutating_webhooks(lab: Lab) -> None:
    """A5: LimitRanger's maximum is a validating matter, before ValidatingAdmissionWebhook."""
    lab.create(limit_range(max={"cpu": "500m"}))
    with Hook(allow) as hook:
        lab.create(hook.registration("Mutating", "first"))
        lab.create(hook.registration("Validating", "second"))
        refusal(lab, pod("p"))
        assert len(hook.reviews) == 1


def test_namespace_and_class_are_checked_before_any_webhook(lab: Lab) -> None:
    """A18, P7: a missing class never reaches a webhook."""
    with Hook(allow) as hook:
        lab.create(hook.registration())
        assert refusal(lab, pod("p", "nowhere")).message == 'namespaces "nowhere" not found'
        error = refusal(lab, pod("p", priorityClassName="nope"))
        assert (error.code, error.message) == (403, 'pods "p" is forbidden: no PriorityClass with name nope was found')
        assert hook.reviews == []


def test_api_validation_comes_between_the_phases(lab: Lab) -> None:
    """A1: a mutating webhook sees what validation refuses, a validating one never does."""
    with Hook(allow) as hook:
        lab.create(hook.registration("Mutating", "first"))
        lab.create(hook.registration("Validating", "second"))
        assert refusal(lab, pod("p", gpus="1500m")).code == 422
        assert len(hook.reviews) == 1


def test_a_missing_account_is_refused(lab: Lab) -> None:
    error = refusal(lab, pod("p", serviceAccountName="robot"))
    assert error.message == (
        'pods "p" is forbidden: error looking up service account default/robot: serviceaccount "robot" not found'
    )


def test_p2_the_global_default_is_written_in(lab: Lab) -> None:
    lab.create(priority_class("usual", 7, "Never", default=True))
    spec = lab.create(pod("p"))["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("usual", 7, "Never")


def test_o2_only_a_class_the_user_wrote_is_in_managed_fields(lab: Lab) -> None:
    lab.create(priority_class("usual", 7, default=True))
    for name, fields in (("theirs", {"priorityClassName": "usual"}), ("filled", {})):
        made = lab.create(pod(name, **fields))
        (entry,) = made["metadata"]["managedFields"]
        assert ("f:priorityClassName" in entry["fieldsV1"]["f:spec"]) is bool(fields)


def test_p4_a_written_priority_must_be_the_class_s(lab: Lab) -> None:
    generated = pod("x", priority=5)
    generated["metadata"] = {"generateName": "web-5d8c-", "namespace": "default"}
    assert refusal(lab, generated).message == (  # P6: the prefix stands for the name
        'pods "web-5d8c-" is forbidden: the integer value of priority (5) must not be provided in pod spec; '
        "priority admission controller computed 0 from the given PriorityClass name"
    )


def test_p10_an_update_keeps_priority_and_forbids_the_rest(lab: Lab) -> None:
    lab.create(pod("p"))
    plain = pod("p")
    plain["spec"] = {
        k: v for k, v in lab.registry.get(resources.PODS, "default", "p")["spec"].items() if k[:4] != "prio"
    }
    assert lab.registry.update(resources.PODS, "default", "p", plain, Call())["spec"]["priority"] == 0
    plain["spec"] = {**plain["spec"], "priorityClassName": "system-node-critical"}
    with pytest.raises(errors.ApiError, match="pod updates may not change fields other than"):
        lab.registry.update(resources.PODS, "default", "p", plain, Call())


def test_the_namespaces_that_stay(lab: Lab) -> None:
    with pytest.raises(
        errors.ApiError, match='namespaces "kube-system" is forbidden: this namespace may not be deleted'
    ):
        lab.registry.delete(resources.NAMESPACES, "", "kube-system", {}, Call())


def test_every_namespace_has_its_name_as_a_label(lab: Lab) -> None:
    """V30."""
    made = lab.create(namespace_object("team-a"))
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team-a"}
