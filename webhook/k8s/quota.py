"""ResourceQuota for pods: what a pod uses, which quotas match it, and what admission would say (Q1-Q20).

As in Kubernetes' evaluators, two questions are kept apart: `usage` knows pods and nothing of quotas, `matches` knows
whether a quota speaks of a pod and nothing of amounts; `check` only compares. A `PodUse` is all that both ask of a pod.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from webhook.k8s.names import cached_by_name
from webhook.k8s.objects import (
    Affinity,
    ObjectMeta,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceQuota,
    Resources,
    ScopeRequirement,
    kept_with_object,
)
from webhook.k8s.pod_resources import (
    ResourceProblem,
    container_requests,
    has_pod_level_resources,
    is_best_effort,
    is_extended,
    kept_by_resources,
    limit_amounts,
    pod_limits,
    pod_requests,
    request_amounts,
    resource_problems,
)
from webhook.k8s.quantity import Amount, Quantity, QuantityError, canonical, counts_bytes, parse, parse_amount

_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_STANDARD_KEYS = frozenset(
    ("pods", "count/pods", *_COMPUTE, *(f"requests.{r}" for r in _COMPUTE), *(f"limits.{r}" for r in _COMPUTE))
)
_LIMIT_KEYS = {resource: f"limits.{resource}" for resource in _COMPUTE}
_MUST_SPECIFY = {  # key -> (key, is it a limit, resource); no other resource has to be named by every container (Q17)
    key: (key, key.startswith("limits."), key.removeprefix("requests.").removeprefix("limits."))
    for key in ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
}
TERMINAL_PHASES = ("Succeeded", "Failed")


# -- what a pod uses --------------------------------------------------------------------------------------------------


class PodUse(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """All that quotas ask of a pod, small enough to be recorded; `usage` is that of one pod, in quota keys."""

    name: str = ""
    owner_kind: str = ""
    owner_name: str = ""
    usage: Mapping[str, Quantity] = {}
    priority_class: str = ""
    best_effort: bool = False
    terminating: bool = False
    """Scope Terminating: the pod has an activeDeadlineSeconds of its own (Q12, Q15)."""
    cross_namespace: bool = False
    """Scope CrossNamespacePodAffinity."""
    finished: bool = False
    """Succeeded or Failed: only count/pods is left of its usage (Q19)."""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class Amounts(msgspec.Struct, frozen=True):
    """What the resources of a pod spec come to.

    `usage` is what one running pod uses, in every quota key that counts it, zeros included (Q1, Q2, Q19). Resources
    with unusable amounts are missing there: they are in `problems`.
    """

    usage: Mapping[str, Quantity]
    best_effort: bool
    problems: tuple[ResourceProblem, ...]


@kept_by_resources
def amounts(spec: PodSpec) -> Amounts:
    """What a pod spec asks for, as quotas count it."""
    keys: dict[str, Quantity] = {"pods": 1, "count/pods": 1}
    for resource, amount in pod_requests(spec).items():
        for key in _request_keys(resource):
            keys[key] = amount
    limits = pod_limits(spec)
    for resource, key in _LIMIT_KEYS.items():
        if resource in limits:
            keys[key] = limits[resource]
    return Amounts(keys, is_best_effort(spec), resource_problems(spec))


def usage_amounts(spec: PodSpec) -> dict[str, Amount]:
    """`Amounts.usage` with the formats in which the pod was written, for Kubernetes' own messages and status."""
    keys = {"pods": Amount(1), "count/pods": Amount(1)}
    for resource, amount in request_amounts(spec).items():
        keys.update(dict.fromkeys(_request_keys(resource), amount))
    for resource, amount in limit_amounts(spec).items():
        if resource in _LIMIT_KEYS:
            keys[_LIMIT_KEYS[resource]] = amount
    return keys


def spec_use(spec: PodSpec, priority_class: str | None = None) -> PodUse:
    """The use of a pod that would be made from `spec`; `priority_class` replaces the spec's (P16)."""
    return use_of(spec, amounts(spec), priority_class)


