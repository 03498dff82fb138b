"""Where a Service that a webhook registration names really listens."""

from webhook.lab import resources
from webhook.lab.store import Store

Address = tuple[str, int]


class ServiceMap:
    """Addresses given by hand first, then the stored Endpoints: the lab has no network of its own."""

    def __init__(self, store: Store, addresses: dict[tuple[str, str], Address]) -> None:
        self._store = store
        self._addresses = addresses

    def set(self, namespace: str, name: str, address: Address) -> None:
        self._addresses[namespace, name] = address

    def resolve(self, namespace: str, name: str, port: int) -> Address:
        """Host and port to connect to for `port` of a Service. Raises LookupError in the API server's words."""
        if (namespace, name) in self._addresses:
            return self._addresses[namespace, name]
        service = self._store.get(resources.SERVICES, namespace, name)
        endpoints = self._store.get(resources.ENDPOINTS, namespace, name)
        if service is None and endpoints is None:
            raise LookupError(f'service "{name}" not found')
        for subset in endpoints.object.get("subsets") or [] if endpoints else []:
            addresses, ports = subset.get("addresses") or [], subset.get("ports") or []
            if addresses and ports:
                return addresses[0]["ip"], int(ports[0]["port"])
        raise LookupError(f'no endpoints available for service "{name}"')
