"""Says of certificates who they are for, until when, and what is wrong with them, as lines of text."""

import base64
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from webhook.certs.describe import Certificate, read_certificates, trusted

COLUMN = 11


def describe(title: str, certificate: Certificate, now: dt.datetime) -> list[str]:
    """A heading and the facts of one certificate."""
    days = (certificate.not_after - now) / dt.timedelta(days=1)
    left = f"{days:.0f} days left" if days >= 2 else f"{days * 24:.1f} hours left" if days > 0 else "EXPIRED"
    kind = "authority" if certificate.is_ca else "serves"
    facts = {
        kind: certificate.x509.subject.rfc4514_string() if certificate.is_ca else ", ".join(certificate.names),
        "issued by": certificate.x509.issuer.rfc4514_string(),
        "valid": f"{certificate.not_before:%Y-%m-%d %H:%M} to {certificate.not_after:%Y-%m-%d %H:%M} UTC ({left})",
        "renewal": f"from {certificate.renew_at:%Y-%m-%d}",
        "sha256": certificate.fingerprint,
    }
    return [title, *(f"  {label:<{COLUMN}}{text}" for label, text in facts.items() if text)]


def problems(certificates: Iterable[tuple[str, Certificate]], now: dt.datetime) -> list[str]:
    """What is wrong with certificates taken one by one."""
    found = []
    for title, certificate in certificates:
        if now > certificate.not_after:
            found.append(f"{title}: expired at {certificate.not_after:%Y-%m-%d %H:%M} UTC")
        elif now < certificate.not_before:
            found.append(f"{title}: not valid before {certificate.not_before:%Y-%m-%d %H:%M} UTC; is a clock wrong?")
        if not certificate.is_ca and not certificate.names:
            found.append(f"{title}: names no host (SAN); the API server refuses it whatever its CN says")
    return found


def trust_problem(title: str, leaf: Certificate, bundle: Sequence[Certificate], now: dt.datetime) -> str | None:
    """A sentence when nobody in the bundle vouches for the leaf."""
    if trusted(leaf, bundle, now):
        return None
    return f"{title} does not trust the serving certificate, issued by {leaf.x509.issuer.rfc4514_string()}"


def published_problems(configuration: dict[str, Any], leaf: Certificate, now: dt.datetime) -> list[str]:
    """What keeps the API server from trusting the leaf through one webhook configuration."""
    found = []
    for webhook in configuration.get("webhooks") or ():
        title = f"{configuration['kind']}/{configuration['metadata']['name']}, webhook {webhook['name']}"
        encoded = webhook["clientConfig"].get("caBundle")
        try:
            bundle = read_certificates(base64.b64decode(encoded)) if encoded else ()
        except ValueError:
            found.append(f"{title}: its caBundle is not a list of certificates; run `gpu-webhook certs ensure`")
            continue
        if not bundle:
            found.append(
                f"{title}: has no caBundle; run `gpu-webhook certs ensure`, or is cert-manager's injector running?"
            )
        elif problem := trust_problem(title, leaf, bundle, now):
            found.append(problem)
    return found
