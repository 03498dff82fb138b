"""The whole path over TLS: recorded reviews in, decisions out, every one of them in the ledger."""

import base64
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jsonpatch  # type: ignore[import-untyped,unused-ignore]
import pytest

from tests.server.clients import Client
from tests.server.serving import Serving, wait_until
from tests.server.standin import GOLDEN, golden
from webhook.certs.issue import LocalFiles

SCENARIOS = sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.fixture(scope="module")
def client(server: Serving) -> Any:
    with server.client() as client:
        yield client


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_recorded_review_is_answered_over_tls(server: Serving, client: Client, scenario: str) -> None:
    for entry in json.loads((GOLDEN / f"{scenario}.json").read_text())["reviews"]:
        review, phase = entry["review"], entry["phase"]
        answer = client.post(f"/{phase}", json.dumps(review).encode())
        response = answer.json["response"]
        assert (answer.status, response["uid"]) == (200, review["request"]["uid"])
        assert answer.headers["connection"] == "keep-alive"
        if "patch" in response:
            assert phase == "mutate"
            patch = json.loads(base64.b64decode(response["patch"]))
            review["request"]["object"] = jsonpatch.apply_patch(review["request"]["object"], patch)
            again = client.post("/mutate", json.dumps(review).encode()).json["response"]
            assert "patch" not in again
        decision = response["auditAnnotations"]["decision"]
        assert any(record["id"] == decision for record in server.records())


def test_what_an_ml_engineer_reads(client: Client) -> None:
    response = client.post("/mutate", golden("deployment-over-quota")).json["response"]
    first, *rest = response["status"]["message"].splitlines()
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    assert first.startswith("GPU quota exceeded in namespace ai-training (rule training)")
    assert rest[-1].split() == ["decision", response["auditAnnotations"]["decision"]]


def test_b57_dry_runs_are_recorded_as_such_and_leave_the_counters_alone(server: Serving, client: Client) -> None:
    def counted() -> float:
        lines = server.once("/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("gpu_webhook_decisions_total{"))

    before = counted()
    decision = client.post("/mutate", golden("pod-dry-run-server")).json["response"]["auditAnnotations"]["decision"]
    assert counted() == before
    [*_, record] = [record for record in server.records() if record["id"] == decision]
    assert record["dryRun"] is True


def test_stdout_gets_the_same_lines(server: Serving, client: Client) -> None:
    decision = client.post("/mutate", golden("pod-create")).json["response"]["auditAnnotations"]["decision"]
    wait_until(lambda: decision in server.stdout.read_text())
    line = next(line for line in server.stdout.read_text().splitlines() if decision in line)
    assert any(line in path.read_text() for path in server.audit.glob("*.jsonl"))


def test_health_and_metrics(server: Serving) -> None:
    assert server.once("/healthz").json == {"status": "ok"}
    assert server.once("/readyz").json["status"] == "ok"
    assert server.metric("gpu_webhook_policy_load_ok") == 1
    assert server.metric('gpu_webhook_certificate_seconds_left{certificate="leaf"}') > 80 * 86400


def test_b71_a_policy_change_is_live_soon_without_a_failed_review(
    tmp_path: Path, files: LocalFiles, policy_folder: Path
) -> None:
    with Serving(tmp_path, files, policy_folder) as serving, serving.client() as client:
        stop, failures, body = threading.Event(), [], golden("pod-create")

        def load() -> None:
            with serving.client() as other:
                while not stop.is_set():
                    answer = other.post("/mutate", body)
                    if answer.status != 200 or not answer.json["response"]["allowed"]:
                        failures.append(answer)

        thread = threading.Thread(target=load)
        thread.start()
        path = policy_folder / "default.yaml"
        text = path.read_text()
        path.write_text(text.replace("gpu-training", "gpu-critical-inference"))
        start = time.monotonic()

        def injected() -> str:
            response = client.post("/mutate", body).json["response"]
            return base64.b64decode(response.get("patch", "")).decode()

        wait_until(lambda: '"gpu-critical-inference"' in injected(), within=5)
        assert time.monotonic() - start < 5
        path.write_text(text[:200])
        wait_until(lambda: serving.metric("gpu_webhook_policy_load_ok") == 0, within=5)
        assert serving.once("/readyz").json["status"] == "degraded"
        assert '"gpu-critical-inference"' in injected()
        path.write_text(text)
        wait_until(lambda: '"gpu-training"' in injected(), within=5)
        stop.set()
        thread.join()
        assert failures == []
        assert serving.metric("gpu_webhook_policy_load_ok") == 1
        revisions = {record["policy"]["revision"] for record in serving.records()}
        assert len(revisions) == 2


def test_nothing_is_written_outside_the_audit_folder(tmp_path: Path, files: LocalFiles, policy_folder: Path) -> None:
    """A read-only root: no control socket in $HOME, no temporary files where TMPDIR points."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    with Serving(tmp_path, files, policy_folder, HOME=str(home), TMPDIR=str(temporary)) as serving:
        serving.once("/mutate", golden("pod-create"))
        assert list(home.rglob("*")) == []
        assert list(temporary.rglob("*")) == []


def test_b52_sigterm_under_load_loses_nothing(tmp_path: Path, files: LocalFiles, policy_folder: Path) -> None:
    """Connections in use are answered with `Connection: close` and then closed; new ones are refused at once."""
    with Serving(tmp_path, files, policy_folder) as serving:
        body, answered, failures = golden("pod-create"), [0] * 8, []
        started = threading.Barrier(9)

        def load(number: int) -> None:
            with serving.client() as client:
                client.post("/mutate", body)
                started.wait()
                while True:
                    try:
                        answer = client.post("/mutate", body)
                    except (OSError, EOFError) as error:
                        failures.append(error)
                        return
                    answered[number] += 1
                    if answer.status != 200:
                        failures.append(AssertionError(answer))
                    if answer.headers["connection"] == "close":
                        return
                    time.sleep(0.01)

        threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        started.wait()
        wait_until(lambda: sum(answered) > 100)
        with serving.client() as idle:
            idle.post("/mutate", body)
            serving.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(10)
            assert failures == []
            ready = idle.get("/readyz")
            assert (ready.status, ready.headers["connection"]) == (503, "close")
            with pytest.raises(OSError):
                serving.client()
        assert serving.process.wait(20) == 0
        assert len(list(serving.records())) == sum(answered) + 9
        [checkpoints] = serving.audit.glob("*.checkpoints")
        assert json.loads(checkpoints.read_text().splitlines()[-1])["kind"] == "closing"
