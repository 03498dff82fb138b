"""The quota pre-check: refused exactly when the cluster would refuse, with the same numbers (Q, W, field reports D)."""

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.decision.build import (
    NOW,
    Json,
    admitted,
    cluster,
    codes,
    container,
    controller,
    namespace,
    pod,
    pod_spec,
    policy,
    priority_class,
    quota,
    request,
    scale,
    workload,
)
from webhook.cluster.snapshot import Snapshot
from webhook.decision.answers import Recorded
from webhook.decision.engine import decide, judge
from webhook.decision.facts import Note
from webhook.decision.result import Decision

GPU = "requests.nvidia.com/gpu"
F4 = quota(gpu=("8", "6"))


def answer(obj: Json, *objects: Json, options: Json | None = None, **more: Any) -> Decision:
    return judge(request(obj, **more), policy(**(options or {})), cluster(*objects))


def update(new: Json, old: Json, *objects: Json, **options: Any) -> Decision:
    return answer(new, *objects, operation="UPDATE", old=old, options=options)


def replicas(count: int, gpus: Any = 1, kind: str = "Deployment", name: str = "w", **spec: Any) -> Json:
    return workload(kind, name, gpus, spec={"replicas": count, **spec})


def named(obj: Json, image: str) -> Json:
    result = copy.deepcopy(obj)
    pod_spec(result)["containers"][0]["image"] = image
    return result


# -- the recorded cases ------------------------------------------------------------------------------------------------

EVERYTHING = policy(
    rule={"name": "all", "namespaceSelector": {}, "priorityClassName": None, "pools": None}, appliesTo="allWorkloads"
)


def recorded(path: str) -> list[Json]:
    return [json.loads(line) for line in Path("tests/data", path).read_text().splitlines()]


def facts_of(case: str, quotas: Iterable[Json]) -> Snapshot:
    typed = ({"apiVersion": "v1", "kind": "ResourceQuota", **each} for each in quotas)
    return Snapshot.from_objects([namespace(case, any="thing"), *typed], clock=lambda: NOW)


@pytest.mark.parametrize("case", recorded("quota-cases/pods.jsonl"), ids=lambda case: case["case"])
def test_recorded_pods_are_refused_exactly_when_the_api_server_refused_them(case: Json) -> None:
    decision = judge(request(case["pod"], namespace=case["case"]), EVERYTHING, facts_of(case["case"], case["quotas"]))
    assert (decision.verdict == "allow") == case["admitted"]
    if not case["admitted"]:
        assert_same_quota(case["message"], decision.message)


def assert_same_quota(theirs: str, ours: str) -> None:
    """The quota that the API named is among ours, with the same keys (where several fail it names any one, Q10)."""
    if "must specify" in theirs:
        named_quota = theirs.split("failed quota: ")[1].split(":")[0]
        wanted = theirs.split("must specify ")[1].replace(",", ", ")
        assert f"ResourceQuota {named_quota}" in ours
        assert wanted in ours
        return
    named_quota = theirs.split("exceeded quota: ")[1].split(",")[0]
    keys = [each.split("=")[0] for each in theirs.split("requested: ")[1].split(", used: ")[0].split(",")]
    assert f"ResourceQuota {named_quota}" in ours
    for key in keys:
        shown = key.removeprefix("requests.") if "/" in key else key
        lines = [line for line in ours.splitlines() if shown in line]
        assert lines, key


@pytest.mark.parametrize("case", recorded("workload-cases/workloads.jsonl"), ids=lambda case: case["case"])
def test_recorded_workloads(case: Json) -> None:
    """CREATE: denied exactly when pods failed. UPDATE: failed scale-ups denied, failed image changes warned about."""
    for step in case["steps"]:
        old = step.get("oldObject")
        if old is not None:
            old = {"apiVersion": step["object"]["apiVersion"], "kind": step["object"]["kind"], **old}
        asked = request(step["object"], step["operation"], old, namespace=case["case"])
        decision = judge(asked, EVERYTHING, facts_of(case["case"], step["quotas"]))
        failed = bool(step["failed_create"])
        if step["operation"] == "CREATE":
            assert (decision.verdict == "deny") == failed
        elif failed and step["object"]["spec"].get("replicas") != old["spec"].get("replicas"):
            assert decision.verdict == "deny"
        else:
            assert decision.verdict == "allow"
            assert ("RolloutSurge" in codes(decision)) == failed


