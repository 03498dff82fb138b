"""`gpu-webhook serve`: what is wrong is said before it starts, in one sentence, with exit status 2."""

import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.server.serving import ROOT, SEED, Serving
from webhook.certs.issue import LocalFiles, local_pair
from webhook.cli.main import main
from webhook.server import application


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return local_pair(tmp_path / "pair")


@pytest.fixture
def arguments(tmp_path: Path, files: LocalFiles) -> dict[str, str]:
    shutil.copytree(ROOT / "policies", tmp_path / "policies")
    return {
        "--policy": str(tmp_path / "policies"),
        "--cluster": str(SEED),
        "--bind": "127.0.0.1:0",
        "--cert": str(files.cert),
        "--key": str(files.key),
        "--audit-dir": str(tmp_path / "audit"),
    }


@pytest.fixture(autouse=True)
def _never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that expects a refusal must not end up serving."""
    monkeypatch.setattr(application, "serve", lambda *_: pytest.fail("it started"))


def serve(arguments: dict[str, str]) -> Result:
    flat = [part for pair in arguments.items() for part in pair]
    return CliRunner().invoke(main, ["serve", *flat])


def refused(arguments: dict[str, str], **changes: str) -> str:
    result = serve(arguments | {f"--{name.replace('_', '-')}": value for name, value in changes.items()})
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return result.output


def test_a_missing_certificate(arguments: dict[str, str], tmp_path: Path) -> None:
    path = str(tmp_path / "no.crt")
    assert f"{path}: No such file" in refused(arguments, cert=path)


def test_a_key_of_another_certificate(arguments: dict[str, str], tmp_path: Path) -> None:
    other = local_pair(tmp_path / "other")
    assert "do not belong together" in refused(arguments, key=str(other.key))


def test_a_bad_policy_with_its_place(arguments: dict[str, str], tmp_path: Path) -> None:
    policy = tmp_path / "policies" / "default.yaml"
    policy.write_text(policy.read_text().replace("priorityClassName", "prorityClassName", 1))
    output = refused(arguments)
    assert f"{policy}:" in output
    assert "priorityClassName" in output


def test_a_policy_folder_that_is_not_there(arguments: dict[str, str], tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refused(arguments, policy=str(tmp_path / "nowhere"))


def test_an_unreadable_snapshot(arguments: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    assert str(path) in refused(arguments, cluster=str(path))
    path.write_text("{")
    assert str(path) in refused(arguments, cluster=str(path))


def test_a_cluster_that_nothing_names(
    arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "KUBECONFIG" in refused(arguments, cluster="live")


def test_a_port_in_use(arguments: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"{address}: cannot listen there: Address already in use" in refused(arguments, bind=address)


@pytest.mark.parametrize("address", ["8443", "127.0.0.1", "127.0.0.1:https", "127.0.0.1:70000"])
def test_an_address_that_is_none(arguments: dict[str, str], address: str) -> None:
    assert "expected HOST:PORT" in refused(arguments, bind=address)


def test_an_audit_key_that_is_none(arguments: dict[str, str], files: LocalFiles) -> None:
    assert "Ed25519" in refused(arguments, audit_key=str(files.key))


def test_it_starts_answers_and_ends_with_status_0(tmp_path: Path, files: LocalFiles) -> None:
    with Serving(tmp_path, files, ROOT / "policies", "--own-namespace", "ai-training") as serving:
        assert serving.once("/healthz").status == 200
        assert serving.stop() == 0
    assert "Traceback" not in "".join(serving.stderr)
