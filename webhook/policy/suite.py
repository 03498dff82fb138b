"""Policy tests: cases beside the policy that say which object must get which answer, and the check of those answers."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from webhook.policy.model import Document, Metadata

Manifest = dict[str, Any]
ManifestOrFile = str | Manifest
Verdict = Literal["allow", "patch", "deny"]


class Given(Document, frozen=True):
    """What is asked, by whom, and in what cluster."""

    objects: Annotated[
        tuple[ManifestOrFile, ...],
        Meta(
            description="Manifests or AdmissionReviews, inline or as file names. The last one is tested; those before "
            "it are judged first, must be admitted, and use up quota.",
            min_length=1,
        ),
    ]
    old_object: Annotated[
        ManifestOrFile | None, Meta(description="What the object looks like now: the request is then an UPDATE.")
    ] = None
    cluster: Annotated[
        str | tuple[Manifest, ...] | None,
        Meta(description="A snapshot (file or folder), or the objects that exist; replaces spec.cluster."),
    ] = None
    user: Annotated[str, Meta(description="Who asks.", min_length=1)] = "user"
    groups: Annotated[tuple[str, ...], Meta(description="The user's groups.")] = ("system:authenticated",)
    namespace: Annotated[str, Meta(description="For objects that name none.")] = ""
    phase: Annotated[
        Literal["mutate", "validate"], Meta(description="validate: the object as it is stored, nothing is patched.")
    ] = "mutate"
    now: Annotated[datetime | None, Meta(description="The time of the request; absent: the present.")] = None


class Expect(Document, frozen=True):
    """What the answer must be; what is absent is not looked at."""

    verdict: Annotated[Verdict | None, Meta(description="allow: unchanged; patch: allowed with changes; deny.")] = None
    would: Annotated[
        Literal["patch", "deny"] | None, Meta(description="In warn and audit mode: what enforce would answer.")
    ] = None
    rule: Annotated[str | None, Meta(description="The rule that applied.")] = None
    codes: Annotated[tuple[str, ...], Meta(description="Finding codes that must be among those of the answer.")] = ()
    not_codes: Annotated[tuple[str, ...], Meta(description="Finding codes that must not be among them.")] = ()
    patched: Annotated[
        dict[str, Any],
        Meta(description="JSON pointer into the patched object -> the value there; null: nothing is there."),
    ] = field(default_factory=dict)
    message_contains: Annotated[tuple[str, ...], Meta(description="Texts that the denial must contain.")] = ()
    warnings_contain: Annotated[tuple[str, ...], Meta(description="Texts that some warning must contain.")] = ()


class Case(Document, frozen=True):
    """One question and its answer."""

    name: Annotated[str, Meta(description="What the case shows, as a sentence.", min_length=1)]
    given: Annotated[Given, Meta(description="What is asked.")]
    expect: Annotated[Expect, Meta(description="What the answer must be.")]


class SuiteSpec(Document, frozen=True):
    """The cases and what they have in common."""

    cases: Annotated[tuple[Case, ...], Meta(description="The cases; each is judged on its own.", min_length=1)]
    cluster: Annotated[
        str | tuple[Manifest, ...],
        Meta(description="A snapshot (file or folder, from this file's folder), or the objects that exist."),
    ] = ()


class GpuPolicyTest(Document, frozen=True):
    """Cases that a policy must pass. Any number per folder; they are no part of the policy."""

    api_version: Annotated[Literal["gpu.platform/v1"], Meta(description="gpu.platform/v1")]
    kind: Annotated[Literal["GpuPolicyTest"], Meta(description="GpuPolicyTest")]
    metadata: Annotated[Metadata, Meta(description="The suite's name.")]
    spec: Annotated[SuiteSpec, Meta(description="The cases.")]
