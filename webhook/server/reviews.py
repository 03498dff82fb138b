"""POST /mutate and POST /validate: the straight line from the bytes of a review to a recorded decision and back.

The API server waits for each of these answers, so they go around Flask, whose routing, contexts and signals cost more
than everything that happens here, and where they can around WSGI: the worker asks `answer` itself.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from threading import BoundedSemaphore
from typing import Any, Final, Protocol

from webhook.audit import record
from webhook.decision.facts import FactSource, MustWaitError
from webhook.decision.request import Phase
from webhook.policy.active import Policy
from webhook.server import wire
from webhook.server.judge import Judge
from webhook.server.memory import LARGE
from webhook.server.metrics import Metrics
from webhook.server.wire import WireError
from webhook.server.worker import ASKED_AT

log = logging.getLogger(__name__)

BODY_LIMIT: Final = 10 * 1024 * 1024
"""Bytes of a review; old and new object of 3 MiB each, with defaults and managedFields, fit into it (V28)."""
LARGE_AT_ONCE: Final = 16
"""Large bodies read and judged at a time: sixty clients that stopped within one took more memory than the pod has."""
_ROOM_WAIT: Final = 1.0
"""Seconds that a further one waits."""
JSON: Final = "application/json"

_PHASES: Final[dict[str, Phase]] = {"/mutate": "mutate", "/validate": "validate"}
_TOO_LARGE: Final = f"the body is larger than {BODY_LIMIT} bytes"
_NO_ROOM: Final = f"{LARGE_AT_ONCE} reviews of more than {LARGE} bytes are being read already; try again"

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]


class Ledger(Protocol):
    """`webhook.audit.ledger.Ledger`, as far as the server writes to it. Never raises: what is lost is counted there."""

    def append(self, body: bytes) -> bool: ...


class Reviews:
    """Answers reviews itself and hands every other path to `pages`: `webhook.server.worker.AnswersAtOnce`."""

    at_once: Collection[str] = _PHASES.keys()

    def __init__(
        self,
        pages: Wsgi,
        *,
        policy: Callable[[], Policy],
        source: FactSource,
        judge: Judge,
        ledger: Ledger,
        metrics: Metrics,
        served: Callable[[int], None],
    ) -> None:
        self._pages = pages
        self._policy = policy
        self._source = source
        self._judge = judge
        self._ledger = ledger
        self._metrics = metrics
        self._served = served
        self._room = BoundedSemaphore(LARGE_AT_ONCE)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path not in _PHASES:
            return self._pages(environ, start_response)
        try:
            with self._room_for(environ):
                status, answer = self.answer(path, read_body(environ), environ.get(ASKED_AT) or time.monotonic())
        except WireError as error:
            status, answer = self._refuse(error)
        headers = [("Content-Type", JSON), ("Content-Length", str(len(answer)))]
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "POST"))
        if has_unread_body(environ):
            headers.append(("Connection", "close"))
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return (answer,)

    @contextmanager
    def _room_for(self, environ: Environ) -> Iterator[None]:
        """Raises WireError (503) where a large body finds no room; one of unknown length counts as large."""
        length = environ.get("CONTENT_LENGTH", BODY_LIMIT if "HTTP_TRANSFER_ENCODING" in environ else 0)
        if int(length) <= LARGE:
            yield
            return
        if not self._room.acquire(timeout=_ROOM_WAIT):
            raise WireError(503, _NO_ROOM)
        try:
            yield
        finally:
            self._room.release()
            self._served(int(length))  # whether or not it was judged, its memory was used

    def answer(self, path: str, body: bytes, asked_at: float, may_wait: bool = True) -> tuple[int, bytes]:
        """Status and body for a review that came to `path` and could be read at `asked_at` (time.monotonic).

        Raises MustWaitError if it may not wait and would have to: then nothing was recorded or counted.
        """
        try:
            return 200, self._review(body, _PHASES[path], asked_at, may_wait)
        except WireError as error:
            return self._refuse(error)
        except MustWaitError:
            raise
        except Exception:
            log.exception("fault while answering POST %s", path)
            self._metrics.failed("answer")
            return self._refuse(WireError(500, "internal error; the server's log has it"))

    def _review(self, body: bytes, phase: Phase, asked_at: float, may_wait: bool) -> bytes:
        asked = wire.decode(body, phase, time.time())
        policy = self._policy()
        decision = self._judge.judge(asked, policy, asked_at, may_wait)
        seconds = time.monotonic() - asked_at
        try:
            self._ledger.append(record.encode(asked, decision, policy.name, policy.revision, seconds * 1000))
        except Exception:
            log.exception("decision %s could not be recorded", decision.id)
            self._metrics.failed("record")
        if decision.note is not None and not asked.dry_run:
            self._source.note(decision.note)
        self._metrics.decided(asked, decision, seconds)
        return wire.encode(asked, decision)

    def _refuse(self, error: WireError) -> tuple[int, bytes]:
        self._metrics.refused(error.status)
        return error.status, wire.encode_error(error.status, error.reason)


def read_body(environ: Environ) -> bytes:
    """The body of a review, read by ourselves: Flask's own limit cuts chunked bodies short without a word.

    Raises WireError: 405 for another method, 415 for another content type, 413 above BODY_LIMIT (without reading
    further), 408 for a client that is too slow or gone, 400 for chunks that are none.
    """
    if environ["REQUEST_METHOD"] != "POST":
        raise WireError(405, f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}: only POST")
    content_type = environ.get("CONTENT_TYPE", JSON)
    if content_type != JSON and content_type.partition(";")[0].strip().lower() != JSON:
        raise WireError(415, f"Content-Type: expected {JSON}, got {content_type[:64]}")
    length = environ.get("CONTENT_LENGTH")
    if length is not None and int(length) > BODY_LIMIT:
        raise WireError(413, _TOO_LARGE)
    body = _read(environ["wsgi.input"])
    if len(body) > BODY_LIMIT:
        del body  # the error's traceback would keep it
        raise WireError(413, _TOO_LARGE)
    environ[_BODY_READ] = True
    return body


def _read(stream: Any) -> bytes:
    try:
        body: bytes = stream.read(BODY_LIMIT + 1)
    except OSError:
        raise WireError(408, "the body did not arrive in time") from None
    except Exception as error:  # the HTTP parser's own errors
        raise WireError(400, f"the body could not be read: {error}") from None
    return body


_BODY_READ: Final = "gpu_webhook.body_read"


def has_unread_body(environ: Environ) -> bool:
    """Whether bytes may lie on the connection that must not be taken for the next request."""
    has_body = environ.get("CONTENT_LENGTH", "0") != "0" or "HTTP_TRANSFER_ENCODING" in environ
    return has_body and _BODY_READ not in environ
