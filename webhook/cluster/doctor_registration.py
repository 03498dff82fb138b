"""Doctor's questions about the registration: is it there, is it harmless, and does it cover the policy."""

from collections.abc import Iterable, Iterator, Mapping

from webhook.cluster.installation import CONFIGURATIONS, REGISTER, Installation, Level, Line, some
from webhook.k8s.registration import Call, Webhook, is_sent, unknown_conditions
from webhook.k8s.workloads import KINDS
from webhook.policy.active import NEVER_JUDGED, Policy
from webhook.policy.registration import CONTROLLERS, uncovered_rules


def registered(installation: Installation) -> Iterator[Line]:
    """Both configurations are there, and can be trusted by the API server (V24, B56)."""
    found = {each.kind: each for each in installation.configurations()}
    for kind in CONFIGURATIONS:
        if kind in installation.unreadable:
            continue
        if kind not in found:
            missing = "nothing is placed" if kind.startswith("Mutating") else "nothing is refused that /mutate missed"
            yield Line("FAIL", "registered", f"there is no {kind} {installation.name}: {missing}", REGISTER)
        elif not found[kind].webhooks:
            yield Line("FAIL", "registered", f"{kind} {installation.name} holds no webhooks", REGISTER)
        else:
            yield Line("OK", "registered", f"{kind} {installation.name} is there")
    for title, webhook in installation.webhooks():
        if not webhook.client_config.ca_bundle:
            fix = "run `gpu-webhook certs ensure`, or see whether cert-manager's injector runs"
            yield Line("FAIL", "bundle", f"{title}: has no caBundle, so every call fails", fix)


def settings(installation: Installation) -> Iterator[Line]:
    """What each webhook asks of the API server when we are slow, absent or asked again (V22, V31, B53)."""
    odd = list(_odd_settings(installation))
    yield from odd
    if installation.webhooks() and not odd:
        yield Line("OK", "settings", "failure policies, timeouts and match conditions are as shipped")


def _odd_settings(installation: Installation) -> Iterator[Line]:
    for title, webhook in installation.webhooks():
        mutating = title.startswith("Mutating")
        if mutating and webhook.failure_policy != "Ignore":
            message = (
                f"{title}: failurePolicy is {webhook.failure_policy or 'Fail'}: an outage of ours refuses workloads"
            )
            yield Line("FAIL", "settings", message, f"set Ignore; {REGISTER}")
        if mutating and webhook.reinvocation_policy != "IfNeeded":
            message = f"{title}: reinvocationPolicy is not IfNeeded, so what later webhooks add is not placed"
            yield Line("WARN", "settings", message, REGISTER)
        if (webhook.timeout_seconds or 10) > 5:
            message = (
                f"{title}: timeoutSeconds is {webhook.timeout_seconds or 10}: an outage makes every apply that slow"
            )
            yield Line("WARN", "settings", message, f"set 3; {REGISTER}")
        if webhook.match_policy == "Exact":
            message = f"{title}: matchPolicy is Exact, so another API version of a workload passes unseen"
            yield Line("WARN", "settings", message, f"set Equivalent; {REGISTER}")
        selector = webhook.object_selector
        if selector is not None and (selector.match_labels or selector.match_expressions):
            message = f"{title}: has an objectSelector: whoever may label a workload may leave the policy (V31)"
            yield Line("WARN", "settings", message, f"remove it; {REGISTER}")
        for condition in unknown_conditions(webhook):
            message = f"{title}: what matchCondition {condition.name!r} lets through cannot be told here"
            yield Line("WARN", "settings", message, f"compare it with `gpu-webhook manifests`: {condition.expression}")


# -- what is in reach -------------------------------------------------------------------------------------------------

CNI = frozenset(
    {
        "antrea-system",
        "calico-apiserver",
        "calico-system",
        "cilium",
        "cilium-system",
        "kube-flannel",
        "kube-ovn",
        "multus-system",
        "openshift-multus",
        "openshift-ovn-kubernetes",
        "ovn-kubernetes",
        "tigera-operator",
        "weave",
    }
)
"""Where network plug-ins commonly live; namespaces with a DaemonSet on the host's network count as well."""

