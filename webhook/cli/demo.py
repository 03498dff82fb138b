"""`gpu-webhook demo`: the guided walk on the lab, and the dashboard with the walk's own decisions."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # everything heavy is imported when the command runs, so that --help is quick
    from webhook.cli.walk import Walk
    from webhook.lab.server import Lab

FOLDER = Path(".demo")
START = 20.0
"""Seconds that a process may take to answer."""


@click.command()
@click.option("--once", is_flag=True, help="Check every step, then end; exits 0 only if all showed what they should.")
def command(once: bool) -> None:
    """Walk through the product on this machine: no cluster, no GPU, nothing leaves loopback.

    Starts the look-alike cluster and the webhook (real TLS, registered with a CA made for the occasion), shows what is
    admitted, patched and refused, and what the same looks like without the webhook. Then it stays up for you to try.
    """
    from webhook.cli.walk import WalkError
    from webhook.cluster.api import ApiError

    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    started = time.monotonic()
    with ExitStack() as stack:
        try:
            walk = _stage(stack)
            _walk(walk)
            _dashboard(walk)
        except (WalkError, ApiError, OSError) as error:
            click.secho(f"\nThis step did not show what it should: {error}", fg="red", err=True)
            click.echo(f"The webhook's log is {FOLDER / 'serve.log'}.", err=True)
            sys.exit(1)
        click.secho(f"\nEvery step showed what it should ({time.monotonic() - started:.0f} s).", fg="green")
        if not once:
            _stay(stack)


# -- the stage --------------------------------------------------------------------------------------------------------


def _stage(stack: ExitStack) -> "Walk":
    """Two labs, the webhook beside the first one, registered; returns the walk through them."""
    from webhook.cli.walk import Cluster, Walk
    from webhook.cluster.api import connect

    click.secho("gpu-webhook: a walk through the product, on a look-alike cluster on this machine", bold=True)
    first, second = (stack.enter_context(_lab(name)) for name in ("kubeconfig", "kubeconfig-without"))
    for each in (first, second):
        each.load(_nodes())
    clusters = [Cluster(connect(str(FOLDER / name))) for name in ("kubeconfig", "kubeconfig-without")]
    walk = Walk(*clusters, tell=_tell)
    walk.control_layer()
    port = stack.enter_context(_webhook())
    _register(walk, port)
    return walk


@contextmanager
def _lab(kubeconfig: str) -> "Iterator[Lab]":
    from webhook.lab.server import Lab

    with Lab() as lab:
        lab.kubeconfig((FOLDER / kubeconfig).absolute())
        yield lab


def _nodes() -> list[dict[str, Any]]:
    from webhook.lab import seed

    return seed.nodes()


@contextmanager
def _webhook() -> Iterator[int]:
    """The TLS server as its own process, as in a pod; yields its port."""
    from webhook.certs.issue import local_pair

    pair = local_pair(FOLDER / "certs", names=["127.0.0.1", "localhost"])
    arguments = ["serve", "--bind", "127.0.0.1:0", "--cert", str(pair.cert), "--key", str(pair.key)]
    with _process([*arguments, "--audit-dir", str(FOLDER / "audit")], "serve.log") as process:
        yield int(_awaited_line(process, FOLDER / "serve.log", "listening on https://").rpartition(":")[2])


@contextmanager
def _process(arguments: list[str], log: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of our own commands against the first lab, ended with SIGTERM."""
    environment = {**os.environ, "KUBECONFIG": str((FOLDER / "kubeconfig").absolute())}
    with (FOLDER / log).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "webhook", *arguments], stdout=subprocess.DEVNULL, stderr=output, env=environment
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def _awaited_line(process: subprocess.Popen[bytes], log: Path, words: str) -> str:
    """The first line of a log that holds `words`, without what stands before them."""
    from webhook.cli.walk import WalkError

    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if words in line:
                return line
        time.sleep(0.05)
    raise WalkError(f"expected {words!r} in {log}, saw: {log.read_text(errors='replace')[-2000:]}")


