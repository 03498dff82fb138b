"""The lab as one object: start it, load objects into it, point clients at it, stop it."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from webhook.lab import certificates, kubeconfig, seed
from webhook.lab.admission import Admission
from webhook.lab.api import create_app
from webhook.lab.call import ADMIN, Call, User
from webhook.lab.controllers import ControllerManager
from webhook.lab.endpoints import ServiceMap
from webhook.lab.http_server import HttpServer
from webhook.lab.registry import Registry
from webhook.lab.resources import Object
from webhook.lab.store import Store
from webhook.lab.webhook_client import WebhookClient

HOST: Final = "127.0.0.1"


class Lab:
    """A look-alike cluster on loopback, in threads of this process. For demos and tests only.

    `services` says where a webhook registered by service reference really listens: ("namespace", "name") ->
    ("127.0.0.1", port). Without an entry the Endpoints object of that name counts.
    """

    def __init__(
        self,
        *,
        host: str = HOST,
        port: int = 0,
        tls: bool = True,
        controllers: bool = True,
        services: Mapping[tuple[str, str], tuple[str, int]] | None = None,
    ) -> None:
        self.store = Store()
        self._identity = certificates.issue(host) if tls else None
        self._services = ServiceMap(self.store, dict(services or {}))
        self._client = WebhookClient(self._services.resolve)
        self.registry = Registry(self.store, Admission(self.store, self._client))
        self._manager = ControllerManager(self.registry) if controllers else None
        self._server = HttpServer(host, port, create_app(self.registry), self._identity)
        self.url = f"{'https' if tls else 'http'}://{host}:{self._server.server_port}"

    @property
    def authority(self) -> bytes | None:
        """PEM of the CA clients must trust; None without TLS."""
        return self._identity.authority if self._identity else None

    def start(self) -> Self:
        """Make the system namespaces and classes, start controllers and server."""
        if self._manager:
            self._manager.start()
        seed.system_objects(self.registry, controllers=self._manager is not None)
        self._server.start()
        return self

    def stop(self) -> None:
        """End every watch and connection, then the controllers."""
        self.store.close()
        self._server.stop()
        if self._manager:
            self._manager.stop()
        self._client.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def kubeconfig(self, path: Path | str) -> Path:
        """Write a kubeconfig for the lab's admin and return its path."""
        kubeconfig.write(Path(path), self.url, self.authority)
        return Path(path)

    def service(self, namespace: str, name: str, address: tuple[str, int]) -> None:
        """Say where the Service `namespace/name` of a webhook registration really listens."""
        self._services.set(namespace, name, address)

    def load(self, objects: Iterable[Object]) -> None:
        """Store objects as they are, status, uids and all, without admission (`List`s are flattened)."""
        seed.load(self.store, objects)

    def create(self, obj: Object, user: User = ADMIN) -> Object:
        """Create one object through the whole chain, as `user`. Raises `webhook.lab.errors.ApiError`."""
        return seed.create(self.registry, obj, Call(user=user))

    def wait(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Return as soon as `condition` holds, checked after every write. Raises TimeoutError."""
        seed.wait(self.store, condition, seconds)
