"""ReplicaSets and ReplicationControllers: keep as many pods as wanted, starting slowly (W7)."""

from collections.abc import Iterable
from typing import Final

from webhook.lab import errors, resources, strategy
from webhook.lab.controllers.runtime import (
    Client,
    Key,
    condition,
    create_pod,
    is_active,
    is_ready,
    is_terminating,
    keys_of_owner,
    owned,
    pod_from,
    with_condition,
)
from webhook.lab.resources import Object, Resource
from webhook.lab.store import Change

_BURST: Final = 500
"""Pods made or deleted in one sync at most."""


class ReplicaSets:
    """The controller of one of the two kinds, which differ in name only."""

    def __init__(self, client: Client, resource: Resource, name: str) -> None:
        self.name = name
        self._client = client
        self._resource = resource

    def keys(self, change: Change) -> Iterable[Key]:
        return keys_of_owner(change, self._resource, resources.PODS)

    def sync(self, key: Key) -> None:
        owner = self._client.get(self._resource, key)
        if owner is None:
            return
        pods = owned(self._client.store, resources.PODS, owner)
        failure: errors.ApiError | None = None
        if "deletionTimestamp" not in owner["metadata"]:
            failure = self._scale(owner, [pod for pod in pods if is_active(pod)])
        self._report(owner, failure)
        if failure is not None and not is_terminating(failure):
            raise failure

    def _scale(self, owner: Object, active: list[Object]) -> errors.ApiError | None:
        missing = owner["spec"].get("replicas", 1) - len(active)
        if missing > 0:
            return self._create(owner, min(missing, _BURST))
        for pod in sorted(active, key=_keep_rank)[: min(-missing, _BURST)]:
            self._client.delete(resources.PODS, pod)
            name = pod["metadata"]["name"]
            self._client.events.record(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {name}")
        return None

    def _create(self, owner: Object, missing: int) -> errors.ApiError | None:
        """Batches of 1, 2, 4, ...; after a batch with an error the rest waits for the next sync (W7)."""
        batch = 1
        while missing > 0:
            failure = None
            for _ in range(min(batch, missing)):
                try:
                    create_pod(self._client, owner, pod_from(_template(owner), owner, f"{owner['metadata']['name']}-"))
                except errors.ApiError as error:
                    failure = error
            if failure is not None:
                return failure
            missing -= batch
            batch *= 2
        return None

    def _report(self, owner: Object, failure: errors.ApiError | None) -> None:
        current = self._client.get(self._resource, (owner["metadata"]["namespace"], owner["metadata"]["name"]))
        if current is None:
            return
        pods = owned(self._client.store, resources.PODS, current)
        active = [pod for pod in pods if is_active(pod)]
        ready = sum(map(is_ready, active))
        status: Object = {"replicas": len(active), "observedGeneration": owner["metadata"].get("generation", 1)}
        counts = {"fullyLabeledReplicas": len(active), "readyReplicas": ready, "availableReplicas": ready}
        status |= {key: value for key, value in counts.items() if value}
        if self._resource is resources.REPLICA_SETS:
            status["terminatingReplicas"] = sum("deletionTimestamp" in pod["metadata"] for pod in pods)
        conditions = current["status"].get("conditions") or []
        if failure is not None:
            new = condition("ReplicaFailure", "True", "FailedCreate", failure.message, strategy.now())
            conditions = with_condition(conditions, new)
        elif len(active) >= owner["spec"].get("replicas", 1):
            conditions = [c for c in conditions if c["type"] != "ReplicaFailure"]
        if conditions:
            status["conditions"] = conditions
        self._client.update_status(self._resource, current, status)


def _template(owner: Object) -> Object:
    template: Object = owner["spec"]["template"]
    return template


def _keep_rank(pod: Object) -> tuple[bool, bool, list[int], str]:
    """Which pods go first: unscheduled, then not ready, then the youngest."""
    created = pod["metadata"]["creationTimestamp"]
    return bool(pod["spec"].get("nodeName")), is_ready(pod), [-ord(c) for c in created], pod["metadata"]["name"]
