"""Who is judged, in which phase and mode, and what is never touched (DESIGN 5.7, rule 2)."""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.decision.build import (
    ALICE,
    POOL,
    Json,
    admitted,
    cluster,
    codes,
    controller,
    namespace,
    patched,
    pod,
    policy,
    priority_class,
    quota,
    request,
    required,
    scale,
    workload,
)
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import decide, judge, unjudged
from webhook.decision.injected import ANNOTATION
from webhook.decision.placement import REQUIRED
from webhook.decision.result import Decision
from webhook.k8s import priority
from webhook.k8s.objects import PodSpec
from webhook.server import wire

FACTS = cluster().current()
FULL = cluster(quota(gpu=("1", "1"))).current()
WRONG = workload(nodeSelector={POOL: "h100"})


def answer(obj: Json | None, facts: Any = FACTS, policy_: Any = None, **more: Any) -> Decision:
    return decide(request(obj, **more), policy_ or policy(), facts)


def owned(kind: str, name: str = "o", api: str = "apps/v1") -> Json:
    return {"ownerReferences": [{"apiVersion": api, "kind": kind, "name": name, "uid": "1", "controller": True}]}


class TestNeverTouched:
    """Allowed, no patch, whatever the object says."""

    def untouched(self, decision: Decision, code: str | None = None) -> None:
        assert (decision.verdict, decision.patch, decision.message) == ("allow", (), "")
        assert codes(decision) == ([code] if code else [])

    @pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
    def test_delete_and_connect(self, operation: str) -> None:
        self.untouched(answer(None, operation=operation, old=WRONG))

    def test_b60_finalizer_removal_while_over_quota_and_in_the_wrong_pool(self) -> None:
        old = copy.deepcopy(WRONG)
        old["metadata"] |= {"deletionTimestamp": "2026-12-01T19:59:00Z", "finalizers": ["foregroundDeletion"]}
        new = copy.deepcopy(old)
        new["metadata"]["finalizers"] = []
        self.untouched(answer(new, FULL, operation="UPDATE", old=old), "Deleting")

    def test_b21_a_running_pod_is_relabelled(self) -> None:
        old = admitted(pod(nodeSelector={POOL: "h100"}))
        new = copy.deepcopy(old)
        new["metadata"]["labels"] = {"a": "b"}
        self.untouched(answer(new, operation="UPDATE", old=old))

    @pytest.mark.parametrize("name", ["binding", "eviction", "status", "ephemeralcontainers", "resize", "log"])
    def test_b49_subresources_nobody_meant_to_match(self, name: str) -> None:
        self.untouched(answer(WRONG, sub_resource=name), "SubresourceIgnored")

    def test_b49_another_kind_altogether(self) -> None:
        token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": {}}
        self.untouched(answer(token))

    @pytest.mark.parametrize("user", ["deployment-controller", None])
    def test_w21_a_replica_set_of_the_deployment_controller(self, user: str | None) -> None:
        who = controller(user) if user else {"username": "system:kube-controller-manager", "groups": []}
        replica_set = workload("ReplicaSet")
        replica_set["metadata"] |= owned("Deployment")
        self.untouched(answer(replica_set, user=who))
        self.untouched(answer(replica_set, user=who, operation="UPDATE", old=workload("ReplicaSet")))

    def test_w18_anybody_elses_replica_set_is_judged_whatever_owner_it_names(self) -> None:
        replica_set = workload("ReplicaSet")
        replica_set["metadata"] |= owned("Deployment")
        assert answer(replica_set).verdict == "patch"

    def test_a_mirror_pod_of_a_kubelet(self) -> None:
        mirror = pod(
            nodeName="n3", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}, **owned("Node", api="v1")}
        )
        self.untouched(answer(mirror, user={"username": "system:node:n3", "groups": ["system:nodes"]}))

    def test_b46_a_forged_mirror_annotation_opens_no_door(self) -> None:
        mirror = pod(
            nodeName="n3", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}, **owned("Node", api="v1")}
        )
        assert answer(mirror).verdict == "deny"

    @pytest.mark.parametrize("name", ["kube-system", "kube-public", "kube-node-lease", "gpu-webhook"])
    def test_system_and_own_namespaces_whatever_the_policy_says(self, name: str) -> None:
        everywhere = policy(rule={"namespaceSelector": {}}, own_namespace="gpu-webhook")
        facts = cluster(namespace(name)).current()
        self.untouched(answer(WRONG, facts, everywhere, namespace=name))

    def test_a_namespace_without_a_rule(self) -> None:
        self.untouched(answer(WRONG, cluster(namespace("plain", x="y")).current(), namespace="plain"), "NoRule")

    def test_a_workload_without_gpus(self) -> None:
        self.untouched(answer(workload(gpus=None)), "NotGpu")

    def test_b40_zero_gpus_are_none(self) -> None:
        self.untouched(answer(workload(gpus="0"), FULL), "NotGpu")

    def test_b40_unless_the_policy_says_all_workloads(self) -> None:
        assert answer(workload(gpus="0"), policy_=policy(appliesTo="allWorkloads")).verdict == "patch"


