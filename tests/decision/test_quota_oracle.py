"""`decide` on quota against the oracle, which imports nothing of ours: random workloads and quotas, CREATE and UPDATE.

A disagreement is shrunk, and printed with what replays it.
"""

import copy
import re
from typing import Any

from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from tests.decision.build import NOW, Json, namespace, policy, request
from tests.oracle import evaluator
from tests.oracle.test_differential import pods, quotas
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import judge
from webhook.decision.result import Decision

wide = settings(max_examples=60, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
EVERYTHING = policy(
    rule={"name": "all", "namespaceSelector": {}, "priorityClassName": None, "pools": None}, appliesTo="allWorkloads"
)
COUNTS = st.integers(0, 4)
SIZES = {
    "Pod": st.just({}),
    "Deployment": st.fixed_dictionaries({}, optional={"replicas": COUNTS}),
    "StatefulSet": st.fixed_dictionaries({}, optional={"replicas": COUNTS}),
    "Job": st.fixed_dictionaries(
        {}, optional={"parallelism": COUNTS, "completions": st.integers(1, 4), "suspend": st.booleans()}
    ),
    "CronJob": st.fixed_dictionaries({}, optional={"parallelism": COUNTS, "completions": st.integers(1, 4)}),
}
VERSIONS = {"Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}


def made(kind: str, size: Json, spec: Json) -> Json:
    head = {"apiVersion": VERSIONS.get(kind, "apps/v1"), "kind": kind, "metadata": {"name": "w"}}
    if kind == "Pod":
        return {**head, "spec": spec}
    body: Json = {**size, "template": {"spec": spec}}
    return {**head, "spec": {"jobTemplate": {"spec": body}} if kind == "CronJob" else body}


def running(kind: str, size: Json) -> int:
    """How many pods the controller keeps: W1, W11, W12."""
    if kind == "Pod":
        return 1
    if kind in ("Deployment", "StatefulSet"):
        return size.get("replicas", 1)
    if size.get("suspend"):
        return 0
    at_once = size.get("parallelism", 1)
    if "completions" in size:
        return min(at_once, size["completions"])
    return at_once


def refused_at_create(kind: str, random_quotas: list[Json], spec: Json, count: int) -> set[str]:
    """The quotas that refuse; a CronJob is held against an empty namespace, for only `hard` counts (W15)."""
    if kind == "CronJob":
        random_quotas = copy.deepcopy(random_quotas)
        for each in random_quotas:
            each["status"]["used"] = dict.fromkeys(each["status"]["used"], "0")
    return set(evaluator.refusals(random_quotas, spec, count))


def refused_at_update(random_quotas: list[Json], new: tuple[Json, int], old: tuple[Json, int]) -> set[str]:
    """The quotas that refuse what the new pods use beyond the old ones (Q23, Q30, H21)."""
    (spec, count), (old_spec, old_count) = new, old
    found = set()
    for each in random_quotas:
        if not count or not evaluator.applies(each, spec):
            continue
        missing = evaluator.unnamed(each, spec)
        before = evaluator.unnamed(each, old_spec) if spec != old_spec else missing
        if missing:
            if count > old_count or any(before.get(key) != names for key, names in missing.items()):
                found.add(each["metadata"]["name"])
            continue
        held = old_count if evaluator.applies(each, old_spec) else 0
        hard, used = (evaluator.amounts(each["status"][part]) for part in ("hard", "used"))
        for key in hard:
            more = evaluator.demand(spec, key) * count - evaluator.demand(old_spec, key) * held
            if evaluator.counts_pods(key) and more > 0 and used[key] + more > hard[key]:
                found.add(each["metadata"]["name"])
    return found


def verdict(obj: Json, random_quotas: list[Json], **more: Any) -> Decision:
    stored = [{"apiVersion": "v1", "kind": "ResourceQuota", **copy.deepcopy(each)} for each in random_quotas]
    for each in stored:
        each["metadata"]["namespace"] = "team-a"
    snapshot = Snapshot.from_objects([namespace(any="thing"), *stored], clock=lambda: NOW)
    return judge(request(obj, **more), EVERYTHING, snapshot)


def named(decision: Decision) -> set[str]:
    return set(re.findall(r"ResourceQuota (q\d)", decision.message))


@wide
@given(st.sampled_from(sorted(SIZES)), st.data(), pods, quotas())
def test_creates(kind: str, data: st.DataObject, spec: Any, random_quotas: list[Any]) -> None:
    size = data.draw(SIZES[kind])
    decision = verdict(made(kind, size, spec), random_quotas)
    expected = refused_at_create(kind, random_quotas, spec, running(kind, size))
    note(f"{decision.message}\n{decision.findings}")
    event(f"{kind}: {decision.verdict}")
    assert (decision.verdict == "deny", named(decision)) == (bool(expected), expected)


@wide
@given(st.sampled_from(["Deployment", "StatefulSet", "Job"]), st.data(), pods, quotas())
def test_updates(kind: str, data: st.DataObject, spec: Any, random_quotas: list[Any]) -> None:
    old_size, size = data.draw(SIZES[kind]), data.draw(SIZES[kind])
    new_spec = spec if kind == "Job" else data.draw(st.one_of(st.just(spec), pods))  # a Job's template is immutable
    new, old = made(kind, size, new_spec), made(kind, old_size, spec)
    decision = verdict(new, random_quotas, operation="UPDATE", old=old)
    expected = refused_at_update(random_quotas, (new_spec, running(kind, size)), (spec, running(kind, old_size)))
    note(f"{decision.message}\n{decision.findings}")
    event(f"{kind}: {decision.verdict}")
    assert (decision.verdict == "deny", named(decision)) == (bool(expected), expected)


@wide
@given(pods, pods, quotas())
def test_a_pod_update_is_never_refused(old: Any, new: Any, random_quotas: list[Any]) -> None:
    decision = verdict(made("Pod", {}, new), random_quotas, operation="UPDATE", old=made("Pod", {}, old))
    assert (decision.verdict, decision.patch) == ("allow", ())


@wide
@given(st.sampled_from(["Deployment", "Job"]), COUNTS, pods, quotas())
def test_what_the_message_says_would_fit_does(kind: str, count: int, spec: Any, random_quotas: list[Any]) -> None:
    """The largest number of pods that a refusal names is admitted, and one more is not."""
    field = "replicas" if kind == "Deployment" else "parallelism"
    text = verdict(made(kind, {field: count}, spec), random_quotas).message
    fix = re.search(r"to fix     (?:run at most|set parallelism to at most) (\d+)", text)
    if fix is None or "must specify" in text or "can never fit" in text:
        return
    most = int(fix[1])
    assert 1 <= most < count
    assert verdict(made(kind, {field: most}, spec), random_quotas).verdict != "deny"
    assert verdict(made(kind, {field: most + 1}, spec), random_quotas).verdict == "deny"
