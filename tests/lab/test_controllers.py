"""Controllers make and remove pods as the real ones do, through the same admission chain and as themselves."""

from typing import Any

import pytest

from tests.lab.conftest import (
    Hook,
    events,
    json_patch,
    pod,
    pods_of,
    quota,
    ready_quota,
    workload,
)
from webhook.lab import kubelet, resources
from webhook.lab.call import Call
from webhook.lab.controllers.runtime import WorkQueue, is_ready
from webhook.lab.registry import Registry
from webhook.lab.resources import Object, Resource
from webhook.lab.server import Lab


def change(registry: Registry, resource: Resource, namespace: str, name: str, **spec: Any) -> Object:
    """Patch some fields of an object's spec."""
    return registry.patch(resource, namespace, name, lambda obj: {**obj, "spec": {**obj["spec"], **spec}}, Call())


def running(lab: Lab, namespace: str) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in pods_of(lab, namespace))


def used_gpus(lab: Lab, namespace: str, name: str = "q") -> str:
    status = lab.registry.get(resources.RESOURCE_QUOTAS, namespace, name)["status"]
    return str(status["used"]["requests.nvidia.com/gpu"])


def status_of(lab: Lab, resource: Resource, namespace: str, name: str) -> Object:
    found: Object = lab.registry.get(resource, namespace, name)["status"]
    return found


# -- Deployment -------------------------------------------------------------------------------------------------------


def test_deployment_makes_a_replica_set_and_its_pods(lab: Lab, namespace: str) -> None:
    lab.create(workload("Deployment", "web", namespace, replicas=2))
    lab.wait(lambda: running(lab, namespace) == 2)
    (replica_set,) = lab.store.objects(resources.REPLICA_SETS, namespace)
    metadata = replica_set["metadata"]
    digest = metadata["labels"]["pod-template-hash"]
    assert metadata["name"] == f"web-{digest}"
    assert metadata["annotations"] == {
        "deployment.kubernetes.io/desired-replicas": "2",
        "deployment.kubernetes.io/max-replicas": "3",
        "deployment.kubernetes.io/revision": "1",
    }
    lab.wait(lambda: status_of(lab, resources.DEPLOYMENTS, namespace, "web").get("availableReplicas") == 2)
    conditions = {c["type"]: c["reason"] for c in status_of(lab, resources.DEPLOYMENTS, namespace, "web")["conditions"]}
    assert conditions == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}


