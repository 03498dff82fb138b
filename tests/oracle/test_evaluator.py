"""The oracle itself: it knows nothing of the product, and agrees with every recorded case."""

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.recorded import lines
from tests.oracle import evaluator


def test_the_oracle_imports_nothing_from_webhook() -> None:
    tree = ast.parse((Path(__file__).parent / "evaluator.py").read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported == {"re", "fractions", "typing"}


@pytest.mark.parametrize("case", lines("quota-cases/pods.jsonl"), ids=lambda case: case["case"])
def test_recorded_quota_verdict(case: Any) -> None:
    found = evaluator.refusals(case["quotas"], case["pod"]["spec"])
    assert (not found) is case["admitted"]
    if not case["admitted"]:
        said = [name for name in found if f"quota: {name}" in case["message"]]
        assert said
        kind, keys = found[said[0]]
        assert ("must specify" in case["message"]) is (kind == "must-specify")
        assert all(key in case["message"] for key in keys)


@pytest.mark.parametrize("case", lines("affinity-cases/pods.jsonl")[1:], ids=lambda c: c["pod"]["metadata"]["name"])
def test_recorded_affinity(case: Any) -> None:
    nodes = {n["metadata"]["name"]: n["metadata"]["labels"] for n in lines("affinity-cases/pods.jsonl")[0]["nodes"]}
    assert evaluator.allowed_nodes(case["pod"]["spec"], nodes) == set(case["allowed"])


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, id=case["case"])
        for case in lines("workload-cases/workloads.jsonl")
        for step in case["steps"]
        if step["operation"] == "CREATE"
    ],
)
def test_recorded_workload_verdict(step: Any) -> None:
    spec = step["object"]["spec"]
    if step["object"]["kind"] == "Job":
        completions, parallelism = spec.get("completions"), spec.get("parallelism", 1)
        pods = min(parallelism, parallelism if completions is None else completions)
    else:
        pods = spec.get("replicas", 1)
    if spec.get("suspend") or spec.get("paused"):
        pods = 0
    assert bool(evaluator.refusals(step["quotas"], spec["template"]["spec"], pods)) is bool(step["failed_create"])
