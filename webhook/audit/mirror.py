"""The same lines on stdout, from one writer thread: a collector that stalls costs lines there, never an answer."""

import os
import select
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

LIMIT = 32 << 20
"""Bytes that may wait for a stalled collector."""
_BATCH = 1 << 16
_GATHER = 0.02
"""Seconds that lines are gathered before a write: a thread woken for every record would cost the reviews more."""


class Mirror:
    """Writes lines to a file descriptor in the order in which they were put; what does not fit is dropped and counted.

    One producer at a time calls `put` (the ledger holds its lock), so the two byte counts need no lock of their own:
    each has a single writer.
    """

    def __init__(self, descriptor: int, limit: int = LIMIT, write: Callable[[int, bytes], int] = os.write) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._write = write
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._put_bytes = 0
        self._taken_bytes = 0
        self._refused = 0
        self._failed = 0
        self._thread = threading.Thread(target=self._run, name="audit-stdout", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that stdout will never see; each shows as a gap in `seq` to whoever reads there."""
        return self._refused + self._failed

    def put(self, line: bytes) -> None:
        """Take one line with its newline; never blocks."""
        if self._put_bytes - self._taken_bytes + len(line) > self._limit:
            self._refused += 1
            return
        self._put_bytes += len(line)
        self._queue.put(line)

    def close(self, timeout: float) -> None:
        """Write what waits, for at most so many seconds; what a stalled collector then still leaves is lost there."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            time.sleep(_GATHER)
            batch, ended = self._batch(line)
            data = b"".join(batch)
            try:
                self._write_all(data)
            except OSError:
                self._failed += len(batch)
            self._taken_bytes += len(data)
            if ended:
                return

    def _batch(self, first: bytes) -> tuple[list[bytes], bool]:
        """What waits, up to a size: few writes under load, and whether the end was among it."""
        batch, size = [first], len(first)
        try:
            while size < _BATCH:
                line = self._queue.get_nowait()
                if line is None:
                    return batch, True
                batch.append(line)
                size += len(line)
        except Empty:
            pass
        return batch, False

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[self._write(self._descriptor, data) :]
            except BlockingIOError:  # somebody made stdout non-blocking
                select.select([], [self._descriptor], [])
