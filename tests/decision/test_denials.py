"""Every kind of refusal, and the main warnings, as people read them: in English and in Chinese, side by side.

`denials.md` beside this file holds the texts, byte for byte. After a change of wording, write it again and read the
difference before committing it:

    .venv/bin/python -m tests.decision.test_denials
"""

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.decision.build import (
    ALICE,
    POOL,
    Json,
    admitted,
    cluster,
    container,
    controller,
    expressions,
    patched,
    pod,
    pod_spec,
    policy,
    quota,
    request,
    required,
    scale,
    workload,
)
from tests.decision.test_fit import Stale, deployment, running
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import judge
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.decision.wording import columns

GOLDENS = Path(__file__).with_name("denials.md")
F4 = quota(gpu=("8", "6"))


@dataclass(frozen=True)
class Case:
    """What is asked of which cluster; `options` are fields of the policy's spec, `rule` of its rule."""

    title: str
    asked: Request
    objects: tuple[Json, ...] = ()
    options: Json = field(default_factory=dict)
    rule: Json = field(default_factory=dict)
    source: Any = None

    def answer(self, language: str) -> Decision:
        spec = {"language": language, **self.options}
        return judge(self.asked, policy(self.rule, **spec), self.source or cluster(*self.objects))


def many(count: int, gpus: Any = 1, kind: str = "Deployment", name: str = "w", **pod_fields: Any) -> Json:
    return workload(kind, name, gpus, spec={"replicas": count}, **pod_fields)


def update(new: Json, old: Json, **more: Any) -> Request:
    return request(new, "UPDATE", old, **more)


def rolled(obj: Json) -> Request:
    new = copy.deepcopy(obj)
    pod_spec(new)["containers"][0]["image"] = "serve:2"
    return update(new, obj)


def sized(name: str = "c", **amounts: str) -> Json:
    """A container with limits and equal requests: gpu, cpu, memory."""
    limits = {"nvidia.com/gpu" if key == "gpu" else key: value for key, value in amounts.items()}
    return container(name=name, limits=limits)


def parent(count: int, gpus: Any = 1) -> Json:
    obj = many(count, gpus)
    obj["metadata"]["namespace"] = "team-a"
    return obj


def keyed(name: str, **amounts: tuple[str, str]) -> Json:
    """A quota on keys that no Python name can spell."""
    found = quota(name)
    hard = {f"requests.{key}": hard for key, (hard, _) in amounts.items()}
    used = {f"requests.{key}": used for key, (_, used) in amounts.items()}
    return {**found, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}


def autoscaler(ceiling: int) -> Json:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "grow", "namespace": "team-a"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"},
            "maxReplicas": ceiling,
        },
    }


def other_devices(name: str, count: str) -> Json:
    return admitted(pod(containers=[{"name": "c", "resources": {"limits": {name: count}}}]))


TWO_HOLDERS = (running("a-1-0", 2, "a", "StatefulSet"), running("b-1-0", 1, "b", "StatefulSet"))
LIMITED = {"breakGlass": {"groups": ["sre"], "maxAge": "4h"}}
CLAIM = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"

