"""`gpu-webhook audit`: follow, search, sum up and verify the stream of decisions."""

import csv
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # everything heavy is imported when a command runs, so that --help is quick
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from webhook.audit.query import Entry, Filter, Match, Selection, Summary
    from webhook.audit.read import Follower
    from webhook.audit.verify import StreamReport

Progress = Callable[[int], object]

_COLUMNS = ("TIME", "VERDICT", "NAMESPACE", "OBJECT", "USER", "RULE", "FINDINGS")
_ROW = "{:<24}  {:<7}  {:<16}  {:<36}  {:<24}  {:<12}  {}"
_WIDE = 150
"""Columns that a terminal needs for a row with a finding worth reading in it."""
_COLOURS = {"deny": "red", "patch": "cyan", "bad": "red", "gap": "yellow", "intact": "green"}
_CSV_COLUMNS = [
    *("time", "verdict", "would", "phase", "operation", "dryRun"),
    *("namespace", "kind", "name", "user", "rule"),
    *("codes", "message", "latencyMs", "id", "stream", "seq"),
]
_POLL_SECONDS = 0.2

_audit_option = click.option(
    "--audit",
    "audits",
    metavar="PATH|-|kubernetes",
    multiple=True,
    required=True,
    help="File or folder of records, - for stdin, kubernetes[:NAMESPACE] for the webhook pods' logs. Repeatable.",
)


class _UnreadableError(click.ClickException):
    """Input that cannot be read: exit code 2."""

    exit_code = 2


@click.group()
def command() -> None:
    """Read and verify the stream of decisions."""


# -- tail -------------------------------------------------------------------------------------------------------------


