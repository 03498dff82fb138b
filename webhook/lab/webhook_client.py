"""One call of one registered webhook: address, TLS with its caBundle, timeout, and a strict reading of the answer."""

import base64
import binascii
import http.client
import json
import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from webhook.lab.resources import Object

REQUEST_BUDGET: Final = 34.0
"""Seconds a whole write request may take, shared by all its webhooks (V22)."""

_RETRIES: Final = 10
_MAX_IDLE: Final = 25
_RETRYABLE: Final = (429, *range(500, 600))

ServiceResolver = Callable[[str, str, int], tuple[str, int]]
"""(namespace, service, port) -> host and port to connect to. Raises LookupError."""


class CallError(Exception):
    """The webhook gave no usable answer; its failurePolicy decides (V13)."""


@dataclass(slots=True)
class Answer:
    """A verified `response` of an AdmissionReview."""

    allowed: bool
    status: Object = field(default_factory=dict)
    patch: list[Any] | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int
    server_name: str
    path: str
    ca_bundle: str
    shown: str


class WebhookClient:
    """Calls webhooks and keeps up to 25 idle connections to each, as the API server does (V26)."""

    def __init__(self, resolve: ServiceResolver) -> None:
        self._resolve = resolve
        self._idle: dict[_Target, list[_Connection]] = {}
        self._lock = threading.Lock()

    def call(self, hook: Object, review: Object, deadline: float, *, mutating: bool) -> Answer:
        """POST the review and verify the answer; `deadline` is a `time.monotonic`. Raises CallError."""
        target = self._target(hook["clientConfig"])
        deadline = min(deadline, time.monotonic() + hook["timeoutSeconds"])
        body = self._exchange(target, json.dumps(review, separators=(",", ":")).encode(), deadline)
        return _verified(body, review["request"]["uid"], mutating)

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            connections = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _target(self, client: Object) -> _Target:
        bundle = client.get("caBundle") or ""
        if "url" in client:
            parts = urlsplit(client["url"])
            host, path = parts.hostname or "", parts.path.rstrip("/")
            return _Target(host, parts.port or 443, host, path, bundle, f"https://{parts.netloc}{path}")
        service = client["service"]
        name, namespace, port = service["name"], service["namespace"], service.get("port", 443)
        path = (service.get("path") or "").rstrip("/")
        shown = f"https://{name}.{namespace}.svc:{port}{path}"
        try:
            host, port = self._resolve(namespace, name, port)
        except LookupError as error:
            raise CallError(f'failed to call webhook: Post "{shown}": {error.args[0]}') from error
        return _Target(host, port, f"{name}.{namespace}.svc", path, bundle, shown)

    def _exchange(self, target: _Target, body: bytes, deadline: float) -> bytes:
        for attempt in range(_RETRIES + 1):
            left = deadline - time.monotonic()
            path = f"{target.path or '/'}?timeout={max(1, math.ceil(left))}s"
            try:
                status, content, retry_after = self._post(target, path, body, deadline)
            except (OSError, http.client.HTTPException) as error:
                url = f"{target.shown}?timeout={max(1, math.ceil(left))}s"
                raise CallError(f'failed to call webhook: Post "{url}": {_explained(error)}') from error
            wait = _seconds(retry_after) if status in _RETRYABLE else None
            if wait is None or attempt == _RETRIES or time.monotonic() + wait > deadline:
                break
            time.sleep(wait)
        if not 200 <= status <= 206:
            text = content[:200].decode("utf-8", "replace")
            raise CallError(f"failed to call webhook: the server answered {status}: {text}")
        if not content:
            raise CallError("failed to call webhook: webhook response is empty")
        return content

    def _post(self, target: _Target, path: str, body: bytes, deadline: float) -> tuple[int, bytes, str | None]:
        connection = self._take(target)
        try:
            connection.limit(deadline)
            headers = {
                "Content-Type": "application/json",
                "Accept": "application/json, */*",
                "User-Agent": "kube-apiserver-admission",
            }
            connection.request("POST", path, body, headers)
            connection.limit(deadline)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._give_back(target, connection)
        return response.status, content, response.headers.get("Retry-After")

    def _take(self, target: _Target) -> "_Connection":
        with self._lock:
            idle = self._idle.get(target, [])
            while idle:
                connection = idle.pop()
                if connection.usable():
                    return connection
                connection.close()
        return _Connection(target)

    def _give_back(self, target: _Target, connection: "_Connection") -> None:
        with self._lock:
            idle = self._idle.setdefault(target, [])
            if len(idle) < _MAX_IDLE:
                idle.append(connection)
                return
        connection.close()


