"""Label selectors: do they match, and would Kubernetes accept them at all."""

from collections.abc import Callable, Iterator, Mapping

from webhook.k8s.names import label_value_problem, qualified_name_problem
from webhook.k8s.objects import LabelSelector, LabelSelectorRequirement, NodeSelectorRequirement

_NEEDS_VALUES = ("In", "NotIn")
_FORBIDS_VALUES = ("Exists", "DoesNotExist")


def matches(selector: LabelSelector | None, labels: Mapping[str, str] | None) -> bool:
    """Whether `labels` satisfy every part of `selector`; null selects nothing, an empty selector everything.

    A requirement with an unknown operator matches nothing: `problems` says so beforehand.
    """
    if selector is None:
        return False
    labels = labels or {}
    if selector.match_labels and any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(satisfied(requirement, labels) for requirement in selector.match_expressions or ())


def compiled(selector: LabelSelector) -> Callable[[Mapping[str, str]], bool]:
    """`matches` for a selector that is asked often: what most are made of, one label or none, costs one look-up."""
    only = only_label(selector)
    if only is not None:
        key, value = only
        return lambda labels: labels.get(key) == value
    if selector.match_labels or selector.match_expressions:
        return lambda labels: matches(selector, labels)
    return lambda labels: True


def only_label(selector: LabelSelector) -> tuple[str, str] | None:
    """Key and value, if one label is all that a selector asks for."""
    wanted = [*(selector.match_labels or {}).items()]
    return wanted[0] if len(wanted) == 1 and not selector.match_expressions else None


def problems(selector: LabelSelector) -> list[str]:
    """What API validation would say about `selector`, one line per problem, each opening with the field."""
    return [*_label_problems(selector), *_expression_problems(selector)]


def satisfied(requirement: LabelSelectorRequirement | NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy one requirement by the operators that all selectors share, byte for byte (N3, N20)."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in (requirement.values or ())
        case "NotIn":
            return value is None or value not in (requirement.values or ())
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def _label_problems(selector: LabelSelector) -> Iterator[str]:
    for key, value in (selector.match_labels or {}).items():
        if problem := qualified_name_problem(key):
            yield f"matchLabels: key {key!r}: {problem}"
        if problem := label_value_problem(value):
            yield f"matchLabels.{key}: value {value!r}: {problem}"


def _expression_problems(selector: LabelSelector) -> Iterator[str]:
    for index, requirement in enumerate(selector.match_expressions or ()):
        field = f"matchExpressions[{index}]"
        if problem := qualified_name_problem(requirement.key):
            yield f"{field}.key: {requirement.key!r}: {problem}"
        if requirement.operator in _NEEDS_VALUES and not requirement.values:
            yield f"{field}.values: must be specified when `operator` is 'In' or 'NotIn'"
        elif requirement.operator in _FORBIDS_VALUES and requirement.values:
            yield f"{field}.values: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        elif requirement.operator not in _NEEDS_VALUES + _FORBIDS_VALUES:
            yield f"{field}.operator: {requirement.operator!r} is not a valid selector operator"
        for value in requirement.values or ():
            if problem := label_value_problem(value):
                yield f"{field}.values: {value!r}: {problem}"
