"""Serve the dashboard, its data and the metrics: read-only, no state, strict headers."""

import hashlib
from typing import Any

from flask import Flask, Response, request
from werkzeug.serving import BaseWSGIServer, make_server

from webhook.exporter import publish
from webhook.exporter.exporter import Exporter

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


def application(exporter: Exporter) -> Flask:
    """The WSGI application over one exporter."""
    app = Flask("gpu-exporter", static_folder=None)
    pages = {name: (publish.dashboard_file(name), _TYPES[name.rpartition(".")[2]]) for name in publish.DASHBOARD}

    @app.get("/")
    def index() -> Response:
        return _answer(*pages["index.html"])

    @app.get("/<name>")
    def page(name: str) -> Response:
        if name in pages:
            return _answer(*pages[name])
        if name == publish.JSON_NAME:
            return _data(exporter.document, "application/json")
        if name == publish.JS_NAME:
            return _data(exporter.script, _TYPES["js"])
        return Response("not found\n", 404, content_type="text/plain")

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(exporter.metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", content_type="text/plain")

    @app.after_request
    def harden(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response

    return app


def _answer(body: bytes, content_type: str) -> Response:
    response = Response(body, content_type=content_type)
    response.set_etag(hashlib.sha256(body).hexdigest()[:32])
    conditional: Any = response.make_conditional(request)
    assert isinstance(conditional, Response)
    return conditional


def _data(body: bytes, content_type: str) -> Response:
    """The status, or 503 before the first one is made."""
    if not body:
        return Response("no status yet, the first is being made\n", 503, content_type="text/plain")
    return _answer(body, content_type)


def server(exporter: Exporter, host: str, port: int) -> BaseWSGIServer:
    """A threaded server, already listening; `serve_forever` runs it. Raises OSError if the address is taken."""
    return make_server(host, port, application(exporter), threaded=True)
