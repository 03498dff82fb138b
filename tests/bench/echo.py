"""The smallest Flask application under our worker and settings: what a review costs before anything is decided.

Like any Flask view it is answered by a thread of the pool, because the worker cannot know whether it waits. With
`at-once` the constant is answered as our reviews are, where they arrive and without WSGI: only the server is left.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flask import Flask, Response, request

from webhook.server import application
from webhook.server.connection import DeadlineSocket
from webhook.server.tls import Certificate

ANSWER = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"","allowed":true}}'


class AtOnce:
    """The constant without Flask: `webhook.server.worker.AnswersAtOnce`."""

    at_once = ("/mutate",)

    def __init__(self, pages: Flask) -> None:
        self._pages = pages

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return self._pages(environ, start_response)

    def answer(self, path: str, body: bytes, asked_at: float, may_wait: bool) -> tuple[int, bytes]:
        return 200, ANSWER


class Echo:
    """Reads the body and answers a constant."""

    def __init__(self, at_once: bool) -> None:
        self._at_once = at_once

    def start(self) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
        app = Flask(__name__, static_folder=None)

        @app.post("/mutate")
        def mutate() -> Response:
            request.environ["wsgi.input"].read(10 * 1024 * 1024 + 1)
            return Response(ANSWER, mimetype="application/json")

        @app.get("/readyz")
        def readyz() -> Response:
            return Response(b"{}", mimetype="application/json")

        return AtOnce(app) if self._at_once else app

    def drain(self) -> None:
        """Nothing to say."""

    def stop(self) -> None:
        """Nothing to end."""


def main(cert: str, key: str, how: str = "") -> None:
    certificate = Certificate(Path(cert), Path(key), DeadlineSocket)
    listener = application.listen("127.0.0.1:0")
    print(f"listening on https://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    application.serve(application.settings(listener, certificate, threads=256), Echo(how == "at-once"))


if __name__ == "__main__":
    main(*sys.argv[1:])
