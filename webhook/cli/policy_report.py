"""How `policy` commands show what they found: tables on a terminal, JSON, Markdown, JUnit and GitHub annotations."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from webhook.audit.replay import Change, Refusal, Replay
from webhook.decision.survey import Drift, Survey
from webhook.language import Language, say
from webhook.policy.finding import LintFinding
from webhook.policy.suite import CaseResult, Coverage
from webhook.policy.which import Which

SHOWN = 20
"""Rows of one table on a terminal and in Markdown; JSON holds everything."""
_COLORS = {"error": "red", "warning": "yellow", "info": "blue"}
_ANNOTATIONS = {"error": "error", "warning": "warning", "info": "notice"}
_PIPED_WIDTH = 160


def clean(text: str) -> str:
    """Without control characters: names come from files and clusters that anybody may have written (B65)."""
    return "".join(character if character.isprintable() else "?" for character in text)


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[int], object]]:
    """A bar on stderr that is moved by bytes; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("replay"), BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replay", total=total)
        yield lambda count: bar.advance(task, count)


# -- lint -------------------------------------------------------------------------------------------------------------


def print_lint(found: Sequence[LintFinding], output: str) -> None:
    counts: Counter[str] = Counter(each.level for each in found)
    if output == "json":
        _json({"findings": msgspec.to_builtins(found), "counts": {level: counts[level] for level in _COLORS}})
        return
    for each in found:
        click.echo(_annotation(each) if output == "github" else _line(each))
    if output == "text":
        click.echo(", ".join(f"{counts[level]} {level}" for level in _COLORS if counts[level]) or "ok")


def _line(each: LintFinding) -> str:
    where = f"{each.file}:{each.line}:{each.column}: " if each.line else f"{each.file}: " if each.file else ""
    path = f"{each.path}: " if each.path else ""
    level = click.style(each.level, fg=_COLORS[each.level], bold=True)
    fix = f"\n    {clean(each.fix)}" if each.fix else ""
    return f"{clean(where + path)}{level}: {clean(each.message)} [{each.code}]{fix}"


def _annotation(each: LintFinding) -> str:
    """A workflow command; what would end or split it is escaped as GitHub documents."""
    place = {"file": each.file, "line": each.line, "col": each.column, "title": each.code}
    values = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in place.items() if value)
    path = f"{each.path}: " if each.path else ""
    fix = f" - {each.fix}" if each.fix else ""
    return f"::{_ANNOTATIONS[each.level]} {values}::{_escaped(f'{path}{each.message}{fix}')}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)


# -- tests ------------------------------------------------------------------------------------------------------------


def print_tests(results: Sequence[CaseResult], reached: Coverage, output: str) -> None:
    if output == "json":
        cases = [{**msgspec.to_builtins(each), "passed": each.passed} for each in results]
        _json({"cases": cases, "coverage": msgspec.to_builtins(reached)})
    elif output == "junit":
        click.echo(_junit(results))
    else:
        _print_test_table(results, reached)


def _print_test_table(results: Sequence[CaseResult], reached: Coverage) -> None:
    table = Table("suite", "case", "rule", "result", box=None, pad_edge=False)
    for each in results:
        mark = Text("passed", "green") if each.passed else Text("FAILED", "bold red")
        table.add_row(_text(each.suite), _text(each.name), _text(each.rule or "-"), mark)
        for failure in each.failures:
            table.add_row("", Text(f"  {clean(failure)}", "red"), "", "")
    _print(table)
    failed = sum(not each.passed for each in results)
    click.echo(f"\n{len(results)} cases, {failed} failed")
    for what, every, missed in (
        ("rules", reached.rules, reached.missed_rules),
        ("finding codes", reached.codes, reached.missed_codes),
    ):
        rest = f"; no case reaches {', '.join(missed)}" if missed else ""
        click.echo(f"{len(every) - len(missed)} of {len(every)} {what}{rest}")


def _junit(results: Sequence[CaseResult]) -> str:
    root = ElementTree.Element("testsuites", name="gpu-webhook policy test", tests=str(len(results)))
    root.set("failures", str(sum(not each.passed for each in results)))
    suites: dict[str, ElementTree.Element] = {}
    for each in results:
        if each.suite not in suites:
            mine = [other for other in results if other.suite == each.suite]
            failures = str(sum(not other.passed for other in mine))
            attributes = {"name": clean(each.suite), "tests": str(len(mine)), "failures": failures}
            suites[each.suite] = ElementTree.SubElement(root, "testsuite", attributes)
        case = ElementTree.SubElement(
            suites[each.suite], "testcase", {"name": clean(each.name), "classname": clean(each.suite)}
        )
        if each.failures:
            failure = ElementTree.SubElement(case, "failure", message=clean(each.failures[0]))
            failure.text = "\n".join(map(clean, each.failures))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


