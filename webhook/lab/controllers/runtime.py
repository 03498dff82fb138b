"""What every controller stands on: a work queue with backoff, a client with an identity, and ownership."""

import heapq
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from webhook.lab import errors, resources
from webhook.lab.call import Call, User, service_account
from webhook.lab.events import Recorder
from webhook.lab.registry import Registry
from webhook.lab.resources import Object, Resource, copied
from webhook.lab.store import Change, Store

Key = tuple[str, str]
"""Namespace and name, or whatever else a controller works by."""

_log: Final = logging.getLogger(__name__)

_BACKOFF_BASE: Final = 0.005
_BACKOFF_MAX: Final = 5.0
"""Seconds; the real one waits up to 1000 (a demo should not)."""


class Controller(Protocol):
    """One control loop: which changes concern it, and what to do about a key."""

    name: str

    def keys(self, change: Change) -> Iterable[Key]:
        """The keys a write makes due; called inside the write, so it must be quick."""

    def sync(self, key: Key) -> None:
        """Bring one key's objects where they should be. An ApiError makes it due again after a growing pause."""


class WorkQueue:
    """Keys and when they are due; a key is in it once, and `hold` keeps it from running earlier.

    `delay`, in seconds, passes between a change and the sync it causes.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self._delay = delay
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._held: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._closed = False

    def add(self, key: Key, delay: float | None = None) -> None:
        """Make a key due after `delay` seconds, by default the queue's own delay."""
        with self._changed:
            due = max(time.monotonic() + (self._delay if delay is None else delay), self._held.get(key, 0.0))
            if key not in self._due or due < self._due[key]:
                self._due[key] = due
                heapq.heappush(self._heap, (due, key))
                self._changed.notify()

    def add_failed(self, key: Key) -> None:
        """Due again after 5 ms, 10 ms, 20 ms, ... up to 5 s."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add(key, min(_BACKOFF_BASE * 2 ** min(failures, 20), _BACKOFF_MAX))

    def forget(self, key: Key) -> None:
        """The key was brought in order: its next failure waits 5 ms again."""
        self._failures.pop(key, None)

    def hold(self, key: Key, seconds: float) -> None:
        """Let nothing run this key for a while."""
        with self._changed:
            self._held = {k: t for k, t in self._held.items() if t > time.monotonic()}
            self._held[key] = time.monotonic() + seconds

    def get(self) -> Key | None:
        """The next due key; None once closed."""
        with self._changed:
            while not self._closed:
                while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
                    heapq.heappop(self._heap)  # it was made due earlier since
                if not self._heap:
                    self._changed.wait()
                    continue
                due, key = self._heap[0]
                if due > time.monotonic():
                    self._changed.wait(due - time.monotonic())
                    continue
                heapq.heappop(self._heap)
                del self._due[key]
                return key
            return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Loop(threading.Thread):
    """Runs one controller until its queue is closed."""

    def __init__(self, controller: Controller, queue: WorkQueue) -> None:
        super().__init__(name=f"lab-{controller.name}", daemon=True)
        self._controller = controller
        self._queue = queue

    def run(self) -> None:
        while (key := self._queue.get()) is not None:
            try:
                self._controller.sync(key)
            except errors.ApiError:
                self._queue.add_failed(key)
            except Exception:  # a bug must show, and must not end the loop for all other keys
                _log.exception("lab: %s failed on %s", self._controller.name, "/".join(key))
                self._queue.add_failed(key)
            else:
                self._queue.forget(key)


class Client:
    """The registry, as one controller uses it: under its own name."""

    def __init__(
        self, registry: Registry, user: User, component: str, manager: str = "kube-controller-manager"
    ) -> None:
        self.store: Store = registry.store
        self._registry = registry
        self._call = Call(user=user, manager=manager)
        self.events = Recorder(registry, self._call, component)

    def get(self, resource: Resource, key: Key) -> Object | None:
        """The stored, shared object, or None."""
        record = self.store.get(resource, *key)
        return record.object if record else None

    def create(self, resource: Resource, obj: Object) -> Object:
        return self._registry.create(resource, obj["metadata"].get("namespace", ""), obj, self._fresh())

    def update(self, resource: Resource, obj: Object, sub: str = "") -> Object:
        metadata = obj["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        return self._registry.update(resource, *key, obj, self._fresh(), sub)

    def update_status(
        self, resource: Resource, obj: Object, status: Object, annotations: Object | None = None
    ) -> Object:
        """Write `status` (and `annotations`) if it differs."""
        kept = obj["metadata"].get("annotations") or {}
        if obj.get("status") == status and (annotations is None or annotations == kept):
            return obj
        wanted = copied(obj)
        wanted["status"] = status
        if annotations is not None:
            wanted["metadata"]["annotations"] = annotations
        return self.update(resource, wanted, "status")

    def delete(self, resource: Resource, obj: Object, grace_seconds: int | None = None) -> None:
        """Delete this very object and, in the background, what it owns; that it is gone already is fine."""
        metadata = obj["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        options: Object = {"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self._registry.delete(resource, *key, options, self._fresh())
        except errors.ApiError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise

    def bind(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        binding = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {k: metadata[k] for k in ("name", "namespace", "uid")},
        }
        binding["target"] = {"kind": "Node", "name": node}
        self._registry.bind(metadata["namespace"], metadata["name"], binding, self._fresh())

    def delete_collected(self, resource: Resource, obj: Object) -> None:
        """Delete as part of a collection: the review names no object (H5)."""
        metadata = obj["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        try:
            self._registry.delete(resource, *key, {"propagationPolicy": "Background"}, self._fresh(), collection=True)
        except errors.ApiError as error:
            if error.reason != "NotFound":
                raise

    def _fresh(self) -> Call:
        """A call of its own, so that warnings do not pile up."""
        return Call(user=self._call.user, manager=self._call.manager)


def controller_client(registry: Registry, name: str) -> Client:
    """A client under the controller's service account in kube-system (W19)."""
    return Client(registry, service_account("kube-system", name), name)


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def owner_of(obj: Object, kind: str) -> str | None:
    """The name of the controller owner if it is of `kind` (W17)."""
    for reference in obj["metadata"].get("ownerReferences") or []:
        if reference.get("controller") and reference.get("kind") == kind:
            return str(reference["name"])
    return None


