"""One audit record: what was asked, what was decided and on which facts, as one JSON object (DESIGN 5.5).

`encode` makes the body of a record; `webhook.audit.ledger` puts it into a stream by adding `stream`, `seq`, `lost`,
`prev` and `hash`. `decode` and `request_from` are the way back, for readers and for replay.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from webhook.decision.request import Object, Operation, Phase, Request, TemplateChange, User
from webhook.decision.result import Decision, Finding, PatchOperation, Verdict
from webhook.k8s.objects import (
    Affinity,
    Condition,
    JobTemplate,
    ObjectMeta,
    Pod,
    PodAffinity,
    PodSpec,
    PodTemplate,
    Scale,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)

SCHEMA = "gpu.platform/audit.v1"
OUR_ANNOTATIONS = "gpu.platform/"
_KEPT = (OUR_ANNOTATIONS, "kubernetes.io/config.mirror")
"""Annotations that decide something: ours, and the mark of a mirror Pod (P15)."""
HEAD_LENGTH = len(f'{{"schema":"{SCHEMA}","time":"2026-12-01T08:15:30.123Z"')
"""How many bytes of a body come before the place where the ledger puts `stream` and `seq`; times have one length."""


class RecordError(ValueError):
    """A line that is not a record of ours, with what is wrong in it."""


class _Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Camel-case keys; every key is written, and a key that a reader does not know is skipped."""


class Owner(_Part, frozen=True):
    """The controller owner (W17): client data, which any user may forge (W18)."""

    kind: str
    name: str


class ObjectName(_Part, frozen=True):
    """Which object a record speaks of; `name` is null where only a prefix is known yet (V2, B27).

    `resource` is written only where the kind does not tell: a Scale or an Eviction names its parent's there (W25, H6).
    """

    group: str = ""
    version: str = ""
    kind: str = ""
    namespace: str | None = None
    name: str | None = None
    generate_name: str | None = None
    owner: Owner | None = None
    resource: str | UnsetType = UNSET

    @property
    def label(self) -> str:
        """The name for people; a prefix is marked: `train-7f9-*`."""
        return self.name or (f"{self.generate_name}*" if self.generate_name else "")


class PolicyName(_Part, frozen=True):
    """The policy and rule that decided; `rule` is null where none matched."""

    name: str = ""
    revision: str = ""
    rule: str | None = None
    mode: str = "enforce"


class _Input(_Part, frozen=True):
    object: Object | None
    old_object: Object | None
    template: TemplateChange | None
    class_chosen: bool | None


class _Body(_Part, frozen=True):
    """The keys of a record in their order, without those that the ledger adds.

    `message` is the denial as the user read it, or with `would` "deny" would have; without one there is no such key.
    """

    schema: str
    time: str
    id: str
    phase: Phase
    uid: str
    operation: Operation
    sub_resource: str | None
    dry_run: bool
    object: ObjectName
    user: User
    policy: PolicyName
    verdict: Verdict
    would: Verdict | None
    message: str | UnsetType
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    patch: tuple[PatchOperation, ...]
    gpu: Mapping[str, str]
    asks: Mapping[str, str]
    input: _Input
    facts: Mapping[str, Any]
    latency_ms: float


class RecordedInput(_Part, frozen=True):
    """`input` as read: the two objects stay JSON until `request_from` knows their kind."""

    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    template: TemplateChange | None = None
    class_chosen: bool | None = None


class Record(_Part, frozen=True, kw_only=True):
    """A record as read: unknown keys of later versions are skipped, `facts` stays JSON for whoever needs it."""

    schema: str
    time: str
    stream: str = ""
    seq: int = 0
    id: str = ""
    phase: Phase
    uid: str = ""
    operation: Operation
    sub_resource: str | None = None
    dry_run: bool = False
    object: ObjectName
    user: User = User()
    policy: PolicyName = PolicyName()
    verdict: Verdict
    would: Verdict | None = None
    message: str = ""
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: tuple[PatchOperation, ...] = ()
    gpu: Mapping[str, str] = {}
    asks: Mapping[str, str] = {}
    input: RecordedInput = RecordedInput()
    facts: msgspec.Raw = msgspec.Raw(b"{}")
    latency_ms: float = 0.0
    lost: int = 0
    prev: str = ""
    hash: str = ""


