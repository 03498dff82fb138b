"""Reading streams: files in order, and a follower that keeps its place through rotation, truncation and restarts.

A source is named as on the command line: a file, a folder, `-` for stdin, or `kubernetes` (`kubernetes:NAMESPACE`) for
the logs of all webhook pods. `Follower` reads any number of them:

    follower = Follower(["/var/lib/audit"], position)     # position: where the last one stopped, or None
    while lines := follower.poll():                       # at most a few MiB at a time; empty: nothing new yet
        ...                                               # line.raw, line.kind, line.stream, line.seq
    notices = follower.take_notices()                     # gaps, truncations, NULs, foreign lines
    save(msgspec.json.encode(follower.position))          # together with what was made of the lines
"""

import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from webhook.audit.record import HEAD_LENGTH
from webhook.audit.segments import CHECKPOINTS_SUFFIX, Head, head, segment_of, start_of

if TYPE_CHECKING:
    from webhook.audit.pod_logs import PodLogs

STDIN = "-"
KUBERNETES = "kubernetes"
CHUNK = 4 << 20
"""About how many bytes of a source one `poll` gives at most."""
_BLOCK = 1 << 18
_READ = 1 << 17  # larger reads are slower: their memory goes back to the system each time
MAX_LINE = 64 << 20
"""Longer than any record: without a bound a file without newlines would fill the memory."""
GRACE_SECONDS = 10.0
"""How long a file that was renamed or removed is still read: its writer may not have noticed yet."""

_RECORD_FILE = re.compile(r".+\.jsonl(?!.*\.(gz|xz|bz2|zst|tmp)$).*")
_RECORD_START = b'{"schema":"gpu.platform/audit.'
_CHECKPOINT_START = b'{"stream":'
_FINGERPRINT = 64


