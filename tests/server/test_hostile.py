"""Clients that are slow, silent, broken or endless do not keep others waiting (issue: 50 of each, 500 idle)."""

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.clients import HOST, Answer, Client, connect, hostile, post
from tests.server.serving import Serving, wait_until
from tests.server.standin import golden
from webhook.certs.issue import local_pair
from webhook.server import connection
from webhook.server.connection import DeadlineSocket
from webhook.server.reviews import LARGE_AT_ONCE

CROWDS = {
    "silent": {"silent": 50},
    "half-handshake": {"half-handshake": 50},
    "half-header": {"half-header": 50},
    "slow-body": {"slow-body": 50},
    "plain-http": {"plain-http": 50},
    "idle": {"idle": 500},
    "all at once": {
        "silent": 50,
        "half-handshake": 50,
        "half-header": 50,
        "slow-body": 50,
        "plain-http": 50,
        "idle": 500,
    },
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_the_next_hundred_reviews_are_each_answered_within_a_second(server: Serving, crowd: str) -> None:
    body = golden("pod-create")
    with hostile(server.port, server.tls, CROWDS[crowd]):
        for _ in range(100):
            start = time.perf_counter()
            assert server.once("/mutate", body).status == 200
            assert time.perf_counter() - start < 1.0


def test_a_plain_http_client_is_hung_up_on_and_the_log_shows_no_trace(server: Serving) -> None:
    with socket.create_connection((HOST, server.port), timeout=5) as sock:
        sock.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\n\r\n")
        while sock.recv(4096):
            pass
    assert "Traceback" not in "".join(server.stderr)


def test_b29_an_endless_chunked_body_is_413_quickly_and_with_flat_memory(server: Serving) -> None:
    before = server.memory()
    chunk = b"8000\r\n" + b"x" * (1 << 15) + b"\r\n"
    for _ in range(3):
        with Client(server.port, server.tls) as client:
            start = time.perf_counter()
            client.sock.sendall(
                b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            answer = _send_until_answered(client, chunk)
            assert (answer.status, answer.headers["connection"]) == (413, "close")
            assert time.perf_counter() - start < 3.0
            assert client.is_closed()
    assert server.memory() - before < 48 << 20


def _send_until_answered(client: Client, chunk: bytes) -> Answer:
    """Send for ever, looking for an answer between any two pieces, as an HTTP client does."""
    while not client.has_answer():
        client.sock.sendall(chunk)
    return client.read()


def test_b29_a_declared_length_above_the_limit_is_413_before_it_is_sent(server: Serving) -> None:
    with server.client() as client:
        client.sock.sendall(post("/mutate", b"x" * 100).replace(b"Content-Length: 100", b"Content-Length: 20000000"))
        answer = client.read()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert client.is_closed()


def test_b29_a_valid_review_of_two_and_a_half_mib_is_judged_in_time(server: Serving) -> None:
    document = json.loads(golden("deployment-rollout"))
    for name in ("object", "oldObject"):
        document["request"][name]["metadata"]["annotations"] = {"example.com/big": "x" * (5 << 18)}
    body = json.dumps(document).encode()
    assert len(body) > 5 << 19
    start = time.perf_counter()
    assert server.once("/mutate", body).json["response"]["allowed"] is True
    assert time.perf_counter() - start < 1.0


def test_unfinished_large_reviews_wait_for_one_another_and_for_nobody_else(server: Serving) -> None:
    """Read all at once, they would take more memory than the pod has."""
    large = post("/mutate", golden("pod-create") + b" " * (1 << 20))
    with ExitStack() as stack:
        first = [stack.enter_context(server.client()) for _ in range(LARGE_AT_ONCE)]
        for client in first:
            client.sock.sendall(large[:-1])
        wait_until(lambda: server.once("/mutate", large.partition(b"\r\n\r\n")[2]).status == 503)
        with server.client() as further:
            answer = further.send(large)
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert "try again" in answer.json["message"]
        assert server.once("/mutate", golden("pod-create")).status == 200
        assert [client.send(large[-1:]).status for client in first] == [200] * LARGE_AT_ONCE
    assert server.once("/mutate", large.partition(b"\r\n\r\n")[2]).status == 200


def _raw(request: bytes) -> Callable[[Serving], Answer]:
    def send(server: Serving) -> Answer:
        with server.client() as client:
            return client.send(request)

    return send


CHUNKED = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post("/mutate", b""), 400),
        (post("/mutate", b"[]"), 400),
        (post("/mutate", golden("pod-create").replace(b"io/v1", b"io/v1beta1")), 400),
        (post("/mutate", golden("pod-create", uid="")), 400),
        (post("/mutate", b'{"a":' * 50_000), 400),
        (post("/mutate", b"\xff\xfe\x00"), 400),
        (post("/mutate", golden("pod-create", object=None)), 400),
        (post("/mutate", golden("deployment-delete")), 200),
        (post("/mutate", b"x", "text/plain"), 415),
        (post("/nowhere", b"x"), 404),
        (b"GET /mutate HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"PUT /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 405),
        (CHUNKED + b"zz\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"2\r\n[]\r\n0\r\n\r\n", 400),
    ],
)
def test_b25_bad_input_gets_a_clear_answer(server: Serving, request_bytes: bytes, status: int) -> None:
    answer = _raw(request_bytes)(server)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert b"Traceback" not in answer.body
    if status != 200:
        assert answer.json["message"]
    if status in (404, 415) or b"PUT" in request_bytes:
        assert answer.headers["connection"] == "close"


