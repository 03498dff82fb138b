"""Memory that large reviews needed is given back."""

import threading
from typing import Any

import pytest

from webhook.server import memory
from webhook.server.memory import LARGE, Trimmer


@pytest.fixture
def trims(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """Sets its event at a trim, in place of the C library."""
    trimmed = threading.Event()

    class Libc:
        def malloc_trim(self, _keep: int) -> None:
            trimmed.set()

        def mallopt(self, *_: int) -> None:
            """Taken."""

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: Libc())
    monkeypatch.setattr(memory, "QUIET", 0.01)
    return [trimmed]


def test_a_large_review_is_followed_by_a_trim_and_a_small_one_is_not(trims: list[threading.Event]) -> None:
    [trimmed] = trims
    trimmer = Trimmer()
    trimmer.served(1000)
    assert not trimmed.wait(0.1)
    trimmer.served(LARGE + 1)
    assert trimmed.wait(5)
    trimmer.stop()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    libc: Any = object()
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: libc)
    trimmer = Trimmer()
    trimmer.served(LARGE + 1)
    trimmer.stop()
