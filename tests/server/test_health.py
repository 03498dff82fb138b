"""/readyz: 503 only where sending reviews elsewhere helps (DESIGN 5.8)."""

import json
from dataclasses import dataclass
from typing import Any

from webhook.server.health import Health


@dataclass
class Watches:
    """Facts in some condition."""

    synced: bool = True
    stale: bool = False
    reasons: tuple[str, ...] = ()

    def age(self) -> float:
        return 0.0

    def status(self) -> "Watches":
        return self


def ready(health: Health) -> tuple[int, Any]:
    status, body = health.ready()
    return status, json.loads(body)


def test_all_is_well() -> None:
    assert ready(Health(Watches())) == (200, {"status": "ok", "reasons": []})


def test_never_synced_is_unavailable() -> None:
    status, body = ready(Health(Watches(synced=False)))
    assert (status, body["status"]) == (503, "unavailable")
    assert "never synced" in body["reasons"][0]


def test_draining_is_unavailable() -> None:
    health = Health(Watches())
    health.drain()
    status, body = ready(health)
    assert status == 503
    assert "draining" in body["reasons"][0]


def test_b62_an_api_server_that_is_down_for_all_does_not_switch_enforcement_off() -> None:
    status, body = ready(Health(Watches(reasons=("the watch of namespaces is 400 s old: it is silent",))))
    assert (status, body["status"]) == (200, "degraded")
    assert "400 s" in body["reasons"][0]


def test_watches_that_are_stale_while_the_api_server_answers_are_this_process_fault() -> None:
    status, body = ready(Health(Watches(stale=True, reasons=("the watches are stale",))))
    assert (status, body["status"]) == (503, "unavailable")


def test_other_troubles_are_told_but_keep_the_process_ready() -> None:
    health = Health(Watches(), (lambda: ["policy: old one stays"], list, lambda: ["audit: disk full"]))
    assert ready(health) == (200, {"status": "degraded", "reasons": ["policy: old one stays", "audit: disk full"]})
