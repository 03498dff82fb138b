"""Recorded traffic judged again from the facts in its records: what another policy would have answered (issue B59).

Replaying a record with the policy that was in force must give the recorded answer; one that does not is a mismatch and
listed as such. With another policy only records of the mutate phase count as flips: in the validate phase the object
already carries what the old policy put there.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import Any, cast

import msgspec

from webhook.audit.record import Record, RecordError, decode, request_from
from webhook.decision.answers import Recorded, UndecidableError
from webhook.decision.engine import decide
from webhook.decision.facts import Facts
from webhook.decision.request import Request
from webhook.decision.result import Decision, PatchOperation
from webhook.k8s import workloads
from webhook.policy.active import Policy

BATCH = 1000
"""Records per piece of work: a second's work at most, so that the progress bar moves."""
MAX_LISTED = 500
"""Mismatches, undecidable records and the like that are listed one by one; all of them are counted."""
TEAM_LABEL = "gpu.platform/team"
UNJUDGED = frozenset({"OverBudget", "InternalError"})
"""Codes of answers that were no judgement: they cannot be reproduced and are not held against anybody."""
RESTARTING = frozenset({"Deployment", "StatefulSet", "DaemonSet"})
"""Kinds that replace their running pods when their template changes."""

Flips = Counter[str]
"""Direction, say `patch -> deny`, and how often."""


class Named(msgspec.Struct, frozen=True, rename="camel"):
    """A record worth naming, with what is to be said about it."""

    id: str
    stream: str
    seq: int
    time: str
    namespace: str
    workload: str
    user: str
    text: str


class Refusal(msgspec.Struct, rename="camel"):
    """Requests of one workload that were admitted and would now be refused in the same words (or the reverse)."""

    namespace: str
    workload: str
    user: str
    message: str
    count: int = 0
    last: str = ""


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """A workload whose template the new policy would write differently, as of its last record.

    `restarts` says that its running pods are replaced once that happens, which is at the next change of its template.
    """

    namespace: str
    workload: str
    rule: str
    restarts: bool
    time: str


class Replay(msgspec.Struct, rename="camel"):
    """What a replay found; two of them add up to that of both inputs."""

    records: int = 0
    judged: int = 0
    same: int = 0
    flips: Flips = msgspec.field(default_factory=Counter)
    by_namespace: dict[str, Flips] = msgspec.field(default_factory=dict)
    by_team: dict[str, Flips] = msgspec.field(default_factory=dict)
    by_user: dict[str, Flips] = msgspec.field(default_factory=dict)
    by_workload: dict[str, Flips] = msgspec.field(default_factory=dict)
    newly_refused: dict[str, Refusal] = msgspec.field(default_factory=dict)
    newly_admitted: dict[str, Refusal] = msgspec.field(default_factory=dict)
    changes: dict[str, Change | None] = msgspec.field(default_factory=dict)
    in_force: int = 0
    mismatch_count: int = 0
    mismatches: list[Named] = msgspec.field(default_factory=list)
    undecidable: Counter[str] = msgspec.field(default_factory=Counter)
    undecidable_records: list[Named] = msgspec.field(default_factory=list)
    skipped: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def is_bad_news(self) -> bool:
        """Whether somebody would newly be refused, or a recorded answer could not be reproduced."""
        return bool(self.newly_refused) or self.mismatch_count > 0

    def add(self, other: "Replay") -> None:
        """Take in what a later piece of the same records found."""
        self.records += other.records
        self.judged += other.judged
        self.same += other.same
        self.in_force += other.in_force
        self.mismatch_count += other.mismatch_count
        self.flips.update(other.flips)
        self.undecidable.update(other.undecidable)
        self.skipped.update(other.skipped)
        self.mismatches = (self.mismatches + other.mismatches)[:MAX_LISTED]
        self.undecidable_records = (self.undecidable_records + other.undecidable_records)[:MAX_LISTED]
        for mine, theirs in (
            (self.by_namespace, other.by_namespace),
            (self.by_team, other.by_team),
            (self.by_user, other.by_user),
            (self.by_workload, other.by_workload),
        ):
            for key, flips in theirs.items():
                mine.setdefault(key, Counter()).update(flips)
        for ours, others in ((self.newly_refused, other.newly_refused), (self.newly_admitted, other.newly_admitted)):
            for key, refusal in others.items():
                _count(ours, key, refusal, refusal.count)
        self.changes.update(other.changes)


