"""What a rule adds to a pod spec: the patch, the record of it, and how it is told."""

from collections.abc import Mapping
from functools import lru_cache

import msgspec
from msgspec import UNSET

from webhook.decision import apply, injected, placement
from webhook.decision.apply import Context
from webhook.decision.finding import Note, Notes
from webhook.decision.injected import Injected
from webhook.decision.placement import Placement
from webhook.decision.result import PatchOperation
from webhook.k8s import workloads
from webhook.k8s.objects import PodSpec, PriorityClass
from webhook.k8s.workloads import WorkloadKind
from webhook.language import Language, teller
from webhook.policy.model import Rule, Selector, Spec


class Injection(msgspec.Struct, frozen=True):
    """An addition worked out. `text` is the record as it is annotated, "" where nothing was added.

    `pools` are those that pods are sent to by it, () where the affinity stays as it was.
    """

    priority_class: str | None
    record: Injected
    text: str
    pools: tuple[str, ...]
    patch: tuple[PatchOperation, ...]
    notes: tuple[Note, ...]


def injection(
    row: WorkloadKind,
    spec: PodSpec,
    before: Placement,
    own: Placement,
    context: Context,
    kept: set[str],
    notes: Notes,
) -> Injection:
    """What the rule adds to a pod spec; if only the order of things would change, nothing is patched.

    For the arguments see `apply.apply_rule`.
    """
    after, record = apply.apply_rule(before, own, context, kept, notes)
    if placement.same(before, after):
        after = before
    return Injection(
        priority_class=after.priority_class,
        record=record,
        text="" if record.is_empty else injected.text(record),
        pools=(record.pools or ()) if after.terms != before.terms else (),
        patch=tuple(placement.patch(row.pod_spec, spec, before, after)),
        notes=tuple(_told(before, after, record, context)),
    )


def usual(
    row: WorkloadKind, spec: PodSpec, rule: Rule, policy: Spec, classes: Mapping[str, PriorityClass] | None
) -> Injection | None:
    """`injection` for an author who chose no class and no node, as most do; None where it takes a closer look.

    It is the same for every such pod spec, and so worked out once; nothing that a client wrote is kept with it.
    """
    if spec.priority_class_name or spec.affinity is not None or spec.node_selector or spec.node_name:
        return None
    if rule.tolerations or (rule.priority_class_name and rule.priority_class_name not in (classes or ())):
        return None
    derived = (spec.priority is not UNSET, spec.preemption_policy is not UNSET)
    return _usual(
        rule.name, rule.priority_class_name, rule.pools, policy.pool_label, policy.language, row.kind, derived
    )


@lru_cache(maxsize=1024)
def _usual(
    name: str,
    priority_class: str | None,
    pools: tuple[str, ...] | None,
    label: str,
    language: Language,
    kind: str,
    derived: tuple[bool, bool],
) -> Injection:
    rule = Rule(name=name, namespace_selector=Selector(), priority_class_name=priority_class, pools=pools)
    context = Context(
        rule=rule,
        pool_label=label,
        tell=teller(language, "decision"),
        classes={priority_class: PriorityClass()} if priority_class else {},
        labels_of=lambda node: None,
        class_chosen=None,
    )
    has_priority, has_policy = derived
    spec = PodSpec(priority=0 if has_priority else UNSET, preemption_policy="" if has_policy else UNSET)
    nothing = placement.of(spec)
    return injection(workloads.KINDS[kind], spec, nothing, nothing, context, set(), Notes())


def _told(before: Placement, after: Placement, record: Injected, context: Context) -> list[Note]:
    told: list[Note] = []
    if after.priority_class != before.priority_class and record.priority_class:
        told.append(Note("PriorityInjected", context.tell("class_injected", name=record.priority_class)))
    if after.terms != before.terms and record.pools:
        pools = ", ".join(record.pools)
        told.append(Note("PoolInjected", context.tell("pool_injected", label=context.pool_label, pools=pools)))
    if after.tolerations != before.tolerations and record.tolerations:
        keys = ", ".join(each.key or "*" for each in record.tolerations)
        told.append(Note("TolerationInjected", context.tell("toleration_injected", taint=keys)))
    return told
