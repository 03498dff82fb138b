"""Is every record there and as it was written? For each stream: intact, unclosed, or the first place that is not.

What the words mean: `edited` a record's bytes are not those that its hash, its successor or a signed checkpoint names;
`deleted` records are missing between two lines; `swapped` they are there, in another place; `cut` the end is missing
(a checkpoint names a later record); `missing-segment` a whole file is; `foreign` a line that does not belong there;
`signature` a checkpoint that none of the keys signed; `gap` records are missing in a copy, which may be harmless.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from webhook.audit import checkpoint as checkpoints
from webhook.audit.checkpoint import Checkpoint
from webhook.audit.read import checkpoint_files_in, files_in
from webhook.audit.record import HEAD_LENGTH, SCHEMA
from webhook.audit.segments import (
    CHECKPOINTS_SUFFIX,
    ZEROS,
    Segment,
    digest_of,
    end_of,
    head,
    segment_name,
    segments_in,
    start_of,
    tail,
)

State = Literal["intact", "unclosed", "gap", "bad"]
ProblemKind = Literal["edited", "deleted", "swapped", "cut", "missing-segment", "foreign", "signature", "gap"]
Progress = Callable[[int], object]

_RECORD_START = f'{{"schema":"{SCHEMA.rpartition("v")[0]}'.encode()
_GAPS_LISTED = 100
_ATTEMPTS = 3
_BUFFER = 1 << 18


class Problem(msgspec.Struct):
    """What is wrong and where: `line` counts from 1 in `source`; `seq` is the record concerned, where one is."""

    kind: ProblemKind
    source: str
    line: int
    seq: int | None
    text: str


class StreamReport(msgspec.Struct, rename="camel"):
    """One stream: `first` and `last` are seqs, `lost` counts records that a full disk cost and the chain admits to.

    `signatures`: how many checkpoints there are and whether they were checked. `gaps` (copies only) lists at most 100.
    """

    stream: str
    source: str
    state: State
    records: int
    first: int
    last: int
    lost: int
    checkpoints: int
    signatures: Literal["checked", "not checked"]
    problem: Problem | None
    gaps: list[Problem]
    notes: list[str]


class Chain:
    """One stream as its lines come; also for whoever collects a copy and wants to know at once.

    `feed` returns a problem the first time there is one. A collector that restarts makes a Chain with the `seq` and
    `head` where it had stopped.
    """

    def __init__(
        self,
        stream: str,
        *,
        source: str = "",
        copy: bool = False,
        keys: Sequence[Ed25519PublicKey] = (),
        seq: int = 0,
        head: str = ZEROS,
    ) -> None:
        self.stream = stream
        self.source = source
        self.seq, self.head = seq, head
        self.records = self.lost = self.first = 0
        self.problem: Problem | None = None
        self.gaps: list[Problem] = []
        self.notes: list[str] = []
        self._copy = copy
        self._keys = keys
        self._marks: dict[int, str] = {}  # seq -> hash that a checkpoint names
        self._retained = -1  # the highest seq whose removal was announced
        self._closed_at: int | None = None
        self._last_mark: tuple[int, str] = (0, "")  # and the time at which it was signed
        self._rotations: set[int] = set()
        self._checkpoints = 0
        self._last_place = (source, 0)
        self._torn: tuple[str, int, int] | None = None
        self._missing_file: str | None = None
        self._absent = range(0)  # seqs that were missing when the problem was found
        self._start = start_of(stream)

    # -- lines --------------------------------------------------------------------------------------------------------

    def feed(self, raw: bytes, source: str, line: int) -> Problem | None:
        """The next line, without its newline. A problem is returned once; after it nothing more is judged."""
        if self.problem is not None:
            self._look_for_swapped(raw)
            return None
        digest = digest_of(raw)
        start = b"%b%d," % (self._start, self.seq + 1)
        expected = raw.startswith(start, HEAD_LENGTH) and raw.endswith(end_of(self.head, digest))
        if expected and self._torn is None:
            return self._accept(self.seq + 1, 0, digest, source, line)
        return self._examine(raw, digest, source, line)

    def feed_checkpoint(self, signed: Checkpoint, source: str, line: int) -> Problem | None:
        """A checkpoint of this stream, before or among its lines."""
        self._checkpoints += 1
        if self._keys and not signed.is_signed_by(self._keys):
            text = f"the {signed.kind} checkpoint of record {signed.seq} was not signed by the key that was given"
            return self._bad("signature", source, line, signed.seq, text)
        if signed.seq == self.seq and self.records and signed.hash != self.head:
            return self._rewritten(signed.seq, *self._last_place)
        if signed.seq > self.seq or not self.records:
            self._marks[signed.seq] = signed.hash
        if signed.kind == "retention":
            self._retained = max(self._retained, signed.seq)
        elif signed.kind == "closing":
            self._closed_at = signed.seq
        elif signed.kind == "rotation":
            self._rotations.add(signed.seq)
        self._last_mark = max(self._last_mark, (signed.seq, signed.time))
        return None

    def feed_checkpoint_line(self, raw: bytes, source: str, line: int) -> Problem | None:
        """A line of this stream's checkpoint file."""
        known = checkpoints.decode(raw)
        if known is None or known.stream != self.stream:
            return self._bad("foreign", source, line, None, "not a checkpoint of this stream")
        return self.feed_checkpoint(known, source, line)

    def half_line(self, size: int, source: str, line: int) -> None:
        """Bytes without a newline at the end of a segment: a kill or a full disk in the middle of a write."""
        self._torn = (source, line, size)

    def skip_to(self, segment: Segment, expected: int) -> None:
        """A segment begins; `expected` is the number it should have if none is missing."""
        missing = expected if segment.number > expected else None
        self._missing_file = segment_name(self.stream, missing) if missing else None

    # -- the end ------------------------------------------------------------------------------------------------------

    def report(self) -> StreamReport:
        """How the stream stands when no more lines come."""
        if self.problem is None:
            self._judge_end()
        state: State = "intact" if self._closed_at is not None else "unclosed"
        if not self.records and self._closed_at is None and self._retained >= self._last_mark[0]:
            state = "intact"  # all of it was removed, and that was signed
        if self.gaps:
            state = "gap"
        if self.problem is not None:
            state = "bad"
        if state == "unclosed":
            seq, time = self._last_mark
            self.notes.append(f"the last checkpoint names record {seq} ({time})" if time else "no checkpoint")
        return StreamReport(
            stream=self.stream,
            source=self.source,
            state=state,
            records=self.records,
            first=self.first,
            last=self.seq,
            lost=self.lost,
            checkpoints=self._checkpoints,
            signatures="checked" if self._keys and self._checkpoints else "not checked",
            problem=self.problem,
            gaps=self.gaps,
            notes=self.notes,
        )

    def _judge_end(self) -> None:
        marked, when = self._last_mark
        if marked > max(self.seq, self._retained):
            text = f"the end is missing: record {marked} was signed at {when}, the last one here is {self.seq}"
            if self._copy:
                self._gap(self.seq + 1, marked, *self._last_place)
            elif self.seq in self._rotations or not self.records:
                self._bad(
                    "missing-segment", *self._last_place, self.seq, f"the segment after this one is missing: {text}"
                )
            else:
                self._bad("cut", *self._last_place, self.seq, text)
        elif self._closed_at is not None and self.seq > self._closed_at:
            text = f"the stream was closed at record {self._closed_at}, and yet goes on"
            self._bad("foreign", *self._last_place, self.seq, text)
        elif self._torn is not None:
            source, line, size = self._torn
            if self._closed_at is not None and not self._copy:
                self._bad("foreign", source, line, None, f"{size} bytes after the end of a closed stream")
            else:
                self.notes.append(f"half a line at the end ({size} bytes, {source} line {line})")

    # -- one line -----------------------------------------------------------------------------------------------------

    def _examine(self, raw: bytes, digest: str, source: str, line: int) -> Problem | None:
        """A line that is not simply the next record as this version writes it."""
        found, ends = head(raw), tail(raw)
        if found is None and ends is not None and raw.startswith(_RECORD_START):
            return self._bad("edited", source, line, None, "what was a record cannot be read any more")
        if found is None or found.stream != self.stream or ends is None:
            return self._bad("foreign", source, line, None, "not a record of this stream")
        seq, lost = found.seq, found.lost
        if digest != ends[1]:
            return self._bad("edited", source, line, seq, f"record {seq} is not what was written: its hash differs")
        problem = None
        if seq != self.seq + 1 + lost or ends[0] != self.head:
            problem = self._misfit(seq, lost, ends[0], source, line)
        elif self._torn is not None and not lost:
            torn_source, torn_line, size = self._torn
            problem = self._bad("foreign", torn_source, torn_line, None, f"{size} bytes that no record accounts for")
        return problem or self._accept(seq, lost, digest, source, line)

    def _accept(self, seq: int, lost: int, digest: str, source: str, line: int) -> Problem | None:
        self._last_place = (source, line)
        self.first = self.first or seq
        self.records += 1
        self.lost += lost
        self.seq, self.head = seq, digest
        self._torn = self._missing_file = None
        mark = self._marks.pop(seq, None) if self._marks else None
        return self._rewritten(seq, source, line) if mark is not None and mark != digest else None

    def _misfit(self, seq: int, lost: int, previous: str, source: str, line: int) -> Problem | None:
        """A line that is sound in itself and does not follow the one before; None if there is a reason for that."""
        expected = self.seq + 1 + lost
        if seq < expected:
            return self._bad("foreign", source, line, seq, f"record {seq} stands after record {self.seq}")
        before = seq - 1 - lost
        if seq == expected:
            if not self.records:
                return self._bad("edited", source, line, seq, f"record {seq} does not follow what came before it")
            text = f"record {self.seq} was rewritten: record {seq} names another one before it"
            return self._bad("edited", *self._last_place, self.seq, text)
        if not self.records and self._removed(before, previous):
            return None
        if self._copy:
            self._gap(self.seq + 1, before, source, line)
            return None
        self._absent = range(self.seq + 1, seq)
        missing = (
            f"records {self.seq + 1} to {before} are missing before it" if lost == 0 else f"up to {before} missing"
        )
        if self._missing_file or not self.records:
            name = self._missing_file or segment_name(self.stream, 1)
            return self._bad("missing-segment", source, line, seq, f"{name} is missing: {missing}")
        return self._bad("deleted", source, line, seq, missing)

    def _removed(self, before: int, previous: str) -> bool:
        """Whether the start of the chain was removed with a signed word; that word may be ahead of the removal."""
        if self._retained < before:
            return False
        self.notes.append(f"records up to {before} were removed (retention)")
        return self._retained > before or self._marks.get(before) == previous

    def _look_for_swapped(self, raw: bytes) -> None:
        problem = self.problem
        if problem is None or problem.kind != "deleted" or not self._absent:
            return
        found = head(raw)
        if found is not None and found.stream == self.stream and found.seq in self._absent:
            problem.kind = "swapped"
            problem.text = f"record {found.seq} comes later, after record {problem.seq}"
            self._absent = range(0)

    def _gap(self, first: int, last: int, source: str, line: int) -> None:
        if len(self.gaps) < _GAPS_LISTED:
            text = f"records {first} to {last} are missing in this copy"
            self.gaps.append(Problem("gap", source, line, first, text))

    def _rewritten(self, seq: int, source: str, line: int) -> Problem:
        text = f"record {seq} is not the one that was signed: it or what is before it was rewritten"
        return self._bad("edited", source, line, seq, text)

    def _bad(self, kind: ProblemKind, source: str, line: int, seq: int | None, text: str) -> Problem:
        self.problem = self.problem or Problem(kind, source, line, seq, text)
        return self.problem


