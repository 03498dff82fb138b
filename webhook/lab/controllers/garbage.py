"""Garbage collection: what lost its owner goes; foreground and orphan deletions are finished here."""

from collections.abc import Callable, Iterable

from webhook.lab import errors, resources
from webhook.lab.controllers.runtime import Client, Key
from webhook.lab.resources import Object, Resource, copied
from webhook.lab.store import Change

_Place = tuple[Resource, str, str]
_Action = Callable[[Resource, Object], None]


class Garbage:
    """The garbage collector; its keys are ("owner" or "object", uid)."""

    name = "generic-garbage-collector"

    def __init__(self, client: Client) -> None:
        self._client = client
        self._places: dict[str, _Place] = {}
        self._dependents: dict[str, set[str]] = {}

    def keys(self, change: Change) -> Iterable[Key]:
        metadata = change.record.object["metadata"]
        uid = metadata["uid"]
        owners = [reference.get("uid", "") for reference in metadata.get("ownerReferences") or []]
        if change.type == "DELETED":
            self._places.pop(uid, None)
            for owner in owners:
                self._dependents.get(owner, set()).discard(uid)
            return [("owner", uid), *(("owner", owner) for owner in owners)]
        self._places[uid] = (change.resource, metadata.get("namespace", ""), metadata["name"])
        for owner in owners:
            self._dependents.setdefault(owner, set()).add(uid)
        due = [("object", uid)] if owners and change.type == "ADDED" else []
        return [*due, ("owner", uid)] if "deletionTimestamp" in metadata else due

    def sync(self, key: Key) -> None:
        kind, uid = key
        found = self._find(uid)
        if kind == "object":
            if found:
                self._collect(*found)
            return
        if found is None:
            self._each_dependent(uid, self._collect)
            self._dependents.pop(uid, None)
            return
        resource, obj = found
        finalizers = obj["metadata"].get("finalizers") or []
        if "orphan" in finalizers:
            self._each_dependent(uid, lambda r, dependent: self._disown(r, dependent, uid))
            self._finish(resource, obj, "orphan")
        elif "foregroundDeletion" in finalizers:
            self._each_dependent(uid, self._delete)
            if not self._dependents.get(uid):
                self._finish(resource, obj, "foregroundDeletion")

    def _find(self, uid: str) -> tuple[Resource, Object] | None:
        place = self._places.get(uid)
        record = self._client.store.get(*place) if place else None
        return (place[0], record.object) if place and record and record.object["metadata"]["uid"] == uid else None

    def _each_dependent(self, uid: str, action: _Action) -> None:
        for dependent in list(self._dependents.get(uid, ())):
            found = self._find(dependent)
            if found:
                action(*found)

    def _collect(self, resource: Resource, obj: Object) -> None:
        """Delete an object all of whose owners are gone; a dangling reference is no owner (W18)."""
        references = obj["metadata"].get("ownerReferences") or []
        if references and not any(self._find(reference.get("uid", "")) for reference in references):
            self._delete(resource, obj)

    def _delete(self, resource: Resource, obj: Object) -> None:
        if "deletionTimestamp" not in obj["metadata"]:
            waiting = resource is resources.PODS and not obj["spec"].get("nodeName")
            self._client.delete(resource, obj, 0 if waiting else None)

    def _disown(self, resource: Resource, obj: Object, uid: str) -> None:
        changed = copied(obj)
        references = [r for r in changed["metadata"]["ownerReferences"] if r.get("uid") != uid]
        changed["metadata"]["ownerReferences"] = references
        self._client.update(resource, changed)
        self._dependents.get(uid, set()).discard(obj["metadata"]["uid"])

    def _finish(self, resource: Resource, obj: Object, finalizer: str) -> None:
        changed = copied(obj)
        changed["metadata"]["finalizers"].remove(finalizer)
        try:
            self._client.update(resource, changed)
        except errors.ApiError as error:
            if error.reason != "NotFound":
                raise
