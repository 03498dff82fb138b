"""Finding records and summing them up, in one pass and in bounded memory, however long the streams are."""

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from webhook.audit.read import blocks_in, files_in, lines_in
from webhook.audit.record import HEAD_LENGTH, SCHEMA, ObjectName, PolicyName, seconds_of, timestamp
from webhook.audit.segments import segment_of
from webhook.decision.result import Finding

Progress = Callable[[int], object]

_TIME_START = f'{{"schema":"{SCHEMA}","time":"'.encode()
_TIME_AT = slice(len(_TIME_START), HEAD_LENGTH - 1)
_RECORD_START = b'{"schema":"gpu.platform/audit.'
_PLAIN = re.compile(r"[A-Za-z0-9 _.:@/+*-]+")
"""Values that JSON writes as they are, so that a record that holds one holds these very bytes."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAMES_KEPT = 20_000
_BUCKETS_PER_E = 50  # latencies within 2 %


class User(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class Entry(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """As much of a record as a table or a summary shows; the rest is skipped while decoding."""

    time: str
    phase: str
    verdict: str
    object: ObjectName
    stream: str = ""
    seq: int = 0
    id: str = ""
    operation: str = ""
    dry_run: bool = False
    user: User = User()
    policy: PolicyName = PolicyName()
    would: str | None = None
    findings: tuple[Finding, ...] = ()
    latency_ms: float = 0.0


class Match(NamedTuple):
    """A record that was looked for: its bytes, and what a table shows of it."""

    raw: bytes
    entry: Entry


class Filter(msgspec.Struct, frozen=True):
    """Which records; all that is given must hold. `since` and `until` are as `record.timestamp` writes times."""

    since: str | None = None
    until: str | None = None
    namespace: str | None = None
    user: str | None = None
    kind: str | None = None
    verdict: str | None = None
    code: str | None = None
    rule: str | None = None

    def matches(self, entry: Entry) -> bool:
        return (
            (self.since is None or entry.time >= self.since)
            and (self.until is None or entry.time < self.until)
            and self.namespace in (None, entry.object.namespace)
            and self.user in (None, entry.user.name)
            and self.kind in (None, entry.object.kind)
            and self.verdict in (None, entry.verdict)
            and self.rule in (None, entry.policy.rule)
            and (self.code is None or any(finding.code == self.code for finding in entry.findings))
        )


class Selection:
    """A filter at work; `unreadable` counts lines that look like what is wanted and are no records."""

    def __init__(self, wanted: Filter) -> None:
        self.wanted = wanted
        self.unreadable = 0
        self._since = wanted.since.encode() if wanted.since else b""
        self._until = wanted.until.encode() if wanted.until else b"\xff"
        pairs = [  # those that tell most records apart first
            ("name", wanted.user),
            ("code", wanted.code),
            ("rule", wanted.rule),
            ("namespace", wanted.namespace),
            ("kind", wanted.kind),
            ("verdict", wanted.verdict),
        ]
        self._needles = [f'"{key}":"{value}"'.encode() for key, value in pairs if value and _PLAIN.fullmatch(value)]
        self._decoder = msgspec.json.Decoder(Entry)

    def __call__(self, lines: Iterable[bytes]) -> Iterator[Match]:
        """The matches among lines. Most lines are told by their bytes alone, without decoding them."""
        needles, since, until = self._needles, self._since, self._until
        decode, matches = self._decoder.decode, self.wanted.matches
        all_match = self.wanted == Filter()
        for raw in lines:
            if raw.startswith(_TIME_START) and not since <= raw[_TIME_AT] < until:
                continue
            if (needles and any(needle not in raw for needle in needles)) or not raw.startswith(_RECORD_START):
                continue
            try:
                entry = decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.unreadable += 1
                continue
            if all_match or matches(entry):
                yield Match(raw, entry)

    def in_file(self, path: Path, progress: Progress = lambda _: None) -> Iterator[Match]:
        """The matches in a file. Raises OSError."""
        if not self._needles:
            yield from self(lines_in(path, progress))
            return
        for block in blocks_in(path, progress):
            yield from self(_lines_with(self._needles[0], block))


def _lines_with(needle: bytes, block: bytes) -> Iterator[bytes]:
    """The lines of a block that hold some bytes; the others are not even cut out."""
    position = block.find(needle)
    while position >= 0:
        start, end = block.rfind(b"\n", 0, position) + 1, block.find(b"\n", position)
        yield block[start:end].strip(b"\0")
        position = block.find(needle, end)


def moment(text: str, now: float) -> str:
    """`2h`, `30m`, `7d` before now, or an RFC 3339 time, as records write times. Raises ValueError."""
    ago = re.fullmatch(r"(\d+)([smhd])", text)
    if ago:
        return timestamp(now - int(ago[1]) * _UNITS[ago[2]])
    try:
        return timestamp(seconds_of(text))
    except ValueError:
        raise ValueError(f"{text!r} is neither a duration such as 2h nor a time such as 2026-12-01T08:00:00Z") from None


# -- over files -------------------------------------------------------------------------------------------------------


def select(audits: Sequence[Path], selection: Selection, progress: Progress = lambda _: None) -> Iterator[Match]:
    """Matches of all streams in these files and folders, by time; only streams that overlap are open at once.

    Raises OSError for what cannot be read.
    """
    streams: dict[str, list[Path]] = {}
    for audit in audits:
        for path in files_in(audit):
            segment = segment_of(path)
            streams.setdefault(f"{audit}/{segment.stream}" if segment else str(path), []).append(path)
    waiting = [(_first_time(paths), _matches(paths, selection, progress)) for paths in streams.values()]
    return in_order(waiting)


def sources_bytes(audits: Sequence[Path]) -> int:
    """How many bytes there are to read, for a progress bar. Raises OSError."""
    return sum(path.stat().st_size for audit in audits for path in files_in(audit))


def in_order(streams: Iterable[tuple[str, Iterator[Match]]]) -> Iterator[Match]:
    """Several (first time, matches) as one, by time; each is started only when its first time has come."""
    waiting = sorted(enumerate(streams), key=lambda item: (item[1][0], item[0]), reverse=True)
    heap: list[tuple[str, int, Match, Iterator[Match]]] = []

    def advance(index: int, matches: Iterator[Match]) -> None:
        match = next(matches, None)
        if match is not None:
            heapq.heappush(heap, (match.entry.time, index, match, matches))

    while heap or waiting:
        while waiting and (not heap or waiting[-1][1][0] <= heap[0][0]):
            index, (_, matches) = waiting.pop()
            advance(index, matches)
        if heap:
            _, index, match, matches = heapq.heappop(heap)
            yield match
            advance(index, matches)


def _matches(paths: Iterable[Path], selection: Selection, progress: Progress) -> Iterator[Match]:
    for path in paths:
        yield from selection.in_file(path, progress)


def _first_time(paths: Sequence[Path]) -> str:
    for path in paths:
        with path.open("rb") as file:
            line = file.readline(HEAD_LENGTH).lstrip(b"\0")
        if line.startswith(_TIME_START):
            return line[_TIME_AT].decode("ascii", "replace")
    return ""


# -- summary ----------------------------------------------------------------------------------------------------------


class Tally(msgspec.Struct, rename="camel"):
    """`admitted` and `denied` as DESIGN 5.5 counts; `admitted` is what `/validate` let through."""

    name: str
    admitted: int
    denied: int


class Count(msgspec.Struct):
    name: str
    count: int


class RefusedWorkload(msgspec.Struct):
    namespace: str
    kind: str
    name: str
    count: int


class Summary(msgspec.Struct, rename="camel"):
    """What happened; dry runs are told in `dry_runs` and counted nowhere else. Latencies in milliseconds."""

    records: int
    dry_runs: int
    admitted: int
    denied: int
    first: str | None
    last: str | None
    namespaces: list[Tally]
    rules: list[Tally]
    codes: list[Count]
    refused_users: list[Count]
    refused_workloads: list[RefusedWorkload]
    latency_p50: float | None
    latency_p99: float | None


class _Counts(Counter[tuple[str, ...]]):
    """A counter whose names come from users: when there are too many, those that came seldom are forgotten."""

    def add(self, *key: str) -> None:
        self[key] += 1
        if len(self) > _NAMES_KEPT:
            kept = dict(self.most_common(_NAMES_KEPT // 2))
            self.clear()
            self.update(kept)


class Summariser:
    """Counts entries one by one; `summary` may be asked at any time."""

    def __init__(self) -> None:
        self._dry_runs = 0
        self._first: str | None = None
        self._last: str | None = None
        self._outcomes: Counter[str] = Counter()
        self._decisions = _Counts()  # (outcome, namespace, rule, code, code ...): one look-up for each record
        self._users, self._workloads = _Counts(), _Counts()
        self._latencies: Counter[int] = Counter()

    def add(self, entry: Entry) -> None:
        if entry.dry_run:
            self._dry_runs += 1
            return
        time = entry.time
        if self._first is None or time < self._first:
            self._first = time
        if self._last is None or time > self._last:
            self._last = time
        self._latencies[int(math.log(max(entry.latency_ms, 1e-4)) * _BUCKETS_PER_E)] += 1
        outcome = _outcome(entry)
        self._outcomes[outcome] += 1
        codes = [finding.code for finding in entry.findings]
        self._decisions.add(outcome, entry.object.namespace or "", entry.policy.rule or "", *codes)
        if outcome == "denied":
            self._users.add(entry.user.name)
            owner = entry.object.owner
            kind, name = (owner.kind, owner.name) if owner else (entry.object.kind, entry.object.label)
            self._workloads.add(entry.object.namespace or "", kind, name)

    def summary(self, top: int = 10) -> Summary:
        namespaces, rules, codes = _Counts(), _Counts(), _Counts()
        for (outcome, namespace, rule, *found), count in self._decisions.items():
            namespaces[outcome, namespace] += count
            rules[outcome, rule] += count
            for code in found:
                codes[code,] += count
        return Summary(
            records=self._outcomes.total(),
            dry_runs=self._dry_runs,
            admitted=self._outcomes["admitted"],
            denied=self._outcomes["denied"],
            first=self._first,
            last=self._last,
            namespaces=_tallies(namespaces),
            rules=_tallies(rules),
            codes=[Count(code, count) for (code,), count in _by_count(codes)],
            refused_users=[Count(user, count) for (user,), count in _by_count(self._users)[:top]],
            refused_workloads=[
                RefusedWorkload(namespace, kind, name, count)
                for (namespace, kind, name), count in _by_count(self._workloads)[:top]
            ],
            latency_p50=self._quantile(0.50),
            latency_p99=self._quantile(0.99),
        )

    def _quantile(self, share: float) -> float | None:
        left = share * self._latencies.total()
        for bucket, count in sorted(self._latencies.items()):
            left -= count
            if left <= 0:
                return float(f"{math.exp((bucket + 0.5) / _BUCKETS_PER_E):.3g}")
        return None


def _outcome(entry: Entry) -> str:
    """How a record counts (DESIGN 5.5): a mutate record that allows is no admission yet."""
    if entry.verdict == "deny":
        return "denied"
    return "admitted" if entry.verdict == "allow" and entry.phase == "validate" else ""


def _by_count(counts: Counter[tuple[str, ...]]) -> list[tuple[tuple[str, ...], int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _tallies(counts: Counter[tuple[str, ...]]) -> list[Tally]:
    names = {name for outcome, name in counts if outcome}
    tallies = [Tally(name, counts["admitted", name], counts["denied", name]) for name in names]
    return sorted(tallies, key=lambda tally: (-tally.denied, -tally.admitted, tally.name))