def replay(
    lines: Iterable[bytes], policy: Policy, baseline: Policy | None = None, processes: int = 1
) -> Iterator[Replay]:
    """Judge recorded lines with `policy`; yields what each BATCH of them found, in order (see `Replay.add`).

    The other side of a flip is the recorded answer, or that of `baseline` where one is given.
    """
    if processes <= 1:
        replayer = Replayer(policy, baseline)
        for batch in _batches(lines):
            yield replayer.judge(batch)
        return
    documents = (policy.document, baseline.document if baseline else None)
    with ProcessPoolExecutor(processes, initializer=_start, initargs=documents) as pool:
        waiting: list[Future[Replay]] = []
        for batch in _batches(lines):
            waiting.append(pool.submit(_work, batch))
            if len(waiting) > 2 * processes:  # a bounded queue keeps memory flat
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    iterator = iter(lines)
    while batch := list(islice(iterator, BATCH)):
        yield batch


_replayer: "Replayer | None" = None


def _start(policy: Any, baseline: Any) -> None:
    global _replayer
    _replayer = Replayer(Policy(policy), Policy(baseline) if baseline else None)


def _work(lines: list[bytes]) -> Replay:
    assert _replayer is not None
    return _replayer.judge(lines)


# -- one record -------------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True):
    """An answer as far as two are compared. `patch` is JSON, as the wire had it; `b""` is none.

    `text` is the whole denial, `headline` what a list shows of it.
    """

    verdict: str
    would: str | None
    patch: bytes
    rule: str | None
    drifts: bool
    text: str
    headline: str

    @property
    def label(self) -> str:
        return self.verdict if self.would is None else f"{self.verdict} (would {self.would})"


_patch_decoder = msgspec.json.Decoder(tuple[Any, ...])
_facts_decoder = msgspec.json.Decoder(Recorded)


class Replayer:
    """Judges lines with one policy, and with a baseline if there is one."""

    def __init__(self, policy: Policy, baseline: Policy | None = None) -> None:
        self._policy = policy
        self._baseline = baseline

    def judge(self, lines: Sequence[bytes]) -> Replay:
        """What these lines, in their order, would have become."""
        found = Replay()
        for line in lines:
            if not line.startswith(b'{"schema"'):  # checkpoints and whatever else lies in the same files
                continue
            found.records += 1
            try:
                self._judge(decode(line), found)
            except RecordError:
                found.skipped["unreadable"] += 1
        return found

    def _judge(self, record: Record, found: Replay) -> None:
        codes = {finding.code for finding in record.findings}
        if codes & UNJUDGED:
            found.skipped["unjudged"] += 1
            return
        left_out = "dryRun" if record.dry_run else "validate" if record.phase == "validate" else ""
        if left_out and not self._in_force(record):
            found.skipped[left_out] += 1
            return
        request = request_from(record)
        try:
            facts = _facts_decoder.decode(record.facts)
        except msgspec.MsgspecError as error:
            raise RecordError(f"record {record.id}: facts: {error}") from error
        recorded = _recorded(record, codes)
        baseline = self._answer(record, request, facts, self._baseline, recorded, found)
        new = self._answer(record, request, facts, self._policy, recorded, found)
        if new is None or (self._baseline is not None and baseline is None):
            return
        found.judged += 1
        if not left_out:
            _compare(record, request, baseline or recorded, new, found)

    def _in_force(self, record: Record) -> bool:
        """Whether one of the policies at hand gave the recorded answer."""
        known = {self._policy.revision, self._baseline.revision if self._baseline else ""}
        return record.policy.revision in known

    def _answer(
        self,
        record: Record,
        request: Request,
        facts: Recorded,
        policy: Policy | None,
        recorded: Answer,
        found: Replay,
    ) -> Answer | None:
        """What a policy answers; if it was in force, whether that is what was recorded. None: nobody can know."""
        if policy is None:
            return None
        try:
            answer = _answer(decide(request, policy, cast(Facts, facts)))  # recorded answers do as well, see `ask`
        except UndecidableError as error:
            if policy is self._policy:
                found.undecidable[error.fact] += 1
                _list(found.undecidable_records, record, error.fact)
            return None
        if record.policy.revision == policy.revision:
            found.in_force += 1
            mismatch = _mismatch(recorded, answer)
            if mismatch:
                found.mismatch_count += 1
                _list(found.mismatches, record, mismatch)
        return answer


