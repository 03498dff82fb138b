"""The store numbers every write, keeps a bounded log, and lets stale writers know."""

import threading

import pytest

from webhook.lab import errors, resources, store
from webhook.lab.resources import Object
from webhook.lab.store import Change, Store


def config(name: str, namespace: str = "n", **data: str) -> Object:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": namespace}, "data": data}


def test_writes_are_numbered_and_stale_ones_refused() -> None:
    held = Store()
    first = held.create(resources.CONFIG_MAPS, config("a"))
    version = int(first["metadata"]["resourceVersion"])
    second = held.update(resources.CONFIG_MAPS, config("a", x="1"), version)
    assert int(second["metadata"]["resourceVersion"]) == version + 1
    with pytest.raises(errors.ApiError, match="the object has been modified"):
        held.update(resources.CONFIG_MAPS, config("a", x="2"), version)
    with pytest.raises(errors.ApiError, match='configmaps "a" already exists'):
        held.create(resources.CONFIG_MAPS, config("a"))


def test_identical_bytes_are_not_written() -> None:
    """H11."""
    held = Store()
    held.create(resources.CONFIG_MAPS, config("a", x="1"))
    version = held.version
    held.update(resources.CONFIG_MAPS, config("a", x="1"))
    assert held.version == version


def test_changes_since_a_version_and_too_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOG_LENGTH", 3)
    held = Store()
    begin = held.version
    for name in "abcd":
        held.create(resources.CONFIG_MAPS, config(name))
    changes = held.changes(held.version - 2, 0) or []
    assert [change.record.object["metadata"]["name"] for change in changes] == ["c", "d"]
    with pytest.raises(errors.ApiError, match="too old resource version"):
        held.changes(begin, 0)


def test_a_waiting_reader_is_woken_by_a_write_and_by_the_end() -> None:
    held = Store()
    found: list[list[Change] | None] = []
    reader = threading.Thread(target=lambda: found.append(held.changes(held.version, 5)))
    reader.start()
    held.create(resources.CONFIG_MAPS, config("a"))
    reader.join(2)
    assert found and found[0] is not None and found[0][0].type == "ADDED"
    held.close()
    assert held.changes(held.version, 5) is None


def test_lists_are_sorted_and_follow_writes() -> None:
    held = Store()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        held.create(resources.CONFIG_MAPS, config(name, namespace))
    assert [r.object["metadata"]["name"] for r in held.records(resources.CONFIG_MAPS)] == ["y", "z", "x"]
    held.delete(resources.CONFIG_MAPS, "a", "z")
    assert [r.object["metadata"]["name"] for r in held.records(resources.CONFIG_MAPS, "a")] == ["y"]
