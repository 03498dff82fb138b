"""Which rule applies to a namespace, and why the others do not."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from webhook.k8s import selectors
from webhook.language import Language, say
from webhook.policy.active import Policy
from webhook.policy.model import Rule, Selector

State = Literal["applies", "depends", "later", "no"]


class RuleAnswer(msgspec.Struct, frozen=True):
    """What a rule has to do with a namespace.

    `applies`: it judges the namespace's workloads; `depends`: those whose pod labels it asks for; `later`: it matches
    too, but an earlier rule comes first; `no`: its namespaceSelector does not match, and `why` says where.
    """

    rule: str
    state: State
    why: str


class Which(msgspec.Struct, frozen=True):
    """The answer for a namespace. `note` says why no rule can apply whatever it matches, else it is empty."""

    namespace: str
    labels: dict[str, str]
    rules: tuple[RuleAnswer, ...]
    note: str = ""

    @property
    def is_covered(self) -> bool:
        """Whether some rule applies to some workload of the namespace."""
        return not self.note and any(each.state in ("applies", "depends") for each in self.rules)


def which(policy: Policy, namespace: str, labels: Mapping[str, str], namespace_label: str) -> Which:
    """Go through the rules in order, as `decide` does; `namespace_label` is what the registration asks for."""
    language = policy.spec.language
    note = ""
    if namespace in policy.never_judged:
        note = say(language, "which.never_judged", namespace=namespace)
    elif namespace_label not in labels:
        note = say(language, "which.not_sent", namespace=namespace, label=namespace_label)
    answers: list[RuleAnswer] = []
    taken = ""
    for active in policy.rules:
        rule = active.rule
        if not active.matches_namespace(labels):
            answers.append(RuleAnswer(rule.name, "no", _mismatch(rule.namespace_selector, labels, language)))
        elif taken:
            answers.append(RuleAnswer(rule.name, "later", say(language, "which.later", earlier=taken)))
        elif rule.workload_selector != Selector():
            answers.append(RuleAnswer(rule.name, "depends", _asks(rule, language)))
        else:
            taken = rule.name
            answers.append(RuleAnswer(rule.name, "applies", _does(rule, policy)))
    return Which(namespace, dict(labels), tuple(answers), note)


def _mismatch(selector: Selector, labels: Mapping[str, str], language: Language) -> str:
    """Every part of the selector that the labels do not satisfy."""
    parts = []
    for key, value in selector.match_labels.items():
        if labels.get(key) != value:
            parts.append(_label(key, labels, value, language))
    for part in selector.match_expressions:
        wants = f"{part.operator} {', '.join(part.values)}".strip()
        alone = Selector(match_expressions=(part,)).as_label_selector()
        if not selectors.matches(alone, labels):
            parts.append(_label(part.key, labels, wants, language))
    return "; ".join(parts)


def _label(key: str, labels: Mapping[str, str], wants: str, language: Language) -> str:
    if key not in labels:
        return say(language, "which.label_missing", label=key, wants=wants)
    return say(language, "which.label", label=key, has=labels[key], wants=wants)


def _asks(rule: Rule, language: Language) -> str:
    selector = rule.workload_selector
    parts = [f"{key}={value}" for key, value in selector.match_labels.items()]
    parts += [f"{part.key} {part.operator} {','.join(part.values)}".strip() for part in selector.match_expressions]
    return say(language, "which.depends", labels=", ".join(parts))


def _does(rule: Rule, policy: Policy) -> str:
    parts = [f"mode {rule.mode or policy.spec.mode}"]
    if rule.priority_class_name:
        parts.append(f"priorityClassName {rule.priority_class_name}")
    if rule.pools:
        parts.append(f"pools {', '.join(rule.pools)}")
    return "; ".join(parts)
