"""ResourceQuota: usage, scopes, refusals word for word, and every recorded case (Q1-Q32, B30, B32, B41, B42, B45)."""

from typing import Any

import msgspec
import pytest

from tests.k8s.recorded import lines, typed
from webhook.k8s.objects import Pod, PodSpec, ResourceQuota, ResourceQuotaStatus, Workload
from webhook.k8s.quota import (
    Demand,
    PodUse,
    Violation,
    amounts,
    charge,
    charged,
    check,
    effective_key,
    increase,
    ineffective_keys,
    matches,
    message,
    must_specify,
    pod_use,
    reading,
    spec_use,
    used,
)
from webhook.k8s.workloads import is_paused, pods_wanted, rollout, template_of

GPU = "nvidia.com/gpu"
KEY = f"requests.{GPU}"


def spec(**resources: Any) -> PodSpec:
    return msgspec.convert({"containers": [{"name": "c1", "resources": resources}]}, PodSpec)


def gpus(amount: Any, **more: Any) -> PodSpec:
    return msgspec.structs.replace(spec(limits={GPU: amount}), **more)


def quota(hard: Any = None, used: Any = None, name: str = "q", **quota_spec: Any) -> ResourceQuota:
    status = {"hard": hard, "used": used} if hard is not None else {}
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"hard": hard, **quota_spec}, "status": status}, ResourceQuota
    )


def by_class(operator: str, *values: str, **parts: Any) -> ResourceQuota:
    expression = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return quota({KEY: "4"}, {KEY: "0"}, scopeSelector={"matchExpressions": [expression]}, **parts)


def scoped(*scopes: str) -> ResourceQuota:
    return quota({KEY: "4"}, {KEY: "0"}, scopes=list(scopes))


def refusals(quotas: list[ResourceQuota], pod: PodSpec, pods: int = 1) -> list[str]:
    return [message(v, "x") for v in check(quotas, Demand(spec_use(pod), pods), spec=pod)]


# -- what a pod uses --------------------------------------------------------------------------------------------------


def test_q1_q2_q19_every_key_that_counts_a_pod() -> None:
    pod = spec(
        requests={"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi", "hugepages-2Mi": "4Mi"},
        limits={"cpu": "2", "memory": "2Gi", "ephemeral-storage": "3Gi", "hugepages-2Mi": "4Mi", GPU: "3"},
    )
    assert amounts(pod).usage == {
        "pods": 1,
        "count/pods": 1,
        "cpu": 1,
        "requests.cpu": 1,
        "limits.cpu": 2,
        "memory": 2**30,
        "requests.memory": 2**30,
        "limits.memory": 2 * 2**30,
        "ephemeral-storage": 2 * 2**30,
        "requests.ephemeral-storage": 2 * 2**30,
        "limits.ephemeral-storage": 3 * 2**30,
        "hugepages-2Mi": 4 * 2**20,
        "requests.hugepages-2Mi": 4 * 2**20,
        KEY: 3,
    }


def test_q19_b45_finished_pods_use_nothing_but_their_place_in_storage() -> None:
    counted = quota({KEY: "9", "pods": "9", "count/pods": "9"})
    pods = [
        pod_use(typed({"spec": gpus("8"), "status": {"phase": "Succeeded"}}, Pod)),
        pod_use(typed({"spec": gpus("8"), "status": {"phase": "Failed"}}, Pod)),
        pod_use(typed({"spec": gpus("1"), "status": {"phase": "Running"}}, Pod)),
        pod_use(typed({"spec": gpus("2"), "status": {"phase": "Pending"}}, Pod)),
    ]
    assert used(counted, pods, now=0) == {KEY: 3, "pods": 2, "count/pods": 4}


@pytest.mark.parametrize(("now", "still"), [(1_000.0, True), (1_030.0, True), (1_031.0, False)])
def test_q20_a_deleting_pod_is_charged_for_its_grace_period_after_the_deletion_time(now: float, still: bool) -> None:
    metadata = {"name": "p", "deletionTimestamp": "1970-01-01T00:16:40Z", "deletionGracePeriodSeconds": 30}
    pod = typed({"metadata": metadata, "spec": gpus("2")}, Pod)
    assert charged(pod_use(pod), now) is charged(pod.metadata, now) is still
    assert used(quota({KEY: "9"}), [pod_use(pod)], now) == {KEY: 2 if still else 0}


