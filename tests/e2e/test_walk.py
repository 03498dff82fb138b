"""The walk of `make demo`, step by step with its checks, on a cluster that may belong to others."""

import pytest

from tests.e2e.world import DEPLOY, World, records
from webhook.cli.walk import Walk

pytestmark = pytest.mark.e2e


def test_every_step_of_the_walk_shows_what_it_should(world: World) -> None:
    """Beside the webhook means here: in a namespace of the same cluster that is not registered."""
    told: list[str] = []
    walk = Walk(
        world.cluster,
        world.cluster,
        names=world.names,
        beside_names=world.beside_names,
        deploy=DEPLOY,
        tell=told.append,
    )
    stage = world.stage("walk")
    walk.control_layer()
    with stage.webhook() as (address, _), world.registered(stage, address):
        walk.run()
    assert len(walk.refusals) == 3
    assert any("FailedCreate" in line for line in told)
    counted = [each for each in records(stage) if not each["dryRun"]]
    assert len([each for each in counted if each["verdict"] == "deny"]) == len(walk.refusals)
    assert {each["object"]["namespace"] for each in counted} <= {
        world.names(each) for each in ("ai-inference", "ai-training", "ai-research")
    }
