"""DaemonSets: one pod per node that the template allows, bound to it by a matchFields term (N15, N16)."""

from collections.abc import Iterable
from typing import Any, Final

from webhook.k8s import node_affinity, scheduling
from webhook.k8s.objects import Node, PodSpec
from webhook.lab import errors, resources, typed
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
from webhook.lab.controllers.stateful_set import REVISION_LABEL
from webhook.lab.resources import Object, copied
from webhook.lab.store import Change

_TOLERATED: Final = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)


class DaemonSets:
    """The daemonset controller."""

    name = "daemon-set-controller"

    def __init__(self, client: Client) -> None:
        self._client = client

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource is resources.NODES:
            return [key_of(each) for each in self._client.store.objects(resources.DAEMON_SETS)]
        return keys_of_owner(change, resources.DAEMON_SETS, resources.PODS)

    def sync(self, key: Key) -> None:
        daemon_set = self._client.get(resources.DAEMON_SETS, key)
        if daemon_set is None:
            return
        revision = template_hash(daemon_set["spec"]["template"], None)
        failure: errors.ApiError | None = None
        if "deletionTimestamp" not in daemon_set["metadata"]:
            try:
                self._manage(daemon_set, revision)
            except errors.ApiError as error:
                failure = error
        self._report(daemon_set, revision)
        if failure is not None and not is_terminating(failure):
            raise failure

    def _wanted_nodes(self, daemon_set: Object) -> list[str]:
        """Names of the nodes that template affinity and taints allow (N15)."""
        spec = copied(daemon_set["spec"]["template"]["spec"])
        spec["tolerations"] = _tolerations(spec)
        pod_spec = typed.read(spec, PodSpec)
        found = []
        for record in self._client.store.records(resources.NODES):
            node = typed.read(record.raw, Node)
            allowed = node_affinity.matches(pod_spec, node.metadata.name, node.metadata.labels)
            if allowed and not scheduling.untolerated(pod_spec, node):
                found.append(node.metadata.name)
        return found

    def _manage(self, daemon_set: Object, revision: str) -> None:
        wanted = self._wanted_nodes(daemon_set)
        by_node: dict[str, list[Object]] = {}
        for pod in owned(self._client.store, resources.PODS, daemon_set):
            by_node.setdefault(_node_of(pod), []).append(pod)
        for node, pods in by_node.items():
            surplus = pods[1:] if node in wanted else pods
            for pod in [*surplus, *(pod for pod in pods if is_finished(pod))]:
                if "deletionTimestamp" not in pod["metadata"]:
                    self._client.delete(resources.PODS, pod)
        for node in wanted:
            if node not in by_node:
                create_pod(self._client, daemon_set, _pod(daemon_set, node, revision))
        self._replace_old([pods[0] for node, pods in by_node.items() if node in wanted], daemon_set, revision)

    def _replace_old(self, pods: list[Object], daemon_set: Object, revision: str) -> None:
        strategy = daemon_set["spec"]["updateStrategy"]
        if strategy["type"] != "RollingUpdate":
            return
        unavailable = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
        budget = (unavailable if isinstance(unavailable, int) else 1) - sum(not is_ready(pod) for pod in pods)
        old = [pod for pod in pods if pod["metadata"].get("labels", {}).get(REVISION_LABEL) != revision]
        for pod in sorted(old, key=is_ready):
            if "deletionTimestamp" in pod["metadata"]:
                continue
            if is_ready(pod):
                if budget <= 0:
                    return
                budget -= 1
            self._client.delete(resources.PODS, pod)

    def _report(self, daemon_set: Object, revision: str) -> None:
        current = self._client.get(resources.DAEMON_SETS, key_of(daemon_set))
        if current is None:
            return
        wanted = self._wanted_nodes(current)
        pods = [
            p for p in owned(self._client.store, resources.PODS, current) if "deletionTimestamp" not in p["metadata"]
        ]
        right = [pod for pod in pods if _node_of(pod) in wanted]
        ready = sum(map(is_ready, right))
        updated = sum(pod["metadata"].get("labels", {}).get(REVISION_LABEL) == revision for pod in right)
        status: dict[str, Any] = {
            "currentNumberScheduled": len(right),
            "numberMisscheduled": len(pods) - len(right),
            "desiredNumberScheduled": len(wanted),
            "numberReady": ready,
            "observedGeneration": daemon_set["metadata"].get("generation", 1),
        }
        counts = {"updatedNumberScheduled": updated, "numberAvailable": ready, "numberUnavailable": len(wanted) - ready}
        self._client.update_status(resources.DAEMON_SETS, current, status | {k: v for k, v in counts.items() if v})


def _tolerations(spec: Object) -> list[Object]:
    added = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect} for key, effect in _TOLERATED]
    return [*(spec.get("tolerations") or []), *added]


def _pod(daemon_set: Object, node: str, revision: str) -> Object:
    """The pod for one node: its required node affinity is replaced, not kept (N15)."""
    pod = pod_from(daemon_set["spec"]["template"], daemon_set, f"{daemon_set['metadata']['name']}-")
    pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), REVISION_LABEL: revision}
    spec = pod["spec"]
    spec["tolerations"] = _tolerations(spec)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
    return pod


def _node_of(pod: Object) -> str:
    """The node a daemon pod runs on, or waits for."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""
