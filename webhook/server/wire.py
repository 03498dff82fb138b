"""AdmissionReview v1 as bytes: the one place that knows the wire format, strict both ways (facts V1-V12)."""

import unicodedata
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from webhook.decision.request import Object, Operation, Phase, Request, User, decision_id
from webhook.decision.result import Decision, PatchOperation
from webhook.k8s.objects import Pod, Scale, Workload

API_VERSION: Final = "admission.k8s.io/v1"
WARNING_LIMIT: Final = 256
"""Characters of one warning beyond which the API server may cut it (V18)."""


class WireError(Exception):
    """A body that is no AdmissionReview v1: answer `status` with `reason`, one line that names the place."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


# -- reading ----------------------------------------------------------------------------------------------------------


_NULL: Final = Raw(b"null")
Asked = TypeVar("Asked")


class _Kind(msgspec.Struct, frozen=True):
    kind: str
    version: str
    group: str = ""


class _Resource(msgspec.Struct, frozen=True):
    resource: str
    version: str
    group: str = ""


class _UserInfo(msgspec.Struct, frozen=True):
    username: str | None = None
    groups: tuple[str, ...] | None = None


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """What we read of `request` apart from its objects (V1)."""

    uid: str
    kind: _Kind
    resource: _Resource
    operation: Operation
    sub_resource: str | None = None
    name: str | None = None
    namespace: str | None = None
    user_info: _UserInfo = _UserInfo()
    dry_run: bool | None = None


class _Request(_Envelope, frozen=True, rename="camel"):
    """The objects wait as raw JSON until their kind is known."""

    object: Raw = _NULL
    old_object: Raw = _NULL


class _PodRequest(_Envelope, frozen=True, rename="camel"):
    object: Pod | None = None
    old_object: Pod | None = None


class _WorkloadRequest(_Envelope, frozen=True, rename="camel"):
    """One without an old object, or else both are wanted as raw JSON."""

    object: Workload | None = None
    old_object: None = None


class _Review(msgspec.Struct, Generic[Asked], frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: Asked | None = None


class _Metadata(msgspec.Struct, frozen=True):
    name: str | None = None


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata | None = None


_POD: Final = msgspec.json.Decoder(Pod)
_WORKLOAD: Final = msgspec.json.Decoder(Workload)
_SCALE: Final = msgspec.json.Decoder(Scale)
_JUDGED: Final[dict[tuple[str, str, str, str], msgspec.json.Decoder[Any]]] = {
    ("", "v1", "Pod", ""): _POD,
    ("", "v1", "ReplicationController", ""): _WORKLOAD,
    ("apps", "v1", "Deployment", ""): _WORKLOAD,
    ("apps", "v1", "StatefulSet", ""): _WORKLOAD,
    ("apps", "v1", "ReplicaSet", ""): _WORKLOAD,
    ("apps", "v1", "DaemonSet", ""): _WORKLOAD,
    ("batch", "v1", "Job", ""): _WORKLOAD,
    ("batch", "v1", "CronJob", ""): _WORKLOAD,
    ("autoscaling", "v1", "Scale", "scale"): _SCALE,
}
"""(group, version, kind, subResource) -> how to read it; whatever is not here is never looked into (H6-H8)."""

_DERIVED_FIELDS: Final = frozenset({"priority", "preemptionPolicy"})
"""Fields whose null must stay visible: a patch that removes them has to know that they are there (P7, V20)."""

_encoder = msgspec.json.Encoder()
_review = msgspec.json.Decoder(_Review[_Request])
_pod_review: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_Review[_PodRequest])
_workload_review: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_Review[_WorkloadRequest])
_HEAD_LENGTH: Final = 256
_Head = tuple[_Kind, msgspec.json.Decoder[Any]]
_HEADS: Final[dict[bytes, _Head]] = {
    _encoder.encode({"group": group, "version": version, "kind": kind}): (
        _Kind(kind, version, group),
        _pod_review if decoder is _POD else _workload_review,
    )
    for (group, version, kind, _), decoder in _JUDGED.items()
    if decoder is not _SCALE
}
"""`request.kind` as the API server writes it -> what it says, and how to read such a review in one pass."""
_NO_OLD_OBJECT: Final = b'"oldObject":null'
_named = msgspec.json.Decoder(_Named)


def decode(body: bytes, phase: Phase, now: float) -> Request:
    """The request in an AdmissionReview v1; `now` is when it is judged, seconds since the epoch.

    Raises WireError (always status 400) with one line that says what is wrong and where.
    """
    start = body.find(b'{"group":', 0, _HEAD_LENGTH)
    head = _HEADS.get(body[start : body.find(b"}", start, start + _HEAD_LENGTH) + 1]) if start > 0 else None
    if head is not None and (whole := _read_whole(body, head)) is not None:
        return _request(whole, phase, now, whole.object, whole.old_object)
    asked = _read_envelope(body)
    kind = asked.kind
    decoder = _JUDGED.get((kind.group, kind.version, kind.kind, asked.sub_resource or ""))
    new: Object | None = None
    old: Object | None = None
    has_raw = False
    if decoder is not None and asked.operation in ("CREATE", "UPDATE"):
        new = _read_object(decoder, asked.object, "request.object")
        if new is None:
            raise WireError(400, f"request.object: null, but a {asked.operation} of {kind.kind} carries an object")
        old = _read_object(decoder, asked.old_object, "request.oldObject")
        has_raw = decoder is _WORKLOAD and old is not None
    elif decoder is not None:
        old = _read_leniently(decoder, asked.old_object)
    request = _request(asked, phase, now, new, old)
    if has_raw:
        raw_object, raw_old_object = bytes(asked.object), bytes(asked.old_object)
        request = msgspec.structs.replace(request, raw_object=raw_object, raw_old_object=raw_old_object)
    if not request.name and asked.operation == "DELETE":
        request = msgspec.structs.replace(request, name=_name_in(asked))
    return request


def _request(asked: _Envelope, phase: Phase, now: float, new: Object | None, old: Object | None) -> Request:
    request = Request(
        id=decision_id(asked.uid, phase),
        uid=asked.uid,
        phase=phase,
        operation=asked.operation,
        group=asked.kind.group,
        version=asked.kind.version,
        kind=asked.kind.kind,
        resource=asked.resource.resource,
        now=now,
        namespace=asked.namespace or "",
        name=asked.name or _name(new) or _name(old),
        user=User(name=asked.user_info.username or "", groups=asked.user_info.groups or ()),
        object=new,
        old_object=old,
    )
    if not (asked.sub_resource or asked.dry_run):
        return request
    return msgspec.structs.replace(request, sub_resource=asked.sub_resource or None, dry_run=bool(asked.dry_run))


def _read_whole(body: bytes, head: _Head) -> _PodRequest | _WorkloadRequest | None:
    """A review in one pass, because its head tells what the object is; None where it takes a closer look."""
    kind, decoder = head
    if decoder is _workload_review and body.rfind(_NO_OLD_OBJECT) < 0:
        return None
    try:
        review = _decoded(decoder, body)
    except (UnicodeDecodeError, RecursionError, msgspec.MsgspecError):
        return None
    asked: _PodRequest | _WorkloadRequest | None = review.request
    if asked is None or not asked.uid or review.kind != "AdmissionReview" or review.api_version != API_VERSION:
        return None
    judged = asked.kind == kind and not asked.sub_resource and asked.operation in ("CREATE", "UPDATE")
    return asked if judged and asked.object is not None else None


def _decoded(decoder: "msgspec.json.Decoder[_Review[Asked]]", body: bytes) -> "_Review[Asked]":
    """A body as UTF-8, all of it: msgspec does not check what it skips."""
    if not body.isascii():
        str(body, "utf-8")
    return decoder.decode(body)


def _read_envelope(body: bytes) -> _Request:
    if not body:
        raise WireError(400, "the body is empty; expected an AdmissionReview")
    try:
        review = _decoded(_review, body)
    except UnicodeDecodeError as error:
        raise WireError(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise WireError(400, "the body is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise WireError(400, f"the body is not an AdmissionReview: {_located(error, '')}") from None
    if review.kind != "AdmissionReview":
        raise WireError(400, f'kind: expected "AdmissionReview", got "{review.kind[:64]}"')
    if review.api_version != API_VERSION:
        raise WireError(400, f'apiVersion: expected "{API_VERSION}", got "{review.api_version[:64]}"')
    if review.request is None:
        raise WireError(400, "request: missing")
    if not review.request.uid:
        raise WireError(400, "request.uid: must not be empty")
    return review.request


def _read_object(decoder: msgspec.json.Decoder[Any], raw: Raw, path: str) -> Object | None:
    if raw == _NULL:
        return None
    try:
        found: Object = decoder.decode(raw)
    except msgspec.ValidationError:
        return _read_without_nulls(decoder, raw, path)
    return found


def _read_without_nulls(decoder: msgspec.json.Decoder[Any], raw: Raw, path: str) -> Object:
    """The slow road for odd input: Kubernetes reads null as absent everywhere (B14), our structs not quite."""
    try:
        found: Object = decoder.decode(_encoder.encode(_without_nulls(msgspec.json.decode(raw))))
    except msgspec.ValidationError as error:
        raise WireError(400, _located(error, path)) from None
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None or k in _DERIVED_FIELDS}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _read_leniently(decoder: msgspec.json.Decoder[Any], raw: Raw) -> Object | None:
    """An object that is going away: it is allowed whatever it looks like, so nothing in it may be an error."""
    try:
        return _read_object(decoder, raw, "request.oldObject")
    except WireError:
        return None


def _name(found: Object | None) -> str:
    return found.metadata.name if found is not None else ""


def _name_in(asked: _Request) -> str:
    """The name of an object that we do not judge; a deletecollection sends none in the request (H5)."""
    try:
        named = _named.decode(asked.old_object)
    except msgspec.MsgspecError:
        return ""
    return (named.metadata and named.metadata.name) or ""


def _located(error: msgspec.MsgspecError, root: str) -> str:
    """msgspec's message with its `$.a.b` written as a path from `root`, place first."""
    text, _, place = str(error).partition(" - at `$")
    path = (root + place.rstrip("`")).lstrip(".")
    return f"{path}: {text}" if path else text


