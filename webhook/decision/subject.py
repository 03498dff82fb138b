"""What a request is about: the pod spec that is judged, where it lies in the object, and who stands behind it."""

from dataclasses import dataclass
from functools import cached_property

from webhook.decision.request import Request
from webhook.k8s import workloads
from webhook.k8s.objects import ObjectMeta, Pod, PodSpec, Scale, Workload
from webhook.k8s.workloads import WorkloadKind

_NO_METADATA = ObjectMeta()
_NO_SPEC = PodSpec()


@dataclass(frozen=True)
class Subject:
    """A Pod, or a workload with its template.

    For a Scale it is the parent workload with the new number of replicas. `spec` is empty where the object has none.
    """

    row: WorkloadKind
    name: str
    metadata: ObjectMeta
    pod_metadata: ObjectMeta
    spec: PodSpec
    workload: Workload | None

    @property
    def kind(self) -> str:
        return self.row.kind

    @property
    def is_pod(self) -> bool:
        return self.workload is None

    @cached_property
    def dotted(self) -> str:
        """Path of the pod spec as people write it: `spec.template.spec`."""
        return self.row.pod_spec.strip("/").replace("/", ".")


def of_object(row: WorkloadKind, found: Pod | Workload, name: str) -> Subject:
    """The subject of a request on the object itself."""
    if isinstance(found, Pod):
        return Subject(row, name, found.metadata, found.metadata, found.spec or _NO_SPEC, None)
    template = workloads.template_of(found)
    metadata = (template.metadata if template else None) or _NO_METADATA
    return Subject(row, name, found.metadata, metadata, (template.spec if template else None) or _NO_SPEC, found)


def shown_name(request: Request, metadata: ObjectMeta) -> str:
    """The object's name, or its generateName prefix marked as one (V2, B27)."""
    if request.name or metadata.name:
        return request.name or metadata.name
    return f"{metadata.generate_name}*" if metadata.generate_name else ""


def is_scale(request: Request) -> bool:
    return request.sub_resource == "scale" and isinstance(request.object, Scale)
