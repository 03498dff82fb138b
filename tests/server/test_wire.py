"""AdmissionReview v1 as bytes: what is read, what is refused and what is answered."""

import base64
import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from webhook.decision.request import Request, decision_id
from webhook.decision.result import Decision, Finding, PatchOperation
from webhook.k8s.objects import Pod, Scale, Workload
from webhook.server import wire
from webhook.server.wire import WireError, decode, encode, encode_error

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
NOW = 1_790_000_000.0


@cache
def recorded() -> list[tuple[str, str, dict[str, Any]]]:
    """(scenario, phase, review) of every recorded review."""
    found = []
    for path in sorted(GOLDEN.glob("*.json")):
        scenario = json.loads(path.read_text(encoding="utf-8"))
        found += [(path.stem, entry["phase"], entry["review"]) for entry in scenario["reviews"]]
    return found


def review(scenario: str = "pod-create", phase: str = "mutate", **changes: Any) -> dict[str, Any]:
    """A recorded review with top keys of its request replaced; a key given as `...` is removed."""
    found = copy.deepcopy(next(review for name, its, review in recorded() if (name, its) == (scenario, phase)))
    for key, value in changes.items():
        if value is ...:
            del found["request"][key]
        else:
            found["request"][key] = value
    return found


def read(document: Any, phase: Any = "mutate") -> Request:
    return decode(json.dumps(document).encode(), phase, NOW)


def refusal(body: bytes) -> str:
    with pytest.raises(WireError) as caught:
        decode(body, "mutate", NOW)
    assert caught.value.status == 400
    assert "\n" not in caught.value.reason
    return caught.value.reason


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "phase", "document"), recorded())
def test_every_recorded_review_reads_as_what_it_is(scenario: str, phase: Any, document: dict[str, Any]) -> None:
    asked = document["request"]
    request = read(document, phase)
    assert (request.uid, request.phase, request.operation) == (asked["uid"], phase, asked["operation"])
    assert request.id == decision_id(asked["uid"], phase)
    assert (request.group, request.kind) == (asked["kind"]["group"], asked["kind"]["kind"])
    assert (request.resource, request.sub_resource) == (asked["resource"]["resource"], asked.get("subResource"))
    assert request.namespace == "ai-training"
    assert request.user.name == asked["userInfo"]["username"]
    assert list(request.user.groups) == asked["userInfo"]["groups"]
    assert request.dry_run is asked["dryRun"]
    assert request.now == NOW


@pytest.mark.parametrize(
    ("scenario", "kind"),
    [
        ("pod-create", Pod),
        ("deployment-apply", Workload),
        ("statefulset-create", Workload),
        ("replicaset-create", Workload),
        ("daemonset-create", Workload),
        ("job-create", Workload),
        ("cronjob-create", Workload),
        ("deployment-scale", Scale),
    ],
)
def test_objects_of_judged_kinds_are_typed(scenario: str, kind: type) -> None:
    assert type(read(review(scenario)).object) is kind


class TestInOnePass:
    """A review of a Pod or a new workload is decoded at once if its head says so; the odd ones go the longer way."""

    @staticmethod
    def ways(document: dict[str, Any], phase: Any = "mutate") -> tuple[Any, Any]:
        """What both ways make of a review; with the kind's keys in another order its head is not recognized."""
        found: list[Any] = []
        turned = copy.deepcopy(document)
        turned["request"]["kind"] = dict(reversed(document["request"]["kind"].items()))
        for each in (document, turned):
            body = json.dumps(each, separators=(",", ":"))
            try:
                found.append(decode(body.encode(), phase, NOW))
            except WireError as error:
                found.append(error.reason)
        return found[0], found[1]

    @pytest.mark.parametrize(("scenario", "phase", "document"), recorded())
    def test_both_ways_read_every_recorded_review_alike(self, scenario: str, phase: Any, document: Any) -> None:
        at_once, closely = self.ways(document, phase)
        assert at_once == closely

    @pytest.mark.parametrize(
        "changes",
        [
            {"uid": ""},
            {"uid": 7},
            {"object": None},
            {"object": ...},
            {"object": "a text"},
            {"object": {"spec": {"containers": "none"}}},
            {"object": {"metadata": None, "spec": {"containers": [{"name": None}]}}},
            {"object": {"metadata": {"name": "ü"}}},
            {"oldObject": {"metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z"}}, "operation": "UPDATE"},
            {"oldObject": {"spec": 1}, "object": None, "operation": "DELETE", "name": ""},
            {"oldObject": {"metadata": {"name": "gone"}}, "object": None, "operation": "DELETE", "name": ""},
            {"operation": "CONNECT"},
            {"operation": "PATCH"},
            {"subResource": "ephemeralcontainers"},
            {"subResource": "exec", "operation": "CONNECT", "object": {"kind": "PodExecOptions"}},
            {"dryRun": True},
            {"dryRun": "yes"},
            {"name": "", "namespace": ...},
            {"userInfo": {"groups": ["a"]}},
            {"kind": {"group": "", "version": "v1", "kind": "Pod", "extra": 1}},
            {"resource": {"group": "", "version": "v1"}},
        ],
    )
    @pytest.mark.parametrize("scenario", ["pod-create", "deployment-apply"])
    def test_and_every_odd_one(self, scenario: str, changes: dict[str, Any]) -> None:
        at_once, closely = self.ways(review(scenario, **changes))
        assert at_once == closely

    @pytest.mark.parametrize(("scenario", "kind"), [("pod-create", Pod), ("deployment-apply", Workload)])
    def test_as_the_api_server_writes_it_one_pass_does(
        self, monkeypatch: pytest.MonkeyPatch, scenario: str, kind: Any
    ) -> None:
        monkeypatch.delattr(wire, "_read_envelope")
        body = json.dumps(review(scenario), separators=(",", ":")).encode()
        assert isinstance(decode(body, "mutate", NOW).object, kind)

    def test_a_head_that_is_not_the_kind_proves_nothing(self) -> None:
        """Both keys say `kind`, the last one counts."""
        deployment = json.dumps(review("deployment-apply")["request"])[1:]
        head = '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{'
        body = head + '"kind":{"group":"","version":"v1","kind":"Pod"},' + deployment + "}"
        assert isinstance(decode(body.encode(), "mutate", NOW).object, Workload)

    def test_what_is_no_utf_8_is_refused_with_its_place(self) -> None:
        body = json.dumps(review("pod-create"), separators=(",", ":")).encode().replace(b'"train"', b'"\xfftrain"')
        assert "not UTF-8" in refusal(body)


@pytest.mark.parametrize("scenario", ["eviction", "pod-ephemeral-container"])
def test_b49_subresources_that_are_not_ours_are_never_looked_into(scenario: str) -> None:
    document = review(scenario, object={"spec": "anything"}, oldObject=None)
    assert read(document).object is None


@pytest.mark.parametrize(
    "kind",
    [
        {"group": "", "version": "v1", "kind": "Binding"},
        {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenReview"},
        {"group": "apps", "version": "v1beta1", "kind": "Deployment"},
        {"group": "example.com", "version": "v1", "kind": "Pod"},
    ],
)
def test_other_kinds_pass_whatever_they_hold(kind: dict[str, str]) -> None:
    assert read(review(kind=kind, object=[1, "two"])).object is None


def test_v1_absent_strings_and_null_objects() -> None:
    document = review(name=..., namespace=..., dryRun=..., userInfo={}, object=None, operation="CONNECT")
    request = read(document)
    assert (request.name, request.namespace, request.sub_resource) == ("", "", None)
    assert (request.object, request.old_object) == (None, None)
    assert (request.user.name, request.user.groups, request.dry_run) == ("", (), False)


def test_v1_null_strings_read_as_absent() -> None:
    document = review(name=None, namespace=None, subResource=None, dryRun=None, userInfo={"username": None})
    request = read(document)
    assert (request.name, request.namespace, request.sub_resource, request.dry_run) == ("bare", "", None, False)


def test_v3_the_namespace_of_the_request_counts_b27_not_that_of_the_object() -> None:
    document = review("pod-generate-name")
    del document["request"]["object"]["metadata"]["namespace"]
    request = read(document)
    assert (request.namespace, request.name) == ("ai-training", "")
    assert isinstance(request.object, Pod)
    assert request.object.metadata.generate_name


def test_h5_a_deletecollection_has_its_name_in_the_old_object() -> None:
    gone = {"metadata": {"name": "p1"}}
    assert read(review("deployment-delete", name=..., oldObject=gone)).name == "p1"
    other = review("deployment-delete", name=..., oldObject=gone, kind={"group": "x", "version": "v1", "kind": "Y"})
    assert read(other).name == "p1"


def test_h5_nothing_in_an_object_that_goes_is_an_error() -> None:
    request = read(review("deployment-delete", oldObject={"metadata": {"name": "d"}, "spec": {"replicas": "many"}}))
    assert (request.object, request.old_object) == (None, None)


def test_raw_objects_come_with_an_update_of_a_workload_only() -> None:
    update = read(review("deployment-rollout"))
    assert update.raw_object is not None
    assert update.raw_old_object is not None
    assert json.loads(update.raw_object) == review("deployment-rollout")["request"]["object"]
    assert read(review("deployment-apply")).raw_object is None
    assert read(review("pod-label-update")).raw_object is None


def test_o2_managed_fields_stay_raw() -> None:
    request = read(review())
    assert isinstance(request.object, Pod)
    assert b"f:containers" in bytes(request.object.metadata.managed_fields)  # type: ignore[arg-type]


def test_b14_nulls_read_as_absent_everywhere_but_where_a_patch_must_know() -> None:
    document = review()
    asked = document["request"]["object"]
    asked["metadata"] |= {"labels": None, "annotations": None, "generateName": None}
    asked["spec"] |= {"affinity": {"nodeAffinity": None}, "nodeSelector": None, "initContainers": None}
    asked["spec"] |= {"priority": None}
    asked["spec"]["containers"][0]["name"] = None
    found = read(document).object
    assert isinstance(found, Pod)
    assert found.spec is not None
    assert found.metadata.labels is None
    assert found.spec.affinity is not None
    assert found.spec.affinity.node_affinity is None
    assert found.spec.priority is None  # there, and null: not UNSET (V20)


# -- refusing ---------------------------------------------------------------------------------------------------------


def body_of(**changes: Any) -> bytes:
    return json.dumps(review(**changes)).encode()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        (b"[]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b"{}", 'kind: expected "AdmissionReview"'),
        (b"\xff\xfe{", "not UTF-8: invalid start byte at byte 0"),
        (b"\xef\xbb\xbf{}", "JSON is malformed"),
        (body_of()[:-1], "truncated"),
        (body_of() + b"x", "trailing characters"),
        (body_of().replace(b"busybox", b"\xff"), "not UTF-8"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (body_of().replace(b"busybox:1.36", b'", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b', "y": "'), "nested"),
        (json.dumps(review() | {"kind": "Pod"}).encode(), 'kind: expected "AdmissionReview", got "Pod"'),
        (json.dumps(review() | {"request": None}).encode(), "request: missing"),
        (json.dumps(review() | {"request": []}).encode(), "request: Expected `object"),
        (body_of(uid=...), "request: Object missing required field `uid`"),
        (body_of(uid=""), "request.uid: must not be empty"),
        (body_of(uid=7), "request.uid: Expected `str`, got `int`"),
        (body_of(kind="Pod"), "request.kind: Expected `object`"),
        (body_of(operation="EXPLODE"), "request.operation: Invalid enum value 'EXPLODE'"),
        (body_of(object=None), "request.object: null, but a CREATE of Pod carries an object"),
        (body_of(object=[]), "request.object: Expected `object`, got `array`"),
        (body_of(object={"spec": {"priority": "high"}}), "request.object.spec.priority: Expected `int | null`"),
        (body_of(object={"spec": {"containers": {}}}), "request.object.spec.containers: Expected"),
    ],
)
def test_b25_what_is_no_review_is_refused_with_its_place(body: bytes, says: str) -> None:
    assert says in refusal(body)


@pytest.mark.parametrize("version", ["admission.k8s.io/v1beta1", "admission.k8s.io/v2", "v1", ""])
def test_b25_only_v1_is_spoken(version: str) -> None:
    reason = refusal(json.dumps(review() | {"apiVersion": version}).encode())
    assert reason == f'apiVersion: expected "admission.k8s.io/v1", got "{version}"'


# -- answering --------------------------------------------------------------------------------------------------------

PATCH = (
    PatchOperation("remove", "/spec/priority"),
    PatchOperation("add", "/metadata/annotations", {"gpu.platform/injected": None}),
)


def answered(decision: Decision, phase: Any = "mutate") -> dict[str, Any]:
    document = json.loads(encode(read(review(phase=phase), phase), decision))
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert document["response"]["uid"] == review(phase=phase)["request"]["uid"]
    return dict(document["response"])


def test_v6_a_plain_allow() -> None:
    response = answered(Decision(id="7f3a9c2104be", verdict="allow"))
    assert response.keys() == {"uid", "allowed", "auditAnnotations"}
    assert response["allowed"] is True


def test_v7_v9_a_patch_is_base64_of_an_array_and_comes_with_its_type() -> None:
    response = answered(Decision(id="7f3a9c2104be", verdict="patch", patch=PATCH))
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"], validate=True)) == [
        {"op": "remove", "path": "/spec/priority"},
        {"op": "add", "path": "/metadata/annotations", "value": {"gpu.platform/injected": None}},
    ]


def test_v7_an_empty_patch_is_no_patch() -> None:
    assert answered(Decision(id="7f3a9c2104be", verdict="patch")).keys() == {"uid", "allowed", "auditAnnotations"}


def test_v7_validate_never_patches() -> None:
    response = answered(Decision(id="7f3a9c2104be", verdict="patch", patch=PATCH), "validate")
    assert response["allowed"] is True
    assert "patch" not in response
    assert "patchType" not in response


def test_v14_v15_a_denial_is_403_forbidden_with_its_text_whole_and_carries_no_patch() -> None:
    text = "GPU quota exceeded in namespace ai-inference\n  decision   7f3a9c2104be"
    response = answered(Decision(id="7f3a9c2104be", verdict="deny", message=text, patch=PATCH))
    assert response["allowed"] is False
    assert response["status"] == {"code": 403, "reason": "Forbidden", "message": text}
    assert "patch" not in response


def test_b28_v18_warnings_fit_into_a_header() -> None:
    warnings = ("most important", "two\nlines\tand \x1b[31mcolour\x7f", "池" * 300)
    response = answered(Decision(id="7f3a9c2104be", verdict="allow", warnings=warnings))
    assert response["warnings"] == ["most important", "two lines and  [31mcolour ", "池" * 255 + "…"]


def test_v19_audit_annotations_have_plain_keys() -> None:
    finding = Finding("QuotaExceeded", "x")
    decision = Decision(id="7f3a9c2104be", verdict="allow", would="deny", rule="training", findings=(finding,))
    notes = answered(decision)["auditAnnotations"]
    assert notes == {"decision": "7f3a9c2104be", "verdict": "allow", "would": "deny", "rule": "training"}
    assert all(key.isalpha() for key in notes)


def test_a_refusal_to_judge_is_a_kubernetes_status() -> None:
    assert json.loads(encode_error(413, "too large")) == {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": 413,
        "message": "too large",
    }
