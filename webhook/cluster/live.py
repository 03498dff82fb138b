"""Facts from a live cluster: watches for what changes slowly, one bounded read for what a denial rests on."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from webhook.cluster import kinds
from webhook.cluster.api import Api, ApiError
from webhook.cluster.kinds import WORKLOADS, Kind, list_decoder, slimmer
from webhook.cluster.notes import Notebook
from webhook.cluster.reads import BoundedReads, LiveLookup
from webhook.cluster.reflector import Backoff, Reflector
from webhook.cluster.store import Store, seen_before, superseded
from webhook.cluster.table import Table
from webhook.cluster.view import Labels, View, table_of, workload_key
from webhook.decision.facts import Note, SeenWorkload

TEAM_LABEL = "gpu.platform/team"
"""The namespace label that the registration selects by (DESIGN 5.7)."""
STALE_AFTER = 150.0
"""Seconds without contact after which a watch is stale: longer than any healthy watch can stay silent."""
_PROBE_TIMEOUT = 0.5
_PROBE_KEPT = 5.0
_LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Finished pods use no quota (Q19), and may be many."""


class Status(msgspec.Struct, frozen=True):
    """What `/readyz` says about the watches (DESIGN 5.8)."""

    synced: bool
    """Whether every kind was listed once, or refused."""
    age: float
    """Seconds since the stalest watch heard from the API server."""
    reasons: tuple[str, ...] = ()
    """What is wrong, each with its place and fix; empty when all is well."""
    stale: bool = False
    """The watches are stale while a direct read succeeds: this process is at fault, and not ready."""


