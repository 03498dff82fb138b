"""Registered webhooks are called, believed and survived as the API server does it (A6-A10, V1-V33)."""

import base64
from collections.abc import Iterator
from typing import Any

import flask
import pytest

from tests.lab.conftest import (
    Answer,
    Hook,
    allow,
    json_patch,
    namespace_object,
    pod,
    priority_class,
    workload,
)
from webhook.lab import errors, resources
from webhook.lab.call import Call, User, service_account
from webhook.lab.resources import Object
from webhook.lab.server import Lab
from webhook.lab.webhooks import equal


@pytest.fixture
def lab(quiet_lab: Lab) -> Lab:
    return quiet_lab


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook(allow) as running:
        yield running


def register(lab: Lab, hook: Hook, answer: Answer | None = None, kind: str = "Mutating", **fields: Any) -> None:
    if answer is not None:
        hook.answer = answer
    lab.create(hook.registration(kind, **fields))


def refusal(lab: Lab, obj: Object) -> errors.ApiError:
    with pytest.raises(errors.ApiError) as caught:
        lab.create(obj)
    return caught.value


LABEL = {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}
BY_CLASS = {"op": "add", "path": "/spec/priorityClassName", "value": "gpu-high"}


# -- the review -------------------------------------------------------------------------------------------------------


def test_review_of_a_create_has_the_fields_of_v1(lab: Lab, hook: Hook) -> None:
    register(lab, hook)
    lab.create(pod("p", gpus="1"), User("alice", ("ml", "system:authenticated")))
    request = hook.reviews[0]["request"]
    assert hook.reviews[0]["apiVersion"] == "admission.k8s.io/v1"
    assert request["userInfo"] == {"username": "alice", "groups": ["ml", "system:authenticated"]}
    assert (request["operation"], request["name"], request["namespace"]) == ("CREATE", "p", "default")
    assert request["resource"] == request["requestResource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert request["oldObject"] is None and request["dryRun"] is False and "subResource" not in request
    assert hook.queries == ["timeout=2s"]
    assert hook.headers[0]["User-Agent"] == "kube-apiserver-admission"


def test_generated_names_exist_only_in_the_validating_phase(lab: Lab, hook: Hook) -> None:
    """V2: name, uid and creationTimestamp are there for /validate alone; each call has a uid of its own (O4)."""
    register(lab, hook)
    lab.create(hook.registration("Validating", "second"))
    generated = pod("x")
    generated["metadata"] = {"generateName": "web-", "namespace": "default"}
    lab.create(generated)
    mutate, validate = (review["request"] for review in hook.reviews)
    assert "name" not in mutate and "uid" not in mutate["object"]["metadata"]
    assert validate["name"] == validate["object"]["metadata"]["name"] and validate["name"].startswith("web-")
    assert validate["object"]["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}
    assert mutate["uid"] != validate["uid"]


def test_delete_review_has_no_object(lab: Lab, hook: Hook) -> None:
    """V1, H4."""
    lab.create(pod("p"))
    rule = [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]
    register(lab, hook, rules=rule)
    lab.registry.delete(resources.PODS, "default", "p", {}, Call())
    request = hook.reviews[0]["request"]
    assert request["object"] is None and request["oldObject"]["metadata"]["name"] == "p"


def test_scale_review_holds_scale_objects(lab: Lab, hook: Hook) -> None:
    """W25-W27: not the Deployment, and zero replicas are left out."""
    lab.create(workload("Deployment", "web", "default", replicas=2))
    rule = [{"operations": ["UPDATE"], "apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["*/scale"]}]
    register(lab, hook, rules=rule)
    zero = {"spec": {"replicas": 0}}
    lab.registry.scale(resources.DEPLOYMENTS, "default", "web", lambda _: zero, Call())
    request = hook.reviews[0]["request"]
    assert (request["kind"]["kind"], request["subResource"]) == ("Scale", "scale")
    assert (request["oldObject"]["spec"], request["object"]["spec"]) == ({"replicas": 2}, {})
    assert request["object"]["status"]["selector"] == "app=web"
    assert lab.registry.get(resources.DEPLOYMENTS, "default", "web")["spec"]["replicas"] == 0


def test_binding_and_eviction_reach_only_rules_with_subresources(lab: Lab, hook: Hook) -> None:
    """H6, V29."""
    lab.create(pod("p"))
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"]}
    register(lab, hook, rules=[{**everything, "resources": ["pods/*"]}])
    lab.registry.bind("default", "p", {"target": {"name": "n"}}, Call())
    lab.registry.evict("default", "p", {"metadata": {"name": "p"}}, Call())
    seen = [(r["request"]["subResource"], r["request"]["kind"]["kind"]) for r in hook.reviews]
    assert seen == [("binding", "Binding"), ("eviction", "Eviction")]


# -- matching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, False),
        ({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}, True),
        ({"objectSelector": {"matchLabels": {"mine": "yes"}}}, False),
        ({"matchConditions": [{"name": "c", "expression": 'request.userInfo.username != "kubernetes-admin"'}]}, False),
        ({"matchConditions": [{"name": "c", "expression": "oldObject == null"}]}, True),
    ],
)
def test_selectors_and_conditions_decide_whether_it_is_called(
    lab: Lab, hook: Hook, fields: Object, called: bool
) -> None:
    lab.create(namespace_object("team-a", team="a"))
    lab.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "team-a"}})
    register(lab, hook, **fields)
    lab.create(pod("p", "team-a"))
    assert bool(hook.reviews) is called


def test_pods_rule_does_not_match_subresources(lab: Lab, hook: Hook) -> None:
    register(lab, hook, rules=[{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}])
    lab.create(pod("p"))
    stored = lab.registry.get(resources.PODS, "default", "p")
    lab.registry.update(resources.PODS, "default", "p", {**stored, "status": {"phase": "Running"}}, Call(), "status")
    assert len(hook.reviews) == 1


def test_condition_error_refuses_under_fail_and_skips_under_ignore(lab: Lab, hook: Hook) -> None:
    """V13, V32."""
    broken = [{"name": "c", "expression": "object.metadata.labels.x == 'y'"}]
    register(lab, hook, matchConditions=broken)
    assert refusal(lab, pod("p")).code == 403
    lab.create(hook.registration("Validating", "lenient", matchConditions=broken, failurePolicy="Ignore"))
    lab.registry.delete(resources.MUTATING_CONFIGURATIONS, "", "hook", {}, Call())
    lab.create(pod("p"))
    assert hook.reviews == []


def test_unsupported_condition_is_refused_at_registration(lab: Lab, hook: Hook) -> None:
    with pytest.raises(
        errors.ApiError, match=r"matchConditions\[0\].expression.*unsupported syntax at 'size'"
    ) as caught:
        register(lab, hook, matchConditions=[{"name": "c", "expression": "size(object.spec.containers) == 1"}])
    assert caught.value.code == 422


def test_webhook_configurations_are_never_sent_to_webhooks(lab: Lab, hook: Hook) -> None:
    """A20."""
    register(lab, hook, rules=[{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}])
    lab.create(hook.registration("Validating", "other"))
    assert hook.reviews == []


# -- order and reinvocation -------------------------------------------------------------------------------------------


def test_mutating_webhooks_run_by_name_and_see_each_others_patches(lab: Lab, hook: Hook) -> None:
    """A6."""

    def stamp(request: Object) -> Object:
        labels = request["object"]["metadata"].get("labels") or {}
        return json_patch({"op": "add", "path": "/metadata/labels", "value": {**labels, f"l{len(labels)}": "x"}})

    hook.answer = stamp
    for name in ("b", "a"):
        lab.create(hook.registration(name=name))
    made = lab.create(pod("p"))
    assert made["metadata"]["labels"] == {"l0": "x", "l1": "x"}
    assert [header["Host"] for header in hook.headers] and len(hook.reviews) == 2


