"""The server is killed at random under load: what was answered is in the ledger, and every chain holds."""

import hashlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.server.serving import Serving, wait_until
from tests.server.standin import golden
from webhook.certs.issue import LocalFiles

KILLS = 20


@pytest.mark.slow
def test_every_answered_decision_survives_kill_9(tmp_path: Path, files: LocalFiles, policy_folder: Path) -> None:
    chance = random.Random(9)
    answered: set[str] = set()
    with Serving(tmp_path, files, policy_folder) as serving:
        stop = threading.Event()

        def load(number: int) -> None:
            count = 0
            while not stop.is_set():
                try:
                    with serving.client() as client:
                        while not stop.is_set():
                            count += 1
                            body = golden("pod-create", uid=f"{number}-{count}")
                            notes = client.post("/mutate", body).json["response"]["auditAnnotations"]
                            answered.add(notes["decision"])
                except (OSError, EOFError):
                    time.sleep(0.05)  # it was killed; the next process is on its way

        threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            before, victim = len(answered), serving.worker
            wait_until(lambda before=before: len(answered) > before + 10)  # type: ignore[misc]
            time.sleep(chance.random() * 0.2)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda victim=victim: _lives_anew(serving, victim))  # type: ignore[misc]
        stop.set()
        for thread in threads:
            thread.join()
        assert serving.stop() == 0
    assert len(answered) > 10 * KILLS
    recorded = {record["id"] for record in _verified(serving.audit)}
    assert answered <= recorded
    assert len(list(serving.audit.glob("*.000001.jsonl"))) == KILLS + 1


def _lives_anew(serving: Serving, victim: int) -> bool:
    try:
        return serving.worker != victim
    except ValueError:  # none at all for a moment
        return False


def _verified(folder: Path) -> list[dict[str, object]]:
    """All records of all streams, each line's hash and link checked on its bytes; half lines are left out."""
    records = []
    for path in sorted(folder.glob("*.jsonl")):
        prev, seq = "0" * 64, 0
        for line in path.read_bytes().split(b"\n")[:-1]:
            record = json.loads(line)
            assert record["prev"] == prev
            assert record["seq"] == seq + 1
            content = line.replace(b',"hash":"' + record["hash"].encode() + b'"', b"")
            assert hashlib.sha256(content).hexdigest() == record["hash"]
            prev, seq = record["hash"], record["seq"]
            records.append(record)
    return records
