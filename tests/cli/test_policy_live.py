"""`--cluster live`: what the policy commands say of a running API is what they say of the same cluster as a file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from webhook.cli.policy import command
from webhook.lab import seed
from webhook.lab.server import Lab

POLICIES = Path(__file__).parents[2] / "policies"
BUSY = Path(__file__).parents[1] / "data" / "busy-cluster" / "cluster.json"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab that holds the recorded cluster and in which nothing moves."""
    with Lab(controllers=False) as lab:
        lab.load(seed.read(BUSY))
        yield lab.kubeconfig(tmp_path_factory.mktemp("lab") / "kubeconfig")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("lint",), 0),
        (("lint", "--fail-on", "warning"), 1),
        (("which", "-n", "ai-research"), 0),
        (("which", "-n", "kube-system"), 1),
        (("drift",), 1),
        (("preview",), 1),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_a_live_cluster_and_its_recording_give_the_same_answer(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], status: int
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    live, recorded = (_answer(*arguments, "--cluster", cluster, status=status) for cluster in ("live", str(BUSY)))
    assert live == recorded
    assert live


def test_a_cluster_that_cannot_be_reached_exits_2_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    for name in ("drift", "preview"):
        result = CliRunner().invoke(command, [name, "--policy", str(POLICIES)])
        assert result.exit_code == 2
        assert "gone" in result.stderr
        assert "Traceback" not in result.output


def _answer(*arguments: str, status: int) -> Any:
    result = CliRunner().invoke(command, [*arguments, "--policy", str(POLICIES), "-o", "json"])
    assert result.exit_code == status, result.output
    return _sorted(json.loads(result.stdout))


def _sorted(answer: Any) -> Any:
    """Lists come in the order in which the API lists, which says nothing."""
    if isinstance(answer, dict):
        return {key: _sorted(value) for key, value in answer.items()}
    return sorted(map(_sorted, answer), key=json.dumps) if isinstance(answer, list) else answer
