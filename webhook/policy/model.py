"""The documents an admin writes under `policies/`, field by field, with the descriptions an editor shows."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from webhook.k8s.objects import LabelSelector

API_VERSION = "gpu.platform/v1"

Mode = Literal["enforce", "warn", "audit"]
OnQuota = Literal["deny", "warn"]
Kind = Literal[
    "Pod", "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "DaemonSet", "Job", "CronJob"
]


class _Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Camel-case keys; an unknown key is an error."""


class Toleration(_Document):
    """A toleration as in a pod; added unless one that is there already covers it."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class SelectorRequirement(_Document):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class Selector(_Document):
    """Kubernetes' LabelSelector: all parts are ANDed; `{}` matches everything."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()

    def as_label_selector(self) -> LabelSelector:
        return msgspec.convert(msgspec.to_builtins(self), LabelSelector)


class Rule(_Document):
    """What happens to workloads in the namespaces that it selects; the first rule that matches counts."""

    name: Annotated[str, Meta(description="Shown in messages, records and metrics.", min_length=1)]
    namespace_selector: Annotated[Selector, Meta(description="Which namespaces, by their labels; {} matches all.")]
    workload_selector: Annotated[
        Selector, Meta(description="Which pods, by the Pod's own labels or the template's; {} matches all.")
    ] = Selector()
    priority_class_name: Annotated[
        str | None, Meta(description="The PriorityClass to set; absent: leave priority alone.")
    ] = None
    allowed_priority_classes: Annotated[
        tuple[str, ...], Meta(description="Further classes that a user may choose.")
    ] = ()
    on_priority_conflict: Annotated[
        Literal["deny", "override", "keep"], Meta(description="What to do with a class that is not allowed.")
    ] = "deny"
    pools: Annotated[
        tuple[str, ...] | None, Meta(description="Node pools (values of poolLabel); absent: leave placement alone.")
    ] = None
    on_pool_conflict: Annotated[
        Literal["deny", "keep"], Meta(description="What to do with placement that excludes every pool of the rule.")
    ] = "deny"
    tolerations: Annotated[tuple[Toleration, ...], Meta(description="Added if none that exists covers them.")] = ()
    mode: Annotated[Mode | None, Meta(description="Overrides spec.mode for this rule.")] = None
    on_quota_exceeded: Annotated[OnQuota | None, Meta(description="Overrides spec.quota.onExceeded.")] = None


class Quota(_Document):
    on_exceeded: Annotated[OnQuota, Meta(description="What a quota that would be exceeded does.")] = "deny"
    waiting_kinds: Annotated[
        tuple[Kind, ...],
        Meta(description='Kinds that may wait for room: "not now" is a warning, "never fits" stays a denial.'),
    ] = ()
    on_unknown: Annotated[
        Literal["allow", "deny"], Meta(description="When usage or labels could not be learned.")
    ] = "allow"
    resources: Annotated[
        Literal["all", "gpu"], Meta(description="Which quota keys are checked for GPU workloads.")
    ] = "all"


class Exemption(_Document):
    """Who is not judged: filled fields are ANDed, values inside one field are ORed; all empty is an error."""

    name: Annotated[str, Meta(min_length=1)]
    reason: Annotated[str, Meta(description="Why; printed in the record.")] = ""
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    service_accounts: Annotated[tuple[str, ...], Meta(description="As namespace/name.")] = ()
    namespaces: tuple[str, ...] = ()
    expires: Annotated[datetime | None, Meta(description="RFC 3339 time at which it ends.")] = None


class BreakGlass(_Document):
    groups: Annotated[tuple[str, ...], Meta(description="Groups whose gpu.platform/break-glass is honoured.")] = ()
    max_age: Annotated[str, Meta(description="How long it lasts, say 4h.", pattern=r"^([0-9]+(s|m|h|d))+$")] = "4h"


class Spec(_Document):
    rules: Annotated[tuple[Rule, ...], Meta(description="First match wins; no match: allowed, nothing checked.")]
    mode: Annotated[
        Mode,
        Meta(description="enforce; warn: a denial becomes a warning; audit: nothing changes, only the record tells."),
    ] = "enforce"
    language: Annotated[Literal["en", "zh"], Meta(description="Language of what users read.")] = "en"
    gpu_resources: Annotated[
        tuple[str, ...], Meta(description="Resource names that are GPUs; * at the end matches a prefix.")
    ] = ("nvidia.com/gpu", "nvidia.com/mig-*", "nvidia.com/gpu.shared", "amd.com/gpu", "gpu.intel.com/*")
    pool_label: Annotated[str, Meta(description="The node label that names a pool.")] = "gpu.platform/pool"
    applies_to: Annotated[
        Literal["gpuWorkloads", "allWorkloads"], Meta(description="Which workloads of a namespace are judged.")
    ] = "gpuWorkloads"
    workloads: Annotated[tuple[Kind, ...], Meta(description="Kinds that are judged.")] = (
        "Pod",
        "Deployment",
        "StatefulSet",
        "ReplicaSet",
        "ReplicationController",
        "DaemonSet",
        "Job",
        "CronJob",
    )
    on_unplaced: Annotated[
        Literal["warn", "deny"], Meta(description="When /validate sees a CREATE that lacks its placement.")
    ] = "warn"
    quota: Quota = Quota()
    contact: Annotated[str, Meta(description="Printed in a denial.")] = ""
    exemptions: tuple[Exemption, ...] = ()
    break_glass: BreakGlass = BreakGlass()
    trusted_controllers: Annotated[
        tuple[str, ...], Meta(description="User names of operators that are treated as controllers.")
    ] = ()


class Metadata(_Document):
    name: Annotated[str, Meta(min_length=1)]


class GpuPolicy(_Document):
    """Exactly one per folder."""

    api_version: Literal["gpu.platform/v1"]
    kind: Literal["GpuPolicy"]
    metadata: Metadata
    spec: Spec


class LabelPrice(_Document):
    """The price on nodes that carry a label."""

    label: str
    value: str
    price: Annotated[dict[str, float], Meta(description="Resource name -> price of one per hour.")]


class PricingSpec(_Document):
    currency: str = "USD"
    default: Annotated[float, Meta(description="Price of one GPU for one hour.", ge=0)] = 2.40
    by_node_label: tuple[LabelPrice, ...] = ()


class GpuPricing(_Document):
    """At most one per folder."""

    api_version: Literal["gpu.platform/v1"]
    kind: Literal["GpuPricing"]
    metadata: Metadata
    spec: PricingSpec = PricingSpec()
