"""Lint against a cluster: what the policy names and the cluster lacks, and what the cluster has and no rule reaches."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from webhook.k8s import quota, selectors
from webhook.k8s.objects import Namespace, Node, PriorityClass, ResourceQuota
from webhook.k8s.quantity import QuantityError, parse
from webhook.language import say
from webhook.policy.active import NEVER_JUDGED, Policy
from webhook.policy.convert import nearest
from webhook.policy.finding import LintFinding, cluster_finding, finding
from webhook.policy.model import Rule

_NAME_LABEL = "kubernetes.io/metadata.name"


class Cluster(msgspec.Struct, frozen=True):
    """What lint reads of a cluster. None: this was not learned, so nothing is said about it."""

    namespaces: tuple[Namespace, ...] | None = None
    nodes: tuple[Node, ...] | None = None
    priority_classes: tuple[PriorityClass, ...] | None = None
    quotas: tuple[ResourceQuota, ...] | None = None


def lint_cluster(policy: Policy, cluster: Cluster, namespace_label: str) -> Iterator[LintFinding]:
    """All findings of a policy in a cluster."""
    if cluster.priority_classes is not None:
        yield from _classes(policy, [item.metadata.name for item in cluster.priority_classes])
    if cluster.nodes is not None:
        yield from _pools(policy, cluster.nodes)
        yield from _gpu_names(policy, cluster.nodes)
    if cluster.namespaces is not None:
        yield from _namespaces(policy, cluster.namespaces, namespace_label)
    if cluster.quotas is not None:
        yield from _quotas(policy, cluster)


def gpus_of(policy: Policy, node: Node) -> set[str]:
    """The GPU resources of which a node offers at least one."""
    return {name for name, amount in (node.status.allocatable or {}).items() if policy.is_gpu(name) and _some(amount)}


def near_hint(policy: Policy, name: str, known: Iterable[str]) -> str:
    """` (did you mean x?)`, or nothing."""
    near = nearest(name, known)
    return f" ({say(policy.spec.language, 'policy.mean_hint', name=near)})" if near and near != name else ""


def _some(amount: object) -> bool:
    try:
        return parse(amount) > 0
    except QuantityError:
        return False


def _classes(policy: Policy, known: list[str]) -> Iterator[LintFinding]:
    """B04: a class that exists nowhere is never injected, and users who choose it are refused by the API server."""
    for index, rule in enumerate(policy.spec.rules):
        path = f"spec.rules[{index}]"
        named = [(f"{path}.priorityClassName", rule.priority_class_name or "")]
        named += [(f"{path}.allowedPriorityClasses[{i}]", name) for i, name in enumerate(rule.allowed_priority_classes)]
        for where, name in named:
            if name and name not in known:
                hint = near_hint(policy, name, known)
                yield finding(policy, "error", "ClassUnknown", where, rule=rule.name, name=name, hint=hint)


def _pools(policy: Policy, nodes: Iterable[Node]) -> Iterator[LintFinding]:
    label = policy.spec.pool_label
    gpus: dict[str, set[str]] = {}
    for node in nodes:
        pool = (node.metadata.labels or {}).get(label)
        if pool is not None:
            gpus.setdefault(pool, set()).update(gpus_of(policy, node))
    for index, rule in enumerate(policy.spec.rules):
        for number, pool in enumerate(rule.pools or ()):
            where = f"spec.rules[{index}].pools[{number}]"
            values = {"rule": rule.name, "pool": pool, "label": label}
            if pool not in gpus:
                yield finding(policy, "warning", "PoolUnknown", where, hint=near_hint(policy, pool, gpus), **values)
            elif not gpus[pool]:
                yield finding(policy, "warning", "PoolWithoutGpu", where, **values)


def _gpu_names(policy: Policy, nodes: Iterable[Node]) -> Iterator[LintFinding]:
    """Resources that look like GPUs to us and are none to the policy, so that pods asking for them go unjudged."""
    found = Counter(
        name
        for node in nodes
        for name, amount in (node.status.allocatable or {}).items()
        if "gpu" in name and "/" in name and not policy.is_gpu(name) and _some(amount)
    )
    for name, count in sorted(found.items()):
        yield finding(policy, "warning", "GpuNotListed", "spec.gpuResources", resource=name, nodes=count)


def _namespaces(policy: Policy, namespaces: Iterable[Namespace], label: str) -> Iterator[LintFinding]:
    labels = {
        item.metadata.name: {_NAME_LABEL: item.metadata.name, **(item.metadata.labels or {})} for item in namespaces
    }
    for index, rule in enumerate(policy.spec.rules):
        selector = rule.namespace_selector.as_label_selector()
        if not any(selectors.matches(selector, each) for name, each in labels.items() if name not in NEVER_JUDGED):
            hint = _selector_hint(policy, rule, labels.values())
            where = f"spec.rules[{index}].namespaceSelector"
            yield finding(policy, "warning", "RuleMatchesNoNamespace", where, rule=rule.name, hint=hint)
    for index, exemption in enumerate(policy.spec.exemptions):
        for number, name in enumerate(exemption.namespaces):
            if name not in labels:
                where = f"spec.exemptions[{index}].namespaces[{number}]"
                hint = near_hint(policy, name, labels)
                yield finding(policy, "warning", "NamespaceUnknown", where, namespace=name, hint=hint)
    for name, each in labels.items():
        if label in each and name not in NEVER_JUDGED and not policy.covers_namespace(each):
            values = {"namespace": name, "label": label, "value": each[label]}
            yield cluster_finding(policy, "warning", "NamespaceWithoutRule", f"Namespace {name}", **values)


def _selector_hint(policy: Policy, rule: Rule, labels: Iterable[Mapping[str, str]]) -> str:
    """The nearest value that some namespace has for a label that the rule asks for, else the nearest label key."""
    wanted = list(rule.namespace_selector.match_labels.items())
    wanted += [(e.key, value) for e in rule.namespace_selector.match_expressions for value in e.values]
    every = list(labels)
    for key, value in wanted:
        values = {each[key] for each in every if key in each}
        hint = (
            near_hint(policy, value, values) if values else near_hint(policy, key, {k for each in every for k in each})
        )
        if hint:
            return hint
    return ""


def _quotas(policy: Policy, cluster: Cluster) -> Iterator[LintFinding]:
    """B30: keys that ResourceQuota accepts, shows in `hard` and never counts (Q1, Q2), in namespaces with a rule."""
    labels = {item.metadata.name: item.metadata.labels or {} for item in cluster.namespaces or ()}
    for item in cluster.quotas or ():
        namespace = item.metadata.namespace
        if cluster.namespaces is not None and not policy.covers_namespace(labels.get(namespace, {})):
            continue
        for key in quota.ineffective_keys(item):
            name = f"ResourceQuota {namespace}/{item.metadata.name}"
            values = {"dead": key, "effective": quota.effective_key(key)}
            yield cluster_finding(policy, "warning", "QuotaKeyIneffective", name, **values)
