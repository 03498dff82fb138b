"""Who is asking: controllers, told from people by user name and never by what an object says (W18-W20)."""

from collections.abc import Callable

from webhook.decision.request import Request
from webhook.decision.subject import Subject
from webhook.k8s import workloads
from webhook.k8s.objects import ObjectMeta
from webhook.policy.model import Spec


def is_w19(request: Request, spec: Spec) -> bool:
    """Whether the user is a built-in controller (W19) or one of `trustedControllers`."""
    return workloads.controller_user(request.user.name) is not None or request.user.name in spec.trusted_controllers


_MADE_BY = {"ReplicaSet": "Deployment", "Job": "CronJob"}
"""Kinds that a controller makes from another one, which then is what was judged."""


def is_made_by_controller(request: Request, subject: Subject, spec: Spec) -> bool:
    """A Pod or Job that a controller made for an owner that was judged itself: never denied by us (DESIGN 5.7).

    The owner's kind, or the kind that owners of this kind are made from, must be listed in `workloads`; for
    `trustedControllers` any controller owner counts.
    """
    return _is_made(request, subject, spec, lambda kind: kind in spec.workloads or _MADE_BY.get(kind) in spec.workloads)


def may_carry_exemption(request: Request, subject: Subject, spec: Spec) -> bool:
    """Whether `gpu.platform/exempt` on this Pod or Job counts: everybody's writes of its owner's kind are judged.

    An owner of a kind that the policy does not list may carry whatever its author put there (B46).
    """
    if subject.kind == "Job" and "CronJob" not in spec.workloads and request.user.name not in spec.trusted_controllers:
        return False
    return _is_made(request, subject, spec, lambda kind: kind in spec.workloads)


def _is_made(request: Request, subject: Subject, spec: Spec, counts: Callable[[str], bool]) -> bool:
    if request.operation != "CREATE" or not is_w19(request, spec):
        return False
    if subject.kind == "Job":
        return True
    if subject.kind != "Pod" or subject.metadata.controller is None:
        return False
    if request.user.name in spec.trusted_controllers:
        return True
    owner = workloads.controlling_kind(subject.metadata)
    return owner is not None and counts(owner.kind)


def is_daemon_pod(request: Request, subject: Subject, spec: Spec) -> bool:
    """A Pod that a controller made for a DaemonSet (N15); anybody else's owner proves nothing (W18)."""
    if subject.kind != "Pod" or not is_w19(request, spec):
        return False
    owner = workloads.controlling_kind(subject.metadata)
    return owner is not None and owner.kind == "DaemonSet"


def is_mirror(request: Request, metadata: ObjectMeta) -> bool:
    """A mirror Pod, made by a kubelet (P15); the annotation alone, which anybody can set, opens nothing (B46)."""
    return request.user.name.startswith("system:node:") and workloads.is_mirror(metadata)
