"""The filters of the scheduler: on which nodes a pod fits now, and the scheduler's own sentence when it fits nowhere.

Filters run in the order unschedulable, taints, node affinity, resources; a node counts under the first that stops it,
but under every resource that is short. Of several nodes that fit, the one with the most left is taken, which is close
to the scheduler's default scores and, unlike them, always the same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from webhook.k8s import node_affinity
from webhook.k8s.objects import Node, PodSpec, Quantities, Taint, Toleration
from webhook.k8s.pod_resources import pod_requests
from webhook.k8s.quantity import Quantity, QuantityError, parse

UNSCHEDULABLE = "node(s) were unschedulable"
TAINTED = "node(s) had untolerated taint(s)"
AFFINITY = "node(s) didn't match Pod's node affinity/selector"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"

_CLAIMS = "no new claims to deallocate"
_UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class Placed(NamedTuple):
    """A pod that takes room on a node: not finished, and assigned."""

    node: str
    requests: Mapping[str, Quantity]
    priority: int = 0


class Placement(NamedTuple):
    """Where a pod can go: `node` is the one chosen of `feasible`, "" if there is none; then `message` says why."""

    node: str
    feasible: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class _NodeState:
    node: Node
    allocatable: Mapping[str, Quantity]
    taken: Mapping[str, Quantity]
    """Requests of all pods on the node, and `pods` of them."""
    lower: Mapping[str, Quantity]
    """The same of those pods alone that the incoming pod could preempt."""


@dataclass(frozen=True, slots=True)
class _Failure:
    reasons: tuple[str, ...]
    helpless: bool
    """Whether taking pods away could not help (Kubernetes: UnschedulableAndUnresolvable)."""


def place(spec: PodSpec, nodes: Sequence[Node], placed: Iterable[Placed]) -> Placement:
    """Where a pod with this spec can run, given the nodes and what is already on them.

    `spec.priority` and `preemptionPolicy` count as the Priority plugin set them; missing means 0 and
    PreemptLowerPriority. The message is that of the FailedScheduling event.
    """
    requests = pod_requests(spec)
    states = _states(nodes, placed, spec.priority if isinstance(spec.priority, int) else 0)
    failures = {name: _filter(spec, requests, state) for name, state in states.items()}
    feasible = tuple(sorted(name for name, failure in failures.items() if failure is None))
    if feasible:
        return Placement(max(feasible, key=lambda name: _score(states[name], requests)), feasible, "")
    stopped = {name: failure for name, failure in failures.items() if failure is not None}
    return Placement("", (), _message(spec, requests, states, stopped))


def tolerates(tolerations: Iterable[Toleration] | None, taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint; an empty key with Exists covers every one."""
    return any(_covers(toleration, taint) for toleration in tolerations or ())


def untolerated(spec: PodSpec, node: Node) -> list[Taint]:
    """The taints of a node that keep the pod from being scheduled there; PreferNoSchedule never does."""
    hard = (taint for taint in node.spec.taints or () if taint.effect in ("NoSchedule", "NoExecute"))
    return [taint for taint in hard if not tolerates(spec.tolerations, taint)]


def _covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value


# -- filters ----------------------------------------------------------------------------------------------------------


def _states(nodes: Sequence[Node], placed: Iterable[Placed], priority: int) -> dict[str, _NodeState]:
    taken: dict[str, Counter[str]] = {node.metadata.name: Counter() for node in nodes}
    lower: dict[str, Counter[str]] = {node.metadata.name: Counter() for node in nodes}
    for pod in placed:
        if pod.node in taken:
            _take(taken[pod.node], pod.requests)
            if pod.priority < priority:
                _take(lower[pod.node], pod.requests)
    return {
        (name := node.metadata.name): _NodeState(node, _amounts(node.status.allocatable), taken[name], lower[name])
        for node in nodes
    }


def _take(total: "Counter[str]", requests: Mapping[str, Quantity]) -> None:
    for resource, amount in requests.items():
        total[resource] += amount  # type: ignore[assignment]  # Counter is typed for ints; Decimals add as well
    total["pods"] += 1


