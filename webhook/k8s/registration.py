"""Which requests a webhook configuration would receive: rules, scope, selectors and match conditions (V29-V32)."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from webhook.k8s import selectors
from webhook.k8s.objects import LabelSelector, ObjectMeta

_EXEMPT_GROUP = "admissionregistration.k8s.io"
_EXEMPT = frozenset(
    {
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
)
"""Never sent to any webhook, so that a broken one can always be removed (A20)."""


class ServiceReference(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: int | None = None


class ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Exactly one of `url` and `service` (V23); `ca_bundle` is base64 of PEM, and empty means the system's roots."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str | None = None


class Rule(msgspec.Struct, frozen=True, rename="camel"):
    """What a webhook asks for: any of the operations, on any of the resources (V29)."""

    operations: tuple[str, ...] | None = None
    api_groups: tuple[str, ...] | None = None
    api_versions: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    scope: str | None = None


class MatchCondition(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    expression: str = ""


class Webhook(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    client_config: ClientConfig = ClientConfig()
    rules: tuple[Rule, ...] | None = None
    failure_policy: str | None = None
    match_policy: str | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    side_effects: str | None = None
    timeout_seconds: int | None = None
    admission_review_versions: tuple[str, ...] | None = None
    match_conditions: tuple[MatchCondition, ...] | None = None
    reinvocation_policy: str | None = None


class WebhookConfiguration(msgspec.Struct, frozen=True, rename="camel"):
    """A MutatingWebhookConfiguration or a ValidatingWebhookConfiguration."""

    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] | None = None


class Call(NamedTuple):
    """A request as the API server compares it with a registration.

    `namespace` is "" for what has none, and the own name of a Namespace object. `labels` are those of the new and the
    old object, None where there is no object or it has no metadata (exec options, V31). `being_deleted` says that the
    old object has a deletionTimestamp.
    """

    operation: str
    group: str
    version: str
    resource: str
    sub_resource: str = ""
    namespace: str = ""
    namespace_labels: Mapping[str, str] = {}
    labels: tuple[Mapping[str, str] | None, Mapping[str, str] | None] = ({}, {})
    username: str = ""
    being_deleted: bool = False

    @property
    def what(self) -> str:
        """`CREATE pods/eviction`, for people."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.operation} {resource}" + (f"/{self.sub_resource}" if self.sub_resource else "")


def is_sent(webhook: Webhook, call: Call) -> bool | None:
    """Whether the API server would send the request; None if that hangs on a match condition that is not known here."""
    if call.group == _EXEMPT_GROUP and call.resource in _EXEMPT:
        return False
    if not any(rule_matches(rule, call) for rule in webhook.rules or ()):
        return False
    if not _namespace_matches(webhook.namespace_selector, call) or not _object_matches(webhook.object_selector, call):
        return False
    answers = [condition_holds(condition.expression, call) for condition in webhook.match_conditions or ()]
    if False in answers:  # one that is false decides, whatever the others say (V32)
        return False
    return None if None in answers else True


def rule_matches(rule: Rule, call: Call) -> bool:
    """Whether a rule covers the request's operation, resource and scope (V29)."""
    return (
        _lists(rule.operations, call.operation)
        and _lists(rule.api_groups, call.group)
        and _lists(rule.api_versions, call.version)
        and any(_resource_matches(resource, call) for resource in rule.resources or ())
        and _scope_matches(rule.scope or "*", call)
    )


def unknown_conditions(webhook: Webhook) -> list[MatchCondition]:
    """The match conditions whose meaning is not known here."""
    return [each for each in webhook.match_conditions or () if _condition(each.expression) is None]


# -- the parts --------------------------------------------------------------------------------------------------------


def _lists(values: Iterable[str] | None, value: str) -> bool:
    return any(each in ("*", value) for each in values or ())


def _resource_matches(pattern: str, call: Call) -> bool:
    """`pods` is the main resource alone, `pods/*` everything of it, `*/scale` any scale (V29)."""
    resource, _, sub_resource = pattern.partition("/")
    return resource in ("*", call.resource) and sub_resource in ("*", call.sub_resource)


def _scope_matches(scope: str, call: Call) -> bool:
    namespaced = bool(call.namespace) and not _is_namespace(call)
    return scope == "*" or (scope == "Namespaced") == namespaced


def _is_namespace(call: Call) -> bool:
    return (call.group, call.resource) == ("", "namespaces")


def _namespace_matches(selector: LabelSelector | None, call: Call) -> bool:
    """What has no namespace always passes; a Namespace being written counts with its own labels (V30)."""
    if selector is None or (not call.namespace and not _is_namespace(call)):
        return True
    labels = call.namespace_labels
    if _is_namespace(call) and call.operation in ("CREATE", "UPDATE") and call.labels[0] is not None:
        labels = call.labels[0]
    return selectors.matches(selector, labels)


def _object_matches(selector: LabelSelector | None, call: Call) -> bool:
    """The new or the old object must match; what has no metadata matches only a selector that asks nothing (V31)."""
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return True
    return any(labels is not None and selectors.matches(selector, labels) for labels in call.labels)


# -- match conditions -------------------------------------------------------------------------------------------------

_NOT_DELETED = "oldObject == null || !has(oldObject.metadata.deletionTimestamp)"
_USER_IN = re.compile(r"request\.userInfo\.username in (?P<users>\[[^\]]*\])")
_RESOURCE_BY_USER = re.compile(
    r'request\.resource\.resource == "(?P<resource>[a-z]+)" && request\.userInfo\.username in (?P<users>\[[^\]]*\])'
)


class _Condition(NamedTuple):
    """`negated`: the expression is `!(...)`. Without `users` it is the one about objects being deleted."""

    users: frozenset[str] | None = None
    resource: str | None = None
    negated: bool = False


def condition_holds(expression: str, call: Call) -> bool | None:
    """Whether a match condition is true of a request; None for CEL other than a registration of ours uses."""
    condition = _condition(expression)
    if condition is None:
        return None
    if condition.users is None:
        return not call.being_deleted
    holds = call.username in condition.users and condition.resource in (None, call.resource)
    return holds is not condition.negated


def _condition(expression: str) -> _Condition | None:
    text = " ".join(expression.split())
    if text == _NOT_DELETED:
        return _Condition()
    negated = text.startswith("!(") and text.endswith(")")
    inner = text[2:-1].strip() if negated else text
    for pattern in (_USER_IN, _RESOURCE_BY_USER):
        if found := pattern.fullmatch(inner):
            users = frozenset(re.findall(r'"([^"]*)"', found["users"]))
            return _Condition(users, found.groupdict().get("resource"), negated)
    return None