_POD_SUBRESOURCES = ("attach", "binding", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "resize")
_OTHERS = (
    ("", "v1", "configmaps"),
    ("", "v1", "endpoints"),
    ("", "v1", "events"),
    ("", "v1", "persistentvolumeclaims"),
    ("", "v1", "secrets"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("coordination.k8s.io", "v1", "leases"),
    ("discovery.k8s.io", "v1", "endpointslices"),
)
_CLUSTER_WIDE = (
    Call("CREATE", "", "v1", "nodes"),
    Call("UPDATE", "", "v1", "nodes"),
    Call("UPDATE", "", "v1", "nodes", "status"),
    Call("CREATE", "authentication.k8s.io", "v1", "tokenreviews"),
    Call("CREATE", "authorization.k8s.io", "v1", "subjectaccessreviews"),
    Call("CREATE", "certificates.k8s.io", "v1", "certificatesigningrequests"),
    Call("UPDATE", "apiextensions.k8s.io", "v1", "customresourcedefinitions"),
)
_WRITES = ("CREATE", "UPDATE", "DELETE")


def calls_in(namespace: str, labels: Mapping[str, str]) -> list[Call]:
    """A request of each sort that keeps a namespace alive: workloads, their subresources, what the network needs."""
    found = []
    for row in KINDS.values():
        found += [Call(each, row.group, row.version, row.resource) for each in _WRITES]
        found += [Call("UPDATE", row.group, row.version, row.resource, sub) for sub in ("status", "scale")]
    found += [Call("CREATE", "", "v1", "pods", sub) for sub in _POD_SUBRESOURCES]
    found += [Call("UPDATE", "", "v1", "pods", sub) for sub in ("ephemeralcontainers", "resize")]
    found += [Call(each, *resource) for resource in _OTHERS for each in _WRITES]
    return [call._replace(namespace=namespace, namespace_labels=labels) for call in found]


def needed(policy: Policy, call: Call) -> bool:
    """Whether DESIGN 5.7 registers a request: Pods on CREATE, templates on CREATE and UPDATE, `/scale` on UPDATE."""
    row = next((row for row in KINDS.values() if (row.group, row.resource) == (call.group, call.resource)), None)
    if row is None or row.kind not in policy.kinds:
        return False
    if call.sub_resource:
        return call.sub_resource == "scale" and row.scales and call.operation == "UPDATE"
    return call.operation == "CREATE" or (call.operation == "UPDATE" and row.kind != "Pod")


def critical_namespaces(installation: Installation) -> list[str]:
    """Namespaces that must work while we do not: the system's, our own, the network's (B47, B48)."""
    network = {
        item["metadata"].get("namespace", "")
        for item in installation.raw("DaemonSet")
        if (((item.get("spec") or {}).get("template") or {}).get("spec") or {}).get("hostNetwork")
    }
    known = set(installation.labels())
    return sorted({*NEVER_JUDGED, installation.namespace} | ((CNI | network) & known))


def reach(installation: Installation) -> Iterator[Line]:
    """Nothing critical is sent to us, and nothing that we never asked for (B47-B49, V33)."""
    labels, bad = installation.labels(), False
    critical = critical_namespaces(installation)
    for title, webhook in installation.webhooks():
        level: Level = "FAIL" if webhook.failure_policy != "Ignore" else "WARN"
        for namespace in critical:
            own = labels.get(namespace, {"kubernetes.io/metadata.name": namespace})
            if sent := _sent(webhook, calls_in(namespace, own)):
                bad = True
                message = f"{title}: namespace {namespace} is in reach: {some(sent)}"
                fix = f"exclude {namespace} by kubernetes.io/metadata.name in the namespaceSelector; {REGISTER}"
                yield Line(level, "reach", message, fix)
        judged = {"kubernetes.io/metadata.name": "a-gpu-namespace", installation.namespace_label: "x"}
        wide = [*_CLUSTER_WIDE, *calls_in("a-gpu-namespace", judged)]
        if sent := _sent(webhook, (call for call in wide if not needed(installation.policy, call))):
            bad = True
            message = f"{title}: its rules cover more than the policy needs: {some(sent)}"
            yield Line(level, "reach", message, f"register what the policy needs and nothing else: {REGISTER}")
    if installation.webhooks() and not bad:
        names = ", ".join(critical)
        yield Line("OK", "reach", f"nothing critical is in reach ({names}, cluster-wide objects, pod subresources)")


def controllers(installation: Installation) -> Iterator[Line]:
    """No absence of ours keeps a controller, or an operator that the policy trusts, from replacing a pod (rule 6)."""
    judged = {"kubernetes.io/metadata.name": "a-gpu-namespace", installation.namespace_label: "x"}
    pod = Call("CREATE", "", "v1", "pods", namespace="a-gpu-namespace", namespace_labels=judged)
    users = (*CONTROLLERS, *installation.policy.spec.trusted_controllers)
    for title, webhook in installation.webhooks():
        if webhook.failure_policy == "Ignore" or title.startswith("Mutating"):
            continue
        stopped = [user for user in users if is_sent(webhook, pod._replace(username=user)) is not False]
        if stopped:
            message = f"{title}: failurePolicy Fail also stops controllers that replace pods: {some(stopped)}"
            fix = "register what `gpu-webhook manifests --fail-closed` prints: it leaves controllers on Ignore"
            yield Line("FAIL", "controllers", message, fix)
        else:
            yield Line("OK", "controllers", f"{title}: fails closed for people, not for controllers")


def coverage(installation: Installation) -> Iterator[Line]:
    """Everything that the policy judges is sent to us."""
    policy, bad = installation.policy, False
    for rule in uncovered_rules(policy.spec, installation.namespace_label):
        bad = True
        message = f"rule {rule} selects namespaces without asking for the label {installation.namespace_label}"
        yield Line("FAIL", "coverage", f"{message}: the API server need not send them", _COVER)
    webhooks = installation.webhooks()
    judged = {name: each for name, each in installation.labels().items() if installation.judges(name, each)}
    for phase in CONFIGURATIONS:
        entries = [webhook for title, webhook in webhooks if title.startswith(phase)]
        for namespace, labels in judged.items() if entries else ():
            wanted = [call for call in calls_in(namespace, labels) if needed(policy, call)]
            unsent = [call.what for call in wanted if not any(is_sent(each, call) is not False for each in entries)]
            if unsent:
                bad = True
                message = f"{phase}: the policy covers namespace {namespace}, but is not sent {some(unsent)}"
                yield Line("FAIL", "coverage", message, _COVER)
    if webhooks and not bad:
        yield Line("OK", "coverage", f"all that the policy judges is sent to us, in {len(judged)} namespaces")


_COVER = f"register again with the policy in force: {REGISTER}; other label keys need --namespace-label"


def _sent(webhook: Webhook, calls: Iterable[Call]) -> list[str]:
    """What is sent, or may be: a condition that is not understood does not make anything safe."""
    return [call.what for call in calls if is_sent(webhook, call) is not False]
