"""Who holds a namespace's quota now, who is about to, and which of it is on its way out: read from one fresh view.

`status.used` lags behind in both directions: pods of a Deployment that was just admitted are not in it yet, and pods
that are being deleted still are. This module turns pods and workloads into the two corrections, without counting
anything twice: existing pods are found by owner, and only what is still missing is a gap.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from webhook.decision.facts import Facts, Note, SeenWorkload
from webhook.k8s import limit_range, priority, quota, workloads
from webhook.k8s.objects import LimitRange, ObjectMeta, Pod, PriorityClass, Workload
from webhook.k8s.quota import PodUse

YOUNG = 15.0
"""Seconds for which pods that a workload still lacks count as taken."""
STORED = 2.0
"""Seconds after which an object that was admitted and is in no fresh read was never stored, or is gone again."""
GOING = 60.0
"""Seconds past its deletionTimestamp for which a pod counts as on its way out."""

Owner = tuple[str, str]
"""Kind and name of the workload at the top."""


class Waiting(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Pods that a workload wants and does not have; only those of a `young` one count as taken."""

    kind: str
    name: str
    pods: int
    use: PodUse
    young: bool = False
    admitted: bool = False
    """Whether this process admitted it a moment ago."""


class Occupancy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`pods` are the charged pods with their top owners, None if pods could not be read; `freeing` names those among
    them whose quota comes back because their owner is gone, going or shrinking."""

    waiting: tuple[Waiting, ...] = ()
    pods: tuple[PodUse, ...] | None = None
    freeing: tuple[str, ...] = ()


class Own(msgspec.Struct, frozen=True):
    """The object under judgement: its gap is what it wanted before this request, not what it asks for now."""

    kind: str
    name: str
    old_pods: int


def read(facts: Facts, namespace: str, own: Own, now: float) -> Occupancy:
    """The occupancy of a namespace as `facts` show it at `now` (epoch seconds)."""
    seen = facts.workloads(namespace)
    live = facts.pods(namespace)
    index = _Index(seen or ())
    pods = None if live is None else tuple(_charged(live, index, now))
    waiting = _waiting(index, pods, facts, namespace, own, now)
    freeing = () if pods is None or seen is None else tuple(_freeing(pods, index, now))
    return Occupancy(tuple(waiting), pods, freeing)


class _Index:
    """The workloads of a namespace by kind and name, and the way from a pod's owner to the top."""

    def __init__(self, seen: Sequence[SeenWorkload]) -> None:
        self.by_owner: dict[Owner, SeenWorkload] = {
            (each.workload.kind, each.workload.metadata.name): each for each in seen
        }

    def get(self, owner: Owner) -> Workload | None:
        found = self.by_owner.get(owner)
        return found.workload if found else None

    def top(self, metadata: ObjectMeta) -> Owner:
        """Pod <- ReplicaSet <- Deployment (W17); a link whose uid is another's points at something gone."""
        owner = metadata.controller
        if owner is None:
            return ("", "")
        found = self.get((owner.kind, owner.name))
        if found is None or not _is(owner.uid, found.metadata.uid):
            return (owner.kind, f"{owner.name}") if found is None else (owner.kind, f"{owner.name} (deleted)")
        above = found.metadata.controller
        if owner.kind == "ReplicaSet" and above is not None:
            return self.top(found.metadata)
        return (owner.kind, owner.name)


def _is(claimed: str, actual: str) -> bool:
    return not claimed or not actual or claimed == actual


def _charged(live: Iterable[Pod], index: _Index, now: float) -> Iterable[PodUse]:
    for pod in live:
        use = quota.pod_use(pod)
        if not use.finished and quota.charged(use, now):
            kind, name = index.top(pod.metadata)
            yield msgspec.structs.replace(use, owner_kind=kind, owner_name=name)


# -- who is about to take ---------------------------------------------------------------------------------------------


