"""Where a pod may run and with which class: the three fields we may change, as a value that can be compared.

A Placement is what a PodSpec says of class, required node affinity and tolerations, apart from everything else in it.
Rules are applied to placements; a patch is the difference between two of them (`patch`).
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from webhook.decision.result import PatchOperation
from webhook.k8s import node_affinity
from webhook.k8s.objects import NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration
from webhook.policy.model import Toleration as PolicyToleration

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Placement(msgspec.Struct, frozen=True):
    """`terms` is None without a required node affinity and () where its list is null or empty (N9)."""

    priority_class: str | None = None
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


def of(spec: PodSpec) -> Placement:
    """What a pod spec says of its placement."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    terms = None if required is None else required.node_selector_terms or ()
    return Placement(spec.priority_class_name or None, terms, spec.tolerations or ())


def same(one: Placement, other: Placement) -> bool:
    """Whether two placements mean the same: the order of expressions, values and tolerations is ignored (N10)."""
    return one == other or (
        one.priority_class == other.priority_class
        and _canonical_terms(one.terms) == _canonical_terms(other.terms)
        and sorted(map(repr, one.tolerations)) == sorted(map(repr, other.tolerations))
    )


def _canonical_terms(terms: tuple[NodeSelectorTerm, ...] | None) -> Any:
    if terms is None:
        return None
    return [(_canonical(term.match_expressions), _canonical(term.match_fields)) for term in terms]


def _canonical(requirements: tuple[NodeSelectorRequirement, ...] | None) -> list[Any]:
    return sorted((each.key, each.operator, sorted(each.values or ())) for each in requirements or ())


# -- pools ------------------------------------------------------------------------------------------------------------


def requirement(label: str, pools: Sequence[str]) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(label, "In", tuple(pools))


def with_pools(placement: Placement, label: str, pools: Sequence[str]) -> Placement:
    """AND the pools into the required affinity (N6-N10)."""
    terms = node_affinity.anded(placement.terms, requirement(label, pools))
    return placement if terms == placement.terms else msgspec.structs.replace(placement, terms=terms)


def without_pools(placement: Placement, label: str, pools: Sequence[str]) -> Placement:
    """Take an injected pool requirement away again, with the affinity that held nothing else (DESIGN 5.7).

    We make a term of our own only where there was none; among several terms, one that is the requirement and nothing
    else was the user's before us (B16), and stays.
    """
    injected = requirement(label, pools)
    if placement.terms is None or not any(node_affinity.demands(term, injected) for term in placement.terms):
        return placement
    terms = []
    for term in placement.terms:
        kept = tuple(each for each in term.match_expressions or () if not node_affinity.equal(each, injected))
        if kept or term.match_fields or not term.match_expressions:
            terms.append(NodeSelectorTerm(kept or None, term.match_fields))
        elif len(placement.terms) > 1:
            terms.append(term)
    return msgspec.structs.replace(placement, terms=tuple(terms) or None)


# -- tolerations ------------------------------------------------------------------------------------------------------


def missing_tolerations(placement: Placement, wanted: Sequence[PolicyToleration]) -> tuple[Toleration, ...]:
    """Those of the wanted tolerations that none which is there covers."""
    added: list[Toleration] = []
    for each in wanted:
        toleration = Toleration(each.key, each.operator, each.value, each.effect, each.toleration_seconds)
        if not any(covers(present, toleration) for present in (*placement.tolerations, *added)):
            added.append(toleration)
    return tuple(added)


def covers(present: Toleration, wanted: Toleration) -> bool:
    """Whether whatever `wanted` tolerates, `present` tolerates for at least as long."""
    if present.effect and present.effect != wanted.effect:
        return False
    if present.toleration_seconds is not None and (
        wanted.toleration_seconds is None or present.toleration_seconds < wanted.toleration_seconds
    ):
        return False
    if present.operator == "Exists":
        return not present.key or present.key == wanted.key
    return wanted.operator != "Exists" and present.key == wanted.key and present.value == wanted.value


# -- patches ----------------------------------------------------------------------------------------------------------


def patch(
    path: str, spec: PodSpec, before: Placement, after: Placement, like: PodSpec | None = None
) -> list[PatchOperation]:
    """The operations that turn the placement of the pod spec at JSON pointer `path` from `before` into `after`.

    Every removal is guarded by presence, and `add` goes to the deepest parent that exists (V20, N9). With `like`, the
    pod spec that is to come out, a parent that it does not have goes with what was in it.
    """
    operations: list[PatchOperation] = []
    if after.priority_class != before.priority_class:
        operations += _class_patch(path, spec, after.priority_class)
    if after.terms != before.terms:
        operations.append(_terms_patch(path, spec, after.terms, like))
    if after.tolerations != before.tolerations:
        operations += _tolerations_patch(path, before.tolerations, after.tolerations)
    return operations


def _class_patch(path: str, spec: PodSpec, name: str | None) -> list[PatchOperation]:
    """A class and the two fields that the Priority plugin derives from it change together (P4, P5, P7, P11)."""
    operations = []
    if spec.priority is not UNSET:
        operations.append(PatchOperation("remove", f"{path}/priority"))
    if spec.preemption_policy is not UNSET:
        operations.append(PatchOperation("remove", f"{path}/preemptionPolicy"))
    if name is None:
        operations.append(PatchOperation("remove", f"{path}/priorityClassName"))
    else:
        operations.append(PatchOperation("add", f"{path}/priorityClassName", name))
    return operations


def _terms_patch(
    path: str, spec: PodSpec, terms: tuple[NodeSelectorTerm, ...] | None, like: PodSpec | None
) -> PatchOperation:
    required_path = f"{path}/affinity/nodeAffinity/{REQUIRED}"
    if terms is None:
        if like is not None and like.affinity is None:
            return PatchOperation("remove", f"{path}/affinity")
        if like is not None and like.affinity is not None and like.affinity.node_affinity is None:
            return PatchOperation("remove", f"{path}/affinity/nodeAffinity")
        return PatchOperation("remove", required_path)
    required = {"nodeSelectorTerms": msgspec.to_builtins(terms)}
    if spec.affinity is None:
        return PatchOperation("add", f"{path}/affinity", {"nodeAffinity": {REQUIRED: required}})
    if spec.affinity.node_affinity is None:
        return PatchOperation("add", f"{path}/affinity/nodeAffinity", {REQUIRED: required})
    return PatchOperation("add", required_path, required)


def _tolerations_patch(
    path: str, before: tuple[Toleration, ...], after: tuple[Toleration, ...]
) -> list[PatchOperation]:
    if not after:
        return [PatchOperation("remove", f"{path}/tolerations")]
    if before and after[: len(before)] == before:
        return [
            PatchOperation("add", f"{path}/tolerations/-", msgspec.to_builtins(each)) for each in after[len(before) :]
        ]
    return [PatchOperation("add", f"{path}/tolerations", msgspec.to_builtins(after))]
