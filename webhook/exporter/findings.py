"""What is wrong with the control layer itself: quota keys that do nothing, classes and pools that do not exist."""

from collections.abc import Iterable, Sequence
from typing import Any

from webhook.exporter.gpu_pods import CountedPod
from webhook.exporter.quotas import ineffective_keys, is_computed
from webhook.exporter.view import ClusterView
from webhook.exporter.wording import both
from webhook.policy.active import Policy


def findings_of(view: ClusterView, policy: Policy, namespace_label: str) -> list[dict[str, Any]]:
    """Findings about the cluster and the policy, each with its code (DESIGN 5.3), its place and a sentence.

    `namespace_label` is the label by which the registration selects namespaces.
    """
    unruled = _namespace_findings(view, policy, namespace_label)
    return [*_quota_findings(view), *_policy_findings(view, policy), *unruled]


def _finding(code: str, namespace: str, what: str, key: str, /, **values: Any) -> dict[str, Any]:
    sentences = both(key, **values)
    return {
        "code": code,
        "namespace": namespace,
        "object": what,
        "message": sentences["why"],
        "messageZh": sentences["whyZh"],
    }


def _quota_findings(view: ClusterView) -> Iterable[dict[str, Any]]:
    for quota in view.quotas:
        namespace, name = quota.metadata.namespace, quota.metadata.name
        what = f"resourcequota/{name}"
        for key, resource in ineffective_keys(quota):
            values = {"quota": name, "quota_key": key, "resource": resource}
            yield _finding("QuotaKeyIneffective", namespace, what, "key-ineffective", **values)
        if not is_computed(quota):
            yield _finding("QuotaUnknown", namespace, what, "quota-not-computed", quota=name)


def _policy_findings(view: ClusterView, policy: Policy) -> Iterable[dict[str, Any]]:
    classes = {one.metadata.name for one in view.priority_classes}
    pools = {(node.metadata.labels or {}).get(policy.spec.pool_label) for node in view.nodes}
    for active in policy.rules:
        rule = active.rule
        for name in (rule.priority_class_name, *rule.allowed_priority_classes):
            if name and classes and name not in classes:
                values = {"rule": rule.name, "name": name}
                yield _finding("PriorityClassMissing", "", f"rule/{rule.name}", "class-not-in-cluster", **values)
        for pool in rule.pools or ():
            if view.nodes and pool not in pools:
                yield _finding("PoolEmpty", "", f"rule/{rule.name}", "pool-without-nodes", rule=rule.name, pool=pool)


def _namespace_findings(view: ClusterView, policy: Policy, key: str) -> Iterable[dict[str, Any]]:
    for namespace, labels in view.labels.items():
        if key in labels and not policy.covers_namespace(labels):
            label = f"{key}={labels[key]}"
            values = {"namespace": namespace, "label": label}
            yield _finding("NoRule", namespace, f"namespace/{namespace}", "namespace-without-rule", **values)


def outside_policy(pods: Sequence[CountedPod], view: ClusterView, policy: Policy) -> list[dict[str, Any]]:
    """GPU pods in namespaces that no rule selects: nobody judged them."""
    found = []
    for pod in pods:
        labels = view.labels.get(pod.namespace, {})
        if pod.wants_gpu and pod.namespace not in policy.never_judged and not policy.covers_namespace(labels):
            gpus = {name: str(amount) for name, amount in sorted(pod.gpus.items())}
            since = pod.pod.metadata.creation_timestamp or ""
            found.append({"namespace": pod.namespace, "pod": pod.name, "gpus": gpus, "node": pod.node, "since": since})
    return found
