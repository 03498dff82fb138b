"""`gpu-webhook manifests`: what it prints, what it refuses, and that `deploy/` holds just what it prints."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from webhook.cli.main import main

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "policies"


def manifests(*arguments: str, policy: Path = POLICIES) -> Result:
    return CliRunner().invoke(main, ["manifests", "--policy", str(policy), *arguments])


def write_policy(folder: Path, spec: str) -> Path:
    text = f"apiVersion: gpu.platform/v1\nkind: GpuPolicy\nmetadata: {{name: t}}\n{spec}"
    (folder / "policy.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("base/webhook-configurations.yaml", []),
        ("base/policy-configmap.yaml", ["--configmap"]),
        ("components/fail-closed/webhook-configurations.yaml", ["--fail-closed"]),
        ("components/fail-closed/policy-configmap.yaml", ["--fail-closed", "--configmap"]),
    ],
)
def test_committed_and_generated_agree(file: str, arguments: list[str]) -> None:
    """If this fails: `make manifests`."""
    assert (ROOT / "deploy" / file).read_text(encoding="utf-8") == manifests(*arguments).stdout


def test_configmap_holds_the_policy_files_as_they_are() -> None:
    data = yaml.safe_load(manifests("--configmap").stdout)["data"]
    assert data == {name: (POLICIES / name).read_text(encoding="utf-8") for name in ("default.yaml", "pricing.yaml")}


def test_policy_tests_stay_out_of_the_configmap(tmp_path: Path) -> None:
    write_policy(tmp_path, "spec: {rules: []}\n")
    (tmp_path / "cases.yaml").write_text(
        "apiVersion: gpu.platform/v1\nkind: GpuPolicyTest\nmetadata: {name: t}\n"
        "spec: {cases: [{name: a, given: {objects: [{kind: Pod}]}, expect: {verdict: allow}}]}\n"
    )
    result = manifests("--configmap", policy=tmp_path)
    assert result.exit_code == 0, result.output
    assert list(yaml.safe_load(result.stdout)["data"]) == ["policy.yaml"]


@pytest.mark.parametrize(
    "spec", ["spec:\n  rules: []\n", "spec:\n  onUnplaced: warn  # for now\n  rules: []\n", "spec: # s\n  rules: []\n"]
)
def test_fail_closed_sets_on_unplaced_and_keeps_the_rest(tmp_path: Path, spec: str) -> None:
    result = manifests("--configmap", "--fail-closed", policy=write_policy(tmp_path, spec))
    text = yaml.safe_load(result.stdout)["data"]["policy.yaml"]
    assert yaml.safe_load(text)["spec"] == {"onUnplaced": "deny", "rules": []}


def test_a_policy_that_already_denies_is_not_edited(tmp_path: Path) -> None:
    folder = write_policy(tmp_path, "spec: {onUnplaced: deny, rules: []}\n")
    result = manifests("--configmap", "--fail-closed", policy=folder)
    assert yaml.safe_load(result.stdout)["data"]["policy.yaml"] == (folder / "policy.yaml").read_text()


def test_a_policy_that_cannot_be_edited_says_what_to_write(tmp_path: Path) -> None:
    result = manifests("--configmap", "--fail-closed", policy=write_policy(tmp_path, "spec: {rules: []}\n"))
    assert result.exit_code == 1
    assert "write `onUnplaced: deny` under `spec:`" in result.output


def test_a_rule_that_would_never_be_asked_is_refused(tmp_path: Path) -> None:
    folder = write_policy(
        tmp_path, "spec: {rules: [{name: prod, namespaceSelector: {matchLabels: {env: prod}}, pools: [a]}]}\n"
    )
    result = manifests(policy=folder)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "rule prod: its namespaceSelector does not require the label gpu.platform/team" in result.output
    assert manifests("--namespace-label", "env", policy=folder).exit_code == 0


def test_bundle_and_url(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("pem")
    result = manifests("--url", "https://10.0.0.1:8443", "--ca-bundle", str(tmp_path / "ca.crt"))
    first = next(yaml.safe_load_all(result.stdout))
    assert first["webhooks"][0]["clientConfig"] == {"url": "https://10.0.0.1:8443/mutate", "caBundle": "cGVt"}


@pytest.mark.parametrize("url", ["http://a:1", "https://a/mutate", "https://u@a", "https://a?x", "a"])
def test_urls_that_the_api_server_refuses_are_refused_here(url: str) -> None:
    assert manifests("--url", url).exit_code == 2


def test_a_broken_policy_is_bad_input(tmp_path: Path) -> None:
    result = manifests(policy=write_policy(tmp_path, "spec: {rulez: []}\n"))
    assert result.exit_code == 2
    assert "policy.yaml:4" in result.output
