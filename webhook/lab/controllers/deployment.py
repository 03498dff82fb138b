"""Deployments: one ReplicaSet per template, rolled over within surge and unavailability (W2-W6, W21)."""

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from webhook.k8s import workloads
from webhook.k8s.objects import Workload
from webhook.lab import errors, resources, strategy, typed
from webhook.lab.controllers.runtime import (
    Client,
    Key,
    WorkQueue,
    condition,
    find_condition,
    is_finished,
    key_of,
    keys_of_owner,
    owned,
    owner_of,
    reference_to,
    with_condition,
)
from webhook.lab.resources import Object, copied
from webhook.lab.store import Change
from webhook.lab.webhooks import equal

HASH_LABEL: Final = "pod-template-hash"
_PREFIX: Final = "deployment.kubernetes.io/"
_REVISION: Final = f"{_PREFIX}revision"
_DESIRED: Final = f"{_PREFIX}desired-replicas"
_MAX: Final = f"{_PREFIX}max-replicas"
_NOT_COPIED: Final = (
    "kubectl.kubernetes.io/last-applied-configuration", _REVISION, f"{_PREFIX}revision-history", _DESIRED, _MAX,
    "deprecated.deployment.rollback.to",
)  # fmt: skip
_COLLISION_PAUSE: Final = 0.25
"""Seconds between two ReplicaSets that collide; a real controller made 35 in ten seconds (O9)."""
_AVAILABLE: Final = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
_UNAVAILABLE: Final = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")


