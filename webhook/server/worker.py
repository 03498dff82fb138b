"""gunicorn's thread worker with deadlines: no client, however slow or silent, keeps a thread from a review for long."""

# gunicorn has no types.
# mypy: disable-error-code="no-untyped-call, union-attr"

import contextlib
import errno
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from gunicorn import http, util
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers import gthread

ASKED_AT: Final = "gpu_webhook.asked_at"
"""WSGI environ key: when (time.monotonic) the first byte of the request could be read."""
FIRST_BYTE: Final = 10.0
"""Seconds a new connection may stay silent before its handshake begins."""
HANDSHAKE: Final = 2.0
"""Seconds that a TLS handshake may take, all round trips together."""
REQUEST: Final = 10.0
"""Seconds from the first byte of a request to its last."""
RECORD: Final = 16 * 1024
"""Bytes in a TLS record at most. No read returns more than one: a larger buffer would only be made and thrown away."""
SPARE: Final = 16
"""File descriptors kept free for everything else when there are not enough for all connections."""
STAY: Final = 0.005
"""Seconds that a thread stays with a connection it has just answered. A busy client speaks again within them, and two
hand-overs between threads, which cost more than judging a review, are saved."""
LINGER: Final = 0.5
"""Seconds that a closing connection is read from, so that the client gets our last answer (RFC 9112, 9.6)."""


class DeadlineSocket(ssl.SSLSocket):
    """A TLS socket on which a whole request, not each of its reads, has a deadline.

    gunicorn makes a connection blocking when a thread takes it up, and non-blocking when it goes back to the poller:
    that is when the clock starts and stops.
    """

    asked_at = 0.0
    """When the request that is being read could first be read: waiting for a thread is part of its time."""
    _deadline: float | None = None

    def setblocking(self, flag: bool) -> None:
        super().setblocking(flag)
        self._deadline = time.monotonic() + REQUEST if flag else None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        self._wait_at_most()
        try:
            return super().recv(min(buflen, RECORD), flags)
        except TimeoutError:
            raise _too_slow() from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        self._wait_at_most()
        try:
            return super().recv_into(buffer, nbytes, flags)
        except TimeoutError:
            raise _too_slow() from None

    def _wait_at_most(self) -> None:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise _too_slow()
            self.settimeout(left)


def _too_slow() -> OSError:
    """What gunicorn takes for a client that went away: closed without a stack trace in the log."""
    return ConnectionResetError(errno.ECONNRESET, "the client was too slow")


class Connection(gthread.TConn):
    """A connection whose handshake never blocks, and whose closing never waits on the accept loop."""

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any) -> None:
        super().__init__(cfg, sock, client, server)
        self.asked_at = 0.0
        self.data_ready = True  # it was the poller that brought it here
        self.timeout = time.monotonic() + FIRST_BYTE

    def shake_hands(self) -> bool:
        """Take the handshake as far as the bytes that are there allow; False: more must come from the client."""
        if self.parser is None:
            self.timeout = time.monotonic() + HANDSHAKE
            if self.cfg.is_ssl:
                self.sock = ssl_wrap_socket(self.sock, self.cfg)
            self.parser = http.get_parser(self.cfg, self.sock, self.client)
        if self.cfg.is_ssl:
            try:
                self.sock.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
        self.initialized = True
        self.timeout = time.monotonic() + self.cfg.keepalive
        return True

    def speaks_within(self, seconds: float) -> bool:
        """Whether the next request begins within so many seconds."""
        try:
            if self.sock.pending():
                return True
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        except (OSError, ValueError):
            return False

    def linger(self) -> None:
        """Tell the client that nothing more comes and read what it still sends, in the calling (pool) thread."""
        with contextlib.suppress(OSError, ValueError):
            self.sock.setblocking(True)
            self.sock.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LINGER
            left = LINGER
            while left > 0:
                self.sock.settimeout(left)
                if not self.sock.recv(65536):
                    return
                left = until - time.monotonic()

    def close(self, graceful: bool = False) -> None:
        util.close(self.sock)


