"""The pods that count: not finished, each with its GPUs, its place and its owner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from webhook.exporter.view import ClusterView
from webhook.k8s.objects import Pod, PodSpec, Workload
from webhook.k8s.pod_resources import pod_requests
from webhook.k8s.quantity import Quantity
from webhook.policy.active import Policy

TEAM_LABEL = "gpu.platform/team"
"""The namespace label that makes a namespace a team's (DESIGN 5.6)."""

FINISHED = frozenset({"Succeeded", "Failed"})
PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "accelerator")


@dataclass(frozen=True)
class CountedPod:
    """A pod that uses quota (B45), with its effective requests (R2)."""

    pod: Pod
    namespace: str
    name: str
    team: str
    requests: Mapping[str, Quantity]
    gpus: Mapping[str, Quantity]
    """GPU resource name -> how many; empty for a pod without GPUs."""
    node: str
    """Where it was scheduled; "" while it waits."""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Of its node; of a waiting pod what it demands of one."""

    @property
    def is_pending(self) -> bool:
        return self.pod.status is None or self.pod.status.phase in ("Pending", "")

    @property
    def wants_gpu(self) -> bool:
        return bool(self.gpus) or bool(self.pod.spec and self.pod.spec.resource_claims)


def counted_pods(view: ClusterView, policy: Policy) -> list[CountedPod]:
    """All pods of the cluster that are not finished, in the order of namespace and name."""
    nodes = _Nodes(view)
    found = [_counted(pod, view, policy, nodes) for pod in view.pods if not is_finished(pod)]
    return sorted(found, key=lambda one: (one.namespace, one.name))


class _Nodes:
    """Labels of the node that a pod has, or of those that it could get as far as they agree."""

    def __init__(self, view: ClusterView) -> None:
        self._labels = {node.metadata.name: node.metadata.labels or {} for node in view.nodes}
        self._types: dict[tuple[tuple[str, str], ...], str] = {}

    def of(self, spec: PodSpec) -> Mapping[str, str]:
        if spec.node_name:
            return self._labels.get(spec.node_name, {})
        labels = demanded_labels(spec)
        kind = self._only_type(tuple(sorted(labels.items())))
        return {PRODUCT_LABELS[0]: kind, **labels} if kind else labels

    def _only_type(self, wanted: tuple[tuple[str, str], ...]) -> str:
        """The GPU type of all nodes with these labels; "" if they differ or nothing is wanted."""
        if wanted and wanted not in self._types:
            fitting = (labels for labels in self._labels.values() if all(labels.get(k) == v for k, v in wanted))
            kinds = {gpu_type(labels) for labels in fitting}
            self._types[wanted] = kinds.pop() if len(kinds) == 1 else ""
        return self._types.get(wanted, "")


def is_finished(pod: Pod) -> bool:
    """Whether the pod has ended and uses no quota any more (Q19)."""
    return pod.status is not None and pod.status.phase in FINISHED


def _counted(pod: Pod, view: ClusterView, policy: Policy, nodes: _Nodes) -> CountedPod:
    spec = pod.spec or PodSpec()
    requests = pod_requests(spec)
    node = spec.node_name or ""
    return CountedPod(
        pod=pod,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        team=view.labels.get(pod.metadata.namespace, {}).get(TEAM_LABEL, ""),
        requests=requests,
        gpus={name: amount for name, amount in requests.items() if amount and policy.is_gpu(name)},
        node=node,
        node_labels=nodes.of(spec),
    )


def demanded_labels(spec: PodSpec) -> dict[str, str]:
    """Labels that every node it may run on carries, as far as nodeSelector and one-valued terms say so."""
    labels = dict(spec.node_selector or {})
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    if terms and len(terms) == 1:
        for expression in terms[0].match_expressions or ():
            if expression.operator == "In" and expression.values and len(expression.values) == 1:
                labels.setdefault(expression.key, expression.values[0])
    return labels


def gpu_type(labels: Mapping[str, str]) -> str:
    """The product name that a node's labels give its GPUs; "" if none does."""
    return next((labels[label] for label in PRODUCT_LABELS if labels.get(label)), "")


class Owners:
    """Finds the workload that a person applied behind a pod or a ReplicaSet (W17)."""

    def __init__(self, view: ClusterView) -> None:
        self._workloads = {(w.metadata.namespace, w.kind, w.metadata.name): w for w in view.workloads}

    def find(self, namespace: str, kind: str, name: str) -> Workload | None:
        return self._workloads.get((namespace, kind, name))

    def chain(self, namespace: str, kind: str, name: str, pod: Pod | None = None) -> Iterator[tuple[str, str]]:
        """(kind, name) of the object itself, then of its controllers upwards; bounded, references are client data."""
        yield kind, name
        held: Pod | Workload | None = pod if pod is not None else self.find(namespace, kind, name)
        for _ in range(4):
            owner = held.metadata.controller if held is not None else None
            if owner is None:
                return
            yield owner.kind, owner.name
            held = self.find(namespace, owner.kind, owner.name)