class Deployments:
    """The deployment controller."""

    name = "deployment-controller"

    def __init__(self, client: Client, queue: WorkQueue) -> None:
        self._client = client
        self._queue = queue

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource is resources.PODS:  # Recreate waits for old pods to be gone (W5)
            replica_set = owner_of(change.record.object, "ReplicaSet")
            found = change.type == "DELETED" and replica_set
            if found:
                namespace = change.record.object["metadata"]["namespace"]
                record = self._client.store.get(resources.REPLICA_SETS, namespace, str(replica_set))
                owner = owner_of(record.object, "Deployment") if record else None
                return [(namespace, owner)] if owner else []
            return []
        return keys_of_owner(change, resources.DEPLOYMENTS, resources.REPLICA_SETS)

    def sync(self, key: Key) -> None:
        deployment = self._client.get(resources.DEPLOYMENTS, key)
        if deployment is None:
            return
        sets = owned(self._client.store, resources.REPLICA_SETS, deployment)
        new = _new_set(deployment, sets)
        if "deletionTimestamp" in deployment["metadata"]:
            self._report(deployment, new, sets)
            return
        if deployment["spec"].get("paused"):
            self._scale_paused(deployment, sets)
        elif deployment["spec"]["strategy"]["type"] == "Recreate":
            new = self._recreate(deployment, new, sets)
        else:
            new = self._roll(deployment, new, sets)
        sets = owned(self._client.store, resources.REPLICA_SETS, deployment)
        self._report(deployment, new, sets)
        return

    # -- strategies -------------------------------------------------------------------------------------------------

    def _recreate(self, deployment: Object, new: Object | None, sets: list[Object]) -> Object | None:
        old = [each for each in sets if new is None or each["metadata"]["uid"] != new["metadata"]["uid"]]
        for each in old:
            self._scale(deployment, each, 0)
        pods = [pod for each in old for pod in owned(self._client.store, resources.PODS, each)]
        if any(not is_finished(pod) for pod in pods):
            return new
        new = self._ensure_new_set(deployment, new, sets, 0)
        return self._scale(deployment, new, deployment["spec"]["replicas"])

    def _roll(self, deployment: Object, new: Object | None, sets: list[Object]) -> Object:
        wanted = deployment["spec"]["replicas"]
        surge, unavailable = _limits(deployment)
        old = [each for each in sets if new is None or each["metadata"]["uid"] != new["metadata"]["uid"]]
        total = sum(_replicas(each) for each in sets)
        room = max(0, wanted + surge - total)
        current = _replicas(new) if new else 0
        target = wanted if current > wanted else min(wanted, current + room)
        new = self._ensure_new_set(deployment, new, sets, target)
        if _replicas(new) != target:
            new = self._scale(deployment, new, target)
        elif _annotations(new).get(_DESIRED) != str(wanted):
            new = self._annotate(deployment, new)
        self._shrink_old(deployment, new, old, wanted - unavailable)
        return new

    def _shrink_old(self, deployment: Object, new: Object, old: list[Object], min_available: int) -> None:
        """Old pods that never became ready go first; ready ones only as far as enough stay available."""
        total = _replicas(new) + sum(_replicas(each) for each in old)
        not_ready_new = _replicas(new) - _available(new)
        spare = total - min_available - not_ready_new
        if spare <= 0:
            return
        targets = {each["metadata"]["uid"]: _replicas(each) for each in old}
        for each in old:
            unhealthy = min(_replicas(each) - _available(each), spare)
            if unhealthy > 0:
                targets[each["metadata"]["uid"]] -= unhealthy
                spare -= unhealthy
        available = _available(new) + sum(_available(each) for each in old)
        healthy = available - min_available
        for each in old:
            down = min(targets[each["metadata"]["uid"]], max(0, healthy))
            targets[each["metadata"]["uid"]] -= down
            healthy -= down
        for each in old:
            self._scale(deployment, each, targets[each["metadata"]["uid"]])

    def _scale_paused(self, deployment: Object, sets: list[Object]) -> None:
        """W6: a paused Deployment still follows its replica count with the ReplicaSets it has."""
        active = [each for each in sets if _replicas(each)]
        latest = active[-1] if active else (sets[-1] if sets else None)
        if latest is not None:
            others = sum(_replicas(each) for each in active if each is not latest)
            self._scale(deployment, latest, max(0, deployment["spec"]["replicas"] - others))

    # -- ReplicaSets ------------------------------------------------------------------------------------------------

    def _ensure_new_set(self, deployment: Object, new: Object | None, sets: list[Object], replicas: int) -> Object:
        if new is not None:
            return new
        digest = template_hash(deployment["spec"]["template"], deployment["status"].get("collisionCount"))
        wanted = _replica_set(deployment, digest, replicas, _next_revision(sets))
        try:
            made = self._client.create(resources.REPLICA_SETS, wanted)
        except errors.ApiError as error:
            if error.reason == "AlreadyExists":
                self._collide(deployment, key_of(wanted))
            raise
        name = made["metadata"]["name"]
        self._client.events.record(
            deployment, "Normal", "ScalingReplicaSet", f"Scaled up replica set {name} from 0 to {replicas}"
        )
        return made

    def _collide(self, deployment: Object, key: Key) -> None:
        """Another template under our name: the next hash counts the collision, and so on without end (W21)."""
        current = self._client.get(resources.DEPLOYMENTS, key_of(deployment))
        if current is None or self._client.get(resources.REPLICA_SETS, key) is None:
            return
        self._queue.hold(key_of(deployment), _COLLISION_PAUSE)
        count = current["status"].get("collisionCount", 0) + 1
        self._client.update_status(resources.DEPLOYMENTS, current, {**current["status"], "collisionCount": count})

    def _scale(self, deployment: Object, replica_set: Object, replicas: int) -> Object:
        before = _replicas(replica_set)
        annotations = _scaled_annotations(deployment, replica_set)
        if before == replicas and annotations == _annotations(replica_set):
            return replica_set
        changed = copied(replica_set)
        changed["spec"]["replicas"] = replicas
        changed["metadata"]["annotations"] = annotations
        changed = self._client.update(resources.REPLICA_SETS, changed)
        if before != replicas:
            direction, name = "up" if replicas > before else "down", replica_set["metadata"]["name"]
            text = f"Scaled {direction} replica set {name} from {before} to {replicas}"
            self._client.events.record(deployment, "Normal", "ScalingReplicaSet", text)
        return changed

    def _annotate(self, deployment: Object, replica_set: Object) -> Object:
        changed = copied(replica_set)
        changed["metadata"]["annotations"] = _scaled_annotations(deployment, replica_set)
        return self._client.update(resources.REPLICA_SETS, changed)

    def _clean_up(self, deployment: Object, new: Object, sets: list[Object]) -> None:
        """Keep revisionHistoryLimit old ReplicaSets once a rollout is complete."""
        old = [each for each in sets if each["metadata"]["uid"] != new["metadata"]["uid"] and not _replicas(each)]
        surplus = len(old) - deployment["spec"].get("revisionHistoryLimit", 10)
        for each in sorted(old, key=_revision)[: max(0, surplus)]:
            if not each["status"].get("replicas"):
                self._client.delete(resources.REPLICA_SETS, each)

    # -- status -----------------------------------------------------------------------------------------------------

    def _report(self, deployment: Object, new: Object | None, sets: list[Object]) -> None:
        current = self._client.get(resources.DEPLOYMENTS, key_of(deployment))
        if current is None:
            return
        fresh = next((s for s in sets if new and s["metadata"]["uid"] == new["metadata"]["uid"]), new)
        status = _status(current, deployment, fresh, sets)
        annotations = dict(_annotations(current))
        if fresh:
            annotations[_REVISION] = _annotations(fresh).get(_REVISION, "1")
            if _revision(fresh) < max(map(_revision, sets), default=0):  # rolled back to an older template
                annotations[_REVISION] = self._renumber(fresh, sets)
        self._client.update_status(resources.DEPLOYMENTS, current, status, annotations)
        if fresh and _is_complete(current, status):
            self._clean_up(deployment, fresh, sets)

    def _renumber(self, replica_set: Object, sets: list[Object]) -> str:
        revision = _next_revision(sets)
        changed = copied(replica_set)
        changed["metadata"]["annotations"] = {**_annotations(replica_set), _REVISION: revision}
        self._client.update(resources.REPLICA_SETS, changed)
        return revision