def _amounts(quantities: Quantities | None) -> dict[str, Quantity]:
    amounts: dict[str, Quantity] = {}
    for name, value in (quantities or {}).items():
        try:
            amounts[name] = parse(value)
        except QuantityError:
            continue  # a node that reports nonsense offers nothing of it
    return amounts


def _filter(spec: PodSpec, requests: Mapping[str, Quantity], state: _NodeState) -> _Failure | None:
    """Why the pod cannot run on a node now, None if it can."""
    node = state.node
    if node.spec.unschedulable and not tolerates(spec.tolerations, _UNSCHEDULABLE_TAINT):
        return _Failure((UNSCHEDULABLE,), helpless=True)
    if untolerated(spec, node):
        return _Failure((TAINTED,), helpless=True)
    if not node_affinity.matches(spec, node.metadata.name, node.metadata.labels):
        return _Failure((AFFINITY,), helpless=True)
    short = _shortages(requests, state.allocatable, state.taken)
    if not short:
        return None
    hopeless = any(requests.get(resource, 0) > state.allocatable.get(resource, 0) for resource in short)
    return _Failure(tuple(_shortage_text(resource) for resource in short), helpless=hopeless)


def _shortages(
    requests: Mapping[str, Quantity], allocatable: Mapping[str, Quantity], taken: Mapping[str, Quantity]
) -> list[str]:
    """The resources of which a node has too little left; `pods` if it holds as many pods as it may."""
    short = [
        resource
        for resource, amount in requests.items()
        if amount and taken.get(resource, 0) + amount > allocatable.get(resource, 0)
    ]
    if taken.get("pods", 0) + 1 > allocatable.get("pods", 0):
        short.append("pods")
    return short


def _shortage_text(resource: str) -> str:
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


def _score(state: _NodeState, requests: Mapping[str, Quantity]) -> tuple[float, str]:
    """The share of cpu and memory that stays free; ties go to the last name."""
    shares = []
    for resource in ("cpu", "memory"):
        room = state.allocatable.get(resource, 0)
        left = room - state.taken.get(resource, 0) - requests.get(resource, 0)
        shares.append(float(left) / float(room) if room else 0.0)
    return sum(shares), state.node.metadata.name


# -- words ------------------------------------------------------------------------------------------------------------


def _message(
    spec: PodSpec,
    requests: Mapping[str, Quantity],
    states: Mapping[str, _NodeState],
    failures: Mapping[str, _Failure],
) -> str:
    if not states:
        return "no nodes available to schedule pods"
    sentence = _histogram(len(states), (reason for failure in failures.values() for reason in failure.reasons))
    if spec.preemption_policy == "Never":
        return f"{sentence} {_CLAIMS}, preemption: not eligible due to preemptionPolicy=Never."
    tail = _preemption(requests, states, failures)
    return sentence if tail is None else f"{sentence} {_CLAIMS}, preemption: {tail}"


def _preemption(
    requests: Mapping[str, Quantity], states: Mapping[str, _NodeState], failures: Mapping[str, _Failure]
) -> str | None:
    """What preemption says when it finds nobody; None when pods of lower priority will make room."""
    reasons: list[str] = []
    for name, failure in failures.items():
        state = states[name]
        if failure.helpless:
            reasons.append(NOT_HELPFUL)
        elif not state.lower:
            reasons.append(NO_VICTIMS)
        else:
            left = {resource: amount - state.lower.get(resource, 0) for resource, amount in state.taken.items()}
            short = _shortages(requests, state.allocatable, left)
            if not short:
                return None
            reasons += [_shortage_text(resource) for resource in short]
    return _histogram(len(states), reasons)


def _histogram(nodes: int, reasons: Iterable[str]) -> str:
    """`0/3 nodes are available: 1 Insufficient cpu, ...` with the counted reasons sorted as text."""
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available: {', '.join(counted)}."