# -- section D of the field reports ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["limits.nvidia.com/gpu", "nvidia.com/gpu"])
def test_b30_a_key_that_never_counts_is_a_finding_and_no_denial(key: str) -> None:
    dead = quota()
    dead["spec"]["hard"] = dead["status"]["hard"] = {key: "1"}
    dead["status"]["used"] = {}
    decision = answer(replicas(9), dead)
    assert decision.verdict == "patch"
    assert "QuotaKeyIneffective" in codes(decision)
    assert next(f.message for f in decision.findings if f.code == "QuotaKeyIneffective") == (
        f"ResourceQuota gpu-quota: key {key} has no effect, Kubernetes counts requests.nvidia.com/gpu"
    )


def test_b32_a_deployment_that_cannot_run_is_refused_at_apply() -> None:
    decision = answer(replicas(2, 2), F4)
    assert decision.message.splitlines() == [
        "GPU quota exceeded in namespace team-a (rule research): asks for 4, free 2 of 8",
        "  asks for   4 nvidia.com/gpu  (2 replicas x 2)",
        "  in use     6 of 8            (ResourceQuota gpu-quota)",
        "  free       2",
        "  to fix     run at most 1 replica, or free 2 GPUs",
        f"  decision   {decision.id}",
    ]
    assert (decision.gpu, decision.asks) == ({"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "4"})


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Deployment", {"replicas": 3}),
        ("StatefulSet", {"replicas": 3}),
        ("ReplicaSet", {"replicas": 3}),
        ("ReplicationController", {"replicas": 3}),
        ("Job", {"parallelism": 3}),
        ("Job", {"parallelism": 8, "completions": 3}),
        ("Job", {"parallelism": 3, "completions": 9, "completionMode": "Indexed"}),
    ],
)
def test_b32_every_kind_is_asked_at_apply(kind: str, spec: Json) -> None:
    assert answer(workload(kind, spec=spec), F4).verdict == "deny"
    assert answer(workload(kind, spec=spec), quota(gpu=("8", "5"))).verdict == "patch"


def test_b32_a_bare_pod() -> None:
    decision = answer(admitted(pod(gpus=3)), F4)
    assert decision.verdict == "deny"
    assert "  to fix     ask for at most 2 GPUs, or free 1 GPU" in decision.message


class TestRollout:
    """B33, W2-W5: a surge that cannot fit is a warning, never a denial."""

    FULL = quota(gpu=("1", "1"))

    def rolled(self, old: Json, *objects: Json) -> Decision:
        return update(named(old, "v2"), old, *(objects or (self.FULL,)))

    def test_b33_default_strategy_at_one_replica_is_stuck_for_ever(self) -> None:
        decision = self.rolled(replicas(1))
        assert decision.verdict == "patch"
        assert codes(decision)[-1] == "RolloutSurge"
        assert decision.warnings == (
            "rollout will be stuck: it needs 1 more nvidia.com/gpu than ResourceQuota gpu-quota has free and may stop "
            "no old pod; set maxSurge: 0 and maxUnavailable: 1, or strategy Recreate",
        )

    @pytest.mark.parametrize(
        "strategy",
        [{"type": "Recreate"}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}],
    )
    def test_b33_without_surge_there_is_nothing_to_warn_of(self, strategy: Json) -> None:
        assert "RolloutSurge" not in codes(self.rolled(replicas(1, strategy=strategy)))

    def test_b33_a_percentage_surges_rounded_up(self) -> None:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "34%", "maxUnavailable": "34%"}}
        decision = self.rolled(replicas(3, strategy=strategy), quota(gpu=("3", "3")))
        assert decision.warnings[0].startswith("rollout needs 2 more nvidia.com/gpu of headroom than ResourceQuota")

    def test_w4_headroom_is_enough(self) -> None:
        assert "RolloutSurge" not in codes(self.rolled(replicas(1), quota(gpu=("2", "1"))))

    def test_an_annotation_rolls_nothing_out(self) -> None:
        old = replicas(1)
        new = copy.deepcopy(old)
        new["metadata"]["annotations"] = {"a": "b"}
        assert "RolloutSurge" not in codes(update(new, old, self.FULL))