def _register(walk: "Walk", port: int) -> None:
    from webhook.policy import registration
    from webhook.policy.load import load

    walk.heading("The webhook starts (TLS, its own CA) and is registered with the API server")
    authority = (FOLDER / "certs" / "ca.crt").read_bytes()
    spec = load(Path("policies")).spec
    wanted = registration.Registration(url=f"https://127.0.0.1:{port}", ca_bundle=authority)
    for obj in registration.configurations(spec, wanted):
        walk.cluster.create(obj)
        _tell(f"   {obj['kind']} {obj['metadata']['name']}: {', '.join(each['name'] for each in obj['webhooks'])}")
    _await_ready(walk, port)


def _await_ready(walk: "Walk", port: int) -> None:
    import ssl
    import urllib.error
    import urllib.request

    context = ssl.create_default_context(cafile=str(FOLDER / "certs" / "ca.crt"))
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{port}/readyz", context=context, timeout=2) as answer:
                _tell(f"   /readyz: {answer.read().decode().strip()}")
                return
        except urllib.error.HTTPError:
            time.sleep(0.05)
    from webhook.cli.walk import WalkError

    raise WalkError(f"the webhook was not ready within {START:.0f} s; see {FOLDER / 'serve.log'}")


def _walk(walk: "Walk") -> None:
    walk.run()


# -- the dashboard ----------------------------------------------------------------------------------------------------


def _dashboard(walk: "Walk") -> None:
    """Export once and check the data: the walk's own decisions must be in it."""
    import json

    from webhook.cli.walk import WalkError

    walk.heading("Every decision is on record, and the dashboard shows what became of it")
    _export_once()
    status = json.loads((FOLDER / "dashboard" / "cluster-status.json").read_text())
    summary = status["summary"]
    for key, expected in {"gpuRequested": 5, "gpuQuota": 12, "pendingPods": 0}.items():
        if summary[key] != expected:
            raise WalkError(f"dashboard, summary.{key}: expected {expected}, saw {summary[key]}")
    denied = status["decisions"]["denied"]
    if denied != len(walk.refusals):
        raise WalkError(f"dashboard, decisions.denied: expected {len(walk.refusals)}, saw {denied}")
    streams = status["streams"]
    _tell(f"   {summary['gpuRequested']} of {summary['gpuQuota']} GPUs requested, {denied} refusals on record")
    _tell(f"   audit chain: {', '.join(each['state'] for each in streams)}")


def _export_once() -> None:
    from webhook.cli.walk import WalkError

    arguments = ["export", "--once", "--audit", str(FOLDER / "audit"), "--out", str(FOLDER / "dashboard")]
    with _process(arguments, "export.log") as process:
        if process.wait(60) != 0:
            raise WalkError(f"the exporter failed: {(FOLDER / 'export.log').read_text(errors='replace')[-2000:]}")


def _stay(stack: ExitStack) -> None:
    """Serve the dashboard and wait for Ctrl-C."""
    arguments = ["export", "--audit", str(FOLDER / "audit"), "--out", str(FOLDER / "dashboard"), "--interval", "2"]
    process = stack.enter_context(_process([*arguments, "--serve", "127.0.0.1:0"], "export.log"))
    address = _awaited_line(process, FOLDER / "export.log", "http://")
    click.echo()
    click.secho(f"   dashboard   http://{address.partition('http://')[2].split()[0]}", bold=True)
    click.echo(f"   try it      export KUBECONFIG={(FOLDER / 'kubeconfig').absolute()}")
    click.echo("               kubectl apply -f deploy/samples/quota-exceed.yaml")
    click.echo("               kubectl -n ai-inference scale deployment gpu-inference-kind-demo --replicas 3")
    click.echo(f"   decisions   gpu-webhook audit tail --audit {FOLDER / 'audit'}")
    click.echo("   Ctrl-C ends everything.")
    try:
        process.wait()
    except KeyboardInterrupt:
        click.echo()


def _tell(text: str) -> None:
    """A line of the story, with a little colour where a terminal shows it."""
    for line in text.split("\n"):
        stripped = line.lstrip()
        if line[:1].isdigit():
            click.secho(line, bold=True)
        elif stripped.startswith("+ "):
            click.secho(line, fg="green")
        elif stripped.startswith(("- ", "Error from server")):
            click.secho(line, fg="red")
        else:
            click.echo(line)