# -- files ------------------------------------------------------------------------------------------------------------


def verify(
    audit: Path, keys: Sequence[Ed25519PublicKey] = (), *, copy: bool = False, progress: Progress = lambda _: None
) -> list[StreamReport]:
    """All streams of a folder or file. Without `keys`, those beside the files are used where there are any.

    `copy`: an exporter's copy, where a missing record is a gap, not tampering. Raises OSError for what cannot be read.
    """
    keys = keys or keys_beside(audit)
    files = files_in(audit)
    signed = _checkpoints_by_stream(audit)
    named = segments_in(files)
    if audit.is_file():
        signed = {stream: lines for stream, lines in signed.items() if stream in named}
    reports = [
        _verify_stream(audit, stream, signed.get(stream, []), keys, copy, progress)
        for stream in sorted(named.keys() | signed.keys())
    ]
    unnamed = [path for path in files if all(path != segment.path for each in named.values() for segment in each)]
    if unnamed:
        reports += verify_lines(_numbered(unnamed, progress), keys, source=str(audit), copy=copy)
    return reports


def verify_lines(
    lines: Iterable[tuple[bytes, str, int]], keys: Sequence[Ed25519PublicKey] = (), *, source: str, copy: bool = True
) -> list[StreamReport]:
    """All streams among lines of any origin, (line, source, number); lines that are not ours are only counted."""
    chains: dict[str, Chain] = {}
    others = 0

    def chain_of(stream: str) -> Chain:
        if stream not in chains:
            chains[stream] = Chain(stream, source=source, copy=copy, keys=keys)
        return chains[stream]

    for raw, place, number in lines:
        if raw.startswith(_RECORD_START):
            found = head(raw)
            chain_of(found.stream if found else place).feed(raw, place, number)
        elif (signed := checkpoints.decode(raw)) is not None:
            chain_of(signed.stream).feed_checkpoint(signed, place, number)
        elif raw:
            others += 1
    reports = [chain.report() for _, chain in sorted(chains.items())]
    if reports and others:
        reports[0].notes.append(f"{others} lines that are not records were skipped")
    return reports


