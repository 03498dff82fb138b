"""`gpu-webhook demo`: every step is checked, a failing one says what was expected and seen, and all ends in order."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What the demo reads of a checkout; what it writes stays here too."""
    for folder in ("deploy", "policies"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


@contextmanager
def started(project: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    process = subprocess.Popen(
        [sys.executable, "-m", "webhook", "demo", *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.terminate()  # ends the processes of the demo as well
        process.wait()


def run(project: Path, *arguments: str) -> tuple[int, str]:
    with started(project, *arguments) as process:
        out, _ = process.communicate()
        return process.returncode, out


def children(folder: Path) -> list[str]:
    """Processes that still work for a demo in `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == folder.resolve():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended, or it is not ours
            continue
    return found


def test_once_shows_every_step_in_80_columns_and_exits_0(project: Path) -> None:
    code, out = run(project, "--once")
    assert code == 0, out
    assert "Every step showed what it should" in out
    assert [line for line in out.splitlines() if line[:1].isdigit()][-1].startswith("8  ")
    for words in (
        "+ priorityClassName  gpu-training",
        "asks for 2, free 1 of 4",
        "FailedCreate  Error creating",
        "Wrong GPU pool in namespace ai-inference",
        "Priority class not allowed in namespace ai-research",
        "1 Insufficient",
    ):
        assert words in " ".join(out.split()) or words in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out  # no colours into a pipe


def test_a_step_that_fails_says_what_was_expected_and_seen_and_exits_1(project: Path) -> None:
    quotas = project / "deploy/cluster/resource-quotas.yaml"
    quotas.write_text(quotas.read_text().replace('gpu: "4"', 'gpu: "8"'))
    code, out = run(project, "--once")
    assert code == 1
    assert "expected a refusal of deployment.apps/quota-exceed-inference-demo, saw it created" in " ".join(out.split())
    assert "Traceback" not in out and "Every step" not in out
    assert children(project) == []


def test_it_is_told_where_to_run(tmp_path: Path) -> None:
    code, out = run(tmp_path)
    assert code == 2
    assert "deploy/ and policies/ are not in this folder" in out


def test_it_stays_up_with_a_dashboard_and_ctrl_c_ends_everything(project: Path) -> None:
    with started(project) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().startswith("http"):
                address = line.strip()
            assert len(line) <= 81 or str(project) in line
            if "audit tail" in line:
                break
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(address, timeout=10) as page:
            assert b"<html" in page.read()
        with opener.open(f"{address}cluster-status.json", timeout=10) as data:
            assert b'"gpuRequested":5' in data.read()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 0
    assert "Everything has ended." in rest and "Traceback" not in rest
    assert children(project) == []


def test_a_signal_in_the_middle_leaves_nothing_behind(project: Path) -> None:
    with started(project) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("3  "):
                break
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 130
    assert "Traceback" not in rest
    assert children(project) == []