def _waiting(
    index: _Index, pods: tuple[PodUse, ...] | None, facts: Facts, namespace: str, own: Own, now: float
) -> Iterable[Waiting]:
    notes = {(note.kind, note.name): note for note in facts.notes(namespace) if now - note.at < YOUNG}
    limit_ranges = facts.limit_ranges(namespace) or ()
    classes = facts.priority_classes() or {}
    existing = None if pods is None else _count(pods)
    for owner, seen in index.by_owner.items():
        note = notes.pop(owner, None)
        wanted = _wanted(seen.workload, note, own.old_pods if owner == (own.kind, own.name) else None)
        missing = wanted - (existing.get(owner, 0) if existing is not None else _reported(seen.workload))
        if missing > 0:
            fresh = now - seen.seen_at < YOUNG or note is not None
            young = fresh and not _fails(seen.workload)
            use = _use(seen.workload, limit_ranges, classes)
            yield Waiting(*owner, missing, use, young, note is not None)
    for owner, note in notes.items():
        unseen_for = YOUNG if pods is None else STORED
        if owner != (own.kind, own.name) and now - note.at < unseen_for and note.pods > 0:
            yield Waiting(*owner, note.pods, _use(note.workload, limit_ranges, classes), True, True)


def _count(pods: Iterable[PodUse]) -> Mapping[Owner, int]:
    """How many pods each owner has."""
    count: dict[Owner, int] = {}
    for each in pods:
        owner = (each.owner_kind, each.owner_name)
        count[owner] = count.get(owner, 0) + 1
    return count


def _wanted(workload: Workload, note: Note | None, own: int | None) -> int:
    """Pods that the workload's controller will make; 0 for what makes none itself or nobody can know (W10, W15).

    `own` is what the object under judgement wanted before. A ReplicaSet with an owner is that owner's gap.
    """
    if workload.kind == "ReplicaSet" and workload.metadata.controller is not None:
        return 0
    if own is not None:
        return own
    if workload.metadata.deletion_timestamp or workloads.is_paused(workload):
        return 0
    wanted = workloads.pods_wanted(workload.kind, workload) or 0
    return max(wanted, note.pods) if note is not None else wanted


def _reported(workload: Workload) -> int:
    """Pods that exist as its controller last said, where they were not read themselves."""
    status = workload.status
    if status is None:
        return 0
    return (status.active if isinstance(status.active, int) else 0) if workload.kind == "Job" else status.replicas or 0


def _fails(workload: Workload) -> bool:
    """Its controller already tried and was refused: it waits, and what only waits never blocks others (rule 4)."""
    conditions = workload.status.conditions if workload.status else None
    return any(each.type == "ReplicaFailure" and each.status == "True" for each in conditions or ())


def _use(workload: Workload, limit_ranges: Sequence[LimitRange], classes: Mapping[str, PriorityClass]) -> PodUse:
    template = workloads.template_of(workload)
    if template is None or template.spec is None:
        return PodUse()
    spec = limit_range.apply(template.spec, limit_ranges)
    return quota.spec_use(spec, priority.class_of_pods(spec, classes))


# -- who is on the way out --------------------------------------------------------------------------------------------


def _freeing(pods: tuple[PodUse, ...], index: _Index, now: float) -> Iterable[str]:
    """Pods under deletion that nobody will replace; one evicted by a drain is, so its owner keeps the quota."""
    going: dict[Owner, list[str]] = {}
    for each in pods:
        if each.deletion_timestamp and _epoch(each.deletion_timestamp) + GOING >= now:
            going.setdefault((each.owner_kind, each.owner_name), []).append(each.name)
    count = _count(pods) if going else {}
    for owner, names in going.items():
        yield from names[: _not_replaced(owner, count[owner], index)]


def _not_replaced(owner: Owner, existing: int, index: _Index) -> int:
    kind, name = owner
    workload = index.get(owner)
    if not kind or name.endswith(" (deleted)"):
        return existing
    if workload is None:
        return existing if kind in workloads.KINDS else 0
    if workload.metadata.deletion_timestamp:
        return existing
    wanted = workloads.pods_wanted(kind, workload)
    return 0 if wanted is None else max(0, existing - wanted)


def _epoch(timestamp: str) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return 0.0