# -- writing ----------------------------------------------------------------------------------------------------------


class _Status(msgspec.Struct, frozen=True):
    message: str
    code: int = 403
    reason: str = "Forbidden"


class _Response(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`bytes` are written as base64, which is what `patch` wants (V9)."""

    uid: str
    allowed: bool
    status: _Status | UnsetType = UNSET
    patch_type: str | UnsetType = UNSET
    patch: bytes | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    audit_annotations: dict[str, str] | UnsetType = UNSET


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    response: _Response
    api_version: str = API_VERSION
    kind: str = "AdmissionReview"


def encode(request: Request, decision: Decision) -> bytes:
    """The AdmissionReview that answers `request`.

    A patch is sent only by /mutate, only when there is one, and always with its type (V7); a denial has code 403 and
    reason Forbidden (V15). Audit annotations have plain keys, to which the API server adds our name (V19).
    """
    denied = decision.verdict == "deny"
    patched = decision.verdict == "patch" and bool(decision.patch) and request.phase == "mutate"
    notes = {"decision": decision.id, "verdict": decision.verdict}
    if decision.rule:
        notes["rule"] = decision.rule
    if decision.would:
        notes["would"] = decision.would
    return _encoder.encode(
        _Answer(
            _Response(
                uid=request.uid,
                allowed=not denied,
                status=_Status(decision.message) if denied else UNSET,
                patch_type="JSONPatch" if patched else UNSET,
                patch=encode_patch(decision.patch) if patched else UNSET,
                warnings=tuple(map(_header_safe, decision.warnings)) if decision.warnings else UNSET,
                audit_annotations=notes,
            )
        )
    )


def encode_patch(patch: tuple[PatchOperation, ...]) -> bytes:
    """The JSON array of RFC 6902 operations, before base64."""
    return _encoder.encode(patch)


def encode_error(status: int, reason: str) -> bytes:
    """The body of a refusal to judge: a Kubernetes Status, so that whoever reads it knows the shape."""
    return _encoder.encode(
        {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status, "message": reason}
    )


def _header_safe(warning: str) -> str:
    """A warning as an HTTP header can carry it: one line, no control characters, not longer than what is shown."""
    if len(warning) <= WARNING_LIMIT and warning.isprintable():
        return warning
    text = "".join(" " if unicodedata.category(character) == "Cc" else character for character in warning)
    return text if len(text) <= WARNING_LIMIT else text[: WARNING_LIMIT - 1] + "…"
