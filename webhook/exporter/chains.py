"""Audit chains verified as their records come: one small state per stream, kept on disk between runs."""

import hashlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from webhook.audit import checkpoint
from webhook.audit.read import Line, Notice
from webhook.audit.segments import TAIL_LENGTH, ZEROS, tail

State = Literal["open", "intact", "unclosed", "gap", "bad"]

STREAM_LIMIT = 1_000
"""Streams that are remembered; a stream begins at every start of a webhook process."""
UNCLOSED_SECONDS = 900.0
"""A stream without a closing checkpoint that has been silent so long belongs to a process that is gone."""
CHECKPOINT_LIMIT = 64
"""Checkpoints of a stream that wait for the record that they name."""

_RANK: dict[State, int] = {"bad": 0, "gap": 1, "unclosed": 2, "open": 3, "intact": 4}


class Chain(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is known of one stream. `head` is the hash of its last record; times are RFC 3339."""

    records: int = 0
    last_seq: int = 0
    head: str = ""
    last_time: str = ""
    lost: int = 0
    missing: int = 0
    closed: bool = False
    problem: str = ""
    gap: str = ""
    waiting: dict[int, str] = {}
    """seq -> hash of checkpoints that named a record before it came."""


class Chains(msgspec.Struct):
    """All streams, the longest silent first."""

    streams: dict[str, Chain] = {}

    def records(self, stream: str, lines: Iterable[Line]) -> None:
        """Verify records of one stream, each against its own bytes and against the one before it."""
        sha256, cut = hashlib.sha256, -TAIL_LENGTH
        chain = self.streams.get(stream)
        for line in lines:
            if chain is None:
                chain = self._open(line)
            raw = line.raw
            digest = sha256(raw[:cut] + b"}").hexdigest()  # the bytes that a hash covers (DESIGN 5.5)
            if not raw.endswith(f',"prev":"{chain.head}","hash":"{digest}"}}'.encode()):
                self._judge(chain, line, digest)
                digest = (tail(raw) or ("", ""))[1]
            chain.records += 1
            chain.last_seq, chain.head = line.seq, digest
            chain.lost += line.lost
            if chain.waiting:
                self._compare(chain, line.seq, chain.waiting.pop(line.seq, None))

    @staticmethod
    def _judge(chain: Chain, line: Line, digest: str) -> None:
        """What is wrong with a record that is not simply the next: the first problem of a stream is kept."""
        ends = tail(line.raw)
        follows = line.seq == chain.last_seq + 1 + line.lost and chain.head
        if chain.problem:
            return
        if ends is None:
            chain.problem = f"record {line.seq} does not end with prev and hash"
        elif digest != ends[1]:
            chain.problem = f"record {line.seq} was changed: its bytes do not give its hash"
        elif follows and ends[0] != chain.head:
            chain.problem = f"record {line.seq} does not follow record {chain.last_seq}: its prev is another hash"

    def seen(self, stream: str, time: str) -> None:
        """`time`: when the last record of the stream was written, RFC 3339."""
        chain = self.streams.get(stream)
        if chain is not None:
            chain.last_time = max(chain.last_time, time)

    def checkpoint(self, line: Line) -> None:
        """Take a signed statement of how far the stream had come; the exporter holds no key, so only seq and hash."""
        found = checkpoint.decode(line.raw)
        chain = self.streams.get(line.stream)
        if found is None or chain is None or found.kind == "retention":
            return
        chain.closed = chain.closed or found.kind == "closing"
        if found.seq == chain.last_seq:
            self._compare(chain, found.seq, found.hash)
        elif found.seq > chain.last_seq:
            chain.waiting[found.seq] = found.hash
            while len(chain.waiting) > CHECKPOINT_LIMIT:
                del chain.waiting[next(iter(chain.waiting))]

    def notice(self, notice: Notice) -> None:
        """A gap that the follower noticed (DESIGN 5.5: in the exporter's copy a gap is no forgery)."""
        chain = self.streams.get(notice.stream)
        if notice.kind == "gap" and chain is not None:
            chain.missing += notice.count
            chain.gap = notice.text

    def document(self, silent_before: str) -> list[dict[str, Any]]:
        """One row per stream: what needs a person first, then the latest. `silent_before`: RFC 3339."""
        rows = [_row(name, chain, silent_before) for name, chain in self.streams.items()]
        rows.sort(key=lambda row: row["lastTime"], reverse=True)
        return sorted(rows, key=lambda row: min(_RANK[row["state"]], 2))

    def _open(self, line: Line) -> Chain:
        chain = self.streams[line.stream] = Chain(head=ZEROS if line.seq == 1 + line.lost else "")
        if len(self.streams) > STREAM_LIMIT:
            for name in oldest(self.streams, len(self.streams) - STREAM_LIMIT):
                del self.streams[name]
        return chain

    @staticmethod
    def _compare(chain: Chain, seq: int, expected: str | None) -> None:
        if expected is not None and expected != chain.head and not chain.problem:
            chain.problem = f"record {seq} is not the one that a checkpoint names"


def oldest(streams: dict[str, Chain], count: int) -> Iterable[str]:
    return sorted(streams, key=lambda name: streams[name].last_time)[:count]


def _row(name: str, chain: Chain, silent_before: str) -> dict[str, Any]:
    unclosed = not chain.closed and chain.last_time < silent_before
    state: State = "open"
    if chain.problem:
        state = "bad"
    elif chain.missing:
        state = "gap"
    elif chain.closed:
        state = "intact"
    elif unclosed:
        state = "unclosed"
    return {
        "stream": name,
        "state": state,
        "records": chain.records,
        "lastSeq": chain.last_seq,
        "head": chain.head,
        "lost": chain.lost,
        "missing": chain.missing,
        "lastTime": chain.last_time,
        "problem": chain.problem or chain.gap,
    }
