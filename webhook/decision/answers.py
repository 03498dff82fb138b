"""The facts that one decision used: asked of a cluster and remembered for its record, or read back from a record."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from webhook.decision import occupancy
from webhook.decision.facts import Facts
from webhook.decision.occupancy import Occupancy, Own, Waiting
from webhook.k8s.objects import HorizontalPodAutoscaler, LimitRange, PriorityClass, ResourceQuota, Workload
from webhook.k8s.quota import PodUse

Gathered = tuple[Mapping[str, PriorityClass] | None, Mapping[str, int] | None]
"""The PriorityClasses by name, and how many nodes each pool has."""


class Answers(Protocol):
    """What the engine asks; see `Facts` for the meaning of each answer. None: could not be learned."""

    @property
    def fresh(self) -> bool | None:
        """Whether the quota facts are fresh; None if they were to be and could not be read."""

    def gather(self, namespace: str, pool_label: str) -> Gathered:
        """Ask also what only another policy would ask, so that a record can be judged again under it (DESIGN 5.5)."""

    def namespace_labels(self, namespace: str) -> Mapping[str, str] | None: ...
    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None: ...
    def limit_ranges(self, namespace: str) -> Sequence[LimitRange] | None: ...
    def node_labels(self, node: str) -> Mapping[str, str] | None: ...
    def parent(self, namespace: str, kind: str, name: str) -> Workload | None: ...
    def autoscalers(self, namespace: str) -> Sequence[HorizontalPodAutoscaler] | None: ...
    def occupancy(self, namespace: str, own: Own, now: float) -> Occupancy: ...

    def recorded(self) -> Mapping[str, Any]:
        """The answers given so far, as an audit record keeps them."""


T = TypeVar("T")


class UndecidableError(LookupError):
    """A replay asks for a fact that was not recorded: no verdict, never a guess (DESIGN 5.5). `fact` names it."""

    def __init__(self, fact: str) -> None:
        super().__init__(f"the record does not hold {fact}")
        self.fact = fact


def ask(facts: "Facts | Recorded", fresh_failed: bool) -> Answers:
    """The answers of a cluster, or those of a record."""
    return facts if isinstance(facts, Recorded) else _Asked(facts, None if fresh_failed else facts.is_fresh)


class _Asked(msgspec.Struct, eq=False):
    """Answers from a cluster, each remembered under its key in the record; what several rules need is asked once."""

    facts: Facts
    fresh: bool | None
    answers: dict[str, Any] = {}

    def gather(self, namespace: str, pool_label: str) -> Gathered:
        facts, answers = self.facts, self.answers
        answers["quotas"] = facts.quotas(namespace)
        answers["limitRanges"] = facts.limit_ranges(namespace)
        classes = answers["priorityClasses"] = facts.priority_classes()
        sizes = facts.pool_sizes(pool_label)
        answers["nodes"] = {"pools": None if sizes is None else {"label": pool_label, "sizes": sizes}}
        return classes, sizes

    def namespace_labels(self, namespace: str) -> Mapping[str, str] | None:
        answer = self.answers["namespaceLabels"] = self.facts.namespace_labels(namespace)
        return answer

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        if "quotas" not in self.answers:
            self.answers["quotas"] = self.facts.quotas(namespace)
        answer: Sequence[ResourceQuota] | None = self.answers["quotas"]
        return answer

    def limit_ranges(self, namespace: str) -> Sequence[LimitRange] | None:
        if "limitRanges" not in self.answers:
            self.answers["limitRanges"] = self.facts.limit_ranges(namespace)
        answer: Sequence[LimitRange] | None = self.answers["limitRanges"]
        return answer

    def node_labels(self, node: str) -> Mapping[str, str] | None:
        answer = self.facts.node_labels(node)
        nodes: dict[str, Any] = self.answers.setdefault("nodes", {})
        nodes.setdefault("labels", {})[node] = answer
        return answer

    def parent(self, namespace: str, kind: str, name: str) -> Workload | None:
        if "parent" not in self.answers:
            self.answers["parent"] = self.facts.parent(namespace, kind, name)
        answer: Workload | None = self.answers["parent"]
        return answer

    def autoscalers(self, namespace: str) -> Sequence[HorizontalPodAutoscaler] | None:
        answer = self.answers["autoscalers"] = self.facts.autoscalers(namespace)
        return answer

    def occupancy(self, namespace: str, own: Own, now: float) -> Occupancy:
        answer = occupancy.read(self.facts, namespace, own, now)
        self.answers["waiting"] = answer.waiting
        self.answers["pods"] = answer.pods
        self.answers["freeing"] = answer.freeing
        return answer

    def recorded(self) -> Mapping[str, Any]:
        self.answers["fresh"] = self.fresh
        return self.answers


class _Pools(msgspec.Struct):
    label: str
    sizes: dict[str, int]


class _Nodes(msgspec.Struct):
    pools: _Pools | msgspec.UnsetType | None = msgspec.UNSET
    labels: dict[str, dict[str, str] | None] = {}


class Recorded(msgspec.Struct, rename="camel"):
    """The `facts` of an audit record, as answers; what was not recorded is undecidable."""

    fresh: bool | None = False
    recorded_labels: dict[str, str] | msgspec.UnsetType | None = msgspec.field(
        name="namespaceLabels", default=msgspec.UNSET
    )
    recorded_quotas: tuple[ResourceQuota, ...] | msgspec.UnsetType | None = msgspec.field(
        name="quotas", default=msgspec.UNSET
    )
    recorded_limit_ranges: tuple[LimitRange, ...] | msgspec.UnsetType | None = msgspec.field(
        name="limitRanges", default=msgspec.UNSET
    )
    recorded_classes: dict[str, PriorityClass] | msgspec.UnsetType | None = msgspec.field(
        name="priorityClasses", default=msgspec.UNSET
    )
    recorded_nodes: _Nodes = msgspec.field(name="nodes", default_factory=_Nodes)
    recorded_parent: Workload | msgspec.UnsetType | None = msgspec.field(name="parent", default=msgspec.UNSET)
    recorded_autoscalers: tuple[HorizontalPodAutoscaler, ...] | msgspec.UnsetType | None = msgspec.field(
        name="autoscalers", default=msgspec.UNSET
    )
    waiting: tuple[Waiting, ...] | msgspec.UnsetType = msgspec.UNSET
    pods: tuple[PodUse, ...] | None = None
    freeing: tuple[str, ...] = ()

    def gather(self, namespace: str, pool_label: str) -> Gathered:
        self.quotas(namespace)
        self.limit_ranges(namespace)
        pools = _known(self.recorded_nodes.pools, "nodes.pools")
        if pools is not None and pools.label != pool_label:
            raise UndecidableError(f"nodes.pools of label {pool_label}")
        return _known(self.recorded_classes, "priorityClasses"), None if pools is None else pools.sizes

    def namespace_labels(self, namespace: str) -> Mapping[str, str] | None:
        return _known(self.recorded_labels, "namespaceLabels")

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        return _known(self.recorded_quotas, "quotas")

    def limit_ranges(self, namespace: str) -> Sequence[LimitRange] | None:
        return _known(self.recorded_limit_ranges, "limitRanges")

    def node_labels(self, node: str) -> Mapping[str, str] | None:
        if node not in self.recorded_nodes.labels:
            raise UndecidableError(f"nodes.labels of {node}")
        return self.recorded_nodes.labels[node]

    def parent(self, namespace: str, kind: str, name: str) -> Workload | None:
        return _known(self.recorded_parent, "parent")

    def autoscalers(self, namespace: str) -> Sequence[HorizontalPodAutoscaler] | None:
        return _known(self.recorded_autoscalers, "autoscalers")

    def occupancy(self, namespace: str, own: Own, now: float) -> Occupancy:
        return Occupancy(_known(self.waiting, "waiting"), self.pods, self.freeing)

    def recorded(self) -> Mapping[str, Any]:
        """Nothing: it is in a record already, and a decision that is judged again makes none."""
        return {}


def _known(value: T | msgspec.UnsetType, fact: str) -> T:
    if value is msgspec.UNSET:
        raise UndecidableError(fact)
    return value
