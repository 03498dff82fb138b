"""What Prometheus can ask of a server: few series, whatever names users invent (B66), and cheap to count."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from webhook.decision.request import Request
from webhook.decision.result import Decision

NAMESPACES: Final = 200
"""Namespaces with a series of their own at a time; decisions in further ones count under `other`."""
SERIES: Final = 5000
"""Series of decisions at a time, whatever the labels; further ones count under `other` as namespace, rule and code."""
EXPIRY: Final = 3600.0
"""Seconds without a decision after which a series is dropped: namespaces and rules that are gone do not stay."""
OTHER: Final = "other"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter that nobody reads

_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_Labels = tuple[str, ...]


class DecisionCounts(Collector):
    """`gpu_webhook_decisions_total`: one count a decision; `code` is its first finding, the one that explains it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[_Labels, list[float]] = {}  # labels -> [count, time of the last one]
        self._namespaces: dict[str, int] = {}  # namespace -> how many series it has

    def add(self, phase: str, namespace: str, rule: str, verdict: str, code: str) -> None:
        labels = (phase, namespace, rule, verdict, code)
        with self._lock:
            entry = self._counts.get(labels)
            if entry is None:
                entry = self._open(labels)
            entry[0] += 1
            entry[1] = self._clock()

    def _open(self, labels: _Labels) -> list[float]:
        phase, namespace, rule, verdict, code = labels
        if len(self._counts) >= SERIES:
            labels = (phase, OTHER, OTHER, verdict, OTHER)
        elif namespace not in self._namespaces and len(self._namespaces) >= NAMESPACES:
            labels = (phase, OTHER, rule, verdict, code)
        entry = self._counts.get(labels)
        if entry is None:
            entry = self._counts[labels] = [0.0, 0.0]
            if labels[1] != OTHER:
                self._namespaces[labels[1]] = self._namespaces.get(labels[1], 0) + 1
        return entry

    def _drop_old(self) -> None:
        oldest = self._clock() - EXPIRY
        for labels in [labels for labels, (_, last) in self._counts.items() if last < oldest]:
            del self._counts[labels]
            if labels[1] == OTHER:
                continue
            self._namespaces[labels[1]] -= 1
            if not self._namespaces[labels[1]]:
                del self._namespaces[labels[1]]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "gpu_webhook_decisions",
            "Decisions that count (no dry runs), by first finding.",
            labels=("phase", "namespace", "rule", "verdict", "code"),
        )
        with self._lock:
            self._drop_old()
            for labels, (count, _) in self._counts.items():
                family.add_metric(labels, count)
        yield family


class Reading(NamedTuple):
    """One value of a part of the server; a name that ends in `_total` is a counter, any other a gauge."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = {}


Readings = Callable[[], Iterable[Reading]]


class States(Collector):
    """What is read when Prometheus asks, so that nothing on the path of a review has to keep it up to date."""

    def __init__(self, sources: Iterable[Readings]) -> None:
        self._sources = tuple(sources)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for source in self._sources:
            for name, text, value, labels in source():
                if name not in families:
                    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    families[name] = family(name, text, labels=tuple(labels))
                families[name].add_metric(tuple(labels.values()), value)
        yield from families.values()


class Metrics:
    """All metrics of one server process, in a registry of their own."""

    def __init__(self, sources: Iterable[Readings] = (), clock: Callable[[], float] = time.monotonic) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._decisions = DecisionCounts(clock)
        registry.register(self._decisions)
        registry.register(States(sources))
        ProcessCollector(registry=registry)
        seconds = Histogram(
            "gpu_webhook_review_seconds",
            "Time from the moment a review could be read to its answer.",
            ("phase",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._seconds = {phase: seconds.labels(phase) for phase in ("mutate", "validate")}
        self._exempt = Counter(
            "gpu_webhook_exemption_uses",
            "Requests that were not judged because of an exemption or break-glass.",
            ("code",),
            registry=registry,
        )
        self._refused = Counter(
            "gpu_webhook_refused_requests",
            "Requests that were no AdmissionReview, by HTTP status.",
            ("status",),
            registry=registry,
        )
        self._exceptions = Counter(
            "gpu_webhook_exceptions",
            "Faults of ours: while judging (allowed with a warning), recording or answering.",
            ("where",),
            registry=registry,
        )
        for where in ("decide", "record", "answer"):
            self._exceptions.labels(where)

    def decided(self, request: Request, decision: Decision, seconds: float) -> None:
        """Count one decision; a dry run never counts (V34, B57)."""
        if request.dry_run:
            return
        self._seconds[request.phase].observe(seconds)
        findings = decision.findings
        code = findings[0].code if findings else ""
        self._decisions.add(request.phase, request.namespace, decision.rule or "", decision.verdict, code)
        for finding in findings:
            if finding.code in ("Exempt", "BreakGlass"):
                self._exempt.labels(finding.code).inc()

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def failed(self, where: str) -> None:
        """A fault of ours: `where` is `decide`, `record` or `answer`."""
        self._exceptions.labels(where).inc()

    def render(self) -> bytes:
        """The text that `/metrics` answers."""
        return generate_latest(self._registry)
