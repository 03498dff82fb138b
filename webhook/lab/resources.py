"""The kinds this API serves: where each lives in the URL space and what may be done with it."""

from typing import Any, NamedTuple

import msgspec

Object = dict[str, Any]
"""One Kubernetes object as JSON. Objects in the store are shared: never change one, change what `copied` gives."""

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Resource(NamedTuple):
    """A row of `kubectl api-resources`."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`deployments.apps`: the name in error messages, and in object count quotas (Q24)."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        return self.kind.lower()


_ALL = ("all",)
_WORKLOAD = ("status", "scale")
_REVIEW = ("create",)

RESOURCES: tuple[Resource, ...] = (
    Resource("", "v1", "Namespace", "namespaces", False, ("ns",), ("status", "finalize")),
    Resource("", "v1", "Node", "nodes", False, ("no",), ("status",)),
    Resource(
        "", "v1", "Pod", "pods", True, ("po",), ("status", "binding", "eviction", "ephemeralcontainers", "log"), _ALL
    ),
    Resource("", "v1", "Service", "services", True, ("svc",), ("status",), _ALL),
    Resource("", "v1", "Endpoints", "endpoints", True, ("ep",)),
    Resource("", "v1", "ConfigMap", "configmaps", True, ("cm",)),
    Resource("", "v1", "Secret", "secrets", True),
    Resource("", "v1", "ServiceAccount", "serviceaccounts", True, ("sa",)),
    Resource("", "v1", "ResourceQuota", "resourcequotas", True, ("quota",), ("status",)),
    Resource("", "v1", "LimitRange", "limitranges", True, ("limits",)),
    Resource("", "v1", "Event", "events", True, ("ev",)),
    Resource("", "v1", "ReplicationController", "replicationcontrollers", True, ("rc",), _WORKLOAD, _ALL),
    Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, ("pvc",), ("status",)),
    Resource("apps", "v1", "Deployment", "deployments", True, ("deploy",), _WORKLOAD, _ALL),
    Resource("apps", "v1", "ReplicaSet", "replicasets", True, ("rs",), _WORKLOAD, _ALL),
    Resource("apps", "v1", "StatefulSet", "statefulsets", True, ("sts",), _WORKLOAD, _ALL),
    Resource("apps", "v1", "DaemonSet", "daemonsets", True, ("ds",), ("status",), _ALL),
    Resource("apps", "v1", "ControllerRevision", "controllerrevisions", True),
    Resource("batch", "v1", "Job", "jobs", True, (), ("status",), _ALL),
    Resource("batch", "v1", "CronJob", "cronjobs", True, ("cj",), ("status",), _ALL),
    Resource(
        "autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True, ("hpa",), ("status",), _ALL
    ),
    Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, ("pc",)),
    Resource(
        "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
    ),
    Resource(
        "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
    ),
    Resource("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    Resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", False),
    Resource("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", False),
    Resource("coordination.k8s.io", "v1", "Lease", "leases"),
    Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True, ("pdb",), ("status",)),
    Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", True, ("netpol",)),
    Resource("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", False, verbs=_REVIEW),
    Resource("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False, verbs=_REVIEW),
    Resource("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", False, verbs=_REVIEW),
    Resource("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", verbs=_REVIEW),
    Resource("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", False, verbs=_REVIEW),
)


def copied(obj: Object) -> Object:
    """A private copy; through JSON, which is much faster than `copy.deepcopy`."""
    found: Object = msgspec.json.decode(msgspec.json.encode(obj))
    return found


_BY_PATH = {(r.group, r.version, r.plural): r for r in RESOURCES}
_BY_KIND = {(r.api_version, r.kind): r for r in RESOURCES}
_BY_PLURAL = {r.plural: r for r in RESOURCES}


def at(group: str, version: str, plural: str) -> Resource | None:
    """The resource a URL names, or None."""
    return _BY_PATH.get((group, version, plural))


def of_kind(api_version: str, kind: str) -> Resource | None:
    """The resource an object's apiVersion and kind name, or None."""
    return _BY_KIND.get((api_version, kind))


def named(plural: str) -> Resource:
    """The resource with this plural; our plurals are unique. Raises KeyError."""
    return _BY_PLURAL[plural]


NAMESPACES = named("namespaces")
NODES = named("nodes")
PODS = named("pods")
SERVICES = named("services")
ENDPOINTS = named("endpoints")
CONFIG_MAPS = named("configmaps")
SERVICE_ACCOUNTS = named("serviceaccounts")
RESOURCE_QUOTAS = named("resourcequotas")
LIMIT_RANGES = named("limitranges")
EVENTS = named("events")
REPLICATION_CONTROLLERS = named("replicationcontrollers")
DEPLOYMENTS = named("deployments")
REPLICA_SETS = named("replicasets")
STATEFUL_SETS = named("statefulsets")
DAEMON_SETS = named("daemonsets")
JOBS = named("jobs")
CRON_JOBS = named("cronjobs")
PRIORITY_CLASSES = named("priorityclasses")
MUTATING_CONFIGURATIONS = named("mutatingwebhookconfigurations")
VALIDATING_CONFIGURATIONS = named("validatingwebhookconfigurations")
WEBHOOK_CONFIGURATIONS = (MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS)
