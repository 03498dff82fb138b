"""The ledger: each record in a file before its answer is sent, chained by hash, signed now and then (DESIGN 5.5)."""

import errno
import fcntl
import hashlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from webhook.audit import checkpoint as checkpoints
from webhook.audit import retention
from webhook.audit.checkpoint import Checkpoint
from webhook.audit.mirror import Mirror
from webhook.audit.record import HEAD_LENGTH, timestamp
from webhook.audit.retention import Limits
from webhook.audit.segments import CHECKPOINTS_SUFFIX, ZEROS, Segment, segment_name, segments_in

Write = Callable[[int, bytes], int]

KEY_NAME = "audit.key"
"""Where a key is made if none is given. It then lies beside what it signs: good against accidents, not against the
owner of the volume; give a key from a Secret for that."""
SEGMENT_BYTES = 64 << 20
KEEP_SEGMENTS = 16
CHECKPOINT_SECONDS = 60.0
_MIRROR_SECONDS = 2.0
_JOIN_SECONDS = 5.0
_STREAM_NAMES_TRIED = 60


class LedgerState(msgspec.Struct, frozen=True):
    """What `/readyz` and `/metrics` tell of a ledger.

    `seq` is the last one used up, `written` how many records are in files, `gaps` how many could not be written,
    `head` the hash of the last one written, `stdout_dropped` what a stalled collector cost, `degraded` why the ledger
    is not whole at the moment (None: it is).
    """

    stream: str
    seq: int
    written: int
    gaps: int
    head: str
    stdout_dropped: int
    degraded: str | None


class _TornSegmentError(OSError):
    """Half a line could not be taken back: nothing may follow it in this file."""


class _OpenSegment:
    """A file that only grows by whole lines."""

    def __init__(self, path: Path, write: Write) -> None:
        self.path = path
        self._write = write
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o640)
        self.size = 0
        _hold(self.descriptor)

    def append(self, line: bytes) -> None:
        """One write; what a full disk cut off is taken back, so that the next line starts a line."""
        try:
            if self._write(self.descriptor, line) == len(line):
                self.size += len(line)
                return
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError as refused:
            error = refused
        try:
            os.ftruncate(self.descriptor, self.size)
        except OSError as torn:
            raise _TornSegmentError(torn.errno, f"{error.strerror}; half a line stays: {torn.strerror}") from error
        raise error

    def close(self) -> None:
        os.close(self.descriptor)


