"""The smallest Flask application under our worker and settings: what a review costs before anything is decided."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flask import Flask, Response, request

from webhook.server import application
from webhook.server.connection import DeadlineSocket
from webhook.server.tls import Certificate

ANSWER = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"","allowed":true}}'


class Echo:
    """Reads the body and answers a constant."""

    def start(self) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
        app = Flask(__name__, static_folder=None)

        @app.post("/mutate")
        def mutate() -> Response:
            request.environ["wsgi.input"].read(10 * 1024 * 1024 + 1)
            return Response(ANSWER, mimetype="application/json")

        @app.get("/readyz")
        def readyz() -> Response:
            return Response(b"{}", mimetype="application/json")

        return app

    def drain(self) -> None:
        """Nothing to say."""

    def stop(self) -> None:
        """Nothing to end."""


def main(cert: str, key: str) -> None:
    certificate = Certificate(Path(cert), Path(key), DeadlineSocket)
    listener = application.listen("127.0.0.1:0")
    print(f"listening on https://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    application.serve(application.settings(listener, certificate, threads=256), Echo())


if __name__ == "__main__":
    main(*sys.argv[1:])
