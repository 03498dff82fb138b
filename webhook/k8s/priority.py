"""The Priority admission plugin: which class, number and policy a new pod gets, or why it is refused."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from webhook.k8s.objects import PodSpec, PriorityClass

PREEMPT = "PreemptLowerPriority"
NEVER = "Never"
SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
"""Classes every cluster has; they are left alone (P7)."""


class PriorityError(ValueError):
    """The plugin's refusal; its text is what follows `pods "x" is forbidden: ` (P2-P6)."""

    def message(self, pod_name: str) -> str:
        """The whole refusal as the API server words it; a generateName pod is named by its prefix (P6)."""
        return f'pods "{pod_name}" is forbidden: {self}'


class Admitted(NamedTuple):
    """What the plugin writes into a pod (P2, P3)."""

    class_name: str
    """"" where neither the pod nor the cluster names one."""
    priority: int
    preemption_policy: str


def policy_of(priority_class: PriorityClass) -> str:
    """The class's preemption policy, defaulted as the API server does (P3)."""
    return priority_class.preemption_policy or PREEMPT


def global_default(classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    """The class given to pods that name none; of several the one with the lowest value, then the first by name (P2)."""
    defaults = [c for c in classes.values() if c.global_default]
    return min(defaults, key=lambda c: (c.value, c.metadata.name)) if defaults else None


def class_of_pods(spec: PodSpec, classes: Mapping[str, PriorityClass]) -> str:
    """The class that pods with this spec will have: their own or the globalDefault; "" without either (P2, P16)."""
    if spec.priority_class_name:
        return spec.priority_class_name
    default = global_default(classes)
    return default.metadata.name if default is not None else ""


def admit(spec: PodSpec, classes: Mapping[str, PriorityClass]) -> Admitted:
    """What the plugin makes of a pod on CREATE, given every PriorityClass by name.

    Raises PriorityError, in the plugin's words: the class does not exist (P2), or the pod carries a priority (P4) or a
    preemption policy (P5) that is not the class's.
    """
    admitted = _resolve(spec, classes)
    if isinstance(spec.priority, int) and spec.priority != admitted.priority:
        raise PriorityError(
            f"the integer value of priority ({spec.priority}) must not be provided in pod spec; "
            f"priority admission controller computed {admitted.priority} from the given PriorityClass name"
        )
    if isinstance(spec.preemption_policy, str) and spec.preemption_policy != admitted.preemption_policy:
        raise PriorityError(
            f"the string value of PreemptionPolicy ({spec.preemption_policy}) must not be provided in pod spec; "
            f"priority admission controller computed {admitted.preemption_policy} from the given PriorityClass name"
        )
    return admitted


def consistent(spec: PodSpec, classes: Mapping[str, PriorityClass]) -> bool:
    """Whether the plugin would accept the pod: class, number and policy agree, or the latter are absent (B01, B03)."""
    try:
        admit(spec, classes)
    except PriorityError:
        return False
    return True


def class_chosen_by_user(managed_fields: msgspec.Raw | UnsetType | None) -> bool | None:
    """Whether a Pod's `priorityClassName` was written by a client and not filled in from the globalDefault (O2).

    Reads `metadata.managedFields`, which are computed before admission. None where they are absent or unreadable: then
    nothing is known.
    """
    if managed_fields is UNSET or managed_fields is None:
        return None
    try:
        entries = msgspec.json.decode(managed_fields, type=list[_ManagedFields])
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not entries:
        return None
    return any(entry.owns_class for entry in entries)


class _ManagedFields(msgspec.Struct, rename="camel"):
    fields_v1: dict[str, Any] | None = msgspec.field(name="fieldsV1", default=None)

    @property
    def owns_class(self) -> bool:
        spec = (self.fields_v1 or {}).get("f:spec")
        return isinstance(spec, dict) and "f:priorityClassName" in spec


def _resolve(spec: PodSpec, classes: Mapping[str, PriorityClass]) -> Admitted:
    if not spec.priority_class_name:
        default = global_default(classes)
        if default is None:
            return Admitted("", 0, PREEMPT)
        return Admitted(default.metadata.name, default.value, policy_of(default))
    chosen = classes.get(spec.priority_class_name)
    if chosen is None:
        raise PriorityError(f"no PriorityClass with name {spec.priority_class_name} was found")
    return Admitted(spec.priority_class_name, chosen.value, policy_of(chosen))
