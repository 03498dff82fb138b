"""Bounded aggregates over audit records: one pass, one line at a time, never more memory than the limits below."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

from webhook.audit.segments import HASH_KEY, TAIL_LENGTH
from webhook.exporter.events import Gate

NAMESPACE_LIMIT = 1_000  # namespaces that are counted by name (B66); the rest is counted as `other`
KEY_LIMIT = 10_000  # distinct (namespace, rule, phase, verdict) and (namespace, code)
WORKLOAD_LIMIT = 10_000  # last decisions that events and pods are joined with
POD_LIMIT = 50_000  # pods that were reviewed
NAME_LIMIT = 1_000  # refused users and refused workloads that are counted by name
RECENT_REFUSED = 300  # whole records that the dashboard shows: refusals and exceptions ...
RECENT_OTHERS = 200  # ... and everything else
RECENT_BYTES = 32_768  # a longer record is shown without its input and facts
MINUTES = 1_440  # of history
OTHER = "other"

QUOTA_CODES = frozenset({"QuotaExceeded", "QuotaNeverFits", "QuotaMustSpecify", "QuotaUnknown", "NoRoomNow"})
_REFUSING = (
    *("QuotaNeverFits", "QuotaExceeded", "QuotaMustSpecify", "PoolConflict", "PriorityConflict"),
    *("NodeNameOutsidePool", "PriorityClassMissing", "NotPlaced", "ResourceUnusable", "QuotaUnknown", "FactsUnknown"),
)
_EXCEPTIONS = frozenset({"Exempt", "ExemptionRemoved", "BreakGlass", "NotPlaced"})


class _Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Only the keys that are counted; the rest of a record is skipped while decoding."""


class _Code(_Part, frozen=True):
    code: str = ""


class _Finding(_Part, frozen=True):
    code: str = ""
    message: str = ""


_NO_FINDING = _Finding()


class _Owner(_Part, frozen=True):
    kind: str = ""
    name: str = ""


class _Name(_Part, frozen=True):
    kind: str = ""
    namespace: str | None = None
    name: str | None = None
    generate_name: str | None = None
    owner: _Owner | None = None


class _User(_Part, frozen=True):
    name: str = ""


class _Policy(_Part, frozen=True):
    rule: str | None = None


class _Revision(_Part, frozen=True):
    revision: str = ""


class _Revised(_Part, frozen=True):
    time: str = ""
    policy: _Revision = _Revision()


class Brief(_Part, frozen=True, kw_only=True):
    """An audit record as far as it is counted (DESIGN 5.5); keys in the order of a record are found fastest."""

    time: str
    phase: str
    dry_run: bool = False
    object: _Name
    user: _User = _User()
    policy: _Policy = _Policy()
    verdict: str
    would: str | None = None
    findings: tuple[_Code, ...] = ()


class _Explained(_Part, frozen=True):
    """What is kept of the last decision about a workload."""

    time: str
    verdict: str
    id: str = ""
    policy: _Policy = _Policy()
    findings: tuple[_Finding, ...] = ()


