"""Requests from the recorded reviews, decisions made by hand, and small ledgers to tamper with."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from webhook.audit import record
from webhook.audit.ledger import Ledger
from webhook.decision.request import Object, Phase, Request, User, decision_id
from webhook.decision.result import Decision, Finding, PatchOperation, Verdict
from webhook.k8s.objects import Pod, Scale, Workload

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
NOW = 1796112930.1239  # 2026-12-01T08:15:30.123Z
REVISION = "sha256:" + "ab" * 32
WORKLOADS = frozenset(
    {"Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "DaemonSet", "Job", "CronJob"}
)


def typed(kind: str, value: Any) -> Object | None:
    """An object of a review as the server decodes it."""
    if value is None:
        return None
    if kind == "Pod":
        return msgspec.json.decode(json.dumps(value), type=Pod)
    if kind == "Scale":
        return msgspec.json.decode(json.dumps(value), type=Scale)
    return msgspec.json.decode(json.dumps(value), type=Workload) if kind in WORKLOADS else None


def request_of(phase: Phase, review: dict[str, Any], now: float = NOW) -> Request:
    asked = review["request"]
    kind = asked["kind"]["kind"]
    return Request(
        id=decision_id(asked["uid"], phase),
        uid=asked["uid"],
        phase=phase,
        operation=asked["operation"],
        **asked["kind"],
        resource=asked["resource"]["resource"],
        now=now,
        sub_resource=asked.get("subResource"),
        namespace=asked.get("namespace", ""),
        name=asked.get("name", ""),
        user=User(asked["userInfo"]["username"], tuple(asked["userInfo"].get("groups", ()))),
        dry_run=asked["dryRun"],
        object=typed(kind, asked["object"]),
        old_object=typed(kind, asked["oldObject"]),
    )


@cache
def golden(scenario: str) -> tuple[Request, ...]:
    """The requests of one recorded scenario, in order."""
    recorded = json.loads((GOLDEN / f"{scenario}.json").read_text())
    return tuple(request_of(each["phase"], each["review"]) for each in recorded["reviews"])


def all_golden() -> Iterator[Request]:
    for path in sorted(GOLDEN.glob("*.json")):
        yield from golden(path.stem)


def decision_for(request: Request, verdict: Verdict = "allow", **changes: Any) -> Decision:
    plain: dict[str, Any] = {"rule": "training", "facts": {"namespaceLabels": {"gpu.platform/team": "training"}}}
    return Decision(id=request.id, verdict=verdict, **(plain | changes))


def body(
    number: int = 1,
    verdict: Verdict = "allow",
    *,
    namespace: str = "ai-training",
    kind: str = "Deployment",
    name: str = "",
    user: str = "alice",
    phase: Phase = "validate",
    dry_run: bool = False,
    code: str | None = None,
    rule: str | None = "training",
    now: float = NOW,
    latency_ms: float = 0.5,
    message: str = "",
) -> bytes:
    """The body of a small record."""
    uid = f"uid-{number}"
    request = Request(
        id=decision_id(uid, phase),
        uid=uid,
        phase=phase,
        operation="CREATE",
        group="" if kind == "Pod" else "apps",
        version="v1",
        kind=kind,
        resource=f"{kind.lower()}s",
        now=now,
        namespace=namespace,
        name=name or f"train-{number}",
        user=User(user, ("system:authenticated",)),
        dry_run=dry_run,
    )
    code = code or {"deny": "QuotaExceeded", "patch": "PoolInjected", "allow": None}[verdict]
    findings = (Finding(code, message or f"about {number}"),) if code else ()
    patch = (PatchOperation("add", "/spec/priorityClassName", "gpu-training"),) if verdict == "patch" else ()
    denial = (
        f"{findings[0].message}\n  to fix     ask for at most 1\n  decision   {request.id}" if verdict == "deny" else ""
    )
    gpu = {"nvidia.com/gpu": "1"}
    decision = decision_for(request, verdict, rule=rule, message=denial, findings=findings, patch=patch, gpu=gpu)
    return record.encode(request, decision, "default", REVISION, latency_ms)


def write_stream(
    directory: Path, count: int, *, host: str = "pod", segment_bytes: int = 1 << 20, closed: bool = True, **options: Any
) -> str:
    """A stream of so many records; its name. Not closed: as if the process had been killed."""
    ledger = Ledger(directory, host=host, segment_bytes=segment_bytes, **options)
    for number in range(1, count + 1):
        assert ledger.append(body(number, "deny" if number % 5 == 0 else "allow"))
    if closed:
        ledger.close()
    else:
        ledger.checkpoint()
        abandon(ledger)
    return ledger.stream


def abandon(ledger: Ledger) -> None:
    """End a ledger's threads and files as a kill would leave them: without a closing checkpoint."""
    ledger._sign = lambda kind: None  # type: ignore[method-assign]
    ledger.close()
