"""What `deploy/overlays/kind` installs, applied to a lab: the registered configuration really leads to our answers."""

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.world import DEPLOY, POOL, Kubectl, placement, until
from webhook.cli.stage import Stage
from webhook.lab import seed
from webhook.lab.server import Lab

pytestmark = pytest.mark.e2e

OVERLAY = DEPLOY / "overlays" / "kind"
MOUNTS = {"/etc/gpu-webhook/policy": "policy", "/etc/gpu-webhook/tls": "tls", "/var/lib/gpu-webhook": "state"}
NAME = "gpu-webhook"


class Installation:
    """The overlay in a lab, and the container of its webhook Deployment as a process: same arguments, same files."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.kubeconfig = lab.kubeconfig(folder / "kubeconfig")
        self.kubectl = Kubectl(self.kubeconfig)
        self.own = self.kubectl.inside(NAME)
        self.stage = Stage(folder, self.kubeconfig)

    def install(self, stack: ExitStack) -> None:
        """As an admin would: every kind that we ship is one that the lab serves."""
        self.kubectl("apply", "-k", str(OVERLAY))
        with self.stage.process(["certs", "ensure"], "certs.log") as certificates:  # as the self-signed component does
            assert certificates.wait(60) == 0, self.stage.log("certs.log")
        self._mount()
        process = stack.enter_context(self.stage.process(self._arguments(), "serve.log"))
        port = int(self.stage.line(process, "serve.log", "listening on https://").rpartition(":")[2])
        self.lab.service(NAME, NAME, ("127.0.0.1", port))

    def _mount(self) -> None:
        """The pod's volumes as folders."""
        for folder in MOUNTS.values():
            (self.folder / folder).mkdir()
        for name, text in self.own.get("configmap", "gpu-webhook-policy")["data"].items():
            (self.folder / "policy" / name).write_text(text, encoding="utf-8")
        secret = self.own.get("secret", "gpu-webhook-tls")["data"]
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (self.folder / "tls" / name).write_bytes(base64.b64decode(secret[name]))

    def _arguments(self) -> list[str]:
        spec = self.own.get("deployment", NAME)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        arguments: list[str] = container["args"]
        for inside, folder in MOUNTS.items():
            arguments = [each.replace(inside, str(self.folder / folder)) for each in arguments]
        return ["--bind=127.0.0.1:0" if each.startswith("--bind=") else each for each in arguments] + [
            f"--own-namespace={NAME}"
        ]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Lab() as lab, ExitStack() as stack:
        lab.load(seed.nodes())
        installation = Installation(lab, tmp_path_factory.mktemp("overlay"))
        installation.install(stack)
        probe = ("apply", "--dry-run=server", "-o", "json", "-f", str(DEPLOY / "samples" / "training-job.yaml"))
        until("the first answer", lambda: POOL in installation.kubectl.run(*probe).out)
        yield installation


def test_the_registration_names_the_service_and_trusts_its_certificate(installed: Installation) -> None:
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        for hook in installed.kubectl.get(kind, NAME)["webhooks"]:
            assert hook["clientConfig"]["service"]["name"] == NAME
            assert base64.b64decode(hook["clientConfig"]["caBundle"]) == (installed.folder / "tls/ca.crt").read_bytes()


@pytest.mark.parametrize(
    ("sample", "priority_class", "pool"),
    [
        ("training-job.yaml", "gpu-training", "training"),
        ("inference-deployment.yaml", "gpu-critical-inference", "inference"),
        ("mig.yaml", "gpu-critical-inference", "inference"),
        ("cpu-only.yaml", None, None),
    ],
)
def test_a_shipped_sample_is_placed(
    installed: Installation, sample: str, priority_class: str | None, pool: str | None
) -> None:
    installed.kubectl("apply", "-f", str(DEPLOY / "samples" / sample))
    stored = installed.kubectl.get("-f", str(DEPLOY / "samples" / sample))
    assert placement(stored["spec"]["template"]["spec"]) == (priority_class, pool)


@pytest.mark.parametrize(
    ("sample", "headline"),
    [
        ("wrong-pool.yaml", "Wrong GPU pool in namespace ai-inference"),
        ("wrong-class.yaml", "Priority class not allowed in namespace ai-research"),
    ],
)
def test_a_shipped_sample_is_refused(installed: Installation, sample: str, headline: str) -> None:
    complaint = installed.kubectl.fails("apply", "-f", str(DEPLOY / "samples" / sample))
    assert headline in complaint


def test_our_own_namespace_is_not_asked_about(installed: Installation) -> None:
    """B48: its pods started before anybody answered, and none of them is on record."""
    pods = installed.own.get("pods")["items"]
    assert {each["metadata"]["labels"]["app.kubernetes.io/component"] for each in pods} >= {"webhook", "exporter"}
    lines = [line for file in (installed.folder / "state").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert {json.loads(line)["object"]["namespace"] for line in lines} <= {"ai-inference", "ai-training", "ai-research"}
