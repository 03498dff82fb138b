"""What doctor tells from a snapshot: each fault alone, against an installation that is well."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.objects import namespace, node, pod, priority_class, quota, team, workload
from webhook.cluster.doctor import examine
from webhook.cluster.installation import Installation, Line
from webhook.cluster.snapshot import Snapshot
from webhook.policy.active import Policy
from webhook.policy.load import load

ROOT = Path(__file__).parents[2]
POLICY = load(ROOT / "policies", "gpu-webhook")
Object = dict[str, Any]


def configurations(where: str = "base") -> list[Object]:
    """The registration that is shipped, as `certs ensure` leaves it."""
    text = (ROOT / "deploy" / where / "webhook-configurations.yaml").read_text(encoding="utf-8")
    found = [copy.deepcopy(each) for each in yaml.safe_load_all(text)]
    for each in found:
        for webhook in each["webhooks"]:
            webhook["clientConfig"]["caBundle"] = "Q0E="
    return found


def own_pod(name: str, node_name: str) -> Object:
    item = pod("gpu-webhook", name)
    item["metadata"]["labels"] = {
        "app.kubernetes.io/name": "gpu-webhook",
        "app.kubernetes.io/component": "webhook",
    }
    item["spec"]["nodeName"] = node_name
    return item


def gpu_pod(ns: str, name: str, phase: str = "Running") -> Object:
    item = pod(ns, name, phase)
    item["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return item


def cluster() -> list[Object]:
    """A cluster in which all is well."""
    nodes = []
    for pool in ("inference", "training", "research"):
        nodes.append(node(f"{pool}-1", **{"gpu.platform/pool": pool}))
        nodes[-1]["status"] = {"allocatable": {"nvidia.com/gpu": "8"}}
    classes = [
        ("gpu-critical-inference", 100000),
        ("gpu-training", 50000),
        ("gpu-batch-low", 10000),
        ("system-node-critical", 2000001000),
    ]
    teams = [team(f"ai-{name}", name) for name in ("inference", "training", "research")]
    return [
        *configurations(),
        *teams,
        *(namespace(name) for name in ("default", "kube-system", "kube-public", "kube-node-lease", "gpu-webhook")),
        *nodes,
        *(priority_class(name, value) for name, value in classes),
        quota("ai-training"),
        workload("Deployment", "gpu-webhook", "gpu-webhook", replicas=2, status={"readyReplicas": 2}),
        own_pod("gpu-webhook-a", "inference-1"),
        own_pod("gpu-webhook-b", "training-1"),
        gpu_pod("ai-training", "train-1"),
    ]


def examined(objects: list[Object], policy: Policy = POLICY, **names: Any) -> list[Line]:
    return examine(Installation(Snapshot.from_objects(objects), policy, **names))


def bad(lines: list[Line]) -> list[tuple[str, str, str]]:
    return [(line.level, line.check, line.message) for line in lines if line.level != "OK"]


def changed(change: Callable[[Object], None], kind: str, index: int = 0, where: str = "base") -> list[Object]:
    """The well cluster with one webhook of one configuration changed."""
    objects = [each for each in cluster() if not each["kind"].endswith("WebhookConfiguration")]
    shipped = configurations(where)
    for each in shipped:
        if each["kind"].startswith(kind):
            change(each["webhooks"][index])
    return shipped + objects


def test_an_installation_that_is_well_is_ok_throughout() -> None:
    lines = examined(cluster())
    assert bad(lines) == []
    assert [line.check for line in lines] == [
        "registered",
        "registered",
        "settings",
        "reach",
        "coverage",
        "replicas",
        "named",
        "outside",
    ]


def test_the_fail_closed_component_is_well_too_and_spares_controllers() -> None:
    objects = changed(lambda webhook: None, "Mutating", where="components/fail-closed")
    lines = examined(objects)
    assert bad(lines) == []
    assert ("OK", "fails closed for people, not for controllers") in [
        (line.level, line.message.partition(": ")[2]) for line in lines if line.check == "controllers"
    ]


@pytest.mark.parametrize("kind", ["Mutating", "Validating"])
def test_a_configuration_that_is_missing(kind: str) -> None:
    lines = examined([each for each in cluster() if each["kind"] != f"{kind}WebhookConfiguration"])
    ((level, check, message),) = bad(lines)
    assert (level, check) == ("FAIL", "registered")
    assert f"there is no {kind}WebhookConfiguration gpu-webhook" in message


def test_b56_a_bundle_that_is_missing() -> None:
    lines = examined(changed(lambda webhook: webhook["clientConfig"].pop("caBundle"), "Mutating"))
    ((level, check, message),) = bad(lines)
    assert (level, check) == ("FAIL", "bundle")
    assert "has no caBundle, so every call fails" in message


@pytest.mark.parametrize(
    ("field", "value", "level", "told"),
    [
        ("failurePolicy", "Fail", "FAIL", "failurePolicy is Fail: an outage of ours refuses workloads"),
        ("reinvocationPolicy", "Never", "WARN", "reinvocationPolicy is not IfNeeded"),
        ("timeoutSeconds", 10, "WARN", "timeoutSeconds is 10"),
        ("matchPolicy", "Exact", "WARN", "matchPolicy is Exact"),
        ("objectSelector", {"matchLabels": {"a": "b"}}, "WARN", "has an objectSelector"),
        ("matchConditions", [{"name": "odd", "expression": "1 == 1"}], "WARN", "matchCondition 'odd'"),
    ],
)
def test_settings_that_are_not_as_shipped(field: str, value: Any, level: str, told: str) -> None:
    lines = examined(changed(lambda webhook: webhook.update({field: value}), "Mutating"))
    found = [(one, message) for one, check, message in bad(lines) if check == "settings"]
    assert [one for one, _ in found] == [level]
    assert told in found[0][1]


def without_names(webhook: Object) -> None:
    """A selector that trusts a label which somebody can forget."""
    webhook["namespaceSelector"] = {"matchExpressions": [{"key": "gpu.platform/skip", "operator": "DoesNotExist"}]}


def test_b47_b48_system_network_and_own_namespace_in_reach() -> None:
    objects = changed(without_names, "Validating")
    network = workload("DaemonSet", "my-cni", "agent")
    network["spec"]["template"]["spec"]["hostNetwork"] = True
    lines = examined([*objects, namespace("calico-system"), namespace("my-cni"), network])
    found = [message for level, check, message in bad(lines) if check == "reach"]
    for name in ("kube-system", "kube-node-lease", "gpu-webhook", "calico-system", "my-cni"):
        assert any(f"namespace {name} is in reach: CREATE pods" in message for message in found)
    assert not any("namespace default" in message for message in found)
    assert {level for level, check, _ in bad(lines) if check == "reach"} == {"WARN"}  # it ignores our absence


def test_b47_in_reach_while_failing_closed_is_a_failure() -> None:
    lines = examined(
        changed(lambda webhook: (without_names(webhook), webhook.update(failurePolicy="Fail")), "Validating")
    )
    assert {level for level, check, _ in bad(lines) if check == "reach"} == {"FAIL"}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"apiGroups": [""], "resources": ["pods/*"]}, "CREATE pods/attach"),
        ({"apiGroups": [""], "resources": ["pods/binding"]}, "CREATE pods/binding"),
        ({"apiGroups": [""], "resources": ["nodes"]}, "CREATE nodes"),
        ({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}, "CREATE leases.coordination.k8s.io"),
        ({"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"]}, "CREATE tokenreviews"),
    ],
)
def test_b49_rules_that_nobody_meant(rule: Object, told: str) -> None:
    wide = {"apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], **rule}
    lines = examined(changed(lambda webhook: webhook["rules"].append(wide), "Mutating"))
    found = [message for _, check, message in bad(lines) if check == "reach"]
    assert any("its rules cover more than the policy needs" in message and told in message for message in found)


def test_failing_closed_for_controllers_too() -> None:
    lines = examined(changed(lambda webhook: webhook.update(failurePolicy="Fail"), "Validating"))
    ((level, check, message),) = bad(lines)
    assert (level, check) == ("FAIL", "controllers")
    assert "system:serviceaccount:kube-system:" in message


def test_failing_closed_for_an_operator_that_the_policy_trusts_since_the_registration_was_printed(
    tmp_path: Path,
) -> None:
    operator = "system:serviceaccount:kubeflow:training-operator"
    shipped = (ROOT / "policies" / "default.yaml").read_text(encoding="utf-8")
    (tmp_path / "policy.yaml").write_text(
        shipped.replace("\nspec:\n", f"\nspec:\n  trustedControllers: [{operator}]\n")
    )
    objects = changed(lambda webhook: None, "Mutating", where="components/fail-closed")
    ((level, check, message),) = bad(examined(objects, load(tmp_path, "gpu-webhook")))
    assert (level, check) == ("FAIL", "controllers")
    assert message.endswith(f"also stops controllers that replace pods: {operator}")


def test_a_kind_that_the_policy_judges_and_nobody_sends() -> None:
    def no_jobs(webhook: Object) -> None:
        webhook["rules"] = [rule for rule in webhook["rules"] if rule["apiGroups"] != ["batch"]]

    found = [message for _, check, message in bad(examined(changed(no_jobs, "Mutating"))) if check == "coverage"]
    assert len(found) == 3  # each namespace that has a rule
    assert all("CREATE jobs.batch" in message for message in found)


def test_a_rule_that_the_registration_does_not_cover(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "apiVersion: gpu.platform/v1\nkind: GpuPolicy\nmetadata: {name: t}\n"
        "spec: {rules: [{name: lab, namespaceSelector: {matchLabels: {tier: lab}}}]}\n"
    )
    policy = load(tmp_path, "gpu-webhook")
    lines = examined([*cluster(), namespace("lab-1", tier="lab")], policy)
    found = [message for level, check, message in bad(lines) if check == "coverage" and level == "FAIL"]
    assert any("rule lab selects namespaces without asking for the label gpu.platform/team" in each for each in found)
    assert any("covers namespace lab-1, but is not sent CREATE pods" in each for each in found)


@pytest.mark.parametrize(
    ("ready", "level", "told"),
    [(0, "FAIL", "no webhook pod is ready"), (1, "WARN", "one webhook pod is ready")],
)
def test_too_few_replicas(ready: int, level: str, told: str) -> None:
    objects = [each for each in cluster() if each["kind"] != "Deployment"]
    few = workload("Deployment", "gpu-webhook", "gpu-webhook", status={"readyReplicas": ready} if ready else {})
    ((found, check, message),) = bad(examined([*objects, few]))
    assert (found, check) == (level, "replicas")
    assert told in message


def test_replicas_on_one_node() -> None:
    objects = [each for each in cluster() if each["metadata"]["name"] != "gpu-webhook-b"]
    ((level, check, message),) = bad(examined([*objects, own_pod("gpu-webhook-c", "inference-1")]))
    assert (level, check, message) == ("WARN", "replicas", "all 2 webhook pods are on node inference-1")


def test_no_deployment_and_a_webhook_outside_the_cluster() -> None:
    objects = [each for each in cluster() if each["kind"] != "Deployment"]
    assert [check for _, check, _ in bad(examined(objects))] == ["replicas"]

    def by_url(webhook: Object) -> None:
        webhook["clientConfig"] = {"url": "https://10.0.0.1:8443/mutate", "caBundle": "Q0E="}

    elsewhere = [each for each in changed(by_url, "Mutating") if each["kind"] != "Deployment"]
    assert bad(examined(elsewhere)) == []


def test_b04_a_class_that_exists_nowhere_and_b30_a_key_that_never_counts() -> None:
    objects = [each for each in cluster() if each["metadata"]["name"] != "gpu-training"]
    dead = quota("ai-training", name="dead")
    dead["spec"]["hard"] = dead["status"]["hard"] = {"limits.nvidia.com/gpu": "4"}
    found = bad(examined([*objects, dead]))
    assert [(level, check) for level, check, _ in found] == [("FAIL", "ClassUnknown"), ("WARN", "QuotaKeyIneffective")]
    assert "gpu-training" in found[0][2]


def test_many_findings_of_one_sort_are_counted() -> None:
    dead = [quota("ai-training", name=f"dead-{number}") for number in range(8)]
    for each in dead:
        each["spec"]["hard"] = each["status"]["hard"] = {"limits.nvidia.com/gpu": "4"}
    found = bad(examined([*cluster(), *dead]))
    assert len(found) == 6
    assert found[-1][2] == "3 more of QuotaKeyIneffective"


def test_gpu_pods_in_a_namespace_without_a_rule() -> None:
    rogue = [gpu_pod("default", f"p{number}") for number in range(7)]
    done, system, cpu = gpu_pod("default", "done", "Succeeded"), gpu_pod("kube-system", "x"), pod("default", "cpu")
    ((level, check, message),) = bad(examined([*cluster(), *rogue, done, system, cpu]))
    assert (level, check) == ("WARN", "outside")
    assert message == "namespace default has no rule, and 7 pods in it ask for GPUs: p0, p1, p2, p3, p4 and 2 more"


def test_what_could_not_be_read_is_said() -> None:
    objects = [each for each in cluster() if each["kind"] != "MutatingWebhookConfiguration"]
    lines = examined(objects, unreadable={"MutatingWebhookConfiguration": "HTTP 403: forbidden"})
    ((level, check, message),) = bad(lines)
    assert (level, check) == ("WARN", "readable")
    assert "HTTP 403" in message


@pytest.mark.parametrize("name", ["seed-cluster", "busy-cluster"])
def test_a_recorded_cluster_without_us(name: str) -> None:
    items = json.loads((ROOT / "tests" / "data" / name / "cluster.json").read_text())["items"]
    found = bad(examined(items))
    assert [check for level, check, _ in found if level == "FAIL"] == ["registered", "registered"]
    assert {"QuotaKeyIneffective", "replicas"} <= {check for level, check, _ in found if level == "WARN"}
