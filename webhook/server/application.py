"""gunicorn, set up in code: one worker process with our thread worker, TLS, and nothing written outside /dev/shm."""

# gunicorn has no types.
# mypy: disable-error-code="no-untyped-call, union-attr"

import os
import resource
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from gunicorn.app.base import BaseApplication

from webhook.server.tls import Certificate, gunicorn_hook
from webhook.server.worker import Worker

KEEP_ALIVE: Final = 120
"""Seconds an idle connection stays open: longer than the API server keeps its own (90 s, V26, V27)."""
GRACE: Final = 20
"""Seconds after SIGTERM until requests that are still being answered are cut off."""
CONNECTIONS: Final = 4096
"""Connections at a time; further ones wait in the backlog."""
BACKLOG: Final = 1024
MEMORY_FOLDER: Final = Path("/dev/shm")  # writable also where the root file system is not

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Served(Protocol):
    """What gunicorn serves; `start` and `stop` are called once each, `drain` from a signal handler."""

    def start(self) -> Wsgi: ...

    def drain(self) -> None: ...

    def stop(self) -> None: ...


class BindError(Exception):
    """The address cannot be listened on; the message says which and why."""


class Application(BaseApplication):
    """The gunicorn application. All of `served` happens in the worker process, after the fork."""

    def __init__(self, settings: Mapping[str, Any], served: Served) -> None:
        self._settings = settings
        self._served = served
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._settings.items():
            self.cfg.set(name, value)
        self.cfg.set("worker_exit", lambda _arbiter, _worker: self._served.stop())

    def load(self) -> Wsgi:
        return self._served.start()

    def drain(self) -> None:
        """Called by the worker when it is told to stop."""
        self._served.drain()


def settings(listener: socket.socket, certificate: Certificate, threads: int) -> dict[str, Any]:
    """gunicorn's settings for a bound socket, which it takes over."""
    return {
        "bind": f"fd://{listener.detach()}",
        "workers": 1,
        "worker_class": Worker,
        "threads": threads,
        "worker_connections": CONNECTIONS + threads,
        "backlog": BACKLOG,
        "keepalive": KEEP_ALIVE,
        "graceful_timeout": GRACE,
        "certfile": str(certificate.cert),
        "keyfile": str(certificate.key),
        "ssl_context": gunicorn_hook(certificate),
        "http_parser": "auto",  # gunicorn_h1c where it is installed
        "control_socket_disable": True,
        "worker_tmp_dir": str(MEMORY_FOLDER) if os.access(MEMORY_FOLDER, os.W_OK) else None,
        "loglevel": "warning",
        "proc_name": "gpu-webhook",
    }


def listen(address: str) -> socket.socket:
    """A socket bound to HOST:PORT ([HOST]:PORT for IPv6; port 0: a free one). Raises BindError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BindError(f"{address}: expected HOST:PORT, say 0.0.0.0:8443")
    is_v6 = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_v6 else host
    try:
        return socket.create_server(
            (host, int(port)), family=socket.AF_INET6 if is_v6 else socket.AF_INET, backlog=BACKLOG
        )
    except OSError as error:
        raise BindError(f"{address}: cannot listen there: {error.strerror or error}") from error


def serve(settings: Mapping[str, Any], served: Served) -> None:
    """Run until SIGTERM; ends the process (SystemExit)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    Application(settings, served).run()
