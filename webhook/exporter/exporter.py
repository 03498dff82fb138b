"""One round after another: read the streams, look at the cluster, compute the status, publish it."""

import logging
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from webhook.exporter import publish
from webhook.exporter.chains import UNCLOSED_SECONDS
from webhook.exporter.collect import Collector
from webhook.exporter.cost import Utilisation
from webhook.exporter.live import ViewSource
from webhook.exporter.metrics import StatusMetrics
from webhook.exporter.prometheus import Prometheus
from webhook.exporter.status import Observed, PolicyState, rfc3339, status_of
from webhook.policy.load import load
from webhook.policy.problem import PolicyError
from webhook.policy.registration import NAMESPACE_LABEL

_log = logging.getLogger(__name__)

CATCH_UP_SECONDS = 5.0
"""How long one round may read streams before it publishes what it has so far."""


class PolicyFolder:
    """The policy of a folder, read anew every round; a bad edit never takes the good policy down (rule 7)."""

    def __init__(self, folder: Path) -> None:
        """Raises PolicyError if there is no good policy to begin with."""
        self._folder = folder
        self._state = PolicyState(load(folder))

    def state(self) -> PolicyState:
        try:
            self._state = PolicyState(load(self._folder))
        except PolicyError as error:
            self._state = PolicyState(self._state.policy, str(error))
        return self._state


class Exporter:
    """Holds the latest status; `document`, `script` and `metrics` are what readers get."""

    def __init__(
        self,
        source: ViewSource,
        policy: PolicyFolder,
        collector: Collector,
        *,
        out: Path | None = None,
        prometheus: Prometheus | None = None,
        namespace_label: str = NAMESPACE_LABEL,
    ) -> None:
        self.metrics = StatusMetrics()
        self.status: dict[str, Any] | None = None
        self.document = b""
        self.script = b""
        self._source = source
        self._policy = policy
        self._collector = collector
        self._out = out
        self._prometheus = prometheus
        self._namespace_label = namespace_label

    def round(self, now: datetime, catch_up: float | None = CATCH_UP_SECONDS, patience: float = 0.0) -> dict[str, Any]:
        """One status, published. Raises OSError if it cannot be.

        `catch_up`: seconds for reading streams, None to read all; `patience`: see `Collector.collect`.
        """
        collector, state = self._collector, self._collector.state
        collector.collect(catch_up, patience)
        view, policy = self._source.view(), self._policy.state()
        state.events.since = state.events.since or rfc3339(now)
        state.events.add(view.events)
        if view.namespaces:
            state.tally.forget_namespaces(view.labels)
        state.tally.keep_pods(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in view.pods)
        minute = int(now.timestamp()) // 60
        silent_before = rfc3339(now - timedelta(seconds=UNCLOSED_SECONDS))
        observed = Observed(
            tally=state.tally,
            events=state.events,
            streams=state.chains.document(silent_before),
            stream_totals=state.chains.totals(silent_before),
            utilisation=self._prometheus.utilisation() if self._prometheus else Utilisation(),
            problems=[*self._source.problems(), *collector.problems],
            has_audit=collector.has_audit,
            namespace_label=self._namespace_label,
        )
        status = status_of(view, policy, observed, now)
        state.history.sample(minute, status["summary"])
        status["history"] = state.history.document(minute, state.tally)
        collector.touch()
        self._publish(status)
        collector.save()
        return status

    def _publish(self, status: dict[str, Any]) -> None:
        document = publish.as_json(status)
        self.status, self.document, self.script = status, document, publish.as_js(document)
        self.metrics.update(status)
        if self._out is not None:
            publish.publish(self._out, document)

    def run(self, interval: float, stop: threading.Event) -> None:
        """Rounds until `stop` is set, `interval` seconds apart; one that fails is logged and ends nothing."""
        while not stop.is_set():
            try:
                self.round(datetime.now(UTC))
            except Exception:  # the dashboard shows the age of what it has; a dead loop would show nothing at all
                _log.exception("this round failed; the last status stays, trying again in %g s", interval)
            stop.wait(interval)

    def close(self) -> None:
        self._collector.close()
        self._source.close()
