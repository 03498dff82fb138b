"""Immutable tables: they agree with a plain dict, never change, and share what an event does not touch."""

from hypothesis import given
from hypothesis import strategies as st

from webhook.cluster.table import Table, by_name, by_namespace
from webhook.k8s.objects import ObjectMeta, ResourceQuota

NAMES = st.sampled_from(["a", "b", "c", "d"])
KEYS = st.tuples(NAMES, NAMES)


def item(namespace: str, name: str, version: int = 0) -> ResourceQuota:
    return ResourceQuota(ObjectMeta(name=name, namespace=namespace, resource_version=str(version)))


@given(st.lists(KEYS), st.lists(st.tuples(st.booleans(), KEYS)))
def test_a_table_agrees_with_a_dict(listed: list[tuple[str, str]], changes: list[tuple[bool, tuple[str, str]]]) -> None:
    table = Table([item(*key, version) for version, key in enumerate(listed)])
    model = {key: item(*key, version) for version, key in enumerate(listed)}
    for version, (put, key) in enumerate(changes, 1000):
        changed = item(*key, version)
        table = table.with_item(changed) if put else table.without(changed)
        model.pop(key, None)
        if put:
            model[key] = changed
    for namespace in "abcd":
        assert table.group(namespace) == tuple(model[key] for key in sorted(model) if key[0] == namespace)
        for name in "abcd":
            assert table.get(namespace, name) == model.get((namespace, name))
            assert table.find(item(namespace, name)) == model.get((namespace, name))
    assert len(table) == len(model)
    assert sorted(one.metadata.resource_version for one in table) == sorted(
        one.metadata.resource_version for one in model.values()
    )


def test_a_table_that_was_handed_out_never_changes() -> None:
    before = Table([item("a", "x")])
    group = before.group("a")
    after = before.with_item(item("a", "y")).without(item("a", "x")).with_group("b", [item("b", "z")])
    assert before.group("a") == group == (item("a", "x"),)
    assert (after.group("a"), after.group("b")) == ((item("a", "y"),), (item("b", "z"),))


def test_one_event_among_ten_thousand_namespaces_copies_one_shard() -> None:
    before = Table([item(f"ns-{number}", "quota") for number in range(10_000)])
    after = before.with_item(item("ns-77", "quota", 1))
    shared = [one is other for one, other in zip(before._shards, after._shards, strict=True)]
    assert shared.count(False) == 1
    assert max(len(shard) for shard in before._shards) < 200


def test_kinds_without_a_namespace_are_looked_up_by_name() -> None:
    table = Table([item("", "n1"), item("", "n2")], by_name)
    assert table.get("n2", "n2") == item("", "n2")
    assert table.get("n3", "n3") is None
    assert by_namespace(item("a", "x")) == ("a", "x")


def test_a_group_that_holds_one_gives_it_without_a_search() -> None:
    table = Table([item("", "x"), item("", "y")], by_name)
    assert table.only("x") == table.get("x", "x") == item("", "x")
    assert table.only("z") is None
