"""Workload kinds: the table, how many pods each wants (W1-W15), rollouts (W2-W5) and the built-in controllers (W19)."""

from typing import Any

import msgspec
import pytest

from tests.k8s.recorded import reviews, typed
from webhook.k8s.objects import ObjectMeta, Workload
from webhook.k8s.workloads import (
    KINDS,
    by_kind,
    controller_user,
    controlling_kind,
    defaulted,
    group_of,
    is_deployment_controller,
    is_mirror,
    is_paused,
    pods_if_active,
    pods_wanted,
    rollout,
    run_of,
    template_of,
)

TEMPLATE = {"spec": {"containers": [{"name": "c"}]}}


def workload(kind: str = "", status: Any = None, **spec: Any) -> Workload:
    return msgspec.convert({"kind": kind, "metadata": {"name": "w"}, "spec": spec, "status": status}, Workload)


def meta(**parts: Any) -> ObjectMeta:
    return msgspec.convert(parts, ObjectMeta)


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_names_every_kind_by_group_and_resource() -> None:
    assert set(KINDS) == {
        "Pod",
        "Deployment",
        "StatefulSet",
        "ReplicaSet",
        "ReplicationController",
        "DaemonSet",
        "Job",
        "CronJob",
    }


def test_p12_b17_template_paths() -> None:
    assert KINDS["Deployment"].pod_spec == "/spec/template/spec"
    assert KINDS["CronJob"].pod_spec == "/spec/jobTemplate/spec/template/spec"
    assert KINDS["Pod"].pod_spec == "/spec"


def test_a_foreign_kind_of_the_same_name_is_none_of_ours() -> None:
    assert by_kind("Job", "batch") is KINDS["Job"]
    assert by_kind("Job", "batch.volcano.sh") is None
    assert by_kind("Rollout") is None
    assert (group_of("apps/v1"), group_of("v1")) == ("apps", "")
    assert (KINDS["Job"].api_version, KINDS["Pod"].api_version) == ("batch/v1", "v1")


def test_b17_a_cronjobs_template_lies_one_level_deeper() -> None:
    cron = workload("CronJob", jobTemplate={"spec": {"template": TEMPLATE}})
    found = template_of(cron)
    assert found is not None
    assert found.spec is not None
    assert template_of(workload("CronJob")) is None
    assert template_of(workload("CronJob", jobTemplate={"spec": None})) is None


