"""Raw bytes from the Kubernetes API: the client library's connection and credentials, our time limits."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration

CONNECT_TIMEOUT = 5.0
"""Seconds to open a connection where the caller sets no tighter limit."""
_PIECE = 1 << 16


class ClusterError(Exception):
    """No cluster can be reached with what we were given; the text says what to set."""


class ApiError(Exception):
    """A request that failed. `status` is the HTTP status, 0 when there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One API server. Every method raises ApiError, and nothing else, when a request fails."""

    def __init__(self, configuration: Any, context: str = "") -> None:
        """`configuration` is a `kubernetes.client.Configuration`; `context` is the name people know the cluster by."""
        configuration.retries = False  # three silent retries would make every time limit four times as long
        configuration.keep_alive = True  # TCP keep-alives find a dead peer that a quiet watch would not
        configuration.connection_pool_maxsize = 32
        self._client = ApiClient(configuration)
        self._client.user_agent = "gpu-webhook"
        self.host = str(configuration.host)
        self.context = context

    def get(self, path: str, query: Mapping[str, Any] | None = None, timeout: float = 10.0) -> bytes:
        """The body of a GET, all of it within about `timeout` seconds."""
        return self.call("GET", path, query, timeout=timeout)[0]

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        timeout: float = 10.0,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Body and headers of a request, all within about `timeout` seconds."""
        deadline = time.monotonic() + timeout
        response = self._open(method, path, query, body, (min(timeout, CONNECT_TIMEOUT), timeout))
        try:
            return self._read(response, path, deadline), dict(response.headers)
        finally:
            response.release_conn()

    def stream(self, path: str, query: Mapping[str, Any], silence: float) -> Any:
        """The open response of a watch (a urllib3 response); `silence` is the longest wait for its next bytes."""
        return self._open("GET", path, query, None, (CONNECT_TIMEOUT, silence))

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]

    def _open(
        self, method: str, path: str, query: Mapping[str, Any] | None, body: Any, timeout: tuple[float, float]
    ) -> Any:
        try:
            request = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=timeout).response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"{self.host} does not answer: {_cause(error)}") from error
        except Exception as error:  # credential plugins and the client itself raise what they like
            raise ApiError(0, f"the request to {self.host} could not be made: {error}") from error
        if not 200 <= response.status <= 299:
            raise _refusal(response, path)
        return response

    def _read(self, response: Any, path: str, deadline: float) -> bytes:
        pieces = []
        try:
            while piece := response.read1(_PIECE):
                pieces.append(piece)
                if time.monotonic() > deadline:
                    response.close()
                    raise ApiError(0, f"{path}: the answer took too long")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            response.close()
            raise ApiError(0, f"{path}: the answer broke off: {_cause(error)}") from error
        return b"".join(pieces)


def connect(kubeconfig: str | None = None) -> Api:
    """The cluster of `kubeconfig`, else of KUBECONFIG, else the one that we run in, else of ~/.kube/config.

    Raises ClusterError.
    """
    configuration = Configuration()
    path = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        if not path and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            return Api(configuration, "in-cluster")
        if not path and not Path("~/.kube/config").expanduser().exists():
            raise ClusterError("no cluster: set KUBECONFIG to a kubeconfig file, or give a file or folder instead")
        config.load_kube_config(path, client_configuration=configuration)  # type: ignore[no-untyped-call]
        _, active = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except ClusterError:
        raise
    except Exception as error:  # YAML, missing keys, missing files: the client raises them all bare
        place = path or "the pod's service account"
        raise ClusterError(
            f"{place}: no cluster can be read from it: {error}; correct the file or KUBECONFIG"
        ) from error
    return Api(configuration, str((active or {}).get("name", "")))


class _Status(msgspec.Struct):
    message: str = ""


def _refusal(response: Any, path: str) -> ApiError:
    """The API's own words, bounded, and the connection given back for the next request."""
    try:
        body = response.read(_PIECE)
        message = msgspec.json.decode(body, type=_Status).message
    except (msgspec.MsgspecError, urllib3.exceptions.HTTPError, OSError, RecursionError):
        message = ""
    response.close()
    return ApiError(response.status, f"{path}: HTTP {response.status}" + (f": {message}" if message else ""))


def _cause(error: Exception) -> str:
    """The innermost text of an exception: urllib3 wraps what matters."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return str(error) or type(error).__name__
