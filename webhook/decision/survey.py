"""A whole cluster under a policy: which workloads differ from it, and what it would make of everything that exists.

`drift` asks about workloads as they are; `preview` judges everything as if it were created now, in enforce mode, and
follows the running pods: which of them would come back elsewhere, and which not at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jsonpatch
import msgspec

from webhook.decision.engine import decide
from webhook.decision.facts import Facts, SeenWorkload
from webhook.decision.request import Object, Request, User, decision_id
from webhook.decision.result import Decision
from webhook.k8s import node_affinity, quota, scheduling, workloads
from webhook.k8s.objects import (
    Node,
    NodeSelector,
    ObjectMeta,
    Pod,
    PodSpec,
    ResourceQuota,
    Workload,
)
from webhook.k8s.pod_resources import pod_requests
from webhook.k8s.quantity import Quantity, QuantityError, canonical, parse
from webhook.k8s.scheduling import Placed
from webhook.policy.active import Policy

SOMEBODY = User("user", ("system:authenticated",))
"""Who creates what is previewed: somebody without any exemption."""
CONTROLLER = User("system:serviceaccount:kube-system:replicaset-controller")
"""Who makes the pods that replace running ones (W19)."""
_FINISHED = ("Succeeded", "Failed")


class Estate(msgspec.Struct, frozen=True):
    """All that exists. `volumes`: pod (namespace, name) -> node affinities of its volumes, see `volume_nodes`."""

    facts: Facts
    workloads: Sequence[Workload]
    pods: Sequence[Pod]
    nodes: Sequence[Node]
    volumes: Mapping[tuple[str, str], tuple[NodeSelector, ...]] = {}


# -- drift ------------------------------------------------------------------------------------------------------------


class Drift(msgspec.Struct, frozen=True, rename="camel"):
    """A workload whose template differs from the policy, and what the next change of its template will bring.

    `now` and `wanted` are priority class and pools; `message` says why where the change would be refused.
    """

    namespace: str
    kind: str
    name: str
    rule: str
    verdict: Literal["patch", "deny"]
    now: dict[str, str]
    wanted: dict[str, str]
    message: str = ""


def drift(policy: Policy, estate: Estate, now: float) -> Iterator[Drift]:
    """Workloads whose template the policy would write differently (H14, B58, B59), Jobs apart: theirs never changes."""
    enforced = as_enforced(policy)
    for workload in _judged(estate.workloads, policy):
        if workload.kind == "Job":
            continue
        asked = _update(workload, now)
        found = decide(asked, enforced, estate.facts)
        if not any(finding.code == "PolicyDrift" for finding in found.findings):
            continue
        changed = decide(msgspec.structs.replace(asked, template_change="changed"), enforced, estate.facts)
        rule = next(each.rule for each in policy.rules if each.rule.name == changed.rule)
        yield Drift(
            namespace=workload.metadata.namespace,
            kind=workload.kind,
            name=workload.metadata.name,
            rule=rule.name,
            verdict="deny" if changed.verdict == "deny" else "patch",
            now=_placement(_spec_of(workload), policy.spec.pool_label),
            wanted={"priorityClassName": rule.priority_class_name or "", "pools": ", ".join(rule.pools or ())},
            message=_why(changed),
        )


def _why(decision: Decision) -> str:
    """The denial's first line, else the conflicts that an existing workload may keep (H21)."""
    if decision.message:
        return decision.message.partition("\n")[0]
    kept = [each.message for each in decision.findings if each.code in ("PoolConflict", "PriorityConflict")]
    return "; ".join(kept)


def _placement(spec: PodSpec, label: str) -> dict[str, str]:
    """The class and the pools of a template, as far as it names them."""
    named = [(spec.node_selector or {}).get(label, "")]
    named += [
        f"{'' if part.operator == 'In' else part.operator + ' '}{', '.join(part.values or ())}"
        for term in node_affinity.required_terms(spec) or ()
        for part in term.match_expressions or ()
        if part.key == label
    ]
    pools = "; ".join(dict.fromkeys(filter(None, named)))
    return {"priorityClassName": spec.priority_class_name or "", "pools": pools}


# -- preview ----------------------------------------------------------------------------------------------------------