def test_b43_a_pod_with_claims_is_a_gpu_workload_for_placement() -> None:
    decision = answer(workload(gpus=None, resourceClaims=[{"name": "g", "resourceClaimTemplateName": "four-gpus"}]))
    assert decision.verdict == "patch"


@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com/gpu", "gpu.intel.com/i915"]
)
def test_b42_gpus_of_every_listed_name_count(name: str) -> None:
    decision = answer(pod(containers=[{"name": "c", "resources": {"limits": {name: "2"}}}]))
    assert decision.verdict == "patch"
    assert decision.gpu == {name: "2"}


def test_b42_other_devices_do_not() -> None:
    other = pod(containers=[{"name": "c", "resources": {"limits": {"example.com/fpga": "2"}}}])
    assert codes(answer(other)) == ["NotGpu"]


def test_workload_selector_chooses_among_rules_of_a_namespace() -> None:
    labelled = policy(rule={"workloadSelector": {"matchLabels": {"app": "train"}}})
    assert answer(workload(name="train"), policy_=labelled).rule == "research"
    assert codes(answer(workload(name="serve"), policy_=labelled)) == ["NoRule"]


class TestControllers:
    """W19 identities: never denied for what their owner was judged for."""

    def test_missing_placement_is_injected(self) -> None:
        decision = answer(admitted(pod(metadata=owned("ReplicaSet"))), user=controller("replicaset-controller"))
        assert decision.verdict == "patch"

    def test_a_conflicting_pool_is_left_and_recorded(self) -> None:
        made = admitted(
            pod(nodeSelector={POOL: "h100"}, priorityClassName="gpu-research", metadata=owned("ReplicaSet")), 1000
        )
        decision = answer(made, user=controller("replicaset-controller"))
        assert (decision.verdict, codes(decision)) == ("allow", ["ControllerPod"])

    def test_quota_is_left_to_resource_quota(self) -> None:
        made = admitted(pod(gpus=8, metadata=owned("ReplicaSet")))
        assert answer(made, FULL, user=controller("replicaset-controller")).verdict == "patch"

    def test_a_job_of_a_cron_job_is_not_denied(self) -> None:
        job = workload("Job", gpus=8, nodeSelector={POOL: "h100"})
        decision = answer(job, FULL, user=controller("cronjob-controller"))
        assert decision.verdict == "patch"
        assert "ControllerPod" in codes(decision)

    def test_n16_pods_of_a_daemon_set_are_left_alone(self) -> None:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}
        made = admitted(pod(affinity=required(term), metadata=owned("DaemonSet")))
        decision = answer(made, user=controller("daemon-set-controller"))
        assert (decision.verdict, codes(decision)) == ("allow", ["ControllerPod"])

    def test_b19_a_daemon_set_is_placed_and_never_judged_for_quota(self) -> None:
        decision = answer(workload("DaemonSet", gpus=8, tolerations=[{"operator": "Exists"}]), FULL)
        assert decision.verdict == "patch"
        assert answer(workload("DaemonSet", nodeSelector={POOL: "h100"})).verdict == "deny"

    def test_w20_alices_pod_with_a_forged_owner_is_judged_in_full(self) -> None:
        forged = admitted(pod(gpus=8, metadata=owned("ReplicaSet")))
        assert answer(forged, FULL, user=ALICE).verdict == "deny"

    def test_a_controllers_pod_without_owner_is_judged_in_full(self) -> None:
        assert answer(admitted(pod(nodeName="n3")), user=controller("replicaset-controller")).verdict == "deny"

    def test_trusted_controllers_may_have_any_owner(self) -> None:
        operator = {"username": "system:serviceaccount:argo:rollouts", "groups": []}
        made = admitted(pod(nodeSelector={POOL: "h100"}, metadata=owned("Rollout", api="argoproj.io/v1alpha1")))
        assert answer(made, user=operator).verdict == "deny"
        trusting = policy(trustedControllers=["system:serviceaccount:argo:rollouts"])
        assert answer(made, policy_=trusting, user=operator).verdict == "patch"

    def test_on_unplaced_deny_never_denies_them(self) -> None:
        made = admitted(pod(metadata=owned("ReplicaSet")))
        decision = answer(
            made, policy_=policy(onUnplaced="deny"), user=controller("replicaset-controller"), phase="validate"
        )
        assert (decision.verdict, codes(decision)) == ("allow", ["NotPlaced"])


