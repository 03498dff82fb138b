"""Made-up admission traffic, decided and recorded as the server does it, for replay."""

import copy
import random
from collections.abc import Iterator
from typing import Any

from tests.decision import build
from webhook.audit import record
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import judge
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.policy.active import Policy

Json = dict[str, Any]
USERS: list[Json] = [
    build.ALICE,
    {"username": "bob", "groups": ["oncall"]},
    build.controller("replicaset-controller"),
    build.controller("job-controller"),
]


def clusters(rng: random.Random, count: int) -> list[Snapshot]:
    """Clusters that differ in quota, LimitRange, globalDefault class and in what they can tell."""
    made = []
    for _ in range(count):
        hard, used = rng.choice([4, 8]), rng.choice([0, 2, 4, 6])
        objects: list[Json] = [build.quota(gpu=(str(hard), str(used)))]
        if rng.random() < 0.2:
            objects.append(build.quota("batch", gpu=("2", "1"), scopes={"scopes": ["NotTerminating"]}))
        if rng.random() < 0.2:
            objects.append(build.priority_class("house", 10, default=True))
        if rng.random() < 0.3:
            objects.append(build.workload("Deployment", "grown", 1, {"replicas": 3}))
            objects[-1]["metadata"]["namespace"] = "team-a"
        if rng.random() < 0.1:
            objects = [build.quota(gpu=("8", "6")) | {"status": {}}]
        made.append(build.cluster(*objects))
    return made


def _affinity(rng: random.Random) -> Json:
    zone = build.expressions(("zone", "In", ["a"]))
    pools = build.expressions((build.POOL, "In", rng.choice([["a100"], ["h100"], ["a100", "h100"]])))
    terms = rng.choice([[zone], [zone, pools], [pools], [{}, zone]])
    return {"affinity": build.required(*terms)}


def _object(rng: random.Random, name: str) -> Json:
    spec: Json = {}
    if rng.random() < 0.3:
        spec |= _affinity(rng)
    if rng.random() < 0.2:
        spec["nodeSelector"] = {build.POOL: rng.choice(["a100", "h100"])}
    if rng.random() < 0.3:
        spec["priorityClassName"] = rng.choice(["gpu-research", "gpu-batch", "gpu-high"])
    if rng.random() < 0.1:
        spec["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "four"}]
    gpus = rng.choice([None, 0, 1, 1, 2, 4, 9, "2000m", "500m"])
    kind = rng.choice(["Pod", "Pod", "Deployment", "Deployment", "StatefulSet", "Job", "CronJob", "DaemonSet"])
    if kind == "Pod":
        return build.admitted(build.pod(name, gpus, **spec)) if rng.random() < 0.9 else build.pod(name, gpus, **spec)
    amount = {"parallelism": rng.randint(1, 4)} if kind in ("Job", "CronJob") else {"replicas": rng.randint(0, 5)}
    return build.workload(kind, name, gpus, {} if kind == "DaemonSet" else amount, **spec)


def _changed(rng: random.Random, obj: Json) -> Json:
    """What somebody made of an object: nothing but a label, another image, other amounts."""
    new = copy.deepcopy(obj)
    new["metadata"]["labels"] = {"touched": "yes"}
    choice = rng.random()
    if choice < 0.3:
        build.pod_spec(new)["containers"][0]["image"] = "other"
    elif choice < 0.5 and "replicas" in new["spec"]:
        new["spec"]["replicas"] += 1
    elif choice < 0.6:
        new["metadata"]["finalizers"], new["metadata"]["deletionTimestamp"] = [], "2026-12-01T00:00:00Z"
    return new


def decided(rng: random.Random, policy: Policy, snapshot: Snapshot, number: int) -> Iterator[tuple[Request, Decision]]:
    """What the API server sends for one thing that somebody does, and our answers: both phases, an update, a scale."""
    obj = _object(rng, f"w{number % 400}")
    more: Json = {"user": rng.choice(USERS), "dryRun": rng.random() < 0.05, "now": build.NOW + number}

    def asked(request: Request) -> tuple[Request, Decision]:
        return request, judge(request, policy, snapshot)

    if rng.random() < 0.1:
        kind, name = rng.choice([("deployments", "grown"), ("deployments", "unknown"), ("statefulsets", "unknown")])
        yield asked(build.scale(rng.randint(0, 9), 3, name, kind, uid=f"u{number}", **more))
        return
    if rng.random() < 0.3 and obj["kind"] != "Pod":
        yield asked(build.request(_changed(rng, obj), "UPDATE", obj, uid=f"u{number}", **more))
        return
    request, decision = asked(build.request(obj, uid=f"u{number}", **more))
    yield request, decision
    stored = build.patched(obj, decision)
    yield asked(build.request(stored, phase="validate", uid=f"v{number}", **more))
    if obj["kind"] != "Pod" and rng.random() < 0.5:
        yield asked(build.request(_changed(rng, stored), "UPDATE", stored, uid=f"x{number}", **more))


def lines(seed: int, count: int, policy: Policy) -> Iterator[bytes]:
    """About `count` recorded decisions of a policy, one line each."""
    rng = random.Random(seed)
    sources = clusters(rng, 20)
    made = number = 0
    while made < count:
        number += 1
        for request, decision in decided(rng, policy, rng.choice(sources), number):
            yield record.encode(request, decision, policy.name, policy.revision, 0.5)
            made += 1
