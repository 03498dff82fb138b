"""What Prometheus sees: the figures of the status, and a number of series that users cannot raise."""

from prometheus_client.parser import text_string_to_metric_families

from tests.exporter.samples import Json, namespace, pod, record, recorded, status
from webhook.exporter.decisions import Reader, Tally
from webhook.exporter.metrics import NAMESPACES, StatusMetrics
from webhook.exporter.status import Observed
from webhook.exporter.view import view_of

FORBIDDEN = {"pod", "name", "uid", "user", "image", "message", "stream", "workload"}


def samples(document: Json) -> dict[tuple[str, tuple[str, ...]], float]:
    metrics = StatusMetrics()
    metrics.update(document)
    families = text_string_to_metric_families(metrics.text().decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_the_figures_are_those_of_the_status() -> None:
    found = samples(status(recorded("busy-cluster")))
    assert found["gpu_exporter_gpu_used", ("ai-training", "nvidia.com/gpu")] == 20
    assert found["gpu_exporter_gpu_hard", ("ai-training", "nvidia.com/gpu")] == 24
    assert found["gpu_exporter_gpu_requested", ("ai-training", "amd.com/gpu")] == 4
    assert found["gpu_exporter_gpu_committed", ("ai-inference", "nvidia.com/gpu")] == 3
    assert found["gpu_exporter_pending_gpu_pods", ("capacity",)] == 5
    assert found["gpu_exporter_pending_gpu_pods", ("pool",)] == 1
    assert found["gpu_exporter_stuck", ("quota",)] == 1
    assert found["gpu_exporter_idle_cost_upper_bound_per_hour", ()] == 91.2
    assert found["gpu_exporter_cost_per_hour", ("ai-training", "allocated")] == 38.4
    assert ("gpu_exporter_cost_per_hour", ("ai-training", "idle")) not in found, "unknown is not zero"
    assert found["gpu_exporter_policy_loaded", ()] == 1


def test_nothing_is_said_before_the_first_status() -> None:
    assert StatusMetrics().text() == b""


def test_b66_series_are_bounded_whatever_users_name() -> None:
    names = [f"ns-{number}" for number in range(NAMESPACES + 200)]
    view = view_of([*map(namespace, names), *(pod("p", 1, namespace=name) for name in names)])
    tally = Tally()
    reader = Reader(tally)
    lines = [record(n, "deny", namespace=names[n % len(names)], name=f"w-{n}", user=f"u{n}") for n in range(5_000)]
    reader.add(lines)
    reader.flush()
    found = samples(status(view, Observed(tally=tally)))
    assert found["gpu_exporter_gpu_requested", ("other", "nvidia.com/gpu")] == 200
    decisions = {labels: value for (name, labels), value in found.items() if name == "gpu_exporter_decisions_total"}
    assert len(decisions) == NAMESPACES + 1 and sum(decisions.values()) == 5_000
    assert len(found) < 10 * NAMESPACES


def test_b66_no_label_carries_what_users_write() -> None:
    metrics = StatusMetrics()
    metrics.update(status(recorded("busy-cluster")))
    labels = {
        label
        for family in text_string_to_metric_families(metrics.text().decode())
        for s in family.samples
        for label in s.labels
    }
    assert labels and not labels & FORBIDDEN
