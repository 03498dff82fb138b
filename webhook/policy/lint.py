"""`policy lint` beyond syntax: what is well-formed and still not what its author can have meant."""

from collections.abc import Iterator
from datetime import datetime

from webhook.policy.active import Policy
from webhook.policy.finding import Level, LintFinding
from webhook.policy.lint_access import lint_access
from webhook.policy.lint_cluster import Cluster, lint_cluster
from webhook.policy.lint_pricing import lint_pricing
from webhook.policy.lint_rules import lint_rules
from webhook.policy.registration import NAMESPACE_LABEL

LEVELS: tuple[Level, ...] = ("error", "warning", "info")
"""Gravest first. Errors make `policy lint` exit 1."""


def lint(
    policy: Policy, cluster: Cluster | None, now: datetime, namespace_label: str = NAMESPACE_LABEL
) -> list[LintFinding]:
    """All findings, gravest first, then in the order of the files.

    `namespace_label` is the label that the registration asks of a namespace (`manifests --namespace-label`).
    """
    found = list(_all(policy, cluster, now, namespace_label))
    return sorted(found, key=lambda each: (LEVELS.index(each.level), each.file, each.line, each.column, each.code))


def _all(policy: Policy, cluster: Cluster | None, now: datetime, namespace_label: str) -> Iterator[LintFinding]:
    yield from lint_rules(policy, namespace_label)
    yield from lint_access(policy, now)
    yield from lint_pricing(policy, cluster.nodes if cluster else None)
    if cluster is not None:
        yield from lint_cluster(policy, cluster, namespace_label)