def test_q20_a_pod_that_is_not_deleting_is_charged() -> None:
    assert charged(PodUse(), 1e12)
    assert charged(PodUse(deletion_timestamp="garbage", deletion_grace_period_seconds=1), 1e12)


def test_a_use_names_pod_and_owner_and_survives_a_record() -> None:
    owner = {"kind": "ReplicaSet", "name": "web-1", "controller": True}
    pod = typed(
        {"metadata": {"name": "web-1-x", "ownerReferences": [owner]}, "spec": spec(limits={"cpu": "1500m"})}, Pod
    )
    use = pod_use(pod)
    assert (use.name, use.owner_kind, use.owner_name) == ("web-1-x", "ReplicaSet", "web-1")
    assert msgspec.json.decode(msgspec.json.encode(use), type=PodUse) == use
    assert str(use.usage["cpu"]) == "1.5"


def test_p16_the_class_the_pods_will_have_can_be_given() -> None:
    pod = gpus("1", priority_class_name="own")
    assert spec_use(pod).priority_class == "own"
    assert spec_use(pod, "injected").priority_class == "injected"
    assert spec_use(pod, "").priority_class == ""


# -- which quotas match -----------------------------------------------------------------------------------------------


def test_q2_b30_keys_that_never_count_match_nothing_and_are_named() -> None:
    idle = quota({f"limits.{GPU}": "1", GPU: "1"}, {})
    assert not matches(idle, spec_use(gpus("100")))
    assert refusals([idle], gpus("100")) == []
    assert ineffective_keys(idle) == [f"limits.{GPU}", GPU]
    assert {effective_key(key) for key in ineffective_keys(idle)} == {KEY}


def test_keys_that_others_count_are_not_called_ineffective() -> None:
    hard = {
        KEY: "1",
        "cpu": "1",
        "count/jobs.batch": "1",
        "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
        "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2",
        "requests.deviceclass.resource.kubernetes.io/gpu": "1",
    }
    assert ineffective_keys(quota(hard)) == []


def test_q5_a_quota_without_status_is_not_enforced() -> None:
    new = msgspec.convert({"metadata": {"name": "q"}, "spec": {"hard": {KEY: "1"}}}, ResourceQuota)
    assert not matches(new, spec_use(gpus("8")))
    assert refusals([new], gpus("8")) == []


def test_q11_a_quota_of_other_objects_does_not_match() -> None:
    assert not matches(quota({"count/jobs.batch": "0"}, {"count/jobs.batch": "0"}), spec_use(gpus("1")))


@pytest.mark.parametrize(("priority_class", "charged_to"), [("", "BC"), ("gpu-high", "A"), ("gpu-batch", "B")])
def test_q13_priority_class_scopes(priority_class: str, charged_to: str) -> None:
    quotas = [
        by_class("In", "gpu-high", name="A"),
        by_class("NotIn", "gpu-high", name="B"),
        by_class("DoesNotExist", name="C"),
    ]
    use = spec_use(gpus("1", priority_class_name=priority_class))
    assert "".join(q.metadata.name for q in quotas if matches(q, use)) == charged_to


def test_q12_entries_of_scopes_mean_exists() -> None:
    assert matches(scoped("PriorityClass"), spec_use(gpus("1", priority_class_name="any")))
    assert matches(by_class("Exists"), spec_use(gpus("1", priority_class_name="any")))
    assert not matches(scoped("PriorityClass"), spec_use(gpus("1")))
    assert not matches(by_class("Equals", "any"), spec_use(gpus("1", priority_class_name="any")))


def test_q15_terminating_is_the_pods_own_deadline() -> None:
    with_deadline = spec_use(gpus("1", active_deadline_seconds=0))
    assert matches(scoped("Terminating"), with_deadline)
    assert not matches(scoped("NotTerminating"), with_deadline)
    assert matches(scoped("NotTerminating"), spec_use(gpus("1")))


