"""Clients for a TLS server: a good one that keeps its connection, and the bad ones that people and networks are."""

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HOST = "127.0.0.1"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def context(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


def connect(port: int, tls: ssl.SSLContext, timeout: float = 10.0) -> ssl.SSLSocket:
    raw = socket.create_connection((HOST, port), timeout=timeout)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(raw, server_hostname=HOST)


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """The bytes of a request as the API server sends it (V12)."""
    return (
        f"POST {path}?timeout=3s HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: kube-apiserver-admission\r\n"
        f"Accept: application/json, */*\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


class Client:
    """One connection, kept and used again until the server closes it."""

    def __init__(self, port: int, tls: ssl.SSLContext, timeout: float = 10.0) -> None:
        self.sock = connect(port, tls, timeout)
        self._buffer = b""

    def send(self, request: bytes) -> Answer:
        self.sock.sendall(request)
        return self.read()

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> Answer:
        return self.send(post(path, body, content_type))

    def get(self, path: str) -> Answer:
        return self.send(get(path))

    def read(self) -> Answer:
        """One answer; EOFError if the server closes before it is whole."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        self._buffer = rest
        while len(self._buffer) < length:
            self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Answer(int(first.split()[1]), headers, body)

    def has_answer(self) -> bool:
        """Whether some of an answer has come; does not wait for it."""
        timeout = self.sock.gettimeout()
        self.sock.setblocking(False)
        try:
            self._buffer += self.sock.recv(65536)
        except ssl.SSLWantReadError:
            return False
        finally:
            self.sock.settimeout(timeout)
        return True

    def _more(self) -> None:
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError("the server closed the connection")
        self._buffer += piece

    def is_closed(self, within: float = 2.0) -> bool:
        """Whether the server closes the connection in time."""
        self.sock.settimeout(within)
        try:
            return self.sock.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def hostile(port: int, tls: ssl.SSLContext, kinds: dict[str, int]) -> Iterator[list[socket.socket]]:
    """Open so many connections of each kind and hold them; the kinds are the names of `_KINDS`."""
    held: list[socket.socket] = []
    try:
        for kind, count in kinds.items():
            held += [_KINDS[kind](port, tls) for _ in range(count)]
        yield held
    finally:
        for sock in held:
            sock.close()


def _silent(port: int, _tls: ssl.SSLContext) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=5)


def _half_handshake(port: int, tls: ssl.SSLContext) -> socket.socket:
    """Says a whole ClientHello and then nothing."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = tls.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    sock = socket.create_connection((HOST, port), timeout=5)
    sock.sendall(outgoing.read())
    return sock


def _half_header(port: int, tls: ssl.SSLContext) -> socket.socket:
    sock = connect(port, tls)
    sock.sendall(b"POST /validate HTTP/1.1\r\nHost: x\r\nX-")
    return sock


def _slow_body(port: int, tls: ssl.SSLContext) -> socket.socket:
    sock = connect(port, tls)
    sock.sendall(post("/validate", b"x" * 100_000)[:2000])
    return sock


def _plain_http(port: int, _tls: ssl.SSLContext) -> socket.socket:
    sock = socket.create_connection((HOST, port), timeout=5)
    sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    return sock


def _idle(port: int, tls: ssl.SSLContext) -> socket.socket:
    """A whole handshake, and then nothing."""
    return connect(port, tls)


_KINDS = {
    "silent": _silent,
    "half-handshake": _half_handshake,
    "half-header": _half_header,
    "slow-body": _slow_body,
    "plain-http": _plain_http,
    "idle": _idle,
}
