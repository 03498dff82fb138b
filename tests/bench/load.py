"""Load on a TLS server from a process of its own: closed loop, or open loop at a rate, on kept connections.

One thread and raw sockets, so that the client takes as little of the machine as it can. Prints one JSON object.
"""

import argparse
import json
import selectors
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import Any


class Connection:
    """One kept connection with at most one request on its way."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        raw = socket.create_connection(("127.0.0.1", port), timeout=10)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = tls.wrap_socket(raw, server_hostname="127.0.0.1")
        self.sock.setblocking(False)
        self.asked_at = 0.0
        self._answer = bytearray()

    def ask(self, request: bytes, asked_at: float) -> None:
        """Small requests fit into the socket's buffer; of a large one the rest is sent blocking."""
        self.asked_at = asked_at
        self.sock.setblocking(True)
        self.sock.sendall(request)
        self.sock.setblocking(False)

    def take(self) -> bool:
        """Read what is there; True: the answer is whole. Raises ValueError for any status but 200."""
        try:
            while True:
                piece = self.sock.recv(65536)
                if not piece:
                    raise EOFError("closed")
                self._answer += piece
        except ssl.SSLWantReadError:
            pass
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return False
        headers = bytes(self._answer[:head]).lower()
        at = headers.index(b"content-length:") + 15
        length = int(headers[at:].split(b"\r\n", 1)[0])
        if len(self._answer) < head + 4 + length:
            return False
        if b" 200 " not in headers[:16]:
            raise ValueError(bytes(self._answer[:200]))
        del self._answer[: head + 4 + length]
        return True


def run(
    port: int, ca: Path, request: bytes, connections: int, seconds: float, rate: float | None, warm_up: float
) -> dict[str, Any]:
    """Ask for so many seconds after the warm-up. With a rate, latency counts from when a request was due."""
    tls = ssl.create_default_context(cafile=str(ca))
    selector = selectors.DefaultSelector()
    idle = deque(Connection(port, tls) for _ in range(connections))
    for connection in idle:
        selector.register(connection.sock, selectors.EVENT_READ, connection)
    latencies: list[float] = []
    start = time.perf_counter()
    counted_from, end = start + warm_up, start + warm_up + seconds
    due, asked, answered = start, 0, 0
    while True:
        now = time.perf_counter()
        if now >= end:
            break
        while idle and (rate is None or due <= now):
            idle.popleft().ask(request, due if rate else time.perf_counter())
            asked += 1
            if rate:
                due += 1 / rate
        wait = max(0.0, min(due, end) - time.perf_counter()) if rate and idle else end - now
        for key, _ in selector.select(wait):
            connection: Connection = key.data
            if connection.take():
                now = time.perf_counter()
                answered += 1
                if connection.asked_at >= counted_from:
                    latencies.append(now - connection.asked_at)
                idle.append(connection)
    return summary(latencies, seconds)


def summary(latencies: list[float], seconds: float) -> dict[str, Any]:
    """Milliseconds and answers per second."""
    ordered = sorted(latencies)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)

    return {
        "count": len(ordered),
        "per_second": round(len(ordered) / seconds, 1),
        "p50_ms": at(0.5),
        "p90_ms": at(0.9),
        "p99_ms": at(0.99),
        "max_ms": at(1.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ca", type=Path, required=True)
    parser.add_argument("--body", type=Path, required=True)
    parser.add_argument("--path", default="/mutate")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--warm-up", type=float, default=1.0)
    chosen = parser.parse_args()
    body = chosen.body.read_bytes()
    request = (
        f"POST {chosen.path}?timeout=3s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: kube-apiserver-admission\r\n"
        f"Accept: application/json, */*\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    result = run(chosen.port, chosen.ca, request, chosen.connections, chosen.seconds, chosen.rate, chosen.warm_up)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