DENIALS = [
    Case("Not now, with holders", request(many(1, 2)), (quota(gpu=("4", "3")), *TWO_HOLDERS)),
    Case("Not now, several replicas", request(many(2, 2)), (F4,)),
    Case("Not now, nothing free", request(many(1)), (quota(gpu=("3", "3")), *TWO_HOLDERS)),
    Case("Not now, in an over-full namespace", request(many(1)), (quota(gpu=("4", "9")),)),
    Case("Never: all replicas together", request(many(9)), (F4,)),
    Case("Never: a single pod", request(many(1, 9)), (quota(gpu=("8", "0")),)),
    Case("Never: none are allowed", request(many(1)), (quota(gpu=("0", "0")),)),
    Case("Several quotas", request(many(4, containers=[sized(gpu="1", cpu="2")])), (F4, quota("cpu", cpu=("8", "5")))),
    Case(
        "Several quotas, one never",
        request(many(2, containers=[sized(gpu="2", cpu="2", memory="9Gi")])),
        (F4, quota("compute", requests_cpu=("8", "5"), limits_memory=("16Gi", "0"))),
    ),
    Case("CPU", request(many(2, containers=[sized(gpu="1", cpu="1500m")])), (quota("cpu", requests_cpu=("4", "2")),)),
    Case(
        "Memory",
        request(many(1, containers=[sized(gpu="1", memory="3Gi")])),
        (quota("mem", limits_memory=("8Gi", "6Gi")),),
    ),
    Case("Pods", request(many(3)), (quota("pods", pods=("10", "8")),)),
    Case(
        "MIG",
        request(other_devices("nvidia.com/mig-1g.10gb", "3")),
        (keyed("mig", **{"nvidia.com/mig-1g.10gb": ("2", "0")}),),
    ),
    Case("AMD", request(other_devices("amd.com/gpu", "2")), (keyed("amd", **{"amd.com/gpu": ("4", "3")}),)),
    Case("Written as 1k", request(admitted(pod(gpus="1k"))), (quota(gpu=("2k", "1500")),)),
    Case("Must specify", request(many(1)), (quota("mem", limits_memory=("8Gi", "0"), requests_cpu=("8", "0")),)),
    Case("Scale", scale(4, 1), (parent(1), F4)),
    Case("Scale, never", scale(9, 1), (parent(1), F4)),
    Case("StatefulSet", request(many(3, 1, "StatefulSet")), (F4,)),
    Case("Job", request(workload("Job", spec={"parallelism": 4, "completions": 12})), (F4,)),
    Case("CronJob whose run can never fit", request(workload("CronJob", spec={"parallelism": 9})), (F4,)),
    Case("Bare Pod", request(admitted(pod(gpus=3))), (F4,)),
    Case("GPUs per pod grown on update", update(many(4, 2), many(4, 1)), (quota(gpu=("8", "5")),)),
    Case("Replicas grown on update", update(many(5, 2), many(4, 2)), (quota(gpu=("9", "8")),)),
    Case(
        "Un-suspended Job",
        update(*(workload("Job", spec={"parallelism": 3, "suspend": off}) for off in (False, True))),
        (F4,),
    ),
    Case(
        "Just admitted", request(many(1, 6, name="second")), (quota(gpu=("8", "0")), *deployment("first", 1, 6, age=1))
    ),
    Case("Also waiting", request(many(1, 5)), (quota(gpu=("8", "4")), *deployment("first", 2, 3, age=60))),
    Case("Contact", request(many(1, 3)), (F4,), {"contact": "#gpu-platform"}),
    Case(
        "Unknown, where the policy says deny",
        request(many(2)),
        options={"quota": {"onUnknown": "deny"}},
        source=Stale(cluster(quota(gpu=("8", "8"))), None),
    ),
    Case(
        "Labels of the namespace unknown, where the policy says deny",
        request(many(1), namespace="team-x"),
        options={"quota": {"onUnknown": "deny"}},
    ),
    Case("Pool: nodeSelector", request(workload(nodeSelector={POOL: "h100"}))),
    Case(
        "Pool: affinity terms",
        request(
            workload(
                "StatefulSet",
                affinity=required(expressions((POOL, "In", ["h100"])), expressions((POOL, "NotIn", ["a100"]))),
            )
        ),
    ),
    Case(
        "Pool: nodeSelector against affinity",
        request(workload(nodeSelector={POOL: "a100"}, affinity=required(expressions((POOL, "DoesNotExist", []))))),
    ),
    Case(
        "Pool: pinned to a node by name",
        request(
            admitted(
                pod(affinity=required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}))
            )
        ),
        rule={"pools": ["a100", "b200"]},
    ),
    Case("nodeName in another pool", request(admitted(pod(nodeName="n3")))),
    Case("nodeName without a pool, in a template", request(workload("CronJob", nodeName="n4"))),
    Case("Class", request(workload(priorityClassName="gpu-high"))),
    Case(
        "Class, of several allowed",
        request(workload("CronJob", priorityClassName="system-node-critical")),
        rule={"allowedPriorityClasses": ["gpu-batch"]},
    ),
    Case("Pool and quota at once", request(many(3, nodeSelector={POOL: "h100"})), (F4,), {"contact": "#gpu-platform"}),
    Case(
        "Not placed, where the policy says deny", request(workload(), phase="validate"), options={"onUnplaced": "deny"}
    ),
]
WARNINGS = [
    Case("Rollout that will be stuck", rolled(many(1)), (quota(gpu=("1", "1")),)),
    Case("Rollout that lacks headroom", rolled(many(4)), (quota(gpu=("4", "4")),)),
    Case("Autoscaler ceiling", request(many(1)), (F4, autoscaler(20))),
    Case("Autoscaler beyond the quota", scale(9, 1, user=controller("horizontal-pod-autoscaler")), (parent(1), F4)),
    Case("Scale whose parent is unknown", scale(9, 1)),
    Case("CronJob that would not fit now", request(workload("CronJob", gpus=4)), (F4,)),
    Case("A kind that may wait", request(workload("Job", gpus=4)), (F4,), {"quota": {"waitingKinds": ["Job"]}}),
    Case("Never fits once it runs", request(many(0, 9)), (F4,)),
    Case(
        "Freeing",
        request(many(1, 2, name="old")),
        (quota(gpu=("2", "2")), running("old-1-0", 2, "old-1", deleted="2026-12-01T19:59:55Z")),
    ),
    Case("Quota without status", request(many(9)), ({**quota(gpu=("1", "0")), "status": {}},)),
    Case("Quota unknown", request(many(9)), source=Stale(cluster(quota(gpu=("8", "8"))), None)),
    Case("Empty pool", request(workload()), rule={"pools": ["b200"]}),
    Case("Missing class", request(workload()), rule={"priorityClassName": "gpu-reserch"}),
    Case("Replaced class", request(workload(priorityClassName="gpu-high")), rule={"onPriorityConflict": "override"}),
    Case(
        "Drift",
        update(*(patched(obj, judge(request(obj), policy(), cluster())) for obj in (many(2), many(1)))),
        rule={"pools": ["h100"]},
    ),
    Case("Not placed", request(workload(), phase="validate")),
    Case("Unusable amount", request(admitted(pod(gpus="-1")))),
    Case(
        "Claims beside a quota on claims",
        request(workload(gpus=None, resourceClaims=[{"name": "g", "resourceClaimTemplateName": "four"}])),
        ({**quota(), "spec": {"hard": {CLAIM: "2"}}, "status": {"hard": {CLAIM: "2"}, "used": {CLAIM: "0"}}},),
    ),
    Case("A denial in warn mode", request(many(1, 3)), (F4,), {"mode": "warn"}),
    Case(
        "Forged exemption",
        request(admitted(pod(metadata={"annotations": {"gpu.platform/exempt": "sre"}})), user=ALICE),
        options=LIMITED,
    ),
]
LANGUAGES = ("en", "zh")


def rendered() -> str:
    """All texts as one page."""
    parts = [
        "# What people read",
        "Written by `python -m tests.decision.test_denials`; a test compares it byte for byte.",
        "## Denials",
        *(_section(case, [case.answer(language).message for language in LANGUAGES]) for case in DENIALS),
        "## Warnings",
        *(_section(case, ["\n".join(case.answer(language).warnings) for language in LANGUAGES]) for case in WARNINGS),
    ]
    return "\n\n".join(parts) + "\n"


def _section(case: Case, texts: list[str]) -> str:
    return "\n".join([f"### {case.title}", "", *(f"```\n{text}\n```" for text in texts)])


def test_the_texts_are_those_that_were_reviewed() -> None:
    assert rendered() == GOLDENS.read_text(), (
        "read the difference, then: .venv/bin/python -m tests.decision.test_denials"
    )


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("case", DENIALS, ids=lambda case: case.title)
def test_every_denial_has_the_layout_of_the_design(case: Case, language: str) -> None:
    decision = case.answer(language)
    assert decision.verdict == "deny"
    first, *rows = decision.message.splitlines()
    assert "team-" in first  # it alone must make sense: event lists cut the rest
    assert len(first) <= 200
    assert rows[-1].split() == [{"en": "decision", "zh": "决定编号"}[language], decision.id]
    for row in rows:
        if row.startswith("  "):
            label, text = _split(row)
            assert columns(label) == 13, row
            assert text == text.strip() != ""


def _split(row: str) -> tuple[str, str]:
    """The label with its indent and padding (2 + 11 columns), and the text."""
    end = next(place for place in range(len(row)) if columns(row[: place + 1]) > 13)
    return row[:end], row[end:]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("case", WARNINGS, ids=lambda case: case.title)
def test_every_warning_is_one_short_line(case: Case, language: str) -> None:
    decision = case.answer(language)
    assert decision.verdict in ("allow", "patch")
    assert decision.warnings
    assert all(len(each) <= 256 and each.isprintable() for each in decision.warnings)


def test_the_sample_of_the_design() -> None:
    """DESIGN 5.4, word for word, on the recorded cluster."""
    seed = Snapshot.from_objects([json.loads(Path("tests/data/seed-cluster/cluster.json").read_text())])
    rule = {"name": "inference", "namespaceSelector": {"matchLabels": {"gpu.platform/team": "inference"}}}
    obj = many(1, 2, name="quota-exceed-inference-demo")
    pod_spec(obj)["containers"] = [sized(gpu="2", cpu="1", memory="1Gi")]
    asked = request(obj, namespace="ai-inference")
    placing = {**rule, "priorityClassName": None, "pools": None}
    message = judge(asked, policy(placing, contact="#gpu-platform"), seed).message
    holders = "realtime-inference-demo uses 2, gpu-inference-kind-demo uses 1"
    assert (
        message
        == f"""\
GPU quota exceeded in namespace ai-inference (rule inference): asks for 2, free 1 of 4
  asks for   2 nvidia.com/gpu  (1 replica x 2)
  in use     3 of 4            (ResourceQuota inference-gpu-quota)
  free       1
  to fix     ask for at most 1 GPU per replica, or free 1: {holders}
  contact    #gpu-platform
  decision   {asked.id}"""
    )


def test_both_languages_tell_the_same_facts() -> None:
    for case in (*DENIALS, *WARNINGS):
        english, chinese = (case.answer(language) for language in LANGUAGES)
        assert [each.code for each in english.findings] == [each.code for each in chinese.findings]
        assert len(english.message.splitlines()) == len(chinese.message.splitlines())


if __name__ == "__main__":
    GOLDENS.write_text(rendered())
