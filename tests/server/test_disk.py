"""The disk of a running server is full: it answers, says so, and accounts for what could not be written."""

import resource
from pathlib import Path

from tests.server.serving import Serving
from tests.server.standin import golden
from webhook.audit.verify import verify
from webhook.certs.issue import LocalFiles


def test_b72c_a_full_disk_costs_records_and_no_answer(tmp_path: Path, files: LocalFiles, policy_folder: Path) -> None:
    """No file of the server may grow for a while, which is what a full disk is to it."""

    def review(number: int) -> str:
        answer = serving.once("/mutate", golden("pod-create", uid=f"uid-{number}")).json
        return str(answer["response"]["auditAnnotations"]["decision"])

    with Serving(tmp_path, files, policy_folder) as serving:
        kept = [review(1)]
        [segment] = serving.audit.glob("*.jsonl")
        _, most = resource.prlimit(serving.worker, resource.RLIMIT_FSIZE)
        resource.prlimit(serving.worker, resource.RLIMIT_FSIZE, (segment.stat().st_size, most))
        assert len({review(number) for number in (2, 3, 4)}) == 3, "answered"
        ready = serving.once("/readyz")
        assert (ready.status, ready.json["status"]) == (200, "degraded")
        assert "audit: " in ready.json["reasons"][0] and "records are lost" in ready.json["reasons"][0]
        assert serving.metric("gpu_webhook_audit_gaps_total") == 3
        assert serving.metric("gpu_webhook_audit_ok") == 0
        resource.prlimit(serving.worker, resource.RLIMIT_FSIZE, (most, most))
        kept.append(review(5))
        assert serving.once("/readyz").json == {"status": "ok", "reasons": []}
        assert serving.metric("gpu_webhook_audit_ok") == 1
        assert serving.stop() == 0
    assert [(each["id"], each["seq"], each["lost"]) for each in serving.records()] == [
        (kept[0], 1, 0),
        (kept[1], 5, 3),
    ]
    [report] = verify(serving.audit)
    assert (report.state, report.records, report.lost) == ("intact", 2, 3)