def template_hash(template: Object, collisions: int | None) -> str:
    """A short name for a template, as ReplicaSets carry it; collisions change it."""
    content = msgspec.json.encode([template, collisions], order="sorted")
    alphabet = "bcdfghjklmnpqrstvwxz2456789"
    return "".join(alphabet[ord(digit) % len(alphabet)] for digit in str(zlib.crc32(content)))


def _new_set(deployment: Object, sets: list[Object]) -> Object | None:
    """The oldest ReplicaSet with the Deployment's template; only the hash label may differ (W21)."""
    wanted = deployment["spec"]["template"]
    return next((each for each in sets if equal(_without_hash(each["spec"]["template"]), wanted)), None)


def _without_hash(template: Object) -> Object:
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != HASH_LABEL}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _replica_set(deployment: Object, digest: str, replicas: int, revision: str) -> Object:
    metadata, spec = deployment["metadata"], deployment["spec"]
    template = copied(spec["template"])
    labels = {**(template["metadata"].get("labels") or {}), HASH_LABEL: digest}
    template["metadata"]["labels"] = labels
    selector = copied(spec["selector"])
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH_LABEL: digest}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-{digest}",
            "namespace": metadata["namespace"],
            "labels": dict(labels),
            "annotations": {**_copied(deployment), **_counts(deployment), _REVISION: revision},
            "ownerReferences": [reference_to(deployment)],
        },
        "spec": {"replicas": replicas, "selector": selector, "template": template}
        | ({"minReadySeconds": spec["minReadySeconds"]} if "minReadySeconds" in spec else {}),
    }


def _annotations(obj: Object) -> Object:
    found: Object = obj["metadata"].get("annotations") or {}
    return found


def _copied(deployment: Object) -> Object:
    return {key: value for key, value in _annotations(deployment).items() if key not in _NOT_COPIED}


