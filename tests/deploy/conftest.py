"""What `kubectl kustomize` makes of deploy/, built once each."""

import functools
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import needs

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

Objects = list[dict[str, Any]]


@functools.cache
def kustomize(folder: Path) -> Objects:
    """The objects of a folder, as `kubectl apply -k` would send them."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@functools.cache
def combination(*components: str) -> Objects:
    """The base with components, as an overlay of somebody else would combine them."""
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder).resolve()

        def relative(path: str) -> str:
            return os.path.relpath(DEPLOY / path, inside)

        kustomization = {
            "resources": [relative("base")],
            "components": [relative(f"components/{name}") for name in components],
        }
        (inside / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return kustomize(inside)


def one(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (found,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return found


@pytest.fixture(scope="session")
def _kubectl() -> None:
    needs.kubectl()  # it carries kustomize


@pytest.fixture
def build(_kubectl: None) -> Callable[[str], Objects]:
    """`build("overlays/kind")`: the objects of a folder of deploy/."""
    return lambda folder: kustomize(DEPLOY / folder)


@pytest.fixture
def combine(_kubectl: None) -> Callable[..., Objects]:
    """`combine("self-signed", "fail-closed")`: the objects of the base with these components."""
    return combination