class Preview(msgspec.Struct, frozen=True, rename="camel"):
    """One workload or lone Pod, as if it were created now.

    `patched` means that its template would be written differently: what runs is restarted when that next happens.
    """

    namespace: str
    kind: str
    name: str
    rule: str
    outcome: Literal["refused", "patched", "unchanged"]
    message: str = ""
    codes: tuple[str, ...] = ()
    gpu: Mapping[str, str] = {}
    restarts: bool = False


class PodFate(msgspec.Struct, frozen=True, rename="camel"):
    """A running pod that, once replaced, comes back on another node (`moves`) or not at all (`lost`)."""

    namespace: str
    name: str
    owner: str
    node: str
    fate: Literal["moves", "lost"]
    reason: Literal["node", "volume", "room"]
    message: str


class Survey(msgspec.Struct, frozen=True, rename="camel"):
    """The whole preview: what is judged, and the running pods that would not stay where they are."""

    objects: tuple[Preview, ...]
    pods: tuple[PodFate, ...]

    def of(self, namespace: str) -> "Survey":
        """The part of it that is about one namespace."""
        return Survey(
            tuple(each for each in self.objects if each.namespace == namespace),
            tuple(each for each in self.pods if each.namespace == namespace),
        )

    @property
    def is_bad_news(self) -> bool:
        """Whether anything would be refused or not come back."""
        return any(each.outcome == "refused" for each in self.objects) or any(p.fate == "lost" for p in self.pods)


def preview(policy: Policy, estate: Estate, now: float) -> Survey:
    """Judge everything that exists as if it were created now by somebody without exemption, in enforce mode."""
    enforced = as_enforced(policy)
    owned = _PodsByOwner(estate)
    objects: list[Preview] = []
    for workload in _judged(estate.workloads, policy):
        facts = _Without(estate.facts, workload.metadata, workload.kind, owned.of(workload), now)
        objects.append(_preview(workload, workload.kind, enforced, facts, now, restarts=bool(owned.of(workload))))
    for pod in estate.pods:
        if pod.metadata.controller is None and not _is_finished(pod) and "Pod" in policy.kinds:
            facts = _Without(estate.facts, pod.metadata, "Pod", [pod], now)
            objects.append(_preview(pod, "Pod", enforced, facts, now, restarts=False))
    return Survey(tuple(objects), tuple(_fates(enforced, estate, owned, now)))


def as_enforced(policy: Policy) -> Policy:
    """The policy with every mode set to enforce: what an admin wants to see before switching to it."""
    spec = policy.spec
    rules = tuple(msgspec.structs.replace(rule, mode=None) for rule in spec.rules)
    document = msgspec.structs.replace(policy.document, spec=msgspec.structs.replace(spec, mode="enforce", rules=rules))
    return type(policy)(document, policy.pricing)


def _preview(found: Object, kind: str, policy: Policy, facts: Facts, now: float, *, restarts: bool) -> Preview:
    decision = decide(_create(found, kind, SOMEBODY, now), policy, facts)
    row = workloads.KINDS[kind]
    in_template = any(each.path.startswith(row.pod_spec) for each in decision.patch)
    outcome: Literal["refused", "patched", "unchanged"] = "unchanged"
    if decision.verdict == "deny":
        outcome = "refused"
    elif in_template:
        outcome = "patched"
    return Preview(
        namespace=found.metadata.namespace,
        kind=kind,
        name=found.metadata.name,
        rule=decision.rule or "",
        outcome=outcome,
        message=decision.message.partition("\n")[0],
        codes=tuple(dict.fromkeys(each.code for each in decision.findings)),
        gpu=decision.gpu,
        restarts=restarts and outcome == "patched" and kind in ("Deployment", "StatefulSet", "DaemonSet"),
    )


# -- running pods -----------------------------------------------------------------------------------------------------


def _fates(policy: Policy, estate: Estate, owned: "_PodsByOwner", now: float) -> Iterator[PodFate]:
    """Where running pods would come back: those that must move look for room one after another."""
    running = [pod for pod in estate.pods if pod.spec and pod.spec.node_name and not _is_finished(pod)]
    staying: dict[tuple[str, str], Placed] = {}
    moving: list[tuple[Pod, PodSpec]] = []
    labels = {node.metadata.name: node.metadata.labels or {} for node in estate.nodes}
    for pod in running:
        assert pod.spec is not None
        key = (pod.metadata.namespace, pod.metadata.name)
        spec = _spec_after(pod, policy, estate.facts, now)
        place = pod.spec.node_name or ""
        if spec is None or place not in labels or node_affinity.matches(spec, place, labels[place]):
            staying[key] = _placed(place, spec or pod.spec)
        else:
            moving.append((pod, spec))
    placed = list(staying.values())
    for pod, spec in moving:
        fate, chosen = _move(pod, spec, estate, placed, owned.name_of(pod))
        if chosen:
            placed.append(_placed(chosen, spec))
        yield fate


