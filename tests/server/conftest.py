"""One server for the tests that leave it as it was, and files to start others."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import ROOT, Serving
from webhook.certs.issue import LocalFiles, local_pair


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return local_pair(tmp_path / "pair")


@pytest.fixture
def policy_folder(tmp_path: Path) -> Path:
    """A copy of the shipped policy."""
    folder = tmp_path / "policies"
    folder.mkdir()
    shutil.copy(ROOT / "policies" / "default.yaml", folder)
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server over the seed cluster with the shipped policy; every test may use it, none may stop it."""
    folder = tmp_path_factory.mktemp("server")
    with Serving(folder, local_pair(folder / "pair"), ROOT / "policies") as serving:
        yield serving
