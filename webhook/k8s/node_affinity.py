"""Node selection: on which nodes a pod may run, how a requirement is ANDed in, and what one label can still be.

`nodeSelector` is ANDed with the required node affinity; the terms of the latter are ORed, their parts ANDed (N1).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from webhook.k8s.names import label_value_problem, qualified_name_problem
from webhook.k8s.objects import NodeSelectorRequirement, NodeSelectorTerm, PodSpec

NodeLookup = Callable[[str], Mapping[str, str] | None]
"""Node name -> its labels, None if the node is not known."""

_INT64 = range(-(2**63), 2**63)


# -- one node ---------------------------------------------------------------------------------------------------------


def matches(spec: PodSpec, node_name: str, labels: Mapping[str, str] | None) -> bool:
    """Whether nodeSelector and required node affinity allow a pod on a node (N1-N5)."""
    labels = labels or {}
    if spec.node_selector and any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    terms = required_terms(spec)
    return terms is None or any(term_matches(term, node_name, labels) for term in terms)


def allowed_nodes(spec: PodSpec, nodes: Mapping[str, Mapping[str, str]]) -> set[str]:
    """The names of the nodes, given as name -> labels, on which the pod may run."""
    return {name for name, labels in nodes.items() if matches(spec, name, labels)}


def required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...] | None:
    """The terms of the required node affinity; None without one, () where its list is null or empty (N9)."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return None
    return affinity.required.node_selector_terms or ()


