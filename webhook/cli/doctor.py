"""`gpu-webhook doctor`: is this installation safe and working, a line for each question, with the fix."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from webhook.certs.describe import Certificate
    from webhook.cluster.api import Api
    from webhook.cluster.doctor_live import Need
    from webhook.cluster.installation import Installation, Line
    from webhook.policy.active import Policy

COLORS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}
RENEW = "gpu-webhook certs ensure"


@click.command()
@click.option("--policy", "directory", type=click.Path(path_type=Path), default=Path("policies"), show_default=True)
@click.option(
    "--cluster", default="live", show_default=True, metavar="live|PATH", help="A cluster, or a file or folder of it."
)
@click.option("-n", "--namespace", default="gpu-webhook", show_default=True, help="Where the webhook runs.")
@click.option("--webhook-config", "name", default="gpu-webhook", show_default=True, help="Name of the registration.")
@click.option("--secret", default="gpu-webhook-tls", show_default=True, help="The Secret that keeps the certificates.")
@click.option("--namespace-label", default="gpu.platform/team", show_default=True, metavar="KEY")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    directory: Path, cluster: str, namespace: str, name: str, secret: str, namespace_label: str, output: str
) -> None:
    """Tell whether this installation is safe and working.

    Looks at the registration (is it there, what is in its reach, does it cover the policy), at certificates, replicas
    and permissions, and at what the policy names. Each line is OK, WARN or FAIL with its fix; with -o json each is one
    JSON object. A snapshot answers what needs no network. Exits 1 if a line is FAIL.
    """
    policy = _policy(directory, namespace)
    names: dict[str, Any] = {"namespace": namespace, "name": name, "namespace_label": namespace_label}
    lines = _live(policy, names, secret) if cluster == "live" else _snapshot(policy, names, Path(cluster))
    failed = False
    for line in lines:
        failed = failed or line.level == "FAIL"
        click.echo(_json(line) if output == "json" else _text(line))
    sys.exit(1 if failed else 0)


def _policy(directory: Path, namespace: str) -> "Policy":
    from webhook.policy.load import load
    from webhook.policy.problem import PolicyError

    try:
        return load(directory, namespace)
    except PolicyError as error:
        _unreadable(str(error))


def _snapshot(policy: "Policy", names: dict[str, Any], path: Path) -> "Iterator[Line]":
    from webhook.cluster.doctor import examine
    from webhook.cluster.installation import Installation
    from webhook.cluster.snapshot import Snapshot, SnapshotError

    try:
        installation = Installation(Snapshot(path), policy, **names)
    except SnapshotError as error:
        _unreadable(str(error))
    yield from examine(installation)
    yield from _bundles(installation)


def _live(policy: "Policy", names: dict[str, Any], secret: str) -> "Iterator[Line]":
    from webhook.cluster.api import ApiError, ClusterError, connect
    from webhook.cluster.doctor import examine
    from webhook.cluster.doctor_live import examine_live
    from webhook.cluster.installation import EXAMINED, Installation
    from webhook.cluster.whole import read_whole

    try:
        api = connect()
        whole = read_whole(api, EXAMINED)
        installation = Installation(whole.snapshot, policy, unreadable=whole.unreadable, **names)
        yield from examine(installation)
        yield from _bundles(installation)
        yield from _served(api, installation, secret)
        yield from examine_live(api, installation, _exporter_needs())
    except (ApiError, ClusterError) as error:
        _unreadable(str(error))


def _exporter_needs() -> "list[Need]":
    from webhook.exporter.live import WATCHED

    reads = [(kind.group, kind.plural, verb) for kind in WATCHED for verb in ("list", "watch")]
    return [*reads, ("", "pods/log", "get")]


# -- certificates -----------------------------------------------------------------------------------------------------


def _bundles(installation: "Installation") -> "Iterator[Line]":
    """The authorities that the API server was given, and how long they last."""
    import base64
    import binascii
    from datetime import UTC, datetime

    from webhook.certs.describe import read_certificates
    from webhook.cluster.installation import Line

    ends: list[tuple[datetime, str]] = []
    for title, webhook in installation.webhooks():
        if not webhook.client_config.ca_bundle:
            continue  # said already
        try:
            authorities = read_certificates(base64.b64decode(webhook.client_config.ca_bundle))
            ends.append((max(each.not_after for each in authorities), title))
        except (ValueError, binascii.Error):
            yield Line("FAIL", "bundle", f"{title}: its caBundle is not a list of certificates", RENEW)
    if not ends:
        return
    (end, title), seconds = min(ends), (min(ends)[0] - datetime.now(UTC)).total_seconds()
    left = f"{seconds / 86400:.0f} days ({seconds:.0f} s)"
    if seconds <= 0:
        yield Line("FAIL", "bundle", f"{title}: the last of its authorities ended at {end:%Y-%m-%d %H:%M} UTC", RENEW)
    elif seconds < 30 * 86400:
        yield Line("WARN", "bundle", f"{title}: the last of its authorities ends in {left}", RENEW)
    else:
        yield Line("OK", "bundle", f"the authorities that the API server was given last {left}")


def _served(api: "Api", installation: "Installation", secret: str) -> "Iterator[Line]":
    """The certificate that is served: trusted through each bundle, for the right name, with time left (V24, V25)."""
    from datetime import UTC, datetime

    from webhook.certs.show import problems, published_problems
    from webhook.cluster.installation import CONFIGURATIONS, Line

    if not installation.webhooks():
        return
    try:
        title, leaf = _leaf(api, installation, secret)
    except ValueError as error:
        yield Line("FAIL", "served", str(error), RENEW)
        return
    except OSError as error:
        fix = "run doctor inside the cluster, or as a user who may read that Secret"
        yield Line("WARN", "served", f"the serving certificate cannot be seen from here: {error}", fix)
        return
    now = datetime.now(UTC)
    wrong = problems([(title, leaf)], now)
    for kind in CONFIGURATIONS:
        for raw in installation.raw(kind):
            if raw["metadata"]["name"] == installation.name:
                with_bundle = [each for each in raw.get("webhooks") or () if each["clientConfig"].get("caBundle")]
                wrong += published_problems({**raw, "webhooks": with_bundle}, leaf, now)
    for name in sorted(_names_called(installation) - set(leaf.names)):
        wrong.append(
            f"{title}: does not name {name}, which the API server calls (SAN: {', '.join(leaf.names) or 'none'})"
        )
    for message in wrong:
        yield Line("FAIL", "served", message, RENEW)
    seconds = (leaf.not_after - now).total_seconds()
    if not wrong and seconds < 7 * 86400:
        yield Line("WARN", "served", f"{title}: ends in {seconds / 86400:.1f} days ({seconds:.0f} s)", RENEW)
    elif not wrong:
        message = f"{title} is trusted through every bundle; {seconds / 86400:.0f} days left ({seconds:.0f} s)"
        yield Line("OK", "served", message)


def _names_called(installation: "Installation") -> set[str]:
    """The host names under which the API server calls us."""
    from urllib.parse import urlsplit

    names = set()
    for _, webhook in installation.webhooks():
        service = webhook.client_config.service
        if service is not None:
            names.add(f"{service.name}.{service.namespace}.svc")
        elif webhook.client_config.url:
            names.add(urlsplit(webhook.client_config.url).hostname or "")
    return names


def _leaf(api: "Api", installation: "Installation", secret: str) -> "tuple[str, Certificate]":
    """What the server sends, where it can be reached from here, else what its Secret holds.

    Raises OSError that says why neither can be seen, ValueError when what is there is no certificate.
    """
    import base64
    import os

    import msgspec

    from webhook.certs.describe import read_certificates
    from webhook.certs.served import served_chain
    from webhook.cluster.api import ApiError

    config = installation.webhooks()[0][1].client_config
    if config.url:
        return f"the certificate that {config.url} serves", served_chain(config.url)[0]
    if config.service is not None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        url = f"https://{config.service.name}.{config.service.namespace}.svc:{config.service.port or 443}"
        return f"the certificate that {url} serves", served_chain(url)[0]
    try:
        body = api.get(f"/api/v1/namespaces/{installation.namespace}/secrets/{secret}")
    except ApiError as error:
        raise OSError(str(error)) from error
    data: dict[str, Any] = msgspec.json.decode(body).get("data") or {}
    title = f"Secret {installation.namespace}/{secret}, tls.crt"
    try:
        return title, read_certificates(base64.b64decode(data.get("tls.crt") or ""))[0]
    except ValueError:
        raise ValueError(f"{title}: holds no certificate, so no pod that starts now can serve") from None


# -- printing ---------------------------------------------------------------------------------------------------------


def _text(line: "Line") -> str:
    text = f"{click.style(line.level.ljust(4), fg=COLORS[line.level])}  {_plain(line.message)}  [{line.check}]"
    return f"{text}\n      fix: {_plain(line.fix)}" if line.fix and line.level != "OK" else text


def _json(line: "Line") -> str:
    import msgspec

    return msgspec.json.encode(line).decode()


def _plain(text: str) -> str:
    """Names come from a cluster: what would drive a terminal is shown, not obeyed (B65)."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _unreadable(text: str) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(2)
