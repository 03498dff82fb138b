"""Audit chains verified as their records come: one small state per stream, kept on disk between runs."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from webhook.audit import verify
from webhook.audit.read import Line
from webhook.audit.segments import ZEROS, tail

State = Literal["open", "intact", "unclosed", "gap", "bad"]

STREAM_LIMIT = 1_000
"""Streams that are remembered; a stream begins at every start of a webhook process."""
LISTED = 200
"""Streams in the published status: those that need a person first, then the latest."""
UNCLOSED_SECONDS = 900.0
"""A stream without a closing checkpoint that has been silent so long belongs to a process that is gone."""

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
    """Feeds lines to the chains of `webhook.audit.verify`, which go on where the last process stopped."""

    def __init__(self, states: ChainStates) -> None:
        self._states = states.streams
        self._chains: dict[str, verify.Chain] = {}

    def records(self, stream: str, lines: Iterable[Line]) -> None:
        """Verify records of one stream, each against its own bytes and against the one before it."""
        chain = self._chains.get(stream)
        count = lost = 0
        for line in lines:
            if chain is None:
                chain = self._open(stream, line)
            count += 1
            lost += line.lost
            chain.feed(line.raw, line.source, line.number)
        if chain is not None:
            state = self._take(stream, chain)
            state.records += count
            state.lost += lost

    def checkpoint(self, line: Line) -> None:
        """A statement of how far a stream had come. The exporter holds no key: it compares seq and hash."""
        chain = self._chains.get(line.stream)
        if chain is None and line.stream in self._states:
            chain = self._open(line.stream, line)
        if chain is not None:
            chain.feed_checkpoint_line(line.raw, line.source, line.number)
            self._take(line.stream, chain).closed |= b'"kind":"closing"' in line.raw

    def seen(self, stream: str, time: str) -> None:
        """`time`: when the last record of the stream was written, RFC 3339."""
        state = self._states.get(stream)
        if state is not None:
            state.last_time = max(state.last_time, time)

    def _open(self, stream: str, line: Line) -> verify.Chain:
        """Where the last process stopped; at the start of the stream; or, if that is not to be had, right here."""
        state = self._states.get(stream)
        if state is None:
            state = self._states[stream] = ChainState()
            if line.seq != 1 + line.lost:
                state.seq, state.head = line.seq - 1 - line.lost, (tail(line.raw) or (ZEROS, ""))[0]
            self._forget()
        chain = self._chains[stream] = verify.Chain(stream, copy=True, seq=state.seq, head=state.head)
        return chain

    def _take(self, stream: str, chain: verify.Chain) -> ChainState:
        """Write down how the chain stands."""
        state = self._states[stream]
        state.seq, state.head = chain.seq, chain.head
        if chain.problem is not None and not state.problem:
            state.problem = chain.problem.text
        for gap in chain.gaps:
            state.gap = gap.text
        chain.gaps.clear()
        return state

    def missing(self, stream: str, count: int) -> None:
        """Records between two that came are missing."""
        state = self._states.get(stream)
        if state is not None:
            state.missing += count

    def _forget(self) -> None:
        for name in sorted(self._states, key=lambda name: self._states[name].last_time or "~")[:-STREAM_LIMIT]:
            del self._states[name]
            self._chains.pop(name, None)


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