def use_of(spec: PodSpec, read: Amounts, priority_class: str | None = None) -> PodUse:
    """`spec_use` for a spec whose amounts were read."""
    return PodUse(
        usage=read.usage,
        priority_class=(spec.priority_class_name or "") if priority_class is None else priority_class,
        best_effort=read.best_effort,
        terminating=spec.active_deadline_seconds is not None and spec.active_deadline_seconds >= 0,
        cross_namespace=spec.affinity is not None and _crosses_namespaces(spec.affinity),
    )


@kept_with_object
def pod_use(pod: Pod) -> PodUse:
    """The use of an existing pod; a finished one keeps nothing but its place in count/pods (Q19)."""
    metadata, owner = pod.metadata, pod.metadata.controller
    use = spec_use(pod.spec or PodSpec())
    finished = pod.status is not None and pod.status.phase in TERMINAL_PHASES
    return msgspec.structs.replace(
        use,
        name=metadata.name or metadata.generate_name,
        owner_kind=owner.kind if owner is not None else "",
        owner_name=owner.name if owner is not None else "",
        usage={"count/pods": 1} if finished else use.usage,
        finished=finished,
        deletion_timestamp=metadata.deletion_timestamp,
        deletion_grace_period_seconds=metadata.deletion_grace_period_seconds,
    )


def charged(pod: PodUse | ObjectMeta, now: float) -> bool:
    """Whether a pod that is not finished is still charged at `now`, in seconds since the epoch.

    A deleting pod is, until its deletionTimestamp is more than its grace period ago (Q20).
    """
    if pod.deletion_timestamp is None or pod.deletion_grace_period_seconds is None:
        return True
    try:
        deleted = datetime.fromisoformat(pod.deletion_timestamp).timestamp()
    except ValueError:
        return True
    return now <= deleted + pod.deletion_grace_period_seconds


def used(quota: ResourceQuota, pods: Iterable[PodUse], now: float) -> dict[str, Quantity]:
    """What the quota controller would put into `status.used` for the pod keys of `spec.hard`, given all stored pods."""
    keys = [key for key in quota.spec.hard or {} if is_pod_key(key)]
    total: dict[str, Quantity] = dict.fromkeys(keys, 0)
    for pod in pods:
        if not matches_scopes(quota, pod):
            continue
        amounts = pod.usage if charged(pod, now) else {"count/pods": 1}
        for key in keys:
            total[key] += amounts.get(key, 0)
    return total


@cached_by_name
def _request_keys(resource: str) -> tuple[str, ...]:
    """The quota keys under which a request for `resource` is counted; none for resources no quota knows."""
    if resource in _COMPUTE or resource.startswith("hugepages-"):
        return (resource, f"requests.{resource}")
    return (f"requests.{resource}",) if is_extended(resource) else ()


def _crosses_namespaces(affinity: Affinity) -> bool:
    return any(
        term is not None and (term.namespaces or term.namespace_selector is not None)
        for kind in (affinity.pod_affinity, affinity.pod_anti_affinity)
        for term in _affinity_terms(kind)
    )


def _affinity_terms(affinity: PodAffinity | None) -> Iterable[PodAffinityTerm | None]:
    if affinity is None:
        return ()
    return (*(affinity.required or ()), *(weighted.pod_affinity_term for weighted in affinity.preferred or ()))


# -- what a quota says ------------------------------------------------------------------------------------------------


class Reading(msgspec.Struct, frozen=True):
    """The numbers of one state of a quota; keys whose amounts are none are `unreadable` and in neither mapping."""

    hard: Mapping[str, Quantity]
    used: Mapping[str, Quantity]
    """For keys of `hard` alone; one that is missing is unknown, not zero (Q6)."""
    unreadable: tuple[str, ...]
    """No API server stores amounts that are none, or negative ones; a file may hold them."""
    ineffective: tuple[str, ...]
    """See `ineffective_keys`."""
    counts_pods: bool
    """Whether one of the keys of `status.hard` is a pod's (Q1)."""
    unknown: tuple[str, ...]
    """Pod keys of `status.hard` whose usage is not filled in (Q6)."""
    demanded: tuple[str, ...]
    """Keys of `status.hard` that every container must name (Q17)."""
    has_scopes: bool
    """Whether it counts some pods and others not (Q12)."""
    is_sound: bool
    """Whether its status is filled in, and readable, for every pod key (Q5, Q6)."""


