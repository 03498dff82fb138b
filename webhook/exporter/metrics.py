"""What Prometheus can ask of the exporter: computed from the published status, few series whatever users name (B66)."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

NAMESPACES = 500
"""Namespaces with series of their own, the largest first; the rest is summed up as `other`."""
OTHER = "other"


class StatusMetrics(Collector):
    """Families of the latest status; nothing before the first one."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._status: Mapping[str, Any] | None = None

    def update(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def text(self) -> bytes:
        """The page for `/metrics`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        status = self._status
        if status is None:
            return
        yield from _gpus(status)
        yield from _costs(status)
        yield from _decisions(status)
        yield from _trust(status)


def _gauge(name: str, text: str, labels: Iterable[str], rows: Iterable[tuple[Iterable[str], Any]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"gpu_exporter_{name}", text, labels=tuple(labels))
    for values, amount in rows:
        family.add_metric(tuple(values), float(amount))
    return family


def _counter(
    name: str, text: str, labels: Iterable[str], rows: Iterable[tuple[Iterable[str], Any]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"gpu_exporter_{name}", text, labels=tuple(labels))
    for values, amount in rows:
        family.add_metric(tuple(values), float(amount))
    return family


def bounded(rows: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """`rows` by namespace (the first label) and more, with all but the largest NAMESPACES namespaces as `other`."""
    sizes: dict[str, float] = {}
    for key, amount in rows.items():
        sizes[key[0]] = sizes.get(key[0], 0.0) + amount
    if len(sizes) <= NAMESPACES:
        return dict(rows)
    kept = set(sorted(sizes, key=lambda name: (-sizes[name], name))[:NAMESPACES])
    summed: dict[tuple[str, ...], float] = {}
    for key, amount in rows.items():
        place = key if key[0] in kept else (OTHER, *key[1:])
        summed[place] = summed.get(place, 0.0) + amount
    return summed


def _gpus(status: Mapping[str, Any]) -> Iterator[Metric]:
    requested: dict[tuple[str, ...], float] = {}
    hard: dict[tuple[str, ...], float] = {}
    used: dict[tuple[str, ...], float] = {}
    committed: dict[tuple[str, ...], float] = {}
    for team in status["teams"]:
        namespace = team["namespace"]
        for row in team["gpus"]:
            key = (namespace, row["resource"])
            requested[key] = row["running"] + row["pending"]
            used[key] = row["used"]
            if row["hard"] is not None:
                hard[key] = row["hard"]
        committed[(namespace, "nvidia.com/gpu")] = team["gpuCommitted"]
    labels = ("namespace", "resource")
    for name, text, rows in (
        ("gpu_requested", "GPUs that pods which are not finished ask for.", requested),
        ("gpu_hard", "GPUs that the namespace's quota allows.", hard),
        ("gpu_used", "GPUs that the quota counts as used; without a quota, those that pods ask for.", used),
        ("gpu_committed", "GPUs promised to workloads whose pods do not exist yet.", committed),
    ):
        yield _gauge(name, text, labels, bounded(rows).items())
    gates = status["gates"]
    stuck = [((gate["gate"],), gate["stuck"]) for gate in gates if gate["gate"] != "running"]
    yield _gauge("stuck", "GPU pods and workloads that are stopped at a gate now.", ("gate",), stuck)
    pending = [((gate["gate"],), gate["pendingPods"]) for gate in gates if gate["gate"] != "running"]
    yield _gauge("pending_gpu_pods", "GPU pods that wait for a node, by the gate that stops them.", ("gate",), pending)
    seen = [((gate["gate"],), gate["occurrences"]) for gate in gates]
    yield _counter("stops", "How often GPU work was stopped at a gate: events and refusals.", ("gate",), seen)


def _costs(status: Mapping[str, Any]) -> Iterator[Metric]:
    rows: dict[tuple[str, ...], float] = {}
    busy: dict[tuple[str, ...], float] = {}
    for row in status["cost"]["byNamespace"]:
        for state in ("allocated", "pending", "idle", "unknown"):
            amount = row[f"{state}PerHour"]
            if amount != "unknown":
                rows[(row["name"], state)] = amount
        if row["utilisation"] != "unknown":
            busy[(row["name"],)] = row["utilisation"]
    text = "Cost of GPUs per hour in the currency of GpuPricing; idle and unknown are parts of allocated."
    yield _gauge("cost_per_hour", text, ("namespace", "state"), bounded(rows).items())
    yield _gauge("utilisation_ratio", "How busy GPUs with a known utilisation are.", ("namespace",), _first(busy))
    amount = status["summary"]["estimatedIdleCostPerHour"]
    yield _gauge("idle_cost_upper_bound_per_hour", "Idle cost, with unknown utilisation as idle.", (), [((), amount)])
    source = status["cost"]["utilisationSource"]
    failed = any(flag["code"] == "failed" for flag in status["cost"]["flags"])
    if source != "none":
        yield _gauge("utilisation_up", "Whether utilisation could be read (1) or not (0).", (), [((), not failed)])


def _first(rows: Mapping[tuple[str, ...], float]) -> list[tuple[tuple[str, ...], float]]:
    """The first NAMESPACES rows: ratios cannot be summed up as `other`."""
    return sorted(rows.items())[:NAMESPACES]


def _decisions(status: Mapping[str, Any]) -> Iterator[Metric]:
    decisions = status["decisions"]
    labels = ("namespace", "rule", "phase", "verdict")
    rows: dict[tuple[str, ...], float] = {
        tuple(row[name] for name in labels): row["count"] for row in decisions["counts"]
    }
    yield _counter("decisions", "Decisions in the audit streams (no dry runs).", labels, bounded(rows).items())
    yield _counter("denied", "Records with verdict deny.", (), [((), decisions["denied"])])
    yield _counter("admitted", "Validate records with verdict allow.", (), [((), decisions["admitted"])])
    codes = [((row["code"],), row["count"]) for row in decisions["codes"]]
    yield _counter("findings", "Findings in the audit streams.", ("code",), codes)
    missing = decisions["missing"]
    yield _gauge("pods_without_record", "Pods in GPU namespaces without a record.", (), [((), missing["count"])])
    outside = len(status["outsidePolicy"])
    yield _gauge("pods_outside_policy", "GPU pods in namespaces without a rule.", (), [((), outside)])


def _trust(status: Mapping[str, Any]) -> Iterator[Metric]:
    totals = status["streamTotals"]
    states = [((state,), count) for state, count in totals.get("states", {}).items()]
    yield _gauge("audit_streams", "Audit streams by the state of their chain.", ("state",), states)
    for name, key, text in (
        ("audit_records", "records", "Records read."),
        ("audit_lost", "lost", "Records that a webhook could not write."),
        ("audit_missing", "missing", "Records that were written but never reached the exporter."),
    ):
        yield _counter(name, text, (), [((), totals.get(key, 0))])
    policy = status["policy"]
    yield _gauge("policy_loaded", "Whether the policy folder could be loaded.", (), [((), policy["loaded"])])
    yield _gauge("policy_info", "The policy in force.", ("revision",), [((policy["revision"],), 1)])
    age = status["factsAgeSeconds"]
    yield _gauge("facts_age_seconds", "Age of the oldest list of cluster objects.", (), [((), age)])
    made = datetime.fromisoformat(status["generatedAt"]).timestamp()
    yield _gauge("status_timestamp_seconds", "When the status was made, seconds since the epoch.", (), [((), made)])
