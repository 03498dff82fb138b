"""The webhook comes late, changes its policy, and goes: what the cluster sees of it, and what is on record."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.world import TEAM, Object, Placement, Team, World, deployment, placement, pod, records, until
from webhook.cli.stage import Stage

pytestmark = pytest.mark.e2e

LIVE = 5.0
"""Seconds within which an edit of the policy takes effect."""


@pytest.fixture(scope="module", autouse=True)
def _classes(world: World) -> None:
    world.classes()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def start(world: World, stage: Stage, stack: ExitStack) -> "subprocess.Popen[bytes]":
    address, process = stack.enter_context(stage.webhook())
    stack.enter_context(world.registered(stage, address))
    return process


def test_o9_a_workload_older_than_the_webhook_gets_its_next_pods_placed(world: World, stack: ExitStack) -> None:
    """W21: the pods that its controller makes are placed, its ReplicaSets are let be, and their number stays one."""
    team = Team(world, world.namespace("older", "inference", gpus=4), "inference")
    team.apply(deployment("old", replicas=2))
    first = until("pods", lambda: team.pods("old") if len(team.pods("old")) == 2 else [])
    assert {placement(each["spec"]) for each in first} == {Placement(None, None)}
    before = team.state("old")

    start(world, world.stage("late"), stack)
    for each in first:
        team.kubectl("delete", "pod", each["metadata"]["name"], "--grace-period=0", "--force")
    team.scheduled("old", 2)
    for number in range(5):  # each makes the deployment controller look for its ReplicaSet again
        team.kubectl("annotate", "deployment", "old", f"note={number}", "--overwrite")
    assert team.state("old") == before
    assert len(team.replica_sets("old")) == 1

    team.kubectl("rollout", "restart", "deployment/old")
    assert placement(team.template("deployment", "old")["spec"]) == team.expected
    until("a second ReplicaSet", lambda: len(team.replica_sets("old")) == 2)
    team.kubectl("annotate", "deployment", "old", "note=last", "--overwrite")
    assert len(team.replica_sets("old")) == 2


def test_an_edit_of_the_policy_is_live_within_five_seconds_and_a_bad_one_never(world: World, stack: ExitStack) -> None:
    stage = world.stage("edited")
    team = Team(world, world.namespace("edited", "inference"), "inference")
    other = world.names("gpu-training")
    start(world, stage, stack)
    wanted = deployment("web", pod={"priorityClassName": other})
    assert "Priority class not allowed" in team.kubectl.fails("apply", "-f", "-", manifest=wanted)

    world.policy(stage.policy, lambda spec: _allow(spec, other))
    written = time.monotonic()
    until("the new policy", lambda: team.kubectl.run("apply", "-f", "-", manifest=wanted).code == 0, LIVE)
    assert time.monotonic() - written < LIVE
    assert placement(team.template("deployment", "web")["spec"]).priority_class == other

    (stage.policy / "policy.yaml").write_text("spec: [broken\n", encoding="utf-8")
    until("a word about the bad file", lambda: "policy.yaml" in stage.log("serve.log"))
    wanted["metadata"]["name"] = "again"
    assert "created" in team.apply(wanted)
    revisions = {each["policy"]["revision"] for each in records(stage)}
    assert len(revisions) == 2


def test_without_the_webhook_creates_go_through_and_the_exporter_lists_what_has_no_record(
    world: World, stack: ExitStack
) -> None:
    """failurePolicy Ignore: an outage of ours stops nobody, and it does not go unnoticed."""
    stage = world.stage("killed")
    # the exporter knows teams by the shipped label; no rule of anybody's policy knows this value
    namespace = world.namespace("killed", "inference", labels={TEAM: world.names("inference")})
    team = Team(world, namespace, "inference")
    process = start(world, stage, stack)
    team.apply(deployment("before"))
    (judged,) = team.scheduled("before")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    answered = time.time()
    assert "created" in team.apply(deployment("after"))
    team.kubectl("create", "-f", "-", manifest=pod("single"))
    assert time.time() - answered < LIVE
    assert placement(team.template("deployment", "after")["spec"]) == Placement(None, None)
    (unjudged,) = until("its pod", lambda: team.pods("after"))

    missing = stage.export()["decisions"]["missing"]
    mine = {each["pod"] for each in missing["pods"] if each["namespace"] == namespace}
    assert mine == {unjudged["metadata"]["name"], "single"}
    validated = [each["object"] for each in records(stage) if each["phase"] == "validate" and not each["dryRun"]]
    assert {each["name"] for each in validated} == {"before", judged["metadata"]["name"]}
    verify = [sys.executable, "-m", "webhook", "audit", "verify", "--audit", str(stage.audit)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "unclosed" in done.stdout, done.stdout + done.stderr


def _allow(spec: Object, priority_class: str) -> None:
    for rule in spec["rules"]:
        rule["allowedPriorityClasses"] = [priority_class]
