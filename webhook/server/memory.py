"""Give the memory of large reviews back: glibc would keep it, once for each heap that ever served one."""

import ctypes
import gc
import threading
from typing import Any, Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

LARGE: Final = 256 * 1024
"""Bytes from which a review is large: the heaps that it grew are trimmed once it is over."""
KEPT: Final = 16 * 1024 * 1024
"""Bytes that a heap may keep between large reviews in a row, and from which a buffer is mapped by itself: fresh pages
for each of them would cost more than reading them. Setting it also keeps glibc from raising it as it sees fit."""
ARENAS: Final = 1
"""Heaps for all threads together. With the interpreter's lock more of them only keep more freed memory, and the ends of
all but the first are never trimmed."""
QUIET: Final = 5.0
"""Seconds after a large review in which further ones do not start another trim."""


class Trimmer:
    """Returns what large reviews left in the heaps, a little later and in a thread of its own."""

    def __init__(self) -> None:
        """Settle the allocator; make it before any other thread starts. Without glibc nothing happens, ever."""
        libc: Any = ctypes.CDLL(None)
        self._trim = getattr(libc, "malloc_trim", None)
        self._large = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-trim", daemon=True)
        if self._trim is not None:
            libc.mallopt(_M_MMAP_THRESHOLD, KEPT)
            libc.mallopt(_M_TRIM_THRESHOLD, KEPT)
            libc.mallopt(_M_ARENA_MAX, ARENAS)
            self._thread.start()

    def served(self, size: int) -> None:
        """A review of so many bytes was answered; cheap."""
        if size > LARGE:
            self._large.set()

    def stop(self) -> None:
        self._stop.set()
        self._large.set()
        if self._trim is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._trim is not None
        while self._large.wait() and not self._stop.wait(QUIET):
            self._large.clear()
            self._trim(0)


def freeze() -> None:
    """Everything that lives now lives to the end: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()
