"""`gpu-webhook policy`: check, test, replay and compare policy files."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:  # everything heavy is imported when a command runs, so that --help is quick
    from webhook.cluster.snapshot import Snapshot
    from webhook.decision.survey import Estate
    from webhook.policy.load import Documents

NAMESPACE_LABEL = "gpu.platform/team"

F = TypeVar("F", bound=Callable[..., Any])


class InputError(click.ClickException):
    """What was given cannot be read."""

    exit_code = 2


def _policy_option(function: F) -> F:
    return click.option(
        "--policy",
        "policy_dir",
        type=click.Path(path_type=Path),
        default=Path("policies"),
        show_default=True,
        help="Folder with the policy.",
    )(function)


def _cluster_option(default: str | None) -> Callable[[F], F]:
    return click.option(
        "--cluster",
        metavar="live|PATH",
        default=default,
        show_default=default is not None,
        help="The Kubernetes API, or a List or folder of manifests as kubectl prints them.",
    )


def _label_option(function: F) -> F:
    return click.option(
        "--namespace-label",
        default=NAMESPACE_LABEL,
        show_default=True,
        help="The label by which the registration selects namespaces.",
    )(function)


def _output_option(*formats: str) -> Callable[[F], F]:
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Output format."
    )


@click.group("policy")
def command() -> None:
    """Check, test, replay and compare policy files.

    A policy is a folder: the *.yaml and *.yml files in it, one GpuPolicy, at most one GpuPricing, any number of
    GpuPolicyTest documents.
    """


# -- files ------------------------------------------------------------------------------------------------------------


@command.command("lint")
@_policy_option
@_cluster_option(None)
@_label_option
@_output_option("text", "json", "github")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    show_default=True,
    help="The least grave level that makes the exit status 1.",
)
def lint_command(policy_dir: Path, cluster: str | None, namespace_label: str, output: str, fail_on: str) -> None:
    """Check a policy: what is wrong, and what cannot be meant.

    With --cluster also what the policy names and the cluster lacks. -o github prints annotations for pull requests.
    """
    from datetime import UTC, datetime

    from webhook.cli import policy_report
    from webhook.policy.finding import of_problems
    from webhook.policy.lint import LEVELS, lint
    from webhook.policy.load import load
    from webhook.policy.problem import PolicyError

    known = _lint_cluster(_snapshot(cluster)) if cluster is not None else None
    try:
        policy = load(policy_dir)
    except PolicyError as error:
        if not policy_dir.is_dir():
            raise InputError(str(error)) from error
        found = of_problems(error.problems)
    else:
        found = lint(policy, known, datetime.now(UTC), namespace_label)
    policy_report.print_lint(found, output)
    if any(LEVELS.index(each.level) <= LEVELS.index(fail_on) for each in found):
        raise SystemExit(1)


@command.command("schema", short_help="Print the JSON Schema of policy files.")
def schema_command() -> None:
    """Print the JSON Schema of policy files, for editors and pull-request checks."""
    from webhook.policy.schema import schema_text

    click.echo(schema_text(), nl=False)


@command.command("test", short_help="Run the test cases beside the policy.")
@_policy_option
@_output_option("text", "json", "junit")
def test_command(policy_dir: Path, output: str) -> None:
    """Run the GpuPolicyTest documents beside the policy, and tell which rules and findings no case reaches."""
    from webhook.cli import policy_report
    from webhook.cli.policy_tests import CaseJudge
    from webhook.decision.finding import CODES
    from webhook.policy import suite

    documents = _documents(policy_dir)
    if not documents.tests:
        raise InputError(f"{policy_dir}: holds no GpuPolicyTest; write cases as docs/policy.md shows")
    policy = documents.active()
    results: list[suite.CaseResult] = []
    for loaded in documents.tests:
        judge = CaseJudge(policy, Path(loaded.file).parent, time.time())
        results += suite.run([loaded.value], judge, policy.spec.language)
    policy_report.print_tests(results, suite.coverage(policy, results, CODES), policy.spec.language, output)
    if not all(result.passed for result in results):
        raise SystemExit(1)


@command.command("which")
@_policy_option
@_cluster_option("live")
@_label_option
@click.option("-n", "--namespace", required=True, metavar="NS", help="The namespace.")
@_output_option("text", "json")
def which_command(policy_dir: Path, cluster: str, namespace_label: str, namespace: str, output: str) -> None:
    """Say which rule applies to a namespace, and why the others do not. Exits 1 if none does."""
    from webhook.cli import policy_report
    from webhook.policy.which import which

    policy = _documents(policy_dir).active()
    labels = _snapshot(cluster).current().namespace_labels(namespace)
    if labels is None:
        raise InputError(f"namespace {namespace} is not in {cluster}")
    answer = which(policy, namespace, labels, namespace_label)
    policy_report.print_which(answer, policy.spec.language, output)
    if not answer.is_covered:
        raise SystemExit(1)


# -- recorded traffic -------------------------------------------------------------------------------------------------


@command.command("replay")
@_policy_option
@click.option(
    "--audit",
    "audits",
    multiple=True,
    required=True,
    metavar="PATH",
    help="Recorded decisions: a file, a folder, `-` for stdin or `kubernetes` for the pods' logs. Repeatable.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="Compare with this policy folder instead of with the recorded answers.",
)
@click.option("--processes", type=click.IntRange(1, 256), help="Processes that judge.  [default: one per core]")
@_output_option("text", "json", "markdown")
def replay_command(
    policy_dir: Path, audits: tuple[str, ...], baseline: Path | None, processes: int | None, output: str
) -> None:
    """Judge recorded traffic again with another policy.

    Tells how many answers flip and in which direction, who would newly be refused and with which message, and whose
    template would change. Exits 1 if anybody would newly be refused, or if the policy that was in force does not
    reproduce a recorded answer.
    """
    import os

    from webhook.audit.replay import Replay, replay
    from webhook.cli import policy_report

    policy = _documents(policy_dir).active()
    base = _documents(baseline).active() if baseline is not None else None
    found = Replay()
    with policy_report.progress(_size(audits)) as advance:
        for piece in replay(_lines(audits, advance), policy, base, processes or os.cpu_count() or 1):
            found.add(piece)
    if not found.records:
        raise InputError(f"{', '.join(audits)}: holds no audit records")
    policy_report.print_replay(found, policy.spec.language, output)
    if found.is_bad_news:
        raise SystemExit(1)


def _lines(audits: tuple[str, ...], advance: Callable[[int], object]) -> Iterator[bytes]:
    """The lines of all sources, one after another."""
    from webhook.audit import read

    for audit in audits:
        if read.is_stdin(audit) or read.is_kubernetes(audit):
            follower = read.Follower([audit])
            try:
                while lines := follower.poll():
                    yield from (line.raw for line in lines)
            finally:
                follower.close()
        else:
            for path in _audit_files(audit):
                yield from read.lines_in(path, advance)


def _audit_files(audit: str) -> list[Path]:
    from webhook.audit import read

    try:
        return read.files_in(Path(audit))
    except OSError as error:
        raise InputError(f"{audit}: cannot be read: {error.strerror}") from error


def _size(audits: tuple[str, ...]) -> int | None:
    """Bytes to read, for the progress bar; None if a source has no size."""
    from webhook.audit import read

    if any(read.is_stdin(audit) or read.is_kubernetes(audit) for audit in audits):
        return None
    return sum(path.stat().st_size for audit in audits for path in _audit_files(audit))


# -- a whole cluster --------------------------------------------------------------------------------------------------


@command.command("drift")
@_policy_option
@_cluster_option("live")
@click.option("-n", "--namespace", metavar="NS", help="Only this namespace.")
@_output_option("text", "json")
def drift_command(policy_dir: Path, cluster: str, namespace: str | None, output: str) -> None:
    """List live workloads whose template differs from the policy. Exits 1 if there are any.

    They keep what they have until their template changes; `kubectl rollout restart` converges one.
    """
    from webhook.cli import policy_report
    from webhook.decision.survey import drift

    policy = _documents(policy_dir).active()
    found = [each for each in drift(policy, _estate(cluster), time.time()) if namespace in (None, each.namespace)]
    policy_report.print_drift(found, policy.spec.language, output)
    if found:
        raise SystemExit(1)


@command.command("preview", short_help="Judge everything that exists as if it were created now.")
@_policy_option
@_cluster_option("live")
@click.option("-n", "--namespace", metavar="NS", help="Only this namespace.")
@_output_option("text", "json", "markdown")
def preview_command(policy_dir: Path, cluster: str, namespace: str | None, output: str) -> None:
    """Judge everything that exists as if it were created now, in enforce mode.

    The page to read before switching from audit to enforce: what would be refused or patched, and which running pods
    would not come back. Exits 1 if there are any of the first or the last.
    """
    from webhook.cli import policy_report
    from webhook.decision.survey import preview

    policy = _documents(policy_dir).active()
    survey = preview(policy, _estate(cluster), time.time())
    if namespace is not None:
        survey = survey.of(namespace)
    policy_report.print_preview(survey, policy.spec.language, output)
    if survey.is_bad_news:
        raise SystemExit(1)


# -- reading what was given -------------------------------------------------------------------------------------------


def _documents(directory: Path) -> "Documents":
    from webhook.policy.load import load_documents
    from webhook.policy.problem import PolicyError

    try:
        return load_documents(directory)
    except PolicyError as error:
        raise InputError(str(error)) from error


def _snapshot(cluster: str, with_volumes: bool = False) -> "Snapshot":
    """The cluster as a snapshot; a live one is read once."""
    from webhook.cluster.snapshot import Snapshot, SnapshotError

    if cluster != "live":
        try:
            return Snapshot(cluster)
        except SnapshotError as error:
            raise InputError(str(error)) from error
    from webhook.cluster import kinds
    from webhook.cluster.api import ApiError, ClusterError, connect
    from webhook.cluster.whole import read_whole

    volumes = [
        kinds.Kind("PersistentVolume", "", "v1", "persistentvolumes", dict, namespaced=False),
        kinds.Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims", dict),
    ]
    try:
        api = connect()
        whole = read_whole(api, [*kinds.ALL, *(volumes if with_volumes else [])])
    except (ClusterError, ApiError) as error:
        raise InputError(str(error)) from error
    for reason in whole.unreadable.values():
        click.echo(f"not looked at: {reason}", err=True)
    return whole.snapshot


def _lint_cluster(snapshot: "Snapshot") -> Any:
    """What lint reads of a snapshot; of a kind that the snapshot does not hold nothing is known."""
    from webhook.policy.lint_cluster import Cluster

    typed = {kind: tuple(_typed(snapshot, kind)) for kind in ("Namespace", "Node", "PriorityClass", "ResourceQuota")}
    return Cluster(*(objects or None for objects in typed.values()))


def _estate(cluster: str) -> "Estate":
    from webhook.cluster import kinds
    from webhook.decision.survey import Estate, volume_nodes

    snapshot = _snapshot(cluster, with_volumes=True)
    return Estate(
        facts=snapshot.current(),
        workloads=[each for kind in kinds.WORKLOADS for each in _typed(snapshot, kind.name)],
        pods=_typed(snapshot, "Pod"),
        nodes=_typed(snapshot, "Node"),
        volumes=volume_nodes(snapshot.objects),
    )


def _typed(snapshot: "Snapshot", kind: str) -> list[Any]:
    """The objects of a kind as structs; the snapshot has already read each of them that way once."""
    import msgspec

    from webhook.cluster import kinds

    row = next(each for each in kinds.ALL if each.name == kind)
    slim = kinds.slimmer(row)
    found = [slim(msgspec.json.decode(msgspec.json.encode(each), type=row.type)) for each in snapshot.of_kind(kind)]
    return [_placed(each) if row.namespaced else each for each in found]


def _placed(found: Any) -> Any:
    """As kubectl does: without a namespace it is `default`."""
    import msgspec

    if found.metadata.namespace:
        return found
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, namespace="default"))
