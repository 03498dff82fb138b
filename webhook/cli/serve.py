"""`gpu-webhook serve`: run the TLS admission server."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # everything heavy is imported when the command runs, so that --help is quick
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from webhook.server.process import OpenSource

POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NAMESPACE_LABEL = "gpu.platform/team"


class StartError(click.ClickException):
    """The server cannot start with what it was given."""

    exit_code = 2


@click.command()
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    default=Path("policies"),
    show_default=True,
    help="Folder with the policy; changes in it take effect within 5 s.",
)
@click.option(
    "--cluster",
    metavar="live|PATH",
    default="live",
    show_default=True,
    help="Where facts come from: the Kubernetes API, or a file or folder of manifests.",
)
@click.option(
    "--bind", metavar="HOST:PORT", default="0.0.0.0:8443", show_default=True, help="Where to listen; port 0: any."
)
@click.option("--cert", type=click.Path(path_type=Path), required=True, help="Serving certificate chain, PEM.")
@click.option("--key", type=click.Path(path_type=Path), required=True, help="Its private key, PEM.")
@click.option("--audit-dir", type=click.Path(path_type=Path), required=True, help="Folder that gets the audit ledger.")
@click.option(
    "--audit-key",
    type=click.Path(path_type=Path),
    help="Ed25519 private key (PEM) that signs the ledger's checkpoints; without it one is made beside the ledger.",
)
@click.option(
    "--threads",
    type=click.IntRange(32, 1024),
    default=256,
    show_default=True,
    help="Threads at most; they are started only when needed. A slow client can hold one for 10 s.",
)
@click.option(
    "--own-namespace",
    envvar="POD_NAMESPACE",
    help="Our own namespace, which is never judged.  [default: the pod's]",
)
@click.option(
    "--namespace-label",
    default=NAMESPACE_LABEL,
    show_default=True,
    help="The label by which the registration selects namespaces.",
)
def command(
    policy: Path,
    cluster: str,
    bind: str,
    cert: Path,
    key: Path,
    audit_dir: Path,
    audit_key: Path | None,
    threads: int,
    own_namespace: str | None,
    namespace_label: str,
) -> None:
    """Run the TLS admission server until SIGTERM.

    It answers POST /mutate and /validate, GET /healthz, /readyz and /metrics on one port. Certificate and policy files
    are read again when they change; a bad one never takes the last good one down. Audit records go to the ledger and to
    stdout, messages to stderr.
    """
    _log_to_stderr()
    from webhook.server import application
    from webhook.server.connection import DeadlineSocket
    from webhook.server.process import Options, Process
    from webhook.server.tls import Certificate, CertificateError

    namespace = own_namespace if own_namespace is not None else _pod_namespace()
    _check_policy(policy, namespace)
    try:
        certificate = Certificate(cert, key, DeadlineSocket)
    except CertificateError as error:
        raise StartError(str(error)) from error
    options = Options(
        policy=policy,
        audit_dir=audit_dir,
        certificate=certificate,
        open_source=_open_source(cluster),
        own_namespace=namespace,
        namespace_label=namespace_label,
        signing_key=_signing_key(audit_key),
        stdout=1,
    )
    try:
        listener = application.listen(bind)
    except application.BindError as error:
        raise StartError(str(error)) from error
    host, port, *_ = listener.getsockname()
    click.echo(f"gpu-webhook: listening on https://{f'[{host}]' if ':' in host else host}:{port}", err=True)
    application.serve(application.settings(listener, certificate, threads), Process(options))


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _pod_namespace() -> str:
    try:
        return POD_NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:  # not in a pod
        return ""


def _check_policy(directory: Path, own_namespace: str) -> None:
    from webhook.policy.load import load
    from webhook.policy.problem import PolicyError

    try:
        load(directory, own_namespace)
    except PolicyError as error:
        raise StartError(str(error)) from error


def _signing_key(path: Path | None) -> "Ed25519PrivateKey | None":
    from webhook.audit.checkpoint import KeyFileError, load_key

    if path is None:
        return None
    try:
        return load_key(path)
    except KeyFileError as error:
        raise StartError(str(error)) from error


def _open_source(cluster: str) -> "OpenSource":
    """How the serving process gets its facts; what can be wrong with them is said here, before it starts."""
    return _live() if cluster == "live" else _snapshot(Path(cluster))


def _snapshot(path: Path) -> "OpenSource":
    from webhook.cluster.snapshot import Snapshot, SnapshotError
    from webhook.server.process import Fixed, Source

    try:
        snapshot = Snapshot(path)
    except SnapshotError as error:
        raise StartError(str(error)) from error
    return lambda _covers: Source(snapshot, Fixed())


def _live() -> "OpenSource":
    from webhook.cluster.api import ClusterError, connect
    from webhook.cluster.live import LiveCluster
    from webhook.server.process import Source

    try:
        connect().close()
    except ClusterError as error:
        raise StartError(str(error)) from error

    def open_source(covers: Callable[[Mapping[str, str]], bool]) -> Source:
        live: Any = LiveCluster(connect(), covers=covers)  # connections do not survive the fork: made here
        live.start()
        return Source(live, live, live.policy_changed, live.stop)

    return open_source
