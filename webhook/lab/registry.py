"""The path of a request through the API: read, create, update, patch, delete and the subresources (A1)."""

import copy
from collections.abc import Callable
from typing import Any, Final

from webhook.lab import defaults, errors, managed_fields, quota, resources, strategy, validation
from webhook.lab.admission import Admission, deadline
from webhook.lab.call import Attributes, Call
from webhook.lab.resources import Object, Resource, copied
from webhook.lab.store import Record, Store

_ATTEMPTS: Final = 8
"""Tries of a generateName create that collides, and of a patch that meets a concurrent write (A19)."""

_ORPHANS_BY_DEFAULT: Final = ("Job", "ReplicationController")

Change = Callable[[Object], Object]
"""From a private copy of the current object to the wanted one."""


class Registry:
    """What the HTTP API, the controllers and the scheduler all write through."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self.store = store
        self._admission = admission

    # -- reading ----------------------------------------------------------------------------------------------------

    def record(self, resource: Resource, namespace: str, name: str) -> Record:
        """Raises 404."""
        found = self.store.get(resource, namespace, name)
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """The stored object, shared: copy it before changing it. Raises 404."""
        return self.record(resource, namespace, name).object

    # -- create -----------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, obj: Object, call: Call) -> Object:
        """The whole chain of A1 for a new object; `obj` is not changed."""
        obj = copied(obj)
        _locate(resource, namespace, obj)
        defaults.set_defaults(resource, obj)
        self._credit(obj, None, call, "")
        name = obj["metadata"].get("name") or ""
        attributes = _attributes("CREATE", resource, "", namespace, name, obj, None, call, "CreateOptions")
        until = deadline()
        self._admission.mutate(attributes, until)
        for attempt in range(_ATTEMPTS):
            try:
                return self._store_new(attributes, until)
            except errors.ApiError as error:
                generated = not name and error.reason == "AlreadyExists"
                if not generated or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable: the loop returns or raises")

    def _store_new(self, attributes: Attributes, until: float) -> Object:
        resource, call = attributes.resource, attributes.call
        assert attributes.object is not None, "admission of a CREATE keeps the object"
        obj = copied(attributes.object)
        strategy.prepare_create(resource, obj)
        validation.validate(resource, obj, None)
        final = copy.copy(attributes)
        final.object, final.name = obj, obj["metadata"]["name"]
        self._admission.validate(final, until)
        with self.store.lock:
            if self.store.get(resource, attributes.namespace, final.name):
                raise errors.already_exists(resource, final.name)
            charged = quota.admit_create(self.store, resource, obj)
            if call.dry_run:
                return obj
            for quota_object in charged:
                self.store.update(resources.RESOURCE_QUOTAS, quota_object)
            return self.store.create(resource, obj)

    # -- update -----------------------------------------------------------------------------------------------------

    def update(self, resource: Resource, namespace: str, name: str, obj: Object, call: Call, sub: str = "") -> Object:
        """PUT: replace the object, or its `sub`resource. Raises 409 if its resourceVersion is stale."""
        if sub == "scale":
            return self.scale(resource, namespace, name, lambda _: obj, call)
        wanted = obj.get("metadata", {}).get("resourceVersion")
        return self._update(resource, namespace, name, lambda _: obj, call, sub, wanted)

    def patch(self, resource: Resource, namespace: str, name: str, change: Change, call: Call, sub: str = "") -> Object:
        """PATCH: apply `change` to the current object; met by a concurrent write, it is applied again (A19)."""
        if sub == "scale":
            return self.scale(resource, namespace, name, change, call)
        for attempt in range(_ATTEMPTS):
            try:
                return self._update(resource, namespace, name, change, call, sub, None)
            except errors.ApiError as error:
                if error.reason != "Conflict" or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable: the loop returns or raises")

    def _update(
        self, resource: Resource, namespace: str, name: str, change: Change, call: Call, sub: str, wanted: str | None
    ) -> Object:
        current = self.record(resource, namespace, name)
        old = current.object
        obj = copied(change(copied(old)))
        _locate(resource, namespace, obj)
        _same_object(resource, obj, old, wanted)
        defaults.set_defaults(resource, obj)
        obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        strategy.prepare_update(resource, obj, old, sub)
        self._credit(obj, old, call, sub)
        attributes = _attributes("UPDATE", resource, sub, namespace, name, obj, old, call, "UpdateOptions")
        until = deadline()
        self._admission.mutate(attributes, until)
        assert attributes.object is not None, "admission of an UPDATE keeps the object"
        obj = attributes.object
        strategy.prepare_update(resource, obj, old, sub)
        if sub not in ("status", "finalize"):
            validation.validate(resource, obj, old)
        self._admission.validate(attributes, until)
        return self._store_update(resource, obj, current, call, sub)

    def _store_update(self, resource: Resource, obj: Object, current: Record, call: Call, sub: str) -> Object:
        with self.store.lock:
            charged = quota.admit_update(self.store, resource, obj, current.object, sub)
            if call.dry_run:
                return obj
            for quota_object in charged:
                self.store.update(resources.RESOURCE_QUOTAS, quota_object)
            if _is_gone(resource, obj):  # the update that removes the last finalizer is the deletion (H1)
                metadata = obj["metadata"]
                return self.store.delete(resource, metadata.get("namespace", ""), metadata["name"], current.version)
            return self.store.update(resource, obj, current.version)

    def apply(self, resource: Resource, namespace: str, name: str, change: Change, call: Call) -> tuple[Object, bool]:
        """Server-side apply, here a merge: the object, and whether it was created."""
        if self.store.get(resource, namespace, name) is None:
            seed: Object = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
            return self.create(resource, namespace, change(seed), call), True
        return self.patch(resource, namespace, name, change, call), False

    # -- scale ------------------------------------------------------------------------------------------------------

    def get_scale(self, resource: Resource, namespace: str, name: str) -> Object:
        """The Scale of a workload, as it is printed: zero replicas are left out (W25, W27)."""
        return _scale_of(self.get(resource, namespace, name))

    def scale(self, resource: Resource, namespace: str, name: str, change: Change, call: Call) -> Object:
        """UPDATE of the scale subresource: the review holds Scale objects and not the workload (W25)."""
        current = self.record(resource, namespace, name)
        old = _scale_of(current.object)
        scale = copied(change(copied(old)))
        if scale.get("metadata", {}).get("resourceVersion", str(current.version)) != str(current.version):
            raise errors.conflict(resource, name)
        replicas = (scale.get("spec") or {}).get("replicas") or 0
        if not isinstance(replicas, int) or replicas < 0:
            problem = errors.Problem.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
            raise errors.invalid(_SCALE, name, [problem])
        scale = {**old, "spec": {"replicas": replicas} if replicas else {}}
        attributes = _attributes("UPDATE", resource, "scale", namespace, name, scale, old, call, "UpdateOptions")
        attributes.kind = ("autoscaling", "v1", "Scale")
        until = deadline()
        self._admission.mutate(attributes, until)
        self._admission.validate(attributes, until)
        obj = copied(current.object)
        obj["spec"]["replicas"] = ((attributes.object or scale).get("spec") or {}).get("replicas", 0)
        strategy.prepare_update(resource, obj, current.object, "")
        self._credit(obj, current.object, call, "scale")
        if not call.dry_run:
            obj = self.store.update(resource, obj, current.version)
        return _scale_of(obj)

    # -- pods' own subresources -------------------------------------------------------------------------------------

    def bind(self, namespace: str, name: str, binding: Object, call: Call) -> None:
        """CREATE of pods/binding: sets nodeName without any Pod UPDATE admission (H6)."""
        target = (binding.get("target") or {}).get("name", "")
        self._admit_subresource(resources.PODS, namespace, name, "binding", ("", "v1", "Binding"), binding, call)
        with self.store.lock:
            current = self.record(resources.PODS, namespace, name)
            pod = copied(current.object)
            if pod["spec"].get("nodeName"):
                raise errors.conflict(resources.PODS, name, f"pod {name} is already assigned to node")
            if pod["spec"].get("schedulingGates") or "deletionTimestamp" in pod["metadata"]:
                raise errors.conflict(
                    resources.PODS, name, f"pod {name} has non-empty .spec.schedulingGates or is deleted"
                )
            pod["spec"]["nodeName"] = target
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastProbeTime": None,
                                            "lastTransitionTime": strategy.now()}]  # fmt: skip
            if not call.dry_run:
                self.store.update(resources.PODS, pod, current.version)

    def evict(self, namespace: str, name: str, eviction: Object, call: Call) -> None:
        """CREATE of pods/eviction: the deletion it performs runs no DELETE admission (H6)."""
        self.record(resources.PODS, namespace, name)
        kind = ("policy", "v1", "Eviction")
        eviction = {"kind": "Eviction", "apiVersion": "policy/v1", **eviction}
        _locate(resources.PODS, namespace, eviction)
        self._admit_subresource(resources.PODS, namespace, name, "eviction", kind, eviction, call)
        if not call.dry_run:
            self._remove(resources.PODS, namespace, name, eviction.get("deleteOptions") or {})

    def _admit_subresource(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        sub: str,
        kind: tuple[str, str, str],
        obj: Object,
        call: Call,
    ) -> None:
        attributes = _attributes("CREATE", resource, sub, namespace, name, obj, None, call, "CreateOptions")
        attributes.kind = kind
        until = deadline()
        self._admission.mutate(attributes, until)
        self._admission.validate(attributes, until)

    # -- delete -----------------------------------------------------------------------------------------------------

    def delete(
        self, resource: Resource, namespace: str, name: str, options: Object, call: Call, *, collection: bool = False
    ) -> Object:
        """DELETE: the object as it was, or as it now waits for its end. Raises 404, 409.

        As part of a `collection` its review names no object (H5).
        """
        current = self.record(resource, namespace, name)
        self._precondition(resource, name, current.object, options)
        attributes = _attributes("DELETE", resource, "", namespace, name, None, current.object, call, "DeleteOptions")
        attributes.name = "" if collection else name
        attributes.options = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        attributes.options |= {k: v for k, v in options.items() if k not in ("kind", "apiVersion") and v is not None}
        if call.dry_run:
            attributes.options["dryRun"] = ["All"]
        until = deadline()
        self._admission.mutate(attributes, until)
        self._admission.validate(attributes, until)
        return current.object if call.dry_run else self._remove(resource, namespace, name, options)

    def _precondition(self, resource: Resource, name: str, obj: Object, options: Object) -> None:
        for key, value in (options.get("preconditions") or {}).items():
            if value is not None and obj["metadata"].get(key) != value:
                why = f"Precondition failed: {key} in precondition: {value}, in object meta: {obj['metadata'].get(key)}"
                raise errors.conflict(resource, name, why)

    def _remove(self, resource: Resource, namespace: str, name: str, options: Object) -> Object:
        """Delete now, or mark as deleting while a kubelet, a finalizer or a namespace's content is in the way."""
        with self.store.lock:
            current = self.record(resource, namespace, name)
            obj = copied(current.object)
            metadata = obj["metadata"]
            finalizers = [f for f in metadata.get("finalizers") or [] if f not in ("orphan", "foregroundDeletion")]
            finalizers += _collection_finalizer(resource, options)
            grace = _grace_seconds(resource, obj, options)
            if not finalizers and not grace and resource is not resources.NAMESPACES:
                return self.store.delete(resource, namespace, name)
            if finalizers:
                metadata["finalizers"] = finalizers
            if "deletionTimestamp" not in metadata or grace < metadata.get("deletionGracePeriodSeconds", grace):
                metadata["deletionTimestamp"] = strategy.now()
                metadata["deletionGracePeriodSeconds"] = grace
            if resource is resources.NAMESPACES:
                metadata.pop("deletionGracePeriodSeconds", None)
                obj["status"]["phase"] = "Terminating"
            if "generation" in metadata and "deletionTimestamp" not in current.object["metadata"]:
                metadata["generation"] += 1
            return self.store.update(resource, obj, current.version)

    # -- small print ------------------------------------------------------------------------------------------------

    def _credit(self, obj: Object, old: Object | None, call: Call, sub: str) -> None:
        operation = "Apply" if call.apply else "Update"
        managed_fields.record(obj, old, manager=call.manager, operation=operation, subresource=sub, time=strategy.now())


