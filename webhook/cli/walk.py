"""The guided walk through the product: what `demo` tells on the lab and what the e2e suite runs on any cluster."""

import copy
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # everything heavy is imported when the walk runs, so that --help is quick
    from webhook.cluster.api import Api

Object = dict[str, Any]

TRAINING, INFERENCE, RESEARCH = "ai-training", "ai-inference", "ai-research"
POOL = "gpu.platform/pool"
WAIT = 15.0
"""Seconds that a cluster may take to show the effect of a step."""


class WalkError(Exception):
    """A step did not show what it should; the text says what was expected and what was seen."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the walk's objects are called in this cluster: shipped name -> name here, everywhere in a manifest."""

    here: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        return self.here.get(name, name)

    def rename(self, value: Any) -> Any:
        """A manifest with every string that is one of the shipped names replaced, keys included."""
        if isinstance(value, dict):
            return {self(key): self.rename(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.rename(each) for each in value]
        return self(value) if isinstance(value, str) else value


# -- the cluster, as kubectl would use it -----------------------------------------------------------------------------


class Cluster:
    """A Kubernetes API with the few verbs that the walk needs."""

    def __init__(self, api: "Api") -> None:
        self.api = api
        self.warnings: list[str] = []
        """What the API server warned of with its last answer."""

    def create(self, obj: Object) -> Object:
        """The object as stored. Raises `webhook.cluster.api.ApiError` with the API server's words."""
        return self._call("POST", _path(obj, collection=True), obj)

    def refusal(self, obj: Object) -> str:
        """Why the API server does not create the object. Raises WalkError if it does."""
        from webhook.cluster.api import ApiError

        try:
            self.create(obj)
        except ApiError as error:
            return str(error)
        raise WalkError(f"expected a refusal of {title(obj)}, saw it created")

    def get(self, obj: Object) -> Object:
        return self._call("GET", _path(obj))

    def list(self, kind: str, namespace: str = "", api_version: str = "v1") -> list[Object]:
        listed = _path({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace}}, collection=True)
        items: list[Object] = self._call("GET", listed)["items"]
        return items

    def relabel(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Set node labels, or remove those whose value is None."""

        def change(found: Object) -> None:
            for key, value in labels.items():
                found["metadata"]["labels"].pop(key, None)
                if value is not None:
                    found["metadata"]["labels"][key] = value

        self.change({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}, change)

    def change(self, obj: Object, change: Callable[[Object], None], subresource: str = "") -> None:
        """Read, change and write an object, again where somebody else wrote in between: a Node has several writers."""
        from webhook.cluster.api import ApiError

        for attempt in range(10):
            found = self.get(obj)
            change(found)
            try:
                self._call("PUT", _path(obj) + subresource, found)
                return
            except ApiError as error:
                if error.status != 409 or attempt == 9:
                    raise

    def delete(self, obj: Object, now: bool = False) -> None:
        """Delete an object, with `now` without a grace period; one that is gone already is fine."""
        from webhook.cluster.api import ApiError

        options = {"propagationPolicy": "Background", **({"gracePeriodSeconds": 0} if now else {})}
        try:
            self._call("DELETE", _path(obj), options)
        except ApiError as error:
            if error.status != 404:
                raise

    def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        content, headers = self.api.call(method, path, body=body)
        warnings = next((value for key, value in headers.items() if key.lower() == "warning"), "")
        self.warnings = [text.replace('\\"', '"') for text in _WARNING.findall(warnings)]
        answer: Object = json.loads(content)
        return answer


_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
"""One warning in a Warning header (RFC 7234), which may hold several."""

_PLURALS = {
    "Namespace": ("namespaces", False),
    "Node": ("nodes", False),
    "PriorityClass": ("priorityclasses", False),
    "MutatingWebhookConfiguration": ("mutatingwebhookconfigurations", False),
    "ValidatingWebhookConfiguration": ("validatingwebhookconfigurations", False),
    "ResourceQuota": ("resourcequotas", True),
    "LimitRange": ("limitranges", True),
    "Deployment": ("deployments", True),
    "Job": ("jobs", True),
    "Pod": ("pods", True),
    "Event": ("events", True),
}


def _path(obj: Object, collection: bool = False) -> str:
    plural, namespaced = _PLURALS[obj["kind"]]
    version = obj["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    place = f"/namespaces/{obj['metadata']['namespace']}" if namespaced else ""
    return f"{root}{place}/{plural}" + ("" if collection else f"/{obj['metadata']['name']}")


def title(obj: Object) -> str:
    """kind/name, as kubectl prints it."""
    group = obj["apiVersion"].rpartition("/")[0]
    return f"{obj['kind'].lower()}{'.' + group if group else ''}/{obj['metadata']['name']}"


def manifests(folder: Path, names: Names) -> list[Object]:
    """The objects of a folder of manifests or of one file, under the names of this cluster; kustomizations left out."""
    from webhook.cluster.manifests import read

    return [names.rename(obj) for _, obj in read(folder) if obj["kind"] != "Kustomization"]


# -- the walk ---------------------------------------------------------------------------------------------------------


class Walk:
    """The story, step by step; every step checks what it shows and raises WalkError where it does not.

    `cluster` has the webhook registered; `beside` has not (another cluster, or a namespace that is not registered).
    """

    def __init__(
        self,
        cluster: Cluster,
        beside: Cluster,
        *,
        names: Names | None = None,
        beside_names: Names | None = None,
        deploy: Path = Path("deploy"),
        tell: Callable[[str], None] = print,
    ) -> None:
        self.cluster = cluster
        self.beside = beside
        self.names = names or Names()
        self.beside_names = beside_names or self.names
        self.deploy = deploy
        self.tell = tell
        self.refusals: list[str] = []
        self._step = 0

    def run(self) -> None:
        """All steps after the control layer and the registration."""
        self.training_job()
        self.inference()
        self.over_quota()
        self.conflicts()
        self.gates()

    def heading(self, text: str) -> None:
        self._step += 1
        self.tell(f"\n{self._step}  {text}")

    def control_layer(self) -> None:
        """Namespaces, quotas, limits and classes; beside as well, so that only the webhook makes the difference."""
        self.heading("The control layer: three teams, each with a namespace and a quota")
        self.tell("   $ kubectl apply -k deploy/cluster")
        objects = self._control_objects(self.names)
        for obj in objects:
            self.cluster.create(obj)
        beside = self._control_objects(self.beside_names)
        if self.beside is self.cluster:  # what belongs to no namespace is there already
            beside = [obj for obj in beside if obj["kind"] != "PriorityClass"]
        for obj in beside:
            self.beside.create(obj)
        for obj in objects:
            if obj["kind"] == "ResourceQuota":
                hard = obj["spec"]["hard"]["requests.nvidia.com/gpu"]
                self.tell(f"   {obj['metadata']['namespace']:<13} may use {hard} GPUs")
        self._await_quotas(self.cluster, objects)
        self._await_quotas(self.beside, beside)

    def _control_objects(self, names: Names) -> list[Object]:
        """Namespaces first, then what they hold."""
        return sorted(manifests(self.deploy / "cluster", names), key=lambda obj: obj["kind"] != "Namespace")

    def _await_quotas(self, cluster: Cluster, objects: Iterable[Object]) -> None:
        """A quota enforces nothing before its controller has filled in its status (Q5)."""
        for quota in [obj for obj in objects if obj["kind"] == "ResourceQuota"]:
            self._await(f"status of {title(quota)}", partial(_has_usage, cluster, quota))

    def training_job(self) -> None:
        self.heading("A training Job says only what it needs, and leaves with class and pool")
        sent, stored = self._applied("training-job.yaml")
        self._difference(sent, stored)
        self._check("priorityClassName", self.names("gpu-training"), _pod_spec(stored).get("priorityClassName"))
        self._check("pool", [self.names("training")], _pools(stored))
        self._runs(stored, "gpu-training-1")

    def inference(self) -> None:
        self.heading("So do two inference Deployments; together they hold 3 of the team's 4 GPUs")
        for name in ("inference-deployment-kind.yaml", "inference-deployment.yaml"):
            sent, stored = self._applied(name)
            self._difference(sent, stored)
            self._check("pool", [self.names("inference")], _pools(stored))
            self._runs(stored, "gpu-inference-1")

    def over_quota(self) -> None:
        self.heading("One more Deployment, 2 GPUs where 1 is free: refused at once, with numbers")
        obj = self._sample("quota-exceed.yaml")
        self._refused(obj, "quota-exceed.yaml", "GPU quota exceeded", "asks for 2, free 1 of 4")
        self.tell("\n   The same in a cluster without the webhook: accepted, nothing runs, its author is not told.")
        self._without_webhook()

    def _without_webhook(self) -> None:
        for name in ("inference-deployment-kind.yaml", "inference-deployment.yaml"):
            self.beside.create(self._sample(name, self.beside_names))
        obj = self._sample("quota-exceed.yaml", self.beside_names)
        self._create(self.beside, obj, "quota-exceed.yaml")
        namespace = obj["metadata"]["namespace"]
        event = self._await("FailedCreate event", lambda: self._event(self.beside, namespace, "FailedCreate"))
        self._check("pods of it", 0, (self.beside.get(obj).get("status") or {}).get("replicas", 0))
        self.tell("   It has no pods, and never will. The reason hides in an event of its ReplicaSet:")
        self.tell(f"     FailedCreate  {event['message']}")
        if "exceeded quota" not in event["message"]:
            raise WalkError(f"expected a FailedCreate event about the quota, saw: {event['message']}")

    def conflicts(self) -> None:
        self.heading("Refused too: another team's nodes, and a priority that is not the team's")
        self._refused(self._sample("wrong-pool.yaml"), "wrong-pool.yaml", "Wrong GPU pool", "allowed")
        self._refused(self._sample("wrong-class.yaml"), "wrong-class.yaml", "Priority class not allowed", "allowed")

    def gates(self) -> None:
        self.heading("Admitted is not yet running: two more gates, told apart by the scheduler")
        node, cpu = self.names("gpu-training-1"), self.names("cpu-1")
        pool = self.names("training")
        self.cluster.relabel(node, {POOL: None})
        self.tell(f"   We take node {node} out of pool {pool}: no node is left that the Job may use.")
        obj = self._sample("training-job-kind.yaml")
        self._create(self.cluster, obj, "training-job-kind.yaml")
        self._pending(obj, "didn't match Pod's node affinity/selector")
        self.cluster.relabel(cpu, {POOL: pool, "accelerator": "nvidia-h100"})
        self.tell(f"   We put node {cpu}, which has no GPU, into the pool: now there is a node, but no GPU.")
        self._pending(obj, "Insufficient nvidia.com/gpu")
        self.cluster.relabel(cpu, {POOL: None, "accelerator": None})
        self.cluster.relabel(node, {POOL: pool})
        self.tell(f"   We put node {node} back:")
        self._runs(obj, "gpu-training-1")

    # -- what steps are made of --

    def _sample(self, name: str, names: Names | None = None) -> Object:
        return manifests(self.deploy / "samples" / name, names or self.names)[0]

    def _applied(self, name: str) -> tuple[Object, Object]:
        sent = self._sample(name)
        stored = self._create(self.cluster, sent, name)
        return sent, stored

    def _create(self, cluster: Cluster, obj: Object, name: str) -> Object:
        """Create an object and tell it as kubectl does."""
        self._command(name)
        stored = cluster.create(copy.deepcopy(obj))
        for warning in cluster.warnings:
            self.tell(f"   Warning: {warning}")
        self.tell(f"   {title(obj)} created")
        return stored

    def _command(self, name: str) -> None:
        self.tell(f"   $ kubectl apply -f deploy/samples/{name}")

    def _difference(self, sent: Object, stored: Object) -> None:
        """The lines that admission changed, before and after."""
        before, after = _pod_spec(sent).get("priorityClassName"), _pod_spec(stored).get("priorityClassName")
        self.tell(f"     - priorityClassName  {before or '(none)'}")
        self.tell(f"     + priorityClassName  {after}")
        for pools, sign in ((_pools(sent), "-"), (_pools(stored), "+")):
            shown = f"{POOL} In [{', '.join(pools)}]" if pools else "(no pool)"
            self.tell(f"     {sign} node affinity      {shown}")

    def _refused(self, obj: Object, name: str, *expected: str) -> None:
        self._command(name)
        text = self.cluster.refusal(obj).partition(": HTTP 403: ")[2]
        message = text.partition("denied the request: ")[2]
        said = f'Error from server (Forbidden): error when creating "deploy/samples/{name}": {text}'
        self.tell("   " + said.replace("\n", "\n   "))
        missing = [part for part in expected if part not in message]
        if missing:
            raise WalkError(f"{title(obj)}: expected {missing[0]!r} in the refusal, saw: {text}")
        self.refusals.append(message)

    def _runs(self, obj: Object, node: str) -> None:
        pods = self._await(f"{title(obj)} on a node", lambda: self._placed(obj))
        where = {pod["spec"]["nodeName"] for pod in pods}
        self._check(f"node of {title(obj)}", {self.names(node)}, where)
        self.tell(f"   {len(pods)} {'pod runs' if len(pods) == 1 else 'pods run'} on {', '.join(sorted(where))}")

    def _placed(self, obj: Object) -> list[Object]:
        """All pods of a workload, if there are as many as it wants and every one has its node."""
        pods = self._pods(obj)
        wanted = obj["spec"].get("replicas") or obj["spec"].get("parallelism") or 1
        return pods if len(pods) == wanted and all(pod["spec"].get("nodeName") for pod in pods) else []

    def _pods(self, obj: Object) -> list[Object]:
        app = obj["metadata"]["labels"]["app"]
        pods = self.cluster.list("Pod", obj["metadata"]["namespace"])
        return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get("app") == app]

    def _pending(self, obj: Object, words: str) -> None:
        namespace = obj["metadata"]["namespace"]
        event = self._await(words, lambda: self._event(self.cluster, namespace, "FailedScheduling", words))
        self.tell(f"     Pending  FailedScheduling  {event['message']}")

    @staticmethod
    def _event(cluster: Cluster, namespace: str, reason: str, words: str = "") -> Object | None:
        events = cluster.list("Event", namespace)
        return next((e for e in events if e.get("reason") == reason and words in (e.get("message") or "")), None)

    def _await(self, what: str, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        raise WalkError(f"waited {WAIT:.0f} s in vain for: {what}")

    @staticmethod
    def _check(what: str, expected: Any, seen: Any) -> None:
        if expected != seen:
            raise WalkError(f"{what}: expected {expected!r}, saw {seen!r}")


def _has_usage(cluster: Cluster, quota: Object) -> bool:
    return bool((cluster.get(quota).get("status") or {}).get("used"))


def _pod_spec(obj: Object) -> Object:
    spec: Object = obj["spec"]["template"]["spec"]
    return spec


def _pools(obj: Object) -> list[str]:
    """The values of the pool requirement in a workload's required node affinity, if every term has it."""
    affinity = (_pod_spec(obj).get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    found = [each["values"] for term in terms for each in term.get("matchExpressions") or () if each["key"] == POOL]
    return list(found[0]) if found and len(found) == len(terms) else []
