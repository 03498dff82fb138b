"""The manifests applied by kubectl to the look-alike cluster: one authority, bundles that stay, nobody locked out."""

import base64
import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from tests.deploy.conftest import DEPLOY, ROOT
from webhook.certs import bundle, issue
from webhook.certs.describe import read_certificates
from webhook.certs.ensure import ensure
from webhook.certs.store import SecretStore
from webhook.lab.resources import PODS
from webhook.lab.server import Lab


class Cluster:
    """A lab with what the kind overlay installs; no webhook answers at its Service."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.environment = {**os.environ, "KUBECONFIG": str(lab.kubeconfig(folder / "kubeconfig"))}

    def kubectl(self, *arguments: str, manifest: str = "") -> subprocess.CompletedProcess[str]:
        return self._run(["kubectl", *arguments], manifest)

    def object(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.kubectl("get", *arguments, "-o", "yaml").stdout)
        return found

    def bundles(self) -> dict[str, str | None]:
        return {
            webhook["name"]: webhook["clientConfig"].get("caBundle")
            for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
            for webhook in self.object(kind, "gpu-webhook")["webhooks"]
        }

    def ensure(self) -> None:
        api = config.new_client_from_config(self.environment["KUBECONFIG"])  # type: ignore[no-untyped-call]
        store = SecretStore(client.CoreV1Api(api), "gpu-webhook", "gpu-webhook-tls")
        publish = partial(bundle.publish, client.AdmissionregistrationV1Api(api), ["gpu-webhook"])
        ensure(store, publish, issue.service_names("gpu-webhook", "gpu-webhook"), dt.datetime.now(dt.UTC))

    def ensure_twice_at_once(self) -> list[str]:
        """What two processes of `certs ensure` printed."""
        command = [sys.executable, "-m", "webhook", "certs", "ensure"]
        processes = [
            subprocess.Popen(command, env=self.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        return [process.communicate(timeout=60)[0].strip() for process in processes]

    def _run(self, command: list[str], manifest: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, input=manifest, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture(scope="module")
def cluster(_kubectl: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Lab() as lab:
        installed = Cluster(lab, tmp_path_factory.mktemp("lab"))
        done = installed.kubectl("apply", "-k", str(DEPLOY / "overlays/kind"))
        assert done.returncode == 0, done.stderr
        yield installed


def test_two_at_once_end_with_one_authority_that_both_configurations_trust(cluster: Cluster) -> None:
    said = sorted(line.partition(":")[0] for line in cluster.ensure_twice_at_once())
    assert said == ["add a new authority", "keep"]
    stored = cluster.object("-n", "gpu-webhook", "secret", "gpu-webhook-tls")["data"]["ca.crt"]
    assert len(read_certificates(base64.b64decode(stored))) == 1
    assert cluster.bundles() == {"mutate.gpu.platform": stored, "validate.gpu.platform": stored}


@pytest.mark.parametrize("how", [[], ["--server-side", "--force-conflicts"]], ids=["client-side", "server-side"])
def test_b56_the_next_apply_leaves_the_bundle(cluster: Cluster, how: list[str]) -> None:
    cluster.ensure()
    before = cluster.bundles()
    assert all(before.values())
    done = cluster.kubectl("apply", *how, "-k", str(DEPLOY / "overlays/kind"))
    assert done.returncode == 0, done.stderr
    assert cluster.bundles() == before


def test_fail_closed_stops_users_of_gpu_namespaces_and_nobody_else(cluster: Cluster) -> None:
    """B47 and B48 on a live chain: our Service answers nothing at all, and only people wait for it."""
    assert cluster.kubectl("apply", "-f", str(DEPLOY / "samples/inference-deployment-kind.yaml")).returncode == 0
    cluster.lab.wait(lambda: _pods(cluster))
    closed = cluster.folder / "closed"
    closed.mkdir()
    (closed / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [os.path.relpath(DEPLOY / "base", closed.resolve())],
                "components": [
                    os.path.relpath(DEPLOY / "components" / name, closed.resolve())
                    for name in ("self-signed", "fail-closed")
                ],
            }
        )
    )
    assert cluster.kubectl("apply", "-k", str(closed)).returncode == 0
    refused = cluster.kubectl("create", "-f", "-", manifest=_pod("ai-training"))
    assert 'failed calling webhook "validate.gpu.platform"' in refused.stderr
    for namespace in ("gpu-webhook", "kube-system", "default"):
        done = cluster.kubectl("create", "-f", "-", manifest=_pod(namespace))
        assert done.returncode == 0, done.stderr
    (before,) = _pods(cluster)
    cluster.kubectl("-n", "ai-inference", "delete", "pod", before, "--wait=false")
    cluster.lab.wait(lambda: [name for name in _pods(cluster) if name != before])


def _pods(cluster: Cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.lab.store.objects(PODS, "ai-inference")]


def _pod(namespace: str) -> str:
    container = {"name": "a", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": "probe", "namespace": namespace}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
