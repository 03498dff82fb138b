"""Objects by resource, namespace and name; one version counter for all; a bounded log for watches."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from webhook.lab import errors
from webhook.lab.resources import Object, Resource

LOG_LENGTH: Final = 20_000
"""Changes a watch can still be told about; one that asks for an older version is answered 410."""

_encode = msgspec.json.encode

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


class Record(NamedTuple):
    """A stored object: shared and never changed, with its JSON, so that lists cost no encoding."""

    object: Object
    raw: bytes
    version: int


class Change(NamedTuple):
    """One write. `previous` lets a watch with a selector see objects enter and leave the selection."""

    type: ChangeType
    resource: Resource
    record: Record
    previous: Record | None


Listener = Callable[[Change], None]
Key = tuple[str, str]  # namespace ("" for cluster scope), name


class Store:
    """All writes are atomic and numbered; hold `lock` to make several of them one step."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._objects: dict[str, dict[str, dict[str, Record]]] = {}  # resource, namespace, name
        self._sorted: dict[tuple[str, str], list[Record]] = {}
        """What `snapshot` answered last, until something of that resource is written."""
        self._version = 100
        self._log: deque[Change] = deque()
        self._oldest = 100
        self._listeners: list[Listener] = []
        self._closed = False

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The resourceVersion of the latest write."""
        return self._version

    def get(self, resource: Resource, namespace: str, name: str) -> Record | None:
        return self._objects.get(resource.qualified, {}).get(namespace, {}).get(name)

    def records(self, resource: Resource, namespace: str = "") -> list[Record]:
        """All records (of one namespace), sorted by namespace and name; do not change the list."""
        return self.snapshot(resource, namespace)[0]

    def snapshot(self, resource: Resource, namespace: str = "") -> tuple[list[Record], int]:
        """`records`, and the version at which it was true."""
        with self.lock:
            key = (resource.qualified, namespace)
            if key not in self._sorted:
                held = self._objects.get(resource.qualified, {})
                chosen = [namespace] if namespace else sorted(held)
                found = [record for space in chosen for _, record in sorted(held.get(space, {}).items())]
                self._sorted[key] = found
            return self._sorted[key], self._version

    def objects(self, resource: Resource, namespace: str = "") -> list[Object]:
        return [record.object for record in self.records(resource, namespace)]

    # -- writing ----------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, obj: Object) -> Object:
        """Store a new object; its resourceVersion is set. Raises 409 AlreadyExists."""
        key = _key(obj)
        with self.lock:
            if self.get(resource, *key):
                raise errors.already_exists(resource, key[1])
            return self._write("ADDED", resource, key, obj, None).object

    def update(self, resource: Resource, obj: Object, expected: int | None = None) -> Object:
        """Replace an object; `expected` is the version it was read at. Raises 404, 409 Conflict."""
        key = _key(obj)
        with self.lock:
            current = self.get(resource, *key)
            if current is None:
                raise errors.not_found(resource, key[1])
            if expected is not None and current.version != expected:
                raise errors.conflict(resource, key[1])
            if _without_version(obj) == _without_version(current.object):
                return current.object  # identical bytes are not written (H11)
            return self._write("MODIFIED", resource, key, obj, current).object

    def delete(self, resource: Resource, namespace: str, name: str, expected: int | None = None) -> Object:
        """Remove an object and return its last state. Raises 404, 409 Conflict."""
        key = (namespace, name)
        with self.lock:
            current = self.get(resource, *key)
            if current is None:
                raise errors.not_found(resource, name)
            if expected is not None and current.version != expected:
                raise errors.conflict(resource, name)
            return self._write("DELETED", resource, key, current.object, current).object

    def _write(self, kind: ChangeType, resource: Resource, key: Key, obj: Object, previous: Record | None) -> Record:
        self._version += 1
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        record = Record(stored, _encode(stored), self._version)
        held = self._objects.setdefault(resource.qualified, {}).setdefault(key[0], {})
        if kind == "DELETED":
            del held[key[1]]
        else:
            held[key[1]] = record
        self._sorted.pop((resource.qualified, ""), None)
        self._sorted.pop((resource.qualified, key[0]), None)
        change = Change(kind, resource, record, previous)
        self._log.append(change)
        if len(self._log) > LOG_LENGTH:
            self._oldest = self._log.popleft().record.version
        for listener in self._listeners:
            listener(change)
        self._changed.notify_all()
        return record

    # -- following --------------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Call `listener` inside every later write; it must be quick and must not write."""
        with self.lock:
            self._listeners.append(listener)

    def compact(self) -> None:
        """Forget the log: a watch from before now is answered 410, as after etcd's compaction."""
        with self.lock:
            self._log.clear()
            self._oldest = self._version

    def changes(self, since: int, wait: float) -> list[Change] | None:
        """Changes after version `since`, waiting up to `wait` seconds for the first; None once closed.

        Raises 410 Expired if they are no longer known.
        """
        with self.lock:
            if not self._closed and self._version <= since:
                self._changed.wait(wait)
            if self._closed:
                return None
            if since < self._oldest:
                raise errors.expired(since, self._oldest)
            return [*self._after(since)]

    def _after(self, since: int) -> Iterator[Change]:
        found: list[Change] = []
        for change in reversed(self._log):
            if change.record.version <= since:
                break
            found.append(change)
        return reversed(found)

    def wait_until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Whether `condition` came true within `seconds`; it is checked now and after every write."""
        with self.lock:
            return bool(self._changed.wait_for(condition, seconds))

    def close(self) -> None:
        """End every watch."""
        with self.lock:
            self._closed = True
            self._changed.notify_all()


def _key(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _without_version(obj: Object) -> Object:
    """The object as compared for "did anything change": managedFields' times do not count."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    return {**obj, "metadata": metadata}
