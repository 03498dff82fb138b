"""Publishes the trusted authorities into both webhook configurations, and touches no other field of them."""

import base64
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from webhook.certs.store import REQUEST_TIMEOUT

ATTEMPTS = 5


def bundle_patch(configuration: dict[str, Any], bundle: bytes) -> list[dict[str, Any]]:
    """The JSON patch that gives every webhook of a configuration this bundle; [] when it has it already.

    Each write is preceded by a test of the webhook's name, so that a list which changed meanwhile is refused by the
    API server instead of being written at the wrong place.
    """
    encoded = base64.b64encode(bundle).decode()
    patch: list[dict[str, Any]] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        if webhook["clientConfig"].get("caBundle") != encoded:
            where = f"/webhooks/{index}"
            patch.append({"op": "test", "path": f"{where}/name", "value": webhook["name"]})
            patch.append({"op": "add", "path": f"{where}/clientConfig/caBundle", "value": encoded})
    return patch


def publish(api: client.AdmissionregistrationV1Api, names: Iterable[str], bundle: bytes) -> tuple[str, ...]:
    """Bring the bundle into the mutating and validating configurations of each name; doing it twice writes once.

    Returns what is missing, as `MutatingWebhookConfiguration/name`. Raises ApiException for anything else refused.
    """
    return tuple(
        f"{place.kind}/{name}" for name in names for place in _places(api) if not _publish(api, place, name, bundle)
    )


def read(api: client.AdmissionregistrationV1Api, names: Iterable[str]) -> list[dict[str, Any]]:
    """Both configurations of each name as JSON objects. Raises ApiException, also for one that does not exist."""
    return [_read(api, place, name) for name in names for place in _places(api)]


class _Place(NamedTuple):
    kind: str
    read: Callable[..., Any]
    patch: Callable[..., Any]


def _places(api: client.AdmissionregistrationV1Api) -> tuple[_Place, _Place]:
    return (
        _Place(
            "MutatingWebhookConfiguration",
            api.read_mutating_webhook_configuration,
            api.patch_mutating_webhook_configuration,
        ),
        _Place(
            "ValidatingWebhookConfiguration",
            api.read_validating_webhook_configuration,
            api.patch_validating_webhook_configuration,
        ),
    )


def _read(api: Any, place: _Place, name: str) -> dict[str, Any]:
    found = api.api_client.sanitize_for_serialization(place.read(name, _request_timeout=REQUEST_TIMEOUT))
    assert isinstance(found, dict)
    return found | {"kind": place.kind}


def _publish(api: client.AdmissionregistrationV1Api, place: _Place, name: str, bundle: bytes) -> bool:
    """False when there is no such configuration."""
    attempts_left = ATTEMPTS
    while True:
        attempts_left -= 1
        try:
            changes = bundle_patch(_read(api, place, name), bundle)
            if changes:
                place.patch(name, changes, _request_timeout=REQUEST_TIMEOUT)
            return True
        except ApiException as error:
            if error.status == 404:
                return False
            if error.status not in (409, 422) or not attempts_left:
                raise  # 409 and 422: the list of webhooks changed between our read and our write