def test_a_real_change_runs_the_built_in_plugins_again(lab: Lab, hook: Hook) -> None:
    """A7, P4: only the class is injected, so the second Priority pass finds a number that is not its own."""
    lab.create(priority_class("gpu-high", 1000))
    register(lab, hook, lambda _: json_patch(BY_CLASS))
    assert refusal(lab, pod("x")).message == (
        'pods "x" is forbidden: the integer value of priority (0) must not be provided in pod spec; '
        "priority admission controller computed 1000 from the given PriorityClass name"
    )


def test_second_priority_pass_names_the_policy(lab: Lab, hook: Hook) -> None:
    """P5."""
    lab.create(priority_class("gpu-high", 1000, "Never"))
    register(lab, hook, lambda _: json_patch({"op": "remove", "path": "/spec/priority"}, BY_CLASS))
    assert "the string value of PreemptionPolicy (PreemptLowerPriority) must not be" in refusal(lab, pod("x")).message


def test_class_with_both_removals_is_resolved_by_the_second_pass(lab: Lab, hook: Hook) -> None:
    """P7, O1."""
    lab.create(priority_class("gpu-high", 1000, "Never"))
    removals = [{"op": "remove", "path": f"/spec/{field}"} for field in ("priority", "preemptionPolicy")]
    register(lab, hook, lambda _: json_patch(*removals, BY_CLASS))
    spec = lab.create(pod("x"))["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("gpu-high", 1000, "Never")
    assert len(hook.reviews) == 1  # reinvocationPolicy is Never by default (A9)


def test_a_patch_that_changes_nothing_causes_no_second_pass(lab: Lab, hook: Hook) -> None:
    """A8: else the missing class would be found out in pass 2."""
    register(lab, hook, lambda _: json_patch({"op": "add", "path": "/spec/restartPolicy", "value": "Always"}))
    lab.create(hook.registration(name="later", reinvocationPolicy="IfNeeded"))
    lab.create(pod("p"))
    assert len(hook.reviews) == 2


def test_if_needed_is_called_again_after_a_later_change(lab: Lab, hook: Hook) -> None:
    """A9."""
    lab.create(hook.registration(name="a", reinvocationPolicy="IfNeeded"))
    with Hook(lambda _: json_patch(LABEL)) as later:
        lab.create(later.registration(name="b", reinvocationPolicy="IfNeeded"))
        lab.create(pod("p"))
        assert [len(hook.reviews), len(later.reviews)] == [2, 1]
        assert hook.reviews[1]["request"]["object"]["metadata"]["labels"] == {"seen": "yes"}


def test_p9_unconditional_removal_under_if_needed_stores_no_priority(lab: Lab, hook: Hook) -> None:
    """P9, A10, O10: pass 2 restores the number, the webhook is called for it and takes it away again."""
    lab.create(priority_class("gpu-training", 1000))

    def careless(request: Object) -> Object:
        present = [f for f in ("priority", "preemptionPolicy") if f in request["object"]["spec"]]
        operations = [{"op": "remove", "path": f"/spec/{field}"} for field in present]
        return json_patch(*operations, {**BY_CLASS, "value": "gpu-training"})

    register(lab, hook, careless, reinvocationPolicy="IfNeeded")
    spec = lab.create(pod("p"))["spec"]
    assert spec["priorityClassName"] == "gpu-training"
    assert "priority" not in spec and "preemptionPolicy" not in spec
    assert len(hook.reviews) == 2


def test_a_webhook_skipped_in_pass_one_is_not_called_in_pass_two(lab: Lab, hook: Hook) -> None:
    lab.create(
        hook.registration(name="a", reinvocationPolicy="IfNeeded", objectSelector={"matchLabels": {"seen": "yes"}})
    )
    with Hook(lambda _: json_patch(LABEL)) as later:
        lab.create(later.registration(name="b"))
        lab.create(pod("p"))
    assert hook.reviews == []


def test_a_patched_object_is_defaulted_again(lab: Lab, hook: Hook) -> None:
    """V21: a limit brings its request."""
    limit = {"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": 2}
    register(lab, hook, lambda _: json_patch(limit))
    resources_of = lab.create(pod("p"))["spec"]["containers"][0]["resources"]
    assert (resources_of["requests"]["nvidia.com/gpu"], resources_of["limits"]["nvidia.com/gpu"]) == ("2", "2")


# -- failures ---------------------------------------------------------------------------------------------------------


def replaced(**fields: Any) -> Answer:
    return lambda request: flask.jsonify(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
         "response": {"uid": request["uid"], "allowed": True}, **fields}
    )  # fmt: skip