def test_rollout_never_exceeds_surge_nor_undercuts_availability(lab: Lab, namespace: str) -> None:
    """W2: 4 replicas at 25 %/25 % are 3 to 5 pods."""
    lab.create(workload("Deployment", "web", namespace, replicas=4))
    lab.wait(lambda: running(lab, namespace) == 4)
    counts: set[int] = set()

    def rolled() -> bool:
        pods = [p for p in pods_of(lab, namespace) if "deletionTimestamp" not in p["metadata"]]
        counts.add(len(pods))
        new = [p for p in pods if p["spec"]["containers"][0]["image"] == "busybox:1.37"]
        return len(new) == len(pods) == 4 and all(map(is_ready, new))

    template = workload("Deployment", "web", namespace)["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "busybox:1.37"
    change(lab.registry, resources.DEPLOYMENTS, namespace, "web", template=template)
    lab.wait(rolled)
    assert min(counts) >= 3 and max(counts) <= 5


def test_recreate_has_no_surge(lab: Lab, namespace: str) -> None:
    """W5."""
    lab.create(workload("Deployment", "web", namespace, replicas=1, strategy={"type": "Recreate"}))
    lab.wait(lambda: running(lab, namespace) == 1)
    template = workload("Deployment", "web", namespace)["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "busybox:1.37"
    counts: set[int] = set()

    def rolled() -> bool:
        pods = pods_of(lab, namespace)
        counts.add(len(pods))
        return [p["spec"]["containers"][0]["image"] for p in pods] == ["busybox:1.37"]

    change(lab.registry, resources.DEPLOYMENTS, namespace, "web", template=template)
    lab.wait(rolled)
    assert max(counts) == 1


def test_a_paused_deployment_only_scales(lab: Lab, namespace: str) -> None:
    """W6."""
    lab.create(workload("Deployment", "web", namespace, replicas=1))
    lab.wait(lambda: running(lab, namespace) == 1)
    template = workload("Deployment", "web", namespace)["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "busybox:1.37"
    change(lab.registry, resources.DEPLOYMENTS, namespace, "web", paused=True, template=template, replicas=2)
    lab.wait(lambda: running(lab, namespace) == 2)
    assert {p["spec"]["containers"][0]["image"] for p in pods_of(lab, namespace)} == {"busybox:1.36"}


def test_w21_a_mutated_replica_set_is_made_again_without_end(lab: Lab, namespace: str) -> None:
    """O9: the Deployment controller never recognises the ReplicaSet a webhook changed."""
    place = {"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"gpu.platform/pool": "training"}}
    rules = [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["replicasets"]}]
    inside = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    with Hook(lambda _: json_patch(place)) as hook:
        lab.create(hook.registration(name="w21", rules=rules, namespaceSelector=inside))
        lab.create(workload("Deployment", "web", namespace, replicas=1))
        lab.wait(lambda: len(lab.store.objects(resources.REPLICA_SETS, namespace)) >= 4)
        assert status_of(lab, resources.DEPLOYMENTS, namespace, "web")["collisionCount"] >= 3
        lab.registry.delete(resources.DEPLOYMENTS, namespace, "web", {}, Call())
        lab.registry.delete(resources.MUTATING_CONFIGURATIONS, "", "w21", {}, Call())
    assert {r["request"]["userInfo"]["username"] for r in hook.reviews} == {
        "system:serviceaccount:kube-system:deployment-controller"
    }


# -- ReplicaSet and quota ---------------------------------------------------------------------------------------------


def test_quota_stops_pods_and_says_so_in_events_only(lab: Lab, namespace: str) -> None:
    """W7, Q9: the Deployment is accepted, 2 of 4 pods run, the rest is a FailedCreate event."""
    ready_quota(lab, quota("q", namespace, requests_gpu="2"))
    lab.create(workload("Deployment", "web", namespace, gpus="1", replicas=4))
    lab.wait(lambda: events(lab, namespace, "FailedCreate"))
    lab.wait(lambda: running(lab, namespace) == 2)
    (name,) = (r["metadata"]["name"] for r in lab.store.objects(resources.REPLICA_SETS, namespace))
    message = events(lab, namespace, "FailedCreate")[0]["message"]
    assert message.startswith(f'Error creating: pods "{name}-')
    assert message.endswith(
        '" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=1, '
        "used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
    )
    lab.wait(
        lambda: (
            "ReplicaFailure"
            in [c["type"] for c in status_of(lab, resources.DEPLOYMENTS, namespace, "web")["conditions"]]
        )
    )
    assert used_gpus(lab, namespace) == "2"


def test_used_is_raised_at_once_and_lowered_after_deletion(lab: Lab, namespace: str) -> None:
    """Q21, Q22."""
    ready_quota(lab, quota("q", namespace, requests_gpu="4"))
    lab.create(pod("p", namespace, gpus="1"))
    assert used_gpus(lab, namespace) == "1"
    lab.registry.create(resources.PODS, namespace, pod("dry", namespace, gpus="1"), Call(dry_run=True))
    assert used_gpus(lab, namespace) == "1"
    lab.registry.delete(resources.PODS, namespace, "p", {}, Call())
    lab.wait(lambda: used_gpus(lab, namespace) == "0")


def test_object_counts_are_quota_too(lab: Lab, namespace: str) -> None:
    """Q24."""
    obj = quota("q", namespace)
    obj["spec"]["hard"] = {"count/deployments.apps": "1"}
    ready_quota(lab, obj)
    lab.create(workload("Deployment", "one", namespace, replicas=0))
    with pytest.raises(Exception, match=r'deployments.apps "two" is forbidden: exceeded quota: q, requested: count/'):
        lab.create(workload("Deployment", "two", namespace, replicas=0))


def test_scaling_down_deletes_what_does_not_run_first(lab: Lab, namespace: str) -> None:
    lab.create(workload("ReplicaSet", "web", namespace, gpus="3", replicas=3))
    lab.wait(lambda: running(lab, namespace) == 3 - 0 or len(events(lab, namespace, "FailedScheduling")) > 0)
    before = {p["metadata"]["name"] for p in pods_of(lab, namespace) if not p["spec"].get("nodeName")}
    change(lab.registry, resources.REPLICA_SETS, namespace, "web", replicas=3 - len(before))
    lab.wait(lambda: len(pods_of(lab, namespace)) == 3 - len(before))
    assert not before & {p["metadata"]["name"] for p in pods_of(lab, namespace)}
    lab.registry.delete(resources.REPLICA_SETS, namespace, "web", {}, Call())
    lab.wait(lambda: not pods_of(lab, namespace))


# -- StatefulSet, DaemonSet, Job --------------------------------------------------------------------------------------


def test_stateful_set_pods_have_fixed_names_in_order(lab: Lab, namespace: str) -> None:
    """W8."""
    lab.create(workload("StatefulSet", "db", namespace, replicas=2, serviceName="db"))
    lab.wait(lambda: running(lab, namespace) == 2)
    first, second = pods_of(lab, namespace)
    assert (first["metadata"]["name"], second["metadata"]["name"]) == ("db-0", "db-1")
    assert int(first["metadata"]["resourceVersion"]) and first["spec"]["hostname"] == "db-0"
    change(lab.registry, resources.STATEFUL_SETS, namespace, "db", replicas=1)
    lab.wait(lambda: [p["metadata"]["name"] for p in pods_of(lab, namespace)] == ["db-0"])


def test_daemon_set_has_a_pod_per_node_its_template_allows(lab: Lab, namespace: str) -> None:
    """N15, N16: the template's affinity chooses the nodes, the pod's is replaced by one matchFields term."""
    daemon = workload("DaemonSet", "agent", namespace)
    expression = {"key": "gpu.platform/pool", "operator": "In", "values": ["training", "research"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    daemon["spec"]["template"]["spec"]["affinity"] = affinity
    lab.create(daemon)
    lab.wait(lambda: running(lab, namespace) == 2)
    for each in pods_of(lab, namespace):
        node = each["spec"]["nodeName"]
        terms = each["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        assert terms == {"nodeSelectorTerms": [{"matchFields": [field]}]}
    assert {p["spec"]["nodeName"] for p in pods_of(lab, namespace)} == {"gpu-training-1", "gpu-research-1"}


def test_job_runs_until_enough_pods_succeeded(lab: Lab, namespace: str) -> None:
    """W11, H2: finished pods keep no finalizer, and are counted once."""
    job = workload("Job", "work", namespace, parallelism=2, completions=3)
    job["spec"]["template"]["metadata"]["annotations"] = {kubelet.FINISH_AFTER: "0.05s"}
    lab.create(job)
    lab.wait(lambda: status_of(lab, resources.JOBS, namespace, "work").get("completionTime"))
    status = status_of(lab, resources.JOBS, namespace, "work")
    assert status["succeeded"] == 3 and "active" not in status
    assert [c["type"] for c in status["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert all(not p["metadata"].get("finalizers") for p in pods_of(lab, namespace))
    lab.wait(lambda: events(lab, namespace, "Completed"))


def test_suspended_job_has_no_pods_until_resumed(lab: Lab, namespace: str) -> None:
    """W12."""
    lab.create(workload("Job", "work", namespace, suspend=True))
    lab.wait(lambda: status_of(lab, resources.JOBS, namespace, "work").get("conditions"))
    assert pods_of(lab, namespace) == []
    change(lab.registry, resources.JOBS, namespace, "work", suspend=False)
    lab.wait(lambda: running(lab, namespace) == 1)


def test_a_job_that_fails_too_often_is_given_up(lab: Lab, namespace: str) -> None:
    job = workload("Job", "work", namespace, backoffLimit=0)
    notes = {kubelet.FINISH_AFTER: "0", kubelet.EXIT_CODE: "1"}
    job["spec"]["template"]["metadata"]["annotations"] = notes
    lab.create(job)
    lab.wait(lambda: events(lab, namespace, "BackoffLimitExceeded"))
    assert "Failed" in [c["type"] for c in status_of(lab, resources.JOBS, namespace, "work")["conditions"]]


# -- garbage and namespaces -------------------------------------------------------------------------------------------


def test_dependents_go_with_their_owner(lab: Lab, namespace: str) -> None:
    lab.create(workload("Deployment", "web", namespace, replicas=2))
    lab.wait(lambda: running(lab, namespace) == 2)
    lab.registry.delete(resources.DEPLOYMENTS, namespace, "web", {"propagationPolicy": "Foreground"}, Call())
    lab.wait(lambda: not lab.store.objects(resources.DEPLOYMENTS, namespace))
    assert not lab.store.objects(resources.REPLICA_SETS, namespace)
    lab.wait(lambda: not pods_of(lab, namespace))


def test_orphans_stay(lab: Lab, namespace: str) -> None:
    lab.create(workload("ReplicaSet", "web", namespace, replicas=1))
    lab.wait(lambda: running(lab, namespace) == 1)
    lab.registry.delete(resources.REPLICA_SETS, namespace, "web", {"propagationPolicy": "Orphan"}, Call())
    lab.wait(lambda: not lab.store.objects(resources.REPLICA_SETS, namespace))
    (left,) = pods_of(lab, namespace)
    assert not left["metadata"]["ownerReferences"]


def test_a_new_namespace_gets_its_account(lab: Lab, namespace: str) -> None:
    lab.wait(lambda: lab.store.get(resources.SERVICE_ACCOUNTS, namespace, "default"))
    lab.wait(lambda: lab.store.get(resources.CONFIG_MAPS, namespace, "kube-root-ca.crt"))
    assert lab.registry.get(resources.NAMESPACES, "", namespace)["status"] == {"phase": "Active"}


def test_a_terminating_namespace_takes_nothing_new(lab: Lab, namespace: str) -> None:
    """A18."""
    held = pod("held", namespace)
    held["metadata"]["finalizers"] = ["lab.test/keep"]
    lab.create(held)
    lab.registry.delete(resources.NAMESPACES, "", namespace, {}, Call())
    with pytest.raises(Exception, match=r'pods "late" is forbidden: unable to create new content in namespace'):
        lab.create(pod("late", namespace))

    def release(obj: Object) -> Object:
        obj["metadata"]["finalizers"] = []
        return obj

    lab.registry.patch(resources.PODS, namespace, "held", release, Call())
    lab.wait(lambda: lab.store.get(resources.NAMESPACES, "", namespace) is None)


def test_namespace_deletion_is_seen_object_by_object_without_names(lab: Lab, namespace: str) -> None:
    """H5."""
    lab.create(pod("p", namespace, nodeSelector={"no": "where"}))
    rules = [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]
    inside = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    with Hook(lambda _: {}) as hook:
        lab.create(hook.registration("Validating", "h5", rules=rules, namespaceSelector=inside))
        lab.registry.delete(resources.NAMESPACES, "", namespace, {}, Call())
        lab.wait(lambda: lab.store.get(resources.NAMESPACES, "", namespace) is None)
        lab.registry.delete(resources.VALIDATING_CONFIGURATIONS, "", "h5", {}, Call())
    request = hook.reviews[0]["request"]
    assert "name" not in request and request["oldObject"]["metadata"]["name"] == "p"


# -- the queue --------------------------------------------------------------------------------------------------------


def test_a_key_is_in_the_queue_once_and_earliest_wins() -> None:
    queue = WorkQueue()
    queue.add(("n", "a"), 60.0)
    queue.add(("n", "a"))
    queue.add(("n", "a"))
    queue.add(("n", "b"))
    assert [queue.get(), queue.get()] == [("n", "a"), ("n", "b")]
    queue.close()
    assert queue.get() is None


def test_a_held_key_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = WorkQueue()
    queue.hold(("n", "a"), 0.05)
    queue.add(("n", "a"))
    queue.add(("n", "b"), 0.01)
    assert queue.get() == ("n", "b")
