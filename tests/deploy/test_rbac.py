"""Least privilege, judged on the manifests as data: the webhook reads, the exporter reads more, only certs writes."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.conftest import Objects, one
from webhook.cluster.kinds import permissions
from webhook.exporter import live

READ = {"get", "list", "watch"}


@pytest.fixture
def objects(combine: Callable[..., Objects]) -> Objects:
    return combine("self-signed")


def grants(role: dict[str, Any]) -> dict[str, set[str]]:
    """`group/resource` -> verbs."""
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault(f"{group}/{resource}", set()).update(rule["verbs"])
    return found


def test_the_webhook_may_watch_what_it_watches_and_list_pods_and_nothing_else(objects: Objects) -> None:
    expected = {f"{group}/{plural}": set(verbs) for (group, plural), verbs in permissions().items()}
    assert grants(one(objects, "ClusterRole", "gpu-webhook")) == expected


def test_the_exporter_sees_pods_and_events_too_and_logs_only_of_our_pods(objects: Objects) -> None:
    expected = {f"{kind.group}/{kind.plural}": {"list", "watch"} for kind in live.WATCHED}
    assert grants(one(objects, "ClusterRole", "gpu-webhook-exporter")) == expected
    role = one(objects, "Role", "gpu-webhook-exporter")
    assert role["metadata"]["namespace"] == "gpu-webhook"
    assert grants(role) == {"/pods/log": {"get"}}


def test_certs_may_write_one_secret_and_patch_two_configurations(objects: Objects) -> None:
    role = one(objects, "Role", "gpu-webhook-certs")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["gpu-webhook-tls"], "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ]
    (rule,) = one(objects, "ClusterRole", "gpu-webhook-certs")["rules"]
    assert rule["resourceNames"] == ["gpu-webhook"]
    assert set(rule["verbs"]) == {"get", "patch"}


def test_no_wildcards_and_no_writes_elsewhere(objects: Objects) -> None:
    for role in (item for item in objects if item["kind"] in ("Role", "ClusterRole")):
        for resource, verbs in grants(role).items():
            assert "*" not in resource
            assert "*" not in verbs
            if role["metadata"]["name"] != "gpu-webhook-certs":
                assert verbs <= READ


def test_every_binding_binds_an_account_that_a_pod_uses(objects: Objects) -> None:
    used = {item["spec"]["template"]["spec"]["serviceAccountName"] for item in objects if item["kind"] == "Deployment"}
    accounts = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    assert used == accounts
    for binding in (item for item in objects if item["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        (subject,) = binding["subjects"]
        assert subject["name"] in accounts
        one(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
