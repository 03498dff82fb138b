"""Where the e2e tests run: on the lab, or on the cluster that KUBECONFIG names, with the webhook outside it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.world import EXEMPT, Object, Team, World
from webhook.cli.stage import Stage
from webhook.lab.server import Lab

SRE, RESCUER, RESCUERS = "e2e-sre", "e2e-rescuer", "e2e-rescuers"


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cluster, or a lab of our own."""
    if given := os.environ.get("KUBECONFIG"):
        yield Path(given).absolute()
        return
    with Lab() as lab:
        yield lab.kubeconfig(tmp_path_factory.mktemp("lab") / "kubeconfig")


@pytest.fixture(scope="module")
def world(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Fake nodes and names of our own; what a module put into the cluster is gone after it."""
    host = os.environ.get("E2E_HOST", "127.0.0.1")
    with World(kubeconfig, tmp_path_factory.mktemp("world"), host) as running:
        yield running


@pytest.fixture(scope="module")
def stage(world: World) -> Iterator[Stage]:
    """One webhook for a module, registered and known to be asked."""
    world.classes()
    running = world.stage("webhook", change=_exemptions)
    with running.webhook() as (address, _), world.registered(running, address):
        yield running


@pytest.fixture
def make_team(world: World, stage: Stage, request: pytest.FixtureRequest) -> Iterator[Callable[..., Team]]:
    """`make_team("training", gpus=6)`: a fresh namespace of that team with a quota."""
    made: list[Team] = []

    def make(team: str = "inference", gpus: int | None = 4) -> Team:
        name = request.node.name.removeprefix("test_").replace("_", "-")[:36].strip("-")
        namespace = world.namespace(f"{name}-{len(made)}", team, gpus=gpus)
        made.append(Team(world, namespace, team))
        return made[-1]

    yield make
    for each in made:
        world.kubectl("delete", "namespace", each.namespace, "--wait=false")
        world.empty(each.namespace)


@pytest.fixture
def team(make_team: Callable[..., Team]) -> Team:
    """The inference team, with a quota of 4 GPUs."""
    return make_team()


def _exemptions(spec: Object) -> None:
    spec["exemptions"] = [{"name": "sre", "users": [SRE], "reason": f"e2e writes {EXEMPT}"}]
    spec["breakGlass"] = {"groups": [RESCUERS], "maxAge": "1h"}
