"""The server of the dashboard: read-only, strict headers, and nothing but its own files."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.exporter.samples import DATA, NOW, POLICIES
from webhook.exporter import publish
from webhook.exporter.collect import Collector
from webhook.exporter.exporter import Exporter, PolicyFolder
from webhook.exporter.live import SnapshotSource
from webhook.exporter.serve import application


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    source = SnapshotSource(DATA / "seed-cluster" / "cluster.json")
    made = Exporter(source, PolicyFolder(POLICIES), Collector([], None))
    yield made
    made.close()


@pytest.fixture
def client(exporter: Exporter) -> FlaskClient:
    return application(exporter).test_client()


def test_the_page_and_all_its_files(client: FlaskClient) -> None:
    assert b"<!doctype html>" in client.get("/").data
    for name in publish.DASHBOARD:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200 and answer.data == publish.dashboard_file(name)


def test_data_before_and_after_the_first_round(exporter: Exporter, client: FlaskClient) -> None:
    assert client.get("/cluster-status.json").status_code == 503
    assert client.get("/metrics").data == b""
    exporter.round(NOW)
    document = client.get("/cluster-status.json")
    assert document.json is not None and document.json["summary"]["gpuRequested"] == 5
    script = client.get("/cluster-status.js?at=1")
    assert script.content_type.startswith("text/javascript")
    assert json.loads(script.data.removeprefix(b"window.CLUSTER_STATUS = ").removesuffix(b";\n")) == document.json
    assert b"gpu_exporter_gpu_used{" in client.get("/metrics").data
    assert client.get("/cluster-status.json", headers={"If-None-Match": document.headers["ETag"]}).status_code == 304


def test_b65_every_answer_forbids_inline_script(client: FlaskClient) -> None:
    for path in ("/", "/app.js", "/nothing", "/metrics", "/healthz"):
        policy = client.get(path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy


def test_only_reading_and_only_its_own_files(client: FlaskClient) -> None:
    for path in (
        "/../publish.py",
        "/%2e%2e/publish.py",
        "/static/app.js",
        "/.state/exporter-state.json",
        "/dashboard/",
    ):
        assert client.get(path).status_code == 404
    assert client.post("/cluster-status.json").status_code == 405


def test_health(client: FlaskClient) -> None:
    assert client.get("/healthz").status_code == 200


def test_a_bad_policy_edit_keeps_the_good_one_and_says_so(tmp_path: Path) -> None:
    for file in POLICIES.glob("*.yaml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    source = SnapshotSource(DATA / "seed-cluster" / "cluster.json")
    exporter = Exporter(source, PolicyFolder(tmp_path), Collector([], None))
    before = exporter.round(NOW)["policy"]
    (tmp_path / "default.yaml").write_text("spec: {}\n")
    after = exporter.round(NOW)["policy"]
    assert before["loaded"] and not after["loaded"]
    assert after["revision"] == before["revision"] and "default.yaml" in after["error"]
    assert b"gpu_exporter_policy_loaded 0.0" in exporter.metrics.text()
