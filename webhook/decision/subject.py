"""What a request is about: the pod spec that is judged, where it lies in the object, and who stands behind it."""

import msgspec

from webhook.decision.request import Request
from webhook.k8s import workloads
from webhook.k8s.objects import ObjectMeta, Pod, PodSpec, PodTemplate, Scale, Workload
from webhook.k8s.workloads import WorkloadKind

_NO_METADATA = ObjectMeta()
_NO_SPEC = PodSpec()
_NO_TEMPLATE = PodTemplate()


class Subject(msgspec.Struct, frozen=True):
    """A Pod, or a workload with its template.

    For a Scale it is the parent workload with the new number of replicas. `spec` is empty where the object has none.
    """

    row: WorkloadKind
    kind: str
    name: str
    metadata: ObjectMeta
    pod_metadata: ObjectMeta
    spec: PodSpec
    workload: Workload | None
    is_pod: bool


def of_object(row: WorkloadKind, found: Pod | Workload, name: str) -> Subject:
    """The subject of a request on the object itself."""
    if isinstance(found, Pod):
        return Subject(row, row.kind, name, found.metadata, found.metadata, found.spec or _NO_SPEC, None, True)
    template = workloads.template_of(found) or _NO_TEMPLATE
    metadata, spec = template.metadata or _NO_METADATA, template.spec or _NO_SPEC
    return Subject(row, row.kind, name, found.metadata, metadata, spec, found, False)


def shown_name(metadata: ObjectMeta) -> str:
    """The object's name, or its generateName prefix marked as one (V2, B27)."""
    if metadata.name:
        return metadata.name
    return f"{metadata.generate_name}*" if metadata.generate_name else ""


def is_scale(request: Request) -> bool:
    return request.sub_resource == "scale" and isinstance(request.object, Scale)