_encoder = msgspec.json.Encoder()
_record_decoder = msgspec.json.Decoder(Record)
_object_decoders: Mapping[str, msgspec.json.Decoder[Pod | None] | msgspec.json.Decoder[Scale | None]] = {
    "Pod": msgspec.json.Decoder(Pod | None),
    "Scale": msgspec.json.Decoder(Scale | None),
}
_workload_decoder = msgspec.json.Decoder(Workload | None)


# -- writing ----------------------------------------------------------------------------------------------------------


def encode(request: Request, decision: Decision, policy_name: str, revision: str, latency_ms: float) -> bytes:
    """The body of one record, for `Ledger.append`; `latency_ms` is the time it took to decide, in milliseconds."""
    body = _Body(
        schema=SCHEMA,
        time=timestamp(request.now),
        id=decision.id,
        phase=request.phase,
        uid=request.uid,
        operation=request.operation,
        sub_resource=request.sub_resource,
        dry_run=request.dry_run,
        object=_object_name(request),
        user=request.user,
        policy=PolicyName(policy_name, revision, decision.rule, decision.mode),
        verdict=decision.verdict,
        would=decision.would,
        message=decision.message or UNSET,
        findings=decision.findings,
        warnings=decision.warnings,
        patch=decision.patch,
        gpu=decision.gpu,
        asks=decision.asks,
        input=_Input(
            project(request.object), project(request.old_object), decision.template_change, decision.class_chosen
        ),
        facts=decision.facts,
        latency_ms=round(latency_ms, 3),
    )
    return _encoder.encode(body)


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC with milliseconds, always 24 characters; later digits are cut."""
    whole, milliseconds = divmod(int(seconds * 1000 + 0.001), 1000)  # a time read back is a hair below its millisecond
    return f"{_second(whole)}.{milliseconds:03d}Z"


@lru_cache(maxsize=8)
def _second(whole: int) -> str:
    """Formatting a date costs more than encoding a small record, and many records share a second."""
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}"


def seconds_of(time: str) -> float:
    """The reverse of `timestamp`; reads any RFC 3339 time, raises ValueError for anything else."""
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is None:
        raise ValueError(f"{time}: a time needs a zone, say 2026-12-01T08:15:30Z")
    return moment.timestamp()


def project(subject: Object | None) -> Object | None:
    """What a record keeps of an object: enough to judge it again, and nothing more.

    The structs never held env, args, commands or volumes; metadata and status are cut down further here.
    """
    if subject is None:
        return None
    metadata = _project_metadata(subject.metadata)
    if isinstance(subject, Scale):
        return Scale(metadata=metadata, spec=subject.spec)
    if isinstance(subject, Pod):
        return Pod(metadata=metadata, spec=_project_pod(subject.spec))
    return Workload(
        kind=subject.kind,
        api_version=subject.api_version,
        metadata=metadata,
        spec=_project_spec(subject.spec),
        status=_project_status(subject),
    )


def _project_status(workload: Workload) -> WorkloadStatus | None:
    """Only where it says how many pods are still wanted: what is left of a Job (W11), what a paused one made (W6)."""
    status = workload.status
    if status is None or not (workload.spec.paused or workload.kind == "Job"):
        return None
    ends = tuple(each for each in status.conditions or () if each.type in ("Complete", "Failed"))
    return WorkloadStatus(
        replicas=status.replicas,
        active=status.active,
        succeeded=status.succeeded,
        conditions=tuple(Condition(each.type, each.status) for each in ends) or None,
    )


def _project_metadata(metadata: ObjectMeta) -> ObjectMeta:
    annotations = metadata.annotations
    ours = {key: value for key, value in annotations.items() if key.startswith(_KEPT)} if annotations else {}
    controller = metadata.controller
    return ObjectMeta(
        name=metadata.name,
        generate_name=metadata.generate_name,
        labels=metadata.labels,
        annotations=None if annotations is None else ours,
        owner_references=(controller,) if controller else None,
        deletion_timestamp=metadata.deletion_timestamp,
    )


def _project_spec(spec: WorkloadSpec) -> WorkloadSpec:
    job = spec.job_template
    if job is not None:
        inner = job.spec
        job = JobTemplate(
            metadata=_project_metadata(job.metadata) if job.metadata else None,
            spec=msgspec.structs.replace(inner, template=_project_template(inner.template)) if inner else None,
        )
    return msgspec.structs.replace(spec, template=_project_template(spec.template), job_template=job)


def _project_template(template: PodTemplate | None) -> PodTemplate | None:
    if template is None:
        return None
    return PodTemplate(
        metadata=_project_metadata(template.metadata) if template.metadata else None, spec=_project_pod(template.spec)
    )


def _project_pod(spec: PodSpec | None) -> PodSpec | None:
    """Pod affinity decides nothing but one quota scope (Q12), so it is kept only where it reaches other namespaces."""
    if spec is None or spec.affinity is None:
        return spec
    affinity = spec.affinity
    if not any(_crosses_namespaces(part) for part in (affinity.pod_affinity, affinity.pod_anti_affinity)):
        affinity = Affinity(node_affinity=affinity.node_affinity)
    return msgspec.structs.replace(spec, affinity=affinity)


def _crosses_namespaces(affinity: PodAffinity | None) -> bool:
    if affinity is None:
        return False
    terms = [*(affinity.required or ()), *(weighted.pod_affinity_term for weighted in affinity.preferred or ())]
    return any(term is not None and bool(term.namespaces or term.namespace_selector is not None) for term in terms)


def _object_name(request: Request) -> ObjectName:
    """Names come from the request, else from the object, else (a DELETE of many, H5) from the old object."""
    metadata = [subject.metadata for subject in (request.object, request.old_object) if subject is not None]
    controller = next((each.controller for each in metadata if each.controller), None)
    return ObjectName(
        group=request.group,
        version=request.version,
        kind=request.kind,
        namespace=request.namespace or None,
        name=request.name or next((each.name for each in metadata if each.name), None),
        generate_name=next((each.generate_name for each in metadata if each.generate_name), None),
        owner=Owner(controller.kind, controller.name) if controller else None,
        resource=UNSET if request.resource == _usual_resource(request.kind) else request.resource,
    )


def _usual_resource(kind: str) -> str:
    return f"{kind.lower()}s"


# -- reading ----------------------------------------------------------------------------------------------------------


def decode(line: bytes) -> Record:
    """A line of a stream as a Record. RecordError says what is wrong with a line that is none."""
    try:
        record = _record_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"not an audit record: {error}") from error
    if record.schema != SCHEMA:
        raise RecordError(f"not an audit record: schema is {record.schema[:60]!r}, not {SCHEMA!r}")
    return record


def request_from(record: Record) -> Request:
    """The Request that a record tells of, ready to be judged again: typed objects from the projection, no raw JSON.

    Raises RecordError if the recorded objects do not read as the recorded kind.
    """
    kind = record.object.kind
    resource = record.object.resource
    return Request(
        id=record.id,
        uid=record.uid,
        phase=record.phase,
        operation=record.operation,
        group=record.object.group,
        version=record.object.version,
        kind=kind,
        resource=_usual_resource(kind) if isinstance(resource, UnsetType) else resource,
        now=_now(record),
        sub_resource=record.sub_resource,
        namespace=record.object.namespace or "",
        name=record.object.name or "",
        user=record.user,
        dry_run=record.dry_run,
        object=_recorded_object(record, kind, record.input.object),
        old_object=_recorded_object(record, kind, record.input.old_object),
        template_change=record.input.template,
        class_chosen=record.input.class_chosen,
        replayed=True,
    )


def _now(record: Record) -> float:
    try:
        return seconds_of(record.time)
    except ValueError as error:
        raise RecordError(f"record {record.id}: {error}") from error


def _recorded_object(record: Record, kind: str, raw: msgspec.Raw) -> Object | None:
    decoder = _object_decoders.get(kind, _workload_decoder)
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise RecordError(f"record {record.id}: input does not read as a {kind}: {error}") from error
