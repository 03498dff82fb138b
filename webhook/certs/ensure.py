"""One round of `certs ensure`: look, decide, write, publish, in an order that never serves what nobody trusts yet."""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webhook.certs import rotate
from webhook.certs.rotate import Action, Plan
from webhook.certs.store import ConflictError, SecretStore

ATTEMPTS = 8

Publish = Callable[[bytes], tuple[str, ...]]
"""Brings a bundle into the webhook configurations; returns those that do not exist."""


@dataclass(frozen=True)
class Outcome:
    """What was done last, why, and which webhook configurations were not there to receive the bundle."""

    plan: Plan
    missing: tuple[str, ...]


def ensure(secrets: SecretStore, publish: Publish, names: Sequence[str], now: dt.datetime) -> Outcome:
    """Bring Secret and published bundle to where they should be at `now`; many may do so at once.

    Only bundles that were read from or written to the Secret are published, so helpers that race end with one
    authority. Raises ConflictError when the Secret kept changing, and what the store and `publish` raise.
    """
    for _ in range(ATTEMPTS):
        stored = secrets.read()
        material = stored.material if stored else None
        plan = rotate.decide(material, names, now)
        if plan.action is Action.RENEW_LEAF and material is not None:
            publish(material.bundle)  # whoever calls must trust the authority before a leaf of it is served
        after = rotate.apply(plan, material, names, now)
        if plan.action is not Action.KEEP:
            try:
                secrets.write(after, stored)
            except ConflictError:
                continue
        return Outcome(plan, publish(after.bundle))
    raise ConflictError(f"Secret {secrets.namespace}/{secrets.name} kept changing: {ATTEMPTS} attempts lost the race")
