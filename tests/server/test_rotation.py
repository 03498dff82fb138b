"""Certificates are rotated, half-written and mismatched under load: no handshake fails (B55)."""

import datetime as dt
import ssl
import threading
import time
from pathlib import Path

import pytest

from tests.server.clients import connect
from tests.server.serving import Serving, wait_until
from webhook.certs.issue import new_ca, new_leaf, write_file, write_files

HANDSHAKES = 2000


@pytest.mark.slow
def test_b55_none_of_two_thousand_handshakes_fails_while_pairs_are_swapped(tmp_path: Path, policy_folder: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    ca = new_ca(now)
    pairs = [new_leaf(ca, ["127.0.0.1"], now) for _ in range(4)]
    files = write_files(tmp_path / "pair", ca.cert, pairs[0])
    with Serving(tmp_path, files, policy_folder) as serving:
        stop, failures, leaves, done = threading.Event(), [], set(), [0] * 3

        until = time.monotonic() + 30

        def shake(number: int) -> None:
            """Two thousand may be over before the server, once a second, meets a good pair that is not the first."""
            while sum(done) < HANDSHAKES or (len(leaves) == 1 and time.monotonic() < until):
                try:
                    with connect(serving.port, serving.tls) as sock:
                        leaves.add(sock.getpeercert(binary_form=True))
                except OSError as error:
                    failures.append(error)
                done[number] += 1

        def rotate() -> None:
            turn = 0
            while not stop.wait(0.05):
                turn += 1
                pair = pairs[turn % len(pairs)]
                write_file(files.cert, pair.cert)
                if turn % 3:  # every third time the key comes late: a mismatched pair lies there meanwhile
                    write_file(files.key, pair.key)

        threads = [threading.Thread(target=shake, args=(number,)) for number in range(3)]
        rotation = threading.Thread(target=rotate)
        for thread in (*threads, rotation):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        rotation.join()
        assert failures == []
        assert sum(done) >= HANDSHAKES
        assert len(leaves) > 1

        write_files(files.cert.parent, ca.cert, pairs[2])
        wanted = ssl.PEM_cert_to_DER_cert(pairs[2].cert.decode())
        start = time.monotonic()

        def is_served() -> bool:
            """The pair may be served already while its last, half-written neighbour is still the error on record."""
            with connect(serving.port, serving.tls) as sock:
                leaf = sock.getpeercert(binary_form=True)
            return leaf == wanted and serving.metric("gpu_webhook_certificate_load_ok") == 1

        wait_until(is_served, within=10)
        assert time.monotonic() - start < 5
