"""The ledger: a copy of what came from pod logs, in the files that `audit verify` and `audit query` read."""

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from webhook.audit import retention
from webhook.audit.read import Line
from webhook.audit.retention import Limits
from webhook.audit.segments import CHECKPOINTS_SUFFIX, Segment, last_record, segment_name, segments_in

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
LEDGER_SEGMENTS = 10_000
LIMITS = Limits(segments=LEDGER_SEGMENTS, bytes=8 << 30)
"""What is kept unless told otherwise: fits the volume of 10 GiB that `deploy/base` asks for."""


class _Copy:
    """One stream: its latest segment, and up to which record it reaches."""

    def __init__(self, folder: Path, stream: str) -> None:
        segments = segments_in(folder.glob(f"{stream}.*.jsonl")).get(stream, [])
        self._folder, self._stream = folder, stream
        self._segment = segments[-1] if segments else Segment(stream, 1, folder / segment_name(stream, 1))
        self._size = _without_half_line(self._segment.path) if segments else 0
        self.seq = next((found[0] for one in reversed(segments) if (found := last_record(one.path))), 0)

    def write(self, lines: Iterable[Line]) -> bool:
        """Append what is newer than what is there: after a crash lines come again, in the file they stand once.

        Returns whether that began a new segment.
        """
        new = [line for line in lines if line.seq > self.seq]
        if not new:
            return False
        begins = not self._size
        if self._size > SEGMENT_BYTES:
            begins = True
            number = self._segment.number + 1
            self._segment = Segment(self._stream, number, self._folder / segment_name(self._stream, number))
            self._size = 0
        data = b"".join(line.raw + b"\n" for line in new)
        with self._segment.path.open("ab") as file:
            file.write(data)
        self._size += len(data)
        self.seq = new[-1].seq
        return begins


class LedgerCopy:
    """Keeps lines of all streams in one folder. A disk that fails is logged once and tried again with the next."""

    def __init__(self, folder: Path, key: Ed25519PrivateKey, limits: Limits = LIMITS) -> None:
        """`key` signs what is said about records that were removed. Raises OSError if the folder cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = key
        self._limits = limits
        self._copies: dict[str, _Copy] = {}
        self.problem = ""
        """Why the last lines could not be kept; "" while all is well."""

    def records(self, stream: str, lines: Iterable[Line]) -> None:
        try:
            copy = self._copies.get(stream)
            if copy is None:
                copy = self._copies[stream] = _Copy(self._folder, stream)
            if copy.write(lines):
                self._retain(stream)
            self.problem = ""
        except OSError as error:
            self._fail(stream, error)

    def _retain(self, written: str) -> None:
        """Make room, after a signed word about what goes; the stream that is being written keeps its last segment."""

        def removable(segments: Sequence[Segment]) -> Sequence[Segment]:
            return segments[:-1] if segments[-1].stream == written else segments

        now = time.time()
        streams = segments_in(self._folder.iterdir())
        for stream, going in retention.surplus(streams, self._limits, now, removable).items():
            signed = retention.note(stream, going, self._key, now)
            if signed is not None:
                retention.announce(self._folder, signed)
            retention.remove(going)
            if going[-1] == streams[stream][-1]:
                self._copies.pop(stream, None)  # should it go on after all, it begins a file of its own
        retention.forget_the_longest_gone(self._folder, written)

    def checkpoint(self, line: Line) -> None:
        """A signed checkpoint; one that is there already is left out."""
        path = self._folder / f"{line.stream}{CHECKPOINTS_SUFFIX}"
        try:
            known = path.read_bytes().split(b"\n") if path.exists() else []
            if line.raw not in known:
                with path.open("ab") as file:
                    file.write(line.raw + b"\n")
        except OSError as error:
            self._fail(line.stream, error)

    def _fail(self, stream: str, error: OSError) -> None:
        self._copies.pop(stream, None)  # what was written of it is looked up anew
        if not self.problem:
            _log.error("%s: the ledger cannot be written: %s; free space there", self._folder, error)
        self.problem = f"{self._folder}: the ledger cannot be written: {error}"


def _without_half_line(path: Path) -> int:
    """Cut what a kill left behind the last newline; the size that remains."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end != len(data):
        with path.open("r+b") as file:
            file.truncate(end)
    return end
