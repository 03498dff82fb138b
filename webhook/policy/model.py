"""The documents an admin writes under `policies/`, field by field, with the descriptions an editor shows."""

import re
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from webhook.k8s.objects import LabelSelector

NO_SLASH = "^[^/]+$"
DURATION = "^([0-9]+(s|m|h|d))+$"
API_VERSION = "gpu.platform/v1"

Mode = Literal["enforce", "warn", "audit"]
OnQuota = Literal["deny", "warn"]
Kind = Literal["Pod", "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "DaemonSet", "Job", "CronJob"]


class Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Camel-case keys; an unknown key is an error."""


class Toleration(Document, frozen=True):
    """A toleration as in a pod; added unless one that is there already covers it."""

    key: Annotated[str, Meta(description="The taint's key; empty with operator Exists tolerates every taint.")] = ""
    operator: Annotated[
        Literal["Exists", "Equal"], Meta(description="Exists: whatever the taint's value; Equal: this value.")
    ] = "Equal"
    value: Annotated[str, Meta(description="The taint's value, with operator Equal only.")] = ""
    effect: Annotated[
        Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
        Meta(description="The taint's effect; empty tolerates all effects."),
    ] = ""
    toleration_seconds: Annotated[
        int | None, Meta(description="How long a NoExecute taint is tolerated, in seconds; absent: for ever.")
    ] = None


class SelectorRequirement(Document, frozen=True):
    """One condition on one label."""

    key: Annotated[str, Meta(description="The label's key.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist"],
        Meta(description="NotIn and DoesNotExist also match objects that lack the label."),
    ]
    values: Annotated[tuple[str, ...], Meta(description="For In and NotIn at least one; for the others none.")] = ()


class Selector(Document, frozen=True):
    """Kubernetes' LabelSelector: all parts are ANDed; `{}` matches everything."""

    match_labels: Annotated[dict[str, str], Meta(description="Label key -> the value it must have; all must hold.")] = (
        field(default_factory=dict)
    )
    match_expressions: Annotated[
        tuple[SelectorRequirement, ...], Meta(description="Conditions that must all hold.")
    ] = ()

    def as_label_selector(self) -> LabelSelector:
        return msgspec.convert(msgspec.to_builtins(self), LabelSelector)


class Rule(Document, frozen=True):
    """What happens to workloads in the namespaces that it selects; the first rule that matches counts."""

    name: Annotated[str, Meta(description="Shown in messages, records and metrics.", min_length=1, max_length=63)]
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
        Literal["deny", "override", "keep"],
        Meta(description="What to do with a class that is not allowed: refuse, replace it, or leave it."),
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


class Quota(Document, frozen=True):
    """What the pre-check of ResourceQuotas does; the API server's own quota admission judges afterwards, always."""

    on_exceeded: Annotated[OnQuota, Meta(description="What a quota that would be exceeded does.")] = "deny"
    waiting_kinds: Annotated[
        tuple[Kind, ...],
        Meta(description='Kinds that may wait for room: "not now" is a warning, "never fits" stays a denial.'),
    ] = ()
    on_unknown: Annotated[
        Literal["allow", "deny"], Meta(description="When usage or labels could not be learned; allow adds a warning.")
    ] = "allow"
    resources: Annotated[Literal["all", "gpu"], Meta(description="Which quota keys are checked for GPU workloads.")] = (
        "all"
    )


class Exemption(Document, frozen=True):
    """Who is not judged: filled fields are ANDed, values inside one field are ORed; all empty is an error."""

    name: Annotated[
        str,
        Meta(description="Written into gpu.platform/exempt and into the record.", pattern=NO_SLASH, max_length=63),
    ]
    reason: Annotated[str, Meta(description="Why; printed in the record.")] = ""
    users: Annotated[tuple[str, ...], Meta(description="User names, exactly as the API server knows them.")] = ()
    groups: Annotated[tuple[str, ...], Meta(description="The user is in any of these groups.")] = ()
    service_accounts: Annotated[tuple[str, ...], Meta(description="As namespace/name.")] = ()
    namespaces: Annotated[tuple[str, ...], Meta(description="The object is in any of these namespaces.")] = ()
    expires: Annotated[datetime | None, Meta(description="RFC 3339 time with zone at which it ends.")] = None


class BreakGlass(Document, frozen=True):
    """Who may pass in an emergency by setting `gpu.platform/break-glass: "<reason>"` on an object."""

    groups: Annotated[tuple[str, ...], Meta(description="Groups whose gpu.platform/break-glass is honoured.")] = ()
    max_age: Annotated[
        str, Meta(description="How long it lasts, say 4h or 1h30m.", pattern=DURATION, max_length=20)
    ] = "4h"

    @property
    def max_age_seconds(self) -> int:
        """`max_age` in seconds."""
        return duration_seconds(self.max_age)


class Spec(Document, frozen=True):
    """The policy itself."""

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
    quota: Annotated[Quota, Meta(description="How ResourceQuotas are pre-checked.")] = Quota()
    contact: Annotated[str, Meta(description="Printed in a denial: a channel, an address, a URL.", max_length=200)] = ""
    exemptions: Annotated[tuple[Exemption, ...], Meta(description="Who is not judged, and until when.")] = ()
    break_glass: Annotated[BreakGlass, Meta(description="Who may pass in an emergency; no groups: nobody.")] = (
        BreakGlass()
    )
    trusted_controllers: Annotated[
        tuple[str, ...], Meta(description="User names of operators that are treated as controllers.")
    ] = ()


class Metadata(Document, frozen=True):
    """Only a name."""

    name: Annotated[str, Meta(description="Shown in records.", min_length=1, max_length=253)]


class GpuPolicy(Document, frozen=True):
    """Which priority class and node pool GPU workloads get, and what is refused. Exactly one per folder."""

    api_version: Annotated[Literal["gpu.platform/v1"], Meta(description="gpu.platform/v1")]
    kind: Annotated[Literal["GpuPolicy"], Meta(description="GpuPolicy")]
    metadata: Annotated[Metadata, Meta(description="The policy's name.")]
    spec: Annotated[Spec, Meta(description="The policy itself.")]


Price = Annotated[float, Meta(ge=0, le=1_000_000)]
"""The price of one for an hour."""


class LabelPrice(Document, frozen=True):
    """The prices on nodes that carry a label; the first entry that matches a node counts."""

    label: Annotated[str, Meta(description="Node label, say nvidia.com/gpu.product.")]
    value: Annotated[str, Meta(description="The value it must have.")]
    price: Annotated[dict[str, Price], Meta(description="Resource name -> price of one per hour.")]


class PricingSpec(Document, frozen=True):
    """Prices per hour."""

    currency: Annotated[str, Meta(description="Shown beside amounts, say USD.", min_length=1, max_length=8)] = "USD"
    default: Annotated[float, Meta(description="Price of one GPU for one hour.", ge=0, le=1_000_000)] = 2.40
    by_node_label: Annotated[
        tuple[LabelPrice, ...], Meta(description="Other prices by node label; the first that matches counts.")
    ] = ()


class GpuPricing(Document, frozen=True):
    """What GPUs cost. At most one per folder."""

    api_version: Annotated[Literal["gpu.platform/v1"], Meta(description="gpu.platform/v1")]
    kind: Annotated[Literal["GpuPricing"], Meta(description="GpuPricing")]
    metadata: Annotated[Metadata, Meta(description="The price list's name.")]
    spec: Annotated[PricingSpec, Meta(description="The prices.")] = PricingSpec()


def duration_seconds(text: str) -> int:
    """Seconds in a duration such as `4h` or `1h30m`; units s, m, h, d. Raises ValueError for anything else."""
    if not re.fullmatch(r"([0-9]{1,9}[smhd])+", text, re.ASCII):
        raise ValueError(f"not a duration: {text!r}")
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(int(amount) * unit[letter] for amount, letter in re.findall(r"([0-9]+)([smhd])", text))