class LiveCluster:
    """A FactSource over the Kubernetes API. `start`, then `wait_synced`, and `stop` at the end."""

    def __init__(
        self,
        api: Api,
        *,
        covers: Callable[[Labels], bool] | None = None,
        clock: Callable[[], float] = time.time,
        backoff: Callable[[], Backoff] = Backoff,
        stale_after: float = STALE_AFTER,
    ) -> None:
        """`covers` tells from a namespace's labels whether a policy judges it; the team label always counts.

        `clock` gives epoch seconds, `backoff` the pauses of one watch.
        """
        self._clock = clock
        self._notebook = Notebook()
        self._store = Store(
            lambda labels: TEAM_LABEL in labels or (covers is not None and covers(labels)),
            self._notebook,
            self._relist_workloads,
            clock,
        )
        self._reads = BoundedReads(api)
        self._lookup = LiveLookup(self._reads)
        self._kept = self._lookup.without_waiting()
        self._reflectors = {kind.name: Reflector(api, kind, self._store, backoff=backoff()) for kind in kinds.WATCHED}
        self._stale_after = stale_after
        self._probed = (float("-inf"), False)

    # -- FactSource ---------------------------------------------------------------------------------------------------

    def current(self, may_wait: bool = True) -> View:
        lookup = self._lookup if may_wait else self._kept
        return View(self._store.state, self._notebook.notes, self._clock(), is_fresh=False, lookup=lookup)

    def fresh(self, namespace: str, timeout: float = 0.3) -> View | None:
        """Quotas, workloads and pods of a namespace as they are now, everything else as the watches have it.

        Returns None if the API server did not give all of it within `timeout` seconds. What we may not read (403) is
        unknown in the answer instead; quotas must be readable.
        """
        wanted = [kinds.RESOURCE_QUOTA, kinds.POD, *WORKLOADS]
        reads = [(kind.path(namespace), _LIVE_PODS if kind is kinds.POD else {}) for kind in wanted]
        answers = self._reads.all(reads, timeout)
        if answers is None:
            return None
        lists: dict[str, list[Any] | None] = {}
        for kind, answer in zip(wanted, answers, strict=True):
            try:
                lists[kind.name] = _items(kind, answer)
            except (ApiError, msgspec.MsgspecError, RecursionError):
                return None
        if lists[kinds.RESOURCE_QUOTA.name] is None:
            return None
        return self._fresh_view(namespace, lists)

    def note(self, note: Note) -> None:
        self._notebook.add(note)

    # -- life and health ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        for reflector in self._reflectors.values():
            reflector.start()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until every kind was listed once or refused; False if that took longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for reflector in self._reflectors.values():
            if not reflector.settled.wait(max(0.0, deadline - time.monotonic())):
                return False
        return self.synced

    def stop(self) -> None:
        for reflector in self._reflectors.values():
            reflector.ask_to_stop()
        for reflector in self._reflectors.values():
            reflector.join()
        self._reads.close()

    def policy_changed(self) -> None:
        """Ask `covers` about all namespaces again."""
        self._store.reconsider()

    @property
    def synced(self) -> bool:
        """Whether every kind was listed once or refused, and not all of them were refused."""
        reflectors = self._reflectors.values()
        return all(one.settled.is_set() for one in reflectors) and any(one.synced for one in reflectors)

    def age(self) -> float:
        """Seconds since the stalest watch heard from the API server; kinds that we may not read do not count."""
        return max((one.age for one in self._reflectors.values() if one.refused is None), default=0.0)

    def status(self) -> Status:
        """How the watches are; at most one bounded read, and that only when they are stale."""
        age, reasons = self.age(), []
        for one in self._reflectors.values():
            if one.refused is not None:
                reasons.append(one.refused)
            elif one.failure is not None or one.age > self._stale_after:
                reasons.append(
                    f"the watch of {one.kind.plural} is {one.age:.0f} s old: {one.failure or 'it is silent'}"
                )
        stale = age > self._stale_after and self._api_answers()
        if stale:
            reasons.insert(0, "the watches are stale though the API server answers: this process must be restarted")
        return Status(self.synced, age, tuple(reasons), stale)

    def _api_answers(self) -> bool:
        """Whether a direct read of what the stalest watch watches succeeds; asked once in a few seconds."""
        at, answered = self._probed
        if time.monotonic() - at > _PROBE_KEPT:
            watched = (one for one in self._reflectors.values() if one.refused is None)
            stalest = max(watched, key=lambda one: one.age)
            answered = not isinstance(self._reads.one(stalest.kind.path(), _PROBE_TIMEOUT, {"limit": 1}), ApiError)
            self._probed = (time.monotonic(), answered)
        return answered

    # -- inside -------------------------------------------------------------------------------------------------------

    def _fresh_view(self, namespace: str, lists: Mapping[str, list[Any] | None]) -> View:
        state, now = self._store.state, self._clock()
        workloads: dict[str, Table[SeenWorkload] | None] = {}
        for kind in WORKLOADS:
            items, watched = lists[kind.name], state.workloads.get(kind.name)
            workloads[kind.name] = None if items is None else _seen(items, watched, now)
        notes = self._notebook.notes
        alive = [item for items in (lists[kind.name] for kind in WORKLOADS) for item in items or ()]
        pending = tuple(note for note in notes.get(namespace, ()) if not any(superseded(note, item) for item in alive))
        pods = lists[kinds.POD.name]
        quotas = state.quotas if state.quotas is not None else table_of(kinds.RESOURCE_QUOTA, [])
        fresh = msgspec.structs.replace(
            state,
            quotas=quotas.with_group(namespace, lists[kinds.RESOURCE_QUOTA.name] or []),
            workloads=workloads,
            pods=None if pods is None else table_of(kinds.POD, pods),
            partial=frozenset(),
        )
        return View(fresh, {namespace: pending}, now, is_fresh=True, lookup=self._lookup, only=namespace)

    def _relist_workloads(self) -> None:
        for kind in WORKLOADS:
            self._reflectors[kind.name].relist()


def _items(kind: Kind, answer: bytes | ApiError) -> list[Any] | None:
    """The objects of a list; None if we may not read the kind. Raises what decoding raises, and other ApiErrors."""
    if isinstance(answer, ApiError):
        if answer.status in (403, 404):
            return None
        raise answer
    slim = slimmer(kind)
    return [slim(item) for item in list_decoder(kind).decode(answer).items or ()]


def _seen(items: list[Any], watched: Table[SeenWorkload] | None, now: float) -> Table[SeenWorkload]:
    """Workloads of a fresh read with the times that the watch saw their generations come.

    One that the watch knows in an earlier generation is news; one that it does not know is as old as it says.
    """
    known = watched if watched is not None else Table[SeenWorkload]((), workload_key)
    return Table(
        (
            SeenWorkload(item, seen_before(known, item, now if known.get(*_place(item)) is not None else None))
            for item in items
        ),
        workload_key,
    )


def _place(item: Any) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name
