"""Immutable tables of objects: a change makes a new table sharing all but the changed namespace with the old one."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

_SHARDS = 256
T = TypeVar("T")

Key = Callable[[Any], tuple[str, str]]
"""The group (mostly the namespace) under which an object is looked up, and its name inside that group."""


def by_namespace(item: Any) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name


def by_name(item: Any) -> tuple[str, str]:
    """For kinds without a namespace: each name is a group of its own."""
    return item.metadata.name, item.metadata.name


class Table(Generic[T]):
    """Group -> objects sorted by name. Look-ups cost the same at ten groups and at ten thousand.

    Groups are spread over 256 small dicts, so that publishing one event copies one of them, not all groups.
    """

    __slots__ = ("_key", "_shards")

    def __init__(self, items: Iterable[T] = (), key: Key = by_namespace) -> None:
        """Of two objects with the same key the later one counts."""
        groups: dict[str, dict[str, T]] = {}
        for item in items:
            group, name = key(item)
            groups.setdefault(group, {})[name] = item
        shards: list[dict[str, tuple[T, ...]]] = [{} for _ in range(_SHARDS)]
        for group, members in groups.items():
            shards[hash(group) % _SHARDS][group] = tuple(members[name] for name in sorted(members))
        self._key = key
        self._shards: tuple[Mapping[str, tuple[T, ...]], ...] = tuple(shards)

    def group(self, group: str) -> tuple[T, ...]:
        """All objects of a group, sorted by name."""
        return self._shards[hash(group) % _SHARDS].get(group, ())

    @staticmethod
    def together(tables: "Iterable[Table[T] | None]", group: str) -> tuple[T, ...] | None:
        """The objects of a group in several tables, one after the other; None if one of the tables is missing."""
        found: list[T] = []
        shard = hash(group) % _SHARDS
        for table in tables:
            if table is None:
                return None
            found += table._shards[shard].get(group, ())
        return tuple(found)

    def get(self, group: str, name: str) -> T | None:
        members = self.group(group)
        at = bisect_left(members, name, key=self._name)
        return members[at] if at < len(members) and self._name(members[at]) == name else None

    def only(self, name: str) -> T | None:
        """The object of a group that holds one at most, as those made `by_name` do."""
        members = self.group(name)
        return members[0] if members else None

    def find(self, item: T) -> T | None:
        """The object that has the same key as `item`."""
        return self.get(*self._key(item))

    def with_item(self, item: T) -> "Table[T]":
        """A table in which `item` stands in place of whatever had its key."""
        before, after = self._around(item)
        return self._with_group(self._key(item)[0], (*before, item, *after))

    def without(self, item: T) -> "Table[T]":
        """A table without the object that has the key of `item`."""
        before, after = self._around(item)
        return self._with_group(self._key(item)[0], before + after)

    def with_group(self, group: str, items: Iterable[T]) -> "Table[T]":
        """A table in which a group holds exactly `items`."""
        return self._with_group(group, tuple(sorted(items, key=self._name)))

    def __iter__(self) -> Iterator[T]:
        for shard in self._shards:
            for members in shard.values():
                yield from members

    def __len__(self) -> int:
        return sum(len(members) for shard in self._shards for members in shard.values())

    def _name(self, item: T) -> str:
        return self._key(item)[1]

    def _around(self, item: T) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """The members of the group of `item` that sort before and after it."""
        group, name = self._key(item)
        members = self.group(group)
        at = bisect_left(members, name, key=self._name)
        taken = at < len(members) and self._name(members[at]) == name
        return members[:at], members[at + taken :]

    def _with_group(self, group: str, members: tuple[T, ...]) -> "Table[T]":
        index = hash(group) % _SHARDS
        shard = dict(self._shards[index])
        if members:
            shard[group] = members
        else:
            shard.pop(group, None)
        table: Table[T] = Table.__new__(Table)
        table._key = self._key
        table._shards = (*self._shards[:index], shard, *self._shards[index + 1 :])
        return table
