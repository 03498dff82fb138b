"""Every folder and every combination builds, and each object is valid for Kubernetes, strictly, old and new."""

import functools
import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubernetes_validate.utils import ValidationError, latest_version, validate

from tests.deploy.conftest import DEPLOY, Objects, kustomize, one
from webhook.cli.main import main

CUSTOM = {
    ("cert-manager.io/v1", "Certificate"),
    ("cert-manager.io/v1", "Issuer"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
}
"""Kinds of other products, whose schemas Kubernetes does not publish."""

VERSIONS = ("1.28", latest_version())
FOLDERS = sorted(str(path.parent.relative_to(DEPLOY)) for path in DEPLOY.rglob("kustomization.yaml"))
BUILDABLE = [folder for folder in FOLDERS if not folder.startswith("components/")]
SAMPLES = sorted((DEPLOY / "samples").glob("*.yaml"))


def assert_valid(objects: Objects) -> None:
    for item in objects:
        if (item["apiVersion"], item["kind"]) not in CUSTOM:
            _validate_once(json.dumps(item))


@functools.cache
def _validate_once(item: str) -> None:
    """Most objects are the same in every combination."""
    for version in VERSIONS:
        validate(json.loads(item), version, strict=True)


def test_folders_are_those_that_the_docs_name() -> None:
    assert [folder for folder in FOLDERS if folder != "monitoring"] == [
        "base",
        "cluster",
        "components/cert-manager",
        "components/fail-closed",
        "components/prometheus-operator",
        "components/self-signed",
        "overlays/kind",
        "overlays/production",
    ]


@pytest.mark.parametrize("folder", BUILDABLE)
def test_every_folder_builds_and_validates(build: Callable[[str], Objects], folder: str) -> None:
    assert_valid(build(folder))


@pytest.mark.parametrize(
    "components",
    [
        (certificates, *more)
        for certificates, *more in product(
            ("self-signed", "cert-manager"), ("prometheus-operator", ""), ("fail-closed", "")
        )
    ],
    ids=lambda names: "+".join(filter(None, names)),
)
def test_every_combination_of_components_builds_and_validates(
    combine: Callable[..., Objects], components: tuple[str, ...]
) -> None:
    assert_valid(combine(*filter(None, components)))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_validates(sample: Path) -> None:
    assert_valid(list(yaml.safe_load_all(sample.read_text())))


def test_the_validator_is_strict() -> None:
    """So that the tests above mean something: a misspelt field is an error."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"nmae": "x"}]}}
    with pytest.raises(ValidationError):
        validate(pod, VERSIONS[0], strict=True)


@pytest.mark.parametrize("folder", BUILDABLE)
def test_no_two_objects_share_a_name(build: Callable[[str], Objects], folder: str) -> None:
    keys = [
        (item["apiVersion"], item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in build(folder)
    ]
    assert len(set(keys)) == len(keys)


def test_an_overlay_with_a_policy_of_its_own_as_the_docs_show_it(_kubectl: None, tmp_path: Path) -> None:
    """Exactly one policy is mounted, and the registration is the one generated from it."""
    policies = tmp_path / "policies"
    policies.mkdir()
    text = (
        "apiVersion: gpu.platform/v1\nkind: GpuPolicy\nmetadata: {name: ours}\n"
        "spec:\n  onUnplaced: deny\n  rules: []\n  workloads: [Pod, Job]\n  trustedControllers: [operator]\n"
    )
    (policies / "ours.yaml").write_text(text)
    made = CliRunner().invoke(main, ["manifests", "--policy", str(policies), "--fail-closed"])
    (tmp_path / "registration.yaml").write_text(made.stdout)
    kustomization = {
        "resources": [os.path.relpath(DEPLOY / "base", tmp_path)],
        "components": [os.path.relpath(DEPLOY / "components/self-signed", tmp_path)],
        "patches": [{"path": "registration.yaml"}],
        "configMapGenerator": [
            {
                "name": "gpu-webhook-policy",
                "namespace": "gpu-webhook",
                "behavior": "replace",
                "files": ["policies/ours.yaml"],
            }
        ],
        "generatorOptions": {"disableNameSuffixHash": True},
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    objects = kustomize(tmp_path)
    assert_valid(objects)
    assert one(objects, "ConfigMap", "gpu-webhook-policy")["data"] == {"ours.yaml": text}
    for expected in yaml.safe_load_all(made.stdout):
        built = one(objects, expected["kind"], "gpu-webhook")
        assert _by_name(built["webhooks"]) == _by_name(expected["webhooks"])


def test_fail_closed_is_what_the_generator_says(combine: Callable[..., Objects]) -> None:
    file = DEPLOY / "components/fail-closed/webhook-configurations.yaml"
    for expected in yaml.safe_load_all(file.read_text()):
        built = one(combine("fail-closed"), expected["kind"], "gpu-webhook")
        assert _by_name(built["webhooks"]) == _by_name(expected["webhooks"])


def _by_name(webhooks: list[dict[str, Any]]) -> dict[str, Any]:
    """Merging may reorder entries and conditions, which are all ANDed."""
    return {
        webhook["name"]: {
            **webhook,
            "matchConditions": sorted(webhook["matchConditions"], key=lambda condition: str(condition["name"])),
        }
        for webhook in webhooks
    }
