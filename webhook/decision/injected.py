"""The annotation `gpu.platform/injected`: what we put into an object, and how it is taken out again (DESIGN 5.7)."""

from collections.abc import Iterable

import msgspec

from webhook.decision import placement
from webhook.decision.placement import Placement
from webhook.k8s.objects import ObjectMeta, Toleration

ANNOTATION = "gpu.platform/injected"


class Injected(msgspec.Struct, frozen=True, omit_defaults=True, rename={"priority_class": "class"}):
    """Only what we added; a user's own equal choice is not in it."""

    rule: str
    priority_class: str | None = None
    pools: tuple[str, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.priority_class or self.pools or self.tolerations)


_decoder = msgspec.json.Decoder(Injected)
_encoder = msgspec.json.Encoder()


def read(metadata: ObjectMeta) -> Injected | None:
    """The record on an object; None if there is none or it does not read as one (it is client data)."""
    text = (metadata.annotations or {}).get(ANNOTATION)
    if not text:
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def text(record: Injected) -> str:
    """Compact JSON, the same bytes for the same record."""
    return _encoder.encode(record).decode()


def strip(value: Placement, records: Iterable[Injected | None], pool_label: str) -> Placement:
    """A placement without what the records name: the user's own part of it."""
    for record in records:
        if record is None:
            continue
        if record.priority_class and record.priority_class == value.priority_class:
            value = msgspec.structs.replace(value, priority_class=None)
        if record.pools:
            value = placement.without_pools(value, pool_label, record.pools)
        if record.tolerations:
            kept = tuple(each for each in value.tolerations if each not in record.tolerations)
            value = msgspec.structs.replace(value, tolerations=kept)
    return value