def _counts(deployment: Object) -> Object:
    wanted = deployment["spec"]["replicas"]
    surge = 0 if deployment["spec"]["strategy"]["type"] == "Recreate" else _limits(deployment)[0]
    return {_DESIRED: str(wanted), _MAX: str(wanted + surge)}


def _scaled_annotations(deployment: Object, replica_set: Object) -> Object:
    return {**_annotations(replica_set), **_copied(deployment), **_counts(deployment)}


def _limits(deployment: Object) -> tuple[int, int]:
    rollout = workloads.rollout("Deployment", typed.read(_slim(deployment), Workload))
    return rollout.surge, rollout.unavailable


def _slim(deployment: Object) -> Object:
    spec = {key: deployment["spec"][key] for key in ("replicas", "strategy")}
    return {"kind": "Deployment", "metadata": {}, "spec": spec}


def _replicas(replica_set: Object) -> int:
    return int(replica_set["spec"].get("replicas", 0))


def _available(replica_set: Object) -> int:
    return int(replica_set["status"].get("availableReplicas", 0))


def _revision(replica_set: Object) -> int:
    text = _annotations(replica_set).get(_REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _next_revision(sets: list[Object]) -> str:
    return str(max(map(_revision, sets), default=0) + 1)


def _status(current: Object, synced: Object, new: Object | None, sets: list[Object]) -> Object:
    total = sum(each["status"].get("replicas", 0) for each in sets)
    available = sum(map(_available, sets))
    wanted = sum(map(_replicas, sets))
    counts = {
        "replicas": total,
        "updatedReplicas": new["status"].get("replicas", 0) if new else 0,
        "readyReplicas": sum(each["status"].get("readyReplicas", 0) for each in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
    }
    status: Object = {"observedGeneration": synced["metadata"].get("generation", 1)}
    status |= {key: value for key, value in counts.items() if value}
    status["terminatingReplicas"] = sum(each["status"].get("terminatingReplicas", 0) for each in sets)
    if "collisionCount" in current["status"]:
        status["collisionCount"] = current["status"]["collisionCount"]
    status["conditions"] = _conditions(current, status, new, sets)
    return status


def _conditions(current: Object, status: Object, new: Object | None, sets: list[Object]) -> list[Object]:
    now, wanted = strategy.now(), current["spec"]["replicas"]
    conditions = list(current["status"].get("conditions") or [])
    _, unavailable = (0, wanted) if current["spec"]["strategy"]["type"] == "Recreate" else _limits(current)
    enough = status.get("availableReplicas", 0) >= wanted - unavailable
    verdict = _AVAILABLE if enough else _UNAVAILABLE
    conditions = with_condition(conditions, condition("Available", *verdict, now, updated=True))
    progress = _progress(current, status, new)
    if progress:
        conditions = with_condition(conditions, condition("Progressing", "True", *progress, now, updated=True))
    failures = [failure for each in sets if (failure := find_condition(each["status"], "ReplicaFailure"))]
    conditions = [c for c in conditions if c["type"] != "ReplicaFailure"]
    if failures:
        conditions.append(failures[0] | {"lastUpdateTime": failures[0]["lastTransitionTime"]})
    return conditions


def _progress(current: Object, status: Object, new: Object | None) -> tuple[str, str] | None:
    if new is None:
        return None
    name = new["metadata"]["name"]
    if _is_complete(current, status):
        return "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.'
    if status.get("updatedReplicas") or find_condition(current["status"], "Progressing") is not None:
        old = find_condition(current["status"], "Progressing")
        if not status.get("updatedReplicas") and old and name in old["message"]:
            return None
        if not status.get("updatedReplicas"):
            return "NewReplicaSetCreated", f'Created new replica set "{name}"'
        return "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.'
    return "NewReplicaSetCreated", f'Created new replica set "{name}"'


def _is_complete(deployment: Object, status: Object) -> bool:
    wanted = deployment["spec"]["replicas"]
    return all(status.get(key, 0) == wanted for key in ("updatedReplicas", "replicas", "availableReplicas"))