# -- which ------------------------------------------------------------------------------------------------------------


def print_which(answer: Which, language: Language, output: str) -> None:
    if output == "json":
        _json({**msgspec.to_builtins(answer), "covered": answer.is_covered})
        return
    labels = ", ".join(f"{key}={value}" for key, value in sorted(answer.labels.items()))
    click.echo(clean(f"{answer.namespace}: {labels or '-'}"))
    table = Table("rule", "", "", box=None, pad_edge=False, show_header=False)
    for each in answer.rules:
        color = {"applies": "bold green", "depends": "yellow"}.get(each.state, "")
        table.add_row(_text(each.rule), Text(say(language, f"which.state_{each.state}"), color), _text(each.why))
    _print(table)
    if answer.note:
        click.echo(clean(answer.note))
    elif not answer.is_covered:
        click.echo(clean(say(language, "which.no_rule", namespace=answer.namespace)))


# -- replay -----------------------------------------------------------------------------------------------------------


def replay_json(found: Replay) -> dict[str, Any]:
    """What `replay -o json` prints: everything that was found, in an order that does not change."""
    plain: dict[str, Any] = msgspec.to_builtins(found)
    plain["newlyRefused"] = msgspec.to_builtins(_most(found.newly_refused))
    plain["newlyAdmitted"] = msgspec.to_builtins(_most(found.newly_admitted))
    plain["changes"] = msgspec.to_builtins(_changes(found))
    return plain


def print_replay(found: Replay, language: Language, output: str) -> None:
    if output == "json":
        _json(replay_json(found))
        return
    page = _Page(language, output == "markdown")
    page.title("replay.title")
    page.say("replay.counts", records=found.records, judged=found.judged, same=found.same)
    for reason, count in sorted(found.skipped.items()):
        page.say(f"replay.skipped_{reason.lower()}", count=count)
    page.say("replay.in_force", count=found.in_force, mismatches=found.mismatch_count)
    page.table("replay.flips", ("replay.direction", "replay.count"), _rows(found.flips))
    for name, flips in (
        ("namespace", found.by_namespace),
        ("team", found.by_team),
        ("user", found.by_user),
        ("workload", found.by_workload),
    ):
        rows = [(key or "-", direction, str(n)) for key, counts in _by_size(flips) for direction, n in _flips(counts)]
        page.table(f"replay.by_{name}", (f"replay.{name}", "replay.direction", "replay.count"), rows)
    for name, refusals in (("newly_refused", found.newly_refused), ("newly_admitted", found.newly_admitted)):
        header = ("replay.namespace", "replay.workload", "replay.user", "replay.count", "replay.message")
        page.table(
            f"replay.{name}",
            header,
            [(each.namespace, each.workload, each.user, str(each.count), each.message) for each in _most(refusals)],
        )
    restarts = {True: say(language, "replay.yes"), False: say(language, "replay.no")}
    page.table(
        "replay.changes",
        ("replay.namespace", "replay.workload", "replay.rule", "replay.restarts"),
        [(each.namespace, each.workload, each.rule, restarts[each.restarts]) for each in _changes(found)],
    )
    page.table("replay.undecidable", ("replay.fact", "replay.count"), _rows(found.undecidable))
    page.table(
        "replay.mismatches",
        ("replay.record", "replay.namespace", "replay.workload", "replay.message"),
        [(f"{each.stream} #{each.seq}", each.namespace, each.workload, each.text) for each in found.mismatches],
    )
    page.end()


def _most(refusals: dict[str, Refusal]) -> list[Refusal]:
    return sorted(refusals.values(), key=lambda each: (-each.count, each.namespace, each.workload, each.user))


def _changes(found: Replay) -> list[Change]:
    changes = [each for each in found.changes.values() if each is not None]
    return sorted(changes, key=lambda each: (not each.restarts, each.namespace, each.workload))


