"""Unmodified kubectl of every version at hand works against the lab without extra flags."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import Kubectl, kubectls, namespace_object, pod, workload
from webhook.lab import seed
from webhook.lab.server import Lab


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Path]]:
    with Lab(tls=True) as running:
        running.load(seed.nodes())
        yield running, running.kubeconfig(tmp_path_factory.mktemp("kube") / "config")


@pytest.fixture
def kubectl(cluster: tuple[Lab, Path]) -> Kubectl:
    return Kubectl(kubectls()[-1], cluster[1])


@pytest.fixture
def space(cluster: tuple[Lab, Path], request: pytest.FixtureRequest) -> str:
    name = request.node.name.lower().partition("[")[0].replace("_", "-")[-50:].strip("-")
    cluster[0].create(namespace_object(name))
    return name


@pytest.mark.parametrize("binary", kubectls(), ids=lambda path: Path(path).name)
def test_every_version_walks_a_deployment_through_its_life(binary: str, cluster: tuple[Lab, Path]) -> None:
    kubectl, space = Kubectl(binary, cluster[1]), f"life-{Path(binary).name.replace('.', '-')}"
    cluster[0].create(namespace_object(space))
    web = workload("Deployment", "web", space, replicas=2)
    assert kubectl("apply", "-f", "-", stdin=web) == "deployment.apps/web created\n"
    assert kubectl("apply", "-f", "-", stdin=web) == "deployment.apps/web unchanged\n"
    kubectl("set", "image", "deploy/web", "train=busybox:1.37", "-n", space)
    assert "successfully rolled out" in kubectl("rollout", "status", "deploy/web", "-n", space, "--timeout=10s")
    shown = kubectl("get", "deploy,pods", "-n", space, "-o", "wide")
    assert "busybox:1.37" in shown and shown.count("Running") == 2
    assert kubectl("delete", "deploy", "web", "-n", space, "--timeout=10s").endswith("deleted\n")


def test_client_side_apply_merges_three_ways(kubectl: Kubectl, space: str) -> None:
    web = workload("Deployment", "web", space, replicas=1)
    kubectl("apply", "-f", "-", stdin=web)
    kubectl("label", "deploy", "web", "mine=yes", "-n", space)
    web["metadata"]["labels"] = {"theirs": "yes"}
    assert kubectl("apply", "-f", "-", stdin=web) == "deployment.apps/web configured\n"
    labels = json.loads(kubectl("get", "deploy", "web", "-n", space, "-o", "json"))["metadata"]["labels"]
    assert labels == {"mine": "yes", "theirs": "yes"}


def test_server_side_apply_is_a_merge(kubectl: Kubectl, space: str) -> None:
    web = workload("Deployment", "web", space, replicas=1)
    assert kubectl("apply", "--server-side", "-f", "-", stdin=web) == "deployment.apps/web serverside-applied\n"
    web["spec"]["replicas"] = 2
    kubectl("apply", "--server-side", "-f", "-", stdin=web)
    stored = json.loads(kubectl("get", "deploy", "web", "-n", space, "-o", "json", "--show-managed-fields"))
    assert stored["spec"]["replicas"] == 2
    managers = [(entry["manager"], entry["operation"]) for entry in stored["metadata"]["managedFields"]]
    assert ("kubectl", "Apply") in managers


def test_create_run_get_describe_delete(kubectl: Kubectl, space: str) -> None:
    assert kubectl("create", "-f", "-", stdin=pod("made", space)) == "pod/made created\n"
    assert "already exists" in kubectl.fails("create", "-f", "-", stdin=pod("made", space))
    kubectl("run", "ran", "--image=busybox", "-n", space)
    kubectl("wait", "--for=condition=Ready", "pod/ran", "pod/made", "-n", space, "--timeout=10s")
    assert "Successfully assigned" in kubectl("describe", "pod", "ran", "-n", space)
    assert "the lab runs no containers" in kubectl("logs", "ran", "-n", space)
    assert "kind: Pod" in kubectl("get", "pod", "ran", "-n", space, "-o", "yaml")
    assert kubectl("delete", "pod", "ran", "made", "-n", space, "--wait", "--timeout=10s").count("deleted") == 2


def test_watch_shows_changes_as_they_come(kubectl: Kubectl, space: str, cluster: tuple[Lab, Path]) -> None:
    cluster[0].create(pod("there", space, nodeSelector={"no": "where"}))
    command = [kubectl.binary, "get", "pods", "-n", space, "-w", "--kubeconfig", str(cluster[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        head = [watching.stdout.readline().split()[:3] for _ in range(2)]
        cluster[0].create(pod("seen", space))
        lines = []
        while "Running" not in (line := watching.stdout.readline()):
            lines.append(line.split()[:3])
        watching.terminate()
    assert head == [["NAME", "READY", "STATUS"], ["there", "0/1", "Pending"]]
    assert ["seen", "0/1", "Pending"] in lines


def test_scale_patch_and_annotate(kubectl: Kubectl, space: str) -> None:
    kubectl("apply", "-f", "-", stdin=workload("Deployment", "web", space, replicas=1))
    kubectl("scale", "deploy/web", "--replicas=3", "-n", space)
    kubectl("annotate", "deploy", "web", "note=1", "-n", space)
    strategic = {
        "spec": {"template": {"spec": {"containers": [{"name": "train", "env": [{"name": "A", "value": "1"}]}]}}}
    }
    kubectl("patch", "deploy", "web", "-n", space, "-p", json.dumps(strategic))
    kubectl("patch", "deploy", "web", "-n", space, "--type=merge", "-p", '{"metadata":{"labels":{"q":"r"}}}')
    removal = '[{"op":"remove","path":"/metadata/labels/q"},{"op":"add","path":"/metadata/labels/s","value":"t"}]'
    kubectl("patch", "deploy", "web", "-n", space, "--type=json", "-p", removal)
    stored = json.loads(kubectl("get", "deploy", "web", "-n", space, "-o", "json"))
    container = stored["spec"]["template"]["spec"]["containers"][0]
    assert (stored["spec"]["replicas"], stored["metadata"]["labels"]) == (3, {"s": "t"})
    assert (container["image"], container["env"]) == ("busybox:1.36", [{"name": "A", "value": "1"}])


def test_replace_diff_and_dry_run(kubectl: Kubectl, space: str) -> None:
    web = workload("Deployment", "web", space, replicas=1)
    kubectl("apply", "-f", "-", stdin=web)
    web["spec"]["replicas"] = 2
    assert "+  replicas: 2" in kubectl.run("diff", "-f", "-", stdin=web, check=False).stdout
    assert (
        kubectl("apply", "--dry-run=server", "-f", "-", stdin=web)
        == "deployment.apps/web configured (server dry run)\n"
    )
    assert kubectl("get", "deploy", "web", "-n", space, "-o", "jsonpath={.spec.replicas}") == "1"
    assert kubectl("replace", "-f", "-", stdin=web) == "deployment.apps/web replaced\n"
    assert "deployment.apps/web replaced" in kubectl("replace", "--force", "-f", "-", stdin=web)
    assert kubectl("get", "deploy", "web", "-n", space, "-o", "jsonpath={.spec.replicas}") == "2"


def test_rollout_restart_and_undo(kubectl: Kubectl, space: str) -> None:
    kubectl("apply", "-f", "-", stdin=workload("Deployment", "web", space, replicas=1))
    for step in (["restart"], ["status", "--timeout=10s"], ["undo"], ["status", "--timeout=10s"]):
        kubectl("rollout", step[0], "deploy/web", "-n", space, *step[1:])
    assert kubectl("get", "deploy", "web", "-n", space, "-o", "jsonpath={.metadata.annotations}").find('"3"') > 0


def test_get_all_lists_workloads(kubectl: Kubectl, space: str) -> None:
    kubectl("apply", "-f", "-", stdin=workload("StatefulSet", "db", space, replicas=1, serviceName="db"))
    kubectl("rollout", "status", "sts/db", "-n", space, "--timeout=10s")
    shown = kubectl("get", "all", "-n", space)
    assert "pod/db-0" in shown and "statefulset.apps/db" in shown


def test_generators_that_send_protobuf_are_told_what_works(kubectl: Kubectl, space: str) -> None:
    for arguments in (["namespace", "x"], ["quota", "q", "--hard=pods=1"], ["deployment", "d", "--image=x"]):
        complaint = kubectl.fails("create", *arguments, "-n", space)
        assert "--dry-run=client -o yaml | kubectl apply -f -" in complaint
    made = kubectl("create", "quota", "q", "--hard=pods=1", "-n", space, "--dry-run=client", "-o", "yaml")
    assert kubectl("apply", "-f", "-", stdin=made) == "resourcequota/q created\n"


def test_everybody_may_do_everything_and_impersonation_is_seen(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods", "--as", "alice") == "yes\n"
    shown = kubectl("auth", "whoami", "--as", "alice", "--as-group", "ml", "-o", "json")
    assert json.loads(shown)["status"]["userInfo"] == {"username": "alice", "groups": ["ml", "system:authenticated"]}


def test_namespace_goes_with_all_it_holds(kubectl: Kubectl, space: str) -> None:
    kubectl("apply", "-f", "-", stdin=workload("Job", "work", space))
    kubectl("delete", "ns", space, "--timeout=10s")
    assert "NotFound" in kubectl.fails("get", "ns", space)


def test_refusals_read_like_the_real_ones(kubectl: Kubectl, space: str) -> None:
    gpu_fraction = pod("bad", space, gpus="1500m")
    assert 'The Pod "bad" is invalid' in kubectl.fails("apply", "-f", "-", stdin=gpu_fraction)
    complaint = kubectl.fails("apply", "-f", "-", stdin=pod("lost", "nowhere"))
    assert 'Error from server (NotFound): error when creating "STDIN": namespaces "nowhere" not found' in complaint
    missing = kubectl.fails("apply", "-f", "-", stdin=pod("classy", space, priorityClassName="nope"))
    assert 'pods "classy" is forbidden: no PriorityClass with name nope was found' in missing


def test_drain_evicts(kubectl: Kubectl, space: str) -> None:
    kubectl("run", "moved", "--image=busybox", "-n", space, "--overrides", '{"spec":{"nodeName":"cpu-1"}}')
    kubectl("wait", "--for=condition=Ready", "pod/moved", "-n", space, "--timeout=10s")
    assert "evicted" in kubectl("drain", "cpu-1", "--force", "--ignore-daemonsets", "--timeout=10s")
    kubectl("uncordon", "cpu-1")
