"""The rules that never bend (DESIGN 6) and the sentences of 5.7, tried from the side of whoever gets round them."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decision.anything import WORLDS, World, clusters, policies, updates
from tests.decision.build import (
    ALICE,
    POOL,
    POOL_TERM,
    Json,
    admitted,
    cluster,
    codes,
    container,
    controller,
    expressions,
    patched,
    pod,
    pod_spec,
    policy,
    priority_class,
    quota,
    request,
    required,
    scale,
    terms,
    workload,
)
from tests.decision.test_fit import Stale, at, deployment, running
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import decide, judge, unjudged
from webhook.decision.exemptions import EXEMPT
from webhook.decision.injected import ANNOTATION
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.policy.active import Policy

FULL = quota(gpu=("1", "1"))
STRICT = {"quota": {"onUnknown": "deny"}, "onUnplaced": "deny"}
RS_USER = controller("replicaset-controller")
wide = settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


def answer(obj: Json, *objects: Json, rule: Json | None = None, options: Json | None = None, **more: Any) -> Decision:
    return judge(request(obj, **more), policy(rule, **(options or {})), cluster(*objects))


def update(new: Json, old: Json, *objects: Json, **more: Any) -> Decision:
    return answer(new, *objects, operation="UPDATE", old=old, **more)


def owned(kind: str, api: str = "apps/v1", **annotations: str) -> Json:
    owner = {"apiVersion": api, "kind": kind, "name": "o", "uid": "1", "controller": True}
    return {"ownerReferences": [owner], **({"annotations": annotations} if annotations else {})}


def labelled(obj: Json) -> Json:
    new = copy.deepcopy(obj)
    new["metadata"]["labels"] = {"a": "b"}
    return new


def replicas(count: int, gpus: Any = 1, kind: str = "Deployment", **spec: Any) -> Json:
    return workload(kind, gpus=gpus, spec={"replicas": count, **spec})


# -- rule 1, 8 ---------------------------------------------------------------------------------------------------------


@wide
@given(WORLDS)
def test_rule_8_a_patch_applies_and_applying_it_twice_changes_nothing(world: World) -> None:
    facts = world.cluster.current()
    first = decide(world.asked, world.policy, facts)
    assert first == decide(world.asked, world.policy, facts)
    assert not (first.patch and first.verdict != "patch")
    if world.asked.phase == "validate":
        assert first.patch == ()


@wide
@given(st.sampled_from(["Deployment", "Job", "CronJob", "StatefulSet"]).flatmap(updates), policies(), clusters())
def test_rule_8_an_update_is_answered_once(pair: tuple[Json, Json], policy_: Policy, snapshot: Snapshot) -> None:
    new, old = pair
    facts = snapshot.current()
    first = decide(request(new, "UPDATE", old), policy_, facts)
    if first.verdict == "patch":
        again = decide(request(patched(new, first), "UPDATE", old), policy_, facts)
        assert again.patch == ()
        assert again.verdict != "deny"


# -- rule 2 ------------------------------------------------------------------------------------------------------------


@wide
@given(st.sampled_from(["Deployment", "StatefulSet", "CronJob", "Job"]).flatmap(updates), policies(), clusters())
def test_rule_2_a_label_edit_is_never_refused(pair: tuple[Json, Json], policy_: Policy, snapshot: Snapshot) -> None:
    _, old = pair
    assert decide(request(labelled(old), "UPDATE", old), policy_, snapshot.current()).verdict != "deny"
    nothing = Snapshot.from_objects([]).current()
    assert decide(request(labelled(old), "UPDATE", old), policy_, nothing).verdict != "deny"
    assert (
        decide(request(labelled(old), "UPDATE", old), policy_, snapshot.current(), fresh_failed=True).verdict != "deny"
    )


class TestRule2:
    """Deleting, shrinking, editing labels: always allowed, whatever is unknown or over-full."""

    UNCOMPUTED = FULL | {"status": {}}

    @pytest.mark.parametrize("facts", ["labels", "quotas", "status", "full", "must specify"])
    @pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"])
    def test_shrinking_and_labels(self, kind: str, facts: str) -> None:
        source = {
            "labels": Snapshot.from_objects([]),
            "quotas": Stale(cluster(quota(gpu=("2", "9"))), None),
            "status": cluster(self.UNCOMPUTED),
            "full": cluster(quota(gpu=("2", "9"))),
            "must specify": cluster(quota(limits_memory=("1Gi", "9Gi"))),
        }[facts]
        old = replicas(4, 2, kind)
        for new in (labelled(old), replicas(3, 2, kind), replicas(0, 2, kind)):
            decision = judge(request(new, "UPDATE", old), policy(**STRICT), source)
            assert decision.verdict == "allow", decision.message

    def test_growing_is_what_a_strict_policy_refuses_there(self) -> None:
        nothing = Snapshot.from_objects([])
        new, old = replicas(5), replicas(4)
        assert judge(request(new, "UPDATE", old), policy(**STRICT), nothing).verdict == "deny"
        assert update(new, old, self.UNCOMPUTED, options=STRICT).verdict == "deny"

    def test_what_asks_for_no_gpu_passes_where_labels_are_unknown(self) -> None:
        nothing = Snapshot.from_objects([])
        assert judge(request(workload(gpus=None)), policy(**STRICT), nothing).verdict == "allow"

    def test_a_scale_down_passes_where_usage_is_unknown(self) -> None:
        parent = replicas(4)
        parent["metadata"]["namespace"] = "team-a"
        down, up = scale(2, 4), scale(6, 4)
        assert judge(down, policy(**STRICT), cluster(parent, self.UNCOMPUTED)).verdict == "allow"
        assert judge(up, policy(**STRICT), cluster(parent, self.UNCOMPUTED)).verdict == "deny"

    def test_a_scale_of_what_is_being_deleted(self) -> None:
        parent = replicas(1)
        parent["metadata"] |= {"namespace": "team-a", "deletionTimestamp": at(1)}
        assert codes(judge(scale(9, 1), policy(), cluster(parent, FULL))) == ["Deleting"]

    @pytest.mark.parametrize("edit", [{}, {"suspend": True}, {"schedule": "0 * * * *"}])
    def test_a_cron_job_whose_run_never_fits_stays_editable(self, edit: Json) -> None:
        old = workload("CronJob", gpus=9)
        new = labelled(old)
        new["spec"] |= edit
        for quota_ in (quota(gpu=("8", "0")), quota(limits_memory=("1Gi", "0"))):
            assert update(new, old, quota_).verdict == "allow"

    def test_a_cron_job_stays_editable_where_usage_is_unknown(self) -> None:
        old, uncounted = workload("CronJob", gpus=4), quota(gpu=("8", "0"))
        uncounted["status"]["used"] = {}
        assert update(labelled(old), old, uncounted, options=STRICT).verdict == "allow"
        assert answer(old, uncounted, options=STRICT).verdict == "deny"

    def test_a_cron_job_is_refused_for_what_an_update_adds(self) -> None:
        old, new = workload("CronJob", gpus=4), workload("CronJob", gpus=9)
        assert update(new, old, quota(gpu=("8", "0"))).verdict == "deny"
        suspended = copy.deepcopy(new)
        suspended["spec"]["suspend"] = True
        assert update(new, suspended, quota(gpu=("8", "0"))).verdict == "deny"
        assert codes(answer(suspended, quota(gpu=("8", "0"))))[-1] == "QuotaNeverFits"
        assert answer(suspended, quota(gpu=("8", "0"))).verdict == "patch"

    def test_a_deletion_timestamp_that_a_client_wrote_opens_no_door(self) -> None:
        forged = replicas(9)
        forged["metadata"]["deletionTimestamp"] = at(0)
        assert answer(forged, FULL).verdict == "deny"
        assert update(forged, replicas(1), FULL).verdict == "deny"


# -- rule 3 ------------------------------------------------------------------------------------------------------------


@wide
@given(WORLDS)
def test_rule_3_no_quota_denial_rests_on_stale_facts(world: World) -> None:
    source = Stale(world.cluster, None)
    decision = judge(world.asked, world.policy, source)
    if decision.verdict == "deny":  # for its pool, say; a quota may still warn beside that
        quota_says = [each.message for each in decision.findings if each.code in ("QuotaExceeded", "QuotaNeverFits")]
        assert [text for text in quota_says if text in decision.message] == []


def test_a_cron_job_is_not_refused_on_stale_facts_either() -> None:
    decision = judge(request(workload("CronJob", gpus=9)), policy(), Stale(cluster(quota(gpu=("8", "0"))), None))
    assert (decision.verdict, codes(decision)[-1]) == ("patch", "QuotaUnknown")


# -- rule 6, W19 -------------------------------------------------------------------------------------------------------


@wide
@given(WORLDS, st.sampled_from(["replicaset-controller", "job-controller", "cronjob-controller", None]))
def test_rule_6_a_controllers_pod_is_never_refused(world: World, name: str | None) -> None:
    """By name, or as the one user that all controllers may share (W19)."""
    user = controller(name) if name else {"username": "system:kube-controller-manager", "groups": []}
    made = admitted(pod(gpus=9, nodeSelector={POOL: "h100"}, nodeName="n3", priorityClassName="gpu-high"))
    made["metadata"] |= owned("ReplicaSet")
    for phase in ("mutate", "validate"):
        asked = request(made, user=user, phase=phase)
        if {"ReplicaSet", "Deployment"} & world.policy.kinds:
            assert decide(asked, world.policy, world.cluster.current()).verdict != "deny"


class TestControllers:
    def test_a_node_name_outside_the_pool_is_left_without_an_affinity_that_would_fail_it(self) -> None:
        made = admitted(pod(nodeName="n3", priorityClassName="gpu-research", metadata=owned("ReplicaSet")), 1000)
        decision = answer(made, user=RS_USER)
        assert (decision.verdict, decision.patch, codes(decision)) == ("allow", (), ["ControllerPod"])

    def test_keep_leaves_a_node_name_alone_too(self) -> None:
        decision = answer(admitted(pod(nodeName="n3")), rule={"onPoolConflict": "keep"})
        assert "affinity" not in patched(admitted(pod(nodeName="n3")), decision)["spec"]

    def test_the_owners_kind_has_to_be_listed(self) -> None:
        """Where only Pods are listed nobody judged the owner, so the Pod is judged in full; quota is never held up."""
        made = admitted(pod(gpus=8, nodeSelector={POOL: "h100"}, metadata=owned("ReplicaSet")))
        assert answer(made, user=RS_USER, options={"workloads": ["Pod"]}).verdict == "deny"
        assert answer(made, user=RS_USER, options={"workloads": ["Pod", "Deployment"]}).verdict == "patch"
        fits_not = admitted(pod(gpus=8, metadata=owned("ReplicaSet")))
        assert answer(fits_not, FULL, user=RS_USER, options={"workloads": ["Pod"]}).verdict == "patch"

    def test_pods_of_a_daemon_set_are_left_alone_even_then(self) -> None:
        made = admitted(pod(nodeSelector={POOL: "h100"}, metadata=owned("DaemonSet")))
        who = controller("daemon-set-controller")
        assert codes(answer(made, user=who, options={"workloads": ["Pod"]})) == ["ControllerPod"]
        assert answer(made, user=ALICE).verdict == "deny"

    def test_the_chain_from_cron_job_to_pod(self) -> None:
        """What the CronJob was given reaches the Pod; neither Job nor Pod is asked about quota again."""
        cron = workload("CronJob")
        stored = patched(cron, answer(cron))
        job = {"apiVersion": "batch/v1", "kind": "Job", "spec": stored["spec"]["jobTemplate"]["spec"]}
        job["metadata"] = {"name": "j", **owned("CronJob", "batch/v1")}
        made = answer(job, FULL, user=controller("cronjob-controller"))
        assert (made.verdict, made.patch) == ("allow", ())
        child = admitted({"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(job["spec"]["template"])}, 1000)
        child["metadata"] |= {"generateName": "j-", **owned("Job", "batch/v1")}
        last = answer(child, FULL, user=controller("job-controller"))
        assert (last.verdict, last.patch) == ("allow", ())

    def test_a_replica_set_that_somebody_else_scales(self) -> None:
        """Its pods belong to the Deployment above: they are not missing, and count once."""
        objects = deployment("old", 2, 1, age=1, existing=2)
        assert (
            judge(scale(3, 2, "old-1", "replicasets"), policy(), cluster(quota(gpu=("3", "2")), *objects)).verdict
            == "allow"
        )
        assert (
            judge(scale(4, 2, "old-1", "replicasets"), policy(), cluster(quota(gpu=("3", "2")), *objects)).verdict
            == "deny"
        )

    def test_a_controllers_scale_is_never_held_up_by_what_is_unknown(self) -> None:
        parent = replicas(1)
        parent["metadata"]["namespace"] = "team-a"
        asked = scale(9, 1, user=controller("horizontal-pod-autoscaler"))
        for quota_ in (FULL | {"status": {}}, quota(limits_memory=("1Gi", "0"))):
            assert judge(asked, policy(**STRICT), cluster(parent, quota_)).verdict == "allow"

    def test_w30_the_deployment_controllers_update_of_a_deployment_is_left_alone(self) -> None:
        old = workload()
        new = copy.deepcopy(old)
        new["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "2"}
        assert update(new, old, user=controller("deployment-controller")).patch == ()


# -- exemptions --------------------------------------------------------------------------------------------------------

EXEMPTING = {"exemptions": [{"name": "sre", "users": ["root"], "reason": "7"}]}
ROOT = {"username": "root", "groups": []}


def marked(obj: Json, value: str = "sre") -> Json:
    result = copy.deepcopy(obj)
    spec = result["spec"]["jobTemplate"]["spec"] if obj["kind"] == "CronJob" else result["spec"]
    spec["template"]["metadata"]["annotations"] = {EXEMPT: value}
    return result


class TestExemptions:
    def test_b46_the_mark_of_a_kind_nobody_judges_counts_for_nothing(self) -> None:
        """A tenant may write what they like into a Job that the policy does not list."""
        made = admitted(pod(gpus=1, nodeSelector={POOL: "h100"}, metadata=owned("Job", "batch/v1", **{EXEMPT: "sre"})))
        who = controller("job-controller")
        unlisted = answer(made, user=who, options={**EXEMPTING, "workloads": ["Pod", "Deployment"]})
        assert "Exempt" not in codes(unlisted)
        assert unlisted.verdict == "deny"
        assert codes(answer(made, user=who, options=EXEMPTING)) == ["Exempt"]

    def test_b46_nor_that_of_a_replica_set_where_only_deployments_are_listed(self) -> None:
        made = admitted(pod(nodeSelector={POOL: "h100"}, metadata=owned("ReplicaSet", **{EXEMPT: "sre"})))
        decision = answer(made, user=RS_USER, options={**EXEMPTING, "workloads": ["Pod", "Deployment"]})
        assert "Exempt" not in codes(decision)
        assert decision.verdict == "patch"  # a controller's Pod like any other

    def test_an_apply_of_the_manifest_without_our_fields_keeps_template_and_mark(self) -> None:
        """strip(new) = strip(old): the result is the old template byte for byte, with the mark that it had."""
        sent = marked(workload())
        old = patched(sent, answer(workload()))
        assert old["spec"]["template"]["metadata"]["annotations"] == {EXEMPT: "sre"}
        decision = update(sent, old, options=EXEMPTING)
        assert decision.template_change == "dropped"
        assert patched(sent, decision) == old

    def test_an_exempt_change_of_a_template_is_marked_and_everybody_elses_unmarked(self) -> None:
        old = marked(workload())
        new = copy.deepcopy(old)
        pod_spec(new)["containers"][0]["image"] = "v2"
        assert update(new, old, user=ROOT, options=EXEMPTING).patch == ()
        theirs = update(new, old, options=EXEMPTING)
        assert "ExemptionRemoved" in codes(theirs)

    def test_a_forged_mark_that_only_validate_sees_is_named(self) -> None:
        forged = marked(workload(affinity=required(POOL_TERM), priorityClassName="gpu-research"))
        decision = answer(forged, phase="validate", options=STRICT)
        assert decision.verdict == "deny"
        assert decision.message.splitlines()[0].endswith("removal of annotation gpu.platform/exempt")

    def test_an_exempt_scale_and_update_may_grow(self) -> None:
        parent = replicas(1)
        parent["metadata"]["namespace"] = "team-a"
        grown = judge(scale(9, 1, user=ROOT), policy(**EXEMPTING), cluster(parent, FULL))
        assert codes(grown) == ["Exempt"]
        assert codes(update(replicas(9), replicas(1), FULL, user=ROOT, options=EXEMPTING)) == ["Exempt"]

    def test_a_job_of_an_exempt_cron_job_is_exempt(self) -> None:
        job = marked(workload("Job", gpus=9, nodeSelector={POOL: "h100"}))
        job["metadata"] |= owned("CronJob", "batch/v1")
        decision = answer(job, FULL, user=controller("cronjob-controller"), options=EXEMPTING)
        assert (decision.verdict, codes(decision)) == ("allow", ["Exempt"])


# -- placement and updates ---------------------------------------------------------------------------------------------


class TestPlacement:
    @pytest.mark.parametrize("kind", ["Deployment", "CronJob", "Job"])
    def test_n17_a_node_named_in_a_template_is_judged_there(self, kind: str) -> None:
        """Its pods skip the scheduler, fail on the node and are made again without end."""
        decision = answer(workload(kind, nodeName="n3"))
        assert (decision.verdict, codes(decision)) == ("deny", ["NodeNameOutsidePool"])
        assert answer(workload(kind, nodeName="n1")).verdict == "patch"

    def test_h21_one_that_was_there_before_is_left(self) -> None:
        old = workload(nodeName="n3")
        new = copy.deepcopy(old)
        pod_spec(new)["containers"][0]["image"] = "v2"
        assert update(new, old).verdict == "patch"
        assert update(workload(nodeName="n4"), old).verdict == "deny"

    def test_b11_the_node_that_is_named_is_the_one_outside(self) -> None:
        fields = [
            {"key": "metadata.name", "operator": operator, "values": [name]}
            for operator, name in (("NotIn", "n1"), ("In", "n3"))
        ]
        decision = answer(admitted(pod(affinity=required({"matchFields": fields}))))
        assert "pinned to node n3" in decision.message

    def test_a_term_that_names_two_nodes_crashes_nothing(self) -> None:
        fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in ("n1", "n3")]
        both = {"pools": ["a100", "h100"]}
        assert answer(admitted(pod(affinity=required({"matchFields": fields}))), rule=both).verdict == "deny"

    def test_h10_a_record_brought_from_elsewhere_does_not_change_the_old_template(self) -> None:
        """strip(new) = strip(old), and the old template had no affinity at all: not even an empty one may stay."""
        old = workload()
        new = patched(workload(), answer(workload()))
        decision = update(new, old)
        assert decision.template_change == "dropped"
        assert patched(new, decision)["spec"] == old["spec"]

    def test_p16_a_class_that_goes_leaves_the_global_default(self) -> None:
        """The rule no longer sets a class: pods will have the globalDefault's, whose quota is the one that counts."""
        old = patched(workload(), answer(workload()))
        new = copy.deepcopy(old)
        pod_spec(new)["containers"][0]["image"] = "v2"
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["house-default"]}
        theirs = quota(scopes={"scopeSelector": {"matchExpressions": [scope]}}, gpu=("0", "0"))
        default = priority_class("house-default", 10, default=True)
        decision = update(new, old, theirs, default, rule={"priorityClassName": None})
        assert (decision.verdict, codes(decision)[-1]) == ("deny", "QuotaNeverFits")

    def test_another_webhooks_change_between_two_rounds_is_judged_again(self) -> None:
        sent = admitted(pod())
        after = patched(sent, answer(sent))
        after["spec"] |= {"priority": 1000, "preemptionPolicy": "PreemptLowerPriority"}
        wider = copy.deepcopy(after)
        terms(wider).append(expressions(("zone", "In", ["b"])))
        again = answer(wider)
        assert all(
            POOL_TERM["matchExpressions"][0] in term["matchExpressions"] for term in terms(patched(wider, again))
        )
        elsewhere = copy.deepcopy(after)
        elsewhere["spec"]["nodeSelector"] = {POOL: "h100"}
        assert answer(elsewhere).verdict == "deny"

    def test_a_policy_that_changes_between_the_phases_is_not_placed_and_no_conflict(self) -> None:
        stored = patched(workload(), answer(workload()))
        changed = {"pools": ["h100"], "priorityClassName": "gpu-high"}
        decision = answer(stored, rule=changed, phase="validate", options={"onUnplaced": "deny"})
        assert (decision.verdict, codes(decision)) == ("deny", ["NotPlaced"])

    @pytest.mark.parametrize("mode", ["enforce", "warn", "audit"])
    @pytest.mark.parametrize("on_unplaced", ["warn", "deny"])
    def test_not_placed_in_every_mode(self, mode: str, on_unplaced: str) -> None:
        decision = answer(workload(), phase="validate", options={"mode": mode, "onUnplaced": on_unplaced})
        denied = on_unplaced == "deny"
        assert codes(decision) == ([] if mode == "audit" else ["NotPlaced"])
        assert decision.verdict == ("deny" if denied and mode == "enforce" else "allow")
        assert decision.would == ("deny" if denied and mode == "warn" else None)
        assert bool(decision.warnings) == (mode != "audit" and decision.verdict != "deny")

    def test_nothing_is_told_of_what_was_not_added(self) -> None:
        wrong = workload(nodeSelector={"zone": "a"}, priorityClassName="gpu-high")
        empty = {"pools": ["b200"]}
        assert (codes(answer(wrong, rule=empty)), answer(wrong, rule=empty).warnings) == (["PriorityConflict"], ())
        warned = answer(wrong, rule=empty, options={"mode": "warn"})
        assert set(codes(warned)) == {"PriorityConflict", "PoolInjected", "PoolEmpty"}
        assert len(warned.warnings) == 2

    def test_audit_mode_says_nothing_even_without_a_judgement(self) -> None:
        assert unjudged(request(workload()), policy(mode="audit"), "OverBudget", "late").warnings == ()

    @pytest.mark.parametrize(
        "text", ["[]", "7", '{"rule":7}', '{"rule":"x","pools":"a100"}', "[" * 9000, '{"rule":"x"}']
    )
    def test_any_text_in_our_annotation_is_survived(self, text: str) -> None:
        obj = workload()
        obj["metadata"]["annotations"] = {ANNOTATION: text}
        decision = answer(obj)
        assert patched(obj, decision)["metadata"]["annotations"][ANNOTATION].startswith('{"rule":"research"')

    @pytest.mark.parametrize(
        "fields",
        [
            {"spec": None},
            {"spec": {"containers": None}},
            {"spec": {"containers": [{"name": "c", "resources": None}]}},
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": None}}}]}},
            {"metadata": {"name": "p", "annotations": None, "labels": None, "ownerReferences": None}},
        ],
    )
    def test_nulls_wherever_they_may_be(self, fields: Json) -> None:
        decision = answer({**pod(), **fields})
        assert decision.verdict in ("allow", "patch")


