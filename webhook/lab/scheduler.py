"""The scheduler: one pod at a time onto a node, or the real one's sentence why not. It does not preempt."""

from collections.abc import Iterable
from typing import Final

from webhook.k8s import scheduling
from webhook.k8s.objects import Node, Pod
from webhook.k8s.pod_resources import pod_requests
from webhook.lab import errors, resources, strategy, typed
from webhook.lab.controllers.runtime import Client, Key, is_finished, key_of
from webhook.lab.resources import Object, copied
from webhook.lab.store import Change, Record

NAME: Final = "default-scheduler"
_ROUND: Final = ("", "")
"""The one key of its queue: look at all waiting pods again."""


class Scheduler:
    """Binds pending pods, highest priority first; what fits nowhere waits for a change that could help."""

    name = NAME

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[Key, bool] = {}
        """Pending pods, and whether each is to be tried in the next round."""
        self._placed: dict[str, tuple[int, scheduling.Placed | None]] = {}

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource is resources.NODES:
            if (
                change.type == "MODIFIED"
                and change.previous
                and not _helps(change.record.object, change.previous.object)
            ):
                return []
            self._retry()
        elif change.resource is not resources.PODS or not self._note(change):
            return []
        return [_ROUND]

    def _retry(self) -> None:
        """Room may have appeared: every waiting pod is tried again."""
        self._waiting |= dict.fromkeys(self._waiting, True)

    def _note(self, change: Change) -> bool:
        """Keep the books of waiting pods; whether a round is due."""
        pod, key = change.record.object, key_of(change.record.object)
        if change.type != "DELETED" and _is_pending(pod):
            new = change.previous is None or change.previous.object["spec"] != pod["spec"]
            if new or key not in self._waiting:
                self._waiting[key] = True
                return True
            return False
        self._waiting.pop(key, None)
        freed = (change.type == "DELETED" or is_finished(pod)) and bool(pod["spec"].get("nodeName"))
        if freed:
            self._retry()
        return freed

    def sync(self, key: Key) -> None:
        due = self._due()  # before the nodes are read: what changes from here on makes the pods due again
        nodes = [typed.read(record.raw, Node) for record in self._client.store.records(resources.NODES)]
        placed = self._placed_pods()
        failure: errors.ApiError | None = None
        for pod in due:
            try:
                self._schedule(pod, nodes, placed)
            except errors.ApiError as error:  # it changed or went meanwhile
                failure = error
                with self._client.store.lock:
                    if key_of(pod) in self._waiting:
                        self._waiting[key_of(pod)] = True
        if failure is not None:
            raise failure

    def _due(self) -> list[Object]:
        with self._client.store.lock:  # `keys` changes the books inside writes
            due = [key for key, wanted in self._waiting.items() if wanted]
            self._waiting |= dict.fromkeys(due, False)
        records = (self._client.store.get(resources.PODS, *key) for key in due)
        pods = [record.object for record in records if record and _is_pending(record.object)]
        return sorted(
            pods, key=lambda p: (-p["spec"].get("priority", 0), p["metadata"]["creationTimestamp"], key_of(p))
        )

    def _placed_pods(self) -> list[scheduling.Placed]:
        """What stands on the nodes; parsed once per version of a pod."""
        books, found = {}, []
        for record in self._client.store.records(resources.PODS):
            uid = record.object["metadata"]["uid"]
            known = self._placed.get(uid)
            if known is None or known[0] != record.version:
                known = (record.version, _placed(record))
            books[uid] = known
            if known[1] is not None:
                found.append(known[1])
        self._placed = books
        return found

    def _schedule(self, pod: Object, nodes: list[Node], placed: list[scheduling.Placed]) -> None:
        if pod["spec"].get("schedulingGates"):
            return  # its status has said so since it was created
        spec = typed.read(pod, Pod).spec
        assert spec is not None, "a stored pod has a spec"
        placement = scheduling.place(spec, nodes, placed)
        if not placement.node:
            self._refuse(pod, placement.message)
            self._client.events.record_series(pod, "Warning", "FailedScheduling", "Scheduling", placement.message)
            return
        self._client.bind(pod, placement.node)
        priority = spec.priority if isinstance(spec.priority, int) else 0
        placed.append(scheduling.Placed(placement.node, pod_requests(spec), priority))
        text = f"Successfully assigned {pod['metadata']['namespace']}/{pod['metadata']['name']} to {placement.node}"
        self._client.events.record_series(pod, "Normal", "Scheduled", "Binding", text)

    def _refuse(self, pod: Object, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        status = copied(pod["status"])
        others = [c for c in status.get("conditions") or [] if c["type"] != "PodScheduled"]
        old: Object = next((c for c in status.get("conditions") or [] if c["type"] == "PodScheduled"), {})
        if {key: old.get(key) for key in condition} == condition:
            return
        times = {"lastProbeTime": None, "lastTransitionTime": strategy.now(), "observedGeneration": 1}
        status["conditions"] = [*others, {**condition, **times}]
        self._client.update_status(resources.PODS, pod, status)


def _is_pending(pod: Object) -> bool:
    spec = pod["spec"]
    mine = spec.get("schedulerName", NAME) == NAME and not spec.get("nodeName")
    return mine and not is_finished(pod) and "deletionTimestamp" not in pod["metadata"]


def _placed(record: Record) -> scheduling.Placed | None:
    pod = record.object
    if not pod["spec"].get("nodeName") or is_finished(pod):
        return None
    spec = typed.read(record.raw, Pod).spec
    assert spec is not None, "a stored pod has a spec"
    priority = spec.priority if isinstance(spec.priority, int) else 0
    return scheduling.Placed(pod["spec"]["nodeName"], pod_requests(spec), priority)


def _helps(node: Object, before: Object) -> bool:
    """Whether a node's change could let a waiting pod in."""
    return any(
        node[part].get(field) != before[part].get(field)
        for part, field in (
            ("metadata", "labels"),
            ("spec", "taints"),
            ("spec", "unschedulable"),
            ("status", "allocatable"),
        )
    )