def test_q16_a_gpu_only_pod_is_best_effort() -> None:
    assert matches(scoped("BestEffort"), spec_use(gpus("1")))
    assert not matches(scoped("NotBestEffort"), spec_use(gpus("1")))
    assert matches(scoped("NotBestEffort"), spec_use(spec(limits={"cpu": "1", GPU: "1"})))


def test_overhead_does_not_make_a_pod_burstable() -> None:
    assert spec_use(gpus("1", overhead={"cpu": "100m"})).best_effort


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(
    ("term", "crosses"), [({"namespaces": ["b"]}, True), ({"namespaceSelector": {}}, True), ({}, False)]
)
def test_q12_cross_namespace_pod_affinity(kind: str, term: Any, crosses: bool) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}
    for affinity in (required, preferred):
        pod = msgspec.convert({"containers": [], "affinity": {kind: affinity}}, PodSpec)
        assert matches(scoped("CrossNamespacePodAffinity"), spec_use(pod)) is crosses


def test_all_scopes_must_hold_and_unknown_ones_never_do() -> None:
    assert not matches(scoped("BestEffort", "Terminating"), spec_use(gpus("1")))
    assert not matches(scoped("VolumeAttributesClass"), spec_use(gpus("1")))


# -- what admission says ----------------------------------------------------------------------------------------------


def test_q8_equal_is_allowed_and_unused_keys_are_not_looked_at() -> None:
    full = quota({KEY: "8", "pods": "99"}, {KEY: "6", "pods": "1"})
    assert refusals([full], gpus("2")) == []
    assert len(refusals([full], gpus("3"))) == 1
    over = quota({KEY: "4"}, {KEY: "6"})
    assert refusals([over], spec(limits={"cpu": "1"})) == []
    assert refusals([over], gpus("0")) == []
    assert len(refusals([over], gpus("1"))) == 1


def test_q9_b32_exact_refusal() -> None:
    assert refusals([quota({KEY: "8"}, {KEY: "6"}, name="gpu-quota")], gpus("4")) == [
        f'pods "x" is forbidden: exceeded quota: gpu-quota, requested: {KEY}=4, used: {KEY}=6, limited: {KEY}=8'
    ]


def test_q9_o3_only_failing_keys_sorted_and_as_written() -> None:
    hard = {"pods": "2", KEY: "2e0", "limits.memory": "1Gi"}
    full = quota(hard, {"pods": "2", KEY: "0", "limits.memory": "0"})
    assert refusals([full], spec(limits={GPU: "1k", "memory": "1536Mi"})) == [
        'pods "x" is forbidden: exceeded quota: q, '
        f"requested: limits.memory=1536Mi,pods=1,{KEY}=1k, "
        f"used: limits.memory=0,pods=2,{KEY}=0, limited: limits.memory=1Gi,pods=2,{KEY}=2e0"
    ]


def test_q10_every_quota_that_fails_is_named_and_none_is_pooled() -> None:
    quotas = [quota({KEY: "4"}, {KEY: "3"}, name=name) for name in ("a", "b")] + [quota({KEY: "8"}, {KEY: "3"})]
    assert [v.quota for v in check(quotas, Demand(spec_use(gpus("2"))))] == ["a", "b"]


def test_q6_a_key_without_used_is_unknown_even_if_the_pod_does_not_use_it() -> None:
    half = quota({"pods": "5", KEY: "4", f"limits.{GPU}": "4"}, {"pods": "0"})
    assert refusals([half], spec()) == [f'pods "x" is forbidden: status unknown for quota: q, resources: pods,{KEY}']


def test_a_status_that_no_server_would_store_is_unknown() -> None:
    assert check([quota({KEY: "x"}, {KEY: "0"})], Demand(spec_use(gpus("1"))))[0].kind == "status-unknown"


def test_q17_q18_what_must_be_specified_comes_first() -> None:
    strict = quota(
        {"limits.memory": "1Gi", "requests.cpu": "1", KEY: "0"}, {"limits.memory": "0", "requests.cpu": "0", KEY: "0"}
    )
    pod = msgspec.convert(
        {
            "containers": [{"name": "c1", "resources": {"limits": {GPU: "1"}}}],
            "initContainers": [{"name": "init1", "resources": {"limits": {"memory": "1Gi"}}}],
        },
        PodSpec,
    )
    assert refusals([quota({KEY: "0"}, {KEY: "0"}, name="a"), strict], pod) == [
        'pods "x" is forbidden: failed quota: q: must specify limits.memory for: c1; requests.cpu for: c1,init1',
        f'pods "x" is forbidden: exceeded quota: a, requested: {KEY}=1, used: {KEY}=0, limited: {KEY}=0',
    ]


