"""What `doctor` looks at, an installation in a cluster, and what it says, a line for each question."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from webhook.cluster import kinds
from webhook.cluster.kinds import Kind
from webhook.cluster.snapshot import Snapshot
from webhook.k8s.registration import Webhook, WebhookConfiguration
from webhook.policy.active import NEVER_JUDGED, Policy
from webhook.policy.model import Selector
from webhook.policy.registration import NAME, NAMESPACE_LABEL

Level = Literal["OK", "WARN", "FAIL"]

CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
MUTATING = Kind(
    CONFIGURATIONS[0],
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    WebhookConfiguration,
    False,
)
VALIDATING = Kind(
    CONFIGURATIONS[1],
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    WebhookConfiguration,
    False,
)
EXAMINED = (
    *(kinds.NAMESPACE, kinds.NODE, kinds.PRIORITY_CLASS, kinds.RESOURCE_QUOTA, kinds.POD),
    *(kinds.WORKLOAD_KINDS["Deployment"], kinds.WORKLOAD_KINDS["DaemonSet"], MUTATING, VALIDATING),
)
"""What is read of a live cluster."""
REGISTER = "kubectl apply -k YOUR-OVERLAY; its registration is what `gpu-webhook manifests` prints"
"""Not `manifests | kubectl apply -f -`: that would take away cert-manager's annotation and the fail-closed entries."""
SHOWN = 5
"""Names in one line; more are counted."""


class Line(msgspec.Struct, frozen=True):
    """One answer. `check` is a stable name for machines, `fix` says what to do and is empty when all is well."""

    level: Level
    check: str
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Installation:
    """What is looked at: a snapshot of the cluster, the policy, and the names under which we are installed."""

    snapshot: Snapshot
    policy: Policy
    namespace: str = NAME
    name: str = NAME
    namespace_label: str = NAMESPACE_LABEL
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def raw(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.snapshot.objects if item["kind"] == kind]

    def configurations(self) -> list[WebhookConfiguration]:
        """Those of our name, both kinds."""
        read = [
            msgspec.json.decode(msgspec.json.encode(item), type=WebhookConfiguration)
            for kind in CONFIGURATIONS
            for item in self.raw(kind)
        ]
        return [each for each in read if each.metadata.name == self.name]

    def webhooks(self) -> list[tuple[str, Webhook]]:
        """Every webhook of our configurations with the name people find it by."""
        return [
            (f"{each.kind}/{each.metadata.name}, webhook {webhook.name}", webhook)
            for each in self.configurations()
            for webhook in each.webhooks or ()
        ]

    def judges(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether the policy means to judge a namespace; a rule that selects by nothing takes what it is sent."""
        if namespace in NEVER_JUDGED or namespace == self.namespace:
            return False
        rules = [rule for rule in self.policy.rules if rule.matches_namespace(labels)]
        return any(self.namespace_label in labels or rule.rule.namespace_selector != Selector() for rule in rules)

    def labels(self) -> dict[str, dict[str, str]]:
        """Namespace -> labels, with the one that the API server gives every namespace (V30)."""
        found = {}
        for item in self.raw("Namespace"):
            name = item["metadata"]["name"]
            found[name] = {"kubernetes.io/metadata.name": name, **(item["metadata"].get("labels") or {})}
        return found


def own_pods(pods: Iterable[dict[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """The webhook's own pods among raw ones."""
    wanted = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "webhook"}
    return [
        item
        for item in pods
        if item["metadata"].get("namespace") == namespace
        and wanted.items() <= (item["metadata"].get("labels") or {}).items()
    ]


def some(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
