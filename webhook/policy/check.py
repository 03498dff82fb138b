"""What no policy may say whatever the cluster is: errors that types alone cannot see."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from webhook.k8s.names import label_value_problem, qualified_name_problem
from webhook.language import Language, say
from webhook.policy.model import Exemption, GpuPolicy, GpuPricing, Rule, Selector, Spec, Toleration, duration_seconds
from webhook.policy.problem import Places, Problem
from webhook.policy.suite import GpuPolicyTest

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_MOST_SECONDS = 366 * 86400
"""Break-glass for more than a year is not an emergency; the limit also keeps its end inside the calendar."""

_Wrong = tuple[str, str, dict[str, Any]]
"""A path, the message's key, and the values of its placeholders."""


def check_policy(policy: GpuPolicy, places: Places, language: Language) -> list[Problem]:
    """All semantic errors of a policy whose types are right, in the order of the document."""
    return _problems(_spec(policy.spec), places, language)


def check_pricing(pricing: GpuPricing, places: Places, language: Language) -> list[Problem]:
    """All semantic errors of a price list."""
    return _problems(_pricing(pricing), places, language)


def check_tests(test: GpuPolicyTest, places: Places, language: Language) -> list[Problem]:
    """All semantic errors of a suite: names used twice, paths that are no JSON pointers."""
    wrongs = list(_unique("spec.cases", [case.name for case in test.spec.cases]))
    for index, case in enumerate(test.spec.cases):
        for pointer in case.expect.patched:
            if not pointer.startswith("/"):
                path = f"spec.cases[{index}].expect.patched[{pointer}]"
                wrongs.append((path, "not_a_pointer", {"value": pointer}))
    return _problems(wrongs, places, language)


def is_object_name(text: str) -> bool:
    """Whether Kubernetes takes it as the name of an object such as a PriorityClass (a DNS-1123 subdomain)."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def _problems(wrongs: Iterable[_Wrong], places: Places, language: Language) -> list[Problem]:
    return [Problem(*places[path], path, say(language, f"policy.{key}", **values)) for path, key, values in wrongs]


def _spec(spec: Spec) -> Iterator[_Wrong]:
    yield from _unique("spec.rules", [rule.name for rule in spec.rules])
    for index, rule in enumerate(spec.rules):
        yield from _rule(rule, f"spec.rules[{index}]")
    if reason := qualified_name_problem(spec.pool_label):
        yield "spec.poolLabel", "not_a_label_key", {"value": spec.pool_label, "reason": reason}
    for index, pattern in enumerate(spec.gpu_resources):
        if not _is_resource_pattern(pattern):
            yield f"spec.gpuResources[{index}]", "not_a_resource", {"value": pattern}
    if "\n" in spec.contact:
        yield "spec.contact", "several_lines", {}
    yield from _unique("spec.exemptions", [exemption.name for exemption in spec.exemptions])
    for index, exemption in enumerate(spec.exemptions):
        yield from _exemption(exemption, f"spec.exemptions[{index}]")
    yield from _max_age(spec.break_glass.max_age)
    for path, names in (
        ("spec.breakGlass.groups", spec.break_glass.groups),
        ("spec.trustedControllers", spec.trusted_controllers),
    ):
        yield from _empty_entries(path, names)


def _rule(rule: Rule, path: str) -> Iterator[_Wrong]:
    yield from _single_line(rule.name, f"{path}.name")
    yield from _selector(rule.namespace_selector, f"{path}.namespaceSelector")
    yield from _selector(rule.workload_selector, f"{path}.workloadSelector")
    if rule.priority_class_name is not None and not is_object_name(rule.priority_class_name):
        yield f"{path}.priorityClassName", "not_a_name", {"value": rule.priority_class_name}
    for index, name in enumerate(rule.allowed_priority_classes):
        if not is_object_name(name):
            yield f"{path}.allowedPriorityClasses[{index}]", "not_a_name", {"value": name}
    if rule.pools is not None and not rule.pools:
        yield f"{path}.pools", "no_pools", {}
    for index, pool in enumerate(rule.pools or ()):
        if not pool:
            yield f"{path}.pools[{index}]", "empty_text", {}
        elif reason := label_value_problem(pool):
            yield f"{path}.pools[{index}]", "not_a_label_value", {"value": pool, "reason": reason}
    for index, toleration in enumerate(rule.tolerations):
        yield from _toleration(toleration, f"{path}.tolerations[{index}]")


def _selector(selector: Selector, path: str) -> Iterator[_Wrong]:
    """As the API server validates a LabelSelector (apimachinery ValidateLabelSelector)."""
    for key, value in selector.match_labels.items():
        yield from _label(key, value, f"{path}.matchLabels[{key}]")
    for index, part in enumerate(selector.match_expressions):
        place = f"{path}.matchExpressions[{index}]"
        yield from _label(part.key, "", f"{place}.key")
        if part.operator in ("In", "NotIn") and not part.values:
            yield place, "values_needed", {"operator": part.operator}
        elif part.operator in ("Exists", "DoesNotExist") and part.values:
            yield f"{place}.values", "values_forbidden", {"operator": part.operator}
        for number, value in enumerate(part.values):
            yield from _label("", value, f"{place}.values[{number}]")


def _label(key: str, value: str, path: str) -> Iterator[_Wrong]:
    if key and (reason := qualified_name_problem(key)):
        yield path, "not_a_label_key", {"value": key, "reason": reason}
    if reason := label_value_problem(value):
        yield path, "not_a_label_value", {"value": value, "reason": reason}


def _toleration(toleration: Toleration, path: str) -> Iterator[_Wrong]:
    """As the API server validates a pod's tolerations (pkg/apis/core/validation ValidateTolerations)."""
    if toleration.key and (reason := qualified_name_problem(toleration.key)):
        yield f"{path}.key", "not_a_label_key", {"value": toleration.key, "reason": reason}
    if not toleration.key and toleration.operator != "Exists":
        yield path, "toleration_key", {}
    if toleration.operator == "Exists" and toleration.value:
        yield f"{path}.value", "toleration_value", {}
    elif reason := label_value_problem(toleration.value):
        yield f"{path}.value", "not_a_label_value", {"value": toleration.value, "reason": reason}
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield f"{path}.tolerationSeconds", "toleration_seconds", {}


