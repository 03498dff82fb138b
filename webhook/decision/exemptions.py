"""Who is not judged: exemptions of the policy, break-glass, and how both reach the Pods of a workload (DESIGN 5.7)."""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from webhook.decision.request import Request
from webhook.k8s.objects import ObjectMeta
from webhook.policy.model import Exemption, Spec, duration_seconds

EXEMPT = "gpu.platform/exempt"
BREAK_GLASS = "gpu.platform/break-glass"
_BREAK_GLASS_MARK = "break-glass/"


class Exempted(msgspec.Struct, frozen=True):
    """Why a request is not judged; `mark` is what its template gets as annotation, `ends` is RFC 3339 or empty."""

    kind: Literal["exemption", "break-glass"]
    name: str
    reason: str
    mark: str
    ends: str = ""


def of_request(request: Request, spec: Spec, metadata: ObjectMeta, template: ObjectMeta | None) -> Exempted | None:
    """The exemption that the requesting user, group, service account or namespace has, break-glass included."""
    for exemption in spec.exemptions:
        if in_force(exemption, request.now) and _covers(exemption, request):
            return Exempted("exemption", exemption.name, exemption.reason, exemption.name, _ends(exemption.expires))
    return _break_glass(request, spec, metadata, template) if metadata.annotations else None


def of_mark(mark: str, spec: Spec, now: float) -> Exempted | None:
    """What the annotation on a controller's Pod means, if the exemption it names is still in force."""
    if mark.startswith(_BREAK_GLASS_MARK):
        end = _parse_end(mark)
        if end is not None and end > now:
            return Exempted("break-glass", mark, "", mark, mark.removeprefix(_BREAK_GLASS_MARK))
        return None
    for exemption in spec.exemptions:
        if exemption.name == mark and in_force(exemption, now):
            return Exempted("exemption", exemption.name, exemption.reason, mark, _ends(exemption.expires))
    return None


def in_force(exemption: Exemption, now: float) -> bool:
    return exemption.expires is None or exemption.expires.timestamp() > now


def _covers(exemption: Exemption, request: Request) -> bool:
    """Filled fields are ANDed, values inside one field are ORed; all empty never matches (the loader refuses it)."""
    accounts = {f"system:serviceaccount:{account.replace('/', ':', 1)}" for account in exemption.service_accounts}
    filled = [
        (exemption.users, request.user.name in exemption.users),
        (exemption.groups, not set(exemption.groups).isdisjoint(request.user.groups)),
        (exemption.service_accounts, request.user.name in accounts),
        (exemption.namespaces, request.namespace in exemption.namespaces),
    ]
    return any(values for values, _ in filled) and all(matches for values, matches in filled if values)


def _break_glass(request: Request, spec: Spec, metadata: ObjectMeta, template: ObjectMeta | None) -> Exempted | None:
    """Break-glass is honoured only from the groups that the policy names, whoever wrote the annotation."""
    reason = (metadata.annotations or {}).get(BREAK_GLASS, "").strip()
    if not reason or set(spec.break_glass.groups).isdisjoint(request.user.groups):
        return None
    end = request.now + duration_seconds(spec.break_glass.max_age)
    present = ((template or metadata).annotations or {}).get(EXEMPT, "")
    earlier = _parse_end(present)
    if earlier is not None and earlier <= request.now:
        return None  # it was honoured once, for at most maxAge; renewing it starts with removing the old end
    mark = present if earlier is not None and earlier <= end else _BREAK_GLASS_MARK + _rfc3339(end)
    return Exempted("break-glass", "break-glass", reason, mark, mark.removeprefix(_BREAK_GLASS_MARK))


def _parse_end(mark: str) -> float | None:
    if not mark.startswith(_BREAK_GLASS_MARK):
        return None
    try:
        end = datetime.fromisoformat(mark.removeprefix(_BREAK_GLASS_MARK))
    except ValueError:
        return None
    return end.timestamp() if end.tzinfo else None


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(int(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ends(expires: datetime | None) -> str:
    return _rfc3339(expires.timestamp()) if expires else ""
