"""Doctor's questions about the cluster: our replicas, what the policy names, and who takes GPUs past it."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from webhook.cluster.installation import SHOWN, Installation, Level, Line, own_pods, some
from webhook.k8s import pod_resources
from webhook.k8s.objects import Namespace, Node, Pod, PriorityClass, ResourceQuota
from webhook.policy.active import NEVER_JUDGED
from webhook.policy.finding import Level as LintLevel
from webhook.policy.lint_cluster import Cluster, lint_cluster
from webhook.policy.registration import NAME


def replicas(installation: Installation) -> Iterator[Line]:
    """Two or more webhook pods, ready, on different nodes."""
    if any(webhook.client_config.url for _, webhook in installation.webhooks()):
        yield Line("OK", "replicas", "the webhook is registered by url: it runs outside this cluster")
        return
    found = [
        item
        for item in installation.raw("Deployment")
        if (item["metadata"].get("namespace"), item["metadata"]["name"]) == (installation.namespace, NAME)
    ]
    if not found:
        message = f"there is no Deployment {installation.namespace}/{NAME} here"
        yield Line(
            "WARN", "replicas", message, "kubectl apply -k deploy/overlays/production, or name the namespace with -n"
        )
        return
    ready = (found[0].get("status") or {}).get("readyReplicas") or 0
    if ready == 0:
        fix = f"kubectl -n {installation.namespace} describe deployment {NAME}"
        yield Line("FAIL", "replicas", "no webhook pod is ready: nothing is judged", fix)
    elif ready == 1:
        yield Line(
            "WARN", "replicas", "one webhook pod is ready: its node is a single point of failure", "run two or more"
        )
    else:
        yield _spread(installation, ready)


def _spread(installation: Installation, ready: int) -> Line:
    places = Counter(
        (item.get("spec") or {}).get("nodeName")
        for item in own_pods(installation.raw("Pod"), installation.namespace)
        if (item.get("status") or {}).get("phase") == "Running"
    )
    if len(places) == 1 and len(installation.raw("Node")) > 1:
        node = next(iter(places))
        fix = "delete one of the pods: the anti-affinity of deploy/base spreads them when there is room"
        return Line("WARN", "replicas", f"all {ready} webhook pods are on node {node}", fix)
    return Line("OK", "replicas", f"{ready} webhook pods are ready, on {len(places)} node(s)")


def named(installation: Installation) -> Iterator[Line]:
    """Classes, pools and labels that the policy names exist; quotas count what they say (B04, B30)."""
    levels: dict[LintLevel, Level] = {"error": "FAIL", "warning": "WARN", "info": "OK"}
    findings = list(lint_cluster(installation.policy, _cluster(installation), installation.namespace_label))
    shown = Counter[str]()
    for each in findings:
        shown[each.code] += 1
        if shown[each.code] <= SHOWN:
            message = each.message if each.path in each.message else f"{each.path}: {each.message}"
            yield Line(levels[each.level], each.code, message, each.fix)
    for code, count in shown.items():
        if count > SHOWN:
            yield Line(
                "WARN", code, f"{count - SHOWN} more of {code}", "gpu-webhook policy lint --cluster shows them all"
            )
    if not findings:
        yield Line("OK", "named", "classes, pools and labels that the policy names exist; quota keys count")


def _cluster(installation: Installation) -> Cluster:
    """What lint reads; a kind of which the snapshot holds nothing was not learned."""
    kinds: dict[str, tuple[str, Any]] = {
        "namespaces": ("Namespace", Namespace),
        "nodes": ("Node", Node),
        "priority_classes": ("PriorityClass", PriorityClass),
        "quotas": ("ResourceQuota", ResourceQuota),
    }
    return Cluster(**{name: _typed(installation, kind, type_) for name, (kind, type_) in kinds.items()})


def _typed(installation: Installation, kind: str, type_: Any) -> Any:
    items = installation.snapshot.of_kind(kind)
    return tuple(msgspec.json.decode(msgspec.json.encode(item), type=type_) for item in items) or None


def outside(installation: Installation) -> Iterator[Line]:
    """GPU pods in namespaces that no rule covers: nobody checks what they take."""
    labels, found = installation.labels(), dict[str, list[str]]()
    for pod in _typed(installation, "Pod", Pod) or ():
        namespace = pod.metadata.namespace
        finished = pod.status is not None and pod.status.phase in ("Succeeded", "Failed")
        known = namespace in NEVER_JUDGED or installation.judges(namespace, labels.get(namespace, {}))
        if finished or known or pod.spec is None:
            continue
        requests = pod_resources.pod_requests(pod.spec)
        if any(amount and installation.policy.is_gpu(name) for name, amount in requests.items()):
            found.setdefault(namespace, []).append(pod.metadata.name)
    for namespace, pods in sorted(found.items()):
        message = f"namespace {namespace} has no rule, and {len(pods)} pods in it ask for GPUs: {some(pods)}"
        yield Line("WARN", "outside", message, f"label it {installation.namespace_label}, or add a rule for it")
    if not found:
        yield Line("OK", "outside", "no pod asks for GPUs in a namespace without a rule")