@kept_with_object
def reading(quota: ResourceQuota) -> Reading:
    """The quota as numbers."""
    hard: dict[str, Quantity] = {}
    used: dict[str, Quantity] = {}
    unreadable: list[str] = []
    written = quota.status.used or {}
    for key, amount in (quota.status.hard or {}).items():
        try:
            limit, taken = parse(amount), parse(written.get(key, 0))
        except QuantityError:
            limit = taken = -1
        if limit < 0 or taken < 0:
            unreadable.append(key)
            continue
        hard[key] = limit
        if key in written:
            used[key] = taken
    keys = quota.status.hard or ()
    unknown = tuple(key for key in keys if key not in written and is_pod_key(key))
    return Reading(
        hard=hard,
        used=used,
        unreadable=tuple(unreadable),
        ineffective=tuple(ineffective_keys(quota)),
        counts_pods=any(map(is_pod_key, keys)),
        unknown=unknown,
        demanded=tuple(key for key in keys if key in _MUST_SPECIFY),
        has_scopes=bool(quota.spec.scopes) or quota.spec.scope_selector is not None,
        is_sound=quota.status.hard is not None and not (unreadable or unknown),
    )


# -- which quotas match -----------------------------------------------------------------------------------------------


@cached_by_name
def is_pod_key(key: str) -> bool:
    """Whether quotas count pods under this key (Q1)."""
    if key in _STANDARD_KEYS or key.startswith(("hugepages-", "requests.hugepages-")):
        return True
    return key.startswith("requests.") and "/" in key and "kubernetes.io/" not in key


def matches(quota: ResourceQuota, pod: PodUse) -> bool:
    """Whether admission holds this pod against this quota: a key it counts, and every scope (Q11).

    A quota whose status is not filled yet has no keys and matches nothing (Q5).
    """
    return reading(quota).counts_pods and matches_scopes(quota, pod)


def matches_scopes(quota: ResourceQuota, pod: PodUse) -> bool:
    """Whether every scope and every scopeSelector expression holds for the pod (Q12, Q13)."""
    spec = quota.spec
    if spec.scopes and not all(_in_scope(ScopeRequirement(scope, "Exists"), pod) for scope in spec.scopes):
        return False
    selector = spec.scope_selector
    return selector is None or all(_in_scope(each, pod) for each in selector.match_expressions or ())


def ineffective_keys(quota: ResourceQuota) -> list[str]:
    """Keys of `spec.hard` that look like a limit on an extended resource and are never counted (Q2, B30).

    `requests.<name>` is the key that works.
    """
    return sorted(filter(_is_ineffective, quota.spec.hard or ()))


def effective_key(key: str) -> str:
    """The key that does what an ineffective one was meant to: limits.nvidia.com/gpu -> requests.nvidia.com/gpu."""
    return f"requests.{key.removeprefix('limits.')}"


@cached_by_name
def _is_ineffective(key: str) -> bool:
    if "/" not in key or key.startswith(("requests.", "count/")):
        return False
    # storage classes and device classes have keys of their own, which other evaluators count (Q25)
    return "k8s.io/" not in key and "kubernetes.io/" not in key


def _in_scope(scope: ScopeRequirement, pod: PodUse) -> bool:
    match scope.scope_name:
        case "Terminating":
            return pod.terminating
        case "NotTerminating":
            return not pod.terminating
        case "BestEffort":
            return pod.best_effort
        case "NotBestEffort":
            return not pod.best_effort
        case "PriorityClass":
            return _class_matches(scope, pod.priority_class)
        case "CrossNamespacePodAffinity":
            return pod.cross_namespace
    return False  # VolumeAttributesClass never matches pods (Q12)


