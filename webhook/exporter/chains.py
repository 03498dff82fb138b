"""Audit chains verified as their records come: one small state per stream, kept on disk between runs."""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from webhook.audit import checkpoint as checkpoints
from webhook.audit import verify
from webhook.audit.read import Line
from webhook.audit.segments import TAIL_LENGTH, ZEROS, tail

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
    """What is kept of one stream. `head` is the hash of record `seq`; times are RFC 3339."""

    seq: int = 0
    head: str = ZEROS
    records: int = 0
    lost: int = 0
    missing: int = 0
    closed: bool = False
    last_time: str = ""
    problem: str = ""
    gap: str = ""
    waiting: dict[int, str] = {}
    """seq -> hash of checkpoints that name a record which has not come yet."""


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

    def __init__(self, states: ChainStates) -> None:
        self._states = states.streams

    def records(self, stream: str, lines: Sequence[Line]) -> None:
        """Verify records of one stream, each against its own bytes and against the one before it."""
        state = self._states.get(stream) or self._open(stream, lines[0])
        state.records += len(lines)
        state.lost += sum([line.lost for line in lines])
        start = 0
        while start < len(lines) and not state.problem:
            start += self._follow(state, lines[start:] if start else lines)
            if start < len(lines) and not state.problem:
                self._judge(stream, state, lines[start])
                start += 1

    @staticmethod
    def _follow(state: ChainState, lines: Sequence[Line]) -> int:
        """How many of the records simply follow, each the one before it."""
        sha256, cut, head, good = hashlib.sha256, -TAIL_LENGTH, state.head, 0
        for line in lines:
            raw = line.raw
            digest = sha256(raw[:cut] + b"}").hexdigest()  # the bytes that a hash covers (DESIGN 5.5)
            if not raw.endswith(f',"prev":"{head}","hash":"{digest}"}}'.encode()):
                break
            head = digest
            good += 1
            if state.waiting and state.waiting.pop(line.seq, digest) != digest:
                state.problem = f"record {line.seq} is not the one that was signed: it, or one before it, was rewritten"
        if good:
            state.seq, state.head = lines[good - 1].seq, head
        return good

    @staticmethod
    def _judge(stream: str, state: ChainState, line: Line) -> None:
        """A record that does not simply follow: a gap, or the problem of this stream."""
        chain = verify.Chain(stream, copy=True, seq=state.seq, head=state.head)
        problem = chain.feed(line.raw, line.source, line.number)
        if problem is not None:
            state.problem = problem.text
        for gap in chain.gaps:
            state.gap = gap.text
        state.seq, state.head = chain.seq, chain.head

    def checkpoint(self, line: Line) -> None:
        """A statement of how far a stream had come. The exporter holds no key: it compares seq and hash."""
        signed, state = checkpoints.decode(line.raw), self._states.get(line.stream)
        if signed is None or state is None:
            return
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

    def _open(self, stream: str, line: Line) -> ChainState:
        """A stream that is new here: from its start or, if that is not to be had, from this record on."""
        state = self._states[stream] = ChainState()
        if line.seq != 1 + line.lost:
            state.seq, state.head = line.seq - 1 - line.lost, (tail(line.raw) or (ZEROS, ""))[0]
        if len(self._states) > STREAM_LIMIT:
            silent = sorted(self._states, key=lambda name: self._states[name].last_time or "~")
            for name in silent[: len(silent) - STREAM_LIMIT]:
                del self._states[name]
        return state


def _row(name: str, chain: ChainState, silent_before: str) -> dict[str, Any]:
    state: State = "open"
    if chain.problem:
        state = "bad"
    elif chain.missing:
        state = "gap"
    elif chain.closed:
        state = "intact"
    elif chain.last_time < silent_before:
        state = "unclosed"
    return {
        "stream": name,
        "state": state,
        "records": chain.records,
        "lastSeq": chain.seq,
        "head": chain.head,
        "lost": chain.lost,
        "missing": chain.missing,
        "lastTime": chain.last_time,
        "problem": chain.problem or chain.gap,
    }
