"""Judging manifests and AdmissionReviews in order against a snapshot: what `review` and `policy test` share."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:  # everything heavy is imported when a command runs, so that --help is quick
    from webhook.cluster.snapshot import Snapshot
    from webhook.decision.request import Phase, Request, User
    from webhook.decision.result import Decision, PatchOperation
    from webhook.policy.active import Policy

Manifest = dict[str, Any]

FACTS = frozenset({"Namespace", "ResourceQuota", "LimitRange", "PriorityClass", "Node", "HorizontalPodAutoscaler"})
"""Kinds that become facts wherever they stand among the inputs, and are not judged."""


class Judged(NamedTuple):
    """One object and its answer. `request` and `decision` are None for a kind that is not judged: it is allowed.

    `stored` is the object with the API's defaults, before our patch.
    """

    manifest: Manifest
    stored: Manifest
    request: "Request | None" = None
    decision: "Decision | None" = None

    @property
    def verdict(self) -> str:
        return self.decision.verdict if self.decision is not None else "allow"

    @property
    def patched(self) -> Manifest:
        """The object with our patch: what would be stored if it is not denied."""
        return apply_patch(self.stored, self.decision.patch if self.decision is not None else ())


def apply_patch(manifest: Manifest, patch: "Iterable[PatchOperation]") -> Manifest:
    """The manifest after a patch; RFC 6902, strictly, as the API server applies it."""
    import jsonpatch
    import msgspec

    operations = msgspec.json.decode(msgspec.json.encode(list(patch)))  # as it would come off the wire
    if not operations:
        return manifest
    return cast(Manifest, jsonpatch.JsonPatch(operations).apply(manifest))


def is_fact(manifest: Manifest) -> bool:
    from webhook.cluster.kinds import kind_of

    kind = kind_of(str(manifest.get("apiVersion") or ""), str(manifest.get("kind")))
    return kind is not None and kind.name in FACTS


def with_status(manifest: Manifest, snapshot: "Snapshot", now: float) -> Manifest:
    """A ResourceQuota that has no status yet, as the quota controller will fill it in; everything else as it is.

    `used` is what a quota of that name has now, else what the pods of its namespace use. Only for objects that are to
    be created: in a cluster a quota without status is not computed yet, and unknown (Q5). Raises SnapshotError.
    """
    from webhook.cluster.snapshot import Snapshot
    from webhook.k8s.quantity import canonical
    from webhook.k8s.quota import pod_use, used

    if manifest.get("kind") != "ResourceQuota" or manifest.get("apiVersion") != "v1" or manifest.get("status"):
        return manifest
    metadata = manifest.get("metadata") or {}
    namespace = metadata.get("namespace") or "default"
    (quota,) = Snapshot.from_objects([manifest]).current().quotas(namespace) or ()
    facts = snapshot.current()
    pods = [use for pod in facts.pods(namespace) or () if not (use := pod_use(pod)).finished]
    counted = {key: canonical(amount) for key, amount in used(quota, pods, now).items()}
    known = next((each for each in facts.quotas(namespace) or () if each.metadata.name == metadata.get("name")), None)
    counted.update({key: value for key, value in ((known and known.status.used) or {}).items() if key in counted})
    return {**manifest, "status": {"hard": dict(quota.spec.hard or {}), "used": counted}}


def judge_all(
    manifests: Iterable[Manifest],
    policy: "Policy",
    snapshot: "Snapshot",
    user: "User",
    now: float,
    namespace: str = "",
    phase: "Phase" = "mutate",
    old: Manifest | None = None,
) -> Iterator[Judged]:
    """Judge objects one after another as CREATEs; with `old` the last one is an UPDATE of it.

    Facts among them count for all. An admitted object uses up quota for those after it. AdmissionReviews are judged as
    they are. Raises `webhook.decision.offline.ManifestError`, `webhook.cluster.snapshot.SnapshotError` and
    `webhook.server.wire.WireError`.
    """
    from webhook.decision.engine import judge
    from webhook.decision.offline import charges, kind_of, request_of

    every = list(manifests)
    facts = [each for each in every if is_fact(each)]
    snapshot = snapshot.with_objects(facts) if facts else snapshot
    objects = [each for each in every if not is_fact(each)]
    for number, manifest in enumerate(objects, 1):
        if manifest.get("kind") == "AdmissionReview":
            request, stored = _review(manifest, phase, now)
        elif kind_of(manifest) is None:
            yield Judged(manifest, manifest)
            continue
        else:
            before = old if number == len(objects) else None
            request, stored = request_of(
                manifest, snapshot.current(), user=user, now=now, namespace=namespace, phase=phase, old=before
            )
        judged = Judged(manifest, stored, request, judge(request, policy, snapshot))
        yield judged
        if judged.verdict != "deny" and request.operation == "CREATE" and manifest.get("kind") != "AdmissionReview":
            usage = charges(judged.patched, snapshot.current(), request.namespace)
            snapshot = snapshot.with_usage(request.namespace, usage)


def asked_of(judged: "Iterable[Judged]", snapshot: "Snapshot") -> dict[tuple[str, str, str], tuple[Any, Any, Any]]:
    """What all objects together ask of each quota key: (namespace, quota, key) -> (hard, used before, asked).

    Refused objects count too: the table shows what the set as a whole would need.
    """
    from webhook.decision.offline import charges

    facts = snapshot.current()
    asked: dict[tuple[str, str, str], tuple[Any, Any, Any]] = {}
    for each in judged:
        if each.request is None or each.request.operation != "CREATE" or each.manifest.get("kind") == "AdmissionReview":
            continue
        namespace = each.request.namespace
        status = {quota.metadata.name: quota.status for quota in facts.quotas(namespace) or ()}
        for name, amounts in charges(each.patched, facts, namespace).items():
            for key, amount in amounts.items():
                hard, used = (status[name].hard or {}).get(key), (status[name].used or {}).get(key)
                before = asked.get((namespace, name, key), (hard, used, 0))
                asked[namespace, name, key] = (hard, used, before[2] + amount)
    return asked


def _review(manifest: Manifest, phase: "Phase", now: float) -> "tuple[Request, Manifest]":
    import msgspec

    from webhook.server.wire import decode

    request = decode(msgspec.json.encode(manifest), phase, now)
    return request, (manifest.get("request") or {}).get("object") or {}
