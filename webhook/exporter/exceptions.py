"""Who is not judged at present: exemptions of the policy, and workloads that carry one or broke the glass."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from webhook.exporter.view import ClusterView
from webhook.k8s.workloads import template_of
from webhook.policy.active import Policy

EXEMPT = "gpu.platform/exempt"
BREAK_GLASS = "break-glass/"
LIMIT = 500  # workloads that are listed


def exceptions_of(view: ClusterView, policy: Policy, now: datetime) -> dict[str, Any]:
    """`entries`: the policy's exemptions; `workloads`: what carries one, with the time at which it ends."""
    entries = [
        {
            "name": entry.name,
            "reason": entry.reason,
            "who": [*entry.users, *entry.groups, *entry.service_accounts],
            "namespaces": list(entry.namespaces),
            "expires": _text(entry.expires),
            "active": entry.expires is None or entry.expires > now,
        }
        for entry in policy.spec.exemptions
    ]
    ends = {entry.name: _text(entry.expires) for entry in policy.spec.exemptions}
    found = [_workload(place, name, mark, ends, now) for place, name, mark in _marks(view)]
    found.sort(key=lambda one: (not one["active"], one["ends"] or "9", one["namespace"], one["object"]))
    return {"entries": entries, "workloads": found[:LIMIT], "breakGlassGroups": list(policy.spec.break_glass.groups)}


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _marks(view: ClusterView) -> Iterable[tuple[str, str, str]]:
    """(namespace, object, mark) of every template that carries one; pods only where nothing owns them."""
    for workload in view.workloads:
        template = template_of(workload)
        annotations: Mapping[str, str] = (template.metadata.annotations or {}) if template and template.metadata else {}
        if EXEMPT in annotations and workload.metadata.controller is None:
            yield workload.metadata.namespace, f"{workload.kind.lower()}/{workload.metadata.name}", annotations[EXEMPT]
    for pod in view.pods:
        annotations = pod.metadata.annotations or {}
        if EXEMPT in annotations and pod.metadata.controller is None:
            yield pod.metadata.namespace, f"pod/{pod.metadata.name}", annotations[EXEMPT]


def _workload(namespace: str, what: str, mark: str, ends: Mapping[str, str | None], now: datetime) -> dict[str, Any]:
    is_break_glass = mark.startswith(BREAK_GLASS)
    end = mark.removeprefix(BREAK_GLASS) if is_break_glass else ends.get(mark)
    known = is_break_glass or mark in ends  # an entry that left the policy excuses nobody
    return {
        "namespace": namespace,
        "object": what,
        "kind": "breakGlass" if is_break_glass else "exemption",
        "name": "" if is_break_glass else mark,
        "ends": end,
        "active": known and not _is_past(end, now),
    }


def _is_past(end: str | None, now: datetime) -> bool:
    """Whether a time has come; a text that is no time counts as past, a missing one as never."""
    if end is None:
        return False
    try:
        moment = datetime.fromisoformat(end)
    except ValueError:
        return True
    return moment.replace(tzinfo=moment.tzinfo or UTC) <= now
