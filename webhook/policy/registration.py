"""What the API server must send us, and nothing else: both webhook configurations, generated from the policy."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from webhook.k8s.workloads import KINDS, MANAGER_USER, WorkloadKind
from webhook.policy.active import NEVER_JUDGED
from webhook.policy.model import Rule, Spec

NAME = "gpu-webhook"
"""Name of both webhook configurations, and of the Service, ServiceAccount and Namespace of `deploy/base`."""

NAMESPACE_LABEL = "gpu.platform/team"
TIMEOUT_SECONDS = 3

DEPLOYMENT_CONTROLLERS = (MANAGER_USER, "system:serviceaccount:kube-system:deployment-controller")
"""Who writes a Deployment's ReplicaSets: its own account, or the manager's where controllers share it (W19, W21)."""

CONTROLLERS = (
    *DEPLOYMENT_CONTROLLERS,
    *(
        f"system:serviceaccount:kube-system:{name}"
        for name in (
            "cronjob-controller",
            "daemon-set-controller",
            "generic-garbage-collector",
            "horizontal-pod-autoscaler",
            "job-controller",
            "replicaset-controller",
            "replication-controller",
            "statefulset-controller",
        )
    ),
)
"""The users of fact W19; an outage of ours must not stop them from replacing a pod (rule 6 of the design)."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Registration:
    """How the configurations reach us: by Service inside the cluster, or by `url` (https://host:port) outside it.

    Without `ca_bundle` (PEM) the field is absent, so that applying the manifests again never erases a bundle that
    `certs ensure` or cert-manager has put there (B56).
    """

    name: str = NAME
    namespace: str = NAME
    service: str = NAME
    namespace_label: str = NAMESPACE_LABEL
    fail_closed: bool = False
    url: str | None = None
    ca_bundle: bytes | None = None


def configurations(spec: Spec, registration: Registration | None = None) -> tuple[Manifest, Manifest]:
    """The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration that the policy needs.

    The mutating one is always `Ignore`: what it would have added, `/validate` misses and reports as NotPlaced.
    """
    wanted = registration or Registration()
    mutating = [
        _webhook("mutate.gpu.platform", "/mutate", "Ignore", spec, wanted, _skips())
        | {"reinvocationPolicy": "IfNeeded"}
    ]
    return _configuration("Mutating", wanted, mutating), _configuration("Validating", wanted, _validating(spec, wanted))


def uncovered_rules(spec: Spec, namespace_label: str = NAMESPACE_LABEL) -> tuple[str, ...]:
    """Names of the rules that select namespaces which the registration may never send us.

    A rule is covered when every namespace it selects carries `namespace_label`, or when it selects by no label at all
    (`{}`: whatever is sent). A policy with an uncovered rule is a lint error (DESIGN 5.7).
    """
    return tuple(rule.name for rule in spec.rules if not _covered(rule, namespace_label))


def _covered(rule: Rule, namespace_label: str) -> bool:
    selector = rule.namespace_selector
    if not selector.match_labels and not selector.match_expressions:
        return True
    return namespace_label in selector.match_labels or any(
        part.key == namespace_label and part.operator in ("In", "Exists") for part in selector.match_expressions
    )


def _validating(spec: Spec, wanted: Registration) -> list[Manifest]:
    """One entry that ignores our absence; or, fail-closed, two that differ in whom it may stop."""
    if not wanted.fail_closed:
        return [_webhook("validate.gpu.platform", "/validate", "Ignore", spec, wanted, _skips())]
    controllers = _one_of("request.userInfo.username", (*CONTROLLERS, *spec.trusted_controllers))
    by_controllers = {"name": "user-is-a-controller", "expression": controllers}
    by_others = {"name": "user-is-not-a-controller", "expression": f"!({controllers})"}
    return [
        _webhook("validate-controllers.gpu.platform", "/validate", "Ignore", spec, wanted, [*_skips(), by_controllers]),
        _webhook("validate.gpu.platform", "/validate", "Fail", spec, wanted, [*_skips(), by_others]),
    ]


def _configuration(phase: str, wanted: Registration, webhooks: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{phase}WebhookConfiguration",
        "metadata": {"name": wanted.name, "labels": {"app.kubernetes.io/name": NAME}},
        "webhooks": webhooks,
    }


def _webhook(
    name: str, path: str, failure_policy: str, spec: Spec, wanted: Registration, conditions: list[Manifest]
) -> Manifest:
    return {
        "name": name,
        "clientConfig": _client_config(wanted, path),
        "admissionReviewVersions": ["v1"],
        "failurePolicy": failure_policy,
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "matchPolicy": "Equivalent",
        "namespaceSelector": _namespace_selector(wanted),
        "rules": list(_rules(spec.workloads)),
        "matchConditions": conditions,
    }


def _client_config(wanted: Registration, path: str) -> Manifest:
    bundle = {"caBundle": base64.b64encode(wanted.ca_bundle).decode()} if wanted.ca_bundle else {}
    if wanted.url is not None:
        return {"url": wanted.url.rstrip("/") + path, **bundle}
    return {"service": {"name": wanted.service, "namespace": wanted.namespace, "path": path, "port": 443}, **bundle}


def _namespace_selector(wanted: Registration) -> Manifest:
    """Own and system namespaces are named by the label that nobody can forget or change (V30, B48)."""
    return {
        "matchExpressions": [
            {"key": wanted.namespace_label, "operator": "Exists"},
            {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": sorted({*NEVER_JUDGED, wanted.namespace}),
            },
        ]
    }


def _rules(kinds: Iterable[str]) -> Iterable[Manifest]:
    """Pods on CREATE, templates on CREATE and UPDATE, `/scale` on UPDATE; never `*`, never `pods/*` (V29, B49)."""
    wanted = [KINDS[kind] for kind in sorted(set(kinds))]
    pods = [row for row in wanted if row.kind == "Pod"]
    templates = [row for row in wanted if row.kind != "Pod"]
    yield from _by_group(pods, ["CREATE"])
    yield from _by_group(templates, ["CREATE", "UPDATE"])
    yield from _by_group([row for row in templates if row.scales], ["UPDATE"], "/scale")


def _by_group(rows: Iterable[WorkloadKind], operations: list[str], suffix: str = "") -> Iterable[Manifest]:
    for (group, version), some in groupby(sorted(rows, key=_place), key=lambda row: (row.group, row.version)):
        yield {
            "apiGroups": [group],
            "apiVersions": [version],
            "operations": operations,
            "resources": [row.resource + suffix for row in some],
            "scope": "Namespaced",
        }


def _place(row: WorkloadKind) -> tuple[str, str, str]:
    return row.group, row.version, row.resource


def _skips() -> list[Manifest]:
    """What never needs an answer: objects that are going (B60), and ReplicaSets that we must not touch (W21)."""
    deployment_controller = _one_of("request.userInfo.username", DEPLOYMENT_CONTROLLERS)
    return [
        {
            "name": "not-being-deleted",
            "expression": "oldObject == null || !has(oldObject.metadata.deletionTimestamp)",
        },
        {
            "name": "not-a-replicaset-of-the-deployment-controller",
            "expression": f'!(request.resource.resource == "replicasets" && {deployment_controller})',
        },
    ]


def _one_of(what: str, values: Iterable[str]) -> str:
    return f"{what} in {json.dumps(sorted(set(values)))}"
