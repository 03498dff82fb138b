"""POST /mutate and POST /validate: the straight line from the bytes of a review to a recorded decision and back.

These two are plain WSGI around the Flask application. Flask's way through routing, contexts and signals takes a tenth
of a millisecond, more than everything that happens here, and the API server waits for each of these answers.
"""

import logging
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final, Protocol

from webhook.audit import record
from webhook.decision.facts import FactSource
from webhook.decision.request import Phase
from webhook.policy.active import Policy
from webhook.server import wire
from webhook.server.judge import Judge
from webhook.server.metrics import Metrics
from webhook.server.wire import WireError
from webhook.server.worker import ASKED_AT

log = logging.getLogger(__name__)

BODY_LIMIT: Final = 10 * 1024 * 1024
"""Bytes of a review; old and new object of 3 MiB each, with defaults and managedFields, fit into it (V28)."""
JSON: Final = "application/json"

_PHASES: Final[dict[str, Phase]] = {"/mutate": "mutate", "/validate": "validate"}
_TOO_LARGE: Final = f"the body is larger than {BODY_LIMIT} bytes"

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]


class Ledger(Protocol):
    """`webhook.audit.ledger.Ledger`, as far as the server writes to it. Never raises: what is lost is counted there."""

    def append(self, body: bytes) -> bool: ...


class Reviews:
    """Answers reviews itself and hands every other path to `pages`."""

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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        phase = _PHASES.get(environ["PATH_INFO"])
        if phase is None:
            return self._pages(environ, start_response)
        try:
            answer = self._review(environ, phase)
        except WireError as error:
            return self._refuse(error, environ, start_response)
        except Exception:
            log.exception("fault while answering POST %s", environ["PATH_INFO"])
            self._metrics.failed("answer")
            return self._refuse(WireError(500, "internal error; the server's log has it"), environ, start_response)
        start_response("200 OK", [("Content-Type", JSON), ("Content-Length", str(len(answer)))])
        return (answer,)

    def _review(self, environ: Environ, phase: Phase) -> bytes:
        asked_at: float = environ.get(ASKED_AT) or time.monotonic()
        body = read_body(environ)
        asked = wire.decode(body, phase, time.time())
        policy = self._policy()
        decision = self._judge.judge(asked, policy, asked_at)
        seconds = time.monotonic() - asked_at
        try:
            self._ledger.append(record.encode(asked, decision, policy.name, policy.revision, seconds * 1000))
        except Exception:
            log.exception("decision %s could not be recorded", decision.id)
            self._metrics.failed("record")
        if decision.note is not None and not asked.dry_run:
            self._source.note(decision.note)
        self._metrics.decided(asked, decision, seconds)
        self._served(len(body))
        return wire.encode(asked, decision)

    def _refuse(self, error: WireError, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        self._metrics.refused(error.status)
        answer = wire.encode_error(error.status, error.reason)
        headers = [("Content-Type", JSON), ("Content-Length", str(len(answer)))]
        if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "POST"))
        if has_unread_body(environ):
            headers.append(("Connection", "close"))
        start_response(f"{error.status} {HTTPStatus(error.status).phrase}", headers)
        return (answer,)


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
