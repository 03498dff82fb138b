"""JSON Schema of the three documents, generated from their types, for editors and for pull-request checks."""

from typing import Any

import msgspec

from webhook.policy.model import API_VERSION, GpuPolicy, GpuPricing
from webhook.policy.suite import GpuPolicyTest

_KINDS = (GpuPolicy, GpuPricing, GpuPolicyTest)


def schema() -> dict[str, Any]:
    """The schema, draft 2020-12; `kind` chooses among the documents, so that an error speaks of the right one."""
    _, definitions = msgspec.json.schema_components(_KINDS, ref_template="#/$defs/{name}")
    names = [kind.__name__ for kind in _KINDS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpu-webhook policy",
        "description": "A GpuPolicy, a GpuPricing or a GpuPolicyTest, as read from a policy folder.",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"const": API_VERSION, "description": API_VERSION},
            "kind": {"enum": names, "description": "Which of the three documents this is."},
        },
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
                "then": {"$ref": f"#/$defs/{name}"},
            }
            for name in names
        ],
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as the committed file holds it."""
    return msgspec.json.format(msgspec.json.encode(schema(), order="sorted"), indent=2).decode() + "\n"
