"""Replay: recorded traffic judged again from its own facts, by the policy that was in force and by another."""

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.audit import traffic
from tests.decision import build
from webhook.audit import record
from webhook.audit.replay import Replay, replay
from webhook.decision.engine import judge
from webhook.policy.active import Policy

POLICY = build.policy(
    {"allowedPriorityClasses": ["gpu-batch"], "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    breakGlass={"groups": ["oncall"]},
)

SHARE = 2500
"""Decisions that one process makes up and replays at a time."""


def total(lines: Any, policy: Policy, baseline: Policy | None = None, processes: int = 1) -> Replay:
    found = Replay()
    for piece in replay(lines, policy, baseline, processes):
        found.add(piece)
    return found


def recorded(policy: Policy, *asked: tuple[Any, Any]) -> list[bytes]:
    """Records of requests judged in clusters."""
    return [
        record.encode(request, judge(request, policy, cluster), policy.name, policy.revision, 0.5)
        for request, cluster in asked
    ]


def _share(seed: int) -> Replay:
    return total(traffic.lines(seed, SHARE, POLICY), POLICY)


@pytest.mark.slow
def test_the_policy_in_force_reproduces_every_recorded_verdict_and_patch() -> None:
    """At least 50,000 generated decisions: creates, updates, scales, both phases, controllers, exemptions."""
    found = Replay()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for share in pool.map(_share, range(20261201, 20261201 + 50_000 // SHARE)):
            found.add(share)
    assert found.mismatches == []
    assert found.undecidable == Counter()
    assert found.in_force == found.judged == found.records >= 50_000
    assert not found.flips
    assert not found.is_bad_news


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_modes_reproduce_too(mode: str) -> None:
    policy = build.policy(mode=mode)
    found = total(traffic.lines(7, 1000, policy), policy)
    assert found.mismatch_count == 0
    assert found.in_force == found.records


def test_a_record_that_does_not_reproduce_is_listed_as_such() -> None:
    [line] = recorded(POLICY, (build.request(build.workload("Deployment", "w", 1)), build.cluster()))
    changed = msgspec.json.decode(line)
    changed |= {"verdict": "deny", "patch": [], "stream": "s", "seq": 7}
    found = total([msgspec.json.encode(changed)], POLICY)
    assert found.mismatch_count == 1
    assert found.mismatches[0].text == "recorded deny, replayed patch"
    assert (found.mismatches[0].stream, found.mismatches[0].seq) == ("s", 7)
    assert found.is_bad_news


def test_a_denial_in_other_words_is_a_mismatch_and_one_without_words_is_an_older_record() -> None:
    wrong = build.request(build.workload("Deployment", "w", 1, nodeSelector={build.POOL: "h100"}))
    [line] = recorded(POLICY, (wrong, build.cluster()))
    denial = msgspec.json.decode(line)
    assert denial["message"].endswith(f"decision   {wrong.id}")
    assert total([line], POLICY).mismatch_count == 0
    reworded = {**denial, "message": "no"}
    [mismatch] = total([msgspec.json.encode(reworded)], POLICY).mismatches
    assert mismatch.text == "deny in other words"
    del denial["message"]
    assert total([msgspec.json.encode(denial)], POLICY).mismatch_count == 0


def test_who_would_newly_be_refused_and_with_which_message() -> None:
    job = build.workload("Deployment", "train", 2, {"replicas": 3})
    cluster = build.cluster(build.quota(gpu=("8", "6")))
    lenient = build.policy(quota={"onExceeded": "warn"})
    lines = recorded(lenient, (build.request(job), cluster), (build.request(job, uid="2"), cluster))
    found = total(lines, build.policy())
    assert found.flips == {"patch -> deny": 2}
    [refusal] = found.newly_refused.values()
    assert (refusal.namespace, refusal.workload, refusal.user, refusal.count) == (
        "team-a",
        "Deployment train",
        "alice",
        2,
    )
    assert refusal.message.startswith("GPU quota exceeded in namespace team-a (rule research): asks for 6, free 2 of 8")
    direction = next(iter(found.flips))
    assert found.by_namespace == {"team-a": {direction: 2}}
    assert found.by_team == {"research": {direction: 2}}
    assert found.by_user == {"alice": {direction: 2}}
    assert found.by_workload == {"team-a/Deployment train": {direction: 2}}


def test_the_other_direction() -> None:
    job = build.workload("Deployment", "train", 1, nodeSelector={build.POOL: "h100"})
    lines = recorded(build.policy(), (build.request(job), build.cluster()))
    found = total(lines, build.policy({"pools": ["h100"]}))
    assert found.flips == {"deny -> patch": 1}
    assert next(iter(found.newly_admitted.values())).message.startswith("Wrong GPU pool")
    assert not found.is_bad_news


def test_b59_lists_workloads_whose_template_another_pool_would_change() -> None:
    new = build.workload("Deployment", "served", 1)
    cluster = build.cluster()
    old = build.policy()
    created = build.request(new)
    stored = build.patched(new, judge(created, old, cluster))
    relabelled = {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}}
    update = build.request(relabelled, "UPDATE", stored, uid="2")
    job = build.request(build.workload("Job", "batch", 1), uid="3")
    found = total(
        recorded(old, (created, cluster), (update, cluster), (job, cluster)), build.policy({"pools": ["h100"]})
    )
    changes = {name: change for name, change in found.changes.items() if change}
    assert set(changes) == {"team-a/Deployment served", "team-a/Job batch"}
    assert changes["team-a/Deployment served"].restarts
    assert not changes["team-a/Job batch"].restarts, "a Job's pods are not replaced"
    assert found.flips["patch -> another patch"] == 2


def test_the_last_record_of_a_workload_decides_whether_its_template_would_change() -> None:
    pinned = build.workload("Deployment", "w", 1, affinity=build.required(build.POOL_TERM))
    free = build.workload("Deployment", "w", 1)
    old = build.policy({"pools": ["a100", "h100"]})
    lines = recorded(
        old, (build.request(free), build.cluster()), (build.request(pinned, "UPDATE", free, uid="2"), build.cluster())
    )
    assert total(lines[:1], build.policy()).changes["team-a/Deployment w"] is not None


def test_a_fact_that_was_not_recorded_is_undecidable_never_a_guess() -> None:
    without_pools = build.policy({"pools": None})
    lines = recorded(without_pools, (build.request(build.admitted(build.pod("p", nodeName="n1"))), build.cluster()))
    found = total(lines, build.policy())
    assert found.undecidable == {"nodes.labels of n1": 1}
    assert found.undecidable_records[0].workload == "Pod p"
    assert found.judged == 0
    assert not found.flips


def test_a_baseline_replaces_the_recorded_answers() -> None:
    job = build.workload("Deployment", "w", 1, nodeSelector={build.POOL: "h100"})
    lines = recorded(build.policy(mode="audit"), (build.request(job), build.cluster()))
    strict, kept = build.policy(), build.policy({"onPoolConflict": "keep"})
    assert total(lines, strict).flips == {"allow (would deny) -> deny": 1}
    assert total(lines, strict, baseline=kept).flips == {"patch -> deny": 1}


def test_dry_runs_validate_records_and_unjudged_answers_are_no_flips() -> None:
    job = build.workload("Deployment", "w", 1)
    lines = recorded(
        build.policy(),
        (build.request(job, dryRun=True), build.cluster()),
        (build.request(job, phase="validate"), build.cluster()),
        (build.request(job, uid="3"), build.cluster()),
    )
    spent = msgspec.json.decode(lines.pop())
    spent |= {"verdict": "allow", "patch": [], "findings": [{"code": "OverBudget", "message": "m"}]}
    lines += [msgspec.json.encode(spent), b'{"schema":"gpu.platform/audit.v1"}', b'{"stream":"a checkpoint"}']
    found = total(lines, build.policy({"pools": ["h100"]}))
    assert not found.flips
    assert found.skipped == {"dryRun": 1, "validate": 1, "unjudged": 1, "unreadable": 1}
    assert found.records == 4


def test_several_processes_find_what_one_finds() -> None:
    lines = list(traffic.lines(3, 1500, POLICY))
    other = build.policy({"pools": ["h100"], "onPoolConflict": "keep"})
    one, many = total(lines, other), total(lines, other, processes=2)
    assert msgspec.to_builtins(one) == msgspec.to_builtins(many)
    assert one.flips
