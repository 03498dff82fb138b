"""What has piled up before the exporter starts: segments read by several processes at once, added up in their order.

Only what is plain is taken in here: a segment that follows the one before it, record by record, with nothing odd in
it. The first that is not, and all after it, are left to `webhook.exporter.collect`, which reads one line after the
other and comes to the same sums.
"""

import logging
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec

from webhook.audit.read import FilePosition, Follower, Notice, Position, files_in, is_kubernetes, is_stdin
from webhook.audit.segments import Segment, segment_of
from webhook.exporter.chains import ChainState, ChainStates, Verifier
from webhook.exporter.decisions import Reader, Tally

_log = logging.getLogger(__name__)

LEAST_BYTES = 256 << 20
"""Less is read in the time that processes need to start and to hand over."""
MOST_PROCESSES = 4
"""Each takes about 70 MiB."""


class Part(msgspec.Struct, frozen=True):
    """What one segment comes to. `after` is the record that it follows: seq and hash."""

    stream: str
    after: tuple[int, str]
    chain: ChainState
    tally: Tally
    file: FilePosition
    notices: list[Notice]


class Backlog:
    """The segments that nobody has read yet, in reading order; `take` gives what one after the other comes to."""

    def __init__(self, audits: Sequence[str], position: Position) -> None:
        """`position`: where an earlier exporter stopped. Less than LEAST_BYTES are not worth it."""
        found = _unread(audits, position)
        self._processes = min(_cores(), MOST_PROCESSES)
        worth = self._processes > 1 and len(found) > 1 and sum(map(_size, found)) >= LEAST_BYTES
        self._ahead = deque(found if worth else ())
        self._reading: deque[Future[bytes | None]] = deque()
        self._pool: ProcessPoolExecutor | None = None

    def take(self) -> Part | None:
        """The next segment's part; None if there is no further one, or it calls for a closer look."""
        try:
            while self._ahead and len(self._reading) <= self._processes:
                self._reading.append(self._submit(self._ahead.popleft()))
            encoded = self._reading.popleft().result() if self._reading else None
        except (BrokenProcessPool, OSError, ImportError) as error:  # ImportError: no semaphores on this platform
            _log.warning("audit: segments are read by one process, because others cannot help: %s", error)
            encoded = None
        return None if encoded is None else msgspec.json.decode(encoded, type=Part)

    def _submit(self, segment: Segment) -> "Future[bytes | None]":
        if self._pool is None:  # spawned, not forked: the exporter has threads
            self._pool = ProcessPoolExecutor(self._processes, multiprocessing.get_context("spawn"), _start)
        return self._pool.submit(_read, str(segment.path))

    def close(self) -> None:
        """Take no more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None
        self._ahead.clear()
        self._reading.clear()


def _unread(audits: Sequence[str], position: Position) -> list[Segment]:
    """Segments of streams of which nothing was read yet, up to the first file that is none."""
    found: list[Segment] = []
    for audit in audits:
        if is_stdin(audit) or is_kubernetes(audit):
            continue
        try:
            files = files_in(Path(audit))
        except OSError:  # it may still come
            continue
        for file in files:
            segment = segment_of(file)
            if segment is None:
                return found
            if segment.stream not in position.streams:
                found.append(segment)
    return found


def _size(segment: Segment) -> int:
    try:
        return segment.path.stat().st_size
    except OSError:
        return 0


def _cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- in another process -----------------------------------------------------------------------------------------------


def _start() -> None:
    """End with the exporter, and by nothing else that its terminal sends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_exporter, daemon=True).start()


def _end_with_the_exporter() -> None:
    exporter = multiprocessing.parent_process()
    assert exporter is not None
    exporter.join()
    os._exit(1)


def _read(path: str) -> bytes | None:
    part = read(Path(path))
    return None if part is None else msgspec.json.encode(part)


def read(path: Path) -> Part | None:
    """What a segment comes to as far as it is written; None if anything in it calls for a closer look."""
    follower, tally, chains = Follower([path]), Tally(), ChainStates()
    reader, verifier = Reader(tally), Verifier(chains)
    after: tuple[int, str] | None = None
    try:
        while runs := follower.poll_runs():
            for run in runs:
                if run.kind != "record" or (chains.streams and run.stream not in chains.streams):
                    return None
                after = after or verifier.opened(run)
                verifier.records(run)
                verifier.seen(run.stream, reader.add(run.lines))
        reader.flush()
        files = follower.position.files
    finally:
        follower.close()
    if after is None or len(files) != 1 or tally.unreadable or not tally.adds_up:
        return None
    (stream, chain), notices = next(iter(chains.streams.items())), follower.take_notices()
    is_plain = not (chain.problem or chain.gap) and all(notice.kind == "late" for notice in notices)
    return Part(stream, after, chain, tally, files[0], notices) if is_plain else None
