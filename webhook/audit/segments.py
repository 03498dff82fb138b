"""Names of the files of a stream, and the last record in one: `<stream>.000001.jsonl`, `<stream>.checkpoints`."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

ZEROS = "0" * 64
"""The `prev` of a stream's first record, and the `hash` of a checkpoint before it."""
CHECKPOINTS_SUFFIX = ".checkpoints"
TAIL_LENGTH = len(f',"hash":"{ZEROS}"}}')
"""The bytes of a line that its own hash does not cover, closing brace included."""

_new_hash = hashlib.sha256().copy
"""A copy of an empty one: to ask OpenSSL for the algorithm costs as much as hashing half a kilobyte."""
_NAME = re.compile(r"(?P<stream>.+)\.(?P<number>\d{6,})\.jsonl")
_PREV, HASH_KEY = b',"prev":"', b',"hash":"'
_ENDS_AT = -len(f',"prev":"{ZEROS}"') - TAIL_LENGTH
_BLOCK = 1 << 16


class Segment(NamedTuple):
    """One file of a stream; a plain sort puts the segments of a stream in order."""

    stream: str
    number: int
    path: Path


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a chain needs to know of a record, without decoding the rest."""

    stream: str
    seq: int
    lost: int = 0


_head_decoder = msgspec.json.Decoder(Head)


def segment_name(stream: str, number: int) -> str:
    return f"{stream}.{number:06d}.jsonl"


def segment_of(path: Path) -> Segment | None:
    """What a file's name says, None if it is not named as a segment."""
    match = _NAME.fullmatch(path.name)
    return Segment(match["stream"], int(match["number"]), path) if match else None


def segments_in(paths: Iterable[Path]) -> dict[str, list[Segment]]:
    """Segments among these files, in order, by stream."""
    found: dict[str, list[Segment]] = {}
    for segment in sorted(filter(None, map(segment_of, paths))):
        found.setdefault(segment.stream, []).append(segment)
    return found


def head(line: bytes) -> Head | None:
    """Stream, seq and lost of a line without its newline; None if it is not a record."""
    try:
        return _head_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def start_of(stream: str) -> bytes:
    """What stands behind the time (at HEAD_LENGTH) in a record, up to its seq, as this version writes it.

    For readers that know which record comes next: to look there costs a tenth of decoding a line.
    """
    return f',"stream":"{stream}","seq":'.encode()


def digest_of(line: bytes) -> str:
    """The hash of a record's line without its newline: what its last key should say (DESIGN 5.5)."""
    hasher = _new_hash()
    hasher.update(line[:-TAIL_LENGTH])
    hasher.update(b"}")
    return hasher.hexdigest()


def end_of(previous: str, digest: str) -> bytes:
    """How a record ends that follows `previous`, has this hash, and before which none was lost."""
    return f',"lost":0,"prev":"{previous}","hash":"{digest}"}}'.encode()


def tail(line: bytes) -> tuple[str, str] | None:
    """`prev` and `hash` of a line without its newline: always its last two keys; None if they are not there."""
    if line[_ENDS_AT : _ENDS_AT + len(_PREV)] != _PREV or line[-TAIL_LENGTH : -TAIL_LENGTH + len(HASH_KEY)] != HASH_KEY:
        return None
    if line[-2:] != b'"}':
        return None
    return line[_ENDS_AT + len(_PREV) : -TAIL_LENGTH - 1].decode("latin-1"), line[-66:-2].decode("latin-1")


def last_record(path: Path) -> tuple[int, str] | None:
    """`seq` and `hash` of the last whole record in a file, None if it holds none. Raises OSError."""
    length = _BLOCK
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while True:
            start = file.seek(max(0, end - length))
            lines = file.read(end - start).split(b"\n")[1 if start else 0 : -1]  # both ends may be halves
            for line in reversed(lines):
                found, ends = head(line), tail(line)
                if found and ends:
                    return found.seq, ends[1]
            if start == 0:
                return None
            length *= 4
