"""Follow audit streams without ever reading one twice: positions and aggregates lie on disk, written as one file."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from webhook.audit import checkpoint as checkpoints
from webhook.audit.read import Follower, Notice, Position, Run, is_kubernetes
from webhook.audit.retention import Limits
from webhook.exporter.backlog import Backlog, Part
from webhook.exporter.chains import ChainStates, Verifier
from webhook.exporter.decisions import Reader, Tally
from webhook.exporter.events import EventTally
from webhook.exporter.history import History
from webhook.exporter.keep import LIMITS, LedgerCopy
from webhook.exporter.publish import write_atomically

_log = logging.getLogger(__name__)

STATE_NAME = "exporter-state.json"
LEDGER_NAME = "ledger"
"""Folder beside the state that gets a copy of what is read from pod logs (DESIGN 5.5)."""
KEY_NAME = "exporter.key"
"""Signs what the exporter says about records that its ledger no longer keeps; made at the first start."""
PUBLIC_KEY_NAME = "exporter.pub"
STATE_VERSION = 1
SAVE_SECONDS = 30.0
"""Between two writes of the state; after a crash what came since the last is read once more, and counted once."""
NOTICE_LIMIT = 100


class State(msgspec.Struct):
    """Everything that outlives a process: where reading stopped, and what was made of what was read."""

    version: int = STATE_VERSION
    position: Position = Position()
    tally: Tally = msgspec.field(default_factory=Tally)
    chains: ChainStates = msgspec.field(default_factory=ChainStates)
    events: EventTally = msgspec.field(default_factory=EventTally)
    history: History = msgspec.field(default_factory=History)


class Collector:
    """Reads what is new from all streams into the aggregates of `state`."""

    def __init__(
        self,
        audits: Sequence[str],
        folder: Path | None,
        keys: Sequence[Ed25519PublicKey] = (),
        limits: Limits = LIMITS,
    ) -> None:
        """`folder` keeps the state; None keeps nothing. `keys`: see `Verifier`; `limits` are those of the ledger.

        Raises OSError if the folder cannot be made, KeyFileError if the exporter's own key there cannot be used.
        """
        self.has_audit = bool(audits)
        self.notices: list[Notice] = []
        """The latest things worth telling that are no records: truncations, NULs, sources that cannot be read."""
        self._path = None if folder is None else folder / STATE_NAME
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.state = _load(self._path)
        self._reader = Reader(self.state.tally)
        self._verifier = Verifier(self.state.chains, keys)
        self._follower = Follower(audits, self.state.position)
        self._backlog: Backlog | None = Backlog(audits, self.state.position)
        self._ledger = _ledger(folder, limits) if folder and any(map(is_kubernetes, audits)) else None
        self._changed = False
        self._saved_at = time.monotonic()

    @property
    def problems(self) -> list[str]:
        """What keeps the record from being whole at present."""
        return [self._ledger.problem] if self._ledger is not None and self._ledger.problem else []

    def collect(self, seconds: float | None = None, patience: float = 0.0) -> int:
        """Read what has come, for at most so many seconds (None: all there is). Returns how many lines.

        `patience`: how long, in seconds, nothing may come before that means that there is no more; pipes and pod logs
        need some.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        found, last = self._catch_up(deadline), time.monotonic()
        while self._backlog is None:  # what comes later waits until all before it has been taken in
            runs = self._follower.poll_runs()
            now = time.monotonic()
            if runs:
                for run in runs:
                    self._take(run)
                    found += len(run.lines)
                last = now
            elif now - last >= patience:
                break
            else:
                time.sleep(min(0.05, patience))
            if deadline is not None and now > deadline:
                break
        self._reader.flush()
        for notice in self._follower.take_notices():
            if notice.kind == "gap":
                self._verifier.missing(notice.stream, notice.count)
            self.notices.append(notice)
            _log.warning("audit: %s: %s", notice.source, notice.text)
        del self.notices[:-NOTICE_LIMIT]
        self._changed = self._changed or found > 0
        return found

    def _catch_up(self, deadline: float | None) -> int:
        """Take in what several processes read, as long as it is plain; returns how many records."""
        found = 0
        while self._backlog is not None:
            part = self._backlog.take()
            if part is None or not self._add(part):
                self._backlog.close()
                self._backlog = None
                break
            found += part.tally.records
            if deadline is not None and time.monotonic() > deadline:
                break
        return found

    def _add(self, part: Part) -> bool:
        is_new = part.stream not in self.state.chains.streams
        if not self._verifier.extend(part.stream, part.after, part.chain):
            return False
        self.state.tally.add(part.tally)
        notices = part.notices if is_new else ()  # what a later part does not know was read before it
        self._follower.pass_over(part.file, part.stream, part.chain.seq, notices)
        return True

    def _take(self, run: Run) -> None:
        if run.kind == "checkpoint":
            for line in run.each():
                self._verifier.checkpoint(line)
                if self._ledger is not None:
                    self._ledger.checkpoint(line)
            return
        if self._ledger is not None:
            self._ledger.records(run.stream, run.each())
        self._verifier.records(run)
        self._verifier.seen(run.stream, self._reader.add(run.lines))

    def touch(self) -> None:
        """Something else in the state has changed (events, history)."""
        self._changed = True

    def save(self, *, now: bool = False) -> None:
        """Write the state if it has changed and it is time, or `now`. A failure is logged; the next try may succeed."""
        due = now or time.monotonic() - self._saved_at >= SAVE_SECONDS
        if self._path is None or not self._changed or not due:
            return
        self.state.position = self._follower.position
        try:
            write_atomically(self._path, msgspec.json.encode(self.state))
        except OSError as error:
            _log.error("%s: cannot be written: %s; free space there, else a restart counts again", self._path, error)
            return
        self._changed = False
        self._saved_at = time.monotonic()

    def close(self) -> None:
        if self._backlog is not None:
            self._backlog.close()
        self.save(now=True)
        self._follower.close()


def _ledger(folder: Path, limits: Limits) -> LedgerCopy:
    """The key lies beside the ledger, not in it: what lies in it vouches for the records of the webhook."""
    key = checkpoints.load_or_create_key(folder / KEY_NAME)
    (folder / PUBLIC_KEY_NAME).write_bytes(checkpoints.public_pem(key))
    return LedgerCopy(folder / LEDGER_NAME, key, limits)


def _load(path: Path | None) -> State:
    """The state of the last run; a file that cannot be used is put aside, and everything is read anew."""
    if path is None:
        return State()
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if state.version == STATE_VERSION:
            return state
        problem = f"it has version {state.version}, not {STATE_VERSION}"
    except FileNotFoundError:
        return State()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = str(error)
    aside = path.with_suffix(".unusable")
    path.replace(aside)
    _log.warning("%s: cannot be used (%s); put aside as %s, all streams are read anew", path, problem, aside.name)
    return State()