def _class_matches(scope: ScopeRequirement, priority_class: str) -> bool:
    match scope.operator:
        case "In":
            return bool(priority_class) and priority_class in (scope.values or ())
        case "NotIn":  # a pod without a class is not in any list (Q13)
            return not priority_class or priority_class not in (scope.values or ())
        case "Exists":
            return bool(priority_class)
        case "DoesNotExist":
            return not priority_class
    return False


# -- what admission says ----------------------------------------------------------------------------------------------


class Demand(msgspec.Struct, frozen=True):
    """`pods` pods that are all alike."""

    use: PodUse
    pods: int = 1


class Shortage(NamedTuple):
    """One quota key that does not fit; the three texts are Kubernetes' canonical spellings."""

    requested: Quantity
    used: Quantity
    hard: Quantity
    texts: tuple[str, str, str]

    @property
    def free(self) -> Quantity:
        """What is left; never negative."""
        left = self.hard - self.used
        return left if left > 0 else 0


class Violation(NamedTuple):
    """Why one quota refuses. `exceeded`: `keys` hold what does not fit. `must-specify`: `missing` names, per quota key,
    the containers that lack it (Q18). `status-unknown`: `unknown` are the keys the quota limits (Q6)."""

    quota: str
    kind: Literal["must-specify", "status-unknown", "exceeded"]
    keys: Mapping[str, Shortage] = {}
    missing: Mapping[str, tuple[str, ...]] = {}
    unknown: tuple[str, ...] = ()


def check(
    quotas: Iterable[ResourceQuota], new: Demand, old: Demand | None = None, spec: PodSpec | None = None
) -> list[Violation]:
    """Every quota that refuses what `new` asks more than `old`; empty if all would admit it.

    For a CREATE leave out `old`. A quota that does not match the old pods is asked for all of the new ones, else for
    the increase per key (Q23, Q30). With `spec`, the new pods' spec after LimitRange defaults, also what every
    container must name (Q17), and the texts show the formats in which the pod was written. Refusals come in admission's
    order: what must be specified and unknown status before amounts, then quota by quota (Q10, Q18).
    """
    matching = [quota for quota in quotas if matches(quota, new.use)]
    if not matching or new.pods <= 0:
        return []
    early: list[Violation] = []
    checked: list[ResourceQuota] = []
    for quota in matching:
        refusal = _constraint(quota, spec) or _unknown_status(quota)
        if refusal is None:
            checked.append(quota)
        else:
            early.append(refusal)
    found = [_exceeded(quota, more(quota, new, old), new, spec) for quota in checked]
    return early + [violation for violation in found if violation is not None]


def increase(quota: ResourceQuota, new: Demand, old: Demand | None = None) -> dict[str, Quantity]:
    """What `quota` would be charged on top of what it already is, per pod key of `status.hard`, zeros left out.

    Empty if the quota does not match the new pods.
    """
    return more(quota, new, old) if matches(quota, new.use) else {}


def more(quota: ResourceQuota, new: Demand, old: Demand | None = None) -> dict[str, Quantity]:
    """`increase` for a quota that is known to match the new pods."""
    usage, pods = new.use.usage, new.pods
    wanted = {key: usage[key] * pods for key in quota.status.hard or () if usage.get(key) and pods > 0}
    if old is None or old.pods <= 0 or not matches(quota, old.use):
        return wanted
    before, old_pods = old.use.usage, old.pods
    return {key: added for key, amount in wanted.items() if (added := amount - before.get(key, 0) * old_pods) > 0}


