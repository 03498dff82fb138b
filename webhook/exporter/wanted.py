"""GPUs that workloads have been promised but whose pods do not exist yet: the `committed` part of a quota bar."""

from collections.abc import Mapping, Sequence

from webhook.exporter.cost import WHOLE_GPU
from webhook.exporter.gpu_pods import CountedPod, Owners
from webhook.exporter.view import ClusterView
from webhook.k8s.pod_resources import pod_requests
from webhook.k8s.workloads import pods_wanted, template_of


def committed_gpus(view: ClusterView, pods: Sequence[CountedPod], owners: Owners) -> Mapping[str, float]:
    """Namespace -> whole GPUs that its workloads still want beyond the pods they have."""
    held: dict[tuple[str, str, str], float] = {}
    for pod in pods:
        *_, (kind, name) = owners.chain(pod.namespace, "Pod", pod.name, pod.pod)
        key = (pod.namespace, kind, name)
        held[key] = held.get(key, 0.0) + float(pod.gpus.get(WHOLE_GPU, 0))
    committed: dict[str, float] = {}
    for workload in view.workloads:
        namespace, name = workload.metadata.namespace, workload.metadata.name
        owner = workload.metadata.controller
        if owner is not None and owners.find(namespace, owner.kind, owner.name) is not None:
            continue  # its owner speaks for it
        wanted, template = pods_wanted(workload.kind, workload), template_of(workload)
        if not wanted or template is None or template.spec is None:
            continue
        total = wanted * float(pod_requests(template.spec).get(WHOLE_GPU, 0))
        missing = total - held.get((namespace, workload.kind, name), 0.0)
        if missing > 0:
            committed[namespace] = committed.get(namespace, 0.0) + missing
    return committed
