"""`export` on the command line: what it writes, what it says, and how it exits."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit import samples
from webhook.audit.checkpoint import public_pem
from webhook.cli.export import command
from webhook.exporter.publish import DASHBOARD

ROOT = Path(__file__).parents[2]
SEED = str(ROOT / "tests/data/seed-cluster/cluster.json")
POLICY = str(ROOT / "policies")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["--policy", POLICY, *arguments])


def test_once_writes_data_and_dashboard(tmp_path: Path) -> None:
    result = run("--cluster", SEED, "--once", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {*DASHBOARD, "cluster-status.json", "cluster-status.js", ".state"}
    document = json.loads((tmp_path / "out/cluster-status.json").read_text())
    assert document["summary"]["estimatedIdleCostPerHour"] == 12


def test_once_without_a_folder_prints_the_data() -> None:
    result = run("--cluster", SEED, "--once")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["summary"]["gpuQuota"] == 12


def test_counts_outlive_the_run(tmp_path: Path) -> None:
    samples.write_stream(tmp_path / "audit", 10)
    arguments = ("--cluster", SEED, "--once", "--out", str(tmp_path / "out"), "--audit", str(tmp_path / "audit"))
    for _ in range(2):
        assert run(*arguments).exit_code == 0
        document = json.loads((tmp_path / "out/cluster-status.json").read_text())
        assert (document["decisions"]["records"], document["decisions"]["denied"]) == (10, 2)
        assert [gate["events"] for gate in document["gates"]] == [0, 0, 12, 2, 3, 0]


def test_a_stream_may_come_through_a_pipe(tmp_path: Path) -> None:
    samples.write_stream(tmp_path, 10)
    stream = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.jsonl")))
    arguments = ["export", "--policy", POLICY, "--cluster", SEED, "--once", "--audit", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "webhook", *arguments], input=stream, capture_output=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decisions"]["records"] == 10


def test_pod_logs_without_a_cluster_are_bad_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    result = run("--cluster", SEED, "--once", "--audit", "kubernetes")
    assert result.exit_code == 2 and "KUBECONFIG" in result.output


def test_a_broken_chain_is_bad_news(tmp_path: Path) -> None:
    samples.write_stream(tmp_path, 4)
    file = next(tmp_path.glob("*.jsonl"))
    file.write_bytes(file.read_bytes().replace(b'"verdict":"allow"', b'"verdict":"patch"', 1))
    result = run("--cluster", SEED, "--once", "--audit", str(tmp_path))
    assert result.exit_code == 1
    assert "audit verify" in result.stderr and "record 1" in result.stderr


def test_a_key_that_signed_nothing_here_is_bad_news_and_one_that_is_none_bad_usage(tmp_path: Path) -> None:
    stream = samples.write_stream(tmp_path / "audit", 4)
    key = Ed25519PrivateKey.generate()
    (tmp_path / "other.pem").write_bytes(public_pem(key))
    arguments = ("--cluster", SEED, "--once", "--audit", str(tmp_path / "audit"), "--public-key")
    result = run(*arguments, str(tmp_path / "other.pem"))
    assert (result.exit_code, f"{stream}: the closing checkpoint of record 4" in result.stderr) == (1, True)
    result = run(*arguments, SEED)
    assert (result.exit_code, "no usable Ed25519 public key" in result.stderr) == (2, True)


def test_bad_usage_and_unreadable_input_exit_2(tmp_path: Path) -> None:
    broken = tmp_path / "cluster.json"
    broken.write_text('{"kind": "List", "items": [')
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": 3}}')
    for arguments, words in (
        (("--cluster", SEED), "nothing to do"),
        (("--cluster", SEED, "--once", "--serve", "127.0.0.1:0"), "leave one of them out"),
        (("--cluster", SEED, "--serve", "nowhere"), "no HOST:PORT"),
        (("--cluster", str(tmp_path / "none.json"), "--once"), "none.json"),
        (("--cluster", str(broken), "--once"), "cluster.json"),
        (("--cluster", str(wrong), "--once"), "Pod p"),
        (("--cluster", SEED, "--once", "--policy", str(tmp_path)), str(tmp_path)),
        (("--cluster", SEED, "--once", "--prometheus", "prom:9090"), "--prometheus"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert words in result.output


def test_serve_prints_its_address_and_ends_at_sigterm(tmp_path: Path) -> None:
    arguments = ["export", "--policy", POLICY, "--cluster", SEED, "--serve", "127.0.0.1:0", "--interval", "1"]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "webhook", *arguments], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("dashboard at http://127.0.0.1:")
        address = line.split()[-1]
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b"cluster-status.js" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]
