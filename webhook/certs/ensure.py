"""One round of `certs ensure`: look, decide, write, publish, in an order that never serves what nobody trusts yet."""

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from webhook.certs import rotate
from webhook.certs.rotate import Action, Plan
from webhook.certs.store import ConflictError, SecretStore

ATTEMPTS = 8
PERIOD = 60.0
"""Seconds between two looks: a bundle that a sync tool erased is back within a minute."""
FIRST_RETRY, LAST_RETRY = 5.0, 300.0

Publish = Callable[[bytes], tuple[str, ...]]
"""Brings a bundle into the webhook configurations; returns those that do not exist."""


@dataclass(frozen=True)
class Outcome:
    """What was done last, why, and which webhook configurations were not there to receive the bundle."""

    plan: Plan
    missing: tuple[str, ...]

    def __str__(self) -> str:
        done = f"{self.plan.action.value}: {self.plan.reason}"
        return f"{done}; not found, so not told: {', '.join(self.missing)}" if self.missing else done


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


def watch(once: Callable[[], Outcome], wait: Callable[[float], bool], report: Callable[[str], None]) -> None:
    """Repeat `once` until `wait` (seconds -> stop?) says so; a failure is reported and tried again, ever more slowly.

    Only what differs from the last report is reported.
    """
    last, failures = "", 0
    while True:
        try:
            outcome = once()
        except (ApiException, HTTPError, ConflictError) as error:
            said, pause = f"will try again: {brief(error)}", min(FIRST_RETRY * 2**failures, LAST_RETRY)
            failures += 1
        else:
            said, failures = str(outcome), 0
            pause = FIRST_RETRY if outcome.missing else PERIOD
        if said != last:
            report(said)
            last = said
        if wait(pause):
            return


def brief(error: Exception) -> str:
    """An error in one line: of an answer of the API server its message, not its headers."""
    if not isinstance(error, ApiException):
        return str(error) or type(error).__name__
    try:
        message = json.loads(error.body or "{}").get("message")
    except (ValueError, AttributeError):
        message = None
    return f"the API server said {error.status}: {message or error.reason}"
