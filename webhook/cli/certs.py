"""`gpu-webhook certs`: make and renew certificates, and show which are where."""

import datetime as dt
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kubernetes import client

    from webhook.certs.describe import Certificate

_namespace = click.option("-n", "--namespace", default="gpu-webhook", show_default=True, help="Where the webhook runs.")
_secret = click.option("--secret", default="gpu-webhook-tls", show_default=True, help="The Secret that keeps them.")
_configs = click.option(
    "--webhook-config",
    "configs",
    multiple=True,
    default=("gpu-webhook",),
    show_default=True,
    metavar="NAME",
    help="A webhook configuration (mutating and validating) that trusts them; repeatable.",
)


@click.group()
def command() -> None:
    """Make, renew and show certificates. certs/README.md explains what there is and why."""


@command.command()
@_namespace
@click.option("--service", default="gpu-webhook", show_default=True, help="The Service that the API server calls.")
@_secret
@_configs
@click.option("--name", "extra", multiple=True, metavar="NAME", help="A further DNS name or IP address; repeatable.")
@click.option("--watch", "keep_watching", is_flag=True, help="Look again every minute, until SIGTERM.")
@click.option("--local", type=click.Path(path_type=Path, file_okay=False), help="Files in this folder, no cluster.")
def ensure(
    namespace: str,
    service: str,
    secret: str,
    configs: tuple[str, ...],
    extra: tuple[str, ...],
    keep_watching: bool,
    local: Path | None,
) -> None:
    """Bring certificates to where they should be now: made, renewed or left alone.

    In a cluster the Secret is written with optimistic locking, and the authorities (old and new) are published in the
    webhook configurations. With --local the files are for localhost and 127.0.0.1.
    """
    if local is not None:
        _ensure_local(local, extra)
        return
    from kubernetes import client
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    from webhook.certs import bundle, issue
    from webhook.certs.ensure import brief, watch
    from webhook.certs.ensure import ensure as ensure_once
    from webhook.certs.store import ConflictError, SecretStore

    api = _api_client()
    store = SecretStore(client.CoreV1Api(api), namespace, secret)
    publish = partial(bundle.publish, client.AdmissionregistrationV1Api(api), configs)
    names = (*issue.service_names(service, namespace), *extra)

    def once() -> Any:
        return ensure_once(store, publish, names, dt.datetime.now(dt.UTC))

    if keep_watching:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        watch(once, stop.wait, lambda line: click.echo(f"{dt.datetime.now(dt.UTC):%FT%TZ} {line}"))
        return
    try:
        outcome = once()
    except (ApiException, HTTPError, ConflictError) as error:
        click.echo(f"certificates not ensured: {brief(error)}", err=True)
        sys.exit(1)
    click.echo(str(outcome))
    sys.exit(1 if outcome.missing else 0)


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--url", metavar="https://HOST:PORT", help="Ask this server what it serves.")
@_namespace
@_secret
@_configs
def show(files: tuple[Path, ...], url: str | None, namespace: str, secret: str, configs: tuple[str, ...]) -> None:
    """Print who certificates are for, until when, and whether the right ones are trusted; exit 1 if something is wrong.

    FILES are PEM files, or folders that hold tls.crt and ca.crt. With --url the chain that a server really serves is
    shown, checked against the authorities in FILES. With neither, the Secret of the cluster, checked against the
    caBundle of both webhook configurations.
    """
    from webhook.certs import show as text

    now = dt.datetime.now(dt.UTC)
    published: list[dict[str, Any]] = []
    if files or url:
        found = _from_files(files)
        served = _from_url(url) if url else []
    else:
        found, published = _from_cluster(namespace, secret, configs)
        served = []
    everything = [*served, *found]
    for title, certificate in everything:
        click.echo("\n".join(text.describe(title, certificate, now)))
    wrong = text.problems(everything, now)
    authorities = [certificate for _, certificate in found if certificate.is_ca]
    for title, leaf in everything:
        if leaf.is_ca:
            continue
        wrong += [
            problem for configuration in published for problem in text.published_problems(configuration, leaf, now)
        ]
        if authorities and (problem := text.trust_problem(f"{title}: the authority given", leaf, authorities, now)):
            wrong.append(problem)
    for line in wrong:
        click.echo(f"WRONG  {line}")
    sys.exit(1 if wrong else 0)


def _ensure_local(folder: Path, extra: tuple[str, ...]) -> None:
    from webhook.certs import issue, local

    files, plan = local.ensure(folder, (*issue.LOCAL_NAMES, *extra))
    click.echo(f"{files.cert}: {plan.action.value}: {plan.reason}")


def _from_files(files: tuple[Path, ...]) -> "list[tuple[str, Certificate]]":
    from webhook.certs.describe import read_certificates

    found = []
    for path in _pem_files(files):
        try:
            certificates = read_certificates(path.read_bytes())
        except (ValueError, OSError) as error:
            click.echo(f"{path}: not a PEM certificate: {error}", err=True)
            sys.exit(2)
        found += [(_title(str(path), index, len(certificates)), one) for index, one in enumerate(certificates, 1)]
    return found


def _pem_files(files: tuple[Path, ...]) -> list[Path]:
    return [path for given in files for path in ([given / "tls.crt", given / "ca.crt"] if given.is_dir() else [given])]


def _from_url(url: str) -> "list[tuple[str, Certificate]]":
    from webhook.certs.served import served_chain

    try:
        chain = served_chain(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    except OSError as error:
        click.echo(f"{url}: no TLS server answers there: {error}", err=True)
        sys.exit(2)
    return [(_title(url, index, len(chain)), one) for index, one in enumerate(chain, 1)]


def _from_cluster(
    namespace: str, secret: str, configs: tuple[str, ...]
) -> "tuple[list[tuple[str, Certificate]], list[dict[str, Any]]]":
    from kubernetes import client
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    from webhook.certs import bundle, describe, ensure, store

    api = _api_client()
    where = f"Secret {namespace}/{secret}"
    try:
        stored = store.SecretStore(client.CoreV1Api(api), namespace, secret).read_public()
        published = bundle.read(client.AdmissionregistrationV1Api(api), configs)
    except (ApiException, HTTPError) as error:
        click.echo(f"{where}: {ensure.brief(error)}", err=True)
        sys.exit(2)
    found = []
    for key, pem in stored.items():
        try:
            certificates = describe.read_certificates(pem)
        except ValueError:
            click.echo(f"WRONG  {where}: {key} holds no certificate; run `gpu-webhook certs ensure`")
            sys.exit(1)
        title = f"{where}, {key}"
        found += [(_title(title, index, len(certificates)), one) for index, one in enumerate(certificates, 1)]
    return found, published


def _title(where: str, index: int, count: int) -> str:
    return where if count == 1 else f"{where} ({index} of {count})"


def _api_client() -> "client.ApiClient":
    """The cluster of KUBECONFIG, else the one that this pod runs in, else of ~/.kube/config (as `cluster.api` does)."""
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    path = os.environ.get("KUBECONFIG")
    try:
        if not path and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(path)  # type: ignore[no-untyped-call]
    except ConfigException as error:
        click.echo(f"no cluster to talk to: {error}; set KUBECONFIG to a kubeconfig file, or use --local", err=True)
        sys.exit(2)
    return client.ApiClient()
