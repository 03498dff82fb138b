"""Selectors as sets of labels: is one inside others, do two meet, and an example of labels that shows it.

For one label key a selector allows a set of values; "absent" counts as a value. Such a set is finite, or everything but
a finite set, and stays so under intersection and difference. A selector over several keys is a box of such sets.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.policy.active import NEVER_JUDGED
from webhook.policy.model import Rule, Selector

ABSENT = None
MAX_PIECES = 2000
"""More pieces than this and a question is left unanswered: selectors of real policies need a handful."""

Where = tuple[str, str]
"""`namespace` or `pod`, and the label's key."""


class Values(NamedTuple):
    """The values of `items`, or, if `others`, all values but those of `items`."""

    items: frozenset[str | None]
    others: bool = False

    def meet(self, other: "Values") -> "Values":
        if self.others and other.others:
            return Values(self.items | other.items, True)
        if self.others:
            return Values(other.items - self.items)
        return Values(self.items - other.items if other.others else self.items & other.items)

    def without(self, other: "Values") -> "Values":
        return self.meet(Values(other.items, not other.others))

    @property
    def is_empty(self) -> bool:
        return not self.items and not self.others

    def example(self) -> str | None:
        """One of the values, present rather than absent; None if only "absent" is allowed or nothing is said."""
        if not self.others:
            return min((value for value in self.items if value is not None), default=None)
        if ABSENT in self.items:
            return next(value for value in _candidates() if value not in self.items)
        return None


def _candidates() -> Iterable[str]:
    yield "any"
    yield from (f"any-{number}" for number in range(1, 10_000))


EVERYTHING = Values(frozenset(), True)
Box = Mapping[Where, Values]
"""Which values each label may have; a label that is not named may have every value or be absent."""


def box_of(rule: Rule) -> Box:
    """All namespaces and pods that a rule matches, without the namespaces that are never judged."""
    name = ("namespace", "kubernetes.io/metadata.name")
    box: dict[Where, Values] = {name: Values(frozenset({ABSENT, *NEVER_JUDGED}), True)}
    for scope, selector in (("namespace", rule.namespace_selector), ("pod", rule.workload_selector)):
        for key, values in _parts(selector):
            box[scope, key] = box.get((scope, key), EVERYTHING).meet(values)
    return box


def _parts(selector: Selector) -> Iterable[tuple[str, Values]]:
    for key, value in selector.match_labels.items():
        yield key, Values(frozenset({value}))
    for part in selector.match_expressions:
        match part.operator:
            case "In":
                yield part.key, Values(frozenset(part.values))
            case "NotIn":
                yield part.key, Values(frozenset(part.values), True)
            case "Exists":
                yield part.key, Values(frozenset({ABSENT}), True)
            case "DoesNotExist":
                yield part.key, Values(frozenset({ABSENT}))


def is_empty(box: Box) -> bool:
    return any(values.is_empty for values in box.values())


def meet(one: Box, other: Box) -> Box | None:
    """What both match; None if nothing."""
    both = dict(one)
    for where, values in other.items():
        both[where] = both.get(where, EVERYTHING).meet(values)
    return None if is_empty(both) else both


def without(box: Box, others: Iterable[Box]) -> list[Box] | None:
    """What of a box none of the others matches, in disjoint pieces; None if that takes too many pieces."""
    pieces = [] if is_empty(box) else [box]
    for other in others:
        pieces = [rest for piece in pieces for rest in _without_one(piece, other)]
        if len(pieces) > MAX_PIECES:
            return None
    return pieces


def is_inside(box: Box, other: Box) -> bool:
    return without(box, [other]) == []


def _without_one(box: Box, other: Box) -> list[Box]:
    if meet(box, other) is None:
        return [box]
    rest: list[Box] = []
    inside = dict(box)
    for where, values in other.items():
        present = inside.get(where, EVERYTHING)
        outside = present.without(values)
        if not outside.is_empty:
            rest.append({**inside, where: outside})
        inside[where] = present.meet(values)
    return rest


def example(box: Box, scope: str) -> dict[str, str]:
    """Labels that the box matches; the name that every namespace carries is left out where any would do."""
    labels = {}
    for (where, key), values in box.items():
        value = values.example()
        if where == scope and value is not None and not (key == "kubernetes.io/metadata.name" and values.others):
            labels[key] = value
    return labels