FAILURES: dict[str, Answer] = {
    "other version": replaced(apiVersion="admission.k8s.io/v1beta1"),
    "no response": replaced(response=None),
    "other uid": lambda _: {"uid": "another"},
    "patch without type": lambda _: {"patch": base64.b64encode(b"[]").decode()},
    "type without patch": lambda _: {"patchType": "JSONPatch"},
    "patch is no list": lambda _: {"patchType": "JSONPatch", "patch": base64.b64encode(b"{}").decode()},
    "patch is no base64": lambda _: {"patchType": "JSONPatch", "patch": "***"},
    "500": lambda _: flask.Response("broken", 500),
    "empty": lambda _: flask.Response(b"", 200),
    "no JSON": lambda _: flask.Response(b"<html>", 200),
}


@pytest.mark.parametrize("answer", FAILURES.values(), ids=FAILURES)
def test_a_failed_call_is_a_500_under_fail_and_skipped_under_ignore(lab: Lab, hook: Hook, answer: Answer) -> None:
    """V6, V7, V9, V10, V13."""
    register(lab, hook, answer)
    error = refusal(lab, pod("p"))
    assert error.code == 500
    assert error.message.startswith('Internal error occurred: failed calling webhook "hook.lab.test": ')
    lab.registry.delete(resources.MUTATING_CONFIGURATIONS, "", "hook", {}, Call())
    register(lab, hook, failurePolicy="Ignore")
    assert lab.create(pod("p"))["metadata"]["uid"]


def test_nobody_listening_and_an_unknown_authority(lab: Lab, hook: Hook) -> None:
    """V13, V25."""
    register(lab, hook, clientConfig={"url": "https://127.0.0.1:1/x", "caBundle": hook.ca_bundle})
    assert "connection refused" in refusal(lab, pod("p")).message
    lab.registry.delete(resources.MUTATING_CONFIGURATIONS, "", "hook", {}, Call())
    with Hook(allow) as stranger:
        register(lab, hook, clientConfig={"url": f"https://127.0.0.1:{stranger.port}/x", "caBundle": hook.ca_bundle})
        assert "x509: certificate signed by unknown authority" in refusal(lab, pod("p")).message


def test_the_timeout_of_the_registration_counts(lab: Lab, hook: Hook) -> None:
    from threading import Event

    release = Event()

    def slow(_: Object) -> Object:
        release.wait(5)
        return {}

    register(lab, hook, slow, timeoutSeconds=1)
    assert refusal(lab, pod("p")).message.endswith("context deadline exceeded")
    release.set()


def test_retry_after_makes_it_ask_again(lab: Lab, hook: Hook) -> None:
    """V11: the same body, so the same uid."""
    answers = [flask.Response("busy", 503, {"Retry-After": "0"})]
    register(lab, hook, lambda _: answers.pop() if answers else {})
    lab.create(pod("p"))
    first, second = (review["request"]["uid"] for review in hook.reviews)
    assert first == second


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_a_patch_that_does_not_apply_is_a_500_under_either_policy(lab: Lab, hook: Hook, policy: str) -> None:
    """V13, V20, O6: and the message does not name the webhook."""
    path = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"
    register(lab, hook, lambda _: json_patch({"op": "add", "path": path, "value": {}}), failurePolicy=policy)
    assert refusal(lab, pod("p")).message == (
        f'Internal error occurred: add operation does not apply: doc is missing path: "{path}": missing value'
    )


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_a_patch_to_a_wrong_type_is_a_500_under_either_policy(lab: Lab, hook: Hook, policy: str) -> None:
    wrong = {"op": "add", "path": "/spec/priorityClassName", "value": 7}
    register(lab, hook, lambda _: json_patch(wrong), failurePolicy=policy)
    assert refusal(lab, pod("p")).code == 500


def test_a_patch_on_delete_is_a_500(lab: Lab, hook: Hook) -> None:
    """H4."""
    lab.create(pod("p"))
    rule = [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]
    register(lab, hook, lambda _: json_patch(LABEL), rules=rule, failurePolicy="Ignore")
    with pytest.raises(errors.ApiError) as caught:
        lab.registry.delete(resources.PODS, "default", "p", {}, Call())
    assert caught.value.code == 500


def test_a_validating_webhook_may_not_patch(lab: Lab, hook: Hook) -> None:
    """V7."""
    register(lab, hook, lambda _: json_patch(LABEL), kind="Validating")
    assert "must not contain a patch" in refusal(lab, pod("p")).message


# -- denials and warnings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (
            {"code": 403, "reason": "Forbidden", "message": "no room\n  free 1"},
            403,
            "denied the request: no room\n  free 1",
        ),
        ({"reason": "Forbidden"}, 400, "denied the request: Forbidden"),
        ({}, 400, "denied the request without explanation"),
        ({"code": 200, "message": "odd"}, 400, "denied the request: odd"),
    ],
)
@pytest.mark.parametrize("kind", ["Mutating", "Validating"])
def test_v14_denial_text_and_code(lab: Lab, hook: Hook, kind: str, status: Object, code: int, text: str) -> None:
    register(lab, hook, lambda _: {"allowed": False, "status": status}, kind=kind)
    error = refusal(lab, pod("p"))
    assert (error.code, error.message) == (code, f'admission webhook "hook.lab.test" {text}')


def test_a_denial_with_a_patch_is_simply_denied(lab: Lab, hook: Hook) -> None:
    """V8."""
    register(lab, hook, lambda _: {"allowed": False, **json_patch(LABEL)})
    assert refusal(lab, pod("p")).code == 400


def test_warnings_of_both_phases_reach_the_caller(lab: Lab, hook: Hook) -> None:
    register(lab, hook, lambda _: {"warnings": ["first"]})
    lab.create(hook.registration("Validating", "second"))
    call = Call()
    lab.registry.create(resources.PODS, "default", pod("p"), call)
    assert call.warnings == ["first", "first"]


def test_dry_run_is_told_to_webhooks_and_stores_nothing(lab: Lab, hook: Hook) -> None:
    """V34."""
    register(lab, hook)
    lab.registry.create(resources.PODS, "default", pod("p"), Call(dry_run=True))
    request = hook.reviews[0]["request"]
    assert request["dryRun"] is True and request["options"]["dryRun"] == ["All"]
    assert lab.store.get(resources.PODS, "default", "p") is None


def test_service_references_are_resolved_and_their_name_is_verified(lab: Lab, hook: Hook) -> None:
    """V25: the certificate must name <service>.<namespace>.svc, wherever the endpoint is."""
    client = {"service": {"namespace": "default", "name": "kubernetes", "path": "/x"}, "caBundle": hook.ca_bundle}
    register(lab, hook, clientConfig=client)
    assert 'no endpoints available for service "kubernetes"' in refusal(lab, pod("p")).message
    lab.service("default", "kubernetes", ("127.0.0.1", hook.port))
    lab.create(pod("p"))
    assert hook.headers[0]["Host"].startswith("127.0.0.1")
    lab.service("default", "other", ("127.0.0.1", hook.port))
    client["service"] |= {"name": "other"}  # type: ignore[operator]
    lab.create(hook.registration("Validating", "other", clientConfig=client))
    assert "x509" in refusal(lab, pod("q")).message


def test_controllers_are_seen_as_themselves(lab: Lab, hook: Hook) -> None:
    """W19."""
    register(lab, hook)
    lab.create(pod("p"), service_account("kube-system", "replicaset-controller"))
    assert hook.reviews[0]["request"]["userInfo"] == {
        "username": "system:serviceaccount:kube-system:replicaset-controller",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
    }


def test_equality_is_semantic() -> None:
    assert equal({"a": {}, "b": [1]}, {"b": [1], "c": None})
    assert not equal({"a": 0}, {})
    assert not equal({"a": [1, 2]}, {"a": [2, 1]})