Batch = tuple[list[bytes], str, int]


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line: `raw` without newline. `seq` of a checkpoint is the record that it names.

    `source` is a file or `pod NAMESPACE/NAME`; `number` counts lines there, from 1 (0: not known, as in pod logs).
    """

    raw: bytes
    kind: Literal["record", "checkpoint"]
    stream: str
    seq: int
    lost: int
    source: str
    number: int


class Run(msgspec.Struct, frozen=True, gc=False):
    """Lines that stand next to each other, of one kind and stream; what they share is told once.

    Of records, each has the `seq` after that of the one before it, and only the first may say that some were `lost`.
    """

    kind: Literal["record", "checkpoint"]
    stream: str
    seq: int
    lost: int
    source: str
    number: int
    lines: list[bytes]

    def line(self, index: int) -> Line:
        number = self.number + index if self.number else 0
        lost = 0 if index else self.lost
        return Line(self.lines[index], self.kind, self.stream, self.seq + index, lost, self.source, number)

    def each(self) -> list[Line]:
        return [self.line(index) for index in range(len(self.lines))]


class Notice(msgspec.Struct, frozen=True):
    """Something that is not a record but worth telling.

    `gap`: `count` records between two that came are missing, without a `lost` that explains it. `late`: the first that
    came of a stream is not its first (retention, or logs that were rotated away). `truncated`: a file was cut, and is
    read from its start again. `nul`: `count` NUL bytes skipped. `foreign`: `count` lines that are not ours.
    `unreachable`: a source cannot be read at the moment.
    """

    kind: Literal["gap", "late", "truncated", "nul", "foreign", "unreachable"]
    source: str
    stream: str = ""
    count: int = 0
    text: str = ""


class Notices:
    """Notices since they were last taken, bounded: what repeats is counted in one."""

    _LIMIT = 1000

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Notice] = {}
        self._lock = threading.Lock()

    def add(self, notice: Notice) -> None:
        """Foreign lines of one source are one notice, which keeps the words of the first."""
        place = (notice.kind, notice.source, notice.stream)
        with self._lock:
            distinct = notice.kind != "foreign" and len(self._found) < self._LIMIT
            key = (*place, notice.text) if distinct else place
            first = self._found.setdefault(key, msgspec.structs.replace(notice, count=0))
            self._found[key] = msgspec.structs.replace(first, count=first.count + notice.count)

    def take(self) -> list[Notice]:
        with self._lock:
            found, self._found = self._found, {}
        return list(found.values())


class FilePosition(msgspec.Struct, frozen=True):
    """How far a file was read. `fingerprint` (hex) is what stood before `offset`: an inode may be used again."""

    path: str
    inode: int
    offset: int
    lines: int
    fingerprint: str


class Position(msgspec.Struct, frozen=True):
    """Where a follower stands, to be kept as JSON: files, the last seq of each stream, times of pod logs (RFC 3339)."""

    files: tuple[FilePosition, ...] = ()
    streams: Mapping[str, int] = {}
    pods: Mapping[str, str] = {}


# -- files at rest ----------------------------------------------------------------------------------------------------


def files_in(path: Path) -> list[Path]:
    """The record files of a folder in reading order, or the file itself. Raises OSError if there is none."""
    if not path.is_dir():
        path.stat()
        return [path]
    return sorted((each for each in path.iterdir() if _RECORD_FILE.fullmatch(each.name)), key=_reading_order)


def checkpoint_files_in(path: Path) -> list[Path]:
    """The checkpoint files of a folder, or those beside a file."""
    folder = path if path.is_dir() else path.parent
    return sorted(folder.glob(f"*{CHECKPOINTS_SUFFIX}"))


def _reading_order(path: Path) -> tuple[str, int, str]:
    """By stream and first seq; a name alone does not order files that something else rotated."""
    segment = segment_of(path)
    if segment is not None:
        return segment.stream, segment.number, ""
    try:
        with path.open("rb") as file:
            first = head(file.readline(MAX_LINE).strip(b"\0\n"))
    except OSError:
        first = None
    return (first.stream, first.seq, path.name) if first else (path.name, 0, "")


def blocks_in(path: Path, progress: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """A file in blocks of whole lines, newlines included; half a line at the end is left out. Raises OSError.

    `progress` is called with the number of bytes read since its last call.
    """
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            block += file.readline(MAX_LINE)
            if progress:
                progress(len(block))
            yield block if block[-1:] == b"\n" else block[: block.rfind(b"\n") + 1]


def lines_in(path: Path, progress: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """The whole lines of a file without newlines; NULs around a line are cut off. Raises OSError."""
    unreported = 0
    with path.open("rb", buffering=_BLOCK) as file:
        for line in iter(partial(file.readline, MAX_LINE), b""):
            unreported += len(line)
            if unreported > _BLOCK and progress:
                progress(unreported)
                unreported = 0
            if line[-1] == 10:  # a newline: else the file ends within this line, or it is no line of ours
                yield line[:-1] if line[0] else line[:-1].strip(b"\0")
    if progress:
        progress(unreported)


def near_the_end(audits: Iterable[Path], distance: int = 1 << 18) -> Position:
    """A position from which a Follower reads about the last `distance` bytes of each file only. Raises OSError."""
    return Position(tuple(_near_the_end(path, distance) for audit in audits for path in files_in(audit)))


def _near_the_end(path: Path, distance: int) -> FilePosition:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        offset = 0
        if status.st_size > distance:
            file.seek(status.st_size - distance)
            file.readline(MAX_LINE)
            offset = file.tell()
        file.seek(max(0, offset - _FINGERPRINT))
        fingerprint = file.read(offset - file.tell())
    return FilePosition(str(path), status.st_ino, offset, 0, fingerprint.hex())


# -- following --------------------------------------------------------------------------------------------------------


class Sorter:
    """Tells what each line is, lets each record through once, and notices what is missing."""

    def __init__(self, streams: Mapping[str, int]) -> None:
        self.streams = dict(streams)
        self.notices = Notices()
        self._latest = ""

    def take(self, lines: Iterable[bytes], source: str, number: int) -> list[Line]:
        """What `runs` gives, line by line."""
        return [line for run in self.runs(lines, source, number) for line in run.each()]

    def runs(self, lines: Iterable[bytes], source: str, number: int) -> list[Run]:
        """The lines that are ours and new; `number` is that of the line before the first, -1 where lines have none."""
        step = 1 if number >= 0 else 0
        number = max(0, number)
        run, start, seq = self._next_run(source, number + step)
        found = [run]
        for line in lines:
            number += step
            if line.startswith(start % seq, HEAD_LENGTH) and line.startswith(_RECORD_START):
                run.lines.append(line)
                seq += 1
                continue
            self._has_come(run)
            if other := self._other(line, source, number):
                found.append(other)
            run, start, seq = self._next_run(source, number + step)
            found.append(run)
        self._has_come(run)
        return [run for run in found if run.lines]

    def _next_run(self, source: str, number: int) -> tuple[Run, bytes, int]:
        """An empty run for what may follow the latest record, with how its lines begin behind the time, but for seq."""
        stream = self._latest
        seq = self.streams.get(stream, 0) + 1
        return Run("record", stream, seq, 0, source, number, []), start_of(stream).replace(b"%", b"%%") + b"%d,", seq

    def _has_come(self, run: Run) -> None:
        if run.lines:
            self.streams[run.stream] = run.seq + len(run.lines) - 1

    def _other(self, raw: bytes, source: str, number: int) -> Run | None:
        """Anything but the next record of the same stream."""
        if not raw.startswith(_RECORD_START) or (found := head(raw)) is None:
            return self._rarer(raw, source, number)
        last = self.streams.get(found.stream)
        if last is not None and found.seq <= last:
            return None
        self._notice_gap(found, last, source)
        self.streams[found.stream] = found.seq
        self._latest = found.stream
        return Run("record", found.stream, found.seq, found.lost, source, number, [raw])

    def _rarer(self, raw: bytes, source: str, number: int) -> Run | None:
        if raw.startswith(_CHECKPOINT_START) and (found := head(raw)) is not None:
            return Run("checkpoint", found.stream, found.seq, 0, source, number, [raw])
        if raw[:1] == b"\0" or raw[-1:] == b"\0":
            self.notices.add(Notice("nul", source, count=raw.count(b"\0"), text=f"NUL bytes skipped in line {number}"))
            return next(iter(self.runs([raw.strip(b"\0")], source, number - 1)), None)
        if raw:
            self.notices.add(Notice("foreign", source, count=1, text=f"line {number} is not an audit record"))
        return None

    def _notice_gap(self, found: Head, last: int | None, source: str) -> None:
        expected = (last or 0) + 1 + found.lost
        if found.seq > expected:
            kind: Literal["late", "gap"] = "late" if last is None else "gap"
            text = f"records {expected - found.lost} to {found.seq - 1 - found.lost} are missing"
            self.notices.add(Notice(kind, source, found.stream, found.seq - expected, text))


class Source(Protocol):
    """One kind of place to follow; `poll` gives (lines, source, number of the line before) and never blocks."""

    def poll(self) -> Iterable[Batch]: ...

    def close(self) -> None: ...


class Follower:
    """Follows any number of sources; each record comes once, in the order of its stream."""

    def __init__(
        self, audits: Sequence[str | Path], position: Position | None = None, *, grace: float = GRACE_SECONDS
    ) -> None:
        """`audits` as on the command line; `position` as an earlier follower gave it; `grace` in seconds.

        A file or folder need not exist yet.
        """
        position = position or Position()
        self._sorter = Sorter(position.streams)
        paths = [Path(audit) for audit in audits if not is_stdin(audit) and not is_kubernetes(audit)]
        self._files = _Files(paths, position.files, self._sorter.notices, grace)
        self._pods = _pod_logs(audits, position, self._sorter.notices)
        pipes = [_Pipe(sys.stdin.fileno())] if any(map(is_stdin, audits)) else []
        self._sources: tuple[Source, ...] = (self._files, *self._pods, *pipes)

    def poll(self) -> list[Line]:
        """What `poll_runs` gives, line by line."""
        return [line for run in self.poll_runs() for line in run.each()]

    def poll_runs(self) -> list[Run]:
        """What has come since the last call, at most a few MiB; an empty list says that there is nothing new yet."""
        runs: list[Run] = []
        found = True
        while found and not runs:  # repeated or foreign lines alone are not the end
            found = False
            for source in self._sources:
                for lines, name, number in source.poll():
                    found = True
                    runs += self._sorter.runs(lines, name, number)
        return runs

    def pass_over(self, file: FilePosition, stream: str, seq: int, notices: Iterable[Notice] = ()) -> None:
        """A file of a stream, not yet begun here, was read by somebody else: as far as `file` says, up to `seq`."""
        self._files.know(file)
        self._sorter.streams[stream] = seq
        for notice in notices:
            self._sorter.notices.add(notice)

    def take_notices(self) -> list[Notice]:
        """What was noticed since the last call."""
        return self._sorter.notices.take()

    @property
    def position(self) -> Position:
        """Where the last `poll` stopped."""
        pods = {pod: seen for source in self._pods for pod, seen in source.positions().items()}
        return Position(self._files.positions(), dict(self._sorter.streams), pods)

    def close(self) -> None:
        for source in self._sources:
            source.close()


def is_stdin(audit: str | Path) -> bool:
    return str(audit) == STDIN


def is_kubernetes(audit: str | Path) -> bool:
    return str(audit).partition(":")[0] == KUBERNETES


def _pod_logs(audits: Sequence[str | Path], position: Position, notices: Notices) -> "list[PodLogs]":
    wanted = [str(audit) for audit in audits if is_kubernetes(audit)]
    if not wanted:
        return []
    from webhook.audit.pod_logs import PodLogs  # the Kubernetes client takes most of a second to import

    return [PodLogs.connect(audit.partition(":")[2], position.pods, notices) for audit in wanted]


class _Pipe:
    """Lines from a pipe, without ever waiting for one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._number = 0
        self.ended = False

    def poll(self) -> Iterator[Batch]:
        while not self.ended and select.select([self._descriptor], [], [], 0)[0]:
            data = os.read(self._descriptor, 1 << 16)
            self.ended = not data
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()[:MAX_LINE]
            yield lines, "stdin", self._number
            self._number += len(lines)

    def close(self) -> None:
        """Stdin is not ours to close."""


