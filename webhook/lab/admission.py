"""The admission chain in the API server's order: built-in plugins, webhooks, and the second pass (A1-A10)."""

import time
from collections.abc import Callable
from typing import Final

from webhook.k8s import limit_range, objects, priority
from webhook.lab import defaults, errors, resources, typed
from webhook.lab.call import Attributes
from webhook.lab.resources import Object
from webhook.lab.store import Store
from webhook.lab.strategy import suffix
from webhook.lab.webhook_client import REQUEST_BUDGET, WebhookClient
from webhook.lab.webhooks import Reinvocation, Webhooks

_SUBJECTS: Final = ("Scale", "Binding", "Eviction", "PodExecOptions")
"""Kinds seen in reviews of subresources that are not the resource's own and have no defaults."""

_UNDELETABLE: Final = ("default", "kube-system", "kube-public")
_LIMIT_RANGER_ANNOTATION: Final = "kubernetes.io/limit-ranger"
_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_TOKEN_MOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_ACCOUNT_WAIT: Final = 1.0
"""Seconds a pod waits for the `default` account of a namespace that was made just before."""


class Admission:
    """All plugins, in order. ResourceQuota, the last of them, is charged where the object is stored."""

    def __init__(self, store: Store, client: WebhookClient) -> None:
        self._store = store
        self._webhooks = Webhooks(store, client, redefault)
        self._mutating: tuple[Callable[[Attributes], None], ...] = (
            self._namespace_lifecycle,
            self._limit_ranger,
            self._service_account,
            self._priority,
            _default_toleration_seconds,
        )

    def mutate(self, attributes: Attributes, deadline: float) -> None:
        """The mutating phase: the chain once, and exactly once more if a webhook changed the object (A7)."""
        passes = Reinvocation()
        self._mutate_once(attributes, passes, deadline)
        if passes.wanted:
            passes.second_pass = True
            self._mutate_once(attributes, passes, deadline)

    def _mutate_once(self, attributes: Attributes, passes: Reinvocation, deadline: float) -> None:
        for plugin in self._mutating:
            plugin(attributes)
        self._webhooks.mutate(attributes, passes, deadline)

    def validate(self, attributes: Attributes, deadline: float) -> None:
        """The validating phase but for quota (A5)."""
        if _creates_pod(attributes):
            self._limit_violations(attributes)
        self._webhooks.validate(attributes, deadline)

    # -- built-in plugins -------------------------------------------------------------------------------------------

    def _namespace_lifecycle(self, attributes: Attributes) -> None:
        """A18."""
        resource = attributes.resource
        if resource is resources.NAMESPACES:
            if attributes.operation == "DELETE" and attributes.name in _UNDELETABLE:
                raise errors.forbidden(resource, attributes.name, "this namespace may not be deleted")
            return
        if not resource.namespaced or attributes.operation != "CREATE" or attributes.subresource:
            return
        namespace = self._store.get(resources.NAMESPACES, "", attributes.namespace)
        if namespace is None:
            raise errors.not_found(resources.NAMESPACES, attributes.namespace)
        if namespace.object["status"].get("phase") == "Terminating":
            why = f"unable to create new content in namespace {attributes.namespace} because it is being terminated"
            field = {"reason": "NamespaceTerminating", "message": why, "field": "metadata.namespace"}
            raise errors.forbidden(resource, attributes.shown_name, why, [field])

    def _limit_ranges(self, namespace: str) -> list[objects.LimitRange]:
        return [
            typed.read(record.raw, objects.LimitRange)
            for record in self._store.records(resources.LIMIT_RANGES, namespace)
        ]

    def _limit_ranger(self, attributes: Attributes) -> None:
        """A13: fills container amounts and says so in an annotation."""
        if not _creates_pod(attributes) or attributes.object is None:
            return
        ranges = self._limit_ranges(attributes.namespace)
        if not ranges:
            return
        spec = attributes.object["spec"]
        filled = limit_range.apply(typed.read(spec, objects.PodSpec), ranges)
        notes: list[str] = []
        for field, title, containers in (
            ("containers", "container", filled.containers),
            ("initContainers", "init container", filled.init_containers),
        ):
            for plain, container in zip(spec.get(field) or [], containers or (), strict=True):
                notes += _fill_container(plain, container, f"{title} {plain.get('name', '')}")
        if notes:
            annotations = attributes.object["metadata"].setdefault("annotations", {})
            annotations[_LIMIT_RANGER_ANNOTATION] = "LimitRanger plugin set: " + "; ".join(notes)

    def _limit_violations(self, attributes: Attributes) -> None:
        ranges = self._limit_ranges(attributes.namespace)
        if not ranges or attributes.object is None:
            return
        found = limit_range.violations(typed.read(attributes.object["spec"], objects.PodSpec), ranges)
        if found:
            raise errors.forbidden(attributes.resource, attributes.shown_name, limit_range.aggregate(found))

    def _service_account(self, attributes: Attributes) -> None:
        """A15: the account must exist; its token is mounted."""
        pod = attributes.object
        if not _creates_pod(attributes) or pod is None or _is_mirror(pod):
            return
        spec = pod["spec"]
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = self._find_account(attributes.namespace, name)
        if account is None:
            why = f'error looking up service account {attributes.namespace}/{name}: serviceaccount "{name}" not found'
            raise errors.forbidden(attributes.resource, attributes.shown_name, why)
        mounted = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        if mounted:
            _mount_token(spec)

    def _find_account(self, namespace: str, name: str) -> Object | None:
        until = time.monotonic() + (_ACCOUNT_WAIT if name == "default" else 0)
        while True:
            record = self._store.get(resources.SERVICE_ACCOUNTS, namespace, name)
            if record is not None:
                return record.object
            if time.monotonic() >= until:
                return None
            time.sleep(0.01)

    def _priority(self, attributes: Attributes) -> None:
        """P1-P6, P10."""
        if attributes.resource is not resources.PODS or attributes.subresource or attributes.object is None:
            return
        spec = attributes.object["spec"]
        if attributes.operation == "UPDATE" and attributes.old is not None:
            for key in ("priority", "preemptionPolicy"):
                if key not in spec and key in attributes.old["spec"]:
                    spec[key] = attributes.old["spec"][key]
        elif attributes.operation == "CREATE":
            try:
                admitted = priority.admit(typed.read(spec, objects.PodSpec), self._priority_classes())
            except priority.PriorityError as error:
                raise errors.forbidden(attributes.resource, attributes.shown_name, str(error)) from error
            if admitted.class_name:
                spec["priorityClassName"] = admitted.class_name
            spec["priority"], spec["preemptionPolicy"] = admitted.priority, admitted.preemption_policy

    def _priority_classes(self) -> dict[str, objects.PriorityClass]:
        found = (typed.read(r.raw, objects.PriorityClass) for r in self._store.records(resources.PRIORITY_CLASSES))
        return {cls.metadata.name: cls for cls in found}


