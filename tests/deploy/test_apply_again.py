"""B56: a bundle that was injected survives the next apply, whichever way it is applied."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.conftest import Objects, one

CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def applied(before: Any, live: Any, new: Any) -> Any:
    """What is stored: what `before` had and `new` lacks goes, what `new` has is set, the rest stays.

    `before` is what the same hand applied last: kubectl keeps it in an annotation (client side), the API server as the
    fields that the manager owns (server side). Named objects in lists (webhooks) merge by name, other lists are whole.
    """
    if isinstance(new, dict) and isinstance(live, dict):
        owned = before if isinstance(before, dict) else {}
        kept = {key: value for key, value in live.items() if key in new or key not in owned}
        return kept | {key: applied(owned.get(key), live.get(key), value) for key, value in new.items()}
    if _named(new) and _named(live):
        owned = {item["name"]: item for item in before or ()}
        alive = {item["name"]: item for item in live}
        return [applied(owned.get(item["name"]), alive.get(item["name"]), item) for item in new]
    return new


def _named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "name" in item for item in value)


def injected(configuration: dict[str, Any]) -> dict[str, Any]:
    live = copy.deepcopy(configuration)
    for webhook in live["webhooks"]:
        webhook["clientConfig"]["caBundle"] = "bundle"
    return live


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_b56_second_apply_leaves_the_bundle(combine: Callable[..., Objects], kind: str) -> None:
    manifest = one(combine("self-signed"), kind, "gpu-webhook")
    live = injected(manifest)
    assert applied(manifest, live, manifest) == live


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_b56_the_merge_would_have_erased_an_empty_bundle_of_ours(combine: Callable[..., Objects], kind: str) -> None:
    """What other charts do, and why the field is absent here: once in a manifest, it is the manifest's."""
    manifest = one(combine("self-signed"), kind, "gpu-webhook")
    with_placeholder = copy.deepcopy(manifest)
    for webhook in with_placeholder["webhooks"]:
        webhook["clientConfig"]["caBundle"] = ""
    assert applied(manifest, injected(manifest), with_placeholder) != injected(manifest)


def test_turning_fail_closed_keeps_the_bundle_of_the_entry_that_was_there(combine: Callable[..., Objects]) -> None:
    """The new entry has none until `certs ensure` looks again, within a minute."""
    before = one(combine("self-signed"), CONFIGURATIONS[1], "gpu-webhook")
    after = one(combine("self-signed", "fail-closed"), CONFIGURATIONS[1], "gpu-webhook")
    merged = applied(before, injected(before), after)
    bundles = {webhook["name"]: webhook["clientConfig"].get("caBundle") for webhook in merged["webhooks"]}
    assert bundles == {"validate.gpu.platform": "bundle", "validate-controllers.gpu.platform": None}
