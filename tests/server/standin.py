"""Stand-ins for the parts around the server: a policy, facts that know nothing, an engine that does as it is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from werkzeug.test import Client

from webhook.decision.facts import Facts, Note
from webhook.decision.request import Request
from webhook.decision.result import Decision
from webhook.policy.active import Policy
from webhook.policy.model import GpuPolicy, Metadata, Rule, Selector, Spec
from webhook.server.app import create_app
from webhook.server.health import Health
from webhook.server.judge import BUDGET, Judge
from webhook.server.metrics import Metrics
from webhook.server.process import Fixed

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


def policy(language: Any = "en", name: str = "default") -> Policy:
    spec = Spec(rules=(Rule(name="all", namespace_selector=Selector()),), language=language)
    return Policy(GpuPolicy("gpu.platform/v1", "GpuPolicy", Metadata(name), spec))


def golden(scenario: str, phase: str = "mutate", **changes: Any) -> bytes:
    """The first recorded review of a scenario and phase, with top keys of its request replaced."""
    reviews = json.loads((GOLDEN / f"{scenario}.json").read_text(encoding="utf-8"))["reviews"]
    review = next(entry["review"] for entry in reviews if entry["phase"] == phase)
    review["request"] |= changes
    return json.dumps(review).encode()


class View:
    """Facts that know nothing; `is_fresh` tells the two kinds apart."""

    def __init__(self, is_fresh: bool) -> None:
        self.is_fresh = is_fresh

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


class Source:
    """A FactSource that remembers what it was asked; without a fresh view its fresh reads fail."""

    def __init__(self, fresh: View | None = None) -> None:
        self._fresh = fresh
        self.asked: list[tuple[str, float]] = []
        self.notes: list[Note] = []

    def current(self, may_wait: bool = True) -> Any:
        return View(is_fresh=False)

    def fresh(self, namespace: str, timeout: float = 0.3) -> Any:
        self.asked.append((namespace, timeout))
        return self._fresh

    def note(self, note: Note) -> None:
        self.notes.append(note)


def allow(request: Request, _policy: Policy, _facts: Facts, *, fresh_failed: bool = False) -> Decision:
    return Decision(id=request.id, verdict="allow", rule="all")


class Site:
    """An application of stand-ins, and what it left behind."""

    def __init__(
        self,
        decide: Any = allow,
        source: Source | None = None,
        in_force: Policy | None = None,
        budget: float = BUDGET,
    ) -> None:
        self.records: list[dict[str, Any]] = []
        self.source = source or Source()
        self.metrics = Metrics()
        self.health = Health(Fixed())
        chosen = in_force or policy()
        self.app = create_app(
            policy=lambda: chosen,
            source=self.source,
            judge=Judge(self.source, lambda: self.metrics.failed("decide"), decide, budget),
            ledger=self,
            metrics=self.metrics,
            health=self.health,
        )
        self.client = Client(self.app)

    def append(self, body: bytes) -> bool:
        self.records.append(json.loads(body))
        return True

    def post(self, body: bytes, path: str = "/mutate", **more: Any) -> Any:
        return self.client.post(path, data=body, content_type=more.pop("content_type", "application/json"), **more)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())
