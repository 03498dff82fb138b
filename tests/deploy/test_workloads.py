"""Our own pods, judged on the manifests as data: available, unprivileged, drained, started with options that exist."""

import importlib
from collections.abc import Callable
from typing import Any

import click
import pytest

from tests.deploy.conftest import ROOT, Objects, one
from webhook.certs import issue

WEBHOOK = {"app.kubernetes.io/name": "gpu-webhook", "app.kubernetes.io/component": "webhook"}


@pytest.fixture(params=["overlays/kind", "overlays/production"])
def objects(request: pytest.FixtureRequest, build: Callable[[str], Objects]) -> Objects:
    return build(request.param)


def pod_specs(objects: Objects) -> dict[str, dict[str, Any]]:
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"
    }


def containers(objects: Objects) -> list[dict[str, Any]]:
    return [container for spec in pod_specs(objects).values() for container in spec["containers"]]


def test_three_deployments(objects: Objects) -> None:
    assert set(pod_specs(objects)) == {"gpu-webhook", "gpu-webhook-exporter", "gpu-webhook-certs"}


def test_nobody_is_root_or_may_become_it(objects: Objects) -> None:
    for spec in pod_specs(objects).values():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_namespace_demands_it_of_every_pod(objects: Objects) -> None:
    labels = one(objects, "Namespace", "gpu-webhook")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert "gpu.platform/team" not in labels


def test_resources_are_stated_and_images_pinned(objects: Objects) -> None:
    for container in containers(objects):
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
        assert container["image"].rpartition(":")[2] not in ("", "latest")


def test_two_replicas_that_spread_and_never_leave_together(objects: Objects) -> None:
    deployment = one(objects, "Deployment", "gpu-webhook")
    assert deployment["spec"]["replicas"] >= 2
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    spread = deployment["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    (preferred,) = spread["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    budget = one(objects, "PodDisruptionBudget", "gpu-webhook")["spec"]
    assert budget["minAvailable"] < deployment["spec"]["replicas"]
    assert budget["selector"]["matchLabels"] == WEBHOOK


def test_b52_a_terminating_pod_serves_on_for_eight_seconds(objects: Objects) -> None:
    spec = pod_specs(objects)["gpu-webhook"]
    (container,) = spec["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "8"]
    assert spec["terminationGracePeriodSeconds"] >= 8 + 10 + 2 + 10  # preStop, a slow body, a decision, and room


def test_probes_ask_the_right_questions(objects: Objects) -> None:
    (container,) = pod_specs(objects)["gpu-webhook"]["containers"]
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: get["path"] for name, get in asked.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert all(get["scheme"] == "HTTPS" and get["port"] == "https" for get in asked.values())


def test_service_selects_the_webhooks_pods(objects: Objects) -> None:
    service = one(objects, "Service", "gpu-webhook")["spec"]
    template = one(objects, "Deployment", "gpu-webhook")["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert service["ports"][0]["targetPort"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_every_pod_has_a_network_policy(objects: Objects) -> None:
    selected = [
        item["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for item in objects
        if item["kind"] == "NetworkPolicy"
    ]
    assert sorted(selected) == ["certs", "exporter", "webhook"]
    certs = one(objects, "NetworkPolicy", "gpu-webhook-certs")["spec"]
    assert certs["ingress"] == []


def test_the_authoritys_key_never_reaches_the_webhook(objects: Objects) -> None:
    (tls,) = (volume for volume in pod_specs(objects)["gpu-webhook"]["volumes"] if volume["name"] == "tls")
    assert [item["key"] for item in tls["secret"]["items"]] == ["tls.crt", "tls.key", "ca.crt"]


def test_volumes_name_what_is_there(objects: Objects) -> None:
    for spec in pod_specs(objects).values():
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                one(objects, "ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                one(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])


def test_writable_is_only_what_must_be(objects: Objects) -> None:
    (container,) = pod_specs(objects)["gpu-webhook"]["containers"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/var/lib/gpu-webhook/audit", "/tmp"}


def _command(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command that a container's args run, and what is left for it."""
    from webhook.cli.main import COMMANDS

    module, _ = COMMANDS[arguments[0]]
    command: click.Command = importlib.import_module(module).command
    rest = arguments[1:]
    while isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def test_every_argument_is_one_that_the_program_knows(objects: Objects) -> None:
    for container in containers(objects):
        command, rest = _command(container["args"])
        command.make_context("gpu-webhook", list(rest))  # parses; raises for an option that does not exist


def test_certificates_are_for_the_service_that_is_called(objects: Objects) -> None:
    command, rest = _command(pod_specs(objects)["gpu-webhook-certs"]["containers"][0]["args"])
    given = command.make_context("certs", list(rest)).params
    called = one(objects, "MutatingWebhookConfiguration", "gpu-webhook")["webhooks"][0]["clientConfig"]["service"]
    assert issue.service_names(given["service"], given["namespace"]) == issue.service_names(
        called["name"], called["namespace"]
    )
    (tls,) = (volume for volume in pod_specs(objects)["gpu-webhook"]["volumes"] if volume["name"] == "tls")
    assert given["secret"] == tls["secret"]["secretName"]
    assert given["configs"] == ("gpu-webhook",)


def test_cert_manager_makes_the_same_names_and_secret(combine: Callable[..., Objects]) -> None:
    certificate = one(combine("cert-manager"), "Certificate", "gpu-webhook-tls")["spec"]
    assert tuple(certificate["dnsNames"]) == issue.service_names("gpu-webhook", "gpu-webhook")
    assert certificate["secretName"] == "gpu-webhook-tls"
    assert certificate["privateKey"]["algorithm"] == "ECDSA"


def test_prometheus_selects_our_services(combine: Callable[..., Objects]) -> None:
    objects = combine("prometheus-operator", "self-signed")
    for name in ("gpu-webhook", "gpu-webhook-exporter"):
        monitor = one(objects, "ServiceMonitor", name)["spec"]
        service = one(objects, "Service", name)
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert one(objects, "PrometheusRule", "gpu-webhook")["metadata"]["namespace"] == "gpu-webhook"
    assert one(objects, "ConfigMap", "gpu-webhook-grafana-dashboard")["metadata"]["namespace"] == "gpu-webhook"


def test_image_is_built_in_two_stages_and_runs_as_nobody() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    stages = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    assert len(stages) == 2
    final = lines[stages[1] :]
    assert lines[stages[1]].endswith("-slim")
    assert "USER 65532:65532" in final
    assert not any("pip install" in line or "apt-get" in line for line in final)
    assert any("pip uninstall" in line and line.endswith("setuptools wheel pip \\") for line in final)
    assert [line for line in final if line.startswith("COPY") and "--from=build" not in line] == [
        "COPY policies /etc/gpu-webhook/policy"
    ]


def test_only_what_the_image_is_made_of_goes_to_the_builder() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "webhook",
        "policies",
    }
