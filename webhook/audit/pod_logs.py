"""The logs of all webhook pods through the Kubernetes API, followed across restarts and replaced pods."""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from kubernetes import client, config
from urllib3.exceptions import HTTPError, ReadTimeoutError

if TYPE_CHECKING:
    from webhook.audit.read import Notices

NAMESPACE = "gpu-webhook"
"""Where the webhook is unless this process runs in a pod (then it is that pod's own namespace)."""
SELECTOR = "app.kubernetes.io/name=gpu-webhook,app.kubernetes.io/component=webhook"

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LIST_SECONDS = 2.0
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 90.0  # a checkpoint a minute keeps a living log from being silent this long
_MARGIN_SECONDS = 60  # clocks differ between here and the nodes; what comes twice is dropped by its seq
_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 15.0
_QUEUED_BATCHES = 64
_BATCHES_PER_POLL = 16

Batch = tuple["_Pod", list[tuple[str, bytes]]]


class _Meta(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""


class _Container(msgspec.Struct, frozen=True):
    name: str = ""


class _Spec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    restart_count: int = 0


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    container_statuses: tuple[_ContainerStatus, ...] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def container(self) -> str:
        """The first container is the webhook; a service mesh appends its own."""
        return self.spec.containers[0].name if self.spec.containers else ""

    @property
    def restarts(self) -> int:
        return next(
            (each.restart_count for each in self.status.container_statuses or () if each.name == self.container), 0
        )

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class _PodList(msgspec.Struct, frozen=True):
    items: tuple[_Pod, ...] = ()


class PodLogs:
    """Lines of all webhook pods. A thread for each pod reads its log; `poll` hands out what they have.

    A pod that restarted is asked for its previous log too, a pod that is new is found within two seconds, and one that
    is gone ends with its log. What came twice is left to the caller, who knows the sequence numbers.
    """

    def __init__(
        self,
        api: Any,
        namespace: str,
        positions: Mapping[str, str],
        notices: "Notices",
        *,
        list_seconds: float = _LIST_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`api` is a `CoreV1Api`; `positions`: pod uid -> time of the last line that was taken, RFC 3339."""
        self._api = api
        self._namespace = namespace
        self._positions = dict(positions)
        self._read_until = dict(positions)  # what the threads have read; `positions` is what was handed out of it
        self._notices = notices
        self._list_seconds = list_seconds
        self._clock = clock
        self._queue: queue.Queue[Batch] = queue.Queue(_QUEUED_BATCHES)
        self._closed = threading.Event()
        self._readers: dict[str, threading.Thread] = {}
        self._previous_read: dict[str, int] = {}  # pod uid -> restarts at that time
        self._pods: dict[str, _Pod] = {}
        self._lister = threading.Thread(target=self._list_for_ever, name="audit-pods", daemon=True)
        self._lister.start()

    @classmethod
    def connect(cls, namespace: str, positions: Mapping[str, str], notices: "Notices") -> "PodLogs":
        """With the pod's own account, else the kubeconfig. Raises kubernetes' ConfigException if there is neither."""
        return cls(api_client(), namespace or default_namespace(), positions, notices)

    def poll(self) -> Iterator[tuple[list[bytes], str, int]]:
        """(lines, source, -1) for what has come; never blocks. Lines of a log have no numbers."""
        for _ in range(_BATCHES_PER_POLL):
            try:
                pod, lines = self._queue.get_nowait()
            except queue.Empty:
                return
            yield [raw for _, raw in lines], self._source(pod), -1
            uid, when = pod.metadata.uid, lines[-1][0]
            self._positions[uid] = max(when, self._positions.get(uid, ""))

    def positions(self) -> Mapping[str, str]:
        """Times of the last lines handed out, for pods that exist."""
        known = self._pods
        return {uid: when for uid, when in self._positions.items() if not known or uid in known}

    def close(self) -> None:
        """Ask all threads to end; one that waits for the API server ends with its process."""
        self._closed.set()

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _list_for_ever(self) -> None:
        while not self._closed.is_set():
            try:
                pods = list_pods(self._api, self._namespace)
            except (client.ApiException, HTTPError, OSError, msgspec.MsgspecError) as error:
                self._tell(f"pods in {self._namespace}", f"cannot list pods: {_brief(error)}")
            else:
                self._pods = {pod.metadata.uid: pod for pod in pods}
                for pod in pods:
                    self._start(pod)
            self._closed.wait(self._list_seconds)

    def _start(self, pod: _Pod) -> None:
        """Threads for what is not being read yet: the log, and after a restart that of the container before."""
        uid = pod.metadata.uid
        if pod.restarts > self._previous_read.get(uid, 0):
            self._previous_read[uid] = pod.restarts
            self._thread(self._read_previous, pod)
        running = self._readers.get(uid)
        if pod.status.phase == "Pending" or (running is not None and (running.is_alive() or pod.has_ended)):
            return
        self._readers[uid] = self._thread(self._read_for_ever, pod)

    def _thread(self, target: Callable[[_Pod], None], pod: _Pod) -> threading.Thread:
        thread = threading.Thread(target=target, args=(pod,), name=f"audit-log-{pod.metadata.name}", daemon=True)
        thread.start()
        return thread

    def _read_for_ever(self, pod: _Pod) -> None:
        """The pod's log, asked for anew whenever it ends, until the pod is gone or has ended."""
        uid = pod.metadata.uid
        pause = _RETRY_SECONDS
        while not self._closed.is_set() and uid in self._pods:
            before = self._read_until.get(uid)
            try:
                self._read(pod)
            except ReadTimeoutError:
                continue
            except (client.ApiException, HTTPError, OSError) as error:
                self._tell(self._source(pod), f"cannot read the log: {_brief(error)}")
            if self._pods.get(uid, pod).has_ended:
                return
            pause = min(2 * pause, _LONGEST_RETRY_SECONDS) if before == self._read_until.get(uid) else _RETRY_SECONDS
            self._closed.wait(pause)

    def _read(self, pod: _Pod) -> None:
        """Follow the log until it ends, from a little before the last line that came."""
        uid = pod.metadata.uid
        last = self._read_until.get(uid)
        seconds = None if last is None else max(1, math.ceil(self._clock() - _epoch(last)) + _MARGIN_SECONDS)
        for lines in log_lines(self._api, self._namespace, pod, previous=False, follow=True, since_seconds=seconds):
            self._hand_over((pod, lines))
            self._read_until[uid] = lines[-1][0]

    def _read_previous(self, pod: _Pod) -> None:
        """The whole log of the container before; what had come of it already is dropped by its seq."""
        try:
            for lines in log_lines(self._api, self._namespace, pod, previous=True, follow=False, since_seconds=None):
                self._hand_over((pod, lines))
        except (client.ApiException, HTTPError, OSError) as error:
            if getattr(error, "status", None) not in (400, 404):  # else the kubelet has no such log any more
                self._tell(self._source(pod), f"cannot read the previous log: {_brief(error)}")
                self._previous_read[pod.metadata.uid] = 0  # the next listing tries again

    def _hand_over(self, batch: Batch) -> None:
        """A consumer that is slow slows the reading down; nothing is dropped here."""
        while not self._closed.is_set():
            try:
                self._queue.put(batch, timeout=0.5)
                return
            except queue.Full:
                continue

    def _source(self, pod: _Pod) -> str:
        return f"pod {self._namespace}/{pod.metadata.name}"

    def _tell(self, source: str, text: str) -> None:
        from webhook.audit.read import Notice  # which imports this module only for those who follow pods

        self._notices.add(Notice("unreachable", source, text=text))


def api_client() -> Any:
    """A CoreV1Api with the pod's own account, else the kubeconfig. Raises kubernetes' ConfigException."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        config.load_kube_config()  # type: ignore[no-untyped-call]
    return client.CoreV1Api()


def default_namespace() -> str:
    """Where the webhook is expected: this pod's own namespace, else `gpu-webhook`."""
    try:
        return _OWN_NAMESPACE.read_text().strip()
    except OSError:
        return NAMESPACE


def list_pods(api: Any, namespace: str) -> tuple[_Pod, ...]:
    """The webhook's pods. Raises ApiException or urllib3's errors."""
    timeout = (_CONNECT_SECONDS, _CONNECT_SECONDS)
    answer = api.list_namespaced_pod(
        namespace, label_selector=SELECTOR, _preload_content=False, _request_timeout=timeout
    )
    return msgspec.json.decode(answer.data, type=_PodList).items


def lines_now(namespace: str, api: Any = None) -> Iterator[tuple[str, bytes]]:
    """(source, line) of what the logs of all webhook pods hold at the moment, previous containers' included."""
    api = api or api_client()
    namespace = namespace or default_namespace()
    for pod in list_pods(api, namespace):
        for previous in (True, False) if pod.restarts else (False,):
            try:
                for batch in log_lines(api, namespace, pod, previous, False, None):
                    for _, raw in batch:
                        yield f"pod {namespace}/{pod.metadata.name}", raw
            except client.ApiException as error:
                if error.status not in (400, 404):  # no such container yet, or its log is gone
                    raise


def log_lines(
    api: Any, namespace: str, pod: _Pod, previous: bool, follow: bool, since_seconds: int | None
) -> Iterator[list[tuple[str, bytes]]]:
    """Lines of one container as (time, line), in batches as they come. Raises ApiException or urllib3's errors."""
    options: dict[str, Any] = {"since_seconds": since_seconds} if since_seconds is not None else {}
    answer = api.read_namespaced_pod_log(
        pod.metadata.name,
        namespace,
        container=pod.container,
        follow=follow,
        previous=previous,
        timestamps=True,
        _preload_content=False,
        _request_timeout=(_CONNECT_SECONDS, _READ_SECONDS),
        **options,
    )
    try:
        rest = b""
        for data in answer.stream(1 << 16):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if lines:
                yield [_split_time(line) for line in lines]
    finally:
        answer.close()


def _split_time(line: bytes) -> tuple[str, bytes]:
    """`2026-12-01T08:15:30.123456789Z the line` as the API server sends it with `timestamps`."""
    when, _, raw = line.partition(b" ")
    return when.decode("ascii", "replace"), raw


def _epoch(when: str) -> float:
    """What is no time reads as 0, so that everything is asked for."""
    try:
        return datetime.fromisoformat(when).timestamp()
    except ValueError:
        return 0.0


def _brief(error: Exception) -> str:
    if isinstance(error, client.ApiException):
        return f"{error.status} {error.reason}"
    return str(error)[:200]
