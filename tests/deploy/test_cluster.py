"""The control layer and the samples: the objects of the recorded experiments, without their dead quota key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.deploy.conftest import DEPLOY, ROOT, Objects, one
from webhook.cli.main import main
from webhook.cli.manifests import POLICY_CONFIGMAP
from webhook.policy.load import load

DEAD_KEY = "limits.nvidia.com/gpu"
RECORDED = {
    (item["kind"], item["metadata"]["name"]): item
    for item in json.loads((ROOT / "tests/data/seed-cluster/cluster.json").read_text())["items"]
}


@pytest.fixture
def control_layer(build: Callable[[str], Objects]) -> Objects:
    return build("cluster")


def sample(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "samples" / f"{name}.yaml").read_text())
    return document


@pytest.mark.parametrize("team", ["inference", "training", "research"])
def test_each_team_has_a_namespace_a_quota_and_defaults(control_layer: Objects, team: str) -> None:
    namespace = one(control_layer, "Namespace", f"ai-{team}")
    assert namespace["metadata"]["labels"] == {"gpu.platform/team": team}
    quota = one(control_layer, "ResourceQuota", f"{team}-gpu-quota")
    assert quota["metadata"]["namespace"] == f"ai-{team}"
    recorded = RECORDED["ResourceQuota", f"{team}-gpu-quota"]["spec"]["hard"]
    assert quota["spec"]["hard"] == {key: value for key, value in recorded.items() if key != DEAD_KEY}


def test_containers_without_cpu_and_memory_get_defaults_everywhere(control_layer: Objects) -> None:
    ranges = {item["metadata"]["namespace"]: item["spec"] for item in control_layer if item["kind"] == "LimitRange"}
    assert set(ranges) == {"ai-inference", "ai-training", "ai-research"}
    for spec in ranges.values():
        assert set(spec["limits"][0]["default"]) == set(spec["limits"][0]["defaultRequest"]) == {"cpu", "memory"}
    assert ranges["ai-training"] == RECORDED["LimitRange", "gpu-default-limits"]["spec"]


def test_the_comment_says_why_a_key_is_missing() -> None:
    text = (DEPLOY / "cluster/resource-quotas.yaml").read_text()
    assert f"no `{DEAD_KEY}` here on purpose" in text


@pytest.mark.parametrize("name", ["gpu-critical-inference", "gpu-training", "gpu-batch-low"])
def test_classes_are_those_of_the_policy_and_the_record(control_layer: Objects, name: str) -> None:
    made, recorded = one(control_layer, "PriorityClass", name), RECORDED["PriorityClass", name]
    assert {key: made[key] for key in ("value", "preemptionPolicy", "description")} == {
        key: recorded[key] for key in ("value", "preemptionPolicy", "description")
    }
    named = {
        one_name
        for rule in load(ROOT / "policies").spec.rules
        for one_name in (rule.priority_class_name, *rule.allowed_priority_classes)
    }
    assert name in named


@pytest.mark.parametrize(
    ("name", "kind", "recorded"),
    [
        ("training-job", "Job", "llama-training-demo"),
        ("training-job-kind", "Job", "gpu-scheduling-kind-demo"),
        ("inference-deployment", "Deployment", "realtime-inference-demo"),
        ("inference-deployment-kind", "Deployment", "gpu-inference-kind-demo"),
        ("quota-exceed", "Deployment", "quota-exceed-inference-demo"),
    ],
)
def test_samples_are_the_recorded_workloads_before_anybody_placed_them(name: str, kind: str, recorded: str) -> None:
    """Name, namespace, replicas, containers as recorded; class and pool are what the webhook will add."""
    made, was = sample(name), RECORDED[kind, recorded]
    assert (made["kind"], made["metadata"]["name"]) == (kind, recorded)
    assert made["metadata"]["namespace"] == was["metadata"]["namespace"]
    assert made["spec"].get("replicas") == was["spec"].get("replicas")
    template, before = made["spec"]["template"]["spec"], was["spec"]["template"]["spec"]
    assert "priorityClassName" not in template
    assert "gpu.platform/pool" not in json.dumps(template)
    assert template.get("tolerations") == before.get("tolerations")
    assert template["containers"][0].items() <= before["containers"][0].items()


def test_the_control_layer_is_part_of_kind_only(build: Callable[[str], Objects]) -> None:
    assert any(item["metadata"]["name"] == "ai-training" for item in build("overlays/kind"))
    assert not any(item["metadata"]["name"] == "ai-training" for item in build("overlays/production"))


def test_the_policy_that_is_mounted_is_the_shipped_one(build: Callable[[str], Objects]) -> None:
    data = one(build("overlays/production"), "ConfigMap", POLICY_CONFIGMAP)["data"]
    assert data == {name: (ROOT / "policies" / name).read_text() for name in ("default.yaml", "pricing.yaml")}


@pytest.mark.parametrize(
    ("name", "verdict", "code"),
    [
        ("training-job", "patch", "PoolInjected"),
        ("training-job-kind", "patch", "PoolInjected"),
        ("inference-deployment", "patch", "PriorityInjected"),
        ("inference-deployment-kind", "patch", "PriorityInjected"),
        ("mig", "patch", "PoolInjected"),
        ("wrong-pool", "deny", "PoolConflict"),
        ("wrong-class", "deny", "PriorityConflict"),
        ("cpu-only", "allow", "NotGpu"),
    ],
)
def test_samples_get_the_answer_that_their_comments_promise(name: str, verdict: str, code: str) -> None:
    files = [path for path in (DEPLOY / "cluster").glob("*.yaml") if path.name != "kustomization.yaml"]
    answer = review(*files, DEPLOY / "samples" / f"{name}.yaml")
    assert answer["verdict"] == verdict
    assert code in [finding["code"] for finding in answer["findings"]]


def test_one_gpu_is_free_for_the_sample_that_asks_for_two() -> None:
    """On the recorded cluster, where both inference Deployments use 3 of 4."""
    recorded = ROOT / "tests/data/seed-cluster/cluster.json"
    answer = review(DEPLOY / "samples/quota-exceed.yaml", cluster=recorded)
    assert answer["verdict"] == "deny"
    assert "QuotaExceeded" in [finding["code"] for finding in answer["findings"]]


def review(*files: Path, cluster: Path | None = None) -> dict[str, Any]:
    """The last answer of `gpu-webhook review`."""
    arguments = [part for path in sorted(files, key=lambda path: path.parent.name) for part in ("-f", str(path))]
    snapshot = ["--cluster", str(cluster)] if cluster else []
    policy = ["--policy", str(ROOT / "policies")]
    result = CliRunner().invoke(main, ["review", *policy, *snapshot, "-o", "json", *arguments])
    assert result.exit_code in (0, 1), result.output
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer
