"""Doctor's questions that only a live cluster answers: API version, clocks, permissions, what each replica runs."""

import re
import time
from collections.abc import Collection, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from webhook.cluster import kinds
from webhook.cluster.api import Api, ApiError
from webhook.cluster.installation import Installation, Level, Line, own_pods, some
from webhook.policy.registration import NAME

TIMEOUT = 5.0
OLDEST = 28
"""The first minor version of Kubernetes 1 in which match conditions are on, without which W21 and B60 are not kept."""
SKEW = 5.0
"""Seconds between two clocks from which people reading records are misled; the Date header counts whole seconds."""
GRAVE_SKEW = 60.0
"""Seconds from which certificates that were just made are refused as not yet valid."""
DAY = 86400.0
EXPORTER = f"{NAME}-exporter"

Need = tuple[str, str, str]
"""API group, resource (say `pods/log`), verb."""

TOO_MUCH = (
    *(("", "secrets", "get"), ("", "secrets", "list"), ("", "pods", "create"), ("", "pods", "delete")),
    *(("", "nodes", "update"), ("apps", "deployments", "update"), ("*", "*", "*")),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "patch"),
)
"""What neither account must be allowed: both read, and nothing in them writes."""


def examine_live(api: Api, installation: Installation, exporter_needs: Collection[Need]) -> Iterator[Line]:
    """All answers that need the API server. Raises ApiError only if it does not answer at all."""
    body, headers = api.call("GET", "/version", timeout=TIMEOUT)
    yield _version(body)
    yield from _clock("the API server", headers)
    needs = [(group, plural, verb) for (group, plural), verbs in kinds.permissions().items() for verb in sorted(verbs)]
    yield from permissions(api, installation.namespace, NAME, needs)
    if api.context != "in-cluster" and _has_exporter(installation):  # a pod may ask about itself alone
        yield from permissions(api, installation.namespace, EXPORTER, exporter_needs)
    yield from running(api, installation)


def _version(body: bytes) -> Line:
    told = msgspec.json.decode(body)
    text = str(told.get("gitVersion", "?"))
    minor = re.search(r"^v?1\.(\d+)", text)
    if minor is None:
        return Line("WARN", "version", f"the API server calls itself {text}", "see that it is Kubernetes 1.28 or later")
    if int(minor[1]) < OLDEST:
        message = f"the API server is {text}: match conditions are not on by default before 1.{OLDEST}"
        return Line(
            "FAIL", "version", message, "upgrade: without them ReplicaSets and objects being deleted are sent to us"
        )
    return Line("OK", "version", f"the API server is {text}")


def _clock(whose: str, headers: Mapping[str, str]) -> Iterator[Line]:
    """Compare a Date header that has just come with the clock here."""
    date = next((value for key, value in headers.items() if key.lower() == "date"), None)
    if date is None:
        return
    try:
        skew = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    except ValueError:
        return
    if abs(skew) <= SKEW:
        yield Line("OK", "clock", f"the clock of {whose} agrees with the one here")
        return
    level: Level = "FAIL" if abs(skew) > GRAVE_SKEW else "WARN"
    message = f"the clock of {whose} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the one here"
    yield Line(level, "clock", message, "let both follow NTP: records, exemptions and certificates depend on it")


# -- permissions ------------------------------------------------------------------------------------------------------


def permissions(api: Api, namespace: str, name: str, wanted: Collection[Need]) -> Iterator[Line]:
    """An account of ours may do what it needs, and not what it must not."""
    account = f"system:serviceaccount:{namespace}:{name}"
    try:
        missing = [_spoken(*each) for each in wanted if not _allowed(api, account, *each)]
        excess = [_spoken(*each) for each in TOO_MUCH if _allowed(api, account, *each)]
    except ApiError as error:
        fix = f"kubectl auth can-i --list --as={account}"
        yield Line("WARN", "permissions", f"what {account} may do cannot be asked: {error}", fix)
        return
    grant = "kubectl apply -k deploy/base: deploy/base/rbac.yaml says what it needs"
    if missing:
        yield Line("FAIL", "permissions", f"{account} may not {some(missing)}", grant)
    if excess:
        fix = "remove the binding that allows it (kubectl get clusterrolebindings,rolebindings -A -o wide)"
        yield Line("WARN", "permissions", f"{account} may {some(excess)}, which it does not need", fix)
    if not missing and not excess:
        yield Line("OK", "permissions", f"{account} may read what it needs, and no more")


def _allowed(api: Api, account: str, group: str, resource: str, verb: str) -> bool:
    """As the account itself where we run as it, else by asking about it."""
    namespace = account.split(":")[2]
    main, _, sub = resource.partition("/")
    attributes = {"group": group, "resource": main, "verb": verb}
    if sub:  # of pods of our own namespace
        attributes |= {"subresource": sub, "namespace": namespace}
    spec: dict[str, Any] = {"resourceAttributes": attributes}
    kind = "SelfSubjectAccessReview"
    if api.context != "in-cluster":
        kind = "SubjectAccessReview"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        spec |= {"user": account, "groups": groups}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer, _ = api.call("POST", f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body=body, timeout=TIMEOUT)
    return bool((msgspec.json.decode(answer).get("status") or {}).get("allowed"))


def _has_exporter(installation: Installation) -> bool:
    wanted = (installation.namespace, EXPORTER)
    found = (item["metadata"] for item in installation.raw("Deployment"))
    return any((each.get("namespace"), each["name"]) == wanted for each in found)


def _spoken(group: str, resource: str, verb: str) -> str:
    return f"{verb} {resource}" + (f".{group}" if group else "")


# -- what each replica runs -------------------------------------------------------------------------------------------


class _Replica(NamedTuple):
    """One pod's metrics: name -> [(labels, value)]."""

    name: str
    metrics: Mapping[str, list[tuple[Mapping[str, str], float]]]

    def value(self, metric: str, **labels: str) -> float | None:
        found = (value for given, value in self.metrics.get(metric, ()) if labels.items() <= given.items())
        return next(found, None)

    def label(self, metric: str, name: str) -> str | None:
        return next((labels.get(name) for labels, _ in self.metrics.get(metric, ())), None)


def running(api: Api, installation: Installation) -> Iterator[Line]:
    """Every replica runs the same policy, knows the cluster, and serves a certificate with time left (B54, B71)."""
    replicas = []
    for pod in own_pods(installation.raw("Pod"), installation.namespace):
        if (pod.get("status") or {}).get("phase") != "Running":
            continue
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{installation.namespace}/pods/https:{name}:{_port(pod)}/proxy/metrics"
        try:
            body, headers = api.call("GET", path, timeout=TIMEOUT)
            replicas.append(_Replica(name, _metrics(body.decode(errors="replace"))))
        except (ApiError, ValueError) as error:
            fix = f"kubectl -n {installation.namespace} port-forward pod/{name} 8443, then curl -k https://localhost:8443/readyz"
            yield Line("WARN", "replica", f"pod {name} cannot be asked through the API server: {error}", fix)
            continue
        yield from _clock(f"pod {name}", headers)
        yield from _state(replicas[-1])
    if replicas:
        yield _revisions(replicas, installation.policy.revision)


def _port(pod: Mapping[str, Any]) -> int:
    ports = [port for each in (pod.get("spec") or {}).get("containers") or () for port in each.get("ports") or ()]
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "https"), 8443)


def _metrics(text: str) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    """Raises ValueError for what is not Prometheus' text format."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _state(replica: _Replica) -> Iterator[Line]:
    bad = list(_bad_state(replica))
    yield from bad
    if not bad:
        left = replica.value("gpu_webhook_certificate_seconds_left", certificate="leaf")
        until = "" if left is None else f"; its certificate has {left / DAY:.0f} days left ({left:.0f} s)"
        yield Line("OK", "replica", f"pod {replica.name} is well{until}")


def _bad_state(replica: _Replica) -> Iterator[Line]:
    if replica.value("gpu_webhook_policy_load_ok") == 0:
        fix = "gpu-webhook policy lint on the files of its ConfigMap; its log names file and line"
        yield Line(
            "FAIL", "replica", f"pod {replica.name} refused the policy files that lie there and keeps an older one", fix
        )
    if replica.value("gpu_webhook_facts_synced") == 0:
        yield Line(
            "FAIL",
            "replica",
            f"pod {replica.name} has never known the cluster",
            "its /readyz tells what it cannot read",
        )
    for certificate in ("leaf", "ca"):
        left = replica.value("gpu_webhook_certificate_seconds_left", certificate=certificate)
        if left is not None and left < 7 * DAY:
            level: Level = "FAIL" if left < DAY else "WARN"
            what = "the certificate it serves" if certificate == "leaf" else "the authority it trusts"
            message = f"pod {replica.name}: {what} ends in {left / DAY:.1f} days ({left:.0f} s)"
            yield Line(level, "replica", message, "gpu-webhook certs ensure; then see why nothing renewed it")


def _revisions(replicas: list[_Replica], ours: str) -> Line:
    """One revision on all replicas, and the one of the files given."""
    by_revision: dict[str, list[str]] = {}
    for replica in replicas:
        revision = replica.label("gpu_webhook_policy_info", "revision") or "unknown"
        by_revision.setdefault(revision, []).append(replica.name)
    if len(by_revision) > 1:
        each = "; ".join(f"{revision[:19]} on {some(names)}" for revision, names in sorted(by_revision.items()))
        fix = "wait a minute after an edit of the ConfigMap; if it stays so, restart the pods that are behind"
        return Line("FAIL", "revision", f"the replicas run different policies: {each}", fix)
    (running_revision,) = by_revision
    if running_revision != ours:
        message = f"all replicas run {running_revision[:19]}, the files given are {ours[:19]}"
        return Line("WARN", "revision", message, "apply the policy ConfigMap, or give doctor the folder it came from")
    return Line("OK", "revision", f"all {len(replicas)} replicas run the policy of the files given ({ours[:19]})")
