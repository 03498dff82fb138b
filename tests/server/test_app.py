"""The application: which requests are answered how, what is recorded, what is counted."""

import io
import json
import time
from typing import Any

import pytest

from tests.server.standin import Site, Source, View, golden, policy
from webhook.decision.facts import MustWaitError, Note
from webhook.decision.request import Request
from webhook.decision.result import Decision, Finding, PatchOperation
from webhook.k8s.objects import Workload
from webhook.server.reviews import BODY_LIMIT


def deny(request: Request, *_: Any, **__: Any) -> Decision:
    finding = Finding("QuotaExceeded", "quota")
    return Decision(id=request.id, verdict="deny", rule="all", message="quota", findings=(finding,))


def noting(request: Request, *_: Any, **__: Any) -> Decision:
    """An engine that forgets that a dry run admits nothing."""
    note = Note("ai-training", "Deployment", "x", "u", 2, Workload(), request.now)
    return Decision(id=request.id, verdict="allow", note=note)


def test_a_review_is_answered_recorded_and_counted() -> None:
    site = Site()
    answer = site.post(golden("pod-create"))
    assert (answer.status_code, answer.content_type) == (200, "application/json")
    assert answer.json["response"]["allowed"] is True
    [record] = site.records
    assert record["uid"] == answer.json["response"]["uid"]
    assert record["id"] == answer.json["response"]["auditAnnotations"]["decision"]
    assert record["policy"]["revision"] == policy().revision
    assert record["latencyMs"] > 0
    labels = {"phase": "mutate", "namespace": "ai-training", "rule": "all", "verdict": "allow", "code": ""}
    assert site.metric("gpu_webhook_decisions_total", **labels) == 1
    assert site.metric("gpu_webhook_review_seconds_count", phase="mutate") == 1


def test_the_phase_comes_from_the_path() -> None:
    def patch(request: Request, *_: Any, **__: Any) -> Decision:
        return Decision(id=request.id, verdict="patch", patch=(PatchOperation("remove", "/spec/priority"),))

    site = Site(patch)
    assert "patch" in site.post(golden("pod-create"), "/mutate").json["response"]
    assert "patch" not in site.post(golden("pod-create", "validate"), "/validate").json["response"]
    assert [record["phase"] for record in site.records] == ["mutate", "validate"]


@pytest.mark.parametrize("decide", [None, deny])
def test_b57_a_dry_run_gets_the_same_answer_and_never_counts(decide: Any) -> None:
    site = Site(decide) if decide else Site()
    wet = site.post(golden("pod-dry-run-server", dryRun=False)).json
    counted = site.metric("gpu_webhook_decisions_total")
    dry = site.post(golden("pod-dry-run-server")).json
    assert dry == wet
    assert site.records[-1]["dryRun"] is True
    assert site.metric("gpu_webhook_decisions_total") == counted == 1
    assert site.metric("gpu_webhook_review_seconds_count") == 1


def test_b57_what_a_dry_run_admits_is_not_remembered() -> None:
    source = Source()
    site = Site(noting, source)
    site.post(golden("deployment-apply", "validate", dryRun=True), "/validate")
    assert source.notes == []
    site.post(golden("deployment-apply", "validate"), "/validate")
    assert len(source.notes) == 1


def test_a_review_that_must_wait_leaves_no_trace_until_it_has_waited() -> None:
    def stale(request: Request, _policy: Any, facts: Any, **_: Any) -> Decision:
        return Decision(id=request.id, verdict="deny", message="quota", stale=not facts.is_fresh)

    site = Site(stale, Source(View(is_fresh=True)))
    with pytest.raises(MustWaitError):
        site.app.answer("/mutate", golden("pod-create"), time.monotonic(), may_wait=False)
    assert (site.records, site.metric("gpu_webhook_decisions_total")) == ([], 0)
    status, _ = site.app.answer("/mutate", golden("pod-create"), time.monotonic())
    assert (status, len(site.records), site.metric("gpu_webhook_decisions_total")) == (200, 1, 1)


def test_a_fault_while_judging_is_allowed_recorded_and_counted_and_shows_no_trace() -> None:
    def broken(*_: Any, **__: Any) -> Decision:
        raise ZeroDivisionError("secret detail")

    site = Site(broken)
    answer = site.post(golden("pod-create"))
    assert answer.json["response"]["allowed"] is True
    assert "secret detail" not in answer.text
    assert site.records[0]["findings"][0]["code"] == "InternalError"
    assert site.metric("gpu_webhook_exceptions_total", where="decide") == 1


def test_a_brown_out_is_allowed_with_a_warning_and_recorded_as_over_budget() -> None:
    """A wrong pool that was found too late is let in: no slowness of ours stops a workload (rule 6)."""
    site = Site(deny, budget=0.0)
    response = site.post(golden("pod-create")).json["response"]
    assert response["allowed"] is True
    assert len(response["warnings"]) == 1
    [record] = site.records
    assert (record["verdict"], [each["code"] for each in record["findings"]]) == ("allow", ["OverBudget"])
    assert site.metric("gpu_webhook_decisions_total", verdict="allow", code="OverBudget") == 1


def test_a_fault_while_recording_still_answers_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    monkeypatch.setattr("webhook.audit.record.encode", lambda *_: 1 / 0)
    assert site.post(golden("pod-create")).json["response"]["allowed"] is True
    assert site.metric("gpu_webhook_exceptions_total", where="record") == 1


def test_a_fault_while_answering_is_a_500_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    monkeypatch.setattr("webhook.server.wire.encode", lambda *_: 1 / 0)
    answer = site.post(golden("pod-create"))
    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    assert answer.json["message"] == "internal error; the server's log has it"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"[]", "Expected `object`"),
        (golden("pod-create").replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"), "apiVersion"),
        (golden("pod-create", uid=""), "uid"),
        (b"[" * 50_000 + b"]" * 50_000, "malformed|array"),
        (b'{"request":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b"\xff\xfe", "UTF-8"),
        (golden("pod-create", object=None), "request.object: null"),
    ],
)
def test_b25_b29_bad_bodies_are_400_with_a_reason_and_no_record(body: bytes, says: str) -> None:
    site = Site()
    answer = site.post(body)
    assert answer.status_code == 400
    assert any(part in answer.json["message"] for part in says.split("|"))
    assert "Traceback" not in answer.text
    assert site.records == []
    assert site.metric("gpu_webhook_refused_requests_total", status="400") == 1


def test_object_null_is_allowed_where_kubernetes_sends_it() -> None:
    answer = Site().post(golden("deployment-delete"))
    assert answer.json["response"]["allowed"] is True


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/vnd.k8s"])
def test_other_content_types_are_415(content_type: str) -> None:
    answer = Site().post(golden("pod-create"), content_type=content_type)
    assert (answer.status_code, answer.headers["Connection"]) == (415, "close")
    assert content_type in answer.json["message"]


def test_a_charset_parameter_is_fine() -> None:
    assert Site().post(golden("pod-create"), content_type="application/json; charset=utf-8").status_code == 200


def test_b29_a_declared_length_above_the_limit_is_413_unread() -> None:
    class Untouched(io.RawIOBase):
        def read(self, _size: int = -1) -> bytes:
            raise AssertionError("must not be read")

    body: Any = Untouched()
    environ = {"CONTENT_LENGTH": str(BODY_LIMIT + 1), "wsgi.input": body}
    answer = Site().client.post("/mutate", content_type="application/json", environ_overrides=environ)
    assert (answer.status_code, answer.headers["Connection"]) == (413, "close")


def test_b29_eight_mib_are_read() -> None:
    document = json.loads(golden("pod-create"))
    document["request"]["object"]["metadata"]["annotations"] = {"big": "x" * (8 << 20)}
    assert Site().post(json.dumps(document).encode()).status_code == 200


def test_methods_and_paths_that_are_not_ours() -> None:
    client = Site().client
    wrong = client.get("/mutate")
    assert (wrong.status_code, wrong.headers["Allow"], wrong.json["code"]) == (405, "POST", 405)
    assert client.post("/healthz", data=b"x").headers["Connection"] == "close"
    assert client.options("/validate").status_code == 405
    assert client.get("/nowhere").status_code == 404
    assert "Connection" not in client.get("/nowhere").headers


def test_health_pages() -> None:
    site = Site()
    assert site.client.get("/healthz").json == {"status": "ok"}
    assert site.client.get("/readyz").json == {"status": "ok", "reasons": []}
    site.health.drain()
    assert site.client.get("/readyz").status_code == 503
    assert site.client.get("/healthz").status_code == 200
    assert b"gpu_webhook_decisions_total" in site.client.get("/metrics").data
