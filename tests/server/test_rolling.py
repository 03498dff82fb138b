"""A rolling restart as a Deployment does it, under the load that an API server makes: nobody notices (B52)."""

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.clients import Client
from tests.server.serving import Serving, wait_until
from tests.server.standin import golden
from webhook.certs.issue import LocalFiles

CONNECTIONS = 10
RATE = 50
"""Reviews a second, over all connections."""
PATIENCE = 3.0
"""Seconds: `timeoutSeconds` of the registration. A later answer is none."""


class ApiServer:
    """Clients that keep their connections to whom they first reached, as through a ClusterIP (V26)."""

    def __init__(self, body: bytes, endpoints: list[Serving]) -> None:
        self.endpoints = endpoints
        self.failures: list[object] = []
        self.answered = [0] * CONNECTIONS
        self._body = body
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CONNECTIONS)]

    def __enter__(self) -> "ApiServer":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _ask(self, number: int) -> None:
        connection: Client | None = None
        due = time.monotonic() + number / RATE
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += CONNECTIONS / RATE
            try:
                connection = connection or self._dial(number)
                answer = connection.post("/mutate", self._body)
            except (OSError, EOFError) as error:
                self.failures.append(error)
                connection = None
                continue
            self.answered[number] += 1
            if answer.status != 200 or not answer.json["response"]["allowed"]:
                self.failures.append(answer)
            if answer.headers["connection"] == "close":
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _dial(self, number: int) -> Client:
        endpoints = self.endpoints
        return endpoints[number % len(endpoints)].client(PATIENCE)

    def asks(self, more: int) -> None:
        """Wait for so many further answers."""
        wanted = sum(self.answered) + more
        wait_until(lambda: sum(self.answered) >= wanted or bool(self.failures))


@pytest.mark.slow
def test_b52_a_rolling_restart_at_fifty_reviews_a_second_loses_none(
    tmp_path: Path, files: LocalFiles, policy_folder: Path
) -> None:
    with ExitStack() as stack:
        ever: list[Serving] = []

        def start() -> Serving:
            folder = tmp_path / f"pod-{len(ever)}"
            folder.mkdir()
            ever.append(stack.enter_context(Serving(folder, files, policy_folder)))
            return ever[-1]

        old = [start(), start()]
        with ApiServer(golden("pod-create"), old) as api:
            api.asks(2 * RATE)
            for leaving in old:  # maxSurge 1, maxUnavailable 0: the new one is ready before an old one is told to go
                api.endpoints = [*api.endpoints, start()]
                api.asks(RATE)
                api.endpoints = [each for each in api.endpoints if each is not leaving]
                api.asks(RATE)  # `preStop`: it serves as before whoever kept a connection
                assert leaving.stop() == 0
            api.asks(2 * RATE)
        assert api.failures == []
        recorded = [len(list(each.records())) for each in ever]
        assert sum(recorded) == sum(api.answered)
        assert all(recorded)
