"""`gpu-webhook policy`: what each command prints and how it exits."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tests.decision import build
from webhook.audit import record
from webhook.cli.policy import command
from webhook.decision.engine import judge
from webhook.policy.load import load

POLICIES = Path(__file__).parents[2] / "policies"
DATA = Path(__file__).parents[1] / "data"
SEED = DATA / "seed-cluster" / "cluster.json"


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(command, list(map(str, arguments)), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped policy to be changed."""
    target = tmp_path / "policies"
    shutil.copytree(POLICIES, target)
    return target


def edit(folder: Path, old: str, new: str, name: str = "default.yaml") -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def test_help_says_what_each_command_does_without_cutting_it_off() -> None:
    _, _, commands = run("--help").stdout.partition("Commands:\n")
    assert len(commands.splitlines()) == 7
    assert "..." not in commands


# -- lint and schema --------------------------------------------------------------------------------------------------


def test_lint_of_the_shipped_policy_is_good() -> None:
    result = run("lint", "--policy", POLICIES)
    assert (result.exit_code, result.stdout) == (0, "ok\n")


def test_lint_errors_exit_1_with_place_and_fix(folder: Path) -> None:
    edit(folder, "priorityClassName: gpu-training", "priorityClassName: system-node-critical")
    result = run("lint", "--policy", folder)
    assert result.exit_code == 1
    first = f"{folder}/default.yaml:16:26: spec.rules[1].priorityClassName: error: rule training names system-node"
    assert result.stdout.startswith(first)
    assert result.stdout.endswith("1 error\n")


