"""One client's connection: TLS with deadlines, read ahead without waiting, answered with one write."""

# gunicorn has no types.
# mypy: disable-error-code="no-untyped-call, union-attr"

import contextlib
import errno
import socket
import ssl
import time
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import gunicorn_h1c
from gunicorn import http, util
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers import gthread

FIRST_BYTE: Final = 10.0
"""Seconds a new connection may stay silent before its handshake begins."""
HANDSHAKE: Final = 2.0
"""Seconds that a TLS handshake may take, all round trips together."""
REQUEST: Final = 10.0
"""Seconds from the first byte of a request to its last, and for a step of sending an answer."""
LINGER: Final = 0.5
"""Seconds that a closing connection is read from, so that the client gets our last answer (RFC 9112, 9.6)."""
RECORD: Final = 16 * 1024
"""Bytes in a TLS record at most. No read returns more than one: a larger buffer would only be made and thrown away."""
READ_AHEAD: Final = 4 * RECORD
"""Bytes of a request that are read without a thread of its own; few reviews are larger."""
_PIECES: Final = 32
"""Reads for them at most: the API server needs about twenty, a client that sends single bytes thousands."""
_LONGEST_TARGET: Final = 256
"""Bytes of a request target beyond which gunicorn judges it; the API server adds its timeout and nothing else."""
_LONGEST_LENGTH: Final = len(str(READ_AHEAD))
"""Digits of a Content-Length: more of them say too much, or are zeros that `int` would refuse at some number."""

_PLAIN_HEADERS: Final = frozenset(
    (
        *(b"host", b"user-agent", b"accept", b"accept-encoding", b"content-type", b"content-length"),
        *(b"authorization", b"traceparent"),
    )
)
"""What the API server sends with a review. A request with any other header is read by gunicorn, which knows them."""


class Post(NamedTuple):
    """A request that is all there: `path` without its query, `body` of the length that was announced, as JSON."""

    path: str
    body: bytes


class DeadlineSocket(ssl.SSLSocket):
    """A TLS socket on which a whole request, not each of its reads, has a deadline.

    gunicorn makes a connection blocking when a thread takes it up, and non-blocking when it goes back to the poller:
    that is when the clock starts and stops.
    """

    _deadline: float | None = None

    def setblocking(self, flag: bool) -> None:
        super().setblocking(flag)
        self._deadline = time.monotonic() + REQUEST if flag else None

    def send(self, data: Any, flags: int = 0) -> int:
        if self._deadline is not None:
            self.settimeout(REQUEST)
        try:
            return super().send(data, flags)
        except TimeoutError:
            raise _too_slow() from None

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
        """When (time.monotonic) the request could first be read: waiting for a thread is part of its time."""
        self.data_ready = True  # it was the poller that brought it here
        self.timeout = time.monotonic() + FIRST_BYTE
        self._ahead = b""

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
        return True

    # -- on the accept loop, where nothing may wait --

    def read_ahead(self) -> Post | None:
        """Read what has arrived; the request, if that is all of a small plain POST and nothing else.

        It is None for pages, for a body that is large, slow or chunked, and for a client that has gone: those want a
        thread of their own, after `unread`.
        """
        try:
            for _ in range(_PIECES):
                piece = self.sock.recv(RECORD)
                self._ahead += piece
                post = whole_post(self._ahead)
                if post is not None or not piece or len(self._ahead) >= READ_AHEAD:
                    return post
        except OSError:  # nothing more is there (ssl.SSLWantReadError), or a fault that the next reader meets too
            pass
        return None

    def unread(self) -> None:
        """Give what was read ahead to the parser."""
        self.parser.unreader.unread(self._ahead)
        self._ahead = b""

    def send_at_once(self, answer: bytes) -> bytes:
        """Send as much as the client takes without waiting; returns the rest. Raises OSError if it is gone.

        What was read ahead is answered with it and let go: idle connections must not keep their last reviews.
        """
        self._ahead = b""
        try:
            return answer[self.sock.send(answer) :]
        except (ssl.SSLWantWriteError, BlockingIOError):
            return answer

    # -- in a thread of the pool --

    def finish(self, rest: bytes, keep: bool) -> bool:
        """Send the rest of an answer, and linger if it was the last one; whether the connection goes on."""
        try:
            self.sock.settimeout(REQUEST)
            self.sock.sendall(rest)
        except (OSError, ValueError):
            keep = False
        if not keep:
            self.linger()
        return keep

    def linger(self) -> None:
        """Tell the client that nothing more comes and read what it still sends."""
        with contextlib.suppress(OSError, ValueError):
            self.sock.setblocking(False)  # ends the deadline of the request, which is longer than ours
            self.sock.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LINGER
            left = LINGER
            while left > 0:
                self.sock.settimeout(left)
                if not self.sock.recv(65536):
                    return
                left = until - time.monotonic()

    def has_more(self) -> bool:
        """Whether the TLS layer holds bytes of a next request, which no longer make the socket readable."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def close(self, graceful: bool = False) -> None:
        util.close(self.sock)


def whole_post(data: bytes) -> Post | None:
    """The request that `data` is, if it is exactly one HTTP/1.1 POST of JSON with no headers but plain ones.

    Everything else, wrong or only unusual, is None and left to gunicorn's own parser. Raises nothing, whatever `data`.
    """
    if not data.startswith(b"POST /"):
        return None
    try:
        head = gunicorn_h1c.parse_request(data)
    except (gunicorn_h1c.ParseError, gunicorn_h1c.IncompleteError):
        return None
    headers = {name.lower(): value for name, value in head["headers"]}
    if len(headers) != len(head["headers"]) or not headers.keys() <= _PLAIN_HEADERS:
        return None
    target, length = head["path"], headers.get(b"content-length", b"")
    if len(target) > _LONGEST_TARGET or not target.isascii():
        return None
    if not length.isdigit() or len(length) > _LONGEST_LENGTH or len(data) != head["consumed"] + int(length):
        return None
    if head["minor_version"] != 1 or headers.get(b"content-type") != b"application/json":
        return None
    return Post(target.partition(b"?")[0].decode("ascii"), data[head["consumed"] :])


def answer(status: int, body: bytes, keep: bool) -> bytes:
    """An HTTP/1.1 answer with a JSON body, head and body in one piece."""
    return b"%b%d\r\n\r\n%b" % (_head(status, keep, int(time.time())), len(body), body)


@lru_cache(maxsize=8)
def _head(status: int, keep: bool, second: int) -> bytes:
    """All of a head but the length: its date alone costs more to write than a small answer to send."""
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: gunicorn\r\nDate: {util.http_date(second)}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\nContent-Type: application/json\r\nContent-Length: "
    ).encode("ascii")


class Outgoing:
    """What gunicorn takes for the socket of an answer: head and body leave together, as one TLS record."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parts: list[bytes] = []

    def send(self, data: bytes) -> int:
        """`100 Continue`, which cannot wait for the answer."""
        return self._sock.send(data)

    def sendall(self, data: bytes) -> None:
        self._parts.append(data)

    def gathered(self) -> bytes:
        return b"".join(self._parts)
