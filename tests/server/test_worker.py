"""The worker's answers to an operating system that has no more to give."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from webhook.server.worker import SPARE, Worker


class Listener:
    def __init__(self, number: int) -> None:
        self._number = number

    def accept(self) -> Any:
        raise OSError(self._number, "no")


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
