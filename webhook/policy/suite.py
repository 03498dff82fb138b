"""Policy tests: cases beside the policy that say which object must get which answer, and the check of those answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from jsonpointer import JsonPointer, JsonPointerException
from msgspec import Meta, field

from webhook.language import Language, say
from webhook.policy.active import Policy
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


# -- running ----------------------------------------------------------------------------------------------------------


class Outcome(msgspec.Struct, frozen=True):
    """What the tested object of a case got. `patched` is the object with our patch."""

    verdict: str
    would: str | None
    rule: str | None
    codes: tuple[str, ...]
    message: str
    warnings: tuple[str, ...]
    patched: Manifest


class CaseError(ValueError):
    """A case that could not be judged: a missing file, an object that is none, a preparation that was denied."""


Judge = Callable[[GpuPolicyTest, Case], Outcome]
"""Judges one case; raises CaseError."""


class CaseResult(msgspec.Struct, frozen=True):
    """A case and why it failed; no reasons: it passed."""

    suite: str
    name: str
    failures: tuple[str, ...]
    rule: str | None = None
    codes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.failures


class Coverage(msgspec.Struct, frozen=True):
    """Which rules and finding codes no case reaches."""

    rules: tuple[str, ...]
    missed_rules: tuple[str, ...]
    codes: tuple[str, ...]
    missed_codes: tuple[str, ...]


def run(tests: Iterable[GpuPolicyTest], judge: Judge, language: Language) -> Iterator[CaseResult]:
    """Judge every case of every suite, in order."""
    for test in tests:
        for case in test.spec.cases:
            try:
                outcome = judge(test, case)
            except CaseError as error:
                yield CaseResult(test.metadata.name, case.name, (str(error),))
                continue
            failures = tuple(compare(case.expect, outcome, language))
            yield CaseResult(test.metadata.name, case.name, failures, outcome.rule, outcome.codes)


def compare(expect: Expect, outcome: Outcome, language: Language) -> Iterator[str]:
    """What of an expectation an outcome does not meet, one line each."""
    for field_name in ("verdict", "would", "rule"):
        wanted, got = getattr(expect, field_name), getattr(outcome, field_name)
        if wanted is not None and wanted != got:
            yield say(language, "suite.differs", what=field_name, wanted=wanted, got=got or "-")
    for code in expect.codes:
        if code not in outcome.codes:
            yield say(language, "suite.no_code", code=code, got=", ".join(outcome.codes) or "-")
    for code in expect.not_codes:
        if code in outcome.codes:
            yield say(language, "suite.unwanted_code", code=code)
    for pointer, wanted in expect.patched.items():
        got = _at(outcome.patched, pointer)
        if got != wanted:
            yield say(language, "suite.differs", what=pointer, wanted=_shown(wanted), got=_shown(got))
    for text in expect.message_contains:
        if text not in outcome.message:
            yield say(language, "suite.no_message", text=text, got=outcome.message or "-")
    for text in expect.warnings_contain:
        if not any(text in warning for warning in outcome.warnings):
            yield say(language, "suite.no_warning", text=text, got=" | ".join(outcome.warnings) or "-")


def coverage(policy: Policy, results: Sequence[CaseResult], codes: Sequence[str]) -> Coverage:
    """What the cases reach of the policy's rules and of `codes`, all finding codes there are."""
    rules = [active.rule.name for active in policy.rules]
    reached_rules = {result.rule for result in results}
    reached_codes = {code for result in results for code in result.codes}
    return Coverage(
        rules=tuple(rules),
        missed_rules=tuple(name for name in rules if name not in reached_rules),
        codes=tuple(codes),
        missed_codes=tuple(code for code in codes if code not in reached_codes),
    )


def _at(manifest: Mapping[str, Any], pointer: str) -> Any:
    try:
        return JsonPointer(pointer).resolve(manifest, None)
    except JsonPointerException:
        return None


def _shown(value: Any) -> str:
    return "-" if value is None else msgspec.json.encode(value).decode()