@command.command()
@_audit_option
@click.option("-f", "--follow", is_flag=True, help="Go on as records come, through rotation and restarts.")
@click.option("--lines", type=click.IntRange(min=0), default=10, show_default=True, help="How many to begin with.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def tail(audits: tuple[str, ...], follow: bool, lines: int, output: str) -> None:
    """The latest decisions; with -f also those to come.

    What is missing or was truncated meanwhile is told on stderr.
    """
    from webhook.audit.query import Filter, Selection
    from webhook.audit.read import Follower, near_the_end

    selection = Selection(Filter())
    write = _writer(output)
    with _reading():
        paths = _paths(audits)
        follower = Follower(audits if follow else paths, near_the_end(paths))
        others = [] if follow else _streams(audits)
        for match in _latest(follower, others, selection, lines):
            write(match)
        if follow:
            _go_on(follower, selection, write)
        follower.close()


def _latest(
    follower: "Follower", others: "Sequence[Iterable[bytes]]", selection: "Selection", count: int
) -> "list[Match]":
    """The last records by time, of what the follower has now and of other lines."""
    found: list[Match] = []
    while lines := follower.poll():
        found = _last(count, [*found, *selection(line.raw for line in lines)])
    return _last(count, [*found, *(match for stream in others for match in deque(selection(stream), count))])


def _last(count: int, matches: "Iterable[Match]") -> "list[Match]":
    return sorted(matches, key=lambda match: match.entry.time)[-count:] if count else []


def _go_on(follower: "Follower", selection: "Selection", write: "Callable[[Match], None]") -> None:
    """Print what comes until the user has seen enough."""
    try:
        while True:
            sys.stdout.flush()
            lines = follower.poll()
            for notice in follower.take_notices():
                if notice.kind not in ("foreign", "late"):
                    click.echo(printable(f"{notice.source}: {notice.kind}: {notice.text} {notice.stream}"), err=True)
            for match in selection(line.raw for line in lines):
                write(match)
            if not lines:
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return


# -- query and summary ------------------------------------------------------------------------------------------------


def _filter_options(function: Callable[..., None]) -> Callable[..., None]:
    options = [
        click.option("--since", metavar="WHEN", help="2h, 30m, 7d ago, or a time such as 2026-12-01T08:00:00Z."),
        click.option("--until", metavar="WHEN", help="Likewise; records from then on are left out."),
        click.option("-n", "--namespace", help="Namespace of the object."),
        click.option("--user", help="Name of the user."),
        click.option("--kind", help="Kind of the object, say Deployment."),
        click.option("--verdict", type=click.Choice(["allow", "patch", "deny"])),
        click.option("--code", help="Code of a finding, say QuotaExceeded."),
        click.option("--rule", help="Rule that decided."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@command.command()
@_audit_option
@_filter_options
@click.option("-o", "output", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
def query(audits: tuple[str, ...], output: str, **conditions: str | None) -> None:
    """Records that meet all conditions, by time.

    json prints the records as they are, one a line; csv is safe to open in a spreadsheet.

    \b
      gpu-webhook audit query --audit /var/lib/gpu-webhook/audit --since 2h --verdict deny
      gpu-webhook audit query --audit kubernetes -n ai-training -o csv > decisions.csv
    """
    from webhook.audit.query import Selection

    selection = Selection(_filter(conditions))
    write = _writer(output)
    with _reading(), _progress_bar(audits) as progress:
        for match in _select(audits, selection, progress):
            write(match)
    _tell_unreadable(selection)


@command.command()
@_audit_option
@_filter_options
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def summary(audits: tuple[str, ...], output: str, **conditions: str | None) -> None:
    """Decisions by namespace, rule and code, who was refused most, and latencies.

    Denied are records with verdict deny, admitted are those that /validate allowed. Dry runs are not counted.
    """
    from webhook.audit.query import Selection, Summariser

    selection = Selection(_filter(conditions))
    summariser = Summariser()
    with _reading(), _progress_bar(audits) as progress:
        for match in _select(audits, selection, progress, ordered=False):
            summariser.add(match.entry)
    _tell_unreadable(selection)
    if output == "json":
        import msgspec

        click.echo(msgspec.json.encode(summariser.summary()))
    else:
        _print_summary(summariser.summary())


def _filter(conditions: dict[str, str | None]) -> "Filter":
    from webhook.audit.query import Filter, moment

    now = time.time()
    for name in ("since", "until"):
        text = conditions[name]
        if text is not None:
            try:
                conditions[name] = moment(text, now)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint=f"--{name}") from error
    return Filter(**conditions)


def _select(
    audits: Sequence[str], selection: "Selection", progress: Progress, *, ordered: bool = True
) -> "Iterator[Match]":
    from webhook.audit import query
    from webhook.audit.read import files_in

    paths = _paths(audits)
    streams = [selection(lines) for lines in _streams(audits)]
    if ordered:
        yield from query.in_order([("", query.select(paths, selection, progress)), *(("", each) for each in streams)])
        return
    for path in (file for each in paths for file in files_in(each)):
        yield from selection.in_file(path, progress)
    for stream in streams:
        yield from stream


def _tell_unreadable(selection: "Selection") -> None:
    if selection.unreadable:
        click.echo(
            f"{selection.unreadable} damaged lines were skipped; `gpu-webhook audit verify` locates them", err=True
        )


def _print_summary(found: "Summary") -> None:
    when = f", {found.first} to {found.last}" if found.first else ""
    click.echo(f"{found.records} records{when} ({found.dry_runs} dry runs, not counted)")
    click.echo(f"admitted {found.admitted}, denied {found.denied}")
    if found.latency_p50 is not None:
        click.echo(f"latency p50 {found.latency_p50:g} ms, p99 {found.latency_p99:g} ms")
    for title, tallies in (("NAMESPACE", found.namespaces), ("RULE", found.rules)):
        _print_columns(
            (title, "ADMITTED", "DENIED"), [(each.name or "-", each.admitted, each.denied) for each in tallies]
        )
    _print_columns(("CODE", "COUNT"), [(each.name, each.count) for each in found.codes])
    _print_columns(("REFUSED USER", "COUNT"), [(each.name, each.count) for each in found.refused_users])
    _print_columns(
        ("REFUSED WORKLOAD", "NAMESPACE", "COUNT"),
        [(f"{each.kind}/{each.name}", each.namespace, each.count) for each in found.refused_workloads],
    )


def _print_columns(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if not rows:
        return
    cells = [list(titles), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    click.echo()
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# -- verify -----------------------------------------------------------------------------------------------------------


@command.command()
@_audit_option
@click.option(
    "--public-key",
    "public_keys",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Ed25519 public key (PEM) that signed the checkpoints. Repeatable.  [default: *.pub beside the files]",
)
@click.option("--copy", is_flag=True, help="An exporter's copy: missing records are gaps, not tampering.")
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def verify(audits: tuple[str, ...], public_keys: tuple[Path, ...], copy: bool, output: str) -> None:
    """Is every record there, and as it was written?

    For each stream: intact, unclosed (its process was killed, or still runs), gap (a copy lacks records), or bad with
    the first place that is wrong. Exits 1 if any stream is bad or has gaps. Logs (- and kubernetes) are read as copies.
    """
    with _reading(), _progress_bar(audits) as progress:
        keys = _keys(public_keys)
        reports = list(_verified(audits, keys, copy, progress))
    if not reports:
        raise _UnreadableError(f"no audit records in {', '.join(audits)}")
    if output == "json":
        import msgspec

        click.echo(msgspec.json.encode({"streams": reports}))
    else:
        for report in reports:
            _print_report(report)
    if any(report.state in ("bad", "gap") for report in reports):
        sys.exit(1)


def _keys(paths: Sequence[Path]) -> "list[Ed25519PublicKey]":
    from webhook.audit.checkpoint import KeyFileError, load_public_key

    try:
        return [load_public_key(path) for path in paths]
    except KeyFileError as error:
        raise _UnreadableError(str(error)) from error


def _verified(
    audits: Sequence[str], keys: "Sequence[Ed25519PublicKey]", copy: bool, progress: Progress
) -> "Iterator[StreamReport]":
    from webhook.audit.verify import verify, verify_lines

    for path in _paths(audits):
        yield from verify(path, keys, copy=copy, progress=progress)
    for name, lines in zip(_stream_names(audits), _streams(audits), strict=True):
        numbered = ((line, name, number) for number, line in enumerate(lines, 1))
        yield from verify_lines(numbered, keys, source=name)


def _print_report(report: "StreamReport") -> None:
    state = click.style(f"{report.state:<8}", fg=_COLOURS.get(report.state))
    signed = f"{report.checkpoints} checkpoints, signatures {report.signatures}"
    lost = f", {report.lost} lost to a full disk (the chain says so)" if report.lost else ""
    click.echo(
        f"{state}  {printable(report.stream)}  {report.records} records ({report.first}-{report.last}){lost}, {signed}"
    )
    for problem in [report.problem, *report.gaps]:
        if problem is not None:
            click.echo(printable(f"          {problem.source} line {problem.line}: {problem.kind}: {problem.text}"))
    for note in report.notes:
        click.echo(printable(f"          {note}"))


# -- sources ----------------------------------------------------------------------------------------------------------


def _paths(audits: Sequence[str]) -> list[Path]:
    from webhook.audit.read import is_kubernetes, is_stdin

    return [Path(audit) for audit in audits if not is_stdin(audit) and not is_kubernetes(audit)]


def _stream_names(audits: Sequence[str]) -> list[str]:
    from webhook.audit.read import is_kubernetes, is_stdin

    return [*("stdin" for audit in audits if is_stdin(audit)), *(audit for audit in audits if is_kubernetes(audit))]


def _streams(audits: Sequence[str]) -> list[Iterator[bytes]]:
    """The lines of stdin and of pod logs, as far as they go now."""
    streams: list[Iterator[bytes]] = []
    for name in _stream_names(audits):
        if name == "stdin":
            streams.append(line.rstrip(b"\n").strip(b"\0") for line in sys.stdin.buffer)
        else:
            from webhook.audit.pod_logs import lines_now

            streams.append(raw for _, raw in lines_now(name.partition(":")[2]))
    return streams


@contextmanager
def _reading() -> Iterator[None]:
    """What cannot be read ends with exit code 2 and the name of the place."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output has gone: click ends quietly
    except OSError as error:
        raise _UnreadableError(str(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("kubernetes", "urllib3"):
            reason = str(error).strip().partition("\n")[0]
            raise _UnreadableError(f"the logs of the webhook's pods cannot be read: {reason}") from error
        raise


@contextmanager
def _progress_bar(audits: Sequence[str]) -> Iterator[Progress]:
    """A bar on stderr while files are read, on terminals only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    from webhook.audit.query import sources_bytes

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=sources_bytes(_paths(audits)) or None)
        yield lambda count: bar.advance(task, count)


# -- output -----------------------------------------------------------------------------------------------------------


def _writer(output: str) -> "Callable[[Match], None]":
    """Prints one match at a time: nothing is kept, however many there are."""
    if output == "csv":
        rows = csv.writer(sys.stdout)
        rows.writerow(_CSV_COLUMNS)
        return lambda match: rows.writerow([spreadsheet_safe(cell) for cell in _csv_row(match.entry)])
    if output == "json":
        on_terminal = sys.stdout.isatty()
        return lambda match: click.echo(printable(match.raw.decode("utf-8", "replace")) if on_terminal else match.raw)
    width = _terminal_width()
    if width and width < _WIDE:
        return lambda match: click.echo("\n".join(_narrow_rows(match.entry, width)))
    click.echo(_ROW.format(*_COLUMNS)[:width])
    return lambda match: click.echo(_table_row(match.entry, width))


def _terminal_width() -> int | None:
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def _table_row(entry: "Entry", width: int | None) -> str:
    object_ = f"{entry.object.kind}/{entry.object.label}"
    findings = "; ".join(f"{finding.code}: {finding.message}" for finding in entry.findings)
    marks = f"{'(dry run) ' if entry.dry_run else ''}{f'(would {entry.would}) ' if entry.would else ''}"
    cells = [
        entry.time,
        entry.verdict,
        entry.object.namespace or "-",
        object_,
        entry.user.name,
        entry.policy.rule or "-",
    ]
    row = _ROW.format(*map(printable, cells), printable(marks + findings)).rstrip()[:width]
    return click.style(row, fg=_COLOURS.get(entry.verdict)) if width else row


def _narrow_rows(entry: "Entry", width: int) -> "Iterator[str]":
    """What fits no row of a narrow terminal stands under it."""
    place = f"{entry.object.namespace or '-'}  {entry.object.kind}/{entry.object.label}"
    row = printable(f"{entry.time}  {entry.verdict:<7}  {place}")[:width]
    yield click.style(row, fg=_COLOURS.get(entry.verdict))
    marks = f"{', dry run' if entry.dry_run else ''}{f', would {entry.would}' if entry.would else ''}"
    yield printable(f"    {entry.user.name}, rule {entry.policy.rule or '-'}{marks}")[:width]
    for finding in entry.findings:
        text = printable(f"{finding.code}: {finding.message}")
        yield from textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ")


def _csv_row(entry: "Entry") -> list[Any]:
    return [
        *(entry.time, entry.verdict, entry.would or "", entry.phase, entry.operation, entry.dry_run),
        *(
            entry.object.namespace or "",
            entry.object.kind,
            entry.object.label,
            entry.user.name,
            entry.policy.rule or "",
        ),
        " ".join(finding.code for finding in entry.findings),
        "; ".join(finding.message for finding in entry.findings),
        *(entry.latency_ms, entry.id, entry.stream, entry.seq),
    ]


_FORMULA_STARTS = ("=", "+", "-", "@", " ")
_UNPRINTABLE = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)]),  # control characters: C0, DEL, C1
    **dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F]),  # they turn text around
    **dict.fromkeys(map(ord, "\t\n\r\u2028\u2029"), " "),
}


def printable(text: str) -> str:
    """Text without what a terminal would obey: names and messages come from users (B65)."""
    return text if text.isprintable() else text.translate(_UNPRINTABLE)


def spreadsheet_safe(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula (B65); numbers stay numbers."""
    if not isinstance(cell, str) or (cell.isprintable() and cell[:1] not in _FORMULA_STARTS):
        return cell
    text = printable(cell)
    return f"'{text}" if text.lstrip()[:1] in _FORMULA_STARTS else text
