"""The documentation: every YAML block in it loads and is free of lint errors, and its tables are complete."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from webhook.cli.policy_tests import CaseJudge
from webhook.decision.finding import CODES
from webhook.policy import suite
from webhook.policy.finding import LintFinding
from webhook.policy.lint import lint
from webhook.policy.load import Documents, load_documents

DOCS = Path(__file__).parents[2] / "docs"
NOW = datetime(2026, 12, 1, tzinfo=UTC)
HEAD = "apiVersion: gpu.platform/v1\nkind: GpuPolicy\nmetadata: {name: part}\nspec:\n"
RULES = "  rules:\n    - {name: r, namespaceSelector: {matchLabels: {gpu.platform/team: x}}, pools: [x]}\n"


def blocks(name: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def as_file(block: str) -> str:
    """A block that is no whole document is a part of `spec`."""
    if block.startswith("apiVersion"):
        return block
    rules = "" if "rules:" in block else RULES
    return HEAD + rules + "".join(f"  {line}\n" if line else "\n" for line in block.splitlines())


def documents(folder: Path, block: str) -> Documents:
    (folder / "block.yaml").write_text(as_file(block))
    if "kind: GpuPolicy\n" not in as_file(block):
        (folder / "policy.yaml").write_text(HEAD + RULES)
    return load_documents(folder)


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name in ("policy.md", "rollout.md") for n in range(len(blocks(name)))]
)
def test_every_yaml_block_loads_and_has_no_lint_error_or_warning(tmp_path: Path, name: str, number: int) -> None:
    found: list[LintFinding] = lint(documents(tmp_path, blocks(name)[number]).active(), None, NOW)
    expected = ["ExemptionByAccount"] if "ci/benchmark" in blocks(name)[number] else []
    assert [each.code for each in found if each.level != "info"] == expected


def test_the_tests_of_the_documentation_pass_with_its_policy(tmp_path: Path) -> None:
    whole = [block for block in blocks("policy.md") if block.startswith("apiVersion")]
    for number, block in enumerate(whole):
        (tmp_path / f"{number}.yaml").write_text(block)
    loaded = load_documents(tmp_path)
    policy = loaded.active()
    [test] = loaded.tests
    results = list(suite.run([test.value], CaseJudge(policy, tmp_path, NOW.timestamp()), "en"))
    assert [result for result in results if not result.passed] == []
    reached = {code for result in results for code in result.codes}
    assert {"TolerationInjected", "Exempt", "BreakGlass"} <= reached


def _table(name: str, heading: str) -> list[list[str]]:
    text = (DOCS / name).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_finding_code_is_in_the_table() -> None:
    assert [row[0].strip("`") for row in _table("policy.md", "Findings")] == list(CODES)


def test_every_lint_code_is_in_the_table_with_its_level() -> None:
    listed = {row[0].strip("`"): row[1] for row in _table("policy.md", "Lint")}
    source = "".join(path.read_text() for path in Path(suite.__file__).parent.glob("lint_*.py"))
    levels = {code: level for level, code in re.findall(r'"(error|warning|info)", "([A-Z]\w+)"', source)}
    listed.pop("Invalid")
    assert listed.pop("RulesOverlap") == "warning, info"
    assert listed == levels
