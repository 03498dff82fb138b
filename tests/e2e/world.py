"""What the e2e tests put into a cluster: names of their own for everything, fake nodes, team namespaces, kubectl."""

import copy
import json
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import yaml

from tests import needs
from webhook.cli.stage import Stage, registered
from webhook.cli.walk import Cluster, Names
from webhook.cluster.api import ApiError, connect
from webhook.cluster.manifests import read
from webhook.lab import seed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
POOL = "gpu.platform/pool"
INJECTED = "gpu.platform/injected"
EXEMPT = "gpu.platform/exempt"

TEAM = "gpu.platform/team"
ZONE = "topology.kubernetes.io/zone"
NAMESPACES = ("ai-inference", "ai-training", "ai-research")
CLASSES = ("gpu-critical-inference", "gpu-training", "gpu-batch-low")
POOLS = ("inference", "training", "research")

OWN_KINDS = {
    "MutatingWebhookConfiguration": "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration": "admissionregistration.k8s.io/v1",
    "Namespace": "v1",
    "Node": "v1",
    "PriorityClass": "scheduling.k8s.io/v1",
}
"""What belongs to no namespace and is made here, in the order in which it has to go."""

HEARTBEAT = 10.0
"""Seconds; a real node controller taints a node that is silent for 40 to 50."""
PATIENCE = 20.0
"""Seconds that a cluster may take to show an effect."""

Object = dict[str, Any]
T = TypeVar("T")


def until(what: str, condition: Callable[[], T], seconds: float = PATIENCE) -> T:
    """The first true answer of `condition`; fails the test if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:.0f} s in vain for: {what}")
        time.sleep(0.05)
    return found


# -- kubectl ----------------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """How a kubectl ended and what it printed."""

    code: int
    out: str
    err: str


class Kubectl:
    """Unmodified kubectl against one cluster, in one namespace or in those that manifests name."""

    def __init__(self, kubeconfig: Path, namespace: str = "", refused: list[str] | None = None) -> None:
        needs.kubectl()
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self.refused = refused if refused is not None else []
        """Decision ids that kubectl showed to a refused user."""

    def inside(self, namespace: str) -> "Kubectl":
        return Kubectl(self._kubeconfig, namespace, self.refused)

    def run(self, *arguments: str, manifest: Object | Iterable[Object] = ()) -> Done:
        objects = [manifest] if isinstance(manifest, dict) else list(manifest)
        done = subprocess.run(
            ["kubectl", *(["-n", self._namespace] if self._namespace else []), *arguments],
            input=yaml.safe_dump_all(objects),
            env={**os.environ, "KUBECONFIG": str(self._kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.refused += [line.split()[1] for line in done.stderr.splitlines() if line.startswith("  decision ")]
        return Done(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: str, manifest: Object | Iterable[Object] = ()) -> str:
        """What it printed, warnings included; it must succeed."""
        done = self.run(*arguments, manifest=manifest)
        assert done.code == 0, f"kubectl {' '.join(arguments)}: {done.out}{done.err}"
        return done.out + done.err

    def fails(self, *arguments: str, manifest: Object | Iterable[Object] = ()) -> str:
        """What it complained of; it must not succeed."""
        done = self.run(*arguments, manifest=manifest)
        assert done.code != 0, f"kubectl {' '.join(arguments)}: {done.out}"
        return done.err

    def get(self, *arguments: str) -> Object:
        """One object, or a List."""
        done = self.run("get", *arguments, "-o", "json")
        assert done.code == 0, done.err
        found: Object = json.loads(done.out)
        return found

    def apply(self, *manifest: Object) -> str:
        return self("apply", "-f", "-", manifest=manifest)


# -- manifests --------------------------------------------------------------------------------------------------------


def pod_spec(gpus: int, **spec: Any) -> Object:
    """A container that holds GPUs for an hour."""
    amounts = {"cpu": "10m", "memory": "16Mi", "nvidia.com/gpu": str(gpus)}
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", "sleep 3600"],
        "resources": {"requests": amounts, "limits": dict(amounts)},
    }
    return {"containers": [container], **spec}


def pod(name: str, gpus: int = 1, **spec: Any) -> Object:
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(gpus, **spec)}


def workload(kind: str, name: str, gpus: int = 1, *, pod: Object | None = None, **spec: Any) -> Object:
    """A Deployment, StatefulSet, DaemonSet or Job; `pod` are further fields of its pods' spec."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pod_spec(gpus, **(pod or {}))}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"template": template, **spec},
    }