def test_q17_gpus_need_not_be_specified_and_limits_stand_for_requests() -> None:
    hard = {KEY: "4", "requests.cpu": "4", "cpu": "4", "ephemeral-storage": "1Gi"}
    assert must_specify(quota(hard, hard), spec(limits={"cpu": "1"})) == {}
    assert must_specify(quota(hard, hard), spec(limits={"cpu": None})) == {"cpu": ("c1",), "requests.cpu": ("c1",)}


def test_q18_pod_level_resources_suspend_the_rule() -> None:
    pod = msgspec.convert({"containers": [{"name": "c"}], "resources": {"limits": {"cpu": "1"}}}, PodSpec)
    assert must_specify(quota({"requests.memory": "1Gi"}), pod) == {}


def test_q30_only_the_increase_is_asked_for() -> None:
    full = quota({KEY: "8"}, {KEY: "8"})
    four, five, two = (Demand(spec_use(gpus("2")), pods) for pods in (4, 5, 2))
    assert check([full], four, four) == []
    assert check([full], two, four) == []
    assert check([full], five, four)[0].keys[KEY].requested == 2
    assert increase(full, five, four) == {KEY: 2}
    assert increase(full, five) == {KEY: 10}
    assert check([full], Demand(spec_use(gpus("2")), 0)) == []


def test_q23_a_quota_that_did_not_match_before_is_charged_the_whole() -> None:
    batch = by_class("In", "gpu-batch")
    old = Demand(spec_use(gpus("2")), 2)
    new = Demand(spec_use(gpus("2", priority_class_name="gpu-batch")), 2)
    assert increase(batch, new, old) == {KEY: 4}
    assert increase(batch, old, new) == {}


def test_q31_q32_no_key_is_unlimited_and_zero_means_none() -> None:
    assert refusals([quota({"pods": "9"}, {"pods": "0"})], gpus("100")) == []
    assert refusals([], gpus("100")) == []
    assert len(refusals([quota({KEY: "0"}, {KEY: "0"})], gpus("1"))) == 1


def test_q3_hard_may_be_a_fraction() -> None:
    assert len(refusals([quota({KEY: "1500m"}, {KEY: "0"})], gpus("2"))) == 1
    assert refusals([quota({KEY: "1500m"}, {KEY: "0"})], gpus("1")) == []


def test_b41_the_slice_fails_alone_beside_a_free_gpu_quota() -> None:
    mig = "requests.nvidia.com/mig-1g.10gb"
    both = quota({mig: "2", KEY: "8"}, {mig: "0", KEY: "0"})
    found = check([both], Demand(spec_use(spec(limits={"nvidia.com/mig-1g.10gb": 3}))))
    assert list(found[0].keys) == [mig]


@pytest.mark.parametrize("resource", ["amd.com/gpu", "gpu.intel.com/i915", "nvidia.com/gpu.shared"])
def test_b42_other_vendors_are_counted_alike(resource: str) -> None:
    key = f"requests.{resource}"
    shortage = check([quota({key: "1"}, {key: "1"})], Demand(spec_use(spec(limits={resource: 2}))))[0].keys[key]
    assert (shortage.requested, shortage.used, shortage.hard, shortage.free) == (2, 1, 1, 0)


def test_free_is_never_negative() -> None:
    found: Violation = check([quota({KEY: "4"}, {KEY: "6"})], Demand(spec_use(gpus("1"))))[0]
    assert found.keys[KEY].free == 0


# -- recorded cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lines("quota-cases/pods.jsonl"), ids=lambda case: case["case"])
def test_recorded_quota_case(case: Any) -> None:
    """The verdict, and among our refusals the one that the API server happened to give (Q10)."""
    pod, quotas = typed(case["pod"], Pod), typed(case["quotas"], list[ResourceQuota])
    found = [message(v, pod.metadata.name) for v in check(quotas, Demand(pod_use(pod)), spec=pod.spec)]
    assert (not found) is case["admitted"]
    assert case["admitted"] or case["message"] in found


