"""Metrics stay few whatever names users invent, and forget what is gone (B66)."""

import random

import pytest
from prometheus_client.core import Metric

from tests.server.standin import golden
from webhook.decision.result import Decision, Finding
from webhook.server import metrics
from webhook.server.metrics import DecisionCounts, Metrics, Reading
from webhook.server.wire import decode


def samples(counts: DecisionCounts) -> dict[tuple[str, ...], float]:
    family: Metric
    [family] = counts.collect()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def test_b66_fifty_thousand_decisions_in_three_hundred_namespaces_stay_few_series() -> None:
    counts = DecisionCounts()
    chance = random.Random(66)
    for _ in range(50_000):
        counts.add("mutate", f"ns-{chance.randrange(300)}", "research", chance.choice(("allow", "deny")), "")
    found = samples(counts)
    assert sum(found.values()) == 50_000
    assert len({labels[1] for labels in found}) == metrics.NAMESPACES + 1
    assert sum(value for labels, value in found.items() if labels[1] == metrics.OTHER) > 0
    assert len(found) <= 2 * (metrics.NAMESPACES + 1)


def test_b66_no_label_holds_a_name_a_user_or_a_message() -> None:
    page = Metrics()
    request = decode(golden("pod-create-as-user"), "mutate", 0.0)
    page.decided(request, Decision(id=request.id, verdict="deny", message="secret", findings=()), 0.001)
    text = page.render().decode()
    assert 'namespace="ai-training"' in text
    for word in (request.name, request.user.name, request.uid, "secret"):
        assert word not in text


def test_b66_the_number_of_series_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES", 10)
    counts = DecisionCounts()
    for number in range(100):
        counts.add("mutate", "ns", f"rule-{number}", "allow", "")
    found = samples(counts)
    assert len(found) == 11
    assert found[("mutate", "other", "other", "allow", "other")] == 90


def test_b66_namespaces_that_are_gone_expire_and_make_room() -> None:
    now = [0.0]
    counts = DecisionCounts(clock=lambda: now[0])
    for number in range(metrics.NAMESPACES):
        counts.add("mutate", f"old-{number}", "", "allow", "")
    now[0] = metrics.EXPIRY / 2
    counts.add("mutate", "old-0", "", "allow", "")
    counts.add("mutate", "new", "", "allow", "")
    now[0] = metrics.EXPIRY + 1
    assert set(samples(counts)) == {("mutate", "old-0", "", "allow", ""), ("mutate", "other", "", "allow", "")}
    counts.add("mutate", "new", "", "allow", "")
    assert ("mutate", "new", "", "allow", "") in samples(counts)


def test_the_first_finding_is_the_code_and_uses_of_exemptions_are_counted() -> None:
    page = Metrics()
    request = decode(golden("pod-create"), "mutate", 0.0)
    findings = (Finding("Exempt", "exempt (sre)"), Finding("BreakGlass", "until"))
    page.decided(request, Decision(id=request.id, verdict="allow", rule="training", findings=findings), 0.002)
    text = page.render().decode()
    labels = 'code="Exempt",namespace="ai-training",phase="mutate",rule="training",verdict="allow"'
    assert f"gpu_webhook_decisions_total{{{labels}}} 1.0" in text
    assert 'gpu_webhook_exemption_uses_total{code="Exempt"} 1.0' in text
    assert 'gpu_webhook_exemption_uses_total{code="BreakGlass"} 1.0' in text


def test_states_are_read_when_asked_and_know_gauges_from_counters() -> None:
    value = [1.0]
    page = Metrics([lambda: [Reading("x_seconds", "X.", value[0], {"a": "b"}), Reading("y_total", "Y.", 7)]])
    value[0] = 2.0
    text = page.render().decode()
    assert 'x_seconds{a="b"} 2.0' in text
    assert "# TYPE y_total counter" in text
    assert "y_total 7.0" in text
