"""Audit chains verified as their records come: one small state per stream, kept on disk between runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from webhook.audit import checkpoint as checkpoints
from webhook.audit import verify
from webhook.audit.checkpoint import Checkpoint, KeyFileError
from webhook.audit.read import Line, Run
from webhook.audit.segments import ZEROS, digest_of, tail

State = Literal["open", "intact", "unclosed", "gap", "bad"]

STREAM_LIMIT = 1_000
"""Streams that are remembered; a stream begins at every start of a webhook process."""
LISTED = 200
"""Streams in the published status: those that need a person first, then the latest."""
UNCLOSED_SECONDS = 900.0
"""A stream without a closing checkpoint that has been silent so long belongs to a process that is gone."""

WAITING_LIMIT = 64
"""Checkpoints of a stream that may wait for their record."""

_URGENT: dict[State, int] = {"bad": 0, "gap": 1}


class ChainState(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is kept of one stream. `head` is the hash of record `seq`; times are RFC 3339.

    `signatures`: how many checkpoints were found to be signed by a key that is known.
    """

    seq: int = 0
    head: str = ZEROS
    records: int = 0
    lost: int = 0
    missing: int = 0
    closed: bool = False
    signatures: int = 0
    last_time: str = ""
    problem: str = ""
    gap: str = ""
    waiting: dict[int, str] = {}
    """seq -> hash of checkpoints that name a record which has not come yet."""

    @property
    def behind(self) -> int:
        """How many records were signed for that have not come."""
        return max(0, max(self.waiting, default=0) - self.seq)


class ChainStates(msgspec.Struct):
    """Stream -> its state."""

    streams: dict[str, ChainState] = {}

    def document(self, silent_before: str) -> list[dict[str, Any]]:
        """One row per stream. `silent_before`: RFC 3339, see UNCLOSED_SECONDS."""
        rows = [_row(name, chain, silent_before) for name, chain in self.streams.items()]
        rows.sort(key=lambda row: row["lastTime"], reverse=True)
        return sorted(rows, key=lambda row: _URGENT.get(row["state"], 2))[:LISTED]

    def totals(self, silent_before: str) -> dict[str, Any]:
        """Sums over all streams, for metrics: how many in each state, and records read, lost and missing."""
        rows = [_row(name, chain, silent_before) for name, chain in self.streams.items()]
        states = {
            state: sum(row["state"] == state for row in rows) for state in ("open", "intact", "unclosed", "gap", "bad")
        }
        return {"states": states} | {key: sum(row[key] for row in rows) for key in ("records", "lost", "missing")}


