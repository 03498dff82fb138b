"""`gpu-webhook review`: judge manifests or AdmissionReviews offline, as /mutate would."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:  # everything heavy is imported when the command runs, so that --help is quick
    from webhook.cli.offline import Judged
    from webhook.cluster.snapshot import Snapshot
    from webhook.policy.active import Policy

Manifest = dict[str, Any]
_MARKS = {"allow": "allowed", "patch": "patched", "deny": "denied"}


@click.command()
@click.option(
    "-f",
    "--filename",
    "inputs",
    metavar="PATH|-",
    multiple=True,
    default=("-",),
    help="A file, a folder or - for stdin.",
)
@click.option("--policy", type=click.Path(path_type=Path), default=Path("policies"), show_default=True, help="Folder.")
@click.option(
    "--cluster", metavar="live|PATH", help="Further facts: the Kubernetes API, or a List or folder of manifests."
)
@click.option("--as", "user", metavar="USER", default="user", show_default=True, help="Who creates the objects.")
@click.option(
    "--as-group", "groups", metavar="GROUP", multiple=True, default=("system:authenticated",), show_default=True
)
@click.option("-n", "--namespace", default="", help="Namespace of objects that name none.  [default: default]")
@click.option(
    "-o", "output", type=click.Choice(["text", "json", "review", "patched"]), default="text", show_default=True
)
def command(
    inputs: tuple[str, ...],
    policy: Path,
    cluster: str | None,
    user: str,
    groups: tuple[str, ...],
    namespace: str,
    output: str,
) -> None:
    """Judge manifests or AdmissionReviews offline, as /mutate would.

    Several documents per input are fine, Lists are flattened. Namespaces, ResourceQuotas, LimitRanges, PriorityClasses
    and Nodes among them become facts; a ResourceQuota without status counts as the quota controller would fill it in.
    Workloads are judged in order as CREATEs, and an accepted one uses up quota for the next, so a rendered chart is
    judged as one demand. Exits 1 if anything is denied, 2 if an input is unreadable.

    \b
      kubectl kustomize overlays/prod | gpu-webhook review --cluster live
      gpu-webhook review -f job.yaml --cluster snapshot.json -o json
    """
    from webhook.decision.request import User

    placed = _read(inputs)
    active = _policy(policy)
    snapshot, manifests = _facts(cluster, [manifest for _, manifest in placed])
    judged: list[Judged] = []
    try:
        for each in _judge(manifests, active, snapshot, User(user, groups), namespace):
            judged.append(each)
            _print(each, output, len(judged))
    except _errors() as error:
        _unreadable(f"{_place_of(placed, len(judged))}: {error}")
    if output == "text":
        _print_summary(judged, snapshot)
    if any(each.verdict == "deny" for each in judged):
        sys.exit(1)


def _judge(
    manifests: list[Manifest], policy: "Policy", snapshot: "Snapshot", user: Any, namespace: str
) -> "Iterator[Judged]":
    from webhook.cli.offline import judge_all

    return judge_all(manifests, policy, snapshot, user, time.time(), namespace)


def _errors() -> tuple[type[Exception], ...]:
    from webhook.cluster.snapshot import SnapshotError
    from webhook.decision.offline import ManifestError
    from webhook.server.wire import WireError

    return (SnapshotError, ManifestError, WireError)


# -- reading ----------------------------------------------------------------------------------------------------------


def _read(inputs: Iterable[str]) -> list[tuple[str, Manifest]]:
    """Every object of the inputs, each with the place where it stands."""
    from webhook.cluster import manifests

    found: list[tuple[str, Manifest]] = []
    try:
        for each in inputs:
            found += manifests.parse(_stdin(), "stdin") if each == "-" else manifests.read(Path(each))
    except manifests.ManifestError as error:
        _unreadable(str(error))
    for place, manifest in found:
        if not isinstance(manifest.get("metadata") or {}, dict):
            _unreadable(f"{place}: {manifest['kind']}: metadata is not a mapping")
    return found


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        _unreadable("stdin: cannot be read: it is not UTF-8 text")


def _place_of(placed: list[tuple[str, Manifest]], number: int) -> str:
    """Where the object with this number stands, counting what is judged and not what becomes facts."""
    from webhook.cli.offline import is_fact

    return [place for place, manifest in placed if not is_fact(manifest)][number]


def _policy(folder: Path) -> "Policy":
    from webhook.policy.load import load
    from webhook.policy.problem import PolicyError

    try:
        return load(folder)
    except PolicyError as error:
        _unreadable(str(error))


def _facts(cluster: str | None, manifests: list[Manifest]) -> "tuple[Snapshot, list[Manifest]]":
    """What is known of the cluster with the inputs applied to it, and the inputs with their quotas filled in."""
    from webhook.cli.offline import is_fact, with_status
    from webhook.cluster.snapshot import Snapshot, SnapshotError

    try:
        known = _live() if cluster == "live" else Snapshot(cluster) if cluster else Snapshot.from_objects([])
        filled = [with_status(each, known, time.time()) for each in manifests]
        return known.with_objects(each for each in filled if is_fact(each)), filled
    except SnapshotError as error:
        _unreadable(str(error))


def _live() -> "Snapshot":
    """The facts of a live cluster, read once."""
    from webhook.cluster.api import ApiError, connect
    from webhook.cluster.whole import read_whole

    try:
        return read_whole(connect()).snapshot
    except ApiError as error:
        _unreadable(str(error))


def _unreadable(text: str) -> NoReturn:
    click.echo(f"gpu-webhook: {_safe(text)}", err=True)
    sys.exit(2)


# -- writing ----------------------------------------------------------------------------------------------------------


def _print(judged: "Judged", output: str, number: int) -> None:
    if output == "json":
        _echo_json(_as_json(judged))
    elif output == "review":
        _print_review(judged)
    elif output == "patched":
        if judged.verdict != "deny":
            _print_yaml(judged.patched, number)
        else:
            click.echo(f"# {_safe(_title(judged))}: denied", err=True)
            click.echo("\n".join(map(_safe, judged.decision.message.splitlines() if judged.decision else ())), err=True)
    else:
        _print_text(judged)


def _as_json(judged: "Judged") -> Manifest:
    """One line of `-o json` (DESIGN 5.2)."""
    import msgspec

    decision = judged.decision
    kind, namespace, name = _identity(judged)
    return {
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "verdict": judged.verdict,
        "would": decision.would if decision else None,
        "rule": decision.rule if decision else None,
        "patch": msgspec.to_builtins(decision.patch) if decision else [],
        "warnings": list(decision.warnings) if decision else [],
        "findings": msgspec.to_builtins(decision.findings) if decision else [],
        "gpu": dict(decision.gpu) if decision else {},
        "asks": dict(decision.asks) if decision else {},
        **({"message": decision.message} if decision and decision.message else {}),
    }


def _identity(judged: "Judged") -> tuple[str, str, str]:
    request, metadata = judged.request, judged.stored.get("metadata") or {}
    if request is None:
        return str(judged.manifest.get("kind")), str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
    name = request.name or str(metadata.get("name") or metadata.get("generateName") or "")
    return request.kind, request.namespace, name


def _title(judged: "Judged") -> str:
    kind, namespace, name = _identity(judged)
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _print_review(judged: "Judged") -> None:
    from webhook.decision.offline import uid_of
    from webhook.server.wire import API_VERSION, encode

    if judged.request is not None and judged.decision is not None:
        click.echo(encode(judged.request, judged.decision).decode())
    else:
        response = {"uid": uid_of(judged.manifest), "allowed": True}
        _echo_json({"response": response, "apiVersion": API_VERSION, "kind": "AdmissionReview"})


def _print_yaml(manifest: Manifest, number: int) -> None:
    import yaml

    if number > 1:
        click.echo("---")
    click.echo(yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True), nl=False)


def _print_text(judged: "Judged") -> None:
    decision = judged.decision
    color = {"deny": "red", "patch": "green", "allow": None}[judged.verdict]
    would = f" (would: {decision.would})" if decision and decision.would else ""
    click.echo(f"{_safe(_title(judged))}: {click.style(_MARKS[judged.verdict], fg=color, bold=True)}{would}")
    if decision is None:
        return
    if decision.verdict == "deny":
        click.echo("\n".join(f"  {_safe(line)}" for line in decision.message.splitlines()))
    for finding in decision.findings if decision.verdict != "deny" else ():
        if finding.message not in decision.warnings:
            click.echo(f"  {_safe(finding.message)}")
    for warning in decision.warnings:
        click.echo(f"  {click.style('warning:', fg='yellow')} {_safe(warning)}")


def _print_summary(judged: "list[Judged]", snapshot: "Snapshot") -> None:
    """Where a set of objects breaks, and what each namespace's quotas hold before and after it."""
    counts = {verdict: sum(each.verdict == verdict for each in judged) for verdict in _MARKS}
    first = next((each for each in judged if each.verdict == "deny"), None)
    click.echo()
    click.echo(
        ", ".join(f"{count} {_MARKS[verdict]}" for verdict, count in counts.items() if count) or "nothing to judge"
    )
    if first is not None and len(judged) > 1:
        click.echo(f"breaks at {_safe(_title(first))}")
    rows = list(_usage(judged, snapshot))
    if rows:
        _print_table(("NAMESPACE", "QUOTA", "KEY", "HARD", "USED", "ASKED", "LEFT"), rows)


def _usage(judged: "list[Judged]", snapshot: "Snapshot") -> Iterator[tuple[str, ...]]:
    """Per quota key that the objects use: hard, used before, asked by all of them, and what would be left."""
    from webhook.cli.offline import asked_of
    from webhook.k8s.quantity import QuantityError, human, parse

    for (namespace, quota, key), (hard, used, asked) in sorted(asked_of(judged, snapshot).items()):
        try:
            left = parse(hard) - parse(used) - asked
        except QuantityError:
            continue
        amounts = (human(parse(hard), key), human(parse(used), key), human(asked, key), human(left, key))
        yield (namespace, quota, key, *amounts)


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    click.echo()
    for row in (header, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _echo_json(value: Manifest) -> None:
    import json

    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _safe(text: str) -> str:
    """Without control characters: names come from files that anybody may have written (B65)."""
    return "".join(character if character.isprintable() else "?" for character in text)