def test_lint_of_a_file_that_does_not_load_is_a_lint_error_too(folder: Path) -> None:
    edit(folder, "pools: [training]", "pool: [training]")
    result = run("lint", "--policy", folder, "-o", "json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["counts"] == {"error": 1, "warning": 0, "info": 0}
    [found] = answer["findings"]
    assert (found["code"], found["line"], found["fix"]) == ("Invalid", 18, "did you mean pools?")


def test_b04_lint_against_a_cluster_finds_a_class_that_exists_nowhere(folder: Path) -> None:
    edit(folder, "priorityClassName: gpu-training", "priorityClassName: gpu-trainin")
    result = run("lint", "--policy", folder, "--cluster", SEED)
    assert result.exit_code == 1
    assert "PriorityClass gpu-trainin does not exist (did you mean gpu-training?)" in result.stdout


def test_lint_warnings_fail_only_when_asked(folder: Path) -> None:
    arguments = ("lint", "--policy", folder, "--cluster", SEED)
    assert run(*arguments).exit_code == 0
    assert run(*arguments, "--fail-on", "warning").exit_code == 1


def test_lint_counts_in_words_that_fit_the_number(folder: Path) -> None:
    edit(folder, 'contact: "#gpu-platform"', "mode: strict\n  qouta: {}")
    assert run("lint", "--policy", folder).stdout.endswith("\n2 errors\n")
    assert run("lint", "--policy", POLICIES, "--cluster", SEED).stdout.endswith("\n6 warnings\n")


def test_lint_prints_annotations_for_github(folder: Path) -> None:
    edit(folder, "name: training", "name: 'train,ing%'")
    edit(
        folder,
        "namespaceSelector: {matchLabels: {gpu.platform/team: training}}",
        "namespaceSelector: {matchLabels: {a: b}}",
    )
    result = run("lint", "--policy", folder, "-o", "github")
    assert result.exit_code == 1
    assert result.stdout.startswith(
        f"::error file={folder}/default.yaml,line=15,col=26,title=RegistrationGap::spec.rules[1]"
    )
    assert "rule train,ing%25 selects" in result.stdout


def test_lint_of_another_registration_label(folder: Path) -> None:
    edit(folder, "gpu.platform/team", "tenant")
    assert run("lint", "--policy", folder).exit_code == 1
    assert run("lint", "--policy", folder, "--namespace-label", "tenant").exit_code == 0


@pytest.mark.parametrize("name", ["lint", "test", "drift", "preview", "which"])
def test_input_that_cannot_be_read_exits_2(name: str, tmp_path: Path) -> None:
    more = {"drift": ["--cluster", SEED], "preview": ["--cluster", SEED], "which": ["-n", "x", "--cluster", SEED]}
    result = run(name, "--policy", tmp_path / "missing", *more.get(name, []))
    assert result.exit_code == 2
    assert "missing: the policy folder could not be read" in result.stderr
    if name not in ("lint", "test"):
        result = run(name, "--policy", POLICIES, *[each if each != SEED else tmp_path / "gone" for each in more[name]])
        assert result.exit_code == 2
        assert "no such file or folder" in result.stderr


def test_schema_prints_the_committed_file() -> None:
    assert run("schema").stdout == (POLICIES / "schema.json").read_text()


# -- test -------------------------------------------------------------------------------------------------------------

UNREACHABLE = {"TolerationInjected", "Exempt", "BreakGlass", "OverBudget", "NoRoomNow", "InternalError"}
"""Codes that no case of the shipped policy can reach; docs/policy.md says why."""


def test_the_shipped_policy_passes_its_own_tests_and_reaches_all_it_can() -> None:
    result = run("test", "--policy", POLICIES, "-o", "json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert all(case["passed"] for case in answer["cases"])
    assert answer["coverage"]["missed_rules"] == []
    assert set(answer["coverage"]["missed_codes"]) == UNREACHABLE


def test_b46_a_forged_exemption_is_a_tested_case_of_the_shipped_policy() -> None:
    cases = json.loads(run("test", "--policy", POLICIES, "-o", "json").stdout)["cases"]
    forged = next(case for case in cases if case["name"] == "an exemption that a tenant wrote is taken away")
    assert forged["passed"]
    assert "ExemptionRemoved" in forged["codes"]


def test_a_failing_case_says_what_was_expected_and_what_came(folder: Path) -> None:
    edit(folder, "pools: [research]", "pools: [training]")
    result = run("test", "--policy", folder)
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "no finding NodeNameOutsidePool; found " in result.stdout
    assert "3 of 3 rules" in result.stdout


def test_a_denial_that_reads_differently_is_shown_line_by_line(folder: Path) -> None:
    edit(folder, "priorityClassName: gpu-batch-low", "priorityClassName: gpu-low")
    result = run("test", "--policy", folder)
    assert "\n      to fix     remove priorityClassName: gpu-low is set for you\n" in result.stdout


def test_junit_names_each_case_and_its_failure(folder: Path) -> None:
    edit(folder, "{verdict: allow, rule: training, codes: [NotGpu]}", "{verdict: deny}", "default-tests.yaml")
    result = run("test", "--policy", folder, "-o", "junit")
    assert result.exit_code == 1
    root = ElementTree.fromstring(result.stdout)
    assert root.get("failures") == "1"
    failures = {case.get("name"): case.find("failure") for case in root.iter("testcase")}
    failure = failures["a workload without GPUs is none of ours"]
    assert failure is not None
    assert failure.get("message") == "verdict: expected deny, got allow"


def test_cases_read_files_beside_them_and_snapshots(folder: Path, tmp_path: Path) -> None:
    shutil.copy(SEED, folder / "cluster.json")
    (folder / "objects").mkdir()
    pod = build.pod("p", 1)
    (folder / "objects" / "pod.json").write_text(json.dumps(pod))
    (folder / "more-tests.yaml").write_text(
        "apiVersion: gpu.platform/v1\nkind: GpuPolicyTest\nmetadata: {name: more}\nspec:\n  cluster: cluster.json\n"
        "  cases:\n"
        "    - {name: file, given: {objects: [objects/pod.json], namespace: ai-training}, expect: {rule: training}}\n"
        "    - {name: gone, given: {objects: [objects/gone.json]}, expect: {}}\n"
        "    - {name: denied first, given: {namespace: ai-research, objects: ["
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeSelector: {gpu.platform/pool: x}, "
        "containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}, objects/pod.json]}, expect: {}}\n"
        "    - {name: no object, given: {objects: ["
        "{apiVersion: v1, kind: Namespace, metadata: {name: n}}]}, expect: {}}\n"
    )
    cases = {case["name"]: case for case in json.loads(run("test", "--policy", folder, "-o", "json").stdout)["cases"]}
    assert cases["file"]["passed"]
    assert "gone.json: no such file" in cases["gone"]["failures"][0]
    assert (
        "a, which stands before the tested object, was denied: Wrong GPU pool" in cases["denied first"]["failures"][0]
    )
    assert "no object that can be judged" in cases["no object"]["failures"][0]


def test_a_folder_without_tests_is_no_passed_test(folder: Path) -> None:
    (folder / "default-tests.yaml").unlink()
    result = run("test", "--policy", folder)
    assert result.exit_code == 2
    assert "holds no GpuPolicyTest" in result.stderr


# -- which, drift, preview --------------------------------------------------------------------------------------------


def test_which_rule_applies() -> None:
    result = run("which", "--policy", POLICIES, "-n", "ai-training", "--cluster", SEED)
    assert result.exit_code == 0
    assert "gpu.platform/team is training, wants inference" in result.stdout
    answer = json.loads(run("which", "--policy", POLICIES, "-n", "kube-system", "--cluster", SEED, "-o", "json").stdout)
    assert not answer["covered"]
    assert run("which", "--policy", POLICIES, "-n", "nowhere", "--cluster", SEED).exit_code == 2


def test_b59_drift_after_a_pool_change(folder: Path) -> None:
    edit(folder, "pools: [inference]", "pools: [h100]")
    result = run("drift", "--policy", folder, "--cluster", SEED, "-o", "json", "-n", "ai-inference")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["workloads"]
    assert {each["wanted"]["pools"] for each in found} == {"h100"}
    assert "realtime-inference-demo" in {each["name"] for each in found}


def test_preview_of_the_recorded_cluster() -> None:
    result = run("preview", "--policy", POLICIES, "--cluster", SEED, "-o", "json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    refused = [each["name"] for each in answer["objects"] if each["outcome"] == "refused"]
    assert refused == ["quota-exceed-inference-demo"]
    assert answer["counts"]["refused"] == 1
    markdown = run("preview", "--policy", POLICIES, "--cluster", SEED, "-o", "markdown").stdout
    assert "### Refused (1)" in markdown
    assert "| ai-inference | Deployment quota-exceed-inference-demo |" in markdown


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


BUSY = DATA / "busy-cluster" / "cluster.json"


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    "arguments",
    [
        ("test",),
        ("which", "-n", "ai-research", "--cluster", BUSY),
        ("drift", "--cluster", BUSY),
        ("preview", "--cluster", BUSY),
    ],
    ids=lambda each: each[0],
)
def test_pages_fit_a_narrow_terminal_and_cut_nothing(arguments: tuple[object, ...]) -> None:
    result = run(arguments[0], "--policy", POLICIES, *arguments[1:])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in result.stdout


def test_preview_sums_up_by_namespace_what_changes(folder: Path) -> None:
    edit(folder, "pools: [inference]", "pools: [h100]")
    stdout = run("preview", "--policy", folder, "--cluster", BUSY).stdout
    _, _, table = stdout.partition("By namespace (2)\n")
    assert table.splitlines()[1].split() == ["ai-inference", "3", "0", "0", "0", "0"]
    assert "\nai-inference  Deployment chat               inference\n    Wrong GPU pool in namespace" in stdout


# -- replay -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Recorded traffic of the shipped policy: three Deployments, one of them refused."""
    policy = load(POLICIES)
    labels = {"gpu.platform/team": "training"}
    cluster = build.cluster(
        build.namespace("ai-training", **labels), build.quota(namespace="ai-training", gpu=("4", "2"))
    )
    lines = []
    for number, (name, replicas) in enumerate((("one", 1), ("two", 2), ("six", 6))):
        obj = build.workload("Deployment", f"{name}\x1b[31m|x", 1, {"replicas": replicas})
        request = build.request(obj, namespace="ai-training", uid=str(number))
        decision = judge(request, policy, cluster)
        lines.append(record.encode(request, decision, policy.name, policy.revision, 0.5))
    path = tmp_path / "audit" / "s.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def test_replay_with_the_policy_in_force_changes_nothing(ledger: Path) -> None:
    result = run("replay", "--policy", POLICIES, "--audit", ledger, "-o", "json", "--processes", 1)
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["records"], answer["same"], answer["inForce"], answer["mismatchCount"]) == (3, 3, 3, 0)
    assert answer["flips"] == {}


def test_replay_of_a_stricter_policy_for_a_pull_request(ledger: Path, folder: Path) -> None:
    edit(folder, "pools: [training]", "pools: [training]\n      mode: audit")
    assert run("replay", "--policy", folder, "--audit", ledger.parent, "--processes", 1).exit_code == 0
    edit(folder, "\n      mode: audit", "\n      onPriorityConflict: deny")
    edit(folder, "priorityClassName: gpu-training", "priorityClassName: gpu-research")
    result = run("replay", "--policy", folder, "--audit", ledger, "-o", "markdown", "--processes", 1)
    assert "### Answers that change (" in result.stdout
    assert "\x1b" not in result.stdout
    assert "Deployment one?\\[31m\\|x" in result.stdout


def test_replay_against_a_baseline_names_who_is_newly_refused(ledger: Path, folder: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(folder, before)
    edit(before, "      pools: [training]", "      pools: [training]\n      onQuotaExceeded: warn")
    result = run("replay", "--policy", folder, "--baseline", before, "--audit", ledger, "-o", "json", "--processes", 1)
    assert result.exit_code == 1
    [refused] = json.loads(result.stdout)["newlyRefused"]
    assert refused["message"].startswith("GPU quota exceeded in namespace ai-training (rule training)")
    text = run("replay", "--policy", folder, "--baseline", before, "--audit", ledger, "--processes", 1).stdout
    assert text.index("Newly refused (1)") < text.index("By namespace (1)"), "what a reviewer must see comes first"
    assert "team      count  answers\ntraining  1      1 x patch -> deny\n" in text
    assert "\x1b[31m" not in text


def test_replay_of_nothing_exits_2(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    result = run("replay", "--policy", POLICIES, "--audit", tmp_path / "empty.jsonl")
    assert result.exit_code == 2
    assert "holds no audit records" in result.stderr
    result = run("replay", "--policy", POLICIES, "--audit", tmp_path / "gone")
    assert result.exit_code == 2
    assert "gone: cannot be read: No such file or directory" in result.stderr


def test_replay_speaks_the_language_of_the_policy(ledger: Path, folder: Path) -> None:
    edit(folder, '  contact: "#gpu-platform"', "  language: zh")
    result = run("replay", "--policy", folder, "--audit", ledger, "--processes", 1)
    assert "策略重放" in result.stdout