def term_matches(term: NodeSelectorTerm, node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether one term allows a node; an empty term allows none (N2), one that cannot be parsed neither (N4)."""
    if is_empty(term) or term_problem(term):
        return False
    return all(requirement_matches(each, labels) for each in term.match_expressions or ()) and all(
        field_matches(each, node_name) for each in term.match_fields or ()
    )


def is_empty(term: NodeSelectorTerm) -> bool:
    """Whether a term has neither expressions nor fields, and so matches no node (N2)."""
    return not term.match_expressions and not term.match_fields


def requirement_matches(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy one expression; keys and values are compared byte for byte (N3, N20)."""
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
        case "Gt" | "Lt":
            return _compares(requirement, value)
    return False


def field_matches(requirement: NodeSelectorRequirement, node_name: str) -> bool:
    """Whether a node's name satisfies one matchFields entry: In or NotIn with exactly one value (N5)."""
    if requirement.key != "metadata.name" or len(requirement.values or ()) != 1:
        return False
    named = node_name in (requirement.values or ())
    return named if requirement.operator == "In" else not named and requirement.operator == "NotIn"


def term_problem(term: NodeSelectorTerm) -> str | None:
    """Why the scheduler cannot parse a term, which then matches nothing; None if it can (N4, N5)."""
    for requirement in term.match_expressions or ():
        if problem := _expression_problem(requirement):
            return problem
    for requirement in term.match_fields or ():
        if requirement.operator not in ("In", "NotIn"):
            return f"{requirement.operator!r} is not a valid node field selector operator"
        if len(requirement.values or ()) != 1:
            return "must have one element"
    return None


def _expression_problem(requirement: NodeSelectorRequirement) -> str | None:
    values = requirement.values or ()
    match requirement.operator:
        case "In" | "NotIn":
            if not values:
                return "for 'in', 'notin' operators, values set can't be empty"
        case "Exists" | "DoesNotExist":
            if values:
                return "values set must be empty for exists and does not exist"
        case "Gt" | "Lt":
            if len(values) != 1:
                return "for 'Gt', 'Lt' operators, exactly one value is required"
            if _int64(values[0]) is None:
                return "for 'Gt', 'Lt' operators, the value must be an integer"
        case operator:
            return f"{operator!r} is not a valid node selector operator"
    if problem := qualified_name_problem(requirement.key):
        return problem
    return next((problem for value in values if (problem := label_value_problem(value))), None)


def _compares(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    bound = _int64(requirement.values[0]) if requirement.values and len(requirement.values) == 1 else None
    number = _int64(value) if value is not None else None
    if bound is None or number is None:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound


def _int64(text: str) -> int | None:
    """The number if `text` is a decimal int64 as Go parses it: a sign and leading zeros are fine, blanks are not."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 100:
        return None
    number = int(text)
    return number if number in _INT64 else None


# -- adding a requirement ---------------------------------------------------------------------------------------------


class TermEdit(NamedTuple):
    """A term that must get the requirement; without `has_expressions` its matchExpressions list must be made (N8)."""

    term: int
    """Its index in nodeSelectorTerms."""
    has_expressions: bool


class Edits(NamedTuple):
    """What has to be done so that `key In values` holds for the pod, in no patch language.

    absent: there is no required affinity, make one. append: AND it into the listed terms (N6). satisfied: every
    non-empty term has it already (N10). invalid: the term list is null or empty, leave it for API validation (N9).
    never: all terms are empty, the pod can never be scheduled, leave it (N7).
    """

    state: Literal["absent", "append", "satisfied", "invalid", "never"]
    terms: tuple[TermEdit, ...] = ()


def edits_for(spec: PodSpec, key: str, values: Iterable[str]) -> Edits:
    """Which terms of the required node affinity need `key In values` so that it holds on every branch (N6-N10)."""
    terms = required_terms(spec)
    if terms is None:
        return Edits("absent")
    if not terms:
        return Edits("invalid")
    live = [(index, term) for index, term in enumerate(terms) if not is_empty(term)]
    if not live:
        return Edits("never")
    wanted = frozenset(values)
    missing = tuple(
        TermEdit(index, bool(term.match_expressions)) for index, term in live if not _requires(term, key, wanted)
    )
    return Edits("append", missing) if missing else Edits("satisfied")


def _requires(term: NodeSelectorTerm, key: str, values: frozenset[str]) -> bool:
    """Whether a term already has `key In values`, in any order of the values; a narrower set is another one (N10)."""
    return any(
        each.key == key and each.operator == "In" and frozenset(each.values or ()) == values
        for each in term.match_expressions or ()
    )


# -- what a label can still be ----------------------------------------------------------------------------------------


def possible_values(spec: PodSpec, key: str, allowed: Iterable[str], labels_of: NodeLookup | None = None) -> set[str]:
    """Those of `allowed` that the label `key` of the pod's node can still have, decided by logic (B16).

    A value is possible if nodeSelector agrees and one non-empty, parsable term does; other keys are taken as
    satisfiable. With `labels_of`, a term that names its node counts only for what that node really carries (B11); an
    unknown node is given the benefit of the doubt. A null or empty term list constrains nothing here: API validation
    refuses it in its own words (N9).
    """
    pinned = (spec.node_selector or {}).get(key)
    values = {value for value in allowed if pinned in (None, value)}
    terms = required_terms(spec)
    if not terms:
        return values
    live = [term for term in terms if not is_empty(term) and term_problem(term) is None]
    return {value for value in values if any(_allows(term, key, value, labels_of) for term in live)}


def _allows(term: NodeSelectorTerm, key: str, value: str, labels_of: NodeLookup | None) -> bool:
    on_key = (each for each in term.match_expressions or () if each.key == key)
    if not all(requirement_matches(each, {key: value}) for each in on_key):
        return False
    if labels_of is None:
        return True
    return all(_node_carries(each, term, key, value, labels_of) for each in term.match_fields or ())


def _node_carries(
    field: NodeSelectorRequirement, term: NodeSelectorTerm, key: str, value: str, labels_of: NodeLookup
) -> bool:
    if field.key != "metadata.name" or field.operator != "In" or not field.values:
        return True
    labels = labels_of(field.values[0])
    return labels is None or (labels.get(key) == value and term_matches(term, field.values[0], labels))
