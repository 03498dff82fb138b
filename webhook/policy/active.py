"""A policy ready for use: selectors compiled, revision known, questions answered without touching YAML again."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from webhook.k8s import selectors
from webhook.k8s.names import cached_by_name
from webhook.policy.model import GpuPolicy, GpuPricing, Rule, Spec
from webhook.policy.problem import NOWHERE, Places

NEVER_JUDGED = frozenset({"kube-system", "kube-public", "kube-node-lease"})
"""Namespaces that are never judged, whatever a policy says; our own is added to them."""


class ActiveRule(msgspec.Struct, frozen=True):
    """A rule with its selectors compiled."""

    rule: Rule
    matches_namespace: Callable[[Mapping[str, str]], bool]
    matches_pod: Callable[[Mapping[str, str]], bool]


def _activate(rule: Rule) -> ActiveRule:
    namespaces, pods = rule.namespace_selector.as_label_selector(), rule.workload_selector.as_label_selector()
    return ActiveRule(rule, selectors.compiled(namespaces), selectors.compiled(pods))


class Policy:
    """What `decide` reads: one immutable policy with the revision that every record carries."""

    def __init__(
        self,
        document: GpuPolicy,
        pricing: GpuPricing | None = None,
        own_namespace: str = "",
        *,
        places: Places = NOWHERE,
        pricing_places: Places | None = None,
    ) -> None:
        self.document = document
        self.places = places
        self.pricing_places = pricing_places or NOWHERE
        self.spec: Spec = document.spec
        self.pricing = pricing
        self.name = document.metadata.name
        self.revision = revision(document)
        self.rules = tuple(_activate(rule) for rule in document.spec.rules)
        self._by_label = _by_label(self.rules)
        self.kinds = frozenset(document.spec.workloads)
        self.never_judged = NEVER_JUDGED | ({own_namespace} if own_namespace else set())
        self.counts_gpu = cached_by_name(self._counts_gpu)
        """Whether a quota key counts GPUs: `requests.nvidia.com/gpu`."""

    def rules_for(self, namespace_labels: Mapping[str, str]) -> Sequence[ActiveRule]:
        """The rules that select a namespace, in order; see `first_for`."""
        if self._by_label is not None:
            label, rules = self._by_label
            value = namespace_labels.get(label)
            return rules.get(value, ()) if value is not None else ()
        return tuple(active for active in self.rules if active.matches_namespace(namespace_labels))

    def covers_namespace(self, labels: Mapping[str, str]) -> bool:
        """Whether any rule selects the namespace."""
        return bool(self.rules_for(labels))

    def is_gpu(self, resource: str) -> bool:
        """Whether a resource name (without `requests.`) is one of `gpuResources`."""
        return any(_name_matches(pattern, resource) for pattern in self.spec.gpu_resources)

    def _counts_gpu(self, key: str) -> bool:
        return key.startswith("requests.") and self.is_gpu(key.removeprefix("requests."))


def _by_label(rules: Sequence[ActiveRule]) -> tuple[str, Mapping[str, Sequence[ActiveRule]]] | None:
    """The rules by the value of the one label by which they all tell namespaces apart, as most policies do; else None.

    So a namespace's rules cost the same among three and among three hundred.
    """
    labels: set[str] = set()
    found: dict[str, tuple[ActiveRule, ...]] = {}
    for active in rules:
        only = selectors.only_label(active.rule.namespace_selector.as_label_selector())
        if only is None:
            return None
        labels.add(only[0])
        found[only[1]] = (*found.get(only[1], ()), active)
    return (labels.pop(), found) if len(labels) == 1 else None


def first_for(rules: Iterable[ActiveRule], pod_labels: Mapping[str, str]) -> Rule | None:
    """The rule that counts: the first of its namespace's that selects the pod too, None for the finding NoRule."""
    for active in rules:
        if active.matches_pod(pod_labels):
            return active.rule
    return None


def _name_matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def revision(document: GpuPolicy) -> str:
    """`sha256:` and the SHA-256 of the canonical JSON with defaults filled in (DESIGN 5.1)."""
    plain: Any = msgspec.to_builtins(document)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