def _mismatch(recorded: Answer, answer: Answer) -> str:
    """How the answer of the policy in force differs from the recorded one; "" if it does not."""
    if answer.label != recorded.label:
        return f"recorded {recorded.label}, replayed {answer.label}"
    if answer.patch != recorded.patch:
        return f"{answer.label} with another patch"
    if recorded.text and answer.text != recorded.text:  # records of earlier versions hold no text
        return f"{answer.label} in other words"
    return ""


def _recorded(record: Record, codes: set[str]) -> Answer:
    drifts, text = "PolicyDrift" in codes, record.message
    headline = text.partition("\n")[0] or (record.findings[-1].message if record.findings else "")
    return Answer(record.verdict, record.would, _plain(record.patch), record.policy.rule, drifts, text, headline)


def _answer(decision: Decision) -> Answer:
    drifts = any(finding.code == "PolicyDrift" for finding in decision.findings)
    text = decision.message
    return Answer(
        decision.verdict,
        decision.would,
        _plain(decision.patch),
        decision.rule,
        drifts,
        text,
        text.partition("\n")[0],
    )


def _plain(patch: tuple[PatchOperation, ...]) -> bytes:
    return msgspec.json.encode(patch) if patch else b""


# -- two answers ------------------------------------------------------------------------------------------------------


def _compare(record: Record, request: Request, old: Answer, new: Answer, found: Replay) -> None:
    workload = workload_of(record)
    namespace = record.object.namespace or ""
    _template(record, request, old, new, f"{namespace}/{workload}", found)
    if old.label == new.label and old.patch == new.patch:
        found.same += 1
        return
    direction = f"{old.label} -> {new.label if new.label != old.label else 'another patch'}"
    found.flips[direction] += 1
    for flips, key in (
        (found.by_namespace, namespace),
        (found.by_team, _team(record)),
        (found.by_user, record.user.name),
        (found.by_workload, f"{namespace}/{workload}"),
    ):
        flips.setdefault(key, Counter())[direction] += 1
    if new.verdict == "deny" and old.verdict != "deny":
        refusal = Refusal(namespace, workload, record.user.name, new.headline, 0, record.time)
        _count(found.newly_refused, _key(refusal), refusal, 1)
    elif old.verdict == "deny" and new.verdict != "deny":
        refusal = Refusal(namespace, workload, record.user.name, old.headline, 0, record.time)
        _count(found.newly_admitted, _key(refusal), refusal, 1)


def _template(record: Record, request: Request, old: Answer, new: Answer, key: str, found: Replay) -> None:
    """Note whether the workload's template would be written differently; a later record of it has the last word."""
    row = workloads.by_kind(request.kind, request.group)
    if row is None or not row.template or request.sub_resource or new.verdict == "deny":
        return
    rewritten = old.patch != new.patch and _in_template(old, row.template) != _in_template(new, row.template)
    if rewritten or (new.drifts and not old.drifts):
        found.changes[key] = Change(
            record.object.namespace or "", workload_of(record), new.rule or "", row.kind in RESTARTING, record.time
        )
    else:
        found.changes[key] = None


def _in_template(answer: Answer, template: str) -> list[Any]:
    operations = _patch_decoder.decode(answer.patch or b"[]")
    return [operation for operation in operations if operation["path"].startswith(f"{template}/")]


def workload_of(record: Record) -> str:
    """The workload that people know: the controller owner if the object has one, else the object itself."""
    owner = record.object.owner
    if owner is not None:
        return f"{owner.kind} {owner.name}"
    return f"{record.object.kind} {record.object.label}"


class _Labels(msgspec.Struct):
    labels: dict[str, str] | None = msgspec.field(name="namespaceLabels", default=None)


_labels_decoder = msgspec.json.Decoder(_Labels)


def _team(record: Record) -> str:
    return (_labels_decoder.decode(record.facts).labels or {}).get(TEAM_LABEL, "")


def _key(refusal: Refusal) -> str:
    return f"{refusal.namespace}/{refusal.workload}/{refusal.user}/{refusal.message}"


def _count(refusals: dict[str, Refusal], key: str, refusal: Refusal, count: int) -> None:
    known = refusals.setdefault(key, msgspec.structs.replace(refusal, count=0))
    known.count += count
    known.last = max(known.last, refusal.last)


def _list(listed: list[Named], record: Record, text: str) -> None:
    if len(listed) < MAX_LISTED:
        namespace = record.object.namespace or ""
        place = (record.id, record.stream, record.seq, record.time)
        listed.append(Named(*place, namespace, workload_of(record), record.user.name, text))