def deployment(name: str, gpus: int = 1, replicas: int = 1, **more: Any) -> Object:
    return workload("Deployment", name, gpus, replicas=replicas, **more)


def required(*terms: list[Object]) -> Object:
    """Required node affinity of terms that hold matchExpressions."""
    wanted = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": wanted}}}


class Placement(NamedTuple):
    """What the webhook decides of a pod: its class, and the pool that every term of its affinity requires."""

    priority_class: str | None
    pool: str | None


def placement(spec: Object) -> Placement:
    """Of a pod's spec, or a template's."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [{}]
    wanted = [[each["values"] for each in term.get("matchExpressions") or () if each["key"] == POOL] for term in terms]
    pools = {json.dumps(values) for values in wanted}
    (pool,) = json.loads(pools.pop())[0] if len(pools) == 1 and wanted[0] else (None,)
    return Placement(spec.get("priorityClassName"), pool)


# -- the cluster ------------------------------------------------------------------------------------------------------


def own_names(prefix: str, team: str = "") -> Names:
    """Names of our own for all that the shipped manifests name; `team` replaces the label key of namespaces.

    The zone label is renamed too: pods that nobody places (beside the webhook) must not land on somebody's real nodes.
    """
    nodes = [node["metadata"]["name"] for node in seed.nodes()]
    plain = {name: f"{prefix}-{name}" for name in (*NAMESPACES, *CLASSES, *POOLS, *nodes)}
    if team:
        plain |= {name: f"{prefix}-beside-{name}" for name in NAMESPACES}
    return Names(plain | {TEAM: team or f"{prefix}.{TEAM}", ZONE: f"{prefix}.gpu.platform/zone"})


class World:
    """Things of our own in a cluster that may belong to others, and the way to remove them all.

    Nothing here relies on the lab. Where real clusters differ: no kubelet stands behind the nodes, so pods are
    scheduled and never run, deleted pods stay Terminating until they are deleted with no grace, a rollout never
    completes; a namespace has its service account, a quota its status and a registration its effect a little later.
    """

    def __init__(self, kubeconfig: Path, folder: Path, host: str) -> None:
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.host = host
        self.prefix = f"gpu-e2e-{secrets.token_hex(3)}"
        self.names = own_names(self.prefix)
        self.beside_names = own_names(self.prefix, f"{self.prefix}.gpu.platform/unregistered")
        self.taint = f"{self.prefix}.gpu.platform/e2e"
        self.cluster = Cluster(connect(str(kubeconfig)))
        self.kubectl = Kubectl(kubeconfig)
        self._nodes = [self._node(node) for node in seed.nodes()]
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "World":
        self._heart.start()
        try:
            for node in self._nodes:
                self.cluster.create(node)
                self.cluster.change(node, _renewed, "/status")
            until("nodes that are ready", self._are_ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove all that carries our prefix; webhook configurations go first, whoever left them there."""
        self._over.set()
        self._heart.join()
        for kind in OWN_KINDS:
            self._delete_own(kind)
            if kind == "Namespace":
                self._await_no_namespace()
        left = [f"{kind}/{each['metadata']['name']}" for kind in OWN_KINDS for each in self._own(kind)]
        assert not left, f"these stay behind: {', '.join(left)}"

    def _await_no_namespace(self) -> None:
        deadline = time.monotonic() + 60
        while (left := self._own("Namespace")) and time.monotonic() < deadline:
            for namespace in left:
                self.empty(namespace["metadata"]["name"])
            time.sleep(0.2)

    def empty(self, namespace: str) -> None:
        """Delete pods without grace: no kubelet will confirm that they stopped."""
        for each in self.cluster.list("Pod", namespace):
            self.cluster.delete({**each, "apiVersion": "v1", "kind": "Pod"}, now=True)

    def classes(self) -> None:
        """The shipped priority classes."""
        for _, obj in read(DEPLOY / "cluster" / "priority-classes.yaml"):
            self.cluster.create(self.names.rename(obj))

    def policy(self, folder: Path, change: Callable[[Object], None] = lambda _: None) -> Path:
        """The shipped policy under our names, with a toleration of our nodes' taint; `change` gets its spec."""
        (shipped,) = [obj for _, obj in read(ROOT / "policies" / "default.yaml")]
        policy = self.names.rename(shipped)
        for rule in policy["spec"]["rules"]:
            rule["tolerations"] = [{"key": self.taint, "operator": "Exists", "effect": "NoSchedule"}]
        change(policy["spec"])
        folder.mkdir(exist_ok=True)
        written = folder / "policy.yaml.new"
        written.write_text(yaml.safe_dump(policy), encoding="utf-8")
        return written.replace(folder / "policy.yaml").parent

    def stage(self, name: str, change: Callable[[Object], None] = lambda _: None) -> Stage:
        """A webhook of our own, asked about namespaces of our own alone."""
        folder = self.folder / name
        folder.mkdir()
        policy = self.policy(folder / "policies", change)
        return Stage(folder, self.kubeconfig, policy, self.host, self.names(TEAM))

    @contextmanager
    def registered(self, stage: Stage, address: str) -> Iterator[None]:
        """The webhook at `address` registered, and known to be asked."""
        with registered(self.cluster, stage.registration(address, f"{self.prefix}-{stage.folder.name}")):
            self._await_called(f"probe-{stage.folder.name}")
            yield

    def _await_called(self, name: str) -> None:
        """Wait until the API server asks: with failurePolicy Ignore a webhook that it cannot reach would go unseen."""
        namespace = self.namespace(name, "inference")
        probe = deployment("probe")
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"

        def is_placed() -> bool:
            answer, _ = self.cluster.api.call("POST", path, {"dryRun": "All"}, probe)
            return placement(json.loads(answer)["spec"]["template"]["spec"]) == self.placement("inference")

        until(
            f"an answer of the webhook through the API server; it must reach this machine as {self.host} "
            "(set E2E_HOST to an address that it can reach, docs/e2e.md)",
            is_placed,
        )

    def namespace(self, name: str, team: str, gpus: int | None = None, labels: Mapping[str, str] | None = None) -> str:
        """A namespace of a team, with further labels, and with a quota if `gpus` are given, both ready for use."""
        full = f"{self.prefix}-{name}"
        labels = {self.names(TEAM): self.names(team), **(labels or {})}
        self.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": full, "labels": labels}})
        if gpus is not None:
            quota = {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "gpus", "namespace": full},
                "spec": {"hard": {"requests.nvidia.com/gpu": str(gpus)}},
            }
            self.cluster.create(quota)
            until("quota status", lambda: (self.cluster.get(quota).get("status") or {}).get("used"))
        account = f"/api/v1/namespaces/{full}/serviceaccounts/default"
        until("the service account", lambda: self._exists(account))
        return full

    def placement(self, team: str) -> Placement:
        """What the policy gives a team's pods."""
        classes = dict(zip(POOLS, ("gpu-critical-inference", "gpu-training", "gpu-batch-low"), strict=True))
        return Placement(self.names(classes[team]), self.names(team))

    def _exists(self, path: str) -> bool:
        with suppress(ApiError):
            return bool(self.cluster.api.get(path))
        return False

    def _node(self, shipped: Object) -> Object:
        """A node with room for every test, that nobody else's pods tolerate."""
        node: Object = self.names.rename(shipped)
        node["spec"]["taints"] = [{"key": self.taint, "effect": "NoSchedule"}]
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            if "nvidia.com/gpu" in amounts:
                amounts["nvidia.com/gpu"] = "100"
        _renewed(node)
        return node

    def _are_ready(self) -> bool:
        """A real API server taints every new node until its controller has seen it ready."""
        taints = [(self.cluster.get(node)["spec"].get("taints") or []) for node in self._nodes]
        return all([each["key"] for each in found] == [self.taint] for found in taints)

    def _beat(self) -> None:
        """What a kubelet would do: tell that the node is alive, or its controller taints it after 40 s."""
        cluster = Cluster(connect(str(self.kubeconfig)))
        while not self._over.wait(HEARTBEAT):
            for node in self._nodes:
                with suppress(ApiError):
                    cluster.change(node, _renewed, "/status")

    def _own(self, kind: str) -> list[Object]:
        found = self.cluster.list(kind, api_version=OWN_KINDS[kind])
        mine = [each for each in found if each["metadata"]["name"].startswith(f"{self.prefix}-")]
        return [{**each, "apiVersion": OWN_KINDS[kind], "kind": kind} for each in mine]

    def _delete_own(self, kind: str) -> None:
        for each in self._own(kind):
            with suppress(ApiError):  # what really stays is told at the end
                self.cluster.delete(each)


