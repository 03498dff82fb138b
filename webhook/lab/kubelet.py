"""A stand-in for every node's kubelet: assigned pods run, deleted ones go, and some finish when told to."""

import time
from collections.abc import Iterable
from typing import Final

from webhook.k8s import node_affinity, scheduling
from webhook.k8s.objects import Node, PodSpec
from webhook.lab import resources, strategy, typed
from webhook.lab.call import User
from webhook.lab.controllers.runtime import Client, Key, WorkQueue, is_finished, key_of
from webhook.lab.registry import Registry
from webhook.lab.resources import Object, copied
from webhook.lab.store import Change

FINISH_AFTER: Final = "lab.gpu-webhook.io/finish-after"
"""Annotation on a pod (or its template): seconds of running after which its containers end."""

EXIT_CODE: Final = "lab.gpu-webhook.io/exit-code"
"""Annotation: what they end with; 0, the default, is success."""

STOP_AFTER: Final = "lab.gpu-webhook.io/stop-after"
"""Annotation: seconds that the containers of a deleted pod take to stop; without it they stop at once."""

_RUNNING_CONDITIONS: Final = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
)


class Kubelet:
    """Plays the kubelets of all nodes, each under its own user `system:node:<name>`."""

    name = "kubelet"

    def __init__(self, registry: Registry, queue: WorkQueue) -> None:
        self._registry = registry
        self._store = registry.store
        self._queue = queue
        self._ends: dict[Key, float] = {}
        """When pods finish or stop, on the monotonic clock; keys are (what, uid)."""
        self._clients: dict[str, Client] = {}

    def keys(self, change: Change) -> Iterable[Key]:
        pod = change.record.object
        due = change.resource is resources.PODS and change.type != "DELETED" and bool(pod["spec"].get("nodeName"))
        return [key_of(pod)] if due and _has_work(pod) else []

    def sync(self, key: Key) -> None:
        record = self._store.get(resources.PODS, *key)
        if record is None or not _has_work(record.object):
            return
        pod = record.object
        node = self._store.get(resources.NODES, "", pod["spec"]["nodeName"])
        client = self._client(pod["spec"]["nodeName"])
        if "deletionTimestamp" in pod["metadata"]:
            self._stop(client, pod)
        elif node is None:
            return
        elif pod["status"].get("phase") == "Pending":
            self._start(client, pod, typed.read(node.raw, Node))
        else:
            self._finish(client, pod)

    def _client(self, node: str) -> Client:
        user = User(f"system:node:{node}", ("system:nodes", "system:authenticated"))
        return self._clients.setdefault(node, Client(self._registry, user, "kubelet", "kubelet"))

    def _start(self, client: Client, pod: Object, node: Node) -> None:
        spec = typed.read(pod["spec"], PodSpec)
        if not node_affinity.matches(spec, node.metadata.name, node.metadata.labels):  # N17
            why = f"Pod was rejected: Predicate NodeAffinity failed: {scheduling.AFFINITY}"
            client.update_status(
                resources.PODS, pod, {**pod["status"], "phase": "Failed", "reason": "NodeAffinity", "message": why}
            )
            return
        now = strategy.now()
        state = {"running": {"startedAt": now}}
        common = {"status": "True", "lastProbeTime": None, "lastTransitionTime": now}
        conditions = [{"type": kind, **common} for kind in _RUNNING_CONDITIONS]
        status = {**pod["status"], "phase": "Running", "startTime": now, "conditions": conditions}
        status["containerStatuses"] = [_container_status(c, state, ready=True) for c in pod["spec"]["containers"]]
        client.update_status(resources.PODS, pod, status)

    def _stop(self, client: Client, pod: Object) -> None:
        if self._is_due(("stop", pod["metadata"]["uid"]), key_of(pod), _seconds(pod, STOP_AFTER) or 0.0):
            client.delete(resources.PODS, pod, grace_seconds=0)  # the second DELETE of a pod ends it (H4)

    def _is_due(self, event: Key, key: Key, after: float) -> bool:
        """Whether an event is `after` seconds past the first time it was asked for; if not, the pod comes again."""
        left = self._ends.setdefault(event, time.monotonic() + after) - time.monotonic()
        if left > 0:
            self._queue.add(key, left)
            return False
        del self._ends[event]
        return True

    def _finish(self, client: Client, pod: Object) -> None:
        if not self._is_due(("finish", pod["metadata"]["uid"]), key_of(pod), _seconds(pod, FINISH_AFTER) or 0.0):
            return
        code = int((pod["metadata"].get("annotations") or {}).get(EXIT_CODE, "0"))
        now = strategy.now()
        reason = "Completed" if code == 0 else "Error"
        state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "startedAt": pod["status"]["startTime"],
                "finishedAt": now,
            }
        }
        status = copied(pod["status"]) | {"phase": "Succeeded" if code == 0 else "Failed"}
        for condition in status["conditions"]:
            if condition["type"] in ("Ready", "ContainersReady"):
                condition |= {"status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
        status["containerStatuses"] = [_container_status(c, state, ready=False) for c in pod["spec"]["containers"]]
        client.update_status(resources.PODS, pod, status)


def _has_work(pod: Object) -> bool:
    metadata, status = pod["metadata"], pod["status"]
    if "deletionTimestamp" in metadata:
        return bool(metadata.get("deletionGracePeriodSeconds")) or not metadata.get("finalizers")
    if is_finished(pod):
        return False
    return status.get("phase") == "Pending" or _seconds(pod, FINISH_AFTER) is not None


def _seconds(pod: Object, annotation: str) -> float | None:
    text = (pod["metadata"].get("annotations") or {}).get(annotation)
    try:
        return float(text.removesuffix("s")) if text else None
    except ValueError:
        return None


def _container_status(container: Object, state: Object, *, ready: bool) -> Object:
    return {"name": container["name"], "image": container["image"], "imageID": "", "lastState": {}, "ready": ready,
            "restartCount": 0, "started": ready, "state": state}  # fmt: skip