class Ledger:
    """One stream of records in a folder; safe for many threads, kept by one process (make it after a fork).

    `append` costs microseconds and holds one small lock; a background thread signs checkpoints and removes old
    segments. No fault of the disk is raised from `append`: the answer goes out, the gap is counted and told.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str | None = None,
        key: Ed25519PrivateKey | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        keep_segments: int = KEEP_SEGMENTS,
        keep_seconds: float | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        stdout: int | None = None,
        write: Write = os.write,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`directory` is made if missing. `keep_segments` counts all segments in it, those of earlier processes too.

        `stdout` is a file descriptor that gets every line and checkpoint as well. `write` and `clock` are for tests.
        """
        self.directory = directory
        self._segment_bytes = segment_bytes
        self.limits = Limits(segments=keep_segments, seconds=inf if keep_seconds is None else keep_seconds)
        self._checkpoint_seconds = checkpoint_seconds
        self._write = write
        self._clock = clock
        self._host = re.sub(r"[^A-Za-z0-9.-]+", "-", host or socket.gethostname()) or "host"
        self._lock = threading.Lock()
        self._retention = threading.Lock()
        self._seq = self._written = self._gaps = 0
        self._last_seq, self._head = 0, ZEROS  # of the last record that is in a file
        self._lost = 0  # since then
        self._signed_seq: int | None = None
        self._segment: _OpenSegment | None = None
        self._number = 0
        self._closed = False
        self._wake = threading.Event()
        self._record_trouble: str | None = None
        self._keeping_trouble: str | None = None
        self._mirror = None if stdout is None else Mirror(stdout)
        self.key = self._prepare(key)
        self.stream = self._begin()
        self._stream_bytes = self.stream.encode()
        self._keeper = threading.Thread(target=self._keep, name="audit-keeper", daemon=True)
        self._keeper.start()

    # -- records ------------------------------------------------------------------------------------------------------

    def append(self, body: bytes) -> bool:
        """Chain and write one body of `record.encode`; when this returns True the record is in the file.

        False: it could not be written (disk full, volume gone, ledger closed). Its `seq` is used up, the next record
        carries the number of those lost, and `state` says why.
        """
        with self._lock:
            self._seq += 1
            content = b'%b,"stream":"%b","seq":%d%b,"lost":%d,"prev":"%b"}' % (
                body[:HEAD_LENGTH],
                self._stream_bytes,
                self._seq,
                body[HEAD_LENGTH:-1],
                self._lost,
                self._head.encode(),
            )
            digest = hashlib.sha256(content).hexdigest()
            line = b'%b,"hash":"%b"}\n' % (content[:-1], digest.encode())
            if not self._store(line):
                self._lost += 1
                self._gaps += 1
                return False
            self._head, self._last_seq, self._lost = digest, self._seq, 0
            self._written += 1
            if self._mirror:
                self._mirror.put(line)
            return True

    def state(self) -> LedgerState:
        """How the ledger stands; cheap."""
        with self._lock:
            troubles = [trouble for trouble in (self._record_trouble, self._keeping_trouble) if trouble]
            return LedgerState(
                stream=self.stream,
                seq=self._seq,
                written=self._written,
                gaps=self._gaps,
                head=self._head,
                stdout_dropped=self._mirror.dropped if self._mirror else 0,
                degraded="; ".join(troubles) or None,
            )

    def _store(self, line: bytes) -> bool:
        if self._closed:
            self._record_trouble = f"audit: {self.stream} is closed, records are lost"
            return False
        try:
            if self._segment is None or (self._segment.size and self._segment.size + len(line) > self._segment_bytes):
                self._next_segment()
            assert self._segment is not None
            self._segment.append(line)
        except OSError as error:
            if isinstance(error, _TornSegmentError) and self._segment is not None:
                self._segment.close()
                self._segment = None
            self._record_trouble = _explain(self.directory, error, "records are lost")
            return False
        self._record_trouble = None
        return True

    # -- segments -----------------------------------------------------------------------------------------------------

    def _prepare(self, key: Ed25519PrivateKey | None) -> Ed25519PrivateKey:
        """The key that signs; with a folder that cannot be written, one that lives as long as the process."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            key = key or checkpoints.load_or_create_key(self.directory / KEY_NAME)
            public = self.directory / checkpoints.public_key_name(key)
            if not public.exists():
                public.write_bytes(checkpoints.public_pem(key))
        except OSError as error:
            self._keeping_trouble = _explain(self.directory, error, "the key could not be kept")
        return key or Ed25519PrivateKey.generate()

    def _begin(self) -> str:
        """Choose the stream's name: a process that crashed within this second with the same pid had it before."""
        start = int(self._clock())
        for second in range(start, start + _STREAM_NAMES_TRIED):
            stream = f"{self._host}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(second))}-{os.getpid()}"
            try:
                self._segment = _OpenSegment(self.directory / segment_name(stream, 1), self._write)
            except FileExistsError:
                continue
            except OSError as error:
                self._record_trouble = _explain(self.directory, error, "records are lost")
                return stream
            self._number = 1
            return stream
        raise FileExistsError(f"{self.directory}: {_STREAM_NAMES_TRIED} streams of {self._host} exist already")

    def _next_segment(self) -> None:
        """Go on in a new file. While none can be made the old one grows on; without an old one OSError goes up."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            following = _OpenSegment(self.directory / segment_name(self.stream, self._number + 1), self._write)
        except OSError as error:
            if self._segment is None:
                raise
            self._keeping_trouble = _explain(self.directory, error, "segments cannot rotate")
            return
        if self._segment is not None:
            self._sign("rotation")
            self._segment.close()
        self._segment = following
        self._number += 1
        self._wake.set()  # there may be one to remove

    # -- checkpoints and retention ------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Sign the present head, if it was not signed before. Called every `checkpoint_seconds` by itself."""
        with self._lock:
            if not self._closed and self._signed_seq != self._last_seq:
                self._sign("periodic")

    def close(self) -> None:
        """Sign off and close; what stdout has not taken within two seconds is lost there. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._sign("closing")
            self._closed = True
            if self._segment is not None:
                self._segment.close()
                self._segment = None
        self._wake.set()
        self._keeper.join(_JOIN_SECONDS)
        if self._mirror:
            self._mirror.close(_MIRROR_SECONDS)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sign(self, kind: checkpoints.Kind) -> None:
        """Under the lock: a checkpoint of the last record that is in a file, to the folder and to stdout."""
        self._signed_seq = self._last_seq
        signed = Checkpoint(self.stream, self._last_seq, self._head, timestamp(self._clock()), kind).sign(self.key)
        line = checkpoints.encode(signed) + b"\n"
        try:
            _append_line(self._checkpoints_path(self.stream), line)
            self._keeping_trouble = None
        except OSError as error:
            self._keeping_trouble = _explain(self.directory, error, "a checkpoint was not kept")
        if self._mirror:
            self._mirror.put(line)

    def _checkpoints_path(self, stream: str) -> Path:
        return self.directory / f"{stream}{CHECKPOINTS_SUFFIX}"

    def _keep(self) -> None:
        while not self._closed:
            if not self._wake.wait(self._checkpoint_seconds):  # woken by a rotation: that has just signed
                self.checkpoint()
            self._wake.clear()
            try:
                self.retain()
            except OSError as error:
                self._keeping_trouble = _explain(self.directory, error, "old segments were not removed")

    def retain(self) -> None:
        """Remove the oldest segments beyond `limits`, after a checkpoint that says so.

        Never the segment being written, nor those of another process that lives. Raises OSError.
        """
        with self._retention:
            streams = segments_in(self.directory.iterdir())
            for stream, going in retention.surplus(streams, self.limits, self._clock(), self._removable).items():
                self._remove(stream, going)
            retention.forget_the_longest_gone(self.directory, self.stream)

    def _removable(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        if segments[-1].stream == self.stream:
            return segments[:-1]
        return () if _is_held(segments[-1].path) else segments

    def _remove(self, stream: str, going: list[Segment]) -> None:
        signed = retention.note(stream, going, self.key, self._clock())
        if signed is not None:
            with self._lock:
                retention.announce(self.directory, signed)
                if self._mirror:
                    self._mirror.put(checkpoints.encode(signed) + b"\n")
        retention.remove(going)


def _append_line(path: Path, line: bytes) -> None:
    """Append one line or nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        size = os.fstat(descriptor).st_size
        written = os.write(descriptor, line)
        if written != len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def _hold(descriptor: int) -> None:
    """Tell other processes that this segment's writer lives; a lock ends with its process, however that ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # a file system without locks: such a folder must not be shared


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _explain(directory: Path, error: OSError, consequence: str) -> str:
    place = error.filename or directory
    return f"audit: {place}: {error.strerror or error}: {consequence}; free space there or check its permissions"
