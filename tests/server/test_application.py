"""gunicorn's settings, and what they are for."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.server.clients import Client, context
from tests.server.serving import ROOT
from webhook.certs.issue import LocalFiles
from webhook.server import application
from webhook.server.connection import DeadlineSocket
from webhook.server.tls import Certificate

SHORT = """
import sys
from pathlib import Path
from tests.bench.echo import Echo
from webhook.server import application
from webhook.server.tls import Certificate
from webhook.server.connection import DeadlineSocket
listener = application.listen("127.0.0.1:0")
print(listener.getsockname()[1], flush=True)
certificate = Certificate(Path(sys.argv[1]), Path(sys.argv[2]), DeadlineSocket)
application.serve(application.settings(listener, certificate, 32) | {"timeout": 2}, Echo(at_once=True))
"""
"""A server whose worker is killed when it gives no sign of life for two seconds."""


def test_settings_that_others_rely_on(files: LocalFiles) -> None:
    listener = application.listen("127.0.0.1:0")
    found = application.settings(listener, Certificate(files.cert, files.key, DeadlineSocket), 256)
    os.close(int(found["bind"].removeprefix("fd://")))
    assert found["keepalive"] > 90  # V27
    assert found["workers"] == 1
    assert found["control_socket_disable"] is True
    assert found["worker_connections"] - found["threads"] >= 1000


def test_b51_a_connection_in_use_outlives_the_workers_timeout(files: LocalFiles) -> None:
    """Requests for longer than the timeout, with pauses, on one connection, then a burst: nobody is killed or reset."""
    process = subprocess.Popen(
        [sys.executable, "-c", SHORT, str(files.cert), str(files.key)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        tls = context(files.ca)
        with Client(port, tls) as client:
            worker = children.read_text()
            until = time.monotonic() + 5
            while time.monotonic() < until:
                assert client.post("/mutate", b"{}").status == 200
                time.sleep(0.5)
        burst = [Client(port, tls) for _ in range(8)]
        for _ in range(25):
            for client in burst:
                assert client.post("/mutate", b"{}").status == 200
        for client in burst:
            client.close()
        assert children.read_text() == worker
    finally:
        process.terminate()
        process.wait(30)