class TestValidate:
    """The second phase never patches; on CREATE it notices what the first one did not do."""

    def test_what_was_mutated_passes(self) -> None:
        obj = workload()
        stored = patched(obj, answer(obj))
        decision = answer(stored, phase="validate")
        assert (decision.verdict, codes(decision)) == ("allow", [])

    def test_what_was_not_is_warned_about(self) -> None:
        decision = answer(workload(), phase="validate")
        assert (decision.verdict, decision.patch, codes(decision)) == ("allow", (), ["NotPlaced"])
        assert decision.warnings == (
            "Placement missing in namespace team-a (rule research): priorityClassName, "
            "node affinity on gpu.platform/pool, annotation gpu.platform/injected",
        )

    def test_or_refused(self) -> None:
        assert answer(workload(), policy_=policy(onUnplaced="deny"), phase="validate").verdict == "deny"

    def test_not_on_update(self) -> None:
        decision = answer(workload(), phase="validate", operation="UPDATE", old=workload(spec={"replicas": 2}))
        assert "NotPlaced" not in codes(decision)

    def test_conflicts_are_refused_here_too(self) -> None:
        assert codes(answer(WRONG, phase="validate")) == ["PoolConflict"]

    def test_an_admission_is_noted_once_it_is_validated(self) -> None:
        stored = patched(workload(spec={"replicas": 3}), answer(workload(spec={"replicas": 3})))
        assert answer(stored).note is None
        note = answer(stored, phase="validate").note
        assert note is not None
        assert (note.namespace, note.kind, note.name, note.pods) == ("team-a", "Deployment", "w", 3)

    def test_a_dry_run_leaves_no_note(self) -> None:
        assert answer(workload(), phase="validate", dryRun=True).note is None

    def test_b57_a_dry_run_is_judged_like_any_other(self) -> None:
        real, dry = answer(workload()), answer(workload(), dryRun=True)
        assert (dry.verdict, dry.patch) == (real.verdict, real.patch)
        assert answer(WRONG, dryRun=True).verdict == "deny"


class TestModes:
    """enforce | warn | audit, per policy and per rule."""

    def test_warn_patches_and_tells_the_denial_as_a_warning(self) -> None:
        decision = answer(WRONG, policy_=policy(mode="warn"))
        assert (decision.verdict, decision.would) == ("patch", "deny")
        assert decision.warnings[0].startswith("Wrong GPU pool in namespace team-a (rule research)")
        assert decision.message.startswith(decision.warnings[0])

    def test_audit_changes_nothing_and_says_nothing(self) -> None:
        auditing = policy(mode="audit")
        for obj, would in ((workload(), "patch"), (WRONG, "deny")):
            decision = answer(obj, policy_=auditing)
            assert (decision.verdict, decision.would, decision.patch, decision.warnings) == ("allow", would, (), ())
        assert codes(answer(workload(), policy_=auditing, phase="validate")) == []

    def test_a_rule_overrides_the_policy(self) -> None:
        assert answer(WRONG, policy_=policy(rule={"mode": "enforce"}, mode="audit")).verdict == "deny"
        assert answer(WRONG, policy_=policy(rule={"mode": "audit"})).would == "deny"

    def test_enforce_would_do_what_it_does(self) -> None:
        assert answer(WRONG).would is None


class TestUnknownFacts:
    def test_b61_labels_that_cannot_be_learned_follow_the_stated_policy(self) -> None:
        nothing = Snapshot.from_objects([]).current()
        decision = answer(workload(), nothing)
        assert (decision.verdict, codes(decision)) == ("allow", ["FactsUnknown"])
        assert decision.facts["namespaceLabels"] is None
        assert "labels of namespace team-a could not be read" in decision.warnings[0]
        strict = policy(quota={"onUnknown": "deny"})
        assert answer(workload(), nothing, strict).verdict == "deny"
        made = admitted(pod(metadata=owned("ReplicaSet")))
        assert answer(made, nothing, strict, user=controller("replicaset-controller")).verdict == "allow"

    def test_b35_a_scale_whose_parent_cannot_be_read(self) -> None:
        decision = decide(scale(9, 1), policy(), FACTS)
        assert (decision.verdict, codes(decision)) == ("allow", ["ScaleParentUnknown"])
        custom = decide(scale(9, 1, resource="rollouts"), policy(), FACTS)
        assert (custom.verdict, codes(custom)) == ("allow", ["ScaleParentUnknown"])

    def test_an_answer_without_judgement(self) -> None:
        decision = unjudged(request(WRONG), policy(), "OverBudget", "the time was spent")
        assert (decision.verdict, codes(decision), decision.warnings) == (
            "allow",
            ["OverBudget"],
            ("the time was spent",),
        )


