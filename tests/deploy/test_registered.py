"""What the shipped registration sends us, judged on the manifests as data: it cannot deadlock a cluster."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from tests.deploy.conftest import Objects, one
from webhook.k8s import selectors
from webhook.k8s.objects import LabelSelector
from webhook.lab.conditions import compile_expression
from webhook.policy.registration import CONTROLLERS, DEPLOYMENT_CONTROLLERS

GPU_NAMESPACE = {"kubernetes.io/metadata.name": "ai-training", "gpu.platform/team": "training"}
USER = "alice"


def webhooks(objects: Objects) -> list[dict[str, Any]]:
    return [
        webhook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for webhook in one(objects, kind, "gpu-webhook")["webhooks"]
    ]


def called(
    webhook: dict[str, Any],
    operation: str,
    resource: str,
    labels: Mapping[str, str] | None = GPU_NAMESPACE,
    user: str = USER,
    deleting: bool = False,
) -> bool:
    """Whether an API server would call the webhook (V29, V30, V32); `labels` None is a cluster-scoped request."""
    group, version, name = resource.split("/", 2)
    scope = "Cluster" if labels is None else "Namespaced"
    if not any(
        operation in rule["operations"]
        and group in rule["apiGroups"]
        and version in rule["apiVersions"]
        and _names(rule["resources"], name)
        and rule["scope"] in ("*", scope)
        for rule in webhook["rules"]
    ):
        return False
    selector = msgspec.convert(webhook["namespaceSelector"], LabelSelector)
    if labels is not None and not selectors.matches(selector, labels):
        return False
    old: dict[str, Any] | None = {"metadata": {"deletionTimestamp": "2026-12-01T08:00:00Z"} if deleting else {}}
    variables: dict[str, Any] = {
        "object": {"metadata": {}},
        "oldObject": None if operation == "CREATE" else old,
        "request": {"resource": {"group": group, "resource": name.split("/")[0]}, "userInfo": {"username": user}},
    }
    return all(compile_expression(one["expression"])(variables) for one in webhook["matchConditions"])


def _names(registered: list[str], name: str) -> bool:
    main, _, sub = name.partition("/")
    return any(
        entry in (name, "*/*")
        or (entry == "*" and not sub)
        or (entry == f"{main}/*")
        or (entry == f"*/{sub}" and bool(sub))
        for entry in registered
    )


@pytest.fixture(params=["base", "fail-closed"])
def registration(request: pytest.FixtureRequest, combine: Callable[..., Objects]) -> list[dict[str, Any]]:
    return webhooks(combine() if request.param == "base" else combine("fail-closed"))


def anything_called(registration: list[dict[str, Any]], *arguments: Any, **more: Any) -> bool:
    return any(called(webhook, *arguments, **more) for webhook in registration)


def test_the_evaluator_sees_what_is_registered(registration: list[dict[str, Any]]) -> None:
    assert anything_called(registration, "CREATE", "/v1/pods")
    assert anything_called(registration, "UPDATE", "apps/v1/deployments/scale")


def _critical() -> Iterator[tuple[str, str, str, Mapping[str, str] | None]]:
    """Name, operation, resource and namespace labels of what must never wait for us."""
    team = {"gpu.platform/team": "training"}
    for namespace in ("kube-system", "kube-public", "kube-node-lease"):
        labels = {"kubernetes.io/metadata.name": namespace}
        for given in (labels, labels | team):  # also where somebody labelled it by mistake
            yield f"pod in {namespace}", "CREATE", "/v1/pods", given
            yield f"daemonset in {namespace}", "UPDATE", "apps/v1/daemonsets", given
    for namespace in ("calico-system", "tigera-operator", "kube-flannel", "cilium", "default"):
        labels = {"kubernetes.io/metadata.name": namespace}
        yield f"network pod in {namespace}", "CREATE", "/v1/pods", labels
        yield f"hostNetwork daemonset in {namespace}", "CREATE", "apps/v1/daemonsets", labels
    yield "node", "CREATE", "/v1/nodes", None
    yield "node status", "UPDATE", "/v1/nodes/status", None
    yield "namespace", "CREATE", "/v1/namespaces", None
    yield "lease", "UPDATE", "coordination.k8s.io/v1/leases", {"kubernetes.io/metadata.name": "kube-node-lease"} | team
    yield "lease in a GPU namespace", "UPDATE", "coordination.k8s.io/v1/leases", GPU_NAMESPACE
    yield "endpoint slice", "UPDATE", "discovery.k8s.io/v1/endpointslices", GPU_NAMESPACE
    yield "custom resource", "CREATE", "cilium.io/v2/ciliumendpoints", GPU_NAMESPACE
    yield "deletion", "DELETE", "/v1/pods", GPU_NAMESPACE
    yield "job deletion", "DELETE", "batch/v1/jobs", GPU_NAMESPACE


@pytest.mark.parametrize(
    ("operation", "resource", "labels"), [case[1:] for case in _critical()], ids=[case[0] for case in _critical()]
)
def test_b47_nothing_critical_is_in_reach(
    registration: list[dict[str, Any]], operation: str, resource: str, labels: Mapping[str, str] | None
) -> None:
    assert not anything_called(registration, operation, resource, labels)


@pytest.mark.parametrize("more", [{}, {"gpu.platform/team": "training"}])
@pytest.mark.parametrize("resource", ["/v1/pods", "apps/v1/deployments", "apps/v1/replicasets"])
def test_b48_our_own_namespace_is_out_of_reach_by_its_immutable_name(
    registration: list[dict[str, Any]], combine: Callable[..., Objects], resource: str, more: dict[str, str]
) -> None:
    own = one(combine(), "Deployment", "gpu-webhook")["metadata"]["namespace"]
    labels = {"kubernetes.io/metadata.name": own, **more}
    assert not anything_called(registration, "CREATE", resource, labels)
    for webhook in registration:
        assert {"kubernetes.io/metadata.name"} == {
            part["key"] for part in webhook["namespaceSelector"]["matchExpressions"] if part["operator"] == "NotIn"
        }


@pytest.mark.parametrize(
    ("operation", "resource"),
    [
        ("CREATE", "/v1/pods/binding"),
        ("CREATE", "/v1/pods/eviction"),
        ("CREATE", "/v1/pods/exec"),
        ("CONNECT", "/v1/pods/exec"),
        ("CONNECT", "/v1/pods/log"),
        ("UPDATE", "/v1/pods/status"),
        ("UPDATE", "/v1/pods/ephemeralcontainers"),
        ("UPDATE", "/v1/pods/resize"),
        ("UPDATE", "/v1/pods"),
        ("UPDATE", "apps/v1/deployments/status"),
        ("UPDATE", "batch/v1/jobs/status"),
        ("CREATE", "authentication.k8s.io/v1/tokenreviews"),
    ],
)
def test_b49_no_subresource_but_scale(registration: list[dict[str, Any]], operation: str, resource: str) -> None:
    assert not anything_called(registration, operation, resource)


def test_b49_no_wildcards(registration: list[dict[str, Any]]) -> None:
    for webhook in registration:
        for rule in webhook["rules"]:
            assert "*" not in "".join(rule["resources"] + rule["apiGroups"] + rule["apiVersions"] + rule["operations"])


def test_b53_we_wait_three_seconds_at_most(registration: list[dict[str, Any]]) -> None:
    assert {webhook["timeoutSeconds"] for webhook in registration} == {3}


def test_b56_no_bundle_is_ours_to_erase(registration: list[dict[str, Any]]) -> None:
    for webhook in registration:
        assert "caBundle" not in webhook["clientConfig"]


def test_b57_side_effects_are_none(registration: list[dict[str, Any]]) -> None:
    assert {webhook["sideEffects"] for webhook in registration} == {"None"}


def test_b60_what_is_being_deleted_is_not_sent(registration: list[dict[str, Any]]) -> None:
    assert anything_called(registration, "UPDATE", "apps/v1/deployments")
    assert not anything_called(registration, "UPDATE", "apps/v1/deployments", deleting=True)


@pytest.mark.parametrize("user", DEPLOYMENT_CONTROLLERS)
def test_replicasets_of_the_deployment_controller_are_not_sent(registration: list[dict[str, Any]], user: str) -> None:
    assert anything_called(registration, "CREATE", "apps/v1/replicasets")
    assert not anything_called(registration, "CREATE", "apps/v1/replicasets", user=user)
    assert anything_called(registration, "CREATE", "/v1/pods", user=user)


def test_only_v1_reviews_and_equivalent_resources(registration: list[dict[str, Any]]) -> None:
    for webhook in registration:
        assert webhook["admissionReviewVersions"] == ["v1"]
        assert webhook["matchPolicy"] == "Equivalent"
        assert "objectSelector" not in webhook  # labels of an object are its user's: an opt-out would be a bypass (V31)


def test_the_mutating_one_always_ignores_our_absence_and_is_called_again(registration: list[dict[str, Any]]) -> None:
    mutating = [webhook for webhook in registration if webhook["clientConfig"]["service"]["path"] == "/mutate"]
    assert [(webhook["failurePolicy"], webhook["reinvocationPolicy"]) for webhook in mutating] == [
        ("Ignore", "IfNeeded")
    ]


def test_base_ignores_our_absence_everywhere(combine: Callable[..., Objects]) -> None:
    assert {webhook["failurePolicy"] for webhook in webhooks(combine())} == {"Ignore"}


@pytest.mark.parametrize("user", [*CONTROLLERS, USER, "system:serviceaccount:ai-training:default", "system:admin"])
def test_fail_closed_asks_once_about_everybody_and_stops_only_people(
    combine: Callable[..., Objects], user: str
) -> None:
    validating = webhooks(combine("fail-closed"))[1:]
    policies = [webhook["failurePolicy"] for webhook in validating if called(webhook, "CREATE", "/v1/pods", user=user)]
    assert policies == ["Ignore" if user in CONTROLLERS else "Fail"]


def test_fail_closed_denies_what_slipped_past_mutate(combine: Callable[..., Objects]) -> None:
    assert (
        "\n  onUnplaced: deny\n"
        in one(combine("fail-closed"), "ConfigMap", "gpu-webhook-policy")["data"]["default.yaml"]
    )
    assert "onUnplaced" not in one(combine(), "ConfigMap", "gpu-webhook-policy")["data"]["default.yaml"]


def test_the_service_that_is_called_is_ours(
    registration: list[dict[str, Any]], combine: Callable[..., Objects]
) -> None:
    service = one(combine(), "Service", "gpu-webhook")
    for webhook in registration:
        called_service = webhook["clientConfig"]["service"]
        assert (called_service["name"], called_service["namespace"]) == (
            service["metadata"]["name"],
            service["metadata"]["namespace"],
        )
        assert called_service["port"] == service["spec"]["ports"][0]["port"]


def test_cert_manager_is_told_where_the_bundle_goes(combine: Callable[..., Objects]) -> None:
    objects = combine("cert-manager")
    certificate = one(objects, "Certificate", "gpu-webhook-tls")
    wanted = f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert one(objects, kind, "gpu-webhook")["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == wanted