class Verifier:
    """Verifies lines as they come, from where the last process stopped.

    A record that simply follows costs one hash and one comparison here; anything else is put to
    `webhook.audit.verify`, which knows what is wrong with it and how to say so.
    """

    def __init__(self, states: ChainStates, keys: Sequence[Ed25519PublicKey] = ()) -> None:
        """`keys`: whose checkpoints count; without any, those that lie beside a file vouch for it."""
        self._states = states.streams
        self._signers = Signers(keys)

    def records(self, run: Run) -> None:
        """Verify records of one stream, each against its own bytes and against the one before it."""
        state = self._states.get(run.stream) or self._open(run)
        count = len(run.lines)
        state.records += count
        state.lost += run.lost
        done = 0
        while done < count and not state.problem:
            done += self._follow(state, run, done)
            if done < count and not state.problem:
                self._judge(state, run.line(done))
                done += 1

    @staticmethod
    def _follow(state: ChainState, run: Run, start: int) -> int:
        """How many of the records from index `start` on simply follow, each the one before it."""
        head, good = state.head, 0
        for line in run.lines[start:] if start else run.lines:
            digest = digest_of(line)
            if not line.endswith(f',"prev":"{head}","hash":"{digest}"}}'.encode()):
                break
            head = digest
            good += 1
            if state.waiting:
                seq = run.seq + start + good - 1
                if state.waiting.pop(seq, digest) != digest:
                    state.problem = f"record {seq} is not the one that was signed: it, or one before it, was rewritten"
        if good:
            state.seq, state.head = run.seq + start + good - 1, head
        return good

    @staticmethod
    def _judge(state: ChainState, line: Line) -> None:
        """A record that does not simply follow: a gap, or the problem of this stream."""
        chain = verify.Chain(line.stream, copy=True, seq=state.seq, head=state.head)
        problem = chain.feed(line.raw, line.source, line.number)
        if problem is not None:
            state.problem = problem.text
        for gap in chain.gaps:
            state.gap = gap.text
        state.seq, state.head = chain.seq, chain.head

    def checkpoint(self, line: Line) -> None:
        """A statement of how far a stream had come; one that nobody known signed says only that it was forged."""
        signed, state = checkpoints.decode(line.raw), self._states.get(line.stream)
        if signed is None or state is None:
            return
        genuine = self._signers.signed(signed, line.source)
        if genuine is False:
            text = f"the {signed.kind} checkpoint of record {signed.seq} was not signed by a known key"
            state.problem = state.problem or text
            return
        state.signatures += genuine is True
        state.closed = state.closed or signed.kind == "closing"
        if signed.seq == state.seq and signed.hash != state.head:
            state.problem = state.problem or f"record {signed.seq} is not the one that was signed"
        elif signed.seq > state.seq:
            state.waiting[signed.seq] = signed.hash
            while len(state.waiting) > WAITING_LIMIT:
                del state.waiting[next(iter(state.waiting))]

    def seen(self, stream: str, time: str) -> None:
        """`time`: when the last record of the stream was written, RFC 3339."""
        state = self._states.get(stream)
        if state is not None:
            state.last_time = max(state.last_time, time)

    def missing(self, stream: str, count: int) -> None:
        """Records between two that came are missing."""
        state = self._states.get(stream)
        if state is not None:
            state.missing += count

    def extend(self, stream: str, after: tuple[int, str], chain: ChainState) -> bool:
        """Take in records that were verified elsewhere, as those that follow `after`; False if they do not."""
        state = self._states.get(stream)
        if state is None:
            self._keep(stream, chain)
            return True
        if (state.seq, state.head) != after or state.problem or state.waiting:
            return False
        state.seq, state.head, state.last_time = chain.seq, chain.head, max(state.last_time, chain.last_time)
        state.records += chain.records
        state.lost += chain.lost
        return True

    @staticmethod
    def opened(run: Run) -> tuple[int, str]:
        """Seq and hash of the record that a run follows, as far as the run itself tells."""
        before = run.seq - 1 - run.lost
        return (before, (tail(run.lines[0]) or (ZEROS, ""))[0]) if before else (0, ZEROS)

    def _open(self, run: Run) -> ChainState:
        """A stream that is new here: from its start or, if that is not to be had, from this record on."""
        state = ChainState()
        state.seq, state.head = self.opened(run)
        self._keep(run.stream, state)
        return state

    def _keep(self, stream: str, state: ChainState) -> None:
        self._states[stream] = state
        if len(self._states) > STREAM_LIMIT:
            silent = sorted(self._states, key=lambda name: self._states[name].last_time or "~")
            for name in silent[: len(silent) - STREAM_LIMIT]:
                del self._states[name]


class Signers:
    """The public keys that checkpoints are held to: those that were given, else those beside the file they stand in.

    Whoever may write a folder may replace the keys in it; pod logs have none beside them.
    """

    def __init__(self, given: Sequence[Ed25519PublicKey]) -> None:
        self._given = given
        self._beside: dict[Path, Sequence[Ed25519PublicKey]] = {}

    def signed(self, checkpoint: Checkpoint, source: str) -> bool | None:
        """Whether one of the keys made the signature; None where there is no key to tell by."""
        if self._given:
            return checkpoint.is_signed_by(self._given)
        file = Path(source)
        if not file.is_file():  # stdin or a pod
            return None
        if checkpoint.is_signed_by(self._beside.get(file.parent, ())):
            return True
        try:
            keys = self._beside[file.parent] = verify.keys_beside(file)  # a new process may have brought a new key
        except (KeyFileError, OSError):
            keys = []
        return checkpoint.is_signed_by(keys) if keys else None


def _row(name: str, chain: ChainState, silent_before: str) -> dict[str, Any]:
    state: State = "open"
    silent = chain.last_time < silent_before
    missing = chain.missing + (chain.behind if silent else 0)
    gap = chain.gap or f"the end is missing: record {chain.seq + chain.behind} was signed, the last here is {chain.seq}"
    if chain.problem:
        state = "bad"
    elif missing:
        state = "gap"
    elif chain.closed and not chain.behind:
        state = "intact"
    elif silent:
        state = "unclosed"
    return {
        "stream": name,
        "state": state,
        "records": chain.records,
        "lastSeq": chain.seq,
        "head": chain.head,
        "lost": chain.lost,
        "missing": missing,
        "signatures": chain.signatures,
        "lastTime": chain.last_time,
        "problem": chain.problem or (gap if missing else chain.gap),
    }