def _flips(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def _rows(counts: Counter[str]) -> list[tuple[str, ...]]:
    return [(key, str(count)) for key, count in _flips(counts)]


def _by_size(flips: dict[str, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    return sorted(flips.items(), key=lambda each: (-each[1].total(), each[0]))


# -- drift and preview ------------------------------------------------------------------------------------------------


def print_drift(found: Sequence[Drift], language: Language, output: str) -> None:
    if output == "json":
        _json({"workloads": msgspec.to_builtins(found)})
        return
    page = _Page(language, False)
    if not found:
        page.say("survey.no_drift")
    rows = [
        (
            each.namespace,
            f"{each.kind} {each.name}",
            each.rule,
            _placement(each.now),
            _placement(each.wanted),
            each.message,
        )
        for each in found
    ]
    header = ("replay.namespace", "replay.workload", "replay.rule", "survey.now", "survey.wanted", "replay.message")
    page.table("survey.drift", header, rows, shown=len(rows))
    page.end()


def _placement(values: dict[str, str]) -> str:
    return ", ".join(filter(None, (values["priorityClassName"], values["pools"]))) or "-"


def print_preview(survey: Survey, language: Language, output: str) -> None:
    counts = Counter(each.outcome for each in survey.objects)
    if output == "json":
        _json({**msgspec.to_builtins(survey), "counts": dict(sorted(counts.items()))})
        return
    page = _Page(language, output == "markdown")
    page.title("survey.preview")
    for outcome in ("refused", "patched", "unchanged"):
        page.say(f"survey.count_{outcome}", count=counts[outcome])
    workload = ("replay.namespace", "replay.workload", "replay.rule")
    refused = [each for each in survey.objects if each.outcome == "refused"]
    page.table(
        "survey.refused",
        (*workload, "replay.message"),
        [(each.namespace, f"{each.kind} {each.name}", each.rule, each.message) for each in refused],
    )
    restarts = {True: say(language, "replay.yes"), False: say(language, "replay.no")}
    page.table(
        "survey.patched",
        (*workload, "replay.restarts"),
        [
            (each.namespace, f"{each.kind} {each.name}", each.rule, restarts[each.restarts])
            for each in survey.objects
            if each.outcome == "patched"
        ],
    )
    for fate in ("lost", "moves"):
        page.table(
            f"survey.{fate}",
            ("replay.namespace", "survey.pod", "survey.owner", "survey.node", "survey.why"),
            [
                (each.namespace, each.name, each.owner, each.node, _why(each.reason, each.message, fate, language))
                for each in survey.pods
                if each.fate == fate
            ],
        )
    page.end()


def _why(reason: str, message: str, fate: str, language: Language) -> str:
    return message if fate == "moves" else f"{say(language, f'survey.reason_{reason}')}: {message}"


# -- pages ------------------------------------------------------------------------------------------------------------


class _Page:
    """A page of sentences and tables, for a terminal or in Markdown; its texts come from the catalogues by key."""

    def __init__(self, language: Language, markdown: bool) -> None:
        self._language = language
        self._markdown = markdown
        self._notes: list[str] = []

    def title(self, key: str) -> None:
        text = say(self._language, key)
        click.echo(f"## {text}\n" if self._markdown else click.style(text, bold=True))

    def say(self, key: str, **values: Any) -> None:
        click.echo(("- " if self._markdown else "") + clean(say(self._language, key, **values)))

    def table(self, key: str, header: Iterable[str], rows: Sequence[tuple[str, ...]], shown: int = SHOWN) -> None:
        """A table with its title; nothing where there are no rows."""
        if not rows:
            return
        titles = [say(self._language, name) for name in header]
        click.echo()
        title = f"{say(self._language, key)} ({len(rows)})"
        if self._markdown:
            click.echo(f"### {title}\n\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
            for row in rows[:shown]:
                click.echo(f"| {' | '.join(map(_cell, row))} |")
        else:
            table = Table(*titles, box=None, pad_edge=False, header_style="bold")
            for row in rows[:shown]:
                table.add_row(*map(_text, row))
            click.echo(click.style(title, bold=True))
            _print(table)
        if len(rows) > shown:
            click.echo(say(self._language, "replay.more", count=len(rows) - shown))

    def end(self) -> None:
        if self._markdown:
            click.echo()


def _cell(text: str) -> str:
    """A Markdown cell: what would end it, start markup or mention somebody is escaped."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]<>#|~" else c for c in clean(text))
    return escaped.replace("@", "@\u200b")


def _text(text: str) -> Text:
    return Text(clean(text))


def _print(table: Table) -> None:
    """To stdout; without a terminal wide enough that names stay whole."""
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_PIPED_WIDTH)
    console.print(table)


def _json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))
