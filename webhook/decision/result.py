"""What `decide` answers: a verdict, the findings behind it, the patch, and the facts that were used."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from webhook.decision.facts import Note
from webhook.decision.request import TemplateChange

Verdict = Literal["allow", "patch", "deny"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that a decision noticed; `code` is one of DESIGN 5.3, `message` one line in the policy's language."""

    code: str
    message: str


class PatchOperation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One RFC 6902 operation; `value` is absent for `remove`."""

    op: Literal["add", "remove", "replace"]
    path: str
    value: Any = msgspec.UNSET


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a Request.

    `verdict` is what is answered; `would` what enforce mode would have answered where that differs (warn, audit).
    `message` is the denial's text (5.4), also when it was only a warning. `warnings` are single lines of at most 256
    characters. `gpu` is what the object wants in all, `asks` the increase: resource name -> canonical quantity. `facts`
    are the answers that were used, as audit records keep them. `stale` says that a quota denial rests on facts that are
    not fresh: the caller reads fresh facts and asks once more (rule 3). `note` is what an allowed `/validate` admits.
    """

    id: str
    verdict: Verdict
    would: Verdict | None = None
    rule: str | None = None
    mode: str = "enforce"
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: tuple[PatchOperation, ...] = ()
    message: str = ""
    gpu: Mapping[str, str] = {}
    asks: Mapping[str, str] = {}
    facts: Mapping[str, Any] = {}
    template_change: TemplateChange | None = None
    class_chosen: bool | None = None
    stale: bool = False
    note: Note | None = None
