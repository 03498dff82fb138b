"""What is asked of us: one admission request, already decoded, with the time at which it is judged."""

import hashlib
from typing import Literal

import msgspec

from webhook.k8s.objects import Pod, Scale, Workload

Phase = Literal["mutate", "validate"]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
TemplateChange = Literal["same", "dropped", "changed"]
Object = Pod | Workload | Scale


class User(msgspec.Struct, frozen=True):
    name: str = ""
    groups: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `/mutate` or `/validate`.

    `object` and `old_object` are None when there is none, or when the kind is not one that we judge. `now` is in
    seconds since the epoch, UTC. `raw_object` and `raw_old_object` are the JSON as it came: an UPDATE's templates are
    compared there, because the typed structs do not hold all of them; a replayed request has no raw JSON and brings
    `template_change` instead. `class_chosen` likewise (O2): None when managedFields do not tell.
    """

    id: str
    uid: str
    phase: Phase
    operation: Operation
    group: str
    version: str
    kind: str
    resource: str
    now: float
    sub_resource: str | None = None
    namespace: str = ""
    name: str = ""
    user: User = User()
    dry_run: bool = False
    object: Object | None = None
    old_object: Object | None = None
    raw_object: bytes | None = None
    raw_old_object: bytes | None = None
    template_change: TemplateChange | None = None
    class_chosen: bool | None = None
    replayed: bool = False


_new_hash = hashlib.sha256().copy
"""Quicker than making one."""


def decision_id(uid: str, phase: Phase) -> str:
    """The first 12 hex digits of SHA-256(`uid/phase`): what a denial prints and a record carries (DESIGN 5.5)."""
    hasher = _new_hash()
    hasher.update(f"{uid}/{phase}".encode())
    return hasher.hexdigest()[:12]
