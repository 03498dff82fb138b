"""`gpu-webhook lab`: a look-alike Kubernetes API on loopback, for demos and tests only."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from threading import Event


@click.command("lab")
@click.option("--bind", default="127.0.0.1:0", show_default="a free port", metavar="ADDR:PORT", help="Where to listen.")
@click.option(
    "--kubeconfig",
    "kubeconfig_path",
    type=click.Path(dir_okay=False),
    default=".lab/kubeconfig",
    show_default=True,
    help="Where to write the kubeconfig.",
)
@click.option(
    "--nodes", metavar="FILE|seed", help="Nodes to start with: a file or folder of Node manifests, or `seed`."
)
@click.option(
    "--load",
    "paths",
    multiple=True,
    type=click.Path(exists=True),
    metavar="PATH",
    help="Objects to store as they are, status included; a List, a manifest or a folder. Repeatable.",
)
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NS/NAME=HOST:PORT",
    help="Where a webhook registered by service reference really listens. Repeatable.",
)
@click.option("--tls/--plain-http", default=True, show_default=True, help="Serve TLS with a CA of its own.")
def command(
    bind: str, kubeconfig_path: str, nodes: str | None, paths: tuple[str, ...], services: tuple[str, ...], tls: bool
) -> None:
    """Run a look-alike Kubernetes API on loopback, until Ctrl-C. For demos and tests only.

    Unmodified kubectl and client libraries work against it. It keeps everything in memory, allows everybody
    everything, runs no containers, and only plays the parts of Kubernetes that decide whether a workload is admitted,
    counted and scheduled. docs/lab.md says what it does and what it does not.
    """
    from pathlib import Path

    from webhook.lab.errors import ApiError
    from webhook.lab.server import Lab

    host, port = _address(bind, "--bind")
    objects = _objects(nodes, paths)
    try:
        lab = Lab(host=host, port=port, tls=tls, services=dict(map(_service, services)))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {bind}: {error.strerror or error}; try another --bind") from error
    told = _told_to_stop()  # whoever reads that we are ready may tell us at once
    with lab:
        try:
            lab.load(objects)
        except ApiError as error:
            raise click.UsageError(f"cannot load objects: {error}") from error
        path = lab.kubeconfig(Path(kubeconfig_path).absolute())
        click.echo(f"lab: {lab.url}, {len(objects)} objects loaded; Ctrl-C stops it", err=True)
        click.echo(f"export KUBECONFIG={path}")
        told.wait()
    click.echo("lab: stopped", err=True)


def _told_to_stop() -> "Event":
    """Set at Ctrl-C or SIGTERM, from now on."""
    import signal
    from threading import Event

    told = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    return told


def _objects(nodes: str | None, paths: tuple[str, ...]) -> list[dict[str, object]]:
    from pathlib import Path

    from webhook.lab import seed

    objects = seed.nodes() if nodes == "seed" else []
    try:
        for path in [*([nodes] if nodes and nodes != "seed" else []), *paths]:
            objects += seed.read(Path(path))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"cannot read objects: {error}") from error
    return objects


def _address(text: str, option: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{option} {text!r}: write ADDRESS:PORT, say 127.0.0.1:6443")
    return host.strip("[]") or "127.0.0.1", int(port)


def _service(text: str) -> tuple[tuple[str, str], tuple[str, int]]:
    reference, separator, address = text.partition("=")
    namespace, slash, name = reference.partition("/")
    if not (separator and slash and namespace and name):
        raise click.UsageError(f"--service {text!r}: write NAMESPACE/NAME=HOST:PORT")
    return (namespace, name), _address(address, "--service")
