"""The worker's answers to an operating system that has no more to give."""

import errno
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from webhook.server.worker import SPARE, Pool, Worker


class Listener:
    def __init__(self, number: int) -> None:
        self._number = number

    def accept(self) -> Any:
        raise OSError(self._number, "no")


class Poller:
    """Everything is ready at once."""

    def __init__(self, *callbacks: Any) -> None:
        self._callbacks = callbacks

    def select(self, _timeout: float) -> list[tuple[Any, int]]:
        return [(SimpleNamespace(data=callback, fileobj=None), 1) for callback in self._callbacks]


def worker(connections: int) -> tuple[Worker, list[str]]:
    """As much of a worker as accepting needs."""
    made, lines = Worker.__new__(Worker), []
    made.nr_conns, made.worker_connections = connections, 4096
    made.log = SimpleNamespace(error=lambda text, *values: lines.append(text % values))
    return made, lines


def test_without_file_descriptors_no_more_connections_are_taken_than_there_are() -> None:
    made, lines = worker(1000)
    listener: Any = Listener(errno.EMFILE)
    made.accept(listener)
    assert made.worker_connections == 1000 - SPARE
    assert "limit of open files" in lines[0]


def test_without_threads_left_those_that_there_are_do_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of pids must not end the loop, and with it everybody's connections."""
    go = threading.Event()
    with Pool(8) as pool:
        futures = [pool.submit(go.wait, 10) for _ in range(2)]

        def refuse(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        futures += [pool.submit(go.wait, 10) for _ in range(3)]
        go.set()
        assert all(future.result(10) for future in futures)
    assert [record.getMessage() for record in caplog.records] == [
        "threads limited to 2: can't start new thread; raise the limit of processes (pids)"
    ]


def test_a_client_that_is_gone_before_it_is_accepted_is_no_news() -> None:
    made, lines = worker(10)
    listener: Any = Listener(errno.ECONNABORTED)
    made.accept(listener)
    assert (made.worker_connections, lines) == (4096, [])


def test_other_faults_of_the_listener_are_not_hidden() -> None:
    made, _ = worker(10)
    listener: Any = Listener(errno.EBADF)
    with pytest.raises(OSError, match="no"):
        made.accept(listener)


def test_a_fault_with_one_request_does_not_end_the_loop() -> None:
    made, lines = worker(2)
    left: list[Any] = []
    made.log.exception = lambda text, *values: lines.append(text % values)
    made._at_once, made._leave_to_pool = ("/mutate",), lambda *values: left.append(values)
    conn: Any = SimpleNamespace(read_ahead=lambda: 1 // 0, unread=lambda: None, client=("192.0.2.1", 9))
    made.on_client_socket_readable(conn, conn)
    assert left == [(conn, made.handle, conn)]
    assert "192.0.2.1" in lines[0]


def test_waiting_behind_others_is_part_of_a_reviews_time() -> None:
    made, _ = worker(2)
    slow, conn = threading.Event(), SimpleNamespace(read_ahead=lambda: None, unread=lambda: None, asked_at=0.0)
    made._at_once, made._leave_to_pool = ("/mutate",), lambda *_: None
    poller: Any = Poller(
        lambda _: slow.wait(0.05),
        lambda sock: made.on_client_socket_readable(conn, sock),
    )
    made.poller, made.notify = poller, lambda: None  # type: ignore[method-assign]
    made.wait_for_and_dispatch_events(1.0)
    assert time.monotonic() - conn.asked_at >= 0.05


def test_the_arbiter_hears_of_us_between_requests_that_came_together() -> None:
    """It kills who is silent for 30 s, and 4096 large reviews can take longer."""
    made, heard = worker(3)[0], list[str]()
    made.notify = lambda: heard.append("we live")  # type: ignore[method-assign]
    poller: Any = Poller(*[lambda _, number=number: heard.append(str(number)) for number in range(2)])
    made.poller = poller
    made.wait_for_and_dispatch_events(1.0)
    assert heard == ["0", "we live", "1", "we live"]
