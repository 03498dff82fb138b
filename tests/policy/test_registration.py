"""The registration follows the policy: kinds, controllers, selectors - and is the same bytes every time."""

import base64
import json
from typing import Any

import pytest

from webhook.k8s.workloads import controller_user, is_deployment_controller
from webhook.policy.model import Kind, Rule, Selector, SelectorRequirement, Spec
from webhook.policy.registration import (
    CONTROLLERS,
    DEPLOYMENT_CONTROLLERS,
    Registration,
    configurations,
    uncovered_rules,
)

TEAM = "gpu.platform/team"


def registered(spec: Spec, registration: Registration | None = None) -> set[str]:
    """`operation group/resource` of everything in the mutating configuration."""
    mutating, _ = configurations(spec, registration)
    return {
        f"{operation} {group}/{resource}"
        for rule in mutating["webhooks"][0]["rules"]
        for operation in rule["operations"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def rule(name: str, **selector: Any) -> Rule:
    return Rule(name=name, namespace_selector=Selector(**selector))


def test_all_kinds_of_the_design() -> None:
    assert registered(Spec(rules=())) == {
        "CREATE /pods",
        *(
            f"{operation} {resource}"
            for operation in ("CREATE", "UPDATE")
            for resource in (
                "/replicationcontrollers",
                "apps/daemonsets",
                "apps/deployments",
                "apps/replicasets",
                "apps/statefulsets",
                "batch/cronjobs",
                "batch/jobs",
            )
        ),
        "UPDATE /replicationcontrollers/scale",
        "UPDATE apps/deployments/scale",
        "UPDATE apps/replicasets/scale",
        "UPDATE apps/statefulsets/scale",
    }


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        (("Pod",), {"CREATE /pods"}),
        (("Job",), {"CREATE batch/jobs", "UPDATE batch/jobs"}),
        (
            ("Deployment", "Pod"),
            {"CREATE /pods", "CREATE apps/deployments", "UPDATE apps/deployments", "UPDATE apps/deployments/scale"},
        ),
    ],
)
def test_only_the_policys_kinds_are_registered(workloads: tuple[Kind, ...], expected: set[str]) -> None:
    assert registered(Spec(rules=(), workloads=workloads)) == expected


def test_order_of_kinds_does_not_change_a_byte() -> None:
    one = configurations(Spec(rules=(), workloads=("Job", "Pod", "Deployment")))
    other = configurations(Spec(rules=(), workloads=("Deployment", "Job", "Pod")))
    assert json.dumps(one) == json.dumps(other)


def test_both_phases_register_the_same_rules() -> None:
    mutating, validating = configurations(Spec(rules=()), Registration(fail_closed=True))
    rules = [webhook["rules"] for webhook in (*mutating["webhooks"], *validating["webhooks"])]
    assert all(one == rules[0] for one in rules)


def test_names_are_dns_names_of_three_labels_and_unique() -> None:
    for configuration in configurations(Spec(rules=()), Registration(fail_closed=True)):
        names = [webhook["name"] for webhook in configuration["webhooks"]]
        assert len(set(names)) == len(names)
        assert all(len(name.split(".")) >= 3 for name in names)


def test_outside_the_cluster_by_url_with_a_bundle() -> None:
    wanted = Registration(url="https://127.0.0.1:8443/", ca_bundle=b"pem")
    mutating, validating = configurations(Spec(rules=()), wanted)
    bundle = base64.b64encode(b"pem").decode()
    assert mutating["webhooks"][0]["clientConfig"] == {"url": "https://127.0.0.1:8443/mutate", "caBundle": bundle}
    assert validating["webhooks"][0]["clientConfig"] == {"url": "https://127.0.0.1:8443/validate", "caBundle": bundle}


def test_another_namespace_is_called_and_excluded() -> None:
    mutating, _ = configurations(Spec(rules=()), Registration(namespace="platform"))
    webhook = mutating["webhooks"][0]
    assert webhook["clientConfig"]["service"]["namespace"] == "platform"
    assert "platform" in webhook["namespaceSelector"]["matchExpressions"][1]["values"]


def test_controllers_are_those_of_w19() -> None:
    assert {controller_user(name) for name in CONTROLLERS} == {
        "cronjob-controller",
        "daemon-set-controller",
        "deployment-controller",
        "generic-garbage-collector",
        "horizontal-pod-autoscaler",
        "job-controller",
        "kube-controller-manager",
        "replicaset-controller",
        "replication-controller",
        "statefulset-controller",
    }
    assert [name for name in CONTROLLERS if is_deployment_controller(name)] == list(DEPLOYMENT_CONTROLLERS)


def test_trusted_controllers_are_ignored_in_our_absence_too() -> None:
    spec = Spec(rules=(), trusted_controllers=("system:serviceaccount:kubeflow:training-operator",))
    _, validating = configurations(spec, Registration(fail_closed=True))
    for webhook in validating["webhooks"]:
        assert '"system:serviceaccount:kubeflow:training-operator"' in webhook["matchConditions"][-1]["expression"]


@pytest.mark.parametrize(
    ("selector", "covered"),
    [
        ({"match_labels": {TEAM: "training"}}, True),
        ({"match_labels": {TEAM: "training", "env": "prod"}}, True),
        ({"match_expressions": (SelectorRequirement(TEAM, "In", ("a", "b")),)}, True),
        ({"match_expressions": (SelectorRequirement(TEAM, "Exists"),)}, True),
        ({}, True),
        ({"match_labels": {"env": "prod"}}, False),
        ({"match_expressions": (SelectorRequirement(TEAM, "NotIn", ("a",)),)}, False),
        ({"match_expressions": (SelectorRequirement(TEAM, "DoesNotExist"),)}, False),
        ({"match_labels": {"kubernetes.io/metadata.name": "ai-training"}}, False),
    ],
)
def test_a_rule_is_covered_when_its_namespaces_are_sent(selector: dict[str, Any], covered: bool) -> None:
    spec = Spec(rules=(rule("r", **selector),))
    assert uncovered_rules(spec, TEAM) == (() if covered else ("r",))