def redefault(attributes: Attributes) -> None:
    """Default a patched object again (V21). Raises 400 if it no longer decodes."""
    if attributes.object is not None and attributes.kind[2] not in _SUBJECTS:
        if not isinstance(attributes.object.get("metadata"), dict):
            raise typed.undecodable(attributes.resource, "metadata is not an object")
        defaults.set_defaults(attributes.resource, attributes.object)


def deadline() -> float:
    """When a write request that starts now is cut (V22), on the monotonic clock."""
    return time.monotonic() + REQUEST_BUDGET


def _creates_pod(attributes: Attributes) -> bool:
    return attributes.resource is resources.PODS and attributes.operation == "CREATE" and not attributes.subresource


def _is_mirror(pod: Object) -> bool:
    return _MIRROR_ANNOTATION in (pod["metadata"].get("annotations") or {})


def _fill_container(plain: Object, filled: objects.Container, title: str) -> list[str]:
    """Copy the filled amounts into the JSON container; what was set, as LimitRanger's annotation words it."""
    amounts = plain.setdefault("resources", {})
    notes = []
    resources_now = filled.resources or objects.Resources()
    for key, note, values in (
        ("requests", "request", resources_now.requests),
        ("limits", "limit", resources_now.limits),
    ):
        before = amounts.get(key) or {}
        added = sorted(set(values or {}) - set(before))
        if added:
            amounts[key] = dict(values or {})
            notes.append(f"{', '.join(added)} {note} for {title}")
    return notes


def _mount_token(spec: Object) -> None:
    """The projected token volume of A11, once, in every container that mounts nothing there yet."""
    volumes = spec.setdefault("volumes", [])
    name = next((v["name"] for v in volumes if v.get("name", "").startswith("kube-api-access-")), None)
    name = name or f"kube-api-access-{suffix()}"
    wanted = False
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or []:
            mounts = container.setdefault("volumeMounts", [])
            if not any(mount.get("mountPath") == _TOKEN_MOUNT for mount in mounts):
                mounts.append({"name": name, "readOnly": True, "mountPath": _TOKEN_MOUNT})
                wanted = True
    if wanted and not any(volume.get("name") == name for volume in volumes):
        volumes.append(_token_volume(name))
    if not volumes:
        del spec["volumes"]


def _token_volume(name: str) -> Object:
    namespace = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
    ]
    return {"name": name, "projected": {"sources": sources, "defaultMode": 420}}


def _default_toleration_seconds(attributes: Attributes) -> None:
    """A15: pods tolerate a lost node for 300 seconds unless they say otherwise."""
    if attributes.resource is not resources.PODS or attributes.subresource or attributes.object is None:
        return
    spec = attributes.object["spec"]
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        tolerations = spec.get("tolerations") or []
        if not any(_covers(toleration, key) for toleration in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            spec["tolerations"] = [*tolerations, added]


def _covers(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")
