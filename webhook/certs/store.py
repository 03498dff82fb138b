"""Keeps authority and serving pair in one Secret, written only if nobody else wrote it in between."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from webhook.certs.issue import Pair
from webhook.certs.rotate import Material

REQUEST_TIMEOUT = (3, 10)
"""Seconds to connect and to read: no call of ours waits for ever."""

_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")


class ConflictError(Exception):
    """Somebody else created or changed the Secret first: read it again and decide afresh."""


@dataclass(frozen=True)
class Stored:
    """The Secret as it was read; `material` is None when it holds none of our keys."""

    secret: Any
    material: Material | None


class SecretStore:
    """The Secret `namespace/name`, type kubernetes.io/tls: `ca.crt` (bundle), `ca.key`, `tls.crt`, `tls.key`.

    The webhook's pods mount all but `ca.key`. Methods raise ApiException for what the API server refuses, and
    urllib3's HTTPError when it cannot be reached.
    """

    def __init__(self, api: client.CoreV1Api, namespace: str, name: str) -> None:
        self._api = api
        self.namespace = namespace
        self.name = name

    def read(self) -> Stored | None:
        """None when there is no such Secret."""
        try:
            secret = self._api.read_namespaced_secret(self.name, self.namespace, _request_timeout=REQUEST_TIMEOUT)
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return Stored(secret, _material(secret.data or {}))

    def read_public(self) -> dict[str, bytes]:
        """`tls.crt` and `ca.crt` as they are, empty where they lack. Raises ApiException, also for no Secret."""
        secret = self._api.read_namespaced_secret(self.name, self.namespace, _request_timeout=REQUEST_TIMEOUT)
        data = secret.data or {}
        return {key: base64.b64decode(data.get(key, "")) for key in ("tls.crt", "ca.crt")}

    def write(self, material: Material, before: Stored | None) -> None:
        """Create the Secret, or replace what `before` was. Raises ConflictError when it is not that any more."""
        try:
            if before is None:
                self._api.create_namespaced_secret(
                    self.namespace, self._new(material), _request_timeout=REQUEST_TIMEOUT
                )
            else:
                before.secret.data = {**(before.secret.data or {}), **_data(material)}
                self._api.replace_namespaced_secret(
                    self.name, self.namespace, before.secret, _request_timeout=REQUEST_TIMEOUT
                )
        except ApiException as error:
            if error.status == 409:
                raise ConflictError(f"Secret {self.namespace}/{self.name} was written by somebody else") from error
            raise

    def _new(self, material: Material) -> client.V1Secret:
        return client.V1Secret(
            api_version="v1",
            kind="Secret",
            type="kubernetes.io/tls",
            metadata=client.V1ObjectMeta(
                name=self.name, namespace=self.namespace, labels={"app.kubernetes.io/name": "gpu-webhook"}
            ),
            data=_data(material),
        )


def _data(material: Material) -> dict[str, bytes | str]:
    values = (material.bundle, material.ca_key, material.leaf.cert, material.leaf.key)
    return {key: base64.b64encode(value).decode() for key, value in zip(_KEYS, values, strict=True)}


def _material(data: Mapping[str, bytes | str]) -> Material | None:
    """A part that lacks is empty: rotation mends that part and keeps the rest, above all authorities still trusted."""
    if not any(data.get(key) for key in _KEYS):
        return None
    bundle, ca_key, cert, key = (base64.b64decode(data.get(key) or "") for key in _KEYS)
    return Material(bundle, ca_key, Pair(cert, key))
