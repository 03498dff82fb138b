"""Old segments go, announced first: a signed checkpoint names the last record that was removed (DESIGN 5.5)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from webhook.audit import checkpoint as checkpoints
from webhook.audit.checkpoint import Checkpoint
from webhook.audit.record import timestamp
from webhook.audit.segments import CHECKPOINTS_SUFFIX, Segment, last_record, segments_in

_REMOVED_STREAMS_KEPT = 500


class Limits(msgspec.Struct, frozen=True):
    """How much of a folder is kept: segments of all streams, their bytes, and seconds since one was last written."""

    segments: float = inf
    bytes: float = inf
    seconds: float = inf


def surplus(
    streams: Mapping[str, Sequence[Segment]],
    limits: Limits,
    now: float,
    removable: Callable[[Sequence[Segment]], Sequence[Segment]],
) -> dict[str, list[Segment]]:
    """What is beyond the limits, by stream, oldest first; a chain is only ever shortened from its start.

    `removable` tells which of a stream's segments may go: never one that somebody still writes.
    """
    measured = {segment.path: _measure(segment.path) for segments in streams.values() for segment in segments}
    count, size = len(measured), sum(length for length, _ in measured.values())
    ages: list[tuple[float, Segment]] = []
    for segments in streams.values():
        age = 0.0
        for segment in removable(segments):
            age = max(age, measured[segment.path][1])
            ages.append((age, segment))
    going: dict[str, list[Segment]] = {}
    for age, segment in sorted(ages):
        if count <= limits.segments and size <= limits.bytes and age >= now - limits.seconds:
            break
        going.setdefault(segment.stream, []).append(segment)
        count -= 1
        size -= measured[segment.path][0]
    return going


def note(stream: str, going: Sequence[Segment], key: Ed25519PrivateKey, now: float) -> Checkpoint | None:
    """The signed word that these segments go; None if they hold no record. `now` in epoch seconds."""
    last = next(filter(None, (last_record(segment.path) for segment in reversed(going))), None)
    return None if last is None else Checkpoint(stream, *last, timestamp(now), "retention").sign(key)


def announce(folder: Path, retention: Checkpoint) -> None:
    """Put the note in front of a stream's checkpoints; those of removed records prove nothing any more and go."""
    path = folder / f"{retention.stream}{CHECKPOINTS_SUFFIX}"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept = [line for line in lines if (known := checkpoints.decode(line)) is None or known.seq > retention.seq]
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(b"".join([checkpoints.encode(retention) + b"\n", *kept]))
    temporary.replace(path)


def remove(segments: Iterable[Segment]) -> None:
    """After `announce`: a crash between the two leaves more than was said."""
    for segment in segments:
        segment.path.unlink(missing_ok=True)


def forget_the_longest_gone(folder: Path, living: str) -> None:
    """A process that crashes for months must not fill the folder with the last words of its streams."""
    with_segments = segments_in(folder.iterdir()).keys() | {living}
    words = [path for path in folder.glob(f"*{CHECKPOINTS_SUFFIX}") if path.stem not in with_segments]
    for path in sorted(words, key=lambda path: _measure(path)[1])[:-_REMOVED_STREAMS_KEPT]:
        path.unlink(missing_ok=True)


def _measure(path: Path) -> tuple[int, float]:
    """Bytes, and when it was last written in epoch seconds; nothing at all if it is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0.0
    return status.st_size, status.st_mtime
