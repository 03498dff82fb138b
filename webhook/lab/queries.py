"""Selection in lists and watches: label selectors as objects and as query strings, and field selectors."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from webhook.k8s import selectors
from webhook.k8s.objects import LabelSelector, LabelSelectorRequirement
from webhook.lab import errors, typed
from webhook.lab.resources import Object

Predicate = Callable[[Object], bool]

_SET_BASED: Final = re.compile(r"([^\s!=,()]+)\s+(in|notin)\s+\(([^)]*)\)")
_PARTS: Final = re.compile(r",(?![^(]*\))")
_EVERYTHING: Final = LabelSelector()


def selects(selector: Object | None, labels: dict[str, str] | None) -> bool:
    """Whether a LabelSelector selects `labels`; `labels` None stands for something every selector passes."""
    if labels is None or not selector:
        return labels is None or selector is not None
    return selectors.matches(typed.read(selector, LabelSelector), labels)


def _everything(_: Object) -> bool:
    return True


EVERYTHING: Final[Predicate] = _everything
"""What no selector at all gives."""


def predicate(label_selector: str, field_selector: str) -> Predicate:
    """What `?labelSelector=` and `?fieldSelector=` select. Raises 400."""
    labels, fields = parse_labels(label_selector), parse_fields(field_selector)
    if labels is _EVERYTHING and not fields:
        return EVERYTHING

    def selected(obj: Object) -> bool:
        if not selectors.matches(labels, obj["metadata"].get("labels")):
            return False
        return all((_at(obj, path) == value) is wanted for path, value, wanted in fields)

    return selected


@lru_cache(maxsize=256)
def parse_labels(text: str) -> LabelSelector:
    """`a=b,c!=d,e in (f,g),h,!i` as a LabelSelector. Raises 400."""
    if not text.strip():
        return _EVERYTHING
    return LabelSelector(match_expressions=tuple(_requirement(part.strip()) for part in _PARTS.split(text)))


def _requirement(part: str) -> LabelSelectorRequirement:
    match = _SET_BASED.fullmatch(part)
    if match:
        operator = "In" if match[2] == "in" else "NotIn"
        return LabelSelectorRequirement(match[1], operator, tuple(v.strip() for v in match[3].split(",")))
    for sign, operator in (("!=", "NotIn"), ("==", "In"), ("=", "In")):
        key, found, value = part.partition(sign)
        if found:
            return LabelSelectorRequirement(key.strip(), operator, (value.strip(),))
    if part.startswith("!"):
        return LabelSelectorRequirement(part[1:].strip(), "DoesNotExist")
    if not re.fullmatch(r"[\w./-]+", part):
        raise errors.bad_request(f"unable to parse requirement: found {part!r}, expected a label key")
    return LabelSelectorRequirement(part, "Exists")


@lru_cache(maxsize=256)
def parse_fields(text: str) -> tuple[tuple[str, str, bool], ...]:
    """`metadata.name=x,status.phase!=Running` as (path, value, equal). Raises 400."""
    found = []
    for part in filter(None, text.split(",")):
        for sign, wanted in (("!=", False), ("==", True), ("=", True)):
            path, separator, value = part.partition(sign)
            if separator:
                found.append((path.strip(), value.strip(), wanted))
                break
        else:
            raise errors.bad_request(f"invalid field selector {part!r}: expected path=value")
    return tuple(found)


def _at(obj: Object, path: str) -> str:
    value: Any = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
