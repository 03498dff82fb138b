"""StatefulSets: numbered pods, one after another unless Parallel, replaced from the highest number (W8)."""

from collections.abc import Iterable
from typing import Final

from webhook.lab import errors, resources
from webhook.lab.controllers.deployment import template_hash
from webhook.lab.controllers.runtime import (
    Client,
    Key,
    create_pod,
    is_finished,
    is_ready,
    is_terminating,
    key_of,
    keys_of_owner,
    owned,
    pod_from,
)
from webhook.lab.resources import Object
from webhook.lab.store import Change

REVISION_LABEL: Final = "controller-revision-hash"


class StatefulSets:
    """The statefulset controller, without volume claims."""

    name = "statefulset-controller"

    def __init__(self, client: Client) -> None:
        self._client = client

    def keys(self, change: Change) -> Iterable[Key]:
        return keys_of_owner(change, resources.STATEFUL_SETS, resources.PODS)

    def sync(self, key: Key) -> None:
        stateful_set = self._client.get(resources.STATEFUL_SETS, key)
        if stateful_set is None:
            return
        revision = f"{key[1]}-{template_hash(stateful_set['spec']['template'], None)}"
        failure: errors.ApiError | None = None
        if "deletionTimestamp" not in stateful_set["metadata"]:
            try:
                self._step(stateful_set, self._pods(stateful_set), revision)
            except errors.ApiError as error:
                failure = error
        self._report(stateful_set, revision)
        if failure is not None and not is_terminating(failure):
            raise failure

    def _pods(self, stateful_set: Object) -> dict[int, Object]:
        found = {}
        for pod in owned(self._client.store, resources.PODS, stateful_set):
            tail = pod["metadata"]["name"].rpartition("-")[2]
            if tail.isdecimal():
                found[int(tail)] = pod
        return found

    def _step(self, stateful_set: Object, pods: dict[int, Object], revision: str) -> None:
        """Create what is missing, delete what is too much, replace what is old; in order, unless Parallel."""
        spec = stateful_set["spec"]
        start = (spec.get("ordinals") or {}).get("start", 0)
        wanted = range(start, start + spec["replicas"])
        parallel = spec.get("podManagementPolicy") == "Parallel"
        for ordinal in wanted:
            pod = pods.get(ordinal)
            if pod is None:
                self._create(stateful_set, ordinal, revision)
            elif is_finished(pod):
                self._client.delete(resources.PODS, pod)
            elif is_ready(pod) and "deletionTimestamp" not in pod["metadata"]:
                continue
            if not parallel:
                return
        for ordinal in sorted((o for o in pods if o not in wanted), reverse=True):
            self._client.delete(resources.PODS, pods[ordinal])
            if not parallel:
                return
        self._replace_old(stateful_set, {o: pods[o] for o in wanted if o in pods}, revision)

    def _replace_old(self, stateful_set: Object, pods: dict[int, Object], revision: str) -> None:
        strategy = stateful_set["spec"]["updateStrategy"]
        if strategy["type"] != "RollingUpdate":
            return
        partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
        for ordinal in sorted(pods, reverse=True):
            pod = pods[ordinal]
            if "deletionTimestamp" in pod["metadata"]:
                return
            if ordinal >= partition and pod["metadata"].get("labels", {}).get(REVISION_LABEL) != revision:
                self._client.delete(resources.PODS, pod)
                return
            if not is_ready(pod):
                return

    def _create(self, stateful_set: Object, ordinal: int, revision: str) -> None:
        name = stateful_set["metadata"]["name"]
        pod = pod_from(stateful_set["spec"]["template"], stateful_set, f"{name}-")
        pod["metadata"]["name"] = f"{name}-{ordinal}"
        labels = {"apps.kubernetes.io/pod-index": str(ordinal), REVISION_LABEL: revision}
        labels["statefulset.kubernetes.io/pod-name"] = pod["metadata"]["name"]
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **labels}
        pod["spec"] |= {"hostname": pod["metadata"]["name"], "subdomain": stateful_set["spec"].get("serviceName", "")}
        create_pod(self._client, stateful_set, pod)

    def _report(self, stateful_set: Object, revision: str) -> None:
        current = self._client.get(resources.STATEFUL_SETS, key_of(stateful_set))
        if current is None:
            return
        pods = [pod for pod in self._pods(current).values() if "deletionTimestamp" not in pod["metadata"]]
        ready = sum(map(is_ready, pods))
        updated = sum(pod["metadata"].get("labels", {}).get(REVISION_LABEL) == revision for pod in pods)
        done = updated == len(pods) == current["spec"]["replicas"]
        before = current["status"].get("currentRevision", revision)
        status: Object = {"observedGeneration": stateful_set["metadata"].get("generation", 1), "replicas": len(pods)}
        status |= {"availableReplicas": ready, "updateRevision": revision, "collisionCount": 0}
        status["currentRevision"] = revision if done else before
        current_replicas = updated if status["currentRevision"] == revision else len(pods) - updated
        counts = {"readyReplicas": ready, "updatedReplicas": updated, "currentReplicas": current_replicas}
        self._client.update_status(resources.STATEFUL_SETS, current, status | {k: v for k, v in counts.items() if v})
