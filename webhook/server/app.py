"""The Flask application: the straight line from the bytes of a review to a recorded decision and back to bytes."""

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from webhook.audit import record
from webhook.decision.facts import FactSource
from webhook.decision.request import Phase
from webhook.policy.active import Policy
from webhook.server import wire
from webhook.server.health import Health
from webhook.server.judge import Judge
from webhook.server.metrics import Metrics
from webhook.server.wire import WireError
from webhook.server.worker import ASKED_AT

log = logging.getLogger(__name__)

BODY_LIMIT: Final = 10 * 1024 * 1024
"""Bytes of a review; old and new object of 3 MiB each, with defaults and managedFields, fit into it (V28)."""

_BODY_READ: Final = "gpu_webhook.body_read"
_JSON: Final = "application/json"
_TOO_LARGE: Final = f"the body is larger than {BODY_LIMIT} bytes"


class Ledger(Protocol):
    """`webhook.audit.ledger.Ledger`, as far as the server writes to it. Never raises: what is lost is counted there."""

    def append(self, body: bytes) -> bool: ...


def create_app(
    *,
    policy: Callable[[], Policy],
    source: FactSource,
    judge: Judge,
    ledger: Ledger,
    metrics: Metrics,
    health: Health,
    served: Callable[[int], None] = lambda _size: None,
) -> Flask:
    """Wire the parts together; all of them live as long as the process.

    `policy` gives the one in force now; `served` is told the size of each review, in bytes, once it is judged.
    """
    app = Flask(__name__, static_folder=None)

    def review(phase: Phase) -> Response:
        environ = request.environ
        asked_at: float = environ.get(ASKED_AT) or time.monotonic()
        body = read_body(environ)
        asked = wire.decode(body, phase, time.time())
        in_force = policy()
        decision = judge.judge(asked, in_force, asked_at)
        seconds = time.monotonic() - asked_at
        try:
            ledger.append(record.encode(asked, decision, in_force.name, in_force.revision, seconds * 1000))
        except Exception:
            log.exception("decision %s could not be recorded", decision.id)
            metrics.failed("record")
        if decision.note is not None and not asked.dry_run:
            source.note(decision.note)
        metrics.decided(asked, decision, seconds)
        served(len(body))
        return Response(wire.encode(asked, decision), mimetype=_JSON)

    def mutate() -> Response:
        return review("mutate")

    def validate() -> Response:
        return review("validate")

    def healthz() -> Response:
        return Response(b'{"status":"ok"}', mimetype=_JSON)

    def readyz() -> Response:
        status, body = health.ready()
        return Response(body, status=status, mimetype=_JSON)

    def measured() -> Response:
        return Response(metrics.render(), content_type=CONTENT_TYPE_LATEST)

    for path, view, method in (
        ("/mutate", mutate, "POST"),
        ("/validate", validate, "POST"),
        ("/healthz", healthz, "GET"),
        ("/readyz", readyz, "GET"),
        ("/metrics", measured, "GET"),
    ):
        app.add_url_rule(path, path, view, methods=[method], provide_automatic_options=False)
    _answer_errors(app, metrics)
    return app


def _answer_errors(app: Flask, metrics: Metrics) -> None:
    """Errors are JSON; nothing of ours ever shows a stack trace."""

    def refused(status: int, reason: str) -> Response:
        metrics.refused(status)
        return Response(wire.encode_error(status, reason), status=status, mimetype=_JSON, headers=_closing())

    @app.errorhandler(WireError)
    def not_a_review(error: WireError) -> Response:
        return refused(error.status, error.reason)

    @app.errorhandler(HTTPException)
    def not_ours(error: HTTPException) -> Response:
        response = refused(error.code or 500, f"{request.method} {request.path[:128]}: {error.name}")
        for name, value in error.get_headers():
            if name == "Allow":
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    def fault(_error: Exception) -> Response:
        log.exception("fault while answering %s %s", request.method, request.path[:128])
        metrics.failed("answer")
        return refused(500, "internal error; the server's log has it")


def _closing() -> dict[str, str]:
    """What is left unread of a body must not be taken for the next request, so such a connection ends here."""
    environ = request.environ
    has_body = environ.get("CONTENT_LENGTH", "0") != "0" or "HTTP_TRANSFER_ENCODING" in environ
    return {"Connection": "close"} if has_body and _BODY_READ not in environ else {}


def read_body(environ: dict[str, Any]) -> bytes:
    """The body of a review, read by ourselves: Flask's own limit cuts chunked bodies short without a word.

    Raises WireError: 415 for another content type, 413 above BODY_LIMIT (without reading further), 408 for a client
    that is too slow or gone, 400 for chunks that are none.
    """
    content_type = environ.get("CONTENT_TYPE", _JSON)
    if content_type != _JSON and content_type.partition(";")[0].strip().lower() != _JSON:
        raise WireError(415, f"Content-Type: expected {_JSON}, got {content_type[:64]}")
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
