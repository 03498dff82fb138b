"""Patches change objects as the API server's do."""

import json
from typing import Any

import pytest

from webhook.lab import errors, patches
from webhook.lab.patches import MERGE_PATCH, STRATEGIC_MERGE_PATCH


def test_merge_patch_deletes_with_null_and_replaces_lists() -> None:
    target = {"a": {"b": 1, "c": 2}, "l": [1, 2]}
    assert patches.merge(target, {"a": {"b": None}, "l": [3]}) == {"a": {"c": 2}, "l": [3]}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
            {"containers": [{"name": "a", "image": "2"}, {"name": "c"}]},
            {"containers": [{"name": "a", "image": "2"}, {"name": "b"}, {"name": "c"}]},
            id="containers merge by name",
        ),
        pytest.param(
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"$patch": "delete", "name": "a"}]},
            {"containers": [{"name": "b"}]},
            id="an item is deleted by directive",
        ),
        pytest.param(
            {"containers": [{"name": "a"}]},
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b"}]},
            {"containers": [{"name": "b"}, {"name": "a"}]},
            id="the order is set",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
            id="atomic list",
        ),
        pytest.param(
            {"nodeSelectorTerms": [{"x": 1}]},
            {"nodeSelectorTerms": [{"y": 1}]},
            {"nodeSelectorTerms": [{"y": 1}]},
            id="N18: terms are atomic",
        ),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
            {"finalizers": ["b", "c"]},
            id="finalizers are a set",
        ),
        pytest.param(
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {}}},
            {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"strategy": {"type": "Recreate"}},
            id="retainKeys",
        ),
        pytest.param({"m": {"a": 1}}, {"m": {"$patch": "replace", "b": 2}}, {"m": {"b": 2}}, id="replace directive"),
        pytest.param(
            {"ports": [{"containerPort": 1, "name": "a"}]},
            {"ports": [{"containerPort": 1, "name": "b"}]},
            {"ports": [{"containerPort": 1, "name": "b"}]},
            id="ports by containerPort",
        ),
        pytest.param(
            {"labels": {"a": "1"}}, {"labels": {"a": None, "b": "2"}}, {"labels": {"b": "2"}}, id="null deletes"
        ),
    ],
)
def test_strategic_merge(target: Any, patch: Any, result: Any) -> None:
    assert patches.apply(STRATEGIC_MERGE_PATCH, json.dumps(patch).encode(), target) == result


def test_the_target_is_not_changed() -> None:
    target = {"a": {"b": 1}}
    patches.apply(MERGE_PATCH, b'{"a":{"b":2}}', target)
    assert target == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (
            {"op": "add", "path": "/a/b/c", "value": 1},
            'add operation does not apply: doc is missing path: "/a/b/c": missing value',
        ),
        ({"op": "remove", "path": "/spec"}, "remove operation does not apply: doc is missing key: spec: missing value"),
        (
            {"op": "replace", "path": "/spec", "value": 1},
            'replace operation does not apply: doc is missing path: "/spec"',
        ),
        ({"op": "test", "path": "/a", "value": 1}, "testing value /a failed: test failed"),
        ({"op": "move"}, "Unexpected kind"),
    ],
)
def test_v20_operations_are_applied_strictly(operation: Any, message: str) -> None:
    with pytest.raises(patches.PatchError) as caught:
        patches.apply_operations({"a": {}}, [{"op": "add", "path": "/x", "value": 1}, operation])
    assert str(caught.value).startswith(message)


def test_a_json_patch_of_a_client_that_does_not_apply_is_422() -> None:
    with pytest.raises(errors.ApiError) as caught:
        patches.apply(patches.JSON_PATCH, b'[{"op":"remove","path":"/nothing"}]', {})
    assert caught.value.code == 422


def test_unknown_types_are_415_and_broken_ones_400() -> None:
    for content_type, code in (("text/plain", 415), (MERGE_PATCH, 400)):
        with pytest.raises(errors.ApiError) as caught:
            patches.parse(content_type, b"{")
        assert caught.value.code == code