class _File:
    """An open file and how far it was read; it stays open under whatever name it gets."""

    def __init__(self, path: Path, saved: Mapping[int, FilePosition], by_path: Mapping[str, FilePosition]) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self.descriptor).st_ino
        self.offset = self.lines = 0
        self.fingerprint = b""
        self.idle_since: float | None = None
        known = saved.get(self.inode) or by_path.get(str(path))
        if known is not None:
            self.offset, self.lines = known.offset, known.lines
            self.fingerprint = bytes.fromhex(known.fingerprint)
            if not self.is_as_left():
                self.rewind()

    def is_as_left(self) -> bool:
        """Whether what was read last still stands there: otherwise the file was truncated, or it is another one."""
        length = len(self.fingerprint)
        return os.pread(self.descriptor, length, self.offset - length) == self.fingerprint if length else True

    def rewind(self) -> None:
        self.offset = self.lines = 0
        self.fingerprint = b""

    def position(self) -> FilePosition:
        return FilePosition(str(self.path), self.inode, self.offset, self.lines, self.fingerprint.hex())

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read(self, end: int, notices: Notices) -> list[bytes]:
        """Some of the whole new lines before the offset `end`; half a line waits for its newline."""
        if not self.is_as_left():
            notices.add(Notice("truncated", str(self.path), text="the file was truncated: read from its start"))
            self.rewind()
        size = _READ
        while data := os.pread(self.descriptor, max(0, min(size, end - self.offset)), self.offset):
            if data[0] == 0:
                self._skip_nuls(data, notices)
                continue
            lines, length = _whole_lines(data)
            if lines:
                self._advance(data, length)
                self.lines += len(lines)
                return lines
            if len(data) < size:
                break
            if size < MAX_LINE:
                size *= 4
                continue
            notices.add(Notice("foreign", str(self.path), count=1, text=f"{size} bytes without a newline"))
            self._advance(data, size)
        return []

    def _advance(self, data: bytes, length: int) -> None:
        """So many bytes of what stands at the offset are done with."""
        self.offset += length
        self.fingerprint = data[max(0, length - _FINGERPRINT) : length]

    def _skip_nuls(self, data: bytes, notices: Notices) -> None:
        """What copy-and-truncate leaves when the writer does not append: a hole as long as the old file."""
        count = len(data) - len(data.lstrip(b"\0"))
        notices.add(Notice("nul", str(self.path), count=count, text=f"{count} NUL bytes skipped"))
        self._advance(data, count)

    def close(self) -> None:
        os.close(self.descriptor)