def keys_beside(audit: Path) -> list[Ed25519PublicKey]:
    """The public keys that ledgers left in a folder: good against accidents, not against who owns the folder."""
    folder = audit if audit.is_dir() else audit.parent
    return [checkpoints.load_public_key(path) for path in sorted(folder.glob(f"*{checkpoints.PUBLIC_KEY_SUFFIX}"))]


def _verify_stream(
    audit: Path,
    stream: str,
    signed: list[tuple[bytes, str, int]],
    keys: Sequence[Ed25519PublicKey],
    copy: bool,
    progress: Progress,
) -> StreamReport:
    """One stream of segments; once more where retention removed some between our looking at one thing and another."""
    for _ in range(_ATTEMPTS):
        chain = Chain(stream, source=str(audit), copy=copy, keys=keys)
        for raw, source, number in signed:
            chain.feed_checkpoint_line(raw, source, number)
        vanished = False
        try:
            segments = segments_in(files_in(audit)).get(stream, [])
            for index, segment in enumerate(segments):
                chain.skip_to(segment, segments[index - 1].number + 1 if index else 1)
                _feed_segment(chain, segment.path, progress)
        except FileNotFoundError:
            vanished = True
        report = chain.report()
        since = _checkpoints_by_stream(audit).get(stream, [])
        if not vanished and (report.problem is None or since == signed):
            return report
        signed = since
    if vanished:
        raise FileNotFoundError(f"{audit}: segments of {stream} vanish while they are read; verify a copy instead")
    return report