def test_every_golden_workload_has_its_template_where_the_table_says() -> None:
    seen = set()
    for _, _, request in reviews():
        row = by_kind(request["kind"]["kind"], request["kind"]["group"])
        if row is None or not row.template or request.get("subResource") or not request["object"]:
            continue
        raw = request["object"]
        for part in row.template.strip("/").split("/"):
            raw = raw[part]
        template = template_of(typed(request["object"], Workload))
        assert template is not None
        assert template.spec is not None
        assert len(template.spec.containers or ()) == len(raw["spec"]["containers"])
        seen.add(row.kind)
    assert seen == {"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "CronJob"}


# -- how many pods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"])
def test_w1_missing_replicas_are_one_and_zero_stays_zero(kind: str) -> None:
    assert pods_wanted(kind, workload(kind)) == 1
    assert pods_wanted(kind, workload(kind, replicas=0)) == 0
    assert pods_wanted(kind, workload(kind, replicas=7)) == 7
    assert pods_wanted(kind, workload(kind, replicas=-1)) == 0


def test_w6_a_paused_deployment_counts_its_replicas_and_is_marked() -> None:
    paused = workload("Deployment", replicas=3, paused=True)
    assert pods_wanted("Deployment", paused) == 3
    assert is_paused(paused)
    assert not is_paused(workload("Deployment"))


def test_w10_nobody_knows_how_many_pods_a_daemonset_wants() -> None:
    assert pods_wanted("DaemonSet", workload("DaemonSet")) is None
    assert pods_if_active("DaemonSet", workload("DaemonSet")) is None


def test_a_pod_is_one_pod() -> None:
    assert pods_wanted("Pod") == pods_if_active("Pod") == 1


@pytest.mark.parametrize(
    ("spec", "status", "wanted"),
    [
        ({}, None, 1),
        ({"parallelism": 8}, None, 8),
        ({"completions": 100}, None, 1),
        ({"parallelism": 8, "completions": 3}, None, 3),
        ({"parallelism": 0}, None, 0),
        ({"parallelism": 8, "completions": 10}, {"succeeded": 7}, 3),
        ({"parallelism": 2, "completions": 10}, {"succeeded": 7}, 2),
        ({"completions": 1}, {"succeeded": 1}, 0),
        ({"parallelism": 4}, {"succeeded": 0, "active": 4}, 4),
        ({"parallelism": 4}, {"succeeded": 1, "active": 2}, 2),
        ({"parallelism": 4}, {"succeeded": 1}, 0),
        ({"parallelism": 4}, {"conditions": [{"type": "Complete", "status": "True"}]}, 0),
        ({"parallelism": 4}, {"conditions": [{"type": "Failed", "status": "True"}]}, 0),
        ({"parallelism": 4}, {"conditions": [{"type": "Suspended", "status": "True"}]}, 4),
        ({"parallelism": 4, "managedBy": "kubernetes.io/job-controller"}, None, 4),
        ({"parallelism": 4, "managedBy": "kueue.x-k8s.io/multikueue"}, None, 0),
    ],
)
def test_w11_w13_w14_jobs(spec: dict[str, Any], status: Any, wanted: int) -> None:
    assert pods_wanted("Job", workload("Job", status, **spec)) == wanted


def test_w12_a_suspended_job_wants_none_until_it_runs() -> None:
    job = workload("Job", parallelism=4, suspend=True)
    assert pods_wanted("Job", job) == 0
    assert pods_if_active("Job", job) == 4


def test_w15_a_cronjob_wants_none_now_and_its_job_with_each_run() -> None:
    cron = workload(
        "CronJob", suspend=True, jobTemplate={"spec": {"parallelism": 3, "completions": 2, "template": TEMPLATE}}
    )
    assert pods_wanted("CronJob", cron) == 0
    assert pods_if_active("CronJob", cron) == 2
    run = run_of(cron)
    assert (run.kind, run.metadata.generate_name) == ("Job", "w-")
    assert template_of(run) == template_of(cron)


@pytest.mark.parametrize(
    ("replicas", "rolling", "answer"),
    [
        (1, None, (1, 0)),
        (3, None, (1, 0)),
        (4, None, (1, 1)),
        (10, None, (3, 2)),
        (10, {"maxSurge": "0%"}, (0, 2)),
        (1, {"maxSurge": 0, "maxUnavailable": 1}, (0, 1)),
        (3, {"maxSurge": "34%", "maxUnavailable": "34%"}, (2, 1)),
        (2, {"maxSurge": 0, "maxUnavailable": 0}, (0, 1)),
        (2, {"maxSurge": 2, "maxUnavailable": 5}, (2, 2)),
        (4, {"maxSurge": "100%", "maxUnavailable": "junk"}, (4, 1)),
        (0, None, (0, 0)),
    ],
)
def test_w2_b33_surge_rounds_up_and_unavailable_down(replicas: int, rolling: Any, answer: tuple[int, int]) -> None:
    deployment = workload("Deployment", replicas=replicas, strategy={"rollingUpdate": rolling})
    assert rollout("Deployment", deployment) == answer


def test_w5_w8_only_a_rolling_deployment_makes_new_pods_first() -> None:
    recreate = workload("Deployment", replicas=3, strategy={"type": "Recreate"})
    assert rollout("Deployment", recreate).surge == 0
    for kind in ("StatefulSet", "ReplicaSet", "DaemonSet", "Job"):
        assert rollout(kind, workload(kind, replicas=3)).surge == 0
    assert rollout("Deployment", workload("Deployment"), replicas=8) == (2, 2)


def test_w1_w11_api_defaults_of_offline_manifests() -> None:
    assert defaulted("StatefulSet", workload("StatefulSet")).spec.replicas == 1
    assert defaulted("Deployment", workload("Deployment", replicas=0)).spec.replicas == 0
    job = defaulted("Job", workload("Job")).spec
    assert (job.parallelism, job.completions, job.suspend) == (1, 1, False)
    queue = defaulted("Job", workload("Job", parallelism=5)).spec
    assert (queue.parallelism, queue.completions) == (5, None)
    fixed = defaulted("Job", workload("Job", completions=5)).spec
    assert (fixed.parallelism, fixed.completions) == (1, 5)
    assert defaulted("CronJob", workload("CronJob")).spec.concurrency_policy == "Allow"
    untouched = workload("DaemonSet")
    assert defaulted("DaemonSet", untouched) is untouched


def test_defaulting_fills_a_deployments_strategy_and_keeps_what_is_there() -> None:
    strategy = defaulted(
        "Deployment", workload("Deployment", strategy={"rollingUpdate": {"maxSurge": 0}})
    ).spec.strategy
    assert strategy is not None
    assert strategy.rolling_update is not None
    assert (strategy.type, strategy.rolling_update.max_surge, strategy.rolling_update.max_unavailable) == (
        "RollingUpdate",
        0,
        "25%",
    )
    recreate = defaulted("Deployment", workload("Deployment", strategy={"type": "Recreate"})).spec.strategy
    assert recreate is not None
    assert (recreate.type, recreate.rolling_update) == ("Recreate", None)


def test_defaulting_an_already_defaulted_golden_workload_changes_nothing() -> None:
    checked = 0
    for _, _, request in reviews():
        kind = request["kind"]["kind"]
        if kind in KINDS and kind != "Pod" and not request.get("subResource") and request["object"]:
            seen = typed(request["object"], Workload)
            assert defaulted(kind, seen) == seen
            checked += 1
    assert checked > 20


# -- who acts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "controller"),
    [
        ("system:serviceaccount:kube-system:replicaset-controller", "replicaset-controller"),
        ("system:serviceaccount:kube-system:daemon-set-controller", "daemon-set-controller"),
        ("system:serviceaccount:kube-system:horizontal-pod-autoscaler", "horizontal-pod-autoscaler"),
        ("system:serviceaccount:kube-system:generic-garbage-collector", "generic-garbage-collector"),
        ("system:kube-controller-manager", "kube-controller-manager"),
        ("system:serviceaccount:kube-system:daemonset-controller", None),
        ("system:serviceaccount:team-a:replicaset-controller", None),
        ("replicaset-controller", None),
        ("alice", None),
        ("", None),
    ],
)
def test_w19_users_of_the_built_in_controllers(user: str, controller: str | None) -> None:
    assert controller_user(user) == controller


def test_w21_the_deployment_controller_goes_by_two_names() -> None:
    assert is_deployment_controller("system:serviceaccount:kube-system:deployment-controller")
    assert is_deployment_controller("system:kube-controller-manager")
    assert not is_deployment_controller("system:serviceaccount:kube-system:replicaset-controller")
    assert not is_deployment_controller("cluster-admin")


def test_w17_only_the_owner_marked_as_controller_counts() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u1"}
    assert controlling_kind(meta(ownerReferences=[owner])) is None
    owned = meta(ownerReferences=[{"kind": "Foo", "apiVersion": "x/v1"}, owner | {"controller": True}])
    assert controlling_kind(owned) is KINDS["ReplicaSet"]
    foreign = meta(ownerReferences=[owner | {"apiVersion": "x/v1", "controller": True}])
    assert controlling_kind(foreign) is None


def test_p15_mirror_pods() -> None:
    node = [{"apiVersion": "v1", "kind": "Node", "name": "n1", "controller": True}]
    assert is_mirror(meta(annotations={"kubernetes.io/config.mirror": "x"}, ownerReferences=node))
    assert not is_mirror(meta(annotations={"kubernetes.io/config.mirror": "x"}))
    assert not is_mirror(meta(ownerReferences=node))
