"""How the parts of a server stand, as Prometheus asks for it; their names are what alerts are written against."""

import time
from collections.abc import Iterator

from webhook.audit.ledger import Ledger
from webhook.policy.registration import uncovered_rules
from webhook.server.health import Freshness
from webhook.server.metrics import Reading, Readings
from webhook.server.reload import PolicyFolder
from webhook.server.tls import Certificate


def of_policy(folder: PolicyFolder, namespace_label: str) -> Readings:
    def readings() -> Iterator[Reading]:
        policy, error = folder.policy, folder.error
        yield Reading("gpu_webhook_policy_load_ok", "1: the policy files that lie there are in force.", error is None)
        yield Reading("gpu_webhook_policy_reloads_total", "New policies taken over since the start.", folder.changes)
        yield Reading(
            "gpu_webhook_policy_info",
            "The policy in force.",
            1,
            {"policy": policy.name, "revision": policy.revision},
        )
        yield Reading(
            "gpu_webhook_policy_uncovered_rules",
            "Rules whose namespaces the webhook registration may never send.",
            len(uncovered_rules(policy.spec, namespace_label)),
        )

    return readings


def of_certificate(certificate: Certificate) -> Readings:
    def readings() -> Iterator[Reading]:
        certificate.context()
        ok = certificate.error is None
        yield Reading("gpu_webhook_certificate_load_ok", "1: the certificate files that lie there are served.", ok)
        name, text = "gpu_webhook_certificate_seconds_left", "Seconds until the served certificate ends."
        now = time.time()
        yield Reading(name, text, certificate.leaf[1] - now, {"certificate": "leaf"})
        if certificate.ca is not None:
            yield Reading(name, text, certificate.ca[1] - now, {"certificate": "ca"})

    return readings


def of_ledger(ledger: Ledger) -> Readings:
    def readings() -> Iterator[Reading]:
        state = ledger.state()
        yield Reading("gpu_webhook_audit_records_total", "Audit records written.", state.written)
        yield Reading("gpu_webhook_audit_gaps_total", "Audit records that could not be written.", state.gaps)
        yield Reading(
            "gpu_webhook_audit_stdout_dropped_total",
            "Audit lines that a stalled log collector did not get.",
            state.stdout_dropped,
        )
        yield Reading("gpu_webhook_audit_ok", "1: the ledger is whole and can be written.", state.degraded is None)
        yield Reading(
            "gpu_webhook_audit_chain_head", "Last seq of this process's stream.", state.seq, {"stream": state.stream}
        )

    return readings


def of_facts(freshness: Freshness) -> Readings:
    def readings() -> Iterator[Reading]:
        yield Reading("gpu_webhook_facts_synced", "1: the cluster was listed at least once.", freshness.synced)
        yield Reading("gpu_webhook_facts_age_seconds", "Silence of the most silent watch.", freshness.age())

    return readings
