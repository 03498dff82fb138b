"""The last 24 hours at 1-minute steps: what was requested, refused, and idle, in a file of bounded size."""

from collections.abc import Mapping
from typing import Any

import msgspec

from webhook.exporter.decisions import MINUTES, Tally

STEP_SECONDS = 60


class Gauges(msgspec.Struct, frozen=True, rename="camel", array_like=True):
    """What a minute looked like when it was last sampled."""

    gpu_requested: float
    gpu_quota: float
    pending_pods: int
    idle_cost: float


class History(msgspec.Struct):
    """Minute since the epoch -> gauges; never more than a day."""

    minutes: dict[int, Gauges] = {}

    def sample(self, minute: int, summary: Mapping[str, Any]) -> None:
        """Remember the summary of a status; the last sample of a minute counts."""
        self.minutes[minute] = Gauges(
            gpu_requested=summary["gpuRequested"],
            gpu_quota=summary["gpuQuota"],
            pending_pods=summary["pendingPods"],
            idle_cost=summary["estimatedIdleCostPerHour"],
        )
        for old in [at for at in self.minutes if at <= minute - MINUTES]:
            del self.minutes[old]

    def document(self, minute: int, tally: Tally) -> dict[str, Any]:
        """Columns over the minutes of the last day that have anything to show; null where nothing was sampled."""
        since = minute - MINUTES
        known = sorted({at for at in (*self.minutes, *tally.minutes) if since < at <= minute})
        gauges = [self.minutes.get(at) for at in known]
        counts = [tally.minutes.get(at, (0, 0)) for at in known]
        return {
            "stepSeconds": STEP_SECONDS,
            "time": [at * STEP_SECONDS for at in known],
            "gpuRequested": [g.gpu_requested if g else None for g in gauges],
            "gpuQuota": [g.gpu_quota if g else None for g in gauges],
            "pendingPods": [g.pending_pods if g else None for g in gauges],
            "idleCostPerHour": [g.idle_cost if g else None for g in gauges],
            "admitted": [count[0] for count in counts],
            "denied": [count[1] for count in counts],
        }