# -- quota -------------------------------------------------------------------------------------------------------------


class TestAmounts:
    @pytest.mark.parametrize("written", ["-1", "abc", "", True])
    def test_b38_an_unusable_amount_alone_is_told_and_never_a_quiet_zero(self, written: Any) -> None:
        decision = answer(admitted(pod(gpus=written)), FULL)
        assert "NotGpu" not in codes(decision)
        assert any("container c: nvidia.com/gpu" in each for each in decision.warnings)

    def test_r2_init_containers_sidecars_overhead_and_pod_level_resources(self) -> None:
        """S 1, I 3; C 2 -> 4 GPUs; cpu from the pod's own resources, with overhead on top."""
        inits = [container("1", "s", limits={"nvidia.com/gpu": "1"}) | {"restartPolicy": "Always"}, container("3", "i")]
        asked = admitted(
            pod(gpus=2, initContainers=inits, resources={"requests": {"cpu": "8"}}, overhead={"cpu": "500m"})
        )
        assert answer(asked).gpu == {"nvidia.com/gpu": "4"}
        assert answer(asked, quota(gpu=("4", "0"), requests_cpu=("8500m", "0"))).verdict == "patch"
        assert answer(asked, quota(gpu=("4", "0"), requests_cpu=("8", "0"))).verdict == "deny"

    def test_amounts_in_a_file_that_are_none_are_unknown(self) -> None:
        broken = quota(gpu=("8", "x"))
        assert codes(answer(replicas(1), broken))[-1] == "QuotaUnknown"
        edit = answer(labelled(replicas(1)), broken, operation="UPDATE", old=replicas(1))
        assert "QuotaUnknown" not in codes(edit)

    def test_a_scope_that_an_update_moves_into_is_charged_in_full(self) -> None:
        """Q23: a quota that did not hold the old pods is asked for all of the new ones."""
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["gpu-batch"]}
        batch = quota(scopes={"scopeSelector": {"matchExpressions": [scope]}}, gpu=("2", "0"))
        allowed = {"allowedPriorityClasses": ["gpu-batch"]}
        old = workload(priorityClassName="gpu-research", spec={"replicas": 3})
        new = workload(priorityClassName="gpu-batch", spec={"replicas": 3})
        assert update(new, old, batch, rule=allowed).verdict == "deny"

    def test_gpus_that_a_limit_range_makes_count_in_updates_as_well(self) -> None:
        limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": "team-a"}}
        limits["spec"] = {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "2"}}]}
        new, old = (workload(gpus=None, spec={"replicas": count}) for count in (2, 1))
        assert update(new, old, limits, quota(gpu=("3", "2"))).verdict == "deny"
        assert update(new, old, limits, quota(gpu=("4", "2"))).verdict == "allow"

    def test_w6_resuming_what_was_created_paused_asks_for_all_of_it(self) -> None:
        old, new = replicas(3, paused=True), replicas(3)
        assert update(new, old | {"status": {}}, quota(gpu=("4", "2"))).verdict == "deny"
        assert update(new, old | {"status": {"replicas": 3}}, quota(gpu=("4", "4"))).verdict == "allow"

    def test_what_is_paused_leaves_no_gap(self) -> None:
        snapshot = cluster(quota(gpu=("4", "0")))
        note = judge(request(replicas(4, paused=True), phase="validate"), policy(), snapshot).note
        assert note is not None
        snapshot.note(note)
        assert judge(request(workload(name="other")), policy(), snapshot).verdict == "patch"

    def test_q17_a_template_that_comes_to_lack_something_is_refused_and_one_that_lacked_it_is_not(self) -> None:
        memory = quota(limits_memory=("8Gi", "1Gi"))
        good = workload(containers=[container(limits={"nvidia.com/gpu": "1", "memory": "1Gi"})])
        lacking = workload()
        assert codes(update(lacking, good, memory))[-1] == "QuotaMustSpecify"
        edited = copy.deepcopy(lacking)
        pod_spec(edited)["containers"][0]["image"] = "v2"
        assert update(edited, lacking, memory).verdict == "patch"

    def test_the_fix_fits_every_quota_that_is_short(self) -> None:
        both = [container(limits={"nvidia.com/gpu": "1", "cpu": "4"})]
        short = (quota(gpu=("8", "5")), quota("cpu", requests_cpu=("8", "3")))
        decision = answer(workload(spec={"replicas": 4}, containers=both), *short)
        assert "  to fix     run at most 1 replica, or" in decision.message
        fixed = answer(workload(spec={"replicas": 1}, containers=both), *short)
        assert fixed.verdict == "patch"

    def test_the_fix_for_what_never_fits_fits_now(self) -> None:
        decision = answer(replicas(9), quota(gpu=("8", "6")))
        assert "  to fix     run at most 2 replicas, or ask the owner" in decision.message

    def test_nobody_is_told_to_make_room_for_themselves(self) -> None:
        objects = deployment("w", 2, 1, age=600, existing=2)
        other = running("p", 3)
        decision = update(replicas(4), replicas(2), quota(gpu=("6", "5")), *objects, other)
        assert "or free 1: p uses 3" in decision.message


