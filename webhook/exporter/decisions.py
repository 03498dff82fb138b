"""Bounded aggregates over audit records: one pass, one line at a time, never more memory than the limits below."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

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


class _Finding(_Part, frozen=True):
    code: str = ""
    message: str = ""


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
    revision: str = ""
    rule: str | None = None


class Brief(_Part, frozen=True):
    """An audit record as far as it is counted (DESIGN 5.5)."""

    time: str
    phase: str
    verdict: str
    object: _Name
    id: str = ""
    stream: str = ""
    seq: int = 0
    dry_run: bool = False
    user: _User = _User()
    policy: _Policy = _Policy()
    would: str | None = None
    findings: tuple[_Finding, ...] = ()
    gpu: dict[str, str] = {}


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
    last_revision: str = ""
    namespaces: dict[str, None] = {}
    counts: dict[str, int] = {}
    codes: dict[str, int] = {}
    minutes: dict[int, list[int]] = {}
    """Minute since the epoch -> [admitted, denied]."""
    workloads: dict[str, Last] = {}
    pods: dict[str, None] = {}
    """`namespace/name` of pods for which a record exists, the longest unseen first."""
    refused_users: dict[str, int] = {}
    refused_workloads: dict[str, Refused] = {}
    refused_lines: list[msgspec.Raw] = []
    other_lines: list[msgspec.Raw] = []

    def add(self, line: bytes) -> Brief | None:
        """Count one line of a stream; None for a line that is no record."""
        try:
            record = _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.unreadable += 1
            return None
        self.records += 1
        time, findings = record.time, record.findings
        self.last_revision = record.policy.revision
        if time > self.last_time:
            self.last_time = time
        if time < self.first_time or not self.first_time:
            self.first_time = time
        denied = record.verdict == "deny"
        refused = denied or record.would == "deny"
        codes = [finding.code for finding in findings] if findings else ()
        self._remember(line, refused or (bool(codes) and not _EXCEPTIONS.isdisjoint(codes)))
        if record.dry_run:
            self.dry_run += 1
            return record
        self._count(record, denied, codes)
        if denied or record.phase == "mutate":
            self._join(record, denied)
        elif record.object.kind == "Pod" and record.object.name:
            _touch(self.pods, f"{record.object.namespace}/{record.object.name}", None, POD_LIMIT)
        return record

    def _count(self, record: Brief, denied: bool, codes: Iterable[str]) -> None:
        namespace, verdict, phase = record.object.namespace or "", record.verdict, record.phase
        if namespace not in self.namespaces:
            namespace = self._new_namespace(namespace)
        if denied:
            self.denied += 1
            self._count_minute(record.time, 1)
        elif verdict == "patch":
            self.patched += 1
        elif phase == "validate":
            self.admitted += 1
            self._count_minute(record.time, 0)
        if record.would == "deny":
            self.would_deny += 1
        key = f"{namespace}\t{record.policy.rule or ''}\t{phase}\t{verdict}"
        counts = self.counts
        if key in counts:
            counts[key] += 1
        else:
            _bump(counts, key, f"{OTHER}\t{OTHER}\t{phase}\t{verdict}")
        for code in codes:
            _bump(self.codes, f"{namespace}\t{code}", f"{OTHER}\t{OTHER}")

    def _new_namespace(self, namespace: str) -> str:
        if len(self.namespaces) >= NAMESPACE_LIMIT:
            return OTHER
        self.namespaces[namespace] = None
        return namespace

    def _count_minute(self, time: str, which: int) -> None:
        minute = _minute(time[:16])
        counts = self.minutes.get(minute)
        if counts is None:
            counts = self.minutes[minute] = [0, 0]
            if len(self.minutes) > 2 * MINUTES:
                for old in sorted(self.minutes)[:-MINUTES]:
                    del self.minutes[old]
        counts[which] += 1

    def _join(self, record: Brief, denied: bool) -> None:
        """Remember the decision about the object, for the events that name it and for the list of refusals."""
        name = record.object
        finding = _reason(record.findings) if denied else _NO_FINDING
        message = finding.message.split("\n", 1)[0][:300]
        last = Last(record.id, record.time, record.verdict, record.policy.rule or "", finding.code, message)
        key = f"{name.namespace}/{name.kind}/{name.name or name.generate_name or ''}"
        _touch(self.workloads, key, last, WORKLOAD_LIMIT)
        if denied:
            self._count_refusal(record, last)

    def _count_refusal(self, record: Brief, last: Last) -> None:
        name = record.object
        _bump(self.refused_users, record.user.name, OTHER, NAME_LIMIT)
        kind, label = name.kind, name.name or name.generate_name or ""
        if name.owner is not None:  # pods of one controller are one workload, whatever their names
            kind, label = name.owner.kind, name.owner.name
        key = f"{name.namespace}/{kind}/{label}"
        if key not in self.refused_workloads and len(self.refused_workloads) >= NAME_LIMIT:
            key = f"{OTHER}/{OTHER}/{OTHER}"
        refused = self.refused_workloads.setdefault(key, Refused())
        refused.count += 1
        refused.last = last

    def _remember(self, line: bytes, important: bool) -> None:
        lines, limit = (self.refused_lines, RECENT_REFUSED) if important else (self.other_lines, RECENT_OTHERS)
        lines.append(msgspec.Raw(line))
        if len(lines) > 2 * limit:
            del lines[:-limit]

    # -- questions --------------------------------------------------------------------------------------------------

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
        for line in (*self.refused_lines[-RECENT_REFUSED:], *self.other_lines[-RECENT_OTHERS:]):
            record = msgspec.json.decode(line)
            if len(memoryview(line)) > RECENT_BYTES:
                record["input"] = record["facts"] = None
                record["shortened"] = True
            records.append(record)
        return sorted(records, key=lambda record: (record["time"], record.get("seq", 0)), reverse=True)

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


_decoder = msgspec.json.Decoder(Brief)
_NO_FINDING = _Finding()
_minute_cache: dict[str, int] = {}


def _minute(text: str) -> int:
    """Minute since the epoch of "2026-12-01T08:15"; 0 for a time that is none."""
    minute = _minute_cache.get(text)
    if minute is None:
        if len(_minute_cache) > 4 * MINUTES:
            _minute_cache.clear()
        try:
            minute = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) // 60
        except ValueError:
            minute = 0
        _minute_cache[text] = minute
    return minute


def _bump(table: dict[str, int], key: str, other: str, limit: int = KEY_LIMIT) -> None:
    if key not in table and len(table) >= limit:
        key = other
    table[key] = table.get(key, 0) + 1


def _touch(table: dict[str, Any], key: str, value: Any, limit: int) -> None:
    """Put at the end; when there are too many, those that were touched least recently go, many at once."""
    table.pop(key, None)
    table[key] = value
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