class Last(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The last decision about one workload; `code` and `message` only of a refusal."""

    id: str
    time: str
    verdict: str
    rule: str = ""
    code: str = ""
    message: str = ""

    @property
    def gate(self) -> Gate:
        """The gate that refused: 3 for quota, else 2."""
        return "quota" if self.code in QUOTA_CODES else "policy"


class Refused(msgspec.Struct, rename="camel", gc=False):
    """How often a workload was refused, and when and why last."""

    count: int = 0
    last: Last | None = None


class Tally(msgspec.Struct, rename="camel"):
    """Everything the exporter remembers of the records it has read; kept on disk between runs.

    Records with `dryRun` count in `dry_run` alone. Admitted = `validate` records with verdict allow; denied = records
    with verdict deny (DESIGN 5.5). Keys of `counts` are namespace, rule, phase and verdict, joined by tabs.
    """

    records: int = 0
    dry_run: int = 0
    admitted: int = 0
    denied: int = 0
    patched: int = 0
    would_deny: int = 0
    unreadable: int = 0
    first_time: str = ""
    last_time: str = ""
    namespaces: dict[str, None] = {}
    counts: dict[str, int] = {}
    codes: dict[str, int] = {}
    minutes: dict[int, list[int]] = {}
    """Minute since the epoch -> [admitted, denied]."""
    workloads: dict[str, Last] = {}
    """`namespace/kind/name` -> its last decision, the longest untouched first."""
    pods: dict[str, None] = {}
    """`namespace/name` of pods for which a record exists, the longest unseen first."""
    refused_users: dict[str, int] = {}
    refused_workloads: dict[str, Refused] = {}
    refused_lines: list[msgspec.Raw] = []
    other_lines: list[msgspec.Raw] = []

    def last_about(self, namespace: str, chain: Iterable[tuple[str, str]]) -> Last | None:
        """The last decision about the first of these (kind, name) that has one."""
        for kind, name in chain:
            last = self.workloads.get(f"{namespace}/{kind}/{name}")
            if last is not None:
                return last
        return None

    def recent(self) -> list[dict[str, Any]]:
        """Whole records, newest first; a long one without its input and facts."""
        records = []
        for line in (*self.refused_lines, *self.other_lines):
            record = msgspec.json.decode(line)
            if len(memoryview(line)) > RECENT_BYTES:
                record["input"] = record["facts"] = None
                record["shortened"] = True
            records.append(record)
        return sorted(records, key=lambda record: (record["time"], record.get("seq", 0)), reverse=True)

    def add(self, later: "Tally") -> None:
        """Take in what was counted of records that come after these, if that `adds_up`."""
        for name in ("records", "dry_run", "admitted", "denied", "patched", "would_deny", "unreadable"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.first_time = min(filter(None, (self.first_time, later.first_time)), default="")
        self.last_time = max(self.last_time, later.last_time)
        for key, count in later.counts.items():
            namespace, rule, phase, verdict = key.split("\t")
            self.count(self.shown(namespace), rule, phase, verdict, count)
        for key, count in later.codes.items():
            namespace, code = key.split("\t")
            self.count_code(self.shown(namespace), code, count)
        for minute, (admitted, denied) in later.minutes.items():
            self.count_minute(minute, admitted, denied)
        self.forget_minutes()
        for user, count in later.refused_users.items():
            _bump(self.refused_users, user, OTHER, count, NAME_LIMIT)
        for about, refused in later.refused_workloads.items():
            known = self.refused_workloads.setdefault(self.refused_as(about), Refused())
            known.count, known.last = known.count + refused.count, refused.last
        _touch(self.workloads, later.workloads, WORKLOAD_LIMIT)
        _touch(self.pods, later.pods, POD_LIMIT)
        _keep_last(self.refused_lines, later.refused_lines, RECENT_REFUSED)
        _keep_last(self.other_lines, later.other_lines, RECENT_OTHERS)

    @property
    def adds_up(self) -> bool:
        """Whether no table was so full that something may have been counted as `other`, and no name holds a tab."""
        names = max(len(self.namespaces), len(self.refused_users), len(self.refused_workloads))
        if names >= NAME_LIMIT or max(len(self.counts), len(self.codes)) >= KEY_LIMIT:
            return False
        return all(key.count("\t") == 3 for key in self.counts) and all(key.count("\t") == 1 for key in self.codes)

    def count(self, namespace: str, rule: str, phase: str, verdict: str, count: int) -> None:
        """Count decisions of one sort, in a namespace as it is `shown`."""
        key, other = f"{namespace}\t{rule}\t{phase}\t{verdict}", f"{OTHER}\t{OTHER}\t{phase}\t{verdict}"
        _bump(self.counts, key, other, count)

    def count_code(self, namespace: str, code: str, count: int) -> None:
        _bump(self.codes, f"{namespace}\t{code}", f"{OTHER}\t{OTHER}", count)

    def count_minute(self, minute: int, admitted: int, denied: int) -> None:
        counts = self.minutes.setdefault(minute, [0, 0])
        counts[0] += admitted
        counts[1] += denied

    def shown(self, namespace: str) -> str:
        """The name under which a namespace is counted: its own, or `other` where there are too many."""
        if namespace not in self.namespaces:
            if len(self.namespaces) >= NAMESPACE_LIMIT:
                return OTHER
            self.namespaces[namespace] = None
        return namespace

    def refused_as(self, about: str) -> str:
        """The name under which refusals of a workload are counted, likewise."""
        if about not in self.refused_workloads and len(self.refused_workloads) >= NAME_LIMIT:
            return f"{OTHER}/{OTHER}/{OTHER}"
        return about

    def forget_minutes(self) -> None:
        for old in sorted(self.minutes)[:-MINUTES]:
            del self.minutes[old]

    @property
    def last_revision(self) -> str:
        """The policy revision of the newest record that is kept whole; "" without any."""
        newest = max((*self.refused_lines[-1:], *self.other_lines[-1:]), key=_time_of, default=None)
        return "" if newest is None else msgspec.json.decode(newest, type=_Revised).policy.revision

    def denied_since(self, minute: int) -> int:
        """Refusals in and after a minute since the epoch, of those that are still remembered."""
        return sum(counts[1] for at, counts in self.minutes.items() if at >= minute)

    def admitted_since(self, minute: int) -> int:
        return sum(counts[0] for at, counts in self.minutes.items() if at >= minute)

    def forget_namespaces(self, existing: Collection[str]) -> None:
        """Count what belongs to deleted namespaces as `other`, so that series do not pile up (B66)."""
        gone = {namespace for namespace in self.namespaces if namespace and namespace not in existing}
        for namespace in gone:
            del self.namespaces[namespace]
        for table, keep_from in ((self.counts, 2), (self.codes, 2)):
            for key in [key for key in table if key.partition("\t")[0] in gone]:
                parts = key.split("\t")
                other = "\t".join([OTHER, OTHER, *parts[keep_from:]])
                table[other] = table.get(other, 0) + table.pop(key)

    def keep_pods(self, alive: Iterable[str]) -> None:
        """Pods that still exist are forgotten last."""
        for key in alive:
            if key in self.pods:
                del self.pods[key]
                self.pods[key] = None


def _time_of(line: msgspec.Raw) -> str:
    return msgspec.json.decode(line, type=_Revised).time


# -- counting ---------------------------------------------------------------------------------------------------------

_Combination = tuple[str | None, str | None, str, str, str | None, bool, tuple[_Code, ...]]
"""Namespace, rule, phase, verdict, would, dry run, findings: what most records share with many others."""


class _Group:
    """The records of one combination that wait to be laid out, and what is to be done with each of them."""

    __slots__ = ("admits", "concerns_workload", "count", "denies", "keep")

    def __init__(self, record: Brief, keep: Callable[[bytes], None]) -> None:
        """`keep` takes the whole line, for the dashboard."""
        counts = not record.dry_run
        self.count = 0
        self.denies = counts and record.verdict == "deny"
        self.concerns_workload = self.denies or (counts and record.phase == "mutate")
        self.admits = counts and record.verdict == "allow" and record.phase != "mutate"
        self.keep = keep


WAITING_LIMIT = 20_000  # combinations that wait to be laid out

_decoder = msgspec.json.Decoder(Brief)
_UNCOUNTED = b',"warnings":'
"""Where the half of a record begins that is not counted. No text in JSON can look like it: its quotes are escaped."""
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _whole(line: bytes) -> Brief | None:
    """A record whose keys stand in another order than ours; None if it is none."""
    try:
        return _decoder.decode(line)
    except _UNREADABLE:
        return None


class Reader:
    """Counts records into a Tally. `add` runs once per record, so it only does what differs between records.

    What many records share is counted per combination, and laid out by `flush` before anybody reads the tally.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._combinations: dict[_Combination, _Group] = {}
        self._minutes: dict[str, list[int]] = {}
        self._latest: dict[str, bytes] = {}
        self._latest_refusals: dict[str, bytes] = {}
        self._refused_lines: deque[bytes] = deque(maxlen=RECENT_REFUSED)
        self._other_lines: deque[bytes] = deque(maxlen=RECENT_OTHERS)

    def add(self, lines: Sequence[bytes]) -> str:
        """Count lines of one stream; what is no record counts as unreadable. Returns the time of the last record."""
        tally, decode, combinations = self._tally, _decoder.decode, self._combinations
        latest, pods = self._latest, tally.pods
        minute: str | None = None
        counts, time, records = [0, 0], "", 0
        for line in lines:
            try:
                end = line.find(_UNCOUNTED)
                record = decode(line[:end] + b"}" if end > 0 and line.startswith(HASH_KEY, -TAIL_LENGTH) else line)
            except _UNREADABLE:
                if (whole := _whole(line)) is None:
                    continue
                record = whole
            records += 1
            time, name = record.time, record.object
            if time[:16] != minute:
                if records == 1 and (time < tally.first_time or not tally.first_time):
                    tally.first_time = time
                minute = time[:16]
                counts = self._minutes.setdefault(minute, [0, 0])
            namespace = name.namespace
            rule, would, dry_run = record.policy.rule, record.would, record.dry_run
            key = (namespace, rule, record.phase, record.verdict, would, dry_run, record.findings)
            group = combinations.get(key)
            if group is None:
                group = combinations[key] = self._group(record)
            group.count += 1
            group.keep(line)
            if group.concerns_workload:
                about = f"{namespace}/{name.kind}/{name.name or name.generate_name or ''}"
                latest.pop(about, None)  # so that it goes to the end
                latest[about] = line
                if group.denies:
                    counts[1] += 1
                    self._count_refusal(record, about, line)
            elif group.admits:
                counts[0] += 1
                if name.kind == "Pod" and name.name:
                    pod = f"{namespace}/{name.name}"
                    pods.pop(pod, None)
                    pods[pod] = None
        tally.records += records
        tally.unreadable += len(lines) - records
        tally.last_time = max(tally.last_time, time)
        _forget_first(pods, POD_LIMIT)
        _forget_first(latest, WORKLOAD_LIMIT)
        if len(combinations) > WAITING_LIMIT:
            self.flush()
        return time

    def _group(self, record: Brief) -> _Group:
        codes = {finding.code for finding in record.findings}
        is_exceptional = "deny" in (record.verdict, record.would) or not _EXCEPTIONS.isdisjoint(codes)
        return _Group(record, (self._refused_lines if is_exceptional else self._other_lines).append)

    def _count_refusal(self, record: Brief, about: str, line: bytes) -> None:
        tally, owner = self._tally, record.object.owner
        _bump(tally.refused_users, record.user.name, OTHER, 1, NAME_LIMIT)
        if owner is not None:  # pods of one controller are one workload, whatever their names
            about = f"{record.object.namespace}/{owner.kind}/{owner.name}"
        refused = tally.refused_workloads.get(about)
        if refused is None:
            about = tally.refused_as(about)
            refused = tally.refused_workloads.setdefault(about, Refused())
        refused.count += 1
        self._latest_refusals[about] = line

    def flush(self) -> None:
        """Lay out what waits."""
        for combination, group in self._combinations.items():
            self._lay_out(combination, group.count)
        for text, (admitted, denied) in self._minutes.items():
            if admitted or denied:
                self._tally.count_minute(_minute(text), admitted, denied)
        self._tally.forget_minutes()
        _keep_last(self._tally.refused_lines, filter(_is_json, self._refused_lines), RECENT_REFUSED)
        _keep_last(self._tally.other_lines, filter(_is_json, self._other_lines), RECENT_OTHERS)
        self._combinations.clear()
        self._refused_lines.clear()
        self._other_lines.clear()
        self._minutes.clear()
        workloads = self._tally.workloads
        for about, line in self._latest.items():
            workloads.pop(about, None)
            if (last := _last_of(line)) is not None:
                workloads[about] = last
        for about, line in self._latest_refusals.items():
            self._tally.refused_workloads[about].last = _last_of(line)
        self._latest.clear()
        self._latest_refusals.clear()
        _forget_first(workloads, WORKLOAD_LIMIT)

    def _lay_out(self, combination: _Combination, count: int) -> None:
        tally = self._tally
        namespace, rule, phase, verdict, would, dry_run, findings = combination
        if dry_run:
            tally.dry_run += count
            return
        namespace = tally.shown(namespace or "")
        tally.denied += count * (verdict == "deny")
        tally.patched += count * (verdict == "patch")
        tally.admitted += count * (verdict == "allow" and phase == "validate")
        tally.would_deny += count * (would == "deny")
        tally.count(namespace, rule or "", phase, verdict, count)
        for finding in findings:
            tally.count_code(namespace, finding.code, count)


_explain = msgspec.json.Decoder(_Explained).decode


def _is_json(line: bytes) -> bool:
    """Whether a line reads as JSON to its end: what is not counted of a record was only skipped, and may be damaged."""
    try:
        msgspec.json.decode(line)
    except _UNREADABLE:
        return False
    return True


def _last_of(line: bytes) -> Last | None:
    """What is kept of a record, the reason only of a refusal; None if it is damaged."""
    try:
        record = _explain(line)
    except _UNREADABLE:
        return None
    finding = _reason(record.findings) if record.verdict == "deny" else _NO_FINDING
    message = finding.message.split("\n", 1)[0][:300]
    return Last(record.id, record.time, record.verdict, record.policy.rule or "", finding.code, message)


def _minute(text: str) -> int:
    """Minute since the epoch of "2026-12-01T08:15"; 0 for a time that is none."""
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) // 60
    except ValueError:
        return 0


def _bump(table: dict[str, int], key: str, other: str, count: int, limit: int = KEY_LIMIT) -> None:
    if key not in table and len(table) >= limit:
        key = other
    table[key] = table.get(key, 0) + count


def _keep_last(kept: list[msgspec.Raw], new: Iterable[bytes], limit: int) -> None:
    kept.extend(map(msgspec.Raw, new))
    del kept[:-limit]


def _touch(table: dict[str, Any], later: Mapping[str, Any], limit: int) -> None:
    """What was touched later goes to the end."""
    for key, value in later.items():
        table.pop(key, None)
        table[key] = value
    _forget_first(table, limit)


def _forget_first(table: dict[str, Any], limit: int) -> None:
    """What was touched least recently goes, many at once: taking the first of a dict one by one is slow."""
    if len(table) > limit + limit // 4:
        for old in list(islice(table, len(table) - limit)):
            del table[old]


def _reason(findings: tuple[_Finding, ...]) -> _Finding:
    """The finding that explains a refusal."""
    for code in _REFUSING:
        for finding in findings:
            if finding.code == code:
                return finding
    return findings[0] if findings else _NO_FINDING