class TestScale:
    """B35: the scale subresource, judged through its parent (W25)."""

    PARENT = workload(spec={"replicas": 1}, priorityClassName="gpu-research") | {}

    def parent(self, count: int = 1) -> Json:
        parent = copy.deepcopy(self.PARENT)
        parent["metadata"]["namespace"] = "team-a"
        parent["spec"]["replicas"] = count
        return parent

    def scaled(self, new: int, old: int, *objects: Json, user: Json | None = None, **options: Any) -> Decision:
        more = {"user": user} if user else {}
        return judge(scale(new, old, **more), policy(**options), cluster(self.parent(old), *objects))

    def test_b35_up_beyond_the_quota_is_refused_in_the_same_words(self) -> None:
        decision = self.scaled(9, 1, F4)
        assert decision.verdict == "deny"
        assert decision.message.splitlines()[0] == (
            "GPU quota exceeded in namespace team-a (rule research): wants 9, can never fit into 8"
        )
        assert decision.asks == {"nvidia.com/gpu": "8"}

    def test_b35_up_within_it_is_allowed(self) -> None:
        assert self.scaled(3, 1, F4).verdict == "allow"
        assert self.scaled(4, 1, F4).verdict == "deny"

    @pytest.mark.parametrize("count", [1, 0])
    def test_b35_down_is_always_allowed(self, count: int) -> None:
        decision = self.scaled(count, 9, quota(gpu=("4", "9")))
        assert (decision.verdict, decision.warnings) == ("allow", ())

    def test_w19_an_autoscaler_is_recorded_and_warned_never_refused(self) -> None:
        decision = self.scaled(9, 1, F4, user=controller("horizontal-pod-autoscaler"))
        assert (decision.verdict, codes(decision)) == ("allow", ["QuotaNeverFits"])
        assert len(decision.warnings) == 1

    def test_a_scale_is_never_patched(self) -> None:
        assert self.scaled(2, 1).patch == ()


def test_b36_an_autoscaler_ceiling_above_hard_warns_at_the_next_change() -> None:
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "grow", "namespace": "team-a"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}, "maxReplicas": 20},
    }
    decision = answer(replicas(1), F4, hpa)
    assert decision.verdict == "patch"
    assert decision.warnings == (
        "HorizontalPodAutoscaler grow may grow this to 20 replicas: 20 nvidia.com/gpu, "
        "ResourceQuota gpu-quota allows 8",
    )


@pytest.mark.parametrize(
    ("written", "gpus"),
    [
        (1, "1"),
        ("1", "1"),
        (1.0, "1"),
        ("1e0", "1"),
        ("1E0", "1"),
        ("1k", "1k"),
        ("2000m", "2"),
        ("01", "1"),
        (" 1", "1"),
    ],
)
def test_b38_spellings_of_a_quantity(written: Any, gpus: str) -> None:
    assert answer(admitted(pod(gpus=written))).gpu == {"nvidia.com/gpu": gpus}


def test_b38_1e_is_a_billion_billion_and_not_one() -> None:
    assert answer(admitted(pod(gpus="1E")), F4).verdict == "deny"


@pytest.mark.parametrize("written", ["", True, "-1", "abc"])
def test_b38_unusable_amounts_never_crash_and_are_told(written: Any) -> None:
    mixed = pod(containers=[container("1", "good"), container(written, "bad")])
    decision = answer(admitted(mixed), F4, options={"appliesTo": "allWorkloads"})
    assert decision.verdict == "patch"
    assert "ResourceUnusable" in codes(decision)
    assert any("container bad: nvidia.com/gpu" in each for each in decision.warnings)