_SCALE: Final = Resource("autoscaling", "v1", "Scale", "scales")


def _attributes(
    operation: str, resource: Resource, sub: str, namespace: str, name: str,
    obj: Object | None, old: Object | None, call: Call, options: str,
) -> Attributes:  # fmt: skip
    kind = (resource.group, resource.version, resource.kind)
    if resource is resources.NAMESPACES:
        namespace = name  # V3
    return Attributes(operation, resource, sub, kind, namespace, name, obj, old, call, call.options(options))


def _locate(resource: Resource, namespace: str, obj: Object) -> None:
    """Put the URL's namespace into the object (V3). Raises 400 where they disagree."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        metadata = obj["metadata"] = {}
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return
    given = metadata.setdefault("namespace", namespace)
    if given != namespace:
        shown = f"the namespace of the provided object does not match the namespace sent on the request ({namespace})"
        raise errors.bad_request(shown)


def _same_object(resource: Resource, obj: Object, old: Object, wanted: str | None) -> None:
    metadata, name = obj["metadata"], old["metadata"]["name"]
    if metadata.get("name", name) != name:
        why = f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        raise errors.bad_request(why)
    metadata["name"] = name
    if metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {old['metadata']['uid']}"
        )
        raise errors.conflict(resource, name, why)
    version = metadata.get("resourceVersion") or wanted
    if version and version != old["metadata"]["resourceVersion"]:
        raise errors.conflict(resource, name)


def _is_gone(resource: Resource, obj: Object) -> bool:
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if resource is resources.NAMESPACES:
        return not obj["spec"].get("finalizers")
    return not metadata.get("deletionGracePeriodSeconds")


def _collection_finalizer(resource: Resource, options: Object) -> list[str]:
    policy = options.get("propagationPolicy")
    if options.get("orphanDependents") or (policy is None and resource.kind in _ORPHANS_BY_DEFAULT):
        policy = "Orphan"
    return {"Foreground": ["foregroundDeletion"], "Orphan": ["orphan"]}.get(policy or "", [])


def _grace_seconds(resource: Resource, obj: Object, options: Object) -> int:
    """Only a pod that a kubelet runs is given time; a finished or unscheduled one goes at once."""
    if resource is not resources.PODS or not obj["spec"].get("nodeName"):
        return 0
    if obj["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds: Any = options.get("gracePeriodSeconds")
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if seconds is None else seconds)


def _scale_of(obj: Object) -> Object:
    metadata, spec = obj["metadata"], obj["spec"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = spec.get("selector") or {}
    labels = selector if obj["kind"] == "ReplicationController" else selector.get("matchLabels") or {}
    replicas = spec.get("replicas", 0)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {
            "replicas": (obj.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }
