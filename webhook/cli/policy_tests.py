"""Judges the cases of policy tests: reads the files that they name, makes their cluster, asks the engine."""

from pathlib import Path
from typing import Any

import jsonpatch
import jsonpointer

from webhook.cli.offline import Judged, judge_all
from webhook.cluster import manifests
from webhook.cluster.snapshot import Snapshot, SnapshotError
from webhook.decision.offline import ManifestError
from webhook.decision.request import User
from webhook.language import say
from webhook.policy.active import Policy
from webhook.policy.suite import Case, CaseError, Given, GpuPolicyTest, Outcome
from webhook.server.wire import WireError

Manifest = dict[str, Any]


class CaseJudge:
    """Judges cases with one policy; file names are relative to the folder of the suite."""

    def __init__(self, policy: Policy, folder: Path, now: float) -> None:
        """`now` is the time of cases that name none, in epoch seconds."""
        self._policy = policy
        self._folder = folder
        self._now = now
        self._clusters: dict[str, Snapshot] = {}

    def __call__(self, test: GpuPolicyTest, case: Case) -> Outcome:
        """What the last object of a case gets. Raises CaseError."""
        given = case.given
        try:
            judged = self._judge(test, given)
        except (ManifestError, SnapshotError, WireError, manifests.ManifestError) as error:
            raise CaseError(str(error)) from error
        if not judged:
            raise CaseError(say(self._policy.spec.language, "suite.no_object"))
        for earlier in judged[:-1]:
            if earlier.verdict == "deny" and earlier.decision is not None:
                headline = earlier.decision.message.partition("\n")[0]
                name = str((earlier.manifest.get("metadata") or {}).get("name"))
                raise CaseError(say(self._policy.spec.language, "suite.prepared", name=name, message=headline))
        return _outcome(judged[-1])

    def _judge(self, test: GpuPolicyTest, given: Given) -> list[Judged]:
        objects = [each for one in given.objects for each in self._read(one)]
        old = next(iter(self._read(given.old_object)), None) if given.old_object is not None else None
        now = given.now.timestamp() if given.now is not None else self._now
        snapshot = self._cluster(test.spec.cluster if given.cluster is None else given.cluster)
        user = User(given.user, given.groups)
        return list(judge_all(objects, self._policy, snapshot, user, now, given.namespace, given.phase, old))

    def _read(self, source: str | Manifest) -> list[Manifest]:
        if isinstance(source, str):
            return [each for _, each in manifests.read(self._folder / source)]
        return [each for _, each in manifests.flatten(source, "given")]

    def _cluster(self, source: str | tuple[Manifest, ...]) -> Snapshot:
        if not isinstance(source, str):
            return Snapshot.from_objects(source, clock=lambda: self._now)
        if source not in self._clusters:
            self._clusters[source] = Snapshot(self._folder / source, clock=lambda: self._now)
        return self._clusters[source]


def _outcome(judged: Judged) -> Outcome:
    decision = judged.decision
    if decision is None:
        return Outcome("allow", None, None, (), "", (), judged.stored)
    try:
        patched = judged.patched
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise CaseError(f"the patch does not apply: {error}") from error
    return Outcome(
        verdict=decision.verdict,
        would=decision.would,
        rule=decision.rule,
        codes=tuple(dict.fromkeys(finding.code for finding in decision.findings)),
        message=decision.message,
        warnings=decision.warnings,
        patched=patched,
    )
