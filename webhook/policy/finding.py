"""One line of `policy lint`: a code, how grave it is, where it stands, what it says and how to mend it."""

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from webhook.language import say
from webhook.policy.active import Policy
from webhook.policy.problem import Place, Problem

Level = Literal["error", "warning", "info"]


class LintFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`file` is empty and `path` names the object where a finding is about the cluster and not about a file."""

    level: Level
    code: str
    file: str
    line: int
    column: int
    path: str
    message: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        where = f"{where}: {self.path}" if where else self.path
        return f"{where}: {self.level}: {self.message} [{self.code}]" + (f" - {self.fix}" if self.fix else "")


def of_problems(problems: Iterable[Problem]) -> list[LintFinding]:
    """What kept a policy from loading, as errors with the code `Invalid`."""
    return [
        LintFinding(
            level="error",
            code="Invalid",
            file=each.file,
            line=each.line,
            column=each.column,
            path=each.path,
            message=each.message,
            fix=each.hint,
        )
        for each in problems
    ]


def finding(policy: Policy, level: Level, code: str, path: str, **values: Any) -> LintFinding:
    """A finding about a path of the policy; its texts are `lint.<code>` and `lint.<code>_fix`, code in snake case."""
    return _finding(policy, level, code, path, policy.places[path], values)


def pricing_finding(policy: Policy, level: Level, code: str, path: str, **values: Any) -> LintFinding:
    """A finding about a path of the price list."""
    return _finding(policy, level, code, path, policy.pricing_places[path], values)


def cluster_finding(policy: Policy, level: Level, code: str, name: str, **values: Any) -> LintFinding:
    """A finding about an object of the cluster, named like `ResourceQuota ai-inference/gpu`."""
    return _finding(policy, level, code, name, Place("", 0, 0), values)


def _finding(policy: Policy, level: Level, code: str, path: str, place: Place, values: dict[str, Any]) -> LintFinding:
    key = "lint." + re.sub(r"(?<!^)(?=[A-Z])", "_", code).lower()
    language = policy.spec.language
    file, line, column = place
    return LintFinding(
        level=level,
        code=code,
        file=file,
        line=line,
        column=column,
        path=path,
        message=say(language, key, **values),
        fix=say(language, f"{key}_fix", **values),
    )