def test_a_client_that_goes_away_in_the_middle_leaves_no_trace(server: Serving) -> None:
    for cut in (10, 200, 1000):
        with connect(server.port, server.tls) as sock:
            sock.sendall(post("/mutate", golden("pod-create"))[:cut])
    assert server.once("/healthz").status == 200
    assert "Traceback" not in "".join(server.stderr)


def test_b51_a_connection_serves_again_after_pauses_and_bursts_lose_nothing(server: Serving) -> None:
    body, worker_before = golden("pod-create"), server.worker
    clients = [server.client() for _ in range(8)]
    for _ in range(3):
        for client in clients:
            for _ in range(25):
                assert client.post("/mutate", body).status == 200
        time.sleep(0.3)
    for client in clients:
        client.close()
    assert server.worker == worker_before


# -- the deadlines themselves ------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[DeadlineSocket, ssl.SSLSocket]]:
    """Both ends of a TLS connection in this process."""
    files = local_pair(tmp_path)
    near, far = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.sslsocket_class = DeadlineSocket
    near.setblocking(False)
    far.setblocking(False)
    server = context.wrap_socket(near, server_side=True, do_handshake_on_connect=False)
    trust = ssl.create_default_context(cafile=str(files.ca))
    client = trust.wrap_socket(far, server_hostname="localhost", do_handshake_on_connect=False)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    client.setblocking(True)
    yield server, client  # type: ignore[misc]
    server.close()
    client.close()


def test_a_request_has_one_deadline_for_all_its_bytes(
    pair: tuple[DeadlineSocket, ssl.SSLSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then does not buy more time."""
    monkeypatch.setattr(connection, "REQUEST", 0.3)
    server, client = pair
    server.setblocking(True)
    start = time.monotonic()
    with pytest.raises(ConnectionResetError, match="too slow"):
        for _ in range(1000):
            client.sendall(b"x")
            server.recv(10)
            time.sleep(0.01)
    assert 0.2 < time.monotonic() - start < 2.0
    server.setblocking(True)  # the next request has its own
    client.sendall(b"y")
    assert server.recv(10)


def test_silence_within_a_request_ends_at_its_deadline(
    pair: tuple[DeadlineSocket, ssl.SSLSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST", 0.2)
    server, _ = pair
    server.setblocking(True)
    with pytest.raises(ConnectionResetError):
        server.recv_into(bytearray(10))


def test_an_answer_that_nobody_takes_ends_at_its_deadline(
    pair: tuple[DeadlineSocket, ssl.SSLSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the whole request was read ahead, so that no read has set one."""
    monkeypatch.setattr(connection, "REQUEST", 0.2)
    server, _ = pair
    server.setblocking(True)
    with pytest.raises(ConnectionResetError, match="too slow"):
        server.sendall(b"x" * 50_000_000)


def test_a_client_that_does_not_hang_up_after_its_last_answer_is_left_soon(
    pair: tuple[DeadlineSocket, ssl.SSLSocket],
) -> None:
    conn = connection.Connection.__new__(connection.Connection)
    conn.sock, _ = pair
    conn.sock.setblocking(True)
    start = time.monotonic()
    conn.linger()
    assert time.monotonic() - start < connection.LINGER + 2.0


def test_half_handshakes_and_silent_clients_are_hung_up_on(server: Serving) -> None:
    with hostile(server.port, server.tls, {"half-handshake": 1}) as [half]:
        half.settimeout(5)
        start = time.monotonic()
        while half.recv(4096):
            pass
        assert time.monotonic() - start < 4.5  # 2 s, looked at once a second
