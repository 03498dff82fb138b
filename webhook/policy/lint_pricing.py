"""Lint of the price list: resources that are no GPUs here, and GPUs of a cluster that have no price."""

from collections.abc import Iterator, Mapping

from webhook.k8s.objects import Node
from webhook.policy.active import Policy
from webhook.policy.finding import LintFinding, finding, pricing_finding
from webhook.policy.lint_cluster import gpus_of, near_hint
from webhook.policy.model import PricingSpec

_TYPE_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "accelerator")
"""Node labels that tell GPU types apart in a message; any label may carry a price."""


def lint_pricing(policy: Policy, nodes: tuple[Node, ...] | None) -> Iterator[LintFinding]:
    """All findings about prices; without nodes only those that need none."""
    if policy.pricing is None:
        yield finding(policy, "info", "NoPricing", "", price=PricingSpec().default, currency=PricingSpec().currency)
        return
    spec = policy.pricing.spec
    for index, entry in enumerate(spec.by_node_label):
        path = f"spec.byNodeLabel[{index}]"
        for resource in entry.price:
            if not policy.is_gpu(resource):
                where = f"{path}.price[{resource}]"
                hint = near_hint(policy, resource, policy.spec.gpu_resources)
                yield pricing_finding(policy, "warning", "PriceOfNoGpu", where, resource=resource, hint=hint)
        if nodes is not None:
            values = {(node.metadata.labels or {}).get(entry.label) for node in nodes}
            if entry.value not in values:
                hint = near_hint(policy, entry.value, [value for value in values if value is not None])
                label = f"{entry.label}={entry.value}"
                yield pricing_finding(policy, "warning", "PriceUnused", path, label=label, hint=hint)
    yield from _unpriced(policy, spec, nodes or ())


def _unpriced(policy: Policy, spec: PricingSpec, nodes: tuple[Node, ...]) -> Iterator[LintFinding]:
    """GPU types that no entry prices: a part of a GPU has then no price at all, a whole one has the default."""
    said = set()
    for node in nodes:
        labels: Mapping[str, str] = node.metadata.labels or {}
        for resource in sorted(gpus_of(policy, node)):
            if any(labels.get(e.label) == e.value and resource in e.price for e in spec.by_node_label):
                continue
            kind = next((labels[label] for label in _TYPE_LABELS if labels.get(label)), "") or node.metadata.name
            if (resource, kind) in said:
                continue
            said.add((resource, kind))
            values = {"resource": resource, "type": kind, "price": spec.default, "currency": spec.currency}
            if "/mig-" in resource or resource.endswith(".shared"):
                yield pricing_finding(policy, "warning", "PriceMissing", "spec.byNodeLabel", **values)
            elif spec.by_node_label:
                yield pricing_finding(policy, "info", "PriceDefault", "spec.default", **values)
