"""Audit streams of any length for benchmarks: `python -m tests.bench.records DIR COUNT`.

The records are those of real reviews (about 1.6 KB), spread over namespaces, users, rules and verdicts, a second for
every 200, as one busy replica writes them.
"""

import sys
from itertools import cycle, islice
from pathlib import Path

import msgspec

from tests.audit.samples import NOW, REVISION, decision_for, golden
from webhook.audit import record
from webhook.audit.ledger import Ledger
from webhook.decision.request import Phase, User
from webhook.decision.result import Finding, PatchOperation, Verdict
from webhook.k8s.objects import ObjectMeta, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus

PER_SECOND = 200
VARIANTS = 1000

_TIME = len('{"schema":"gpu.platform/audit.v1","time":"')
_OUTCOMES: tuple[tuple[Phase, Verdict, str], ...] = (
    *[("mutate", "patch", "PoolInjected")] * 9,
    *[("validate", "allow", "")] * 9,
    ("mutate", "deny", "QuotaExceeded"),
    ("mutate", "deny", "PoolConflict"),
)


def bodies() -> list[bytes]:
    """Different bodies, enough that nothing in a reader can be cached."""
    return [_body(number, *outcome) for number, outcome in enumerate(islice(cycle(_OUTCOMES), VARIANTS))]


def _body(number: int, phase: Phase, verdict: Verdict, code: str) -> bytes:
    team = ("training", "inference", "research")[number % 3]
    request = msgspec.structs.replace(
        golden("pod-create")[0],
        phase=phase,
        uid=f"00000000-0000-4000-8000-{number:012d}",
        namespace=f"ai-{team}-{number % 40}",
        name=f"worker-{number}",
        user=User(f"user-{number % 97}@example.com", ("ml-engineers", "system:authenticated")),
    )
    quota = ResourceQuota(
        ObjectMeta(name=f"{team}-gpu-quota"),
        ResourceQuotaSpec({"requests.nvidia.com/gpu": "6"}),
        ResourceQuotaStatus({"requests.nvidia.com/gpu": "6"}, {"requests.nvidia.com/gpu": "5"}),
    )
    decision = decision_for(
        request,
        verdict,
        rule=team,
        findings=(Finding(code, f"GPU quota exceeded in namespace ai-{team}: asks for 2, free 1 of 6"),)
        if code
        else (),
        patch=(PatchOperation("add", "/spec/priorityClassName", f"gpu-{team}"),) if verdict == "patch" else (),
        gpu={"nvidia.com/gpu": "2"},
        asks={"nvidia.com/gpu": "2"},
        facts={"namespaceLabels": {"gpu.platform/team": team}, "quotas": [quota], "limitRanges": [], "waiting": []},
    )
    return record.encode(request, decision, "default", REVISION, 0.3 + number % 70 / 50)


def write(directory: Path, count: int, **options: int) -> None:
    """A closed stream of so many records; about 10 microseconds each."""
    made = bodies()
    with Ledger(directory, host="bench", keep_segments=1_000_000, **options) as ledger:
        for number in range(count):
            body = made[number % VARIANTS]
            time = record.timestamp(NOW + number / PER_SECOND).encode()
            if not ledger.append(body[:_TIME] + time + body[_TIME + len(time) :]):
                raise OSError(ledger.state().degraded)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