def _feed_segment(chain: Chain, path: Path, progress: Progress) -> None:
    source, feed = str(path), chain.feed
    unreported = 0
    with path.open("rb", buffering=_BUFFER) as file:
        for number, line in enumerate(file, 1):
            unreported += len(line)
            if unreported > 1 << 20:
                progress(unreported)
                unreported = 0
            if line[-1:] != b"\n":
                chain.half_line(len(line), source, number)
            else:
                feed(line[:-1], source, number)
    progress(unreported)


def _numbered(paths: Iterable[Path], progress: Progress) -> Iterator[tuple[bytes, str, int]]:
    """Lines of files that are not named as segments; NULs are left to `feed`, which calls them foreign."""
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                progress(len(line))
                if line[-1:] == b"\n":
                    yield line[:-1].lstrip(b"\0"), str(path), number


def _checkpoints_by_stream(audit: Path) -> dict[str, list[tuple[bytes, str, int]]]:
    """Lines of the checkpoint files by the stream in their names; half a line at the end does not count."""
    found: dict[str, list[tuple[bytes, str, int]]] = {}
    for path in checkpoint_files_in(audit):
        lines = path.read_bytes().split(b"\n")[:-1]
        stream = path.name.removesuffix(CHECKPOINTS_SUFFIX)
        found[stream] = [(line, str(path), number) for number, line in enumerate(lines, 1)]
    return found
