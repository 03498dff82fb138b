"""The JSON Schema: generated from the types, committed, and accepting exactly what the loader accepts."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from webhook.policy.convert import FORMS
from webhook.policy.schema import schema, schema_text

POLICIES = Path(__file__).parents[2] / "policies"


def test_the_committed_schema_is_the_generated_one() -> None:
    assert (POLICIES / "schema.json").read_text(encoding="utf-8") == schema_text(), (
        "run: gpu-webhook policy schema > policies/schema.json"
    )


def test_it_is_a_valid_schema_and_every_field_says_what_it_is_for() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for name, definition in schema()["$defs"].items():
        assert definition["additionalProperties"] is False, name
        assert definition["description"], name
        missing = [key for key, value in definition["properties"].items() if not value.get("description")]
        assert not missing, f"{name} has fields without a description: {missing}"


def _documents() -> list[Any]:
    return [
        document
        for path in sorted(POLICIES.glob("*.yaml"))
        # times as text, as JSON has them
        for document in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    ]


def test_the_shipped_files_follow_it() -> None:
    """With the untyped loader all scalars are text, so only the shape of what is text is compared."""
    policy = next(document for document in _documents() if document["kind"] == "GpuPolicy")
    jsonschema.validate(policy, schema())


def test_the_shipped_files_carry_the_line_that_editors_read() -> None:
    for path in sorted(POLICIES.glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=./schema.json", path.name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "GpuPolcy"}, "is not one of"),
        ({"spec": {"rules": [], "mod": "audit"}}, "Additional properties are not allowed"),
        ({"spec": {"rules": [{"name": "a"}]}}, "'namespaceSelector' is a required property"),
        ({"spec": {"rules": [], "mode": "off"}}, "is not one of"),
    ],
)
def test_it_refuses_what_the_loader_refuses(change: dict[str, Any], said: str) -> None:
    document = {"apiVersion": "gpu.platform/v1", "kind": "GpuPolicy", "metadata": {"name": "a"}, "spec": {"rules": []}}
    jsonschema.validate(document, schema())
    with pytest.raises(jsonschema.ValidationError, match=said):
        jsonschema.validate(json.loads(json.dumps(document | change)), schema())


def test_every_pattern_has_words_of_its_own() -> None:
    """A regular expression is for editors; people are told what to write."""
    patterns = re.findall(r'"pattern": "([^"]+)"', schema_text())
    assert set(patterns) == set(FORMS)
