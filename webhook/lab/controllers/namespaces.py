"""Namespaces: a default account for each new one, and the emptying of those that are being deleted (H5)."""

from collections.abc import Iterable, Iterator

from webhook.lab import errors, resources
from webhook.lab.controllers.runtime import Client, Key, key_of
from webhook.lab.resources import RESOURCES, Object, copied
from webhook.lab.store import Change


class Accounts:
    """Makes the `default` ServiceAccount and the root CA ConfigMap that pods mount."""

    name = "service-account-controller"

    def __init__(self, client: Client) -> None:
        self._client = client

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource is resources.NAMESPACES and change.type != "DELETED":
            return [key_of(change.record.object)]
        return []

    def sync(self, key: Key) -> None:
        namespace = self._client.get(resources.NAMESPACES, key)
        if namespace is None or namespace["status"].get("phase") == "Terminating":
            return
        for resource, name, content in (
            (resources.SERVICE_ACCOUNTS, "default", {}),
            (resources.CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": ""}}),
        ):
            if self._client.get(resource, (key[1], name)) is None:
                self._client.create(resource, {"metadata": {"name": name, "namespace": key[1]}, **content})


class Namespaces:
    """Deletes what a terminating namespace holds, then takes its last finalizer."""

    name = "namespace-controller"

    def __init__(self, client: Client) -> None:
        self._client = client

    def keys(self, change: Change) -> Iterable[Key]:
        obj = change.record.object
        if change.resource is resources.NAMESPACES and change.type != "DELETED":
            return [key_of(obj)] if "deletionTimestamp" in obj["metadata"] else []
        if change.type == "DELETED" and "namespace" in obj["metadata"]:
            return [("", obj["metadata"]["namespace"])]
        return []

    def sync(self, key: Key) -> None:
        namespace = self._client.get(resources.NAMESPACES, key)
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return
        for resource, obj in self._content(key[1]):
            if "deletionTimestamp" not in obj["metadata"]:
                self._client.delete_collected(resource, obj)
        if any(self._content(key[1])):
            return  # each deletion brings us back
        finalized = copied(namespace)
        finalized["spec"]["finalizers"] = []
        try:
            self._client.update(resources.NAMESPACES, finalized, "finalize")
        except errors.ApiError as error:
            if error.reason != "NotFound":
                raise

    def _content(self, namespace: str) -> Iterator[tuple[resources.Resource, Object]]:
        for resource in RESOURCES:
            if resource.namespaced:
                for obj in self._client.store.objects(resource, namespace):
                    yield resource, obj
