"""Everything that one server process holds, started and stopped in order."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from webhook.audit.ledger import Ledger
from webhook.decision.facts import FactSource
from webhook.policy.active import Policy
from webhook.policy.registration import NAMESPACE_LABEL, uncovered_rules
from webhook.server import gauges, memory
from webhook.server.app import create_app
from webhook.server.health import Freshness, Health
from webhook.server.judge import Judge
from webhook.server.metrics import Metrics
from webhook.server.reload import PolicyFolder
from webhook.server.tls import Certificate

log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 16 << 20
KEEP_SEGMENTS: Final = 96
"""Together 1.5 GiB of ledger at most, for the 2 GiB volume of `deploy/base`; small segments, because every restart
begins one and a crash loop must not push out what was there before."""

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class Options:
    """What `serve` was told. `open_source` makes the facts, in the process that serves; `close` undoes it."""

    policy: Path
    audit_dir: Path
    certificate: Certificate
    open_source: "OpenSource"
    own_namespace: str = ""
    namespace_label: str = NAMESPACE_LABEL
    signing_key: Ed25519PrivateKey | None = None
    stdout: int | None = None


@dataclass(frozen=True)
class Source:
    """Facts and how fresh they are."""

    facts: FactSource
    freshness: Freshness
    policy_changed: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


OpenSource = Callable[[Callable[[Mapping[str, str]], bool]], Source]
"""Makes the facts; the argument tells from a namespace's labels whether the policy in force judges it."""


class Fixed:
    """The freshness of facts that never change (a snapshot)."""

    synced: Final = True
    stale: Final = False
    reasons: Final = ()

    def age(self) -> float:
        return 0.0

    def status(self) -> "Fixed":
        return self


class Process:
    """Made before the fork, started after it: threads and open files belong to the process that serves."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._undo: list[Callable[[], None]] = []
        self._health: Health | None = None

    def start(self) -> Wsgi:
        """Open the ledger, start the watches, and wire them into the application. Raises what its parts raise."""
        options = self._options
        trimmer = memory.Trimmer()
        self._undo.append(trimmer.stop)
        ledger = Ledger(
            options.audit_dir,
            key=options.signing_key,
            segment_bytes=SEGMENT_BYTES,
            keep_segments=KEEP_SEGMENTS,
            stdout=options.stdout,
        )
        self._undo.append(ledger.close)
        folder = PolicyFolder(options.policy, options.own_namespace)
        source = options.open_source(lambda labels: folder.policy.covers_namespace(labels))
        self._undo.append(source.close)
        folder.start(source.policy_changed)
        self._undo.append(folder.stop)
        self._health = health = self._watch(source.freshness, folder, ledger)
        metrics = Metrics(
            (
                gauges.of_policy(folder, options.namespace_label),
                gauges.of_certificate(options.certificate),
                gauges.of_ledger(ledger),
                gauges.of_facts(source.freshness),
            )
        )
        judge = Judge(source.facts, lambda: metrics.failed("decide"))
        app = create_app(
            policy=lambda: folder.policy,
            source=source.facts,
            judge=judge,
            ledger=ledger,
            metrics=metrics,
            health=health,
            served=trimmer.served,
        )
        log.info("policy %s %s, audit stream %s", folder.policy.name, folder.policy.revision, ledger.stream)
        memory.freeze()
        return app

    def drain(self) -> None:
        """Say in `/readyz` that this process is on its way out."""
        if self._health is not None:
            self._health.drain()

    def stop(self) -> None:
        """Stop in the reverse order of starting; the ledger signs off last. Does nothing where nothing was started."""
        while self._undo:
            try:
                self._undo.pop()()
            except Exception:
                log.exception("while stopping")
        sys.stdout.flush()

    def _watch(self, freshness: Freshness, folder: PolicyFolder, ledger: Ledger) -> Health:
        def audit() -> Iterator[str]:
            degraded = ledger.state().degraded
            if degraded is not None:
                yield degraded

        def coverage() -> Iterator[str]:
            return uncovered(folder.policy, self._options.namespace_label)

        certificate = self._options.certificate
        return Health(freshness, (folder.reasons, coverage, audit, lambda: certificate.reasons(time.time())))


def uncovered(policy: Policy, namespace_label: str) -> Iterator[str]:
    """A policy that speaks of namespaces which the API server never sends us: nobody else would notice."""
    rules = uncovered_rules(policy.spec, namespace_label)
    if rules:
        yield (
            f"policy: rules {', '.join(rules)} select namespaces without label {namespace_label}, which the webhook "
            "registration does not send; run gpu-webhook manifests --namespace-label, or select by that label"
        )