def owned(store: Store, resource: Resource, owner: Object) -> list[Object]:
    """The objects of `resource` that `owner` controls, oldest first."""
    uid, namespace = owner["metadata"]["uid"], owner["metadata"]["namespace"]
    found = [obj for obj in store.objects(resource, namespace) if _controller_uid(obj) == uid]
    return sorted(found, key=lambda obj: (obj["metadata"]["creationTimestamp"], obj["metadata"]["name"]))


def _controller_uid(obj: Object) -> str | None:
    references = obj["metadata"].get("ownerReferences") or []
    return next((reference.get("uid") for reference in references if reference.get("controller")), None)


def reference_to(owner: Object) -> Object:
    metadata = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"],
            "controller": True, "blockOwnerDeletion": True}  # fmt: skip


def keys_of_owner(change: Change, resource: Resource, owned_resource: Resource) -> Iterator[Key]:
    """The changed `resource` itself, or the owner of a changed `owned_resource`."""
    obj = change.record.object
    if change.resource is resource:
        yield key_of(obj)
    elif change.resource is owned_resource:
        owner = owner_of(obj, resource.kind)
        if owner:
            yield obj["metadata"]["namespace"], owner


def is_active(pod: Object) -> bool:
    """Neither finished nor being deleted: what counts as a replica (W3)."""
    return not is_finished(pod) and "deletionTimestamp" not in pod["metadata"]


def is_finished(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or [])


def pod_from(template: Object, owner: Object, prefix: str) -> Object:
    """A pod made from a template for its controller; the API server completes its name."""
    metadata = template.get("metadata") or {}
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "spec": copied(template["spec"])}
    pod["metadata"] = {"generateName": prefix, "namespace": owner["metadata"]["namespace"]}
    for field in ("labels", "annotations"):
        if metadata.get(field):
            pod["metadata"][field] = dict(metadata[field])
    if metadata.get("finalizers"):
        pod["metadata"]["finalizers"] = list(metadata["finalizers"])
    pod["metadata"]["ownerReferences"] = [reference_to(owner)]
    return pod


def create_pod(client: Client, owner: Object, pod: Object) -> Object:
    """Create a pod and record the event about it either way. Raises ApiError."""
    try:
        made = client.create(resources.PODS, pod)
    except errors.ApiError as error:
        if not is_terminating(error):
            client.events.record(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
        raise
    client.events.record(owner, "Normal", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}")
    return made


def is_terminating(error: errors.ApiError) -> bool:
    """Whether a create failed only because its namespace is going away (V16)."""
    return any(cause.get("reason") == "NamespaceTerminating" for cause in (error.details or {}).get("causes", []))


def condition(kind: str, status: str, reason: str, message: str, time_text: str, *, updated: bool = False) -> Object:
    """A workload's condition; `updated` for the kinds that carry lastUpdateTime too."""
    found: Object = {
        "type": kind,
        "status": status,
        "lastTransitionTime": time_text,
        "reason": reason,
        "message": message,
    }
    return found | ({"lastUpdateTime": time_text} if updated else {})


def find_condition(status: Object, kind: str) -> Object | None:
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), None)


def with_condition(conditions: list[Object], new: Object) -> list[Object]:
    """`conditions` with `new` in its place; one that says the same stays as it was."""
    old = next((c for c in conditions if c["type"] == new["type"]), None)
    if old and (old["status"], old["reason"]) == (new["status"], new["reason"]):
        return conditions
    if old and old["status"] == new["status"]:
        new = {**new, "lastTransitionTime": old["lastTransitionTime"]}
    return [c for c in conditions if c["type"] != new["type"]] + [new]
