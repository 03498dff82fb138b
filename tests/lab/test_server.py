"""The lab as a Python object and as a command: it starts, prints what to export, and stops cleanly."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.lab.conftest import DATA, namespace_object, pod
from webhook.cli.lab import command
from webhook.lab import resources, seed
from webhook.lab.server import Lab


def test_it_stops_quickly_and_leaves_no_threads() -> None:
    before = threading.active_count()
    with Lab(tls=False) as lab:
        lab.create(namespace_object("x"))
        assert threading.active_count() > before
        began = time.monotonic()
    assert time.monotonic() - began < 1
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("lab-")]


def test_loading_keeps_identity_and_fills_in_what_lacks(quiet_lab: Lab) -> None:
    recorded = json.loads((DATA / "busy-cluster" / "cluster.json").read_text())
    quiet_lab.load([recorded])
    wanted = next(o for o in recorded["items"] if o["kind"] == "Pod" and o["status"]["phase"] == "Running")
    stored = quiet_lab.registry.get(resources.PODS, wanted["metadata"]["namespace"], wanted["metadata"]["name"])
    for each in (stored, wanted):
        each["metadata"].pop("resourceVersion")
    assert stored == wanted
    quiet_lab.load([pod("bare")])
    assert quiet_lab.registry.get(resources.PODS, "default", "bare")["metadata"]["uid"]


def test_waiting_too_long_is_an_error(quiet_lab: Lab) -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        quiet_lab.wait(lambda: False, 0.01)


def test_seed_nodes_are_ready_and_pooled() -> None:
    pools = {node["metadata"]["labels"].get("gpu.platform/pool") for node in seed.nodes()}
    assert pools == {None, "inference", "training", "research"}


def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    program = "from webhook.cli.lab import command; command()"
    cluster = str(DATA / "seed-cluster" / "cluster.json")
    arguments = ["--plain-http", "--kubeconfig", str(tmp_path / "kc"), "--load", cluster, "--nodes", "seed"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"}, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == f"export KUBECONFIG={tmp_path / 'kc'}\n"
        url = process.stderr.readline().split()[1].rstrip(",")
        with urllib.request.urlopen(f"{url}/api/v1/nodes", timeout=5) as response:
            assert len(json.loads(response.read())["items"]) == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    assert (tmp_path / "kc").stat().st_mode & 0o077 == 0


def test_help_says_what_it_is_for() -> None:
    assert "For demos and tests only." in " ".join(CliRunner().invoke(command, ["--help"]).output.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--bind", "nowhere"], "--bind 'nowhere': write ADDRESS:PORT, say 127.0.0.1:6443"),
        (["--service", "x=y"], "--service 'x=y': write NAMESPACE/NAME=HOST:PORT"),
        (["--nodes", "/does/not/exist"], "cannot read objects"),
    ],
)
def test_bad_usage_is_explained(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2 and complaint in result.output


def test_an_unknown_kind_cannot_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("apiVersion: x/v1\nkind: Y\nmetadata: {name: z}\n")
    result = CliRunner().invoke(command, ["--load", str(file), "--kubeconfig", str(tmp_path / "kc")])
    assert result.exit_code == 2 and 'no matches for kind "Y" in version "x/v1"' in result.output
