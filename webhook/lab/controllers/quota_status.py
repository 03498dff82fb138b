"""ResourceQuota status: filled for a new quota, recounted when something in its namespace goes (Q5, Q19-Q21)."""

from collections.abc import Iterable

from webhook.lab import quota, resources
from webhook.lab.controllers.runtime import Client, Key, is_finished, key_of
from webhook.lab.resources import copied
from webhook.lab.store import Change


class QuotaStatus:
    """The resourcequota controller; admission raises `used`, this lowers it."""

    name = "resourcequota-controller"

    def __init__(self, client: Client) -> None:
        self._client = client

    def keys(self, change: Change) -> Iterable[Key]:
        obj = change.record.object
        if change.resource is resources.RESOURCE_QUOTAS:
            return [] if change.type == "DELETED" else [key_of(obj)]
        namespace = obj["metadata"].get("namespace")
        if not namespace or change.resource is resources.EVENTS:
            return []
        ended = change.type == "DELETED" or (change.resource is resources.PODS and is_finished(obj))
        if not ended:
            return []
        return [key_of(each) for each in self._client.store.objects(resources.RESOURCE_QUOTAS, namespace)]

    def sync(self, key: Key) -> None:
        with self._client.store.lock:
            current = self._client.get(resources.RESOURCE_QUOTAS, key)
            if current is None:
                return
            counted = quota.status(self._client.store, current)
        if current["status"] != counted:
            # written at the version it was counted at: a charge in between makes it a conflict, and a recount
            self._client.update_status(resources.RESOURCE_QUOTAS, copied(current), counted)
