"""Alerts and the Grafana dashboard use only metrics that exist, and the alerts fire when they should (promtool)."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import needs
from tests.exporter.samples import POLICIES, record, recorded, status
from webhook.audit.ledger import Ledger
from webhook.exporter.cost import Utilisation, samples_of
from webhook.exporter.decisions import Reader, Tally
from webhook.exporter.metrics import StatusMetrics
from webhook.exporter.status import Observed
from webhook.server import gauges
from webhook.server.metrics import Metrics
from webhook.server.reload import PolicyFolder

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES: Any = yaml.safe_load((MONITORING / "prometheus-rules.yaml").read_text())
DASHBOARD: Any = json.loads((MONITORING / "grafana-dashboard.json").read_text())
OURS = re.compile(r"\bgpu_(?:webhook|exporter)_[a-z_0-9]+")
WORDS = re.compile(r"\bgpu_[a-z_0-9]+\{([^}]*)\}")
LABEL = re.compile(r'([a-z]+)\s*(?:=~|!~|!=|=)\s*"')


@pytest.fixture(scope="module")
def existing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Series name -> labels, of a server and an exporter that have had something to do."""
    ledger = Ledger(tmp_path_factory.mktemp("audit"))
    certificate: Any = SimpleNamespace(context=lambda: None, error=None, leaf=("", 1.0), ca=("", 2.0))
    freshness: Any = SimpleNamespace(synced=True, age=lambda: 1.0)
    sources = [
        gauges.of_policy(PolicyFolder(POLICIES), "gpu.platform/team"),
        gauges.of_certificate(certificate),
        gauges.of_ledger(ledger),
        gauges.of_facts(freshness),
    ]
    server = Metrics(sources)
    server._decisions.add("mutate", "a", "r", "deny", "QuotaExceeded")
    server._exempt.labels("Exempt").inc()
    server.refused(400)
    exporter = StatusMetrics()
    exporter.update(status(recorded("busy-cluster"), _observed()))
    found: dict[str, set[str]] = {}
    for text in (server.render(), exporter.text()):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    yield found
    ledger.close()


def _observed() -> Observed:
    tally = Tally()
    reader = Reader(tally)
    reader.add([record(1, "deny")])
    reader.flush()
    pod = next(one for one in recorded("busy-cluster").pods if one.spec and one.spec.node_name)
    labels = {"UUID": "G", "namespace": pod.metadata.namespace, "pod": pod.metadata.name}
    utilisation = Utilisation("prometheus", samples_of([{"metric": labels, "value": [0, "40"]}]))
    return Observed(tally=tally, utilisation=utilisation, stream_totals={"states": {"open": 1}})


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = [one["definition"] for one in DASHBOARD["templating"]["list"] if "definition" in one]
    return [rule["expr"] for rule in alerts()] + panels + variables


def test_every_metric_that_is_asked_for_exists(existing: dict[str, set[str]]) -> None:
    asked = {name for expression in expressions() for name in OURS.findall(expression)}
    assert len(asked) > 25
    assert sorted(asked - existing.keys()) == []


def test_every_label_that_is_asked_for_exists(existing: dict[str, set[str]]) -> None:
    for expression in expressions():
        for match in WORDS.finditer(expression):
            name = match[0].partition("{")[0]
            assert set(LABEL.findall(match[1])) <= existing[name], f"{name} in {expression}"


def test_what_must_be_alerted_is() -> None:
    names = {rule["alert"] for rule in alerts()}
    assert names >= {
        "GpuAllocatedButIdle",
        "GpuDenialsRising",
        "GpuAuditRecordsLost",
        "GpuAuditGap",
        "GpuWebhookCertificateEnding",
        "GpuFactsStale",
        "GpuPolicyLoadFailed",
    }
    for rule in alerts():
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_each_alert_is_explained_in_the_documentation() -> None:
    page = (MONITORING.parents[1] / "docs" / "dashboard.md").read_text()
    assert [rule["alert"] for rule in alerts() if f"`{rule['alert']}`" not in page] == []


def test_the_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    promtool = needs.program("promtool", "apt-get install prometheus")
    plain = [
        {**group, "rules": [_without_annotations(rule) for rule in group["rules"]]} for group in RULES["spec"]["groups"]
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": plain}))
    (tmp_path / "tests.yaml").write_text((MONITORING / "alerts-test.yaml").read_text())
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _without_annotations(rule: dict[str, Any]) -> dict[str, Any]:
    """Texts are not compared; they are for people."""
    return {key: value for key, value in rule.items() if key != "annotations"}


def test_every_alert_has_a_unit_test() -> None:
    tested = {
        case["alertname"]
        for group in yaml.safe_load((MONITORING / "alerts-test.yaml").read_text())["tests"]
        for case in group["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert tested == {rule["alert"] for rule in alerts()}


def test_templates_in_annotations_are_understood(tmp_path: Path) -> None:
    promtool = needs.program("promtool", "apt-get install prometheus")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES["spec"]))
    done = subprocess.run(
        [promtool, "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_overlap_and_name_their_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"]