def _exemption(exemption: Exemption, path: str) -> Iterator[_Wrong]:
    yield from _single_line(exemption.name, f"{path}.name")
    fields = {
        "users": exemption.users,
        "groups": exemption.groups,
        "serviceAccounts": exemption.service_accounts,
        "namespaces": exemption.namespaces,
    }
    if not any(fields.values()):
        yield path, "exempts_everybody", {"name": exemption.name}
    for name, values in fields.items():
        yield from _empty_entries(f"{path}.{name}", values)
    for index, account in enumerate(exemption.service_accounts):
        namespace, slash, name = account.partition("/")
        if account.strip() and not (slash and is_object_name(namespace) and is_object_name(name)):
            yield f"{path}.serviceAccounts[{index}]", "not_a_service_account", {"value": account}
    for index, namespace in enumerate(exemption.namespaces):
        if namespace.strip() and not is_object_name(namespace):
            yield f"{path}.namespaces[{index}]", "not_a_name", {"value": namespace}


def _max_age(text: str) -> Iterator[_Wrong]:
    try:
        good = 0 < duration_seconds(text) <= _MOST_SECONDS
    except ValueError:
        good = False
    if not good:
        yield "spec.breakGlass.maxAge", "bad_max_age", {"value": text}


def _pricing(pricing: GpuPricing) -> Iterator[_Wrong]:
    for index, entry in enumerate(pricing.spec.by_node_label):
        path = f"spec.byNodeLabel[{index}]"
        if reason := qualified_name_problem(entry.label):
            yield f"{path}.label", "not_a_label_key", {"value": entry.label, "reason": reason}
        if reason := label_value_problem(entry.value):
            yield f"{path}.value", "not_a_label_value", {"value": entry.value, "reason": reason}
        if not entry.price:
            yield f"{path}.price", "no_price", {}
        for resource in entry.price:
            if qualified_name_problem(resource):
                yield f"{path}.price[{resource}]", "not_a_resource", {"value": resource}


def _is_resource_pattern(pattern: str) -> bool:
    """A resource name, or the beginning of one before a `*`; `*` alone would make everything a GPU."""
    name = f"{pattern[:-1]}x" if pattern.endswith("*") else pattern
    return pattern != "*" and qualified_name_problem(name) is None


def _unique(path: str, names: Sequence[str]) -> Iterator[_Wrong]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{path}[{index}].name", "name_twice", {"name": name, "first": f"{path}[{names.index(name)}]"}


def _empty_entries(path: str, values: Iterable[str]) -> Iterator[_Wrong]:
    for index, value in enumerate(values):
        if not value.strip():
            yield f"{path}[{index}]", "empty_text", {}


def _single_line(text: str, path: str) -> Iterator[_Wrong]:
    if "\n" in text or "\t" in text:
        yield path, "several_lines", {}
