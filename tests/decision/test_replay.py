"""Every decision can be judged again from its own record, and the record never makes another answer (DESIGN 5.5)."""

from typing import cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from tests.decision.anything import WORLDS, World
from tests.decision.build import cluster, codes, policy, quota, request, workload
from webhook.audit import record
from webhook.decision.answers import Recorded, UndecidableError
from webhook.decision.engine import decide
from webhook.decision.facts import Facts
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.policy.active import Policy

wide = settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def replayed(asked: Request, decision: Decision, policy_: Policy) -> Decision:
    """The decision made once more from what the record of the first one holds."""
    line = record.encode(asked, decision, policy_.name, policy_.revision, 0.5)
    read = record.decode(line)
    facts = msgspec.json.decode(read.facts, type=Recorded)
    return decide(record.request_from(read), policy_, cast(Facts, facts))


@wide
@given(WORLDS)
def test_a_record_gives_the_same_answer_again(world: World) -> None:
    first = decide(world.asked, world.policy, world.cluster.current(), fresh_failed=world.fresh_failed)
    again = replayed(world.asked, first, world.policy)
    for field in ("verdict", "would", "rule", "mode", "patch", "message", "findings", "warnings", "gpu", "asks"):
        assert msgspec.to_builtins(getattr(again, field)) == msgspec.to_builtins(getattr(first, field)), field


@wide
@given(WORLDS, WORLDS)
def test_another_policy_is_answered_from_the_record_or_not_at_all(world: World, other: World) -> None:
    """What was not recorded is undecidable; what was decided from the record is what the cluster would have given."""
    first = decide(world.asked, world.policy, world.cluster.current())
    try:
        answer = replayed(world.asked, first, other.policy)
    except UndecidableError:
        return
    real = decide(world.asked, other.policy, world.cluster.current())
    assert (answer.verdict, answer.patch, answer.message) == (real.verdict, real.patch, real.message)


def test_an_update_whose_template_was_not_compared_is_undecidable_never_a_guess() -> None:
    old, new = workload(), workload(name="w", nodeSelector={"gpu.platform/pool": "h100"})
    asked = request(new, "UPDATE", old)
    plain = decide(asked, policy(workloads=["Pod"]), cluster().current())
    with pytest.raises(UndecidableError):
        replayed(asked, plain, policy())


def test_a_job_is_replayed_with_what_is_left_of_it() -> None:
    """W11: three of four are done, so more parallelism asks for nothing."""
    old, new = (workload("Job", spec={"completions": 4, "parallelism": count}) for count in (2, 4))
    for each in (old, new):
        each["status"] = {"succeeded": 3, "active": 1}
    asked = request(new, "UPDATE", old)
    first = decide(asked, policy(), cluster(quota(gpu=("2", "2"))).current())
    assert "QuotaExceeded" not in codes(first)
    assert replayed(asked, first, policy()).verdict == first.verdict
