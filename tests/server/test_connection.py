"""What is answered where it arrives, what is left to gunicorn, and that a client sees no difference."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import get_parser

from tests.server.clients import Client, post
from tests.server.serving import Serving
from tests.server.standin import golden
from webhook.server import connection
from webhook.server.connection import Post, whole_post

BODY = b'{"kind":"AdmissionReview"}'


def request(*headers: str, first: str = "POST /mutate?timeout=3s HTTP/1.1", body: bytes = BODY) -> bytes:
    plain = ("Host: x", "Content-Type: application/json", f"Content-Length: {len(BODY)}")
    return "\r\n".join([first, *plain, *headers, "", ""]).encode() + body


# -- what is one whole plain POST --------------------------------------------------------------------------------------


def test_a_review_as_the_api_server_sends_it() -> None:
    assert whole_post(post("/mutate", BODY)) == Post("/mutate", BODY)
    headers = ("Accept-Encoding: gzip", "Authorization: Bearer x", "Traceparent: 00-1-2-01", "user-agent: a")
    assert whole_post(request(*headers)) == Post("/mutate", BODY)


@pytest.mark.parametrize("missing", [1, len(BODY), len(BODY) + 2, 60])
def test_it_is_not_all_there_yet(missing: int) -> None:
    assert whole_post(request()[:-missing]) is None


@pytest.mark.parametrize(
    "data",
    [
        request(body=BODY + b"POST /validate HTTP/1.1"),
        request(first="GET /mutate HTTP/1.1"),
        request(first="POST /mutate HTTP/1.0"),
        request(first="post /mutate HTTP/1.1"),
        request(first="POST https://x/mutate HTTP/1.1"),
        b"\r\n" + request(),
        request(first="POST /mutate?timeout=\xb2s HTTP/1.1"),
        request(first=f"POST /mutate?{'x' * 5000} HTTP/1.1"),
        request("Connection: close"),
        request("Transfer-Encoding: chunked"),
        request("Expect: 100-continue"),
        request("Content-Length: 5"),
        request("Host: y"),
        request("X-Forwarded-For: 10.0.0.1"),
        request().replace(b"application/json", b"text/plain"),
        request().replace(b"Content-Length: 26", b"Content-Length: +26"),
        request().replace(b"Content-Length: 26", b"Content-Length: " + b"0" * 5000 + b"26"),
        request().replace(b"Content-Length: 26\r\n", b""),
        request().replace(b"Host: x", b"Host : x"),
        request().replace(b"\r\n", b"\n"),
        b"\x16\x03\x01 what is this",
        b"",
    ],
)
def test_everything_else_is_left_to_gunicorn(data: bytes) -> None:
    assert whole_post(data) is None


def test_nothing_is_taken_that_gunicorn_would_refuse_or_read_differently() -> None:
    """The same bytes to both readers, changed here and there with what has fooled parsers before."""
    chance, taken = random.Random(7), 0
    odd = (
        b"\r\n",
        b"\n",
        b" ",
        b"\t",
        b":",
        b"?",
        b"#",
        b"//",
        b"\0",
        b"\x80",
        b"0",
        b"-",
        b"_",
        b"0" * 5000,
        b"Host:\r\n",
    )
    seed = post("/mutate", BODY)
    for _ in range(3000):
        data = bytearray(seed)
        place = chance.randrange(len(data) - len(BODY))
        data[place : place + chance.randrange(3)] = chance.choice((*odd, bytes([chance.randrange(256)])))
        found = whole_post(bytes(data))
        if found is not None and found.path in ("/mutate", "/validate"):
            taken += 1
            parser: Any = get_parser(Config(), iter([bytes(data)]), ("127.0.0.1", 1))
            theirs = next(parser)
            assert (theirs.method, theirs.path, theirs.body.read()) == ("POST", found.path, found.body)
            assert (theirs.should_close(), parser.unreader.buf.getvalue()) == (False, b"")
    assert taken > 100


# -- over the wire -----------------------------------------------------------------------------------------------------


@pytest.fixture
def client(server: Serving) -> Iterator[Client]:
    with server.client() as client:
        yield client


def slowly(review: bytes) -> bytes:
    """The same request with a header that only gunicorn's parser takes."""
    return review.replace(b"\r\n", b"\r\nX-Unusual: 1\r\n", 1)


@pytest.mark.parametrize("body", [golden("pod-create"), golden("deployment-over-quota"), b"{", b"", b"[]"])
@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_the_answer_is_the_same_on_both_ways(client: Client, path: str, body: bytes) -> None:
    one, other = client.send(post(path, body)), client.send(slowly(post(path, body)))
    assert (one.status, one.body) == (other.status, other.body)
    one.headers.pop("date"), other.headers.pop("date")
    assert one.headers == other.headers


