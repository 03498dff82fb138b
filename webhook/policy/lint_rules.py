"""Lint of the rules by themselves: can each ever match, does it reach anything, does it name what may be named."""

from collections.abc import Iterator, Sequence

import msgspec

from webhook.policy import overlap
from webhook.policy.active import Policy
from webhook.policy.finding import Level, LintFinding, finding
from webhook.policy.model import Rule, Selector
from webhook.policy.overlap import Box
from webhook.policy.registration import uncovered_rules


def lint_rules(policy: Policy, namespace_label: str) -> Iterator[LintFinding]:
    """All findings that need neither a cluster nor a clock."""
    spec = policy.spec
    if not spec.rules:
        yield finding(policy, "warning", "NoRules", "spec.rules")
    boxes = [overlap.box_of(rule) for rule in spec.rules]
    for index in range(len(spec.rules)):
        yield from _reach(policy, boxes, index)
    uncovered = uncovered_rules(spec, namespace_label)
    for index, rule in enumerate(spec.rules):
        path = f"spec.rules[{index}]"
        if rule.name in uncovered:
            where = f"{path}.namespaceSelector"
            yield finding(policy, "error", "RegistrationGap", where, rule=rule.name, label=namespace_label)
        elif rule.namespace_selector == Selector():
            where = f"{path}.namespaceSelector"
            yield finding(policy, "info", "CatchAllRule", where, rule=rule.name, label=namespace_label)
        yield from _classes(policy, rule, path)
        yield from _effect(policy, rule, path)
    yield from _spec(policy)


def _reach(policy: Policy, boxes: Sequence[Box], index: int) -> Iterator[LintFinding]:
    """Whether a rule can match at all, is shadowed by the rules before it, or overlaps one of them in part."""
    rules = policy.spec.rules
    rule, box, path = rules[index], boxes[index], f"spec.rules[{index}]"
    if overlap.is_empty(box):
        yield finding(policy, "error", "RuleNeverMatches", path, rule=rule.name)
        return
    met = [other for other in range(index) if overlap.meet(box, boxes[other]) is not None]
    if overlap.without(box, [boxes[other] for other in met]) == []:
        earlier = ", ".join(rules[other].name for other in met)
        yield finding(policy, "error", "RuleShadowed", path, rule=rule.name, earlier=earlier)
        return
    for other in met:
        if overlap.is_inside(boxes[other], box):
            continue  # the special case before the general one: meant
        both = overlap.meet(box, boxes[other]) or {}
        level: Level = "info" if _outcome(rule) == _outcome(rules[other]) else "warning"
        values = {"rule": rule.name, "earlier": rules[other].name, "labels": _labels(both)}
        yield finding(policy, level, "RulesOverlap", path, **values)


def _outcome(rule: Rule) -> Rule:
    """A rule without its name and selectors."""
    return msgspec.structs.replace(rule, name="x", namespace_selector=Selector(), workload_selector=Selector())


def _labels(box: Box) -> str:
    parts = []
    for scope in ("namespace", "pod"):
        labels = overlap.example(box, scope)
        if labels:
            parts.append(f"{scope} " + ", ".join(f"{key}={value}" for key, value in labels.items()))
    return "; ".join(parts) or "-"


def _classes(policy: Policy, rule: Rule, path: str) -> Iterator[LintFinding]:
    """B05: `system-*` classes put GPU pods above the cluster's own; some versions refuse them outside kube-system."""
    named = [(f"{path}.priorityClassName", rule.priority_class_name or "")]
    named += [(f"{path}.allowedPriorityClasses[{i}]", name) for i, name in enumerate(rule.allowed_priority_classes)]
    for where, name in named:
        if name.startswith("system-"):
            yield finding(policy, "error", "ClassSystem", where, rule=rule.name, name=name)
    if rule.allowed_priority_classes and rule.priority_class_name is None:
        where = f"{path}.allowedPriorityClasses"
        yield finding(policy, "warning", "AllowedClassesWithoutClass", where, rule=rule.name)


def _effect(policy: Policy, rule: Rule, path: str) -> Iterator[LintFinding]:
    if rule.priority_class_name is None and rule.pools is None and not rule.tolerations:
        yield finding(policy, "info", "RuleWithoutPlacement", path, rule=rule.name)
    if rule.workload_selector != Selector():
        where = f"{path}.workloadSelector"
        yield finding(policy, "info", "LabelChoosesRule", where, rule=rule.name)
    mode = rule.mode or policy.spec.mode
    if rule.mode is not None and mode != "enforce":
        yield finding(policy, "info", "NotEnforcing", f"{path}.mode", mode=mode)


def _spec(policy: Policy) -> Iterator[LintFinding]:
    spec = policy.spec
    if spec.mode != "enforce":
        yield finding(policy, "info", "NotEnforcing", "spec.mode", mode=spec.mode)
    if "Pod" not in spec.workloads:
        yield finding(policy, "warning", "PodsNotJudged", "spec.workloads")
    for index, kind in enumerate(spec.quota.waiting_kinds):
        if kind not in spec.workloads:
            yield finding(policy, "warning", "WaitingKindNotJudged", f"spec.quota.waitingKinds[{index}]", kind=kind)
    if not spec.gpu_resources and spec.applies_to == "gpuWorkloads":
        yield finding(policy, "error", "NoGpuResources", "spec.gpuResources")
    for index, pattern in enumerate(spec.gpu_resources):
        if "/" not in pattern:
            where = f"spec.gpuResources[{index}]"
            yield finding(policy, "warning", "NotAnExtendedResource", where, resource=pattern)