@pytest.mark.parametrize(
    "case", [c for c in lines("quota-cases/pods.jsonl") if c["admitted"]], ids=lambda case: case["case"]
)
def test_recorded_charge_after_admission(case: Any) -> None:
    """`used` afterwards, spelled as the API server spells it."""
    pod = typed(case["pod"], Pod)
    assert pod.spec is not None
    for raw_before, raw_after in zip(case["quotas"], case["quotas_after"], strict=True):
        before, after = typed(raw_before, ResourceQuota), typed(raw_after, ResourceQuota)
        assert charge(before, pod.spec).status == after.status


def _steps(operation: str) -> list[Any]:
    return [
        pytest.param(step, id=case["case"])
        for case in lines("workload-cases/workloads.jsonl")
        for step in case["steps"]
        if step["operation"] == operation
    ]


@pytest.mark.parametrize("step", _steps("CREATE"))
def test_recorded_workload_create(step: Any) -> None:
    """Pod after pod until one is refused: as many as the cluster came to have, and refused in the same words.

    A Deployment that is created paused makes no ReplicaSet and so no pods (W6).
    """
    kind, workload = step["object"]["kind"], typed(step["object"], Workload)
    template, quotas = template_of(workload), typed(step["quotas"], list[ResourceQuota])
    wanted = 0 if is_paused(workload) else pods_wanted(kind, workload)
    assert template is not None
    assert template.spec is not None
    assert wanted is not None
    whole = Demand(spec_use(template.spec), wanted)
    assert bool(check(quotas, whole, spec=template.spec)) is bool(step["failed_create"])
    made, refused = _fill(quotas, template.spec, wanted)
    assert made == step["pods"]
    said = {text.split(" is forbidden: ")[1] for text in step["failed_create"]}
    assert not said or said & {message(v, "x").split(" is forbidden: ")[1] for v in refused}


def _fill(quotas: list[ResourceQuota], pod: PodSpec, wanted: int) -> tuple[int, list[Violation]]:
    one = Demand(spec_use(pod))
    for made in range(wanted):
        if refused := check(quotas, one, spec=pod):
            return made, refused
        quotas = [charge(quota, pod) for quota in quotas]
    return wanted, []


@pytest.mark.parametrize("step", _steps("UPDATE"))
def test_recorded_workload_update(step: Any) -> None:
    """The increase decides; a template change also needs its surge at once (Q30, W3)."""
    kind, new, old = step["object"]["kind"], typed(step["object"], Workload), typed(step["oldObject"], Workload)
    new_template, old_template = template_of(new), template_of(old)
    new_pods, old_pods = pods_wanted(kind, new), pods_wanted(kind, old)
    assert new_template is not None
    assert new_template.spec is not None
    assert old_template is not None
    assert old_template.spec is not None
    assert new_pods is not None
    assert old_pods is not None
    rolls = step["object"]["spec"]["template"] != step["oldObject"]["spec"]["template"]
    surge = rollout(kind, new).surge if rolls else 0
    found = check(
        typed(step["quotas"], list[ResourceQuota]),
        Demand(spec_use(new_template.spec), new_pods + surge),
        Demand(spec_use(old_template.spec), old_pods),
        spec=new_template.spec,
    )
    assert bool(found) is bool(step["failed_create"])


def test_the_numbers_of_a_quota_belong_to_one_state_of_it() -> None:
    first = ResourceQuota(status=ResourceQuotaStatus(hard={"pods": "3", "cpu": "x"}, used={"pods": "1", "cpu": "1"}))
    read = reading(first)
    assert (read.hard, read.used, read.unreadable, read.unknown) == ({"pods": 3}, {"pods": 1}, ("cpu",), ())
    assert reading(first) is read
    changed = msgspec.structs.replace(first, status=ResourceQuotaStatus(hard={"pods": "4"}))
    assert (reading(changed).hard, reading(changed).used, reading(changed).unknown) == ({"pods": 4}, {}, ("pods",))
    assert msgspec.json.decode(msgspec.json.encode(first), type=ResourceQuota) == first
