"""The codes of everything a decision may notice (DESIGN 5.3), and the list in which one decision collects them."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from webhook.decision.result import Finding

Level = Literal["deny", "warn", "note"]

CODES = (
    "PoolInjected",
    "PriorityInjected",
    "TolerationInjected",
    "PoolConflict",
    "PriorityConflict",
    "PriorityClassMissing",
    "NodeNameOutsidePool",
    "NotPlaced",
    "QuotaExceeded",
    "QuotaNeverFits",
    "QuotaMustSpecify",
    "QuotaUnknown",
    "QuotaKeyIneffective",
    "QuotaFreeing",
    "RolloutSurge",
    "AutoscalerCeiling",
    "ScaleParentUnknown",
    "ClaimsNotCounted",
    "Exempt",
    "ExemptionRemoved",
    "BreakGlass",
    "Deleting",
    "NotGpu",
    "NoRule",
    "SubresourceIgnored",
    "ControllerPod",
    "OverBudget",
    "PoolEmpty",
    "PolicyDrift",
    "ResourceUnusable",
    "FactsUnknown",
    "NoRoomNow",
    "InternalError",
)
"""Never renamed; new ones are added to the table in docs/policy.md."""


class Note(msgspec.Struct, frozen=True):
    """A finding with its weight: what denies, what warns the user, and what only the record tells.

    `rows` are the labelled lines of a denial (label key, text); `headline` is its first line.
    """

    code: str
    headline: str
    level: Level = "note"
    rows: Sequence[tuple[str, str]] = ()


class Notes(msgspec.Struct):
    """What one decision has noticed so far, in order."""

    items: list[Note] = []

    def add(self, code: str, headline: str, level: Level = "note", rows: Sequence[tuple[str, str]] = ()) -> None:
        self.items.append(Note(code, headline, level, rows))

    @property
    def denials(self) -> list[Note]:
        return [each for each in self.items if each.level == "deny"]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple([Finding(each.code, each.headline) for each in self.items])
