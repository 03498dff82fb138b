"""What live clusters were seen to do: the recorded cases under tests/data, as plain JSON."""

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

DATA = Path(__file__).parent.parent / "data"


@cache
def lines(name: str) -> list[Any]:
    """Every line of a .jsonl file."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


@cache
def cluster(name: str) -> dict[str, list[Any]]:
    """The objects of a recorded cluster, by kind."""
    by_kind: dict[str, list[Any]] = {}
    for item in json.loads((DATA / name / "cluster.json").read_text())["items"]:
        by_kind.setdefault(item["kind"], []).append(item)
    return by_kind


@cache
def reviews() -> list[tuple[str, str, Any]]:
    """(scenario, phase, AdmissionReview request) of every golden review."""
    found = []
    for path in sorted((DATA / "golden").glob("*.json")):
        scenario = json.loads(path.read_text())
        found += [(scenario["scenario"], each["phase"], each["review"]["request"]) for each in scenario["reviews"]]
    return found


def typed(recorded: Any, type_: type[T]) -> T:
    """A recorded object as the struct that the product reads: through JSON, because managedFields stay raw there."""
    return msgspec.json.decode(msgspec.json.encode(recorded), type=type_)
