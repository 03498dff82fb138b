"""Node selection: on which nodes a pod may run, how a requirement is ANDed in, and what one label can still be.

`nodeSelector` is ANDed with the required node affinity; the terms of the latter are ORed, their parts ANDed (N1).
"""

from collections.abc import Callable, Mapping, Sequence

from webhook.k8s.names import label_value_problem, qualified_name_problem
from webhook.k8s.objects import NodeSelectorRequirement, NodeSelectorTerm, PodSpec
from webhook.k8s.selectors import satisfied

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
    if requirement.operator in ("Gt", "Lt"):
        return _compares(requirement, labels.get(requirement.key))
    return satisfied(requirement, labels)


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


def equal(one: NodeSelectorRequirement, other: NodeSelectorRequirement) -> bool:
    """Whether two requirements are the same, whatever the order of their values (N10)."""
    return one.key == other.key and one.operator == other.operator and set(one.values or ()) == set(other.values or ())


def demands(term: NodeSelectorTerm, wanted: NodeSelectorRequirement) -> bool:
    """Whether a term already holds an equal requirement; a narrower one is another one (N10)."""
    return any(equal(each, wanted) for each in term.match_expressions or ())


def anded(terms: tuple[NodeSelectorTerm, ...] | None, wanted: NodeSelectorRequirement) -> tuple[NodeSelectorTerm, ...]:
    """Required terms with `wanted` ANDed in: into every term that is not empty, never as a term of its own (N6, N7).

    None means that there is no required affinity: one term is made. Terms that can match nothing (none at all, or only
    empty ones) are left for API validation, or for the author (N2, N9).
    """
    if terms is None:
        return (NodeSelectorTerm((wanted,)),)
    return tuple(
        term
        if is_empty(term) or demands(term, wanted)
        else NodeSelectorTerm((*(term.match_expressions or ()), wanted), term.match_fields)
        for term in terms
    )


# -- what a label can still be ----------------------------------------------------------------------------------------


def is_possible(
    node_selector: Mapping[str, str] | None,
    terms: tuple[NodeSelectorTerm, ...] | None,
    key: str,
    values: Sequence[str],
    labels_of: NodeLookup,
) -> bool:
    """Whether the pod's node can carry one of `values` as label `key`, as far as that key and node names tell.

    Decided by logic (B16): a value stays possible if nodeSelector agrees and some term does that is neither empty nor
    a parse error; other keys are taken as satisfiable. Terms pinned to a node by name count only for what that node
    carries (B11); an unknown node is given the benefit. Terms that match nothing for other reasons rule nothing out.
    """
    if not node_selector and not terms:
        return bool(values)
    pinned = (node_selector or {}).get(key)
    candidates = [value for value in values if pinned is None or value == pinned]
    live = [term for term in terms or () if not is_empty(term) and not term_problem(term)]
    if not live:
        return bool(candidates)
    return any(_allows(term, key, value, labels_of) for term in live for value in candidates)


def _allows(term: NodeSelectorTerm, key: str, value: str, labels_of: NodeLookup) -> bool:
    on_key = (each for each in term.match_expressions or () if each.key == key)
    if not all(requirement_matches(each, {key: value}) for each in on_key):
        return False
    return all(_field_allows(each, key, value, labels_of) for each in term.match_fields or ())


def _field_allows(each: NodeSelectorRequirement, key: str, value: str, labels_of: NodeLookup) -> bool:
    if each.key != "metadata.name" or each.operator != "In" or not each.values:
        return True
    labels = labels_of(each.values[0])
    return labels is None or labels.get(key) == value