class Worker(gthread.ThreadWorker):
    """One process, many threads. A thread is held by a connection only while a request of it is read or answered."""

    _next_sweep = 0.0

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self.wsgi = _adapted(self.wsgi)

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.alive:
            self.app.drain()
        super().handle_exit(sig, frame)

    def enqueue_req(self, conn: Connection) -> None:
        conn.asked_at = time.monotonic()
        super().enqueue_req(conn)

    def accept(self, listener: socket.socket) -> None:
        """Leave a new connection with the poller until its first byte is there."""
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._stop_growing(error)
            elif error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                raise
            return
        self.nr_conns += 1
        self._await_first_byte(Connection(self.cfg, sock, address, listener.getsockname()))

    def _stop_growing(self, error: OSError) -> None:
        """Without a file descriptor left, more connections wait in the backlog until others close."""
        self.worker_connections = max(1, self.nr_conns - SPARE)
        self.log.error("connections limited to %d: %s; raise the limit of open files", self.worker_connections, error)

    def handle(self, conn: Connection) -> Any:
        """In a pool thread: a step of the handshake, or one request; what ends here lingers here."""
        if not conn.initialized:
            try:
                conn.shake_hands()
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                self.log.debug("handshake with %s failed: %s", conn.client, error)
                conn.linger()
                return False
            return gthread._DEFER  # the request has not come yet: nothing holds a thread before its first byte
        conn.sock.asked_at = conn.asked_at
        result = super().handle(conn)
        while result and self.alive and conn.speaks_within(STAY):
            conn.sock.asked_at = time.monotonic()
            result = super().handle(conn)
        if not result:
            conn.linger()
        return result

    def finish_request(self, conn: Connection, fs: "Future[Any]") -> None:
        """On the accept loop: a connection in the middle of its handshake keeps its own deadline."""
        if fs.cancelled() or fs.exception() is not None or fs.result() is not gthread._DEFER:
            super().finish_request(conn, fs)
            return
        try:
            conn.sock.setblocking(False)
            self._await_first_byte(conn)
        except (OSError, ValueError):
            self.nr_conns -= 1
            conn.close()

    def murder_pending(self) -> None:
        """Close connections whose first byte, or handshake, is overdue; once a second, whatever their order."""
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + 1.0
        for conn in [conn for conn in self.pending_conns if conn.timeout <= now]:
            self.pending_conns.remove(conn)
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.poller.unregister(conn.sock)
            self.nr_conns -= 1
            conn.close()

    def set_accept_enabled(self, enabled: bool) -> None:
        """Stop accepting for good when draining, so that new clients are refused at once and go elsewhere."""
        super().set_accept_enabled(enabled)
        if not self.alive:
            for listener in self.sockets:
                self._accept_waiting(listener)
                listener.close()

    def _accept_waiting(self, listener: socket.socket) -> None:
        """Clients that the kernel has already connected would be reset by closing: serve them too."""
        with contextlib.suppress(OSError):
            while self.nr_conns < self.worker_connections:
                sock, address = listener.accept()
                self.nr_conns += 1
                self._await_first_byte(Connection(self.cfg, sock, address, listener.getsockname()))

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)

    def _await_first_byte(self, conn: Connection) -> None:
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, lambda sock: self.on_pending_socket_readable(conn, sock))


_StartResponse = Callable[..., Any]
_Wsgi = Callable[[dict[str, Any], _StartResponse], Iterable[bytes]]


def _adapted(wsgi: _Wsgi) -> _Wsgi:
    """Tell the application when its request came; honour its `Connection: close`, which gunicorn drops."""

    def wrapped(environ: dict[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if not status.startswith("200") and ("Connection", "close") in headers:
                start_response.__self__.force_close()  # type: ignore[attr-defined]
            return start_response(status, headers, exc_info)

        environ[ASKED_AT] = environ["gunicorn.socket"].asked_at
        return wsgi(environ, start)

    return wrapped