@pytest.mark.parametrize(
    ("resources", "warned"),
    [
        ({"limits": {"nvidia.com/gpu": "2"}}, False),
        ({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}, False),
        ({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}}, True),
    ],
)
def test_b39_limits_requests_or_both(resources: Json, warned: bool) -> None:
    decision = answer(workload(containers=[{"name": "c", "resources": resources}]))
    assert ("ResourceUnusable" in codes(decision)) == warned
    if not warned:
        assert decision.gpu == {"nvidia.com/gpu": "2"}


def test_b41_slices_and_whole_gpus_are_never_summed() -> None:
    mig = quota()
    name = "requests.nvidia.com/mig-1g.10gb"
    mig["spec"]["hard"] = mig["status"]["hard"] = {name: "2", GPU: "8"}
    mig["status"]["used"] = {name: "0", GPU: "0"}
    asked = admitted(pod(containers=[{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "3"}}}]))
    decision = answer(asked, mig)
    assert decision.message.splitlines()[0].endswith("wants 3, can never fit into 2")
    assert "nvidia.com/gpu " not in decision.message


def test_b42_every_vendor_has_the_same_arithmetic() -> None:
    amd = quota()
    amd["spec"]["hard"] = amd["status"]["hard"] = {"requests.amd.com/gpu": "4"}
    amd["status"]["used"] = {"requests.amd.com/gpu": "3"}
    asked = admitted(pod(containers=[{"name": "c", "resources": {"limits": {"amd.com/gpu": "2"}}}]))
    assert "asks for   2 amd.com/gpu" in answer(asked, amd).message


def test_b43_claims_are_never_a_quiet_zero() -> None:
    key = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    claims = quota()
    claims["spec"]["hard"] = claims["status"]["hard"] = {key: "2"}
    claims["status"]["used"] = {key: "0"}
    asked = workload(gpus=None, resourceClaims=[{"name": "g", "resourceClaimTemplateName": "four-gpus"}])
    decision = answer(asked, claims)
    assert "ClaimsNotCounted" in codes(decision)
    assert key in decision.warnings[0]
    unlimited = answer(asked)
    assert "ClaimsNotCounted" in codes(unlimited)
    assert unlimited.warnings == ()


def test_b44_two_at_once_on_two_processes_may_both_pass() -> None:
    """Advisory by design: each process sees `used` and its own notes, and leaves no reservation behind."""
    full_enough = quota(gpu=("8", "6"))
    first, second = cluster(full_enough), cluster(full_enough)
    for facts in (first, second):
        assert judge(request(replicas(1, 2)), policy(), facts).verdict == "patch"
    assert first.current().notes("team-a") == ()


@pytest.mark.parametrize("mark", [{"kueue.x-k8s.io/queue-name": "any"}])
def test_b46_a_label_a_tenant_can_set_opens_no_door(mark: Json) -> None:
    obj = replicas(9)
    obj["metadata"]["labels"] = mark
    obj["spec"]["template"]["metadata"]["labels"] |= mark
    assert answer(obj, F4).verdict == "deny"


# -- keys, scopes and defaults -----------------------------------------------------------------------------------------


def test_every_key_of_a_gpu_workload_is_checked() -> None:
    cpu = quota("cpu", requests_cpu=("4", "3"))
    both = container("1", limits={"nvidia.com/gpu": "1", "cpu": "2"})
    decision = answer(admitted(pod(containers=[both])), cpu)
    assert decision.message.splitlines()[0] == (
        "Quota exceeded in namespace team-a (rule research): asks for 2 requests.cpu, free 1 of 4"
    )
    assert answer(admitted(pod(containers=[both])), cpu, options={"quota": {"resources": "gpu"}}).verdict == "patch"


def test_several_violated_quotas_are_listed_worst_first() -> None:
    both = container("4", limits={"nvidia.com/gpu": "4", "cpu": "2"})
    decision = answer(admitted(pod(containers=[both])), F4, quota("cpu", requests_cpu=("4", "3")))
    lines = decision.message.splitlines()
    assert lines[0].startswith("GPU quota exceeded")
    assert "  also over  requests.cpu: asks for 2, free 1 of 4  (ResourceQuota cpu)" in lines


