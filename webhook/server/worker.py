"""gunicorn's thread worker, with deadlines, and with small reviews answered where they arrive.

A small review costs less than handing it to another thread, so the accept loop answers it itself. Whatever could wait
goes to the thread pool: handshakes, slow or large requests, pages, and reviews that need a live read. No client,
however slow or silent, keeps the loop or a thread from the others for long.
"""

# gunicorn has no types.
# mypy: disable-error-code="no-untyped-call, union-attr"

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol

from gunicorn.http import wsgi
from gunicorn.workers import gthread

from webhook.decision.facts import MustWaitError
from webhook.server import connection
from webhook.server.connection import Connection, Outgoing, Post

log = logging.getLogger(__name__)

ASKED_AT: Final = "gpu_webhook.asked_at"
"""WSGI environ key: when (time.monotonic) the first byte of the request could be read."""
SPARE: Final = 16
"""File descriptors kept free for everything else when there are not enough for all connections."""
_SWEEP: Final = 1.0


class AnswersAtOnce(Protocol):
    """A WSGI application that can also be asked without WSGI, by whoever may not wait."""

    at_once: Collection[str]
    """The paths for which that is so."""

    def answer(self, path: str, body: bytes, asked_at: float, may_wait: bool) -> tuple[int, bytes]:
        """Status and JSON body. Without `may_wait`, raises MustWaitError rather than wait for anything but the disk."""


class Pool(ThreadPoolExecutor):
    """Threads as they are needed; once the system gives no more, those that there are do all the work."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads:
                raise
            self._max_workers = len(self._threads)
            log.error("threads limited to %d: %s; raise the limit of processes (pids)", self._max_workers, error)


class Worker(gthread.ThreadWorker):
    """One process, many threads. A thread is held by a connection only while a request of it is read or answered."""

    _next_sweep = 0.0
    _next_notice = 0.0
    _ready_at = 0.0

    def get_thread_pool(self) -> Pool:
        return Pool(self.cfg.threads)

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self._at_once: Collection[str] = getattr(self.wsgi, "at_once", ())

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.alive:
            self.app.drain()
        super().handle_exit(sig, frame)

    def notify(self) -> None:
        """Tell the arbiter that we live, once a second: the loop turns for every request."""
        now = time.monotonic()
        if now >= self._next_notice:
            self._next_notice = now + 1.0
            super().notify()

    # -- connections --

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

    def _await_first_byte(self, conn: Connection) -> None:
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, lambda sock: self.on_pending_socket_readable(conn, sock))

    # -- requests --

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """As gunicorn's, but what is ready knows since when: waiting for its turn is part of a review's time."""
        events = self.poller.select(timeout)
        self._ready_at = time.monotonic()
        for key, _ in events:
            key.data(key.fileobj)
            self.notify()  # thousands of large reviews at once take longer than the arbiter waits

    def on_client_socket_readable(self, conn: Connection, client: socket.socket) -> None:
        """On the accept loop: answer a small review here and now; all else waits for a thread of the pool."""
        conn.asked_at = self._ready_at
        try:
            post = conn.read_ahead() if self._at_once else None
            answered = post is not None and post.path in self._at_once and self._answer_at_once(conn, post)
        except Exception:  # one request must not end the loop, and with it everybody's connections
            self.log.exception("fault with a request of %s; a thread takes it", conn.client)
            answered = False
        if not answered:
            conn.unread()
            self._leave_to_pool(conn, self.handle, conn)

    def _answer_at_once(self, conn: Connection, post: Post) -> bool:
        """False: it could not be done without waiting, and nothing has happened."""
        keep = self.alive and len(self.keepalived_conns) <= self.max_keepalived
        try:
            status, body = self.wsgi.answer(post.path, post.body, conn.asked_at, may_wait=False)
        except MustWaitError:
            return False
        try:
            rest = conn.send_at_once(connection.answer(status, body, keep))
        except (OSError, ValueError):
            rest, keep = b"", False
        if keep and not rest:
            conn.set_timeout()  # and stays with the poller
        else:
            self._leave_to_pool(conn, conn.finish, rest, keep)
        return True

    def _leave_to_pool(self, conn: Connection, work: Any, *values: Any) -> None:
        self.poller.unregister(conn.sock)
        self.keepalived_conns.remove(conn)
        self._submit(conn, work, *values)

    def enqueue_req(self, conn: Connection) -> None:
        conn.asked_at = time.monotonic()
        self._submit(conn, self.handle, conn)

    def _submit(self, conn: Connection, work: Any, *values: Any) -> None:
        future = self.tpool.submit(work, *values)
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

    def handle(self, conn: Connection) -> Any:
        """In a pool thread: a step of the handshake, or one request; what ends here lingers here."""
        if not conn.initialized:
            try:
                shaken = conn.shake_hands()
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                self.log.debug("handshake with %s failed: %s", conn.client, error)
                conn.linger()
                return False
            return shaken or gthread._DEFER  # nothing holds a thread before its first byte
        result = super().handle(conn)
        if not result:
            conn.linger()
        return result

    def handle_request(self, req: Any, conn: Connection) -> bool:
        """In a pool thread, called by `handle`: ask the application by WSGI; whether the connection goes on."""
        out = Outgoing(conn.sock)
        resp, environ = wsgi.create(req, out, conn.client, conn.server, self.cfg)
        environ |= {"wsgi.multithread": True, ASKED_AT: conn.asked_at}
        if not self.alive or len(self.keepalived_conns) >= self.max_keepalived:
            resp.force_close()

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if ("Connection", "close") in headers:  # which gunicorn drops
                resp.force_close()
            return resp.start_response(status, headers, exc_info)

        parts = self.wsgi(environ, start)
        try:
            for part in parts:
                resp.write(part)
            resp.close()
        finally:
            if hasattr(parts, "close"):
                parts.close()
        conn.sock.sendall(out.gathered())
        return not resp.should_close()

    def finish_request(self, conn: Connection, fs: "Future[Any]") -> None:
        """On the accept loop: back to the poller, or closed. In the middle of its handshake a connection keeps its
        own deadline."""
        try:
            result = not fs.cancelled() and fs.exception() is None and fs.result()
            if result is gthread._DEFER:
                conn.sock.setblocking(False)
                self._await_first_byte(conn)
                return
            if result and conn.has_more():
                self.enqueue_req(conn)
                return
        except (OSError, ValueError):
            self.nr_conns -= 1
            conn.close()
            return
        super().finish_request(conn, fs)

    # -- endings --

    def murder_keepalived(self, force: bool = False) -> None:
        """All of them at the end; `murder_pending` closes those that are overdue."""
        if force:
            super().murder_keepalived(force)

    def murder_pending(self) -> None:
        """Close connections whose first byte, handshake or next request is overdue; once a second, in any order."""
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP
        for waiting in (self.pending_conns, self.keepalived_conns):
            for conn in [conn for conn in waiting if conn.timeout <= now]:
                waiting.remove(conn)
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
