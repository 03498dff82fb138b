"""`gpu-webhook export`: dashboard data, the dashboard itself and Prometheus metrics, once or for ever."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # everything heavy is imported when the command runs, so that --help is quick
    from webhook.exporter.collect import Collector
    from webhook.exporter.exporter import Exporter
    from webhook.exporter.live import ViewSource

PATIENCE_SECONDS = 3.0
"""How long --once waits for more from a pipe or from pod logs, which do not say how much there is."""
SYNC_SECONDS = 20.0
"""How long the first round waits for the lists of a live cluster."""


class ExportError(click.ClickException):
    """The exporter cannot start with what it was given."""

    exit_code = 2


@click.command()
@click.option(
    "--cluster",
    metavar="live|PATH",
    default="live",
    show_default=True,
    help="What to look at: the Kubernetes API, or a List or folder of manifests.",
)
@click.option(
    "--audit",
    "audits",
    metavar="PATH",
    multiple=True,
    help="A stream to follow: a file, a folder, - for stdin, or kubernetes for the logs of all webhook pods.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    default=Path("policies"),
    show_default=True,
    help="Folder with the policy and the GpuPricing; changes in it are taken up every round.",
)
@click.option(
    "--public-key",
    "public_keys",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Ed25519 public key (PEM) that signs the checkpoints. Repeatable.  [default: *.pub beside each file]",
)
@click.option(
    "--namespace-label",
    default="gpu.platform/team",
    show_default=True,
    metavar="KEY",
    help="The label by which the registration selects namespaces: pods there need a record.",
)
@click.option("--once", is_flag=True, help="Read everything there is, publish once and exit.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder that gets the data and the dashboard beside it.")
@click.option("--serve", "address", metavar="HOST:PORT", help="Serve the dashboard, the data and /metrics here.")
@click.option("--prometheus", metavar="URL", help="A Prometheus that scrapes DCGM: how busy the GPUs are.")
@click.option("--interval", type=click.FloatRange(1.0), default=15.0, show_default=True, help="Seconds between rounds.")
@click.option(
    "--ledger-size",
    metavar="GIB",
    type=click.FloatRange(0.1),
    default=8.0,
    show_default=True,
    help="With --audit kubernetes: how much of what was read is kept; the oldest goes, with a signed note.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Folder that keeps positions, aggregates and history.  [default: OUT/.state; without --out nothing is kept]",
)
def command(
    cluster: str,
    audits: tuple[str, ...],
    policy: Path,
    public_keys: tuple[Path, ...],
    namespace_label: str,
    once: bool,
    out: Path | None,
    address: str | None,
    prometheus: str | None,
    interval: float,
    ledger_size: float,
    state: Path | None,
) -> None:
    """Write dashboard data, serve the dashboard and metrics.

    With --once and without --out the data is printed. --once exits 1 if an audit chain does not verify.
    """
    if not once and out is None and address is None:
        raise click.UsageError("nothing to do: give --out DIR, --serve HOST:PORT or --once")
    if once and address is not None:
        raise click.UsageError("--serve goes on for ever, --once does not: leave one of them out")
    listen = None if address is None else _address(address)
    folder = state if state is not None else out / ".state" if out is not None else None
    collector = _collector(audits, folder, public_keys, ledger_size)
    exporter = _exporter(cluster, collector, policy, namespace_label, out, prometheus)
    try:
        if once:
            _once(exporter, PATIENCE_SECONDS if _has_no_end(audits) else 0.0, printed=out is None)
        else:
            _forever(exporter, listen, interval)
    finally:
        exporter.close()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is no HOST:PORT, say 127.0.0.1:8080", param_hint="--serve")
    return host.strip("[]") or "0.0.0.0", int(port)


def _collector(
    audits: tuple[str, ...], folder: Path | None, public_keys: tuple[Path, ...], ledger_size: float
) -> "Collector":
    from webhook.audit.checkpoint import KeyFileError, load_public_key
    from webhook.audit.retention import Limits
    from webhook.exporter.collect import Collector
    from webhook.exporter.keep import LEDGER_SEGMENTS

    limits = Limits(segments=LEDGER_SEGMENTS, bytes=ledger_size * (1 << 30))
    try:
        return Collector(audits, folder, [load_public_key(path) for path in public_keys], limits)
    except (KeyFileError, OSError) as error:
        raise ExportError(str(error)) from error
    except Exception as error:  # the Kubernetes client's own, which is imported only where it is needed
        if type(error).__name__ != "ConfigException":
            raise
        raise ExportError(f"--audit kubernetes: {error}; set KUBECONFIG to a kubeconfig file") from error


def _exporter(
    cluster: str,
    collector: "Collector",
    policy: Path,
    namespace_label: str,
    out: Path | None,
    prometheus: str | None,
) -> "Exporter":
    from webhook.exporter.exporter import Exporter, PolicyFolder
    from webhook.exporter.prometheus import Prometheus, PrometheusUrlError
    from webhook.exporter.publish import copy_dashboard
    from webhook.policy.problem import PolicyError

    try:
        policies = PolicyFolder(policy)
        metrics_source = Prometheus(prometheus) if prometheus else None
        if out is not None:
            copy_dashboard(out)
    except (PolicyError, PrometheusUrlError, OSError) as error:
        raise ExportError(str(error)) from error
    return Exporter(
        _source(cluster),
        policies,
        collector,
        out=out,
        prometheus=metrics_source,
        namespace_label=namespace_label,
    )


def _source(cluster: str) -> "ViewSource":
    from webhook.cluster.api import ClusterError
    from webhook.cluster.manifests import ManifestError
    from webhook.exporter.live import LiveSource, SnapshotSource

    try:
        if cluster != "live":
            return SnapshotSource(Path(cluster))
        live = LiveSource()
    except (ClusterError, ManifestError, ValueError) as error:
        raise ExportError(str(error)) from error
    live.wait(SYNC_SECONDS)
    return live


def _has_no_end(audits: tuple[str, ...]) -> bool:
    from webhook.audit.read import is_kubernetes, is_stdin

    return any(is_stdin(audit) or is_kubernetes(audit) for audit in audits)


def _once(exporter: "Exporter", patience: float, *, printed: bool) -> None:
    """One round; exit 1 for a chain that does not verify."""
    import sys
    from datetime import UTC, datetime

    try:
        status = exporter.round(datetime.now(UTC), None, patience)
    except OSError as error:
        raise ExportError(f"the data cannot be written: {error}") from error
    if printed:
        sys.stdout.buffer.write(exporter.document + b"\n")
        sys.stdout.buffer.flush()
    bad = [stream for stream in status["streams"] if stream["state"] == "bad"]
    for stream in bad:
        click.echo(f"{stream['stream']}: {stream['problem']}; locate it with: gpu-webhook audit verify", err=True)
    if bad:
        raise SystemExit(1)


def _forever(exporter: "Exporter", listen: tuple[str, int] | None, interval: float) -> None:
    """Rounds and, if asked for, the server, until SIGTERM or SIGINT."""
    import logging
    import signal
    import threading

    from webhook.exporter.serve import server

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if listen is None:
        exporter.run(interval, stop)
        return
    try:
        web = server(exporter, *listen)
    except (OSError, SystemExit) as error:
        raise ExportError(f"--serve {listen[0]}:{listen[1]}: cannot listen: {error}") from error
    click.echo(f"dashboard at http://{listen[0]}:{web.server_port}/", err=True)
    threading.Thread(target=web.serve_forever, name="dashboard", daemon=True).start()
    try:
        exporter.run(interval, stop)
    finally:
        web.shutdown()
        web.server_close()
