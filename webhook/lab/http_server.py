"""A threaded HTTP/1.1 server for the application: keep-alive, many watches, TLS off the accept loop."""

import io
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from flask import Flask
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from webhook.lab.certificates import ServerIdentity

_HANDSHAKE_SECONDS: Final = 5

BODY_LIMIT: Final = 3 * 1024 * 1024
"""Bytes a client may send (V28)."""


class _Handler(WSGIRequestHandler):
    """Werkzeug's handler, but with keep-alive: it reads every body to its end before the application starts."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one packet
    timeout = 300  # seconds an idle connection is kept

    def run_wsgi(self) -> None:
        environ = self.make_environ()
        body = self._body(environ)
        environ |= {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True, "CONTENT_LENGTH": str(len(body))}
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        head: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], object]:
            head[:] = [status, headers]
            return self.wfile.write

        chunks = self.server.app(environ, start_response)
        try:
            self._answer(head, chunks)
        finally:
            close = getattr(chunks, "close", None)
            if close:
                close()

    def _body(self, environ: dict[str, Any]) -> bytes:
        """Up to one byte more than the application takes; what is longer ends the connection."""
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        if environ.get("wsgi.input_terminated"):  # chunked
            body: bytes = io.BufferedReader(environ["wsgi.input"]).read(BODY_LIMIT + 1)
        else:
            body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), BODY_LIMIT + 1))
        if len(body) > BODY_LIMIT:
            self.close_connection = True
        return body

    def _answer(self, head: list[Any], chunks: Iterable[bytes]) -> None:
        streaming: bool | None = None
        for chunk in chunks:
            if streaming is None:
                streaming = self._send_head(*head)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if streaming and chunk else chunk)
            self.wfile.flush()
        if streaming is None:
            streaming = self._send_head(*head)
        self.wfile.write(b"0\r\n\r\n" if streaming else b"")
        self.wfile.flush()

    def _send_head(self, status: str, headers: list[tuple[str, str]]) -> bool:
        """Whether the body has to come in chunks, because its length is not known."""
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for key, value in headers:
            self.send_header(key, value)
        streaming = not any(key.lower() == "content-length" for key, _ in headers)
        if streaming:
            self.send_header("Transfer-Encoding", "chunked")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        return streaming

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
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="lab-http", daemon=True)

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
