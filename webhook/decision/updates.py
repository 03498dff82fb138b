"""What an UPDATE did to a workload's template, apart from what we ourselves had put there (DESIGN 5.7, H9, H10)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from webhook.decision import injected, placement
from webhook.decision.answers import UndecidableError
from webhook.decision.injected import Injected
from webhook.decision.request import Request, TemplateChange
from webhook.k8s.objects import PodSpec

_NULL = msgspec.Raw(b"null")


class _RawTemplateHolder(msgspec.Struct):
    template: msgspec.Raw = _NULL


class _RawSpec(msgspec.Struct, rename="camel"):
    template: msgspec.Raw = _NULL
    job_template: "_RawJobTemplate | None" = None


class _RawJobTemplate(msgspec.Struct):
    spec: _RawTemplateHolder | None = None


class _RawObject(msgspec.Struct):
    spec: _RawSpec | None = None


_ABSENT: tuple[Any, ...] = (None, [])

_decoder = msgspec.json.Decoder(_RawObject)


def template_change(
    request: Request, new: PodSpec, old: PodSpec, records: Sequence[Injected | None], pool_label: str
) -> TemplateChange:
    """How the new template differs from the old one.

    "same": not at all; "dropped": only by what `records` name (a client left out some or all of our fields, so the old
    template is put back byte for byte); "changed": in anything else, metadata included. A replayed request brings the
    answer that was recorded, because its raw JSON was not.
    """
    if request.template_change is not None:
        return request.template_change
    if request.replayed:
        raise UndecidableError("input.template")
    new_raw, old_raw = _template(request.raw_object), _template(request.raw_old_object)
    if new_raw == old_raw:
        return "same"
    new_tree, old_tree = msgspec.json.decode(new_raw), msgspec.json.decode(old_raw)
    if _same(new_tree, old_tree):
        return "same"
    if not _same(_without_placement(new_tree), _without_placement(old_tree)):
        return "changed"
    stripped = (injected.strip(placement.of(spec), records, pool_label) for spec in (new, old))
    return "dropped" if placement.same(*stripped) else "changed"


def _template(raw: bytes | None) -> bytes:
    """The raw JSON of the pod template: `spec.template`, or the job template's one level down (P12)."""
    spec = _decoder.decode(raw).spec if raw else None
    if spec is None:
        return b"null"
    if spec.job_template is not None and spec.job_template.spec is not None:
        return bytes(spec.job_template.spec.template)
    return bytes(spec.template)


def _same(one: Any, other: Any) -> bool:
    """Whether two values mean the same to the API server, for which null and an empty list are absence.

    Templates can be megabytes, nearly all of it equal: what compares equal as it is, is not walked through.
    """
    if one == other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(map(_same, one, other))
    return one in _ABSENT and other in _ABSENT


def _without_placement(template: Any) -> Any:
    """The template without class, required node affinity and tolerations, and without the parents this empties."""
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return template
    spec = {key: each for key, each in template["spec"].items() if key not in ("priorityClassName", "tolerations")}
    affinity = dict(spec.pop("affinity", None) or {})
    node_affinity = dict(affinity.pop("nodeAffinity", None) or {})
    node_affinity.pop(placement.REQUIRED, None)
    if node_affinity:
        affinity["nodeAffinity"] = node_affinity
    if affinity:
        spec["affinity"] = affinity
    return {**template, "spec": spec}
