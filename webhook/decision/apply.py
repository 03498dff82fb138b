"""Apply a rule to a pod spec: the class, pools and tolerations it gets, and what of the user's own is against it."""

from collections.abc import Mapping, Sequence

import msgspec

from webhook.decision import placement
from webhook.decision.finding import Note, Notes
from webhook.decision.injected import Injected
from webhook.decision.placement import Placement
from webhook.k8s import node_affinity
from webhook.k8s.node_affinity import NodeLookup
from webhook.k8s.objects import NodeSelectorRequirement, PodSpec, PriorityClass
from webhook.language import Tell
from webhook.policy.model import Rule

_POOL_CODES = frozenset({"PoolConflict", "NodeNameOutsidePool"})


class Context(msgspec.Struct, frozen=True):
    """What a rule is applied with: how it is told, and what the cluster knows."""

    rule: Rule
    pool_label: str
    tell: Tell
    classes: Mapping[str, PriorityClass] | None
    labels_of: NodeLookup
    class_chosen: bool | None


def conflicts(spec: PodSpec, path: str, own: Placement, context: Context) -> list[Note]:
    """What of the user's own placement (`own`: without what we injected) excludes the rule's.

    `path` is where the pod spec lies, dotted, for the message. Each Note is worded as a denial; whether it denies is
    the engine's matter (controllers, H21, `keep`).
    """
    found = []
    if own.priority_class and (conflict := _class_conflict(path, own, context)):
        found.append(conflict)
    if (spec.node_selector or own.terms is not None) and (conflict := _pool_conflict(spec, path, own, context)):
        found.append(conflict)
    return found


def apply_rule(
    before: Placement, own: Placement, context: Context, kept: set[str], notes: Notes
) -> tuple[Placement, Injected]:
    """The placement that the rule wants, and the record of what it added.

    `before` is what the object holds, `own` the same without what we had injected earlier. Conflicts whose code is in
    `kept` are left as they are.
    """
    rule = context.rule
    name = _class_to_inject(before, own, context, "PriorityConflict" in kept, notes) or own.priority_class
    placed = own
    if rule.pools and kept.isdisjoint(_POOL_CODES):
        placed = placement.with_pools(own, context.pool_label, rule.pools)
    added = placement.missing_tolerations(own, rule.tolerations) if rule.tolerations else ()
    after = Placement(name, placed.terms, (*own.tolerations, *added))
    new_class = name if name != own.priority_class else None
    return after, Injected(rule.name, new_class, None if placed is own else rule.pools, added or None)


# -- priority ---------------------------------------------------------------------------------------------------------


def user_class(own: Placement, context: Context) -> str | None:
    """The class that the user chose; one that the Priority plugin filled in from a globalDefault is none (O2)."""
    name = own.priority_class
    known = (context.classes or {}).get(name) if name else None
    if known is not None and known.global_default and not context.class_chosen:
        return None
    return name


def _class_conflict(path: str, own: Placement, context: Context) -> Note | None:
    rule, chosen = context.rule, user_class(own, context)
    if rule.priority_class_name is None or chosen is None:
        return None
    allowed = (rule.priority_class_name, *rule.allowed_priority_classes)
    if chosen in allowed:
        return None
    listed = context.tell("or").join(allowed)
    fix = "class_conflict_fix" if len(allowed) > 1 else "class_conflict_fix_one"
    return Note(
        "PriorityConflict",
        context.tell("class_conflict", wants=chosen, allowed=listed),
        rows=(
            ("field", f"{path}.priorityClassName"),
            ("fix", context.tell(fix, default=rule.priority_class_name, allowed=listed)),
        ),
    )


