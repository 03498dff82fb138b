"""Which names Kubernetes accepts: label keys, label values and resource names, in its own words."""

import re
from collections.abc import Callable
from typing import Final, TypeVar

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
K = TypeVar("K")
T = TypeVar("T")

LONGEST: Final = 320
"""Characters of the longest valid name: a prefix of 253, a slash and 63 more, with a little to spare."""
_MOST: Final = 1024
"""Questions whose answers are kept; beyond them all are forgotten."""


def keep(kept: dict[K, T], question: K, answer: T) -> None:
    """Keep one more answer. Whether the question is short enough to be kept is the caller's matter (A1)."""
    if len(kept) >= _MOST:
        kept.clear()
    kept[question] = answer


class _Answers(dict[str, T]):
    """Name -> answer, worked out when the name is first met."""

    def __init__(self, function: Callable[[str], T]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, name: str) -> T:
        answer = self._function(name)
        if len(name) <= LONGEST:
            keep(self, name, answer)
        return answer


def cached_by_name(function: Callable[[str], T]) -> Callable[[str], T]:
    """A cache for a question about one name, that keeps nothing longer than a valid name can be.

    Names come from whoever may send a manifest, before validation (A1): a thousand kept ones of a megabyte each would
    be our memory. A hit is a plain look-up in a dict: these questions are asked several times for every review.
    """
    return _Answers(function).__getitem__


@cached_by_name
def qualified_name_problem(name: str) -> str | None:
    """Why `name` is not a label key or resource name (`prefix/name`, the prefix optional), or None if it is one."""
    prefix, slash, rest = name.rpartition("/")
    if slash and not prefix:
        return "prefix part must be non-empty"
    if prefix and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return "prefix part must be a lowercase DNS subdomain of no more than 253 characters"
    if not rest:
        return "name part must be non-empty"
    if len(rest) > 63:
        return "name part must be no more than 63 characters"
    return None if _NAME.fullmatch(rest) else f"name part {_NAME_RULE}"


def label_value_problem(value: str) -> str | None:
    """Why `value` is not a label value, or None if it is one (the empty string is)."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return None if not value or _NAME.fullmatch(value) else f"a valid label must be an empty string or {_NAME_RULE[5:]}"
