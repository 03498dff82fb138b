"""Labs for the tests, kubectl as a subprocess, and a TLS webhook that answers what a test tells it to."""

import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flask
import pytest

from tests import needs
from webhook.lab import certificates, resources
from webhook.lab.http_server import HttpServer
from webhook.lab.resources import Object
from webhook.lab.server import Lab

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab with controllers and the seed nodes, shared by a module; each test uses a namespace of its own."""
    from webhook.lab import seed

    with Lab(tls=False) as running:
        running.load(seed.nodes())
        yield running


@pytest.fixture
def quiet_lab() -> Iterator[Lab]:
    """A lab of its own without controllers: nothing happens but what the test does."""
    with Lab(tls=False, controllers=False) as running:
        yield running


@pytest.fixture
def namespace(lab: Lab, request: pytest.FixtureRequest) -> str:
    """A fresh namespace, named after the test."""
    name = request.node.name.lower().partition("[")[0].replace("_", "-")[-50:].strip("-")
    lab.create(namespace_object(name))
    return name


def namespace_object(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(name: str, namespace: str = "default", gpus: str | None = None, **spec: Any) -> Object:
    """A pod with one container that is limited to `gpus` GPUs."""
    limits = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": gpus} if gpus is not None else {})
    container = {"name": "train", "image": "busybox:1.36", "resources": {"limits": limits}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def workload(kind: str, name: str, namespace: str, gpus: str | None = None, **spec: Any) -> Object:
    """A Deployment, ReplicaSet, StatefulSet, DaemonSet or Job around `pod`."""
    api_version = "batch/v1" if kind == "Job" else "apps/v1"
    template: Object = {"metadata": {"labels": {"app": name}}, "spec": pod("x", gpus=gpus)["spec"]}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec.setdefault("selector", {"matchLabels": {"app": name}})
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": {"template": template, **spec}}


def quota(name: str, namespace: str, **hard: str) -> Object:
    amounts = {key.replace("_", ".").replace("gpu", "nvidia.com/gpu"): value for key, value in hard.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": amounts}}


def priority_class(name: str, value: int, policy: str = "PreemptLowerPriority", default: bool = False) -> Object:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
            "preemptionPolicy": policy, "globalDefault": default}  # fmt: skip


def ready_quota(lab: Lab, obj: Object) -> None:
    """Create a quota and wait until its status is filled: before that it refuses nothing (Q5)."""
    made = lab.create(obj)["metadata"]
    key = made["namespace"], made["name"]
    lab.wait(lambda: lab.registry.get(resources.RESOURCE_QUOTAS, *key)["status"].get("hard"))


def events(lab: Lab, namespace: str, reason: str) -> list[Object]:
    return [e for e in lab.store.objects(resources.EVENTS, namespace) if e["reason"] == reason]


def pods_of(lab: Lab, namespace: str) -> list[Object]:
    return lab.store.objects(resources.PODS, namespace)


# -- kubectl ----------------------------------------------------------------------------------------------------------


def kubectls() -> list[str]:
    """The kubectl on the path, and the versions that lie beside it as `kubectl.1.28`."""
    main = needs.kubectl()
    beside = sorted(str(path) for path in Path(main).resolve().parent.glob("kubectl.1.*"))
    return beside or [main]


class Kubectl:
    """Runs kubectl against one lab, with nothing but its kubeconfig."""

    def __init__(self, binary: str, kubeconfig: Path) -> None:
        self.binary = binary
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)}

    def run(self, *arguments: str, stdin: str | Object = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        text = stdin if isinstance(stdin, str) else json.dumps(stdin)
        command = [self.binary, *arguments]
        done = subprocess.run(command, input=text, text=True, capture_output=True, env=self._environment, timeout=30)
        assert not check or done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    def __call__(self, *arguments: str, stdin: str | Object = "") -> str:
        """What it printed; it must succeed."""
        return self.run(*arguments, stdin=stdin).stdout

    def fails(self, *arguments: str, stdin: str | Object = "") -> str:
        """What it complained; it must not succeed."""
        done = self.run(*arguments, stdin=stdin, check=False)
        assert done.returncode != 0, done.stdout
        return done.stderr


# -- webhooks ---------------------------------------------------------------------------------------------------------

Answer = Callable[[Object], Object | flask.Response]


class Hook:
    """A webhook over TLS: records the reviews it gets and answers with what `answer` makes of them."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.reviews: list[Object] = []
        self.headers: list[dict[str, str]] = []
        self.queries: list[str] = []
        self._identity = certificates.issue("127.0.0.1")
        app = flask.Flask("hook")
        app.add_url_rule("/<path:_>", "hook", self._serve, methods=["POST"])
        self._server = HttpServer("127.0.0.1", 0, app, self._identity)

    def _serve(self, _: str) -> Object | flask.Response:
        review = flask.request.get_json()
        self.reviews.append(review)
        self.headers.append(dict(flask.request.headers))
        self.queries.append(flask.request.query_string.decode())
        found = self.answer(review["request"])
        if isinstance(found, flask.Response):
            return found
        response = {"uid": review["request"]["uid"], "allowed": True, **found}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self._identity.authority).decode()

    def __enter__(self) -> "Hook":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def registration(self, kind: str = "Mutating", name: str = "hook", **fields: Any) -> Object:
        """A configuration of one webhook that gets every CREATE of a pod, unless `fields` say otherwise."""
        hook = {
            "name": f"{name}.lab.test",
            "clientConfig": {"url": f"https://127.0.0.1:{self.port}/{name}", "caBundle": self.ca_bundle},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 2,
            **fields,
        }
        return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": name}, "webhooks": [hook]}  # fmt: skip


def json_patch(*operations: Object) -> Object:
    """The part of a response that carries a patch."""
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


def allow(_: Object) -> Object:
    """An answer that changes nothing."""
    return {}