class TestRollout:
    """W2-W5: the peak of old and new pods together, no more."""

    def rolled(self, new: Json, old: Json, hard: str, used: str) -> Decision:
        new = copy.deepcopy(new)
        pod_spec(new)["containers"][0]["image"] = "v2"
        return update(new, old, quota(gpu=(hard, used)))

    def test_from_zero_there_is_nothing_to_surge_over(self) -> None:
        assert self.rolled(replicas(1), replicas(0), "1", "0").warnings == ()

    def test_scaling_down_with_a_new_image_needs_no_room(self) -> None:
        assert self.rolled(replicas(1), replicas(4), "4", "4").warnings == ()

    def test_bigger_pods_surge_over_the_old_ones(self) -> None:
        """Four of 1 become four of 2, surge 1: nine at the end, eight afterwards."""
        assert self.rolled(replicas(4, 2), replicas(4, 1), "9", "4").warnings == ()
        assert "needs 1 more" in self.rolled(replicas(4, 2), replicas(4, 1), "8", "4").warnings[0]

    def test_with_room_for_one_it_is_slow_and_not_stuck(self) -> None:
        careful = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 0}}
        obj = replicas(4, strategy=careful)
        assert self.rolled(obj, obj, "5", "4").warnings[0].startswith("rollout needs 2 more")
        assert self.rolled(obj, obj, "4", "4").warnings[0].startswith("rollout will be stuck")


def test_wrongly_typed_fields_are_a_clear_400() -> None:
    from webhook.server.wire import WireError

    for broken in ({"spec": []}, {"spec": {"containers": {}}}, {"metadata": {"name": "p", "labels": {"a": 1}}}):
        with pytest.raises(WireError) as caught:
            request({**pod(), **broken})
        assert caught.value.status == 400
        assert "request.object" in caught.value.reason


def test_v2_a_pod_without_a_name_is_told_by_its_prefix() -> None:
    nameless = admitted(pod(gpus=9, metadata={"generateName": "train-"}))
    del nameless["metadata"]["name"]
    asked: Request = request(nameless)
    assert judge(asked, policy(), cluster(FULL)).verdict == "deny"
    assert judge(asked, policy(), cluster(FULL)).note is None
