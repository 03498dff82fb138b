"""A threaded HTTP/1.1 server for the application: keep-alive, many watches, TLS off the accept loop."""

import socket
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from flask import Flask
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from webhook.lab.certificates import ServerIdentity

_HANDSHAKE_SECONDS: Final = 5


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes; Nagle would hold back the second for 40 ms
    timeout = 300  # seconds an idle connection is kept

    def log(self, type: str, message: str, *args: Any) -> None:
        """The lab is quiet; what goes wrong is in the answer."""

    def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
        """A client that leaves its watch is nothing to report."""


class HttpServer(ThreadedWSGIServer):
    """Serves until `stop`; every connection has a daemon thread, so watches may stay open for long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, host: str, port: int, app: Flask, identity: ServerIdentity | None) -> None:
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._tls = _context(identity) if identity else None
        super().__init__(host, port, app, handler=_Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="lab-http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting and cut every connection."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _cut(connection)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: the TLS handshake, then its requests."""
        if self._tls is not None:
            request.settimeout(_HANDSHAKE_SECONDS)
            try:
                request = self._tls.wrap_socket(request, server_side=True)
            except OSError:  # a client that does not trust us, or speaks no TLS
                return
        with self._lock:
            self._connections.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            with self._lock:
                self._connections.discard(request)
            if self._tls is not None:
                _cut(request)
                request.close()

    def log(self, type: str, message: str, *args: Any) -> None:
        """Like `_Handler.log`: connections that end in the middle of TLS would fill the terminal."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are the client's business."""


def _context(identity: ServerIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # the ssl module reads key pairs from files only
        chain = Path(folder) / "pair.pem"
        chain.touch(mode=0o600)
        chain.write_bytes(identity.certificate + identity.key)
        context.load_cert_chain(chain)
    return context


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
