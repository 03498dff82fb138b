"""`gpu-webhook demo`: the guided walk on the lab, and the dashboard with the walk's own decisions."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # everything heavy is imported when the command runs, so that --help is quick
    from webhook.cli.stage import Stage
    from webhook.cli.walk import Walk
    from webhook.lab.server import Lab

FOLDER = Path(".demo")


@click.command()
@click.option("--once", is_flag=True, help="Check every step, then end; exits 0 only if all showed what they should.")
def command(once: bool) -> None:
    """Walk through the product on this machine: no cluster, no GPU, nothing leaves loopback.

    Starts the look-alike cluster and the webhook (real TLS, registered with a CA made for the occasion), shows what is
    admitted, patched and refused, and what the same looks like without the webhook. Then it stays up for you to try.
    """
    from webhook.cli.stage import Stage
    from webhook.cli.walk import WalkError
    from webhook.cluster.api import ApiError

    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    started = time.monotonic()
    stage = Stage(FOLDER, (FOLDER / "kubeconfig").absolute())
    with ExitStack() as stack:
        try:
            walk = _begin(stage, stack)
            walk.run()
            _dashboard(stage, walk)
        except (WalkError, ApiError, OSError) as error:
            click.secho(f"\nThis step did not show what it should: {error}", fg="red", err=True)
            click.echo(f"The webhook's log is {FOLDER / 'serve.log'}.", err=True)
            sys.exit(1)
        click.secho(f"\nEvery step showed what it should ({time.monotonic() - started:.0f} s).", fg="green")
        if not once:
            _stay(stage, stack)


def _begin(stage: "Stage", stack: ExitStack) -> "Walk":
    """Two labs, the webhook beside the first one, registered; returns the walk through them."""
    from webhook.cli.stage import registered
    from webhook.cli.walk import Cluster, Walk
    from webhook.cluster.api import connect

    click.secho("gpu-webhook: a walk through the product, on a look-alike cluster on this machine", bold=True)
    kubeconfigs = (stage.kubeconfig, stage.folder / "kubeconfig-without")
    for path in kubeconfigs:
        stack.enter_context(_lab(path))
    walk = Walk(*(Cluster(connect(str(path))) for path in kubeconfigs), tell=_tell)
    walk.control_layer()
    walk.heading("The webhook starts (TLS, its own CA) and is registered with the API server")
    configurations = stage.registration(stack.enter_context(stage.webhook()))
    stack.enter_context(registered(walk.cluster, configurations))
    for obj in configurations:
        _tell(f"   {obj['kind']:<30}  {', '.join(each['name'] for each in obj['webhooks'])}")
    return walk


@contextmanager
def _lab(kubeconfig: Path) -> "Iterator[Lab]":
    from webhook.lab import seed
    from webhook.lab.server import Lab

    with Lab() as lab:
        lab.kubeconfig(kubeconfig)
        lab.load(seed.nodes())
        yield lab


def _dashboard(stage: "Stage", walk: "Walk") -> None:
    """Export once and check the data: the walk's own decisions must be in it."""
    from webhook.cli.walk import WalkError

    walk.heading("Every decision is on record, and the dashboard shows what became of it")
    status = stage.export()
    summary, denied = status["summary"], status["decisions"]["denied"]
    seen = {key: summary[key] for key in ("gpuRequested", "gpuQuota", "pendingPods")} | {"denied": denied}
    expected = {"gpuRequested": 5, "gpuQuota": 12, "pendingPods": 0, "denied": len(walk.refusals)}
    if seen != expected:
        raise WalkError(f"the dashboard's data: expected {expected}, saw {seen}")
    _tell(f"   {summary['gpuRequested']} of {summary['gpuQuota']} GPUs requested, {denied} refusals on record")
    _tell(f"   every record is chained to the one before it: gpu-webhook audit verify --audit {stage.audit}")


def _stay(stage: "Stage", stack: ExitStack) -> None:
    """Serve the dashboard and wait for Ctrl-C."""
    address, process = stack.enter_context(stage.exporter())
    click.echo()
    click.secho(f"   dashboard   {address}", bold=True)
    click.echo(f"   try it      export KUBECONFIG={stage.kubeconfig}")
    click.echo("               kubectl apply -f deploy/samples/quota-exceed.yaml")
    click.echo("               kubectl -n ai-inference scale deployment gpu-inference-kind-demo --replicas 3")
    click.echo(f"   decisions   .venv/bin/gpu-webhook audit tail --audit {stage.audit}")
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