def charge(quota: ResourceQuota, spec: PodSpec, priority_class: str | None = None) -> ResourceQuota:
    """The quota after admission of one pod with this spec: `status.used` raised, spelled as the API server does (Q21).

    For a quota that matches the pod and has room (see `check`); one that does not match comes back as it is.
    """
    if not matches(quota, spec_use(spec, priority_class)):
        return quota
    amounts = usage_amounts(spec)
    used = {
        key: str(parse_amount(before) + amounts[key]) if key in amounts and key in (quota.status.hard or ()) else before
        for key, before in (quota.status.used or {}).items()
    }
    return msgspec.structs.replace(quota, status=msgspec.structs.replace(quota.status, used=used))


def must_specify(quota: ResourceQuota, spec: PodSpec) -> dict[str, tuple[str, ...]]:
    """Containers that lack a compute resource which this quota limits: quota key -> sorted names (Q17, Q18).

    Nothing is missing where the pod has resources of its own.
    """
    required = [_MUST_SPECIFY[key] for key in reading(quota).demanded]
    if not required or has_pod_level_resources(spec):
        return {}
    missing: dict[str, set[str]] = {}
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            resources = container.resources or Resources()
            requests, limits = container_requests(resources), resources.limits or {}
            for key, is_limit, resource in required:
                if (limits if is_limit else requests).get(resource) is None:
                    missing.setdefault(key, set()).add(container.name)
    return {key: tuple(sorted(missing[key])) for key in sorted(missing)}


def message(violation: Violation, pod_name: str) -> str:
    """The refusal exactly as the API server words it (Q6, Q9, Q18)."""
    quota = violation.quota
    if violation.kind == "must-specify":
        parts = (f"{key} for: {','.join(names)}" for key, names in sorted(violation.missing.items()))
        text = f"failed quota: {quota}: must specify {'; '.join(parts)}"
    elif violation.kind == "status-unknown":
        text = f"status unknown for quota: {quota}, resources: {','.join(violation.unknown)}"
    else:
        columns = [
            ",".join(f"{key}={shortage.texts[column]}" for key, shortage in sorted(violation.keys.items()))
            for column in range(3)
        ]
        text = f"exceeded quota: {quota}, requested: {columns[0]}, used: {columns[1]}, limited: {columns[2]}"
    return f'pods "{pod_name}" is forbidden: {text}'


def _constraint(quota: ResourceQuota, spec: PodSpec | None) -> Violation | None:
    missing = must_specify(quota, spec) if spec is not None else {}
    return Violation(quota.metadata.name, "must-specify", missing=missing) if missing else None


def _unknown_status(quota: ResourceQuota) -> Violation | None:
    known = quota.status.used or {}
    for key in quota.status.hard or ():
        if key not in known and is_pod_key(key):
            return _unknown(quota)
    return None


def _unknown(quota: ResourceQuota) -> Violation:
    keys = sorted(key for key in quota.status.hard or () if is_pod_key(key))
    return Violation(quota.metadata.name, "status-unknown", unknown=tuple(keys))


def _exceeded(
    quota: ResourceQuota, asked: Mapping[str, Quantity], new: Demand, spec: PodSpec | None
) -> Violation | None:
    hard, known = quota.status.hard or {}, quota.status.used or {}
    try:
        failing = [key for key, amount in asked.items() if parse(known[key]) + amount > parse(hard[key])]
    except QuantityError:  # no API server stores such a status; a file may
        return _unknown(quota)
    if not failing:
        return None
    written = usage_amounts(spec) if spec is not None else {}
    keys = {}
    for key in sorted(failing):
        like = written.get(key)
        alone = like is not None and new.pods == 1 and like.value == asked[key]
        requested = str(like) if alone else _spelled(asked[key], key, like)
        texts = (requested, str(parse_amount(known[key])), str(parse_amount(hard[key])))
        keys[key] = Shortage(asked[key], parse(known[key]), parse(hard[key]), texts)
    return Violation(quota.metadata.name, "exceeded", keys=keys)


def _spelled(value: Quantity, key: str, like: Amount | None) -> str:
    if like is not None:
        return str(Amount(value, like.format))
    return canonical(value, "1Gi" if counts_bytes(key) else "1")
