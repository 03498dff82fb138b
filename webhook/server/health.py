"""Whether this process should get reviews: `/readyz` says 503 only where that helps, and else what is not well."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec


class Status(Protocol):
    """How the watches are; `webhook.cluster.live.Status` is one."""

    @property
    def synced(self) -> bool:
        """Whether everything that is watched was listed once."""

    @property
    def stale(self) -> bool:
        """Whether the watches of this process are stale while a direct read succeeds."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong, one line each, ages included."""


class Freshness(Protocol):
    """How well the facts of this process are kept."""

    @property
    def synced(self) -> bool: ...

    def age(self) -> float:
        """Seconds since the stalest watch heard from the API server."""

    def status(self) -> Status:
        """May cost one bounded read, and that only when the watches are stale."""


class Ready(msgspec.Struct, frozen=True):
    status: str
    reasons: list[str]


Reasons = Callable[[], Iterable[str]]


class Health:
    """Answers `/readyz` (DESIGN 5.8).

    503 means: send reviews to another replica. That helps when this one has never known the cluster, is on its way
    out, or is the only one whose watches are stuck. An API server that is down for everybody, a bad policy file, a full
    disk or a certificate that ends soon are reasons to wake somebody, not to switch enforcement off.
    """

    def __init__(self, freshness: Freshness, watched: Iterable[Reasons] = ()) -> None:
        self._freshness = freshness
        self._watched = tuple(watched)
        self._draining = False

    def drain(self) -> None:
        """From now on this process is on its way out. A plain assignment: a signal handler calls this."""
        self._draining = True

    def ready(self) -> tuple[int, bytes]:
        """HTTP status and body of `/readyz`."""
        facts = self._freshness.status()
        away = tuple(self._away(facts))
        reasons = [*away, *facts.reasons]
        for watched in self._watched:
            reasons += watched()
        status = "unavailable" if away else "degraded" if reasons else "ok"
        return 503 if away else 200, msgspec.json.encode(Ready(status, reasons))

    def _away(self, facts: Status) -> Iterator[str]:
        if self._draining:
            yield "draining: this process was told to stop"
        if not facts.synced:
            yield "facts: never synced, the first lists of the cluster are not complete"
        if facts.stale:
            yield "facts: the watches of this process are stale though the API server answers"