def _renewed(node: Object) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    ready |= {"status": "True", "lastHeartbeatTime": now}
    ready.setdefault("lastTransitionTime", now)


# -- one team's namespace ---------------------------------------------------------------------------------------------


class Team:
    """A namespace, kubectl in it, and the questions that tests ask about it."""

    def __init__(self, world: World, namespace: str, team: str) -> None:
        self.world = world
        self.namespace = namespace
        self.expected = world.placement(team)
        self.kubectl = world.kubectl.inside(namespace)

    def apply(self, *manifests: Object) -> str:
        return self.kubectl.apply(*manifests)

    def template(self, kind: str, name: str) -> Object:
        found: Object = self.kubectl.get(kind, name)["spec"]["template"]
        return found

    def state(self, name: str) -> tuple[Object, int]:
        """Template and generation of a Deployment: what must not move unless somebody wants it to."""
        found = self.kubectl.get("deployment", name)
        return copy.deepcopy(found["spec"]["template"]), found["metadata"]["generation"]

    def replica_sets(self, name: str) -> list[Object]:
        items: list[Object] = self.kubectl.get("replicasets", "-l", f"app={name}")["items"]
        return items

    def pods(self, name: str) -> list[Object]:
        items: list[Object] = self.kubectl.get("pods", "-l", f"app={name}")["items"]
        return items

    def scheduled(self, name: str, count: int = 1) -> list[Object]:
        """The pods of a workload, all `count` of them on nodes of the team's pool, with the team's class."""

        def have_nodes() -> list[Object]:
            found = self.pods(name)
            return found if len(found) == count and all(each["spec"].get("nodeName") for each in found) else []

        found = until(f"{count} scheduled pods of {name}", have_nodes)
        assert {placement(each["spec"]) for each in found} == {self.expected}
        pool = self.expected.pool or ""
        assert {each["spec"]["nodeName"] for each in found} == {f"{self.world.prefix}-gpu-{self._plain(pool)}-1"}
        return found

    def used(self) -> int:
        """GPUs that the quota counts."""
        status = self.kubectl.get("resourcequota", "gpus")["status"]
        return int(status["used"]["requests.nvidia.com/gpu"])

    def _plain(self, pool: str) -> str:
        return pool.removeprefix(f"{self.world.prefix}-")


# -- the record -------------------------------------------------------------------------------------------------------


def records(stage: Stage) -> list[Object]:
    """All records of a webhook, in order."""
    lines = [line for file in sorted(stage.audit.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    return [json.loads(line) for line in lines]


def codes(record: Object) -> set[str]:
    return {each["code"] for each in record["findings"]}
