"""Names: what Kubernetes accepts as label keys, label values and resource names."""

import sys
from typing import Any

import pytest

from webhook.k8s.names import label_value_problem, qualified_name_problem
from webhook.k8s.pod_resources import is_extended
from webhook.k8s.quantity import counts_bytes
from webhook.k8s.quota import is_pod_key


@pytest.mark.parametrize("name", ["app", "gpu.platform/pool", "nvidia.com/mig-1g.10gb", "A_b.c-1", "x" * 63])
def test_qualified_names(name: str) -> None:
    assert qualified_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "non-empty"),
        ("/pool", "prefix part must be non-empty"),
        ("gpu.platform/", "name part must be non-empty"),
        ("GPU.platform/pool", "lowercase DNS subdomain"),
        ("a/b/c", "lowercase DNS subdomain"),
        ("-app", "alphanumeric"),
        ("app\n", "alphanumeric"),
        ("x" * 64, "no more than 63"),
        ("a" * 254 + "/x", "no more than 253"),
        ("größe", "alphanumeric"),
    ],
)
def test_what_is_no_qualified_name_says_why(name: str, why: str) -> None:
    assert why in (qualified_name_problem(name) or "")


def test_label_values() -> None:
    assert label_value_problem("") is None
    assert label_value_problem("a100") is None
    assert "no more than 63" in (label_value_problem("x" * 64) or "")
    assert "alphanumeric" in (label_value_problem("a b") or "")


@pytest.mark.parametrize("ask", [qualified_name_problem, is_extended, counts_bytes, is_pod_key])
def test_names_too_long_to_be_valid_are_answered_and_not_kept(ask: Any) -> None:
    """Whoever may send a manifest may send names of a megabyte: a cache of them would be our memory."""
    name = "example.com/" + "x" * 1000
    before = sys.getrefcount(name)
    assert ask(name) == ask(name)
    assert sys.getrefcount(name) == before
