"""The parts of Kubernetes objects that we read, as typed structs; everything else in the JSON is skipped.

Keys that are absent and keys that are null read the same (None), as the API server reads them; the two derived
priority fields are the exception, because a patch that removes them must know whether they are there (P7, V20).
Quantities stay as they were written (`Any`): `webhook.k8s.quantity` reads them. Times stay RFC 3339 text.
Re-encoding a struct gives back what was read and nothing more, which is what audit records keep.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType, field

Quantities = Mapping[str, Any]
"""Resource name -> quantity as written: "1k", 2, "500m" (R10)."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Camel-case keys, unknown keys skipped, defaults left out when encoded."""


T = TypeVar("T")
R = TypeVar("R")


def kept_with_object(function: Callable[[T], R]) -> Callable[[T], R]:
    """What `function` says of an object, worked out when first asked for and kept with it.

    For structs with a `dict`: they never change, and are asked about more often than the cluster sends new ones.
    """
    name = function.__name__

    @wraps(function)
    def look_up(found: T) -> R:
        kept: R | None = found.__dict__.get(name)
        if kept is None:
            kept = found.__dict__[name] = function(found)
        return kept

    return look_up


# -- metadata and selectors ---------------------------------------------------------------------------------------


class OwnerReference(_Struct, frozen=True):
    """An owner; the one with `controller: true` made the object (W17)."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(_Struct, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generation: int | None = None
    resource_version: str = ""
    managed_fields: msgspec.Raw | UnsetType = UNSET

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that made this object, if it names one (W17). Client data: any user may forge it (W18)."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class LabelSelectorRequirement(_Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(_Struct, frozen=True):
    """Kubernetes' LabelSelector: all parts are ANDed; an empty one matches everything."""

    match_labels: Mapping[str, str] | None = None
    match_expressions: tuple[LabelSelectorRequirement, ...] | None = None


# -- pods -----------------------------------------------------------------------------------------------------------


class NodeSelectorRequirement(_Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(_Struct, frozen=True):
    """One branch of a required node affinity: its expressions and fields are ANDed (N1)."""

    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(_Struct, frozen=True):
    """Branches that are ORed (N1); null or empty is left for API validation to refuse (N9)."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(_Struct, frozen=True):
    required: NodeSelector | None = field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class PodAffinityTerm(_Struct, frozen=True):
    """Only what the CrossNamespacePodAffinity quota scope asks (Q12)."""

    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(_Struct, frozen=True):
    pod_affinity_term: PodAffinityTerm | None = None


class PodAffinity(_Struct, frozen=True):
    required: tuple[PodAffinityTerm, ...] | None = field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] | None = field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(_Struct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(_Struct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Resources(_Struct, frozen=True):
    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(_Struct, frozen=True):
    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None


class PodResourceClaim(_Struct, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(_Struct, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    priority_class_name: str | None = None
    priority: int | UnsetType | None = UNSET
    preemption_policy: str | UnsetType | None = UNSET
    node_name: str | None = None
    node_selector: Mapping[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    overhead: Quantities | None = None
    resources: Resources | None = None
    active_deadline_seconds: int | None = None


class PodCondition(_Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class PodStatus(_Struct, frozen=True):
    phase: str = ""
    conditions: tuple[PodCondition, ...] | None = None


class Pod(_Struct, frozen=True, dict=True, gc=True):
    """`dict`: see `kept_with_object`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec | None = None
    status: PodStatus | None = None


class PodTemplate(_Struct, frozen=True):
    metadata: ObjectMeta | None = None
    spec: PodSpec | None = None


# -- workloads --------------------------------------------------------------------------------------------------------


class RollingUpdate(_Struct, frozen=True):
    max_surge: int | str | None = None
    max_unavailable: int | str | None = None


class Strategy(_Struct, frozen=True):
    """A Deployment's `strategy` or a DaemonSet's `updateStrategy`."""

    type: str | None = None
    rolling_update: RollingUpdate | None = None


class JobTemplateSpec(_Struct, frozen=True):
    """The `spec` of a CronJob's job template: a Job's own fields, one level down (P12, B17)."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    template: PodTemplate | None = None


class JobTemplate(_Struct, frozen=True):
    metadata: ObjectMeta | None = None
    spec: JobTemplateSpec | None = None


class WorkloadSpec(_Struct, frozen=True):
    """The union of what the workload kinds have in `spec`; `webhook.k8s.workloads` knows which kind reads what."""

    replicas: int | None = None
    paused: bool | None = None
    strategy: Strategy | None = None
    update_strategy: Strategy | None = None
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    concurrency_policy: str | None = None
    template: PodTemplate | None = None
    job_template: JobTemplate | None = None


class Condition(_Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class WorkloadStatus(_Struct, frozen=True):
    replicas: int | None = None
    ready_replicas: int | None = None
    active: Any = None
    succeeded: int | None = None
    failed: int | None = None
    observed_generation: int | None = None
    conditions: tuple[Condition, ...] | None = None


class Workload(_Struct, frozen=True):
    """A Deployment, StatefulSet, ReplicaSet, ReplicationController, DaemonSet, Job or CronJob."""

    kind: str = ""
    api_version: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus | None = None


class ScaleSpec(_Struct, frozen=True):
    replicas: int = 0  # left out by the API server when 0 (W27)


class Scale(_Struct, frozen=True):
    """autoscaling/v1 Scale, what `kubectl scale` and an HPA write (W25)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()


# -- the control layer ------------------------------------------------------------------------------------------------


class Namespace(_Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class ScopeRequirement(_Struct, frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class ScopeSelector(_Struct, frozen=True):
    match_expressions: tuple[ScopeRequirement, ...] | None = None


class ResourceQuotaSpec(_Struct, frozen=True):
    hard: Quantities | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(_Struct, frozen=True):
    hard: Quantities | None = None
    used: Quantities | None = None


class ResourceQuota(_Struct, frozen=True, dict=True, gc=True):
    """Admission compares with `status`, never with `spec.hard` (Q4). `dict`: see `kept_with_object`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class LimitRangeItem(_Struct, frozen=True):
    type: str = ""
    max: Quantities | None = None
    min: Quantities | None = None
    default: Quantities | None = None
    default_request: Quantities | None = None
    max_limit_request_ratio: Quantities | None = None


class LimitRangeSpec(_Struct, frozen=True):
    limits: tuple[LimitRangeItem, ...] | None = None


class LimitRange(_Struct, frozen=True, dict=True, gc=True):
    """`dict`: see `kept_with_object`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LimitRangeSpec = LimitRangeSpec()


class PriorityClass(_Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class Taint(_Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(_Struct, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class NodeStatus(_Struct, frozen=True):
    allocatable: Quantities | None = None
    capacity: Quantities | None = None
    conditions: tuple[Condition, ...] | None = None


class Node(_Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ScaleTargetRef(_Struct, frozen=True):
    kind: str = ""
    name: str = ""
    api_version: str = ""


class HorizontalPodAutoscalerSpec(_Struct, frozen=True):
    scale_target_ref: ScaleTargetRef = ScaleTargetRef()
    min_replicas: int | None = None
    max_replicas: int = 0


class HorizontalPodAutoscaler(_Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