def test_q17_what_every_container_must_specify() -> None:
    decision = answer(replicas(1), quota("mem", limits_memory=("8Gi", "0")))
    assert codes(decision) == ["QuotaMustSpecify"]
    assert "must specify limits.memory for: c" in decision.message


def test_p16_scopes_are_judged_with_the_class_the_pods_will_have() -> None:
    def scoped(name: str, operator: str, values: list[str]) -> Json:
        expression = {"scopeName": "PriorityClass", "operator": operator, **({"values": values} if values else {})}
        return quota(name, scopes={"scopeSelector": {"matchExpressions": [expression]}}, gpu=("1", "1"))

    assert answer(replicas(1), scoped("ours", "In", ["gpu-research"])).verdict == "deny"
    assert answer(replicas(1), scoped("others", "NotIn", ["gpu-research"])).verdict == "patch"
    assert answer(replicas(1), scoped("none", "DoesNotExist", [])).verdict == "patch"
    default = priority_class("house-default", 10, default=True)
    keep = {"rule": {"priorityClassName": None}}
    assert answer(replicas(1), scoped("default", "In", ["house-default"]), default, options=keep).verdict == "deny"


def test_a14_limit_range_defaults_reach_templates_first() -> None:
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": "team-a"},
        "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "4"}}]},
    }
    decision = answer(workload(gpus=None), limits, quota(gpu=("8", "5")))
    assert (decision.verdict, decision.gpu) == ("deny", {"nvidia.com/gpu": "4"})


def test_q5_a_quota_without_status_is_unknown_and_never_zero() -> None:
    new = quota(gpu=("1", "0"))
    new["status"] = {}
    decision = answer(replicas(9), new)
    assert (decision.verdict, codes(decision)[-1]) == ("patch", "QuotaUnknown")
    assert answer(replicas(9), new, options={"quota": {"onUnknown": "deny"}}).verdict == "deny"


def test_q6_a_key_without_used_is_unknown() -> None:
    half = quota(gpu=("8", "0"))
    half["status"]["used"] = {}
    decision = answer(replicas(1), half)
    assert (decision.verdict, codes(decision)[-1]) == ("patch", "QuotaUnknown")
    assert "has no usage yet for requests.nvidia.com/gpu" in decision.warnings[0]
    assert answer(replicas(1), half, options={"quota": {"onUnknown": "deny"}}).verdict == "deny"


def test_q32_hard_zero_means_none() -> None:
    assert codes(answer(replicas(1), quota(gpu=("0", "0")))) == ["QuotaNeverFits"]


def test_q31_no_quota_means_no_limit() -> None:
    assert answer(replicas(900)).verdict == "patch"


# -- when it is checked and what it does -------------------------------------------------------------------------------


class TestTheDelta:
    """Q30, H21, H22: only what an update adds."""

    OVER = quota(gpu=("4", "9"))

    def test_metadata_scale_down_and_pause_pass_in_an_over_full_namespace(self) -> None:
        old = replicas(4, 2)
        edited = copy.deepcopy(old)
        edited["metadata"]["labels"] = {"a": "b"}
        for new in (edited, replicas(2, 2), replicas(0, 2), replicas(4, 2, paused=True)):
            assert update(new, old, self.OVER).verdict in ("allow", "patch")

    def test_an_image_change_without_surge_passes(self) -> None:
        old = replicas(4, 2, strategy={"type": "Recreate"})
        assert update(named(old, "v2"), old, self.OVER).verdict == "patch"

    def test_more_gpus_per_pod(self) -> None:
        decision = update(replicas(4, 2), replicas(4, 1), quota(gpu=("8", "5")))
        assert (decision.verdict, decision.asks, decision.gpu) == (
            "deny",
            {"nvidia.com/gpu": "4"},
            {"nvidia.com/gpu": "8"},
        )

    def test_a_scale_up_by_apply(self) -> None:
        assert update(replicas(5, 2), replicas(4, 2), quota(gpu=("10", "8"))).verdict == "allow"
        assert update(replicas(5, 2), replicas(4, 2), quota(gpu=("9", "8"))).verdict == "deny"

    def test_unsuspending_a_job_asks_for_all_of_it(self) -> None:
        old, new = (workload("Job", spec={"parallelism": 3, "suspend": state}) for state in (True, False))
        assert update(new, old, F4).verdict == "deny"
        assert update(new, old, quota(gpu=("8", "5"))).verdict == "allow"


