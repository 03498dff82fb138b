"""Every folder and every combination builds, and each object is valid for Kubernetes, strictly, old and new."""

import functools
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import yaml
from kubernetes_validate.utils import ValidationError, latest_version, validate

from tests.deploy.conftest import DEPLOY, Objects

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
