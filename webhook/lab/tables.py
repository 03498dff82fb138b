"""What `kubectl get` prints: server-side Tables, column by column."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from webhook.lab.resources import Object, Resource

NONE: Final = "<none>"


class Column(NamedTuple):
    """A column: its title, how to fill it, and whether only `-o wide` shows it."""

    title: str
    value: Callable[[Object], Any]
    wide: bool = False


def render(resource: Resource, objects: list[Object], version: int | str, meta: Object | None = None) -> Object:
    """A `meta.k8s.io/v1 Table` of `objects`."""
    columns = _COLUMNS.get(resource.kind, _DEFAULT)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version), **(meta or {})},
        "columnDefinitions": [
            {"name": c.title, "type": "string", "format": "name" if c.title == "Name" else "", "description": c.title,
             "priority": int(c.wide)} for c in columns
        ],
        "rows": [_row(columns, obj) for obj in objects],
    }  # fmt: skip


def _row(columns: tuple[Column, ...], obj: Object) -> Object:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return {"cells": [column.value(obj) for column in columns], "object": partial}


# -- small readers ----------------------------------------------------------------------------------------------------


def _at(*path: str, default: Any = NONE) -> Callable[[Object], Any]:
    def read(obj: Object) -> Any:
        value: Any = obj
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return default if value in (None, "") else value

    return read


def _count(*path: str) -> Callable[[Object], int]:
    read = _at(*path, default=0)
    return lambda obj: read(obj) if isinstance(read(obj), int) else len(read(obj))


def age(since: str | None) -> str:
    """The time since an RFC 3339 timestamp, as kubectl shortens it."""
    if not since:
        return "<unknown>"
    seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()))
    return _duration(seconds)


def _duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"


_NAME = Column("Name", _at("metadata", "name"))
_AGE = Column("Age", lambda obj: age(obj["metadata"].get("creationTimestamp")))
_CREATED = Column("Created At", _at("metadata", "creationTimestamp"))
_DEFAULT: Final = (_NAME, _AGE)


def _template(obj: Object) -> Object:
    spec = obj.get("spec") or {}
    template = spec.get("template") or ((spec.get("jobTemplate") or {}).get("spec") or {}).get("template") or {}
    found: Object = template.get("spec") or {}
    return found


def _selector(obj: Object) -> str:
    selector = obj["spec"].get("selector") or {}
    labels = selector.get("matchLabels", selector if obj["kind"] in ("Service", "ReplicationController") else {})
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


_IMAGES = (
    Column("Containers", lambda o: ",".join(c["name"] for c in _template(o).get("containers", [])), True),
    Column("Images", lambda o: ",".join(c["image"] for c in _template(o).get("containers", [])), True),
    Column("Selector", _selector, True),
)


# -- one function per cell that needs thought -------------------------------------------------------------------------


def _pod_ready(pod: Object) -> str:
    statuses = pod["status"].get("containerStatuses") or []
    return f"{sum(bool(s.get('ready')) for s in statuses)}/{len(pod['spec'].get('containers') or [])}"


def _pod_status(pod: Object) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    for status in pod["status"].get("containerStatuses") or []:
        terminated = (status.get("state") or {}).get("terminated")
        if terminated and terminated.get("reason"):
            return str(terminated["reason"])
    conditions = pod["status"].get("conditions") or []
    if any(c.get("reason") == "SchedulingGated" for c in conditions):
        return "SchedulingGated"
    return str(pod["status"].get("reason") or pod["status"].get("phase", "Unknown"))


def _restarts(pod: Object) -> str:
    return str(sum(s.get("restartCount", 0) for s in pod["status"].get("containerStatuses") or []))


def _ready_of(path: str) -> Callable[[Object], str]:
    return lambda o: f"{o['status'].get(path, 0)}/{o['spec'].get('replicas', 0)}"


def _job_status(job: Object) -> str:
    true = {c["type"] for c in job["status"].get("conditions") or [] if c["status"] == "True"}
    for condition, shown in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if condition in true:
            return shown
    return "Terminating" if "deletionTimestamp" in job["metadata"] else "Running"


def _job_completions(job: Object) -> str:
    done, spec = job["status"].get("succeeded", 0), job["spec"]
    if spec.get("completions") is not None:
        return f"{done}/{spec['completions']}"
    parallelism = spec.get("parallelism", 1)
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _job_duration(job: Object) -> str:
    start, end = job["status"].get("startTime"), job["status"].get("completionTime")
    if not start:
        return ""
    if not end:
        return age(start)
    return _duration(int((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()))


def _node_status(node: Object) -> str:
    conditions = {c["type"]: c["status"] for c in node["status"].get("conditions") or []}
    words = ["Ready" if conditions.get("Ready") == "True" else "NotReady" if "Ready" in conditions else "Unknown"]
    if node["spec"].get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [k.removeprefix(prefix) for k in node["metadata"].get("labels") or {} if k.startswith(prefix)]
    return ",".join(sorted(roles)) or NONE


def _node_address(node: Object) -> str:
    addresses = node["status"].get("addresses") or []
    return next((a["address"] for a in addresses if a.get("type") == "InternalIP"), NONE)


def _quota(prefix: str) -> Callable[[Object], str]:
    def shown(quota: Object) -> str:
        hard, used = (quota["status"].get(key) or {} for key in ("hard", "used"))
        keys = [key for key in sorted(hard) if key.startswith("limits.") == (prefix == "limits.")]
        return ", ".join(f"{key}: {used.get(key, '0')}/{hard[key]}" for key in keys)

    return shown


def _last_seen(event: Object) -> str:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    count = series.get("count") or event.get("count") or 1
    first = event.get("firstTimestamp") or event.get("eventTime")
    shown = age(last or event["metadata"].get("creationTimestamp"))
    return f"{shown} (x{count} over {age(first)})" if count > 1 else shown


def _involved(event: Object) -> str:
    involved = event.get("involvedObject") or {}
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _ports(service: Object) -> str:
    ports = service["spec"].get("ports") or []
    return ",".join(f"{p.get('port')}/{p.get('protocol', 'TCP')}" for p in ports) or NONE


def _addresses(endpoints: Object) -> str:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in endpoints.get("subsets") or []
        for address in subset.get("addresses") or []
        for port in subset.get("ports") or [{"port": ""}]
    ]
    return ",".join(found) or NONE


def _reference(autoscaler: Object) -> str:
    target = autoscaler["spec"].get("scaleTargetRef") or {}
    return f"{target.get('kind', '')}/{target.get('name', '')}"


def _data(obj: Object) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


_COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "Pod": (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _restarts),
        _AGE,
        Column("IP", _at("status", "podIP"), True),
        Column("Node", _at("spec", "nodeName"), True),
        Column("Nominated Node", _at("status", "nominatedNodeName"), True),
        Column("Readiness Gates", lambda _: NONE, True),
    ),
    "Deployment": (
        _NAME,
        Column("Ready", _ready_of("readyReplicas")),
        Column("Up-to-date", _count("status", "updatedReplicas")),
        Column("Available", _count("status", "availableReplicas")),
        _AGE,
        *_IMAGES,
    ),
    "ReplicaSet": (
        _NAME,
        Column("Desired", _count("spec", "replicas")),
        Column("Current", _count("status", "replicas")),
        Column("Ready", _count("status", "readyReplicas")),
        _AGE,
        *_IMAGES,
    ),
    "ReplicationController": (
        _NAME,
        Column("Desired", _count("spec", "replicas")),
        Column("Current", _count("status", "replicas")),
        Column("Ready", _count("status", "readyReplicas")),
        _AGE,
        *_IMAGES,
    ),
    "StatefulSet": (_NAME, Column("Ready", _ready_of("readyReplicas")), _AGE, *_IMAGES[:2]),
    "DaemonSet": (
        _NAME,
        Column("Desired", _count("status", "desiredNumberScheduled")),
        Column("Current", _count("status", "currentNumberScheduled")),
        Column("Ready", _count("status", "numberReady")),
        Column("Up-to-date", _count("status", "updatedNumberScheduled")),
        Column("Available", _count("status", "numberAvailable")),
        Column("Node Selector", lambda o: _labels(_template(o).get("nodeSelector"))),
        _AGE,
        *_IMAGES,
    ),
    "Job": (
        _NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        _AGE,
        *_IMAGES,
    ),
    "CronJob": (
        _NAME,
        Column("Schedule", _at("spec", "schedule")),
        Column("Timezone", _at("spec", "timeZone")),
        Column("Suspend", lambda o: str(o["spec"].get("suspend", False))),
        Column("Active", _count("status", "active")),
        Column("Last Schedule", _at("status", "lastScheduleTime")),
        _AGE,
        *_IMAGES,
    ),
    "Namespace": (_NAME, Column("Status", _at("status", "phase")), _AGE),
    "Node": (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _at("status", "nodeInfo", "kubeletVersion", default="")),
        Column("Internal-IP", _node_address, True),
        Column("External-IP", lambda _: NONE, True),
        Column("OS-Image", _at("status", "nodeInfo", "osImage", default="<unknown>"), True),
        Column("Kernel-Version", _at("status", "nodeInfo", "kernelVersion", default="<unknown>"), True),
        Column("Container-Runtime", _at("status", "nodeInfo", "containerRuntimeVersion", default="<unknown>"), True),
    ),
    "ResourceQuota": (_NAME, Column("Request", _quota("")), Column("Limit", _quota("limits.")), _AGE),
    "LimitRange": (_NAME, _CREATED),
    "PriorityClass": (
        _NAME,
        Column("Value", _count("value")),
        Column("Global-Default", lambda o: str(bool(o.get("globalDefault"))).lower()),
        _AGE,
        Column("PreemptionPolicy", _at("preemptionPolicy")),
    ),
    "Service": (
        _NAME,
        Column("Type", _at("spec", "type")),
        Column("Cluster-IP", _at("spec", "clusterIP")),
        Column("External-IP", _at("spec", "externalName")),
        Column("Port(s)", _ports),
        _AGE,
        Column("Selector", _selector, True),
    ),
    "Endpoints": (_NAME, Column("Endpoints", _addresses), _AGE),
    "ConfigMap": (_NAME, Column("Data", _data), _AGE),
    "Secret": (_NAME, Column("Type", _at("type")), Column("Data", _data), _AGE),
    "ServiceAccount": (_NAME, Column("Secrets", _count("secrets")), _AGE),
    "Event": (
        Column("Last Seen", _last_seen),
        Column("Type", _at("type", default="")),
        Column("Reason", _at("reason", default="")),
        Column("Object", _involved),
        Column("Subobject", _at("involvedObject", "fieldPath", default=""), True),
        Column("Source", _at("source", "component", default=""), True),
        Column("Message", _at("message", default="")),
        Column("Name", _at("metadata", "name"), True),
    ),
    "HorizontalPodAutoscaler": (
        _NAME,
        Column("Reference", _reference),
        Column("Targets", lambda _: "<unknown>"),
        Column("MinPods", _count("spec", "minReplicas")),
        Column("MaxPods", _count("spec", "maxReplicas")),
        Column("Replicas", _count("status", "currentReplicas")),
        _AGE,
    ),
    "MutatingWebhookConfiguration": (_NAME, Column("Webhooks", _count("webhooks")), _AGE),
    "ValidatingWebhookConfiguration": (_NAME, Column("Webhooks", _count("webhooks")), _AGE),
    "Role": (_NAME, _CREATED),
    "ClusterRole": (_NAME, _CREATED),
    "RoleBinding": (_NAME, Column("Role", lambda o: f"{o['roleRef']['kind']}/{o['roleRef']['name']}"), _AGE),
    "ClusterRoleBinding": (_NAME, Column("Role", lambda o: f"{o['roleRef']['kind']}/{o['roleRef']['name']}"), _AGE),
    "Lease": (_NAME, Column("Holder", _at("spec", "holderIdentity")), _AGE),
    "PodDisruptionBudget": (
        _NAME,
        Column("Min Available", _at("spec", "minAvailable", default="N/A")),
        Column("Max Unavailable", _at("spec", "maxUnavailable", default="N/A")),
        Column("Allowed Disruptions", _count("status", "disruptionsAllowed")),
        _AGE,
    ),
}


def _labels(labels: dict[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE
