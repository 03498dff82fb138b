"""`gpu-webhook certs`: what it makes, what it says of what it finds, and its exit codes."""

import base64
import datetime as dt
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.certs.conftest import MUTATING, VALIDATING, api, url
from tests.certs.fake_api import FakeApi
from webhook.certs import issue
from webhook.cli.main import main

__all__ = ["api", "url"]
NOW = dt.datetime.now(dt.UTC)
SECRET = "/api/v1/namespaces/gpu-webhook/secrets/gpu-webhook-tls"


def certs(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["certs", *arguments])


@pytest.fixture
def cluster(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        f"""{{apiVersion: v1, kind: Config, current-context: fake, users: [{{name: u, user: {{}}}}],
        clusters: [{{name: fake, cluster: {{server: "{url}"}}}}],
        contexts: [{{name: fake, context: {{cluster: fake, user: u}}}}]}}"""
    )
    monkeypatch.setenv("KUBECONFIG", str(path))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A TLS server with a pair of its own; ends by itself."""
    files = issue.local_pair(tmp_path / "served")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        try:
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as tls:
                tls.settimeout(5)
                tls.recv(1)
        except OSError:
            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}", files.ca
    listener.close()
    thread.join(10)


def test_local_files_are_made_then_kept(tmp_path: Path) -> None:
    made = certs("ensure", "--local", str(tmp_path / "certs"))
    assert (made.exit_code, "nothing is stored yet" in made.output) == (0, True)
    before = (tmp_path / "certs" / "tls.crt").read_bytes()
    kept = certs("ensure", "--local", str(tmp_path / "certs"))
    assert ": keep: " in kept.output
    assert (tmp_path / "certs" / "tls.crt").read_bytes() == before
    assert certs("show", str(tmp_path / "certs")).exit_code == 0


def test_show_says_who_and_until_when(tmp_path: Path) -> None:
    files = issue.local_pair(tmp_path, ["gpu.example", "10.0.0.1"])
    shown = certs("show", str(files.cert))
    assert shown.exit_code == 0
    assert "serves     gpu.example, 10.0.0.1" in shown.output
    assert "(90 days left)" in shown.output


def test_b54_show_fails_on_an_expired_certificate(tmp_path: Path) -> None:
    files = issue.local_pair(tmp_path, now=NOW - dt.timedelta(days=100))
    shown = certs("show", str(files.cert))
    assert shown.exit_code == 1
    assert f"WRONG  {files.cert}: expired at" in shown.output


def test_show_fails_on_a_leaf_of_another_authority(tmp_path: Path) -> None:
    one, other = issue.local_pair(tmp_path / "one"), issue.local_pair(tmp_path / "other")
    shown = certs("show", str(one.cert), str(other.ca))
    assert shown.exit_code == 1
    assert "does not trust the serving certificate" in shown.output


def test_show_refuses_what_is_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "x.crt").write_text("hello")
    assert certs("show", str(tmp_path / "x.crt")).exit_code == 2


def test_show_asks_a_live_server(server: tuple[str, Path]) -> None:
    address, ca = server
    shown = certs("show", "--url", address, str(ca))
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(f"{address}\n  serves     localhost, 127.0.0.1\n")


def test_show_without_a_server_is_bad_input() -> None:
    assert certs("show", "--url", "https://127.0.0.1:1").exit_code == 2
    assert certs("show", "--url", "http://127.0.0.1:1").exit_code == 2


@pytest.mark.usefixtures("cluster")
def test_ensure_then_show_in_a_cluster(api: FakeApi) -> None:
    made = certs("ensure")
    assert (made.exit_code, made.output) == (0, "add a new authority: nothing is stored yet\n")
    shown = certs("show")
    assert shown.exit_code == 0, shown.output
    assert "Secret gpu-webhook/gpu-webhook-tls, tls.crt\n  serves     gpu-webhook.gpu-webhook.svc, " in shown.output


@pytest.mark.usefixtures("cluster")
def test_show_finds_a_bundle_that_lacks_or_is_another(api: FakeApi) -> None:
    certs("ensure")
    del api.objects[MUTATING]["webhooks"][0]["clientConfig"]["caBundle"]
    other = base64.b64encode(issue.new_ca(NOW).cert).decode()
    api.objects[VALIDATING]["webhooks"][0]["clientConfig"]["caBundle"] = other
    shown = certs("show")
    assert shown.exit_code == 1
    wrong = [line for line in shown.output.splitlines() if line.startswith("WRONG")]
    assert "mutate.gpu.platform: has no caBundle" in wrong[0]
    assert "validate-controllers.gpu.platform does not trust the serving certificate" in wrong[1]


@pytest.mark.usefixtures("cluster")
def test_ensure_says_which_configuration_is_missing(api: FakeApi) -> None:
    del api.objects[MUTATING]
    made = certs("ensure")
    assert made.exit_code == 1
    assert "not found, so not told: MutatingWebhookConfiguration/gpu-webhook" in made.output


@pytest.mark.usefixtures("cluster")
def test_show_without_a_secret_is_bad_input() -> None:
    shown = certs("show")
    assert shown.exit_code == 2
    assert "Secret gpu-webhook/gpu-webhook-tls: the API server said 404" in shown.output


def test_without_a_cluster_the_message_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    result = certs("ensure")
    assert result.exit_code == 2
    assert "set KUBECONFIG to a kubeconfig file, or use --local" in result.output
