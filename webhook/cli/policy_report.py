"""How `policy` commands show what they found: tables on a terminal, JSON, Markdown, JUnit and GitHub annotations."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from webhook.audit.replay import Change, Refusal, Replay
from webhook.cli.page import Page, Row, clean, print_indented, print_table
from webhook.decision.survey import Drift, Survey
from webhook.language import Language, say
from webhook.policy.finding import LintFinding
from webhook.policy.suite import CaseResult, Coverage
from webhook.policy.which import Which

_COLORS = {"error": "red", "warning": "yellow", "info": "blue"}
_ANNOTATIONS = {"error": "error", "warning": "warning", "info": "notice"}
_PLURALS = {"error": "errors", "warning": "warnings", "info": "infos"}


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
        click.echo(", ".join(_amount(counts[level], level) for level in _COLORS if counts[level]) or "ok")


def _amount(count: int, level: str) -> str:
    return f"{count} {level if count == 1 else _PLURALS[level]}"


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


def print_tests(results: Sequence[CaseResult], reached: Coverage, language: Language, output: str) -> None:
    if output == "json":
        cases = [{**msgspec.to_builtins(each), "passed": each.passed} for each in results]
        _json({"cases": cases, "coverage": msgspec.to_builtins(reached)})
    elif output == "junit":
        click.echo(_junit(results))
    else:
        _print_test_table(results, language)
        _print_coverage(reached, language)


def _print_test_table(results: Sequence[CaseResult], language: Language) -> None:
    marks = {
        True: Text(say(language, "suite.passed"), "green"),
        False: Text(say(language, "suite.failed"), "bold red"),
    }
    titles = [say(language, f"suite.{name}") for name in ("suite", "case", "rule", "result")]
    print_table(titles, [(each.suite, each.name, each.rule or "-", marks[each.passed]) for each in results])
    failed = [each for each in results if not each.passed]
    for each in failed:
        click.echo(f"\n{marks[False].plain} {clean(each.suite)}: {clean(each.name)}")
        for failure in each.failures:
            print_indented(failure)
    click.echo("\n" + say(language, "suite.count", passed=len(results) - len(failed), count=len(results)))


def _print_coverage(reached: Coverage, language: Language) -> None:
    for what, every, missed in (
        ("rules", reached.rules, reached.missed_rules),
        ("codes", reached.codes, reached.missed_codes),
    ):
        click.echo(clean(say(language, f"suite.{what}", reached=len(every) - len(missed), count=len(every))))
        if missed:
            print_indented(say(language, "suite.missed", names=", ".join(missed)))


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
            lines = [clean(line) for failure in each.failures for line in failure.splitlines()]
            ElementTree.SubElement(case, "failure", message=lines[0]).text = "\n".join(lines)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


# -- which ------------------------------------------------------------------------------------------------------------


def print_which(answer: Which, language: Language, output: str) -> None:
    if output == "json":
        _json({**msgspec.to_builtins(answer), "covered": answer.is_covered})
        return
    labels = ", ".join(f"{key}={value}" for key, value in sorted(answer.labels.items()))
    click.echo(clean(f"{answer.namespace}: {labels or '-'}"))
    rows = []
    for each in answer.rules:
        color = {"applies": "bold green", "depends": "yellow"}.get(each.state, "")
        rows.append((each.rule, Text(say(language, f"which.state_{each.state}"), color), each.why))
    print_table(("", "", ""), rows)
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
    page = Page(language, output == "markdown")
    page.title("replay.title")
    page.say("replay.counts", records=found.records, judged=found.judged, same=found.same)
    for reason, count in sorted(found.skipped.items()):
        page.say(f"replay.skipped_{reason.lower()}", count=count)
    if found.in_force:
        page.say("replay.in_force", count=found.in_force, mismatches=found.mismatch_count)
    page.table(
        "replay.mismatches",
        ("replay.record", "replay.namespace", "replay.workload", "replay.message"),
        [(f"{each.stream} #{each.seq}", each.namespace, each.workload, each.text) for each in found.mismatches],
        below=1,
    )
    page.table("replay.flips", ("replay.direction", "replay.count"), _rows(found.flips))
    for name, refusals in (("newly_refused", found.newly_refused), ("newly_admitted", found.newly_admitted)):
        header = ("replay.namespace", "replay.workload", "replay.user", "replay.count", "replay.message")
        page.table(
            f"replay.{name}",
            header,
            [(each.namespace, each.workload, each.user, str(each.count), each.message) for each in _most(refusals)],
            below=1,
        )
    restarts = {True: say(language, "replay.yes"), False: say(language, "replay.no")}
    page.table(
        "replay.changes",
        ("replay.namespace", "replay.workload", "replay.rule", "replay.restarts"),
        [(each.namespace, each.workload, each.rule, restarts[each.restarts]) for each in _changes(found)],
    )
    for name, flips in (
        ("namespace", found.by_namespace),
        ("team", found.by_team),
        ("user", found.by_user),
        ("workload", found.by_workload),
    ):
        rows = [(key or "-", str(counts.total()), _shares(counts)) for key, counts in _by_size(flips)]
        page.table(f"replay.by_{name}", (f"replay.{name}", "replay.count", "replay.directions"), rows)
    page.table("replay.undecidable", ("replay.fact", "replay.count"), _rows(found.undecidable))
    page.end()


def _most(refusals: dict[str, Refusal]) -> list[Refusal]:
    return sorted(refusals.values(), key=lambda each: (-each.count, each.namespace, each.workload, each.user))


def _changes(found: Replay) -> list[Change]:
    changes = [each for each in found.changes.values() if each is not None]
    return sorted(changes, key=lambda each: (not each.restarts, each.namespace, each.workload))


def _flips(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def _shares(counts: Counter[str]) -> str:
    return "; ".join(f"{count} x {direction}" for direction, count in _flips(counts))


def _rows(counts: Counter[str]) -> list[Row]:
    return [(key, str(count)) for key, count in _flips(counts)]


def _by_size(flips: dict[str, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    return sorted(flips.items(), key=lambda each: (-each[1].total(), each[0]))


# -- drift and preview ------------------------------------------------------------------------------------------------


def print_drift(found: Sequence[Drift], language: Language, output: str) -> None:
    if output == "json":
        _json({"workloads": msgspec.to_builtins(found)})
        return
    page = Page(language)
    if not found:
        page.say("survey.no_drift")
    rows = [
        (
            each.namespace,
            f"{each.kind} {each.name}",
            each.rule,
            say(language, "survey.would_become", now=_placement(each.now), wanted=_placement(each.wanted)),
            each.message,
        )
        for each in found
    ]
    header = ("replay.namespace", "replay.workload", "replay.rule", "survey.change", "replay.message")
    page.table("survey.drift", header, rows, shown=len(rows), below=2)
    page.end()


def _placement(values: dict[str, str]) -> str:
    return ", ".join(filter(None, (values["priorityClassName"], values["pools"]))) or "-"


def print_preview(survey: Survey, language: Language, output: str) -> None:
    counts = Counter(each.outcome for each in survey.objects)
    if output == "json":
        _json({**msgspec.to_builtins(survey), "counts": dict(sorted(counts.items()))})
        return
    page = Page(language, output == "markdown")
    page.title("survey.preview")
    for outcome in ("refused", "patched", "unchanged"):
        page.say(f"survey.count_{outcome}", count=counts[outcome])
    page.table("replay.by_namespace", _PER_NAMESPACE, _per_namespace(survey))
    workload = ("replay.namespace", "replay.workload", "replay.rule")
    refused = [each for each in survey.objects if each.outcome == "refused"]
    page.table(
        "survey.refused",
        (*workload, "replay.message"),
        [(each.namespace, f"{each.kind} {each.name}", each.rule, each.message) for each in refused],
        below=1,
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
            below=1,
        )
    page.end()


_PER_NAMESPACE = (
    "replay.namespace",
    *(f"survey.column_{name}" for name in ("refused", "patched", "restarts", "lost", "moves")),
)


def _per_namespace(survey: Survey) -> list[Row]:
    """How much of each namespace is concerned, the most first; namespaces where nothing happens are left out."""
    counts: dict[str, Counter[str]] = {}
    for each in survey.objects:
        counts.setdefault(each.namespace, Counter()).update({each.outcome: 1, "restarts": int(each.restarts)})
    for pod in survey.pods:
        counts.setdefault(pod.namespace, Counter())[pod.fate] += 1
    columns = ("refused", "patched", "restarts", "lost", "moves")
    numbers = {name: [found[column] for column in columns] for name, found in counts.items()}
    concerned = sorted((name for name in numbers if any(numbers[name])), key=lambda name: [-n for n in numbers[name]])
    return [(name, *map(str, numbers[name])) for name in concerned]


def _why(reason: str, message: str, fate: str, language: Language) -> str:
    return message if fate == "moves" else f"{say(language, f'survey.reason_{reason}')}: {message}"


def _json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))
