"""Live reads with a hard limit: on how long a caller waits, and on how many threads a dead API server can hold."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import BoundedSemaphore
from typing import Any

import msgspec

from webhook.cluster import kinds
from webhook.cluster.api import Api, ApiError
from webhook.cluster.kinds import Kind, slimmer
from webhook.cluster.view import Labels
from webhook.decision.facts import MustWaitError
from webhook.k8s.objects import Workload

CALLERS = 6
"""Callers served at once; others wait for their turn within their own time."""
THREADS = 12
LOOKUP_TIMEOUT = 0.3
"""Seconds for one look-up of a name that the watches do not know (H16)."""
KEPT = 5.0
"""Seconds an answer to such a look-up is good for; the watch will have caught up by then."""
MISSING_KEPT = 1.0
"""The same for "there is none" and for a failure."""
_MAX_CACHED = 2048


class BoundedReads:
    """GETs that run in a few threads of their own, so that nobody waits longer than they said they would."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._turns = BoundedSemaphore(CALLERS)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="live-read")

    def all(self, reads: Sequence[tuple[str, Mapping[str, Any]]], timeout: float) -> list[bytes | ApiError] | None:
        """The answer to each (path, query), side by side; None if they are not all there in `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if not self._turns.acquire(timeout=timeout):
            return None
        futures: list[Future[bytes | ApiError]] = []
        try:
            futures = [self._threads.submit(self._get, path, query, deadline) for path, query in reads]
            _, late = wait(futures, max(0.0, deadline - time.monotonic()))
            return None if late else [future.result() for future in futures]
        except RuntimeError:  # shut down
            return None
        finally:
            for future in futures:
                future.cancel()
            self._turns.release()

    def one(self, path: str, timeout: float, query: Mapping[str, Any] | None = None) -> bytes | ApiError:
        """The answer to one GET within `timeout` seconds."""
        answers = self.all([(path, query or {})], timeout)
        return ApiError(0, f"{path}: no answer within {timeout:g} s") if answers is None else answers[0]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _get(self, path: str, query: Mapping[str, Any], deadline: float) -> bytes | ApiError:
        answer = self._try(path, query, deadline)
        if isinstance(answer, ApiError) and answer.status == 0:
            # A connection kept from an earlier read may just have been closed by the other side: that is no answer.
            return self._try(path, query, deadline)
        return answer

    def _try(self, path: str, query: Mapping[str, Any], deadline: float) -> bytes | ApiError:
        left = deadline - time.monotonic()
        if left <= 0:
            return ApiError(0, f"{path}: no time left")
        try:
            return self._api.get(path, query, left)
        except ApiError as error:
            return error


class LiveLookup:
    """Answers what the watches do not know (yet), with one bounded read; implements `webhook.cluster.view.Lookup`."""

    def __init__(self, reads: BoundedReads, clock: Callable[[], float] = time.monotonic) -> None:
        self._reads = reads
        self._clock = clock
        self._cached: dict[str, tuple[float, Any]] = {}
        self._may_wait = True

    def without_waiting(self) -> "LiveLookup":
        """The same answers as far as they are kept; raises MustWaitError instead of reading."""
        other = copy.copy(self)
        other._may_wait = False
        return other

    def namespace_labels(self, namespace: str) -> Labels | None:
        found = self._find(kinds.NAMESPACE, None, namespace, KEPT)
        return None if found is None else found.metadata.labels or {}

    def node_labels(self, node: str) -> Labels | None:
        found = self._find(kinds.NODE, None, node, KEPT)
        return None if found is None else found.metadata.labels or {}

    def workload(self, kind: str, namespace: str, name: str) -> Workload | None:
        """The workload as it is now: its template may have changed since it was last asked for."""
        row = kinds.WORKLOAD_KINDS.get(kind)
        found: Workload | None = None if row is None else self._find(row, namespace, name, 0.0)
        return found

    def _find(self, kind: Kind, namespace: str | None, name: str, kept: float) -> Any:
        if not name:
            return None
        path = kind.path(namespace, name)
        until, found = self._cached.get(path, (0.0, None))
        if self._clock() < until:
            return found
        if not self._may_wait:
            raise MustWaitError
        found = self._read(kind, path)
        if len(self._cached) >= _MAX_CACHED:  # names come from users; the memory for them must not grow with them
            self._cached.clear()
        self._cached[path] = (self._clock() + (MISSING_KEPT if found is None else kept), found)
        return found

    def _read(self, kind: Kind, path: str) -> Any:
        answer = self._reads.one(path, LOOKUP_TIMEOUT)
        if isinstance(answer, ApiError):
            return None
        try:
            return slimmer(kind)(msgspec.json.decode(answer, type=kind.type))
        except (msgspec.MsgspecError, RecursionError):
            return None
