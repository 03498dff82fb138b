"""Keep a copy of all objects of one kind: list, watch, and again, whatever happens (know-how: list-watch).

The client library's own informer reconnects without pause on errors and knows neither "synced" nor an age; this one
backs off, lists anew on 410 (also when it comes as an ERROR event inside a 200 stream, B62) and never ends by itself.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import msgspec
import urllib3

from webhook.cluster.api import Api, ApiError
from webhook.cluster.kinds import Kind, ListMeta, list_decoder, slimmer

_log = logging.getLogger(__name__)

PAGE = 500
"""Objects in one page of a list."""
LIST_TIMEOUT = 30.0
"""Seconds for one page."""
WATCH_SECONDS = (60, 120)
"""How long the API server is asked to hold one watch; drawn anew each time, so that watches do not end together."""
SILENCE = 10.0
"""Seconds beyond the agreed end of a watch after which a silent connection counts as dead."""
HASTY = 1.0
"""A watch that ends within so many seconds is not followed by the next at once."""

Change = Literal["ADDED", "MODIFIED", "DELETED"]


class Sink(Protocol):
    """Who keeps what a reflector learns."""

    def replace(self, kind: Kind, items: list[Any]) -> None:
        """All objects of the kind, from a list."""

    def apply(self, kind: Kind, change: Change, item: Any) -> None:
        """One event of a watch."""

    def lose(self, kind: Kind) -> None:
        """The kind cannot be read: nothing is known about it any more."""


class Backoff:
    """Pauses that double from `base` to `cap` seconds, jittered; a quiet minute starts them over."""

    def __init__(self, base: float = 0.5, cap: float = 15.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._base, self._cap, self._clock = base, cap, clock
        self._tries = 0
        self._last = clock()

    def next(self) -> float:
        now = self._clock()
        if now - self._last > self._cap + 60:
            self._tries = 0
        self._last = now
        pause = min(self._cap, self._base * 2.0 ** min(self._tries, 16))
        self._tries += 1
        return pause * random.uniform(0.5, 1.0)


class _Event(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _ErrorStatus(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Bookmark(msgspec.Struct):
    metadata: ListMeta


class _GoneError(Exception):
    """The API server no longer has the changes since our resource version: list anew."""


class Reflector:
    """One thread that copies one kind into a sink. The public fields are written by that thread alone."""

    def __init__(self, api: Api, kind: Kind, sink: Sink, *, backoff: Backoff | None = None) -> None:
        self.kind = kind
        self.synced = False
        """Whether a list was ever taken in."""
        self.refused: str | None = None
        """Why the kind cannot be read at all (no permission, not served), None while it can."""
        self.failure: str | None = None
        """What went wrong last, None since the last success."""
        self.last_contact = time.monotonic()
        """When the API server last told us anything (list, event, bookmark, clean end of watch); monotonic seconds."""
        self.settled = threading.Event()
        """Set once the first list succeeded or was refused."""
        self._api = api
        self._sink = sink
        self._backoff = backoff or Backoff()
        self._slim = slimmer(kind)
        self._events = msgspec.json.Decoder(_Event)
        self._objects = msgspec.json.Decoder(kind.type)
        self._version: str | None = None
        self._relist = False
        self._complained = False
        self._response: Any = None
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{kind.plural}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def relist(self) -> None:
        """List again soon: what the sink wants to keep has changed."""
        self._relist = True
        self._interrupt()

    def ask_to_stop(self) -> None:
        """Break off whatever the thread waits for; `join` waits until it has ended."""
        self._stopping = True
        self._interrupt()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread, and wait for that."""
        self.ask_to_stop()
        self.join(timeout)

    def join(self, timeout: float = 2.0) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def age(self) -> float:
        """Seconds since the API server last told us anything about this kind."""
        return time.monotonic() - self.last_contact

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            pause = self._round()
            if pause and not self._stopping:
                self._wake.wait(pause)

    def _round(self) -> float:
        """One list if needed, then one watch. Returns the seconds to wait before the next round."""
        try:
            if self._relist:
                self._relist, self._version = False, None
            if self._version is None:
                self._list()
            began = time.monotonic()
            self._watch()
            return 0.0 if time.monotonic() - began > HASTY else self._backoff.next()
        except _GoneError:
            self._version = None
            return self._backoff.next()
        except ApiError as error:
            self._fail(error)
        except Exception as error:  # a thread that dies would leave its facts to age unseen
            self._version = None  # whatever it was, a list is a clean start
            self._fail(error)
        return self._backoff.next()

    def _fail(self, error: Exception) -> None:
        if self._stopping or self._wake.is_set():
            return  # we broke the connection ourselves
        text = str(error) or type(error).__name__
        self.failure = text
        if not self._complained:
            self._complained = True
            _log.warning("watching %s: %s; trying again, with growing pauses", self.kind.plural, text)

    # -- list -------------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        items: list[Any] = []
        query: dict[str, Any] = {"limit": PAGE}
        while True:
            page = list_decoder(self.kind).decode(self._page(query))
            items.extend(self._slim(item) for item in page.items or ())
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._sink.replace(self.kind, items)
        self._version = page.metadata.resource_version
        self.synced = True
        self.refused = None
        self._contact()
        self.settled.set()

    def _page(self, query: dict[str, Any]) -> bytes:
        try:
            return self._api.get(self.kind.path(), query, LIST_TIMEOUT)
        except ApiError as error:
            if error.status == 410:  # the continue token is too old
                raise _GoneError from error
            if error.status in (403, 404):
                self._refuse(error)
            raise

    def _refuse(self, error: ApiError) -> None:
        """No permission, or a kind that is not served: its facts are unknown until that changes."""
        group = f" of API group {self.kind.group}" if self.kind.group else ""
        if error.status == 403:
            fix = f"allow this service account to get, list and watch {self.kind.plural}{group}"
        else:
            fix = f"this API server does not serve {self.kind.plural}{group} {self.kind.version}"
        self.refused = f"{self.kind.plural} cannot be read ({error}): {fix}"
        self._sink.lose(self.kind)
        self.settled.set()

    # -- watch ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Follow changes until the API server ends the watch. Raises _GoneError, ApiError, and what decoding raises."""
        seconds = random.randint(*WATCH_SECONDS)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": seconds,
        }
        try:
            self._response = self._api.stream(self.kind.path(), query, seconds + SILENCE)
        except ApiError as error:
            if error.status == 410:
                raise _GoneError from error
            if error.status in (403, 404):
                self._version = None  # the list that follows tells whether the kind is lost
            raise
        try:
            if self._wake.is_set():
                return
            self.failure = None  # the watch stands: from here on silence is a matter of age
            for line in _lines(self._response):
                self._take(line)
            self._contact()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"the watch broke off: {error}") from error
        finally:
            self._response.close()
            self._response = None

    def _take(self, line: bytes) -> None:
        event = self._events.decode(line)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_ErrorStatus)
            if status.code == 410:
                raise _GoneError
            raise ApiError(status.code, f"the watch reported an error: {status.message}")
        if event.type == "BOOKMARK":
            version = msgspec.json.decode(event.object, type=_Bookmark).metadata.resource_version
        else:
            item = self._slim(self._objects.decode(event.object))
            version = item.metadata.resource_version
            self._sink.apply(self.kind, event.type, item)
        self._version = version
        self._contact()

    def _contact(self) -> None:
        self.last_contact = time.monotonic()
        self.failure = None
        if self._complained:
            self._complained = False
            _log.info("watching %s: in contact again", self.kind.plural)

    def _interrupt(self) -> None:
        """Wake the thread from a pause or a silent watch."""
        self._wake.set()
        response = self._response
        if response is not None:
            try:
                response.shutdown()
            except (ValueError, RuntimeError, OSError):  # it has just ended by itself
                return


def _lines(response: Any) -> Iterator[bytes]:
    """The complete lines of a stream as they come; half a line at a broken end is no event."""
    rest = b""
    while piece := response.read1(1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line for line in lines if line.strip())