class TestWarnings:
    def test_b28_each_is_one_line_of_at_most_256_characters(self) -> None:
        pools = [f"pool-{number:02}-with-a-very-long-name" for number in range(40)]
        decision = answer(workload(), policy_=policy(rule={"pools": pools}))
        assert codes(decision)[-1] == "PoolEmpty"
        assert all(len(each) <= 256 and "\n" not in each for each in decision.warnings)

    def test_b24_b22_annotations_keep_their_neighbours(self) -> None:
        obj = workload()
        obj["metadata"]["annotations"] = {"example.com/keep": "1"}
        result = patched(obj, answer(obj))
        assert set(result["metadata"]["annotations"]) == {"example.com/keep", ANNOTATION}


def test_b23_parents_are_made_as_maps_never_as_text() -> None:
    """Every value of a patch has the type that the API server decodes there."""
    values = {each.path: each.value for each in answer(workload()).patch}
    assert isinstance(values["/metadata/annotations"], dict)
    assert all(isinstance(text, str) for text in values["/metadata/annotations"].values())
    required_terms = values["/spec/template/spec/affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [type(each) for each in required_terms] == [dict]
    assert isinstance(values["/spec/template/spec/priorityClassName"], str)


def test_b27_a_pod_without_a_name_is_judged_by_the_requests_namespace() -> None:
    nameless = admitted(pod(metadata={"generateName": "train-7f9-"}))
    del nameless["metadata"]["name"]
    decision = answer(nameless)
    assert (decision.verdict, decision.rule) == ("patch", "research")


def test_rule_8_the_same_three_in_give_the_same_bytes_out() -> None:
    encoded = {msgspec.json.encode(answer(workload()).patch) for _ in range(3)}
    assert len(encoded) == 1


GOLDEN = sorted(Path("tests/data/golden").glob("*.json"))
GOLDEN_CLUSTER = Snapshot.from_objects(
    [
        namespace("ai-training", **{"gpu.platform/team": "training"}),
        priority_class("gpu-training", 50000),
        priority_class("gpu-batch-low", 10000, "Never"),
        {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-a", "labels": {POOL: "training"}}},
    ]
)
GOLDEN_POLICY = policy(
    rule={
        "name": "training",
        "namespaceSelector": {"matchLabels": {"gpu.platform/team": "training"}},
        "priorityClassName": "gpu-training",
        "allowedPriorityClasses": ["gpu-batch-low"],
        "pools": ["training"],
    }
)
REFUSED = {"pod-with-conflicting-affinity"}
UNTOUCHED = {"pod-no-gpu"}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_recorded_reviews(path: Path) -> None:
    """golden/: right verdict, a patch that applies, consistent priority afterwards, and nothing on the second round."""
    scenario = json.loads(path.read_text())
    for recorded in scenario["reviews"]:
        body = recorded["review"]
        asked = wire.decode(json.dumps(body).encode(), recorded["phase"], 0.0)
        decision = judge(asked, GOLDEN_POLICY, GOLDEN_CLUSTER)
        assert decision.verdict == _expected(path.stem, asked), (asked.phase, asked.operation, asked.kind)
        if decision.verdict != "patch":
            continue
        sent = body["request"]["object"]
        after = patched(sent, decision)
        if sent["kind"] == "Pod":
            spec = msgspec.convert(after["spec"], PodSpec)
            assert priority.consistent(spec, GOLDEN_CLUSTER.current().priority_classes() or {})
        body["request"]["object"] = after
        again = judge(wire.decode(json.dumps(body).encode(), recorded["phase"], 0.0), GOLDEN_POLICY, GOLDEN_CLUSTER)
        assert (again.verdict, again.patch) == ("allow", ())


def _expected(scenario: str, asked: Any) -> str:
    """The verdict by the rules of DESIGN 5.7, from the request alone."""
    judged = asked.operation in ("CREATE", "UPDATE") and asked.sub_resource is None
    if not judged or scenario in UNTOUCHED:
        return "allow"
    if scenario in REFUSED and asked.kind == "Pod":
        return "deny"
    by_deployment_controller = asked.kind == "ReplicaSet" and asked.user.name.endswith(":deployment-controller")
    pod_update = asked.kind == "Pod" and asked.operation == "UPDATE"
    if asked.phase == "validate" or by_deployment_controller or pod_update:
        return "allow"
    if asked.operation == "UPDATE":
        return "patch" if scenario == "deployment-rollout" else "allow"
    return "patch"