class _Connection(http.client.HTTPSConnection):
    """Connects to one address while verifying the name of another: a Service's, behind its endpoint (V25)."""

    def __init__(self, target: _Target) -> None:
        super().__init__(target.host, target.port)
        self._target = target
        self._deadline = time.monotonic()

    def connect(self) -> None:
        left = max(0.001, self._deadline - time.monotonic())
        plain = socket.create_connection((self._target.host, self._target.port), left)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            context = _tls_context(self._target.ca_bundle)
            self.sock = context.wrap_socket(plain, server_hostname=self._target.server_name)
        except BaseException:
            plain.close()
            raise

    def limit(self, deadline: float) -> None:
        """No step of the exchange may last beyond `deadline`."""
        self._deadline = deadline
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self.sock is not None:
            self.sock.settimeout(left)

    def usable(self) -> bool:
        """An idle connection with something to read was closed by its peer (V27)."""
        return self.sock is not None and not select.select([self.sock], [], [], 0)[0]


@lru_cache(maxsize=64)
def _tls_context(ca_bundle: str) -> ssl.SSLContext:
    """TLS >= 1.2, the caBundle as only root, SAN required (V24, V25)."""
    if not ca_bundle:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=base64.b64decode(ca_bundle, validate=True).decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise OSError("unable to load root certificates: unable to parse bytes as PEM block") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    return context


_UNTRUSTED: Final = "certificate signed by unknown authority"
_X509_ERRORS: Final = {
    7: _UNTRUSTED,  # another authority of the same name
    10: "certificate has expired or is not yet valid",
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
}
"""OpenSSL's verification codes in Go's words."""


def _explained(error: Exception) -> str:
    """The client's error in the words Go uses, where there is such a word."""
    if isinstance(error, TimeoutError):
        return "context deadline exceeded"
    if isinstance(error, ConnectionRefusedError):
        return "dial tcp: connect: connection refused"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: x509: {_X509_ERRORS.get(error.verify_code, error.verify_message)}"
    if isinstance(error, ConnectionError | http.client.RemoteDisconnected):
        return "EOF"
    return str(error) or type(error).__name__


def _seconds(retry_after: str | None) -> int | None:
    """V11: only an integer Retry-After makes the API server try again."""
    return int(retry_after) if retry_after and retry_after.isdecimal() else None


def _verified(body: bytes, uid: str, mutating: bool) -> Answer:
    """V6, V7, V9. Raises CallError."""
    try:
        review = json.loads(body)
        response = review.get("response")
    except (ValueError, AttributeError) as error:
        raise CallError(f"couldn't get version/kind; json parse error: {error}") from error
    if (review.get("apiVersion"), review.get("kind")) != ("admission.k8s.io/v1", "AdmissionReview"):
        found = f"{review.get('apiVersion', '')}, Kind={review.get('kind', '')}"
        raise CallError(f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {found}")
    if not isinstance(response, dict):
        raise CallError("webhook response was absent")
    if response.get("uid") != uid:
        raise CallError(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    answer = Answer(response.get("allowed") is True)
    answer.status = response.get("status") or response.get("result") or {}
    answer.warnings = [text for text in response.get("warnings") or [] if isinstance(text, str)]
    patch, patch_type = response.get("patch"), response.get("patchType")
    if not mutating and (patch or patch_type):
        raise CallError("validating webhook response must not contain a patch or patchType")
    if bool(patch) != bool(patch_type):
        raise CallError("webhook response.patch and response.patchType must be given together")
    if patch:
        answer.patch = _operations(patch, patch_type)
    return answer


def _operations(patch: Any, patch_type: Any) -> list[Any]:
    if patch_type != "JSONPatch":
        raise CallError(f'webhook response patchType "{patch_type}" is not supported, only JSONPatch is')
    try:
        operations = json.loads(base64.b64decode(patch, validate=True))
    except (ValueError, TypeError, binascii.Error) as error:
        raise CallError(f"webhook response.patch does not decode: {error}") from error
    if not isinstance(operations, list):
        raise CallError("webhook response.patch is not a list of operations")
    return operations