class TestNothingRunsNow:
    """Replicas 0, paused, suspended: no denial, a warning if one pod can never fit."""

    @pytest.mark.parametrize(
        "obj",
        [
            replicas(0, 9),
            replicas(3, 9, paused=True),
            workload("Job", gpus=9, spec={"suspend": True}),
        ],
        ids=["zero", "paused", "suspended"],
    )
    def test_never_fits_is_a_warning(self, obj: Json) -> None:
        decision = answer(obj, F4)
        assert decision.verdict == "patch"
        assert codes(decision)[-1] == "QuotaNeverFits"
        assert decision.warnings == (
            "when it runs, one pod can never fit: it wants 9 nvidia.com/gpu, ResourceQuota gpu-quota allows 8",
        )

    def test_what_fits_later_is_silent(self) -> None:
        assert answer(replicas(0, 8), F4).warnings == ()

    def test_w15_a_cron_job_is_refused_only_if_one_run_can_never_fit(self) -> None:
        assert codes(answer(workload("CronJob", gpus=9), F4)) == ["QuotaNeverFits"]
        waits = answer(workload("CronJob", gpus=4), F4)
        assert waits.verdict == "patch"
        assert waits.warnings[0].startswith("a run started now would not fit: wants 4 nvidia.com/gpu, free 2 of 8")
        assert answer(workload("CronJob", gpus=2), F4).warnings == ()


class TestWhatARefusalBecomes:
    def test_on_quota_exceeded_of_the_rule(self) -> None:
        decision = answer(replicas(4, 1), F4, options={"rule": {"onQuotaExceeded": "warn"}})
        assert decision.verdict == "patch"
        assert decision.warnings[0].startswith("does not fit now and waits for room: asks for 4 nvidia.com/gpu, free 2")

    def test_waiting_kinds_wait_for_what_can_fit_later(self) -> None:
        waiting = {"quota": {"waitingKinds": ["Job"]}}
        assert answer(workload("Job", gpus=4), F4, options=waiting).verdict == "patch"
        assert answer(workload("Job", gpus=9), F4, options=waiting).verdict == "deny"
        assert answer(workload("Job", spec={"parallelism": 9}), F4, options=waiting).verdict == "patch"
        assert answer(replicas(4), F4, options=waiting).verdict == "deny"


class Stale:
    """A source whose facts are not fresh, and which may be unable to read any."""

    def __init__(self, stale: Snapshot, fresh: Snapshot | None) -> None:
        self._stale = stale
        self._fresh = fresh

    def current(self, may_wait: bool = True) -> Any:
        return msgspec.structs.replace(self._stale.current(), is_fresh=False)

    def fresh(self, namespace: str, timeout: float = 0.3) -> Any:
        return self._fresh and self._fresh.fresh(namespace)

    def note(self, note: Note) -> None:
        raise AssertionError("nothing is noted here")


class TestStaleEvidence:
    """Rule 3: before a denial the quota is read again."""

    def test_room_that_appeared_is_seen(self) -> None:
        source = Stale(cluster(quota(gpu=("8", "8"))), cluster(quota(gpu=("8", "0"))))
        assert judge(request(replicas(2)), policy(), source).verdict == "patch"

    def test_a_read_that_fails_leaves_it_to_the_policy(self) -> None:
        source = Stale(cluster(quota(gpu=("8", "8"))), None)
        decision = judge(request(replicas(2)), policy(), source)
        assert (decision.verdict, codes(decision)[-1]) == ("patch", "QuotaUnknown")
        assert decision.facts["fresh"] is None
        strict = policy(quota={"onUnknown": "deny"})
        assert judge(request(replicas(2)), strict, source).verdict == "deny"

    def test_what_fits_costs_no_read(self) -> None:
        source = Stale(cluster(quota(gpu=("8", "0"))), None)
        assert decide(request(replicas(2)), policy(), source.current()).stale is False


