"""Who is asking: controllers, told from people by user name and never by what an object says (W18-W20)."""

from webhook.decision.request import Request
from webhook.decision.subject import Subject
from webhook.k8s import workloads
from webhook.k8s.objects import ObjectMeta
from webhook.policy.model import Spec


def is_w19(request: Request, spec: Spec) -> bool:
    """Whether the user is a built-in controller (W19) or one of `trustedControllers`."""
    return workloads.controller_user(request.user.name) is not None or request.user.name in spec.trusted_controllers


def is_made_by_controller(request: Request, subject: Subject, spec: Spec) -> bool:
    """A Pod or Job that a controller made for an owner that was judged itself: never denied by us (DESIGN 5.7).

    The owner's kind must be one of the workload kinds; for `trustedControllers` any controller owner counts.
    """
    if request.operation != "CREATE" or not is_w19(request, spec):
        return False
    if subject.kind == "Job":
        return True
    if subject.kind != "Pod" or subject.metadata.controller is None:
        return False
    if request.user.name in spec.trusted_controllers:
        return True
    return workloads.controlling_kind(subject.metadata) is not None


def is_daemon_pod(subject: Subject) -> bool:
    """A Pod that names a DaemonSet as its controller (N15): trust it only together with the user."""
    owner = subject.metadata.controller
    return subject.kind == "Pod" and owner is not None and owner.kind == "DaemonSet"


def is_mirror(request: Request, metadata: ObjectMeta) -> bool:
    """A mirror Pod, made by a kubelet (P15); the annotation alone, which anybody can set, opens nothing (B46)."""
    return request.user.name.startswith("system:node:") and workloads.is_mirror(metadata)
