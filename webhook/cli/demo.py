"""`gpu-webhook demo`: the guided walk on the lab, and the dashboard with the walk's own decisions."""

import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # everything heavy is imported when the command runs, so that --help is quick
    from webhook.cli.stage import Stage
    from webhook.cli.walk import Walk
    from webhook.lab.server import Lab

FOLDER = Path(".demo")
WIDEST = 100
"""Columns beyond which text is hard to read, however wide the terminal is."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

INTRODUCTION = """\
Teams share the GPUs of a cluster. A manifest says what a workload needs; on whose nodes it may run, and who goes \
first when GPUs are short, is the platform team's policy. gpu-webhook stands between the two: when a workload is \
applied, it adds its team's priority class and node pool, or refuses it with one message: why, and what to change."""


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

    if not Path("deploy/samples").is_dir() or not Path("policies").is_dir():
        raise click.UsageError("run it where the project lies: deploy/ and policies/ are not in this folder")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    started = time.monotonic()
    stage = Stage(FOLDER, (FOLDER / "kubeconfig").absolute())
    try:
        with _unwound() as stack:
            walk = _begin(stage, stack)
            walk.run()
            _dashboard(stage, walk)
            click.secho(f"\nEvery step showed what it should ({time.monotonic() - started:.0f} s).", fg="green")
            if not once:
                _stay(stage, stack)
    except (WalkError, ApiError, OSError) as error:
        click.secho(f"\nThis step did not show what it should: {error}", fg="red", err=True)
        click.echo(f"The webhook's log is {FOLDER / 'serve.log'}.", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("\nInterrupted; everything has ended.", err=True)
        sys.exit(130)


@contextmanager
def _unwound() -> Iterator[ExitStack]:
    """A stack that is unwound whatever ends us: Ctrl-C, SIGTERM, a closed terminal; a second Ctrl-C changes nothing."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            try:
                yield stack
            finally:
                for number in heeded:
                    signal.signal(number, signal.SIG_IGN)
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def _begin(stage: "Stage", stack: ExitStack) -> "Walk":
    """Two labs, the webhook beside the first one, registered; returns the walk through them."""
    from webhook.cli.stage import registered
    from webhook.cli.walk import Cluster, Walk
    from webhook.cluster.api import connect

    click.secho("gpu-webhook: a walk through the product, on a look-alike cluster on this machine\n", bold=True)
    _tell(INTRODUCTION)
    kubeconfigs = (stage.kubeconfig, stage.folder / "kubeconfig-without")
    for path in kubeconfigs:
        stack.enter_context(_lab(path))
    walk = Walk(*(Cluster(connect(str(path))) for path in kubeconfigs), tell=_tell)
    walk.control_layer()
    walk.heading("The policy, and the webhook that applies it, registered over TLS")
    _policy(stage)
    address, _ = stack.enter_context(stage.webhook())
    configurations = stage.registration(address)
    stack.enter_context(registered(walk.cluster, configurations))
    for obj in configurations:
        _tell(f"   {obj['kind']:<30}  {', '.join(each['clientConfig']['url'] for each in obj['webhooks'])}")
    return walk


@contextmanager
def _lab(kubeconfig: Path) -> "Iterator[Lab]":
    from webhook.lab import seed
    from webhook.lab.server import Lab

    with Lab() as lab:
        lab.kubeconfig(kubeconfig)
        lab.load(seed.nodes())
        yield lab


def _policy(stage: "Stage") -> None:
    """The rules, one a line."""
    from webhook.policy.load import load

    row = "   {:<13} {:<23} {}"
    _tell(row.format("team", "priority class", "node pool"))
    for rule in load(stage.policy).spec.rules:
        _tell(row.format(rule.name, rule.priority_class_name or "", ", ".join(rule.pools or ())))


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
    _tell(f"   {summary['gpuRequested']} of {summary['gpuQuota']} GPUs requested, {denied} refusals on record;")
    _tell("   each record is chained to the one before it, so that none can be lost or changed unseen:")
    _tell(f"   $ gpu-webhook audit verify --audit {stage.audit}")


def _stay(stage: "Stage", stack: ExitStack) -> None:
    """Serve the dashboard and wait for Ctrl-C. Raises WalkError if the exporter ends by itself."""
    from webhook.cli.walk import WalkError

    address, process = stack.enter_context(stage.exporter())
    click.secho("\nIt stays up for you to try; Ctrl-C ends everything.", bold=True)
    click.echo(f"""
   the dashboard, with what you just saw
     {address}
   kubectl, in another terminal
     export KUBECONFIG={stage.kubeconfig}
     kubectl apply -f deploy/samples/quota-exceed.yaml
     kubectl -n ai-inference scale deploy/gpu-inference-kind-demo --replicas=3
   the decisions, as they come
     .venv/bin/gpu-webhook audit tail -f --audit {stage.audit}""")
    try:
        process.wait()
    except KeyboardInterrupt:
        click.echo("\nEverything has ended.")
        return
    raise WalkError(f"expected the exporter to stay up, saw it end: {stage.log('export.log')}")


def _tell(text: str) -> None:
    """A piece of the story, broken to the terminal's width, with a little colour where a terminal shows it."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for line in text.split("\n"):
        for part in _broken(line, width):
            click.secho(part, **_style(line))


def _broken(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width` columns; what follows the first piece stands under its text."""
    if len(line) <= width:
        return [line]
    body = line.lstrip()
    indent = len(line) - len(body)
    label, gap, _ = body.partition("  ")  # a row of a refusal: its text starts in a column of its own
    hanging = indent
    if gap:
        hanging += len(body) - len(body[len(label) :].lstrip())
    return textwrap.wrap(line, width, subsequent_indent=" " * hanging, break_long_words=False, break_on_hyphens=False)


def _style(line: str) -> dict[str, Any]:
    stripped = line.lstrip()
    if line[:1].isdigit():
        return {"bold": True}
    if stripped.startswith("+ "):
        return {"fg": "green"}
    if stripped.startswith("Warning: "):
        return {"fg": "yellow"}
    return {"fg": "red"} if stripped.startswith(("- ", "Error from server")) else {}