# -- just admitted, waiting, and on the way out ------------------------------------------------------------------------


def at(seconds_ago: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(NOW - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(name: str, gpus: Any, owner: str = "", kind: str = "ReplicaSet", deleted: str | None = None) -> Json:
    """A live pod; `owner` names its ReplicaSet (or other controller)."""
    live = pod(name, gpus)
    live["metadata"] |= {"namespace": "team-a", "creationTimestamp": at(300)}
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": True}
        live["metadata"]["ownerReferences"] = [reference]
    if deleted:
        live["metadata"] |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}
    return live | {"status": {"phase": "Running"}}


def deployment(name: str, count: int, gpus: Any, age: float, *, existing: int = 0, failing: bool = False) -> list[Json]:
    """A Deployment with its ReplicaSet and the pods that exist already."""
    obj = replicas(count, gpus, name=name)
    obj["metadata"] |= {"namespace": "team-a", "uid": name, "creationTimestamp": at(age), "generation": 1}
    condition = {"type": "ReplicaFailure", "status": "True"}
    obj["status"] = {"replicas": existing, **({"conditions": [condition]} if failing else {})}
    rs = replicas(count, gpus, "ReplicaSet", name=f"{name}-1")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": name, "controller": True}
    rs["metadata"] |= {
        "namespace": "team-a",
        "uid": f"{name}-1",
        "creationTimestamp": at(age),
        "ownerReferences": [owner],
    }
    pods = [running(f"{name}-1-{number}", gpus, f"{name}-1") for number in range(existing)]
    return [obj, rs, *pods]


class TestJustAdmitted:
    """What is admitted and not yet running counts once, and only for a moment."""

    def test_the_second_of_two_that_do_not_fit_together_is_told_by_whom(self) -> None:
        decision = answer(replicas(1, 6, name="second"), quota(gpu=("8", "0")), *deployment("first", 1, 6, age=1))
        assert decision.verdict == "deny"
        assert "in use     6 of 8" in decision.message
        assert "free 4: first uses 6 (just admitted)" in decision.message

    def test_pods_that_exist_are_not_counted_twice(self) -> None:
        """In 7 of 8 live tries `used` had risen while status.replicas still lagged."""
        first = deployment("first", 1, 6, age=1, existing=1)
        first[0]["status"]["replicas"] = 0
        assert answer(replicas(1, 2, name="second"), quota(gpu=("8", "6")), *first).verdict == "patch"

    def test_used_that_lags_behind_live_pods_is_seen_through(self) -> None:
        first = deployment("first", 1, 6, age=60, existing=1)
        assert answer(replicas(1, 4, name="second"), quota(gpu=("8", "0")), *first).verdict == "deny"

    def test_an_old_gap_never_denies_anybody_but_is_told(self) -> None:
        waiting = deployment("first", 1, 6, age=60)
        assert answer(replicas(1, 4, name="second"), quota(gpu=("8", "4")), *waiting).verdict == "patch"
        refused = answer(replicas(1, 5, name="second"), quota(gpu=("8", "4")), *waiting)
        assert "  waiting    also waiting: first wants 6" in refused.message

    def test_a_failing_workload_never_blocks_others(self) -> None:
        failing = deployment("first", 1, 6, age=1, failing=True)
        assert answer(replicas(1, 4, name="second"), quota(gpu=("8", "4")), *failing).verdict == "patch"

    def test_a_note_counts_until_its_object_is_seen_or_gone(self) -> None:
        snapshot = cluster(quota(gpu=("8", "0")))
        note = judge(request(replicas(1, 6, name="first"), phase="validate"), policy(), snapshot).note
        assert note is not None
        snapshot.note(note)
        second = request(replicas(1, 6, name="second"), now=NOW + 1)
        assert judge(second, policy(), snapshot).verdict == "deny"
        later = request(replicas(1, 6, name="second"), now=NOW + 3)
        assert judge(later, policy(), snapshot).verdict == "patch"

    def test_a_repeated_call_is_not_blocked_by_its_own_note(self) -> None:
        """A19: one user request may call us several times."""
        snapshot = cluster(quota(gpu=("8", "0")))
        asked = request(replicas(1, 6), phase="validate")
        for _ in range(3):
            decision = judge(asked, policy(), snapshot)
            assert decision.verdict == "allow"
            assert decision.note is not None
            snapshot.note(decision.note)

    def test_bare_pods_are_judged_by_used_alone(self) -> None:
        young = deployment("first", 1, 6, age=1)
        assert answer(admitted(pod(gpus=8)), quota(gpu=("8", "0")), *young).verdict == "patch"

    def test_the_recorded_seed_cluster_does_not_block_a_one_gpu_workload(self) -> None:
        objects = json.loads(Path("tests/data/seed-cluster/cluster.json").read_text())
        snapshot = Snapshot.from_objects([objects])
        rule = {"namespaceSelector": {}, "priorityClassName": None, "pools": None}
        one = {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1Gi"}
        small = workload(name="one", containers=[container(limits=one)])
        asked = request(small, namespace="ai-inference", now=NOW)
        assert judge(asked, policy(rule=rule), snapshot).verdict in ("allow", "patch")


class TestGoing:
    """Delete, then apply again: what nobody will replace counts as free for workloads."""

    def pods(self, count: int = 1, age: float = 5) -> list[Json]:
        return [running(f"old-1-{number}", 2, "old-1", deleted=at(age)) for number in range(count)]

    def test_the_gpus_of_a_deleted_deployment_come_back(self) -> None:
        decision = answer(replicas(1, 2, name="old"), quota(gpu=("2", "2")), *self.pods())
        assert (decision.verdict, codes(decision)[-1]) == ("patch", "QuotaFreeing")
        assert decision.warnings == (
            "counts 2 GPUs as free that pods being deleted still hold: old-1-0; the new pods may wait for them",
        )

    def test_not_those_of_a_pod_that_its_owner_will_replace(self) -> None:
        obj, rs, *_ = deployment("old", 1, 2, age=600)
        evicted = running("old-1-0", 2, "old-1", deleted=at(5))
        assert answer(replicas(1, 2, name="new"), quota(gpu=("2", "2")), obj, rs, evicted).verdict == "deny"

    def test_those_of_an_owner_that_shrinks(self) -> None:
        obj, rs, keep, *_ = deployment("old", 1, 2, age=600, existing=1)
        surplus = running("old-1-9", 2, "old-1", deleted=at(5))
        assert answer(replicas(1, 2, name="new"), quota(gpu=("4", "4")), obj, rs, keep, surplus).verdict == "patch"

    def test_not_for_ever(self) -> None:
        stuck = [
            each | {"metadata": each["metadata"] | {"deletionGracePeriodSeconds": 600}} for each in self.pods(age=61)
        ]
        assert answer(replicas(1, 2, name="new"), quota(gpu=("2", "2")), *stuck).verdict == "deny"

    def test_not_for_bare_pods(self) -> None:
        assert answer(admitted(pod(gpus=2)), quota(gpu=("2", "2")), *self.pods()).verdict == "deny"


def test_holders_are_named_largest_first_and_three_at_most() -> None:
    pods = [running(f"p{number}", number) for number in (1, 2, 3, 4)]
    decision = answer(replicas(1, 3), quota(gpu=("10", "10")), *pods)
    assert "free 3: p4 uses 4, p3 uses 3, p2 uses 2" in decision.message
    assert "p1" not in decision.message


def test_a_denial_is_judged_the_same_from_what_it_recorded() -> None:
    """Replay: the recorded answers alone give the same verdict and message."""
    import msgspec

    asked = request(replicas(2, 2), now=NOW)
    decision = judge(asked, policy(), cluster(F4, running("p", 6)))
    facts = msgspec.json.decode(msgspec.json.encode(decision.facts), type=Recorded)
    replayed = decide(asked, policy(), facts)
    assert replayed.message == decision.message
    assert replayed.verdict == "deny"
