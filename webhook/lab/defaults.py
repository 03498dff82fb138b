"""API defaulting: what the API server fills in before admission sees an object (A1, A11, A12, W1, W2, W11)."""

from collections.abc import Callable, Iterator
from typing import Any

from webhook.k8s import limit_range
from webhook.k8s.objects import LimitRangeItem
from webhook.lab import resources, typed
from webhook.lab.resources import Object, Resource

_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_PRINTED_NULLS = ("nodeSelectorTerms", "lastProbeTime", "eventTime", "firstTimestamp", "lastTimestamp")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def set_defaults(resource: Resource, obj: Object) -> None:
    """Fill in `obj` in place, as decoding a request does. Raises 400 on a value of the wrong type."""
    obj["kind"], obj["apiVersion"] = resource.kind, resource.api_version
    typed.check(resource, obj)
    _drop_nulls(obj)
    setter = _DEFAULTS.get(resource.kind)
    if setter:
        setter(obj)


def _drop_nulls(value: Any) -> None:
    """Null equals absent for every optional field; a few are always printed (N9)."""
    if isinstance(value, dict):
        for key in [k for k, v in value.items() if v is None and k not in _PRINTED_NULLS]:
            del value[key]
        for child in value.values():
            _drop_nulls(child)
    elif isinstance(value, list):
        for child in value:
            _drop_nulls(child)


def containers(spec: Object) -> Iterator[Object]:
    """Init containers and containers (and ephemeral ones) of a pod spec."""
    for name in _CONTAINER_LISTS:
        for container in spec.get(name) or []:
            if isinstance(container, dict):
                yield container


# -- pods -------------------------------------------------------------------------------------------------------------


def _pod(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or []:
            _requests_from_limits(container["resources"])
    obj.setdefault("status", {})


def _requests_from_limits(amounts: Object) -> None:
    """R1: per resource, and for Pods only."""
    limits = amounts.get("limits")
    if limits:
        amounts["requests"] = {**limits, **(amounts.get("requests") or {})}


def pod_spec(spec: Object) -> None:
    """Defaults that pods and templates share (A12)."""
    for container in containers(spec):
        _container(container)
    for volume in spec.get("volumes") or []:
        _volume(volume)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    typed.canonicalize(resources.PODS, spec, "overhead")
    if "resources" in spec:
        _resources(spec["resources"])


def _container(container: Object) -> None:
    image = str(container.get("image", ""))
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    pull = "Always" if tag in ("", "latest") and "@" not in image else "IfNotPresent"
    container.setdefault("imagePullPolicy", pull)
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    _resources(container.setdefault("resources", {}))
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for probe in (container[name] for name in _PROBES if name in container):
        for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1)):
            probe.setdefault(key, value)
        probe.setdefault("failureThreshold", 3)
        if "httpGet" in probe:
            probe["httpGet"].setdefault("scheme", "HTTP")
    for variable in container.get("env") or []:
        field = (variable.get("valueFrom") or {}).get("fieldRef")
        if field:
            field.setdefault("apiVersion", "v1")


def _resources(amounts: Object) -> None:
    typed.canonicalize(resources.PODS, amounts, "limits")
    typed.canonicalize(resources.PODS, amounts, "requests")


def _volume(volume: Object) -> None:
    for source in ("configMap", "secret", "projected", "downwardAPI"):
        if source in volume:
            volume[source].setdefault("defaultMode", 420)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}


# -- workloads --------------------------------------------------------------------------------------------------------


def _template(spec: Object) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        pod_spec(template.setdefault("spec", {}))


def _deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    obj.setdefault("status", {})


def _replica_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    spec.setdefault("replicas", 1)
    obj.setdefault("status", {}).setdefault("replicas", 0)


def _replication_controller(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        spec.setdefault("selector", dict(labels))
        obj["metadata"].setdefault("labels", dict(labels))
    _replica_set(obj)


def _stateful_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    spec.setdefault("replicas", 1)
    spec.setdefault("serviceName", "")
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    status = obj.setdefault("status", {})
    status.setdefault("replicas", 0)
    status.setdefault("availableReplicas", 0)


def _daemon_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    obj["metadata"].setdefault("annotations", {}).setdefault("deprecated.daemonset.template.generation", "0")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    status = obj.setdefault("status", {})
    for count in ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"):
        status.setdefault(count, 0)


def _job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        obj["metadata"].setdefault("labels", dict(labels))
    obj.setdefault("status", {})


def _cron_job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    job = spec.setdefault("jobTemplate", {})
    job.setdefault("metadata", {})
    _template(job.setdefault("spec", {}))
    obj.setdefault("status", {})


# -- the rest ---------------------------------------------------------------------------------------------------------


def _namespace(obj: Object) -> None:
    metadata = obj["metadata"]
    if metadata.get("name"):
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def _node(obj: Object) -> None:
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    typed.canonicalize(resources.NODES, status, "capacity")
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))
    typed.canonicalize(resources.NODES, status, "allocatable")


def _resource_quota(obj: Object) -> None:
    typed.canonicalize(resources.RESOURCE_QUOTAS, obj.setdefault("spec", {}), "hard")
    status = obj.setdefault("status", {})
    typed.canonicalize(resources.RESOURCE_QUOTAS, status, "hard")
    typed.canonicalize(resources.RESOURCE_QUOTAS, status, "used")


def _limit_range(obj: Object) -> None:
    for item in obj.setdefault("spec", {}).setdefault("limits", []):
        for key in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
            typed.canonicalize(resources.LIMIT_RANGES, item, key)
        if item.get("type") == "Container":
            _limit_range_defaults(item)


def _limit_range_defaults(item: Object) -> None:
    """A14."""
    stored = limit_range.defaulted(typed.read(item, LimitRangeItem))
    for key, amounts in (("default", stored.default), ("defaultRequest", stored.default_request)):
        if amounts:
            item[key] = dict(amounts)


def _priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj.setdefault("value", 0)


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")


def _autoscaler(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("minReplicas", 1)
    obj.setdefault("status", {})


def _webhook_configuration(obj: Object) -> None:
    """V23."""
    for hook in obj.get("webhooks") or []:
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("timeoutSeconds", 10)
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        if obj["kind"] == "MutatingWebhookConfiguration":
            hook.setdefault("reinvocationPolicy", "Never")
        service = hook.get("clientConfig", {}).get("service")
        if service:
            service.setdefault("port", 443)
        for rule in hook.get("rules") or []:
            rule.setdefault("scope", "*")


_DEFAULTS: dict[str, Callable[[Object], None]] = {
    "Pod": _pod,
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "ReplicationController": _replication_controller,
    "StatefulSet": _stateful_set,
    "DaemonSet": _daemon_set,
    "Job": _job,
    "CronJob": _cron_job,
    "Namespace": _namespace,
    "Node": _node,
    "ResourceQuota": _resource_quota,
    "LimitRange": _limit_range,
    "PriorityClass": _priority_class,
    "Service": _service,
    "Secret": _secret,
    "HorizontalPodAutoscaler": _autoscaler,
    "MutatingWebhookConfiguration": _webhook_configuration,
    "ValidatingWebhookConfiguration": _webhook_configuration,
}
