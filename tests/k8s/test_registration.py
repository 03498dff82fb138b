"""Which requests reach a webhook: V29-V32, case by case, and the registration that we ship."""

from typing import Any

import msgspec
import pytest

from webhook.k8s.registration import (
    Call,
    Webhook,
    WebhookConfiguration,
    condition_holds,
    is_sent,
    rule_matches,
    unknown_conditions,
)
from webhook.k8s.registration import Rule as WebhookRule


def rule(resources: list[str], *, groups: list[str] | None = None, scope: str | None = None) -> WebhookRule:
    return WebhookRule(("*",), tuple(groups or ["*"]), ("*",), tuple(resources), scope)


def webhook(**fields: Any) -> Webhook:
    every = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    return msgspec.convert({"name": "w", "rules": [every], **fields}, Webhook)


POD = Call("CREATE", "", "v1", "pods", namespace="team-a")


@pytest.mark.parametrize(
    ("resources", "resource", "sub_resource", "matches"),
    [
        (["pods"], "pods", "", True),
        (["pods"], "pods", "binding", False),
        (["pods/*"], "pods", "", True),  # the main resource too
        (["pods/*"], "pods", "eviction", True),
        (["*"], "pods", "", True),
        (["*"], "pods", "status", False),
        (["*/*"], "deployments", "scale", True),
        (["*/scale"], "statefulsets", "scale", True),
        (["*/scale"], "statefulsets", "", False),
        (["deployments/scale"], "deployments", "", False),
        (["deployments"], "deployments", "scale", False),
        ([], "pods", "", False),
    ],
)
def test_v29_resources(resources: list[str], resource: str, sub_resource: str, matches: bool) -> None:
    call = POD._replace(resource=resource, sub_resource=sub_resource)
    assert rule_matches(rule(resources), call) is matches


def test_v29_the_group_is_that_of_the_resource_not_of_the_kind() -> None:
    scale = Call("UPDATE", "apps", "v1", "deployments", "scale", namespace="team-a")
    assert rule_matches(rule(["deployments/scale"], groups=["apps"]), scale)
    assert not rule_matches(rule(["deployments/scale"], groups=["autoscaling"]), scale)


def test_operations_and_versions_are_compared_too() -> None:
    only = WebhookRule(("CREATE",), ("",), ("v1",), ("pods",), None)
    assert rule_matches(only, POD)
    assert not rule_matches(only, POD._replace(operation="UPDATE"))
    assert not rule_matches(only, POD._replace(version="v2"))


def test_scope() -> None:
    node = Call("UPDATE", "", "v1", "nodes")
    namespace = Call("UPDATE", "", "v1", "namespaces", namespace="team-a")
    for scope, expected in [("*", (True, True, True)), ("Namespaced", (True, False, False))]:
        assert tuple(rule_matches(rule(["*"], scope=scope), call) for call in (POD, node, namespace)) == expected
    cluster = rule(["*"], scope="Cluster")
    assert [rule_matches(cluster, call) for call in (POD, node, namespace)] == [False, True, True]


def test_v30_the_labels_of_the_namespace_decide_and_cluster_scoped_objects_always_pass() -> None:
    selective = webhook(namespaceSelector={"matchLabels": {"team": "a"}})
    assert is_sent(selective, POD._replace(namespace_labels={"team": "a"}))
    assert is_sent(selective, POD._replace(namespace_labels={"team": "b"})) is False
    assert is_sent(selective, Call("UPDATE", "", "v1", "nodes"))


def test_v30_a_namespace_being_written_counts_with_its_own_labels() -> None:
    selective = webhook(namespaceSelector={"matchLabels": {"team": "a"}})
    written = Call("UPDATE", "", "v1", "namespaces", namespace="x", namespace_labels={"team": "b"})
    assert is_sent(selective, written._replace(labels=({"team": "a"}, {"team": "b"})))
    assert is_sent(selective, written._replace(labels=({"team": "b"}, {"team": "a"}))) is False


def test_v31_the_new_or_the_old_object_must_match() -> None:
    selective = webhook(objectSelector={"matchLabels": {"gpu": "yes"}})
    for new, old, sent in [
        ({"gpu": "yes"}, {}, True),
        ({}, {"gpu": "yes"}, True),
        ({}, {}, False),
        (None, None, False),
    ]:
        assert is_sent(selective, POD._replace(labels=(new, old))) is sent
    assert is_sent(webhook(objectSelector={}), POD._replace(labels=(None, None)))


def test_a20_webhook_configurations_are_never_sent() -> None:
    own = Call("UPDATE", "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
    assert is_sent(webhook(), own) is False
    assert is_sent(webhook(), own._replace(group="example.com"))


NOT_DELETED = "oldObject == null || !has(oldObject.metadata.deletionTimestamp)"
CONTROLLER = 'request.userInfo.username in ["system:kube-controller-manager", "sa"]'
REPLICASETS = f'!(request.resource.resource == "replicasets" && {CONTROLLER})'


@pytest.mark.parametrize(
    ("expression", "call", "holds"),
    [
        (NOT_DELETED, POD, True),
        (NOT_DELETED, POD._replace(being_deleted=True), False),
        (NOT_DELETED.replace(" || ", "\n  || "), POD._replace(being_deleted=True), False),
        (CONTROLLER, POD._replace(username="sa"), True),
        (CONTROLLER, POD._replace(username="alice"), False),
        (f"!({CONTROLLER})", POD._replace(username="sa"), False),
        (f"!({CONTROLLER})", POD._replace(username="alice"), True),
        (REPLICASETS, POD._replace(username="sa"), True),
        (REPLICASETS, POD._replace(username="sa", resource="replicasets"), False),
        (REPLICASETS, POD._replace(username="alice", resource="replicasets"), True),
        ("object.spec.replicas > 3", POD, None),
    ],
)
def test_v32_conditions_of_our_registration_are_known_others_are_not(
    expression: str, call: Call, holds: bool | None
) -> None:
    assert condition_holds(expression, call) is holds


def test_v32_a_false_condition_decides_and_an_unknown_one_leaves_it_open() -> None:
    odd = {"name": "odd", "expression": "object.spec.replicas > 3"}
    both = webhook(matchConditions=[odd, {"name": "not-deleted", "expression": NOT_DELETED}])
    assert is_sent(both, POD._replace(being_deleted=True)) is False
    assert is_sent(both, POD) is None
    assert [each.name for each in unknown_conditions(both)] == ["odd"]


def test_a_configuration_is_read_as_the_api_prints_it() -> None:
    text = b"""{"kind": "MutatingWebhookConfiguration", "metadata": {"name": "x"}, "webhooks": [{"name": "a.b.c",
        "clientConfig": {"service": {"namespace": "n", "name": "s", "path": "/mutate", "port": 443},
                         "caBundle": "Zg=="},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "failurePolicy": "Ignore", "namespaceSelector": {}, "objectSelector": {}, "sideEffects": "None",
        "timeoutSeconds": 3, "admissionReviewVersions": ["v1"], "reinvocationPolicy": "IfNeeded"}]}"""
    read = msgspec.json.decode(text, type=WebhookConfiguration)
    (entry,) = read.webhooks or ()
    assert entry.client_config.service is not None
    assert (entry.client_config.service.path, entry.client_config.ca_bundle) == ("/mutate", "Zg==")
    assert is_sent(entry, POD)
    assert is_sent(entry, POD._replace(operation="DELETE")) is False