def _class_to_inject(before: Placement, own: Placement, context: Context, kept: bool, notes: Notes) -> str | None:
    """The class the pod shall have, None to leave what `own` says; never a class that would break the pod (P7)."""
    rule, chosen = context.rule, user_class(own, context)
    wanted = rule.priority_class_name
    if wanted is None:
        return None
    if chosen is not None and (kept or chosen in (wanted, *rule.allowed_priority_classes)):
        return None
    if context.classes is None:
        notes.add("FactsUnknown", context.tell("facts_unknown_classes"), "warn")
        return before.priority_class
    if wanted not in context.classes:
        notes.add("PriorityClassMissing", context.tell("class_missing", name=wanted), "warn")
        return before.priority_class
    if chosen is not None:
        notes.add("PriorityConflict", context.tell("class_overridden", wants=chosen, name=wanted), "warn")
    return wanted


# -- pools ------------------------------------------------------------------------------------------------------------


def _pool_conflict(spec: PodSpec, path: str, own: Placement, context: Context) -> Note | None:
    pools = context.rule.pools
    if not pools:
        return None
    if node_affinity.is_possible(spec.node_selector, own.terms, context.pool_label, pools, context.labels_of):
        return None
    allowed = context.tell("or").join(pools)
    field, wants = _pool_wish(spec, path, own, context)
    if wants is None:
        return _pinned_conflict(field, own, allowed, context)
    fix = context.tell("pool_conflict_fix", label=context.pool_label, field=field, allowed=allowed)
    headline = context.tell("pool_conflict", wants=wants, allowed=allowed)
    return Note("PoolConflict", headline, rows=(("field", field), ("fix", fix)))


def _pool_wish(spec: PodSpec, path: str, own: Placement, context: Context) -> tuple[str, str | None]:
    """Where the user names a pool, and what they say there; None if only node names exclude the pools."""
    label, pools = context.pool_label, context.rule.pools or ()
    selected = (spec.node_selector or {}).get(label)
    if selected is not None and selected not in pools:
        return f"{path}.nodeSelector", f"{label}={selected}"
    terms = [_term_wish(term.match_expressions or (), context) for term in own.terms or ()]
    wishes = [wish for wish in terms if wish]
    wish = context.tell("or").join(dict.fromkeys(wishes)) or None
    if wish is not None and selected is not None:
        wish = context.tell("and").join((f"{label}={selected}", wish))
    return f"{path}.affinity.nodeAffinity", wish


def _term_wish(expressions: Sequence[NodeSelectorRequirement], context: Context) -> str:
    parts = []
    for each in expressions:
        if each.key == context.pool_label:
            values = f" [{', '.join(each.values)}]" if each.values else ""
            parts.append(f"{each.key} {each.operator}{values}")
    return context.tell("and").join(parts)


def _pinned_conflict(field: str, own: Placement, allowed: str, context: Context) -> Note:
    """Every term names a node outside the pools (B11)."""
    names = [(each.values or ("",))[0] for term in own.terms or () for each in term.match_fields or () if _pins(each)]
    pools = {name: labels.get(context.pool_label) for name in names if (labels := context.labels_of(name)) is not None}
    outside = [name for name, pool in pools.items() if pool not in (context.rule.pools or ())]
    node = (outside or list(pools))[0]
    pool = pool_text(pools[node], context)
    headline = context.tell("pool_conflict_name", node=node, pool=pool, allowed=allowed)
    fix = context.tell("pool_conflict_name_fix", field=field, allowed=allowed)
    return Note("PoolConflict", headline, rows=(("field", field), ("fix", fix)))


def _pins(field: NodeSelectorRequirement) -> bool:
    return field.key == "metadata.name" and field.operator == "In" and bool(field.values)


def pool_text(pool: str | None, context: Context) -> str:
    return context.tell("pool_named", pool=pool) if pool else context.tell("pool_none")


def node_name_problem(field: str, node: str, labels: Mapping[str, str], context: Context) -> Note | None:
    """`spec.nodeName` skips the scheduler but not the kubelet, which would fail the pod (N17)."""
    pools = context.rule.pools
    pool = labels.get(context.pool_label)
    if not pools or pool in pools:
        return None
    allowed = context.tell("or").join(pools)
    return Note(
        "NodeNameOutsidePool",
        context.tell("node_outside", node=node, pool=pool_text(pool, context), allowed=allowed),
        rows=(("field", field), ("fix", context.tell("node_outside_fix", field=field, allowed=allowed))),
    )