def _move(pod: Pod, spec: PodSpec, estate: Estate, placed: Sequence[Placed], owner: str) -> tuple[PodFate, str]:
    """Look for a node; what stops the pod is its volume if it would find one without it, else the nodes, else room."""
    selectors = estate.volumes.get((pod.metadata.namespace, pod.metadata.name), ())
    reachable = [node for node in estate.nodes if _reaches(selectors, node)]
    found = scheduling.place(spec, reachable, placed)
    place = pod.spec.node_name if pod.spec else ""
    fate = PodFate(pod.metadata.namespace, pod.metadata.name, owner, place or "", "moves", "node", found.node)
    if found.node:
        return fate, found.node
    allowed = [node for node in estate.nodes if node_affinity.matches(spec, node.metadata.name, node.metadata.labels)]
    reason: Literal["node", "volume", "room"] = "room" if allowed else "node"
    if allowed and not any(node in reachable for node in allowed):
        reason = "volume"
    return msgspec.structs.replace(fate, fate="lost", reason=reason, message=found.message), ""


def _spec_after(pod: Pod, policy: Policy, facts: Facts, now: float) -> PodSpec | None:
    """The spec with which the pod would be made again by its controller; None if we would leave it as it is."""
    assert pod.spec is not None
    fresh = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=None), status=None)
    user = CONTROLLER if pod.metadata.controller is not None else SOMEBODY
    decision = decide(_create(fresh, "Pod", user, now), policy, facts)
    if decision.verdict != "patch":
        return None
    operations = msgspec.to_builtins(decision.patch)
    patched = jsonpatch.JsonPatch(list(operations)).apply(msgspec.to_builtins(fresh))
    return msgspec.convert(patched, Pod).spec


def volume_nodes(objects: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[NodeSelector, ...]]:
    """For each pod (namespace, name) the node affinities of the PersistentVolumes that it is bound to.

    `objects` are Pods, PersistentVolumeClaims and PersistentVolumes as JSON has them; others are skipped.
    """
    pods, claims, volumes = [], {}, {}
    for each in objects:
        metadata, spec = each.get("metadata") or {}, each.get("spec") or {}
        if each.get("kind") == "Pod":
            pods.append((metadata.get("namespace") or "default", metadata.get("name", ""), spec.get("volumes") or ()))
        elif each.get("kind") == "PersistentVolumeClaim":
            claims[metadata.get("namespace") or "default", metadata.get("name")] = spec.get("volumeName")
        elif each.get("kind") == "PersistentVolume":
            required = (spec.get("nodeAffinity") or {}).get("required")
            if required:
                volumes[metadata.get("name")] = msgspec.convert(required, NodeSelector)
    found: dict[tuple[str, str], tuple[NodeSelector, ...]] = {}
    for namespace, name, used in pods:
        names = [(each.get("persistentVolumeClaim") or {}).get("claimName") for each in used]
        selectors = tuple(volumes[v] for n in names if n and (v := claims.get((namespace, n))) in volumes)
        if selectors:
            found[namespace, name] = selectors
    return found


def _reaches(selectors: Iterable[NodeSelector], node: Node) -> bool:
    labels = node.metadata.labels or {}
    return all(
        any(node_affinity.term_matches(term, node.metadata.name, labels) for term in each.node_selector_terms or ())
        for each in selectors
    )


def _placed(node: str, spec: PodSpec) -> Placed:
    return Placed(node, pod_requests(spec), spec.priority if isinstance(spec.priority, int) else 0)


def _is_finished(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in _FINISHED


# -- what is asked ----------------------------------------------------------------------------------------------------


def _judged(every: Iterable[Workload], policy: Policy) -> Iterator[Workload]:
    """Workloads that people applied and that are still wanted; what a controller made follows from its owner (W17)."""
    for workload in every:
        made = workloads.controlling_kind(workload.metadata) is not None
        done = workload.metadata.deletion_timestamp or (workload.kind == "Job" and workloads.is_finished(workload))
        if workload.kind in policy.kinds and not made and not done:
            yield workload


def _create(found: Object, kind: str, user: User, now: float) -> Request:
    return _request(found, kind, user, now, None)


def _update(workload: Workload, now: float) -> Request:
    """An UPDATE that changes nothing in the template, say a label: what `decide` then finds is drift."""
    return _request(workload, workload.kind, SOMEBODY, now, workload)


def _request(found: Object, kind: str, user: User, now: float, old: Object | None) -> Request:
    row = workloads.KINDS[kind]
    metadata = found.metadata
    uid = metadata.uid or f"{metadata.namespace}/{kind}/{metadata.name}"
    return Request(
        id=decision_id(uid, "mutate"),
        uid=uid,
        phase="mutate",
        operation="CREATE" if old is None else "UPDATE",
        group=row.group,
        version=row.version,
        kind=kind,
        resource=row.resource,
        now=now,
        namespace=metadata.namespace,
        name=metadata.name,
        user=user,
        object=found,
        old_object=old,
        template_change=None if old is None else "same",
    )


def _spec_of(workload: Workload) -> PodSpec:
    template = workloads.template_of(workload)
    return (template.spec if template else None) or PodSpec()


class _PodsByOwner:
    """Unfinished pods by the workload at the top: Pod <- ReplicaSet <- Deployment, Pod <- Job <- CronJob (W17)."""

    def __init__(self, estate: Estate) -> None:
        self._known = {(w.metadata.namespace, w.kind, w.metadata.name): w for w in estate.workloads}
        self._pods: dict[tuple[str, str, str], list[Pod]] = {}
        for pod in estate.pods:
            if not _is_finished(pod):
                self._pods.setdefault(self._top(pod.metadata), []).append(pod)

    def of(self, workload: Workload) -> list[Pod]:
        return self._pods.get((workload.metadata.namespace, workload.kind, workload.metadata.name), [])

    def name_of(self, pod: Pod) -> str:
        """Kind and name of the top owner; "" for a lone pod."""
        _, kind, name = self._top(pod.metadata)
        return f"{kind} {name}".strip()

    def _top(self, metadata: ObjectMeta) -> tuple[str, str, str]:
        owner = metadata.controller
        if owner is None:
            return (metadata.namespace, "", "")
        key = (metadata.namespace, owner.kind, owner.name)
        above = self._known.get(key)
        return key if above is None or above.metadata.controller is None else self._top(above.metadata)


class _Without:
    """Facts of a cluster in which one object and its pods do not exist: as if it were created now (`Facts`)."""

    def __init__(self, facts: Facts, metadata: ObjectMeta, kind: str, pods: Sequence[Pod], now: float) -> None:
        self._facts = facts
        self._namespace, self._kind, self._name = metadata.namespace, kind, metadata.name
        self._gone = {pod.metadata.name for pod in pods}
        self._uses = [quota.pod_use(pod) for pod in pods]
        self._now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        quotas = self._facts.quotas(namespace)
        if quotas is None or namespace != self._namespace or not self._uses:
            return quotas
        return [self._lowered(each) for each in quotas]

    def _lowered(self, each: ResourceQuota) -> ResourceQuota:
        own = quota.used(each, self._uses, self._now)
        status = each.status
        if status.used is None:
            return each
        lowered = {key: _less(value, own.get(key, 0)) for key, value in status.used.items()}
        return msgspec.structs.replace(each, status=msgspec.structs.replace(status, used=lowered))

    def workloads(self, namespace: str) -> Sequence[SeenWorkload] | None:
        seen = self._facts.workloads(namespace)
        if seen is None or namespace != self._namespace:
            return seen
        own = (self._kind, self._name)
        return [each for each in seen if (each.workload.kind, each.workload.metadata.name) != own]

    def pods(self, namespace: str) -> Sequence[Pod] | None:
        pods = self._facts.pods(namespace)
        if pods is None or namespace != self._namespace:
            return pods
        return [pod for pod in pods if pod.metadata.name not in self._gone]


def _less(amount: Any, by: Quantity) -> Any:
    try:
        left = parse(amount) - by
    except QuantityError:
        return amount
    return canonical(left if left > 0 else 0, like=amount)
