"""What storage itself sets or keeps on create and update: uids, generations, status, labels it owns."""

import random
import uuid
from datetime import UTC, datetime
from typing import Final

from webhook.lab import typed
from webhook.lab.resources import Object, Resource, copied

_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"
_WITH_GENERATION: Final = {
    "Pod", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "CronJob",
    "PriorityClass", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "PodDisruptionBudget",
    "NetworkPolicy",
}  # fmt: skip
_KEPT_METADATA: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName")


def now() -> str:
    """RFC 3339 in whole seconds, as metadata carries it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    """RFC 3339 with microseconds, as events and leases carry it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def suffix(length: int = 5) -> str:
    """What generateName appends."""
    return "".join(random.choices(_SUFFIX_ALPHABET, k=length))


def prepare_create(resource: Resource, obj: Object) -> None:
    """Between mutating admission and validation (A1): identity, generation, and status as new objects have it."""
    metadata = obj["metadata"]
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"][:57] + suffix()
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now()
    for key in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        metadata.pop(key, None)
    if resource.kind in _WITH_GENERATION:
        metadata["generation"] = 1
    reset_status(resource, obj)


def reset_status(resource: Resource, obj: Object) -> None:
    """Replace the status a client sent; only a Node keeps it."""
    match resource.kind:
        case "Pod":
            obj["status"] = {"phase": "Pending", "qosClass": typed.qos_class(obj)}
            if obj["spec"].get("schedulingGates"):
                obj["status"]["conditions"] = [gated_condition()]
        case "Namespace":
            finalizers = obj["spec"].setdefault("finalizers", [])
            if "kubernetes" not in finalizers:
                finalizers.append("kubernetes")
            obj["status"] = {"phase": "Active"}
        case "ReplicaSet" | "ReplicationController":
            obj["status"] = {"replicas": 0}
        case "StatefulSet":
            obj["status"] = {"replicas": 0, "availableReplicas": 0}
        case "DaemonSet":
            counts = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
            obj["status"] = dict.fromkeys(counts, 0)
            obj["metadata"]["annotations"][_TEMPLATE_GENERATION] = "1"
        case "Job":
            obj["status"] = {}
            _job_selector(obj)
        case "Service":
            _cluster_ip(obj)
        case "Deployment" | "CronJob" | "ResourceQuota" | "HorizontalPodAutoscaler":
            obj["status"] = {}


def gated_condition() -> Object:
    """What a pod with scheduling gates says of itself from the start (N14)."""
    times = {"lastProbeTime": None, "lastTransitionTime": now()}
    text = "Scheduling is blocked due to non-empty scheduling gates"
    return {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": text, **times}


def _job_selector(job: Object) -> None:
    """A Job without manualSelector selects its pods by its own uid."""
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector") or not isinstance(spec.get("template"), dict):
        return
    owned: dict[str, str] = {}
    for prefix in ("batch.kubernetes.io/", ""):
        owned |= {f"{prefix}controller-uid": metadata["uid"], f"{prefix}job-name": metadata["name"]}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": metadata["uid"]}}
    template = spec["template"].setdefault("metadata", {})
    template["labels"] = {**(template.get("labels") or {}), **owned}
    metadata["labels"] = {**(metadata.get("labels") or {}), **owned}


def _cluster_ip(service: Object) -> None:
    spec = service["spec"]
    if spec["type"] != "ExternalName" and not spec.get("clusterIP"):
        spec["clusterIP"] = f"10.96.{random.randint(0, 255)}.{random.randint(1, 254)}"
    if spec.get("clusterIP"):
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")


def prepare_update(resource: Resource, obj: Object, old: Object, subresource: str) -> None:
    """Keep what an update may not change; through `status` only the status changes, elsewhere never (H7)."""
    if subresource in ("status", "ephemeralcontainers"):
        _keep_all_but(obj, old, subresource)
    elif "status" in old and resource.kind != "Event":
        obj["status"] = copied(old["status"])
    metadata, kept = obj["metadata"], old["metadata"]
    for key in _KEPT_METADATA:
        if key in kept:
            metadata[key] = kept[key]
        elif key != "generateName":
            metadata.pop(key, None)
    if resource.kind == "Pod" and kept.get("generateName"):
        metadata["generateName"] = kept["generateName"]
    if "generation" in kept:
        changed = resource.kind in _WITH_GENERATION and _desired(obj) != _desired(old)
        metadata["generation"] = kept["generation"] + changed
    if resource.kind == "Service" and "clusterIP" in old.get("spec", {}):
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if key in old["spec"]:
                obj["spec"].setdefault(key, old["spec"][key])
    if resource.kind == "Namespace" and subresource != "finalize":
        obj["spec"] = copied(old["spec"])


def _keep_all_but(obj: Object, old: Object, subresource: str) -> None:
    if subresource == "status":
        for key in [key for key in obj if key not in ("metadata", "status", "kind", "apiVersion")]:
            del obj[key]
        obj |= {key: copied(value) for key, value in old.items() if key not in ("status", "metadata")}
        metadata = copied(old["metadata"])
        metadata["managedFields"] = obj["metadata"].get("managedFields", [])
        if "resourceVersion" in obj["metadata"]:
            metadata["resourceVersion"] = obj["metadata"]["resourceVersion"]
        kept = ("labels", "annotations") if obj["kind"] in ("Node", "Pod") else ("annotations",)
        metadata |= {k: v for k, v in obj["metadata"].items() if k in kept}
        obj["metadata"] = metadata
        return
    ephemeral = (obj.get("spec") or {}).get("ephemeralContainers") or []
    managed = obj["metadata"].get("managedFields", [])
    obj.clear()
    obj.update(copied(old))
    obj["spec"]["ephemeralContainers"] = ephemeral
    obj["metadata"]["managedFields"] = managed


def _desired(obj: Object) -> Object:
    """Everything but metadata and status: what `generation` counts changes of."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
