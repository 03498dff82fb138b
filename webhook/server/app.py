"""The Flask application: reviews, and the pages that kubelet, Prometheus and people ask for."""

import logging
from collections.abc import Callable

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from webhook.decision.facts import FactSource
from webhook.policy.active import Policy
from webhook.server import wire
from webhook.server.health import Health
from webhook.server.judge import Judge
from webhook.server.metrics import Metrics
from webhook.server.reviews import JSON, Ledger, Reviews, has_unread_body

log = logging.getLogger(__name__)


def create_app(
    *,
    policy: Callable[[], Policy],
    source: FactSource,
    judge: Judge,
    ledger: Ledger,
    metrics: Metrics,
    health: Health,
    served: Callable[[int], None] = lambda _size: None,
) -> Reviews:
    """Wire the parts together, reviews in front of Flask's pages; all of them live as long as the process.

    `policy` gives the one in force now; `served` is told the size of each review, in bytes, once it is judged.
    """
    app = Flask(__name__, static_folder=None)

    @app.get("/healthz")
    def healthz() -> Response:
        return Response(b'{"status":"ok"}', mimetype=JSON)

    @app.get("/readyz")
    def readyz() -> Response:
        status, body = health.ready()
        return Response(body, status=status, mimetype=JSON)

    @app.get("/metrics")
    def measured() -> Response:
        return Response(metrics.render(), content_type=CONTENT_TYPE_LATEST)

    _answer_errors(app, metrics)
    return Reviews(
        app.wsgi_app, policy=policy, source=source, judge=judge, ledger=ledger, metrics=metrics, served=served
    )


def _answer_errors(app: Flask, metrics: Metrics) -> None:
    """Errors are JSON; nothing of ours ever shows a stack trace."""

    def refused(status: int, reason: str) -> Response:
        metrics.refused(status)
        headers = {"Connection": "close"} if has_unread_body(request.environ) else {}
        return Response(wire.encode_error(status, reason), status=status, mimetype=JSON, headers=headers)

    @app.errorhandler(HTTPException)
    def not_ours(error: HTTPException) -> Response:
        return refused(error.code or 500, f"{request.method} {request.path[:128]}: {error.name}")

    @app.errorhandler(Exception)
    def fault(_error: Exception) -> Response:
        log.exception("fault while answering %s %r", request.method, request.path[:128])
        metrics.failed("answer")
        return refused(500, "internal error; the server's log has it")