def _whole_lines(data: bytes) -> tuple[list[bytes], int]:
    """The lines of `data` that have a newline, without it, and how many bytes they are.

    `find` looks at many bytes at once, where `split` looks at one after the other and takes twice as long.
    """
    lines, start, find = [], 0, data.find
    while (end := find(b"\n", start)) >= 0:
        lines.append(data[start:end])
        start = end + 1
    return lines, start


class _Files:
    """Files and folders: finds new files, keeps renamed ones until their writers have left them."""

    def __init__(self, paths: Sequence[Path], saved: Sequence[FilePosition], notices: Notices, grace: float) -> None:
        self._paths = paths
        self._notices = notices
        self._grace = grace
        self._saved = {each.inode: each for each in saved}
        self._saved_by_path = {each.path: each for each in saved}
        self._open: dict[tuple[int, int], _File] = {}  # in reading order: what was found earlier comes first
        for path in self._renamed_meanwhile(saved):
            self._add(path)

    def know(self, position: FilePosition) -> None:
        """Begin a file where its position says."""
        self._saved[position.inode] = self._saved_by_path[position.path] = position

    def poll(self) -> Iterator[Batch]:
        current = self._discover()
        room = CHUNK
        # The newest file is measured first: what its writer put into an older one before is then within that one's end.
        ends = {identity: file.size() for identity, file in reversed(self._open.items())}
        for identity, file in list(self._open.items()):
            start = file.offset
            while lines := file.read(ends[identity], self._notices):
                yield lines, str(file.path), file.lines - len(lines)
                if file.offset - start >= room:  # the next file only begins where this one has ended
                    return
            room -= file.offset - start
            if file.offset != start:
                file.idle_since = None
            elif identity not in current:
                self._perhaps_leave(identity, file)

    def positions(self) -> tuple[FilePosition, ...]:
        return tuple(file.position() for file in self._open.values())

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _discover(self) -> set[tuple[int, int]]:
        """Open what is new; which of the open files still have a name that we follow."""
        named: dict[tuple[int, int], Path] = {}
        for path in self._paths:
            for each in self._candidates(path):
                try:
                    status = each.stat()
                except FileNotFoundError:
                    continue
                named[status.st_dev, status.st_ino] = each
        new = [path for identity, path in named.items() if identity not in self._open]
        for path in sorted(new, key=lambda path: (path.name.endswith(CHECKPOINTS_SUFFIX), _reading_order(path))):
            self._add(path)
        for identity, path in named.items():
            if identity in self._open:
                self._open[identity].path = path
        return set(named)

    def _candidates(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return [path]
        ours = (each for each in path.iterdir() if not each.is_dir())
        return [each for each in ours if _RECORD_FILE.fullmatch(each.name) or each.suffix == CHECKPOINTS_SUFFIX]

    def _add(self, path: Path) -> None:
        try:
            file = _File(path, self._saved, self._saved_by_path)
        except OSError as error:
            self._notices.add(Notice("unreachable", str(path), text=f"cannot be read: {error.strerror}"))
            return
        identity = os.fstat(file.descriptor).st_dev, file.inode
        if identity in self._open:
            file.close()
        else:
            self._open[identity] = file

    def _perhaps_leave(self, identity: tuple[int, int], file: _File) -> None:
        """A renamed or removed file is left once nothing has come for a while."""
        now = time.monotonic()
        file.idle_since = file.idle_since if file.idle_since is not None else now
        if now - file.idle_since >= self._grace:
            file.close()
            del self._open[identity]

    def _renamed_meanwhile(self, saved: Sequence[FilePosition]) -> list[Path]:
        """Files that were followed by name and rotated while nobody looked: the rest of the one, then all after it."""
        found: list[Path] = []
        for path in self._paths:
            known = next((each for each in saved if each.path == str(path)), None)
            if known is None or not path.parent.is_dir():
                continue
            siblings = [each for each in path.parent.iterdir() if each.name.startswith(path.name) and each.is_file()]
            ages = sorted((each.stat().st_mtime_ns, each.stat().st_ino, each) for each in siblings)
            start = next((index for index, (_, inode, _) in enumerate(ages) if inode == known.inode), 0)
            found += [each for _, _, each in ages[start:]]
        return found
