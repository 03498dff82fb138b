"""Recorded decisions for `policy replay`, each of which the policy beside them can judge again."""

from itertools import cycle, islice
from pathlib import Path

import msgspec

from tests.audit import traffic
from tests.decision import build
from webhook.audit.replay import Replayer

VARIANTS = 4000
"""Different decisions; making more up takes longer than replaying them."""


def write(folder: Path, count: int) -> tuple[Path, Path]:
    """A folder of records and the folder of the policy that was in force."""
    policy = build.policy(breakGlass={"groups": ["oncall"]})
    lines = list(traffic.lines(1, VARIANTS, policy))
    found = Replayer(policy).judge(lines)
    assert found.in_force == found.judged == len(lines) and not found.mismatches
    policies, audit = folder / "replayed-policy", folder / "replayed"
    for made in (policies, audit):
        made.mkdir()
    (policies / "policy.yaml").write_bytes(msgspec.json.encode(policy.document))
    with (audit / "records.jsonl").open("wb") as file:
        file.writelines(line + b"\n" for line in islice(cycle(lines), count))
    return audit, policies