def test_a_request_in_pieces_is_put_together(client: Client) -> None:
    review = post("/mutate", golden("pod-create"))
    for cut in (1, 20, review.index(b"\r\n\r\n") + 2, len(review) - 1):
        client.sock.sendall(review[:cut])
        time.sleep(0.02)  # so that the pieces arrive one by one
        assert client.send(review[cut:]).status == 200


def test_requests_sent_without_waiting_for_answers_are_all_answered_in_order(client: Client) -> None:
    bodies = [golden("pod-create"), golden("deployment-over-quota"), b"{"]
    alone = [client.post("/mutate", body).body for body in bodies]
    for together in (b"".join(post("/mutate", body) for body in bodies), None):
        if together is None:
            for body in bodies:
                client.sock.sendall(post("/mutate", body))
        else:
            client.sock.sendall(together)
        assert [client.read().body for _ in bodies] == alone


def test_what_was_read_of_a_next_request_with_a_large_body_is_answered_too(client: Client) -> None:
    """The record that ends one request begins the next: once it is decrypted, nothing more arrives to wake us."""
    first = post("/mutate", golden("pod-create") + b" " * (6 * connection.RECORD))
    first = post("/mutate", golden("pod-create") + b" " * (7 * connection.RECORD + 12_000 - len(first)))
    client.sock.sendall(first + post("/validate", golden("pod-create")))
    client.sock.settimeout(3)
    assert [client.read().status, client.read().status] == [200, 200]


def test_a_page_between_reviews_and_a_path_that_is_none(client: Client) -> None:
    assert client.post("/mutate", golden("pod-create")).status == 200
    assert client.get("/healthz").status == 200
    assert client.post("/mutate", golden("pod-create")).status == 200
    assert client.post("/mutated", golden("pod-create")).status == 404


def test_a_client_that_asks_and_never_reads_holds_up_nobody(server: Serving) -> None:
    """Its answers fill the buffers between us; from then on it waits for itself alone."""
    review = post("/mutate", golden("deployment-over-quota"))
    with server.client() as deaf, server.client() as other:
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sock.settimeout(0.2)
        stop = threading.Event()

        def shout() -> None:
            try:
                while not stop.is_set():
                    deaf.sock.sendall(review)
            except OSError:
                pass  # our own buffer is full as well

        shouting = threading.Thread(target=shout)
        shouting.start()
        try:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                start = time.perf_counter()
                assert other.post("/mutate", golden("pod-create")).status == 200
                assert time.perf_counter() - start < 1.0
        finally:
            stop.set()
            shouting.join()


def test_a_request_in_single_bytes_does_not_hold_up_the_loop() -> None:
    """Each byte in a record of its own, and all of them there: reading on would take seconds."""
    conn, rest = connection.Connection.__new__(connection.Connection), iter(post("/mutate", b"x" * 10_000))
    conn._ahead = b""
    given: list[bytes] = []
    sock: Any = SimpleNamespace(recv=lambda _most: bytes([next(rest)]))
    conn.sock, conn.parser = sock, SimpleNamespace(unreader=SimpleNamespace(unread=given.append))
    assert conn.read_ahead() is None
    conn.unread()
    assert 16 < len(given[0]) < 100


def test_idle_connections_do_not_keep_their_last_reviews(server: Serving) -> None:
    body = golden("pod-create")
    body += b" " * (60_000 - len(body))
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(150)]
        before = server.memory()
        for client in clients:
            assert client.post("/mutate", body).status == 200
        assert server.memory() - before < len(clients) * len(body) // 2


def test_what_a_client_does_not_take_at_once_is_sent_later() -> None:
    """`send_at_once` returns the rest, `finish` sends it: together they are the answer."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        conn = connection.Connection.__new__(connection.Connection)
        conn.sock = ours
        answer = connection.answer(200, b"x" * 10_000_000, keep=True)
        rest = conn.send_at_once(answer)
        assert 0 < len(rest) < len(answer)
        assert conn.send_at_once(rest) == rest  # not a byte more fits
        received = bytearray()

        def read() -> None:
            while len(received) < len(answer):
                received.extend(theirs.recv(1 << 20))

        reader = threading.Thread(target=read)
        reader.start()
        assert conn.finish(rest, keep=True) is True
        reader.join(10)
        assert bytes(received) == answer


def test_a_client_that_is_gone_ends_its_connection() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        conn = connection.Connection.__new__(connection.Connection)
        conn.sock = ours
        assert conn.finish(b"x" * 100, keep=True) is False


@pytest.mark.parametrize("keep", [True, False])
def test_an_answer_is_a_whole_http_message(keep: bool) -> None:
    head, _, body = connection.answer(400, b'{"a":1}', keep).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert (first, body) == ("HTTP/1.1 400 Bad Request", b'{"a":1}')
    assert headers["Content-Length"] == "7"
    assert headers["Content-Type"] == "application/json"
    assert headers["Connection"] == ("keep-alive" if keep else "close")
    assert headers["Date"].endswith("GMT")
