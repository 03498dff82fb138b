"""A live cluster read once, as a Snapshot: for commands that look at everything and then end."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from webhook.cluster import kinds
from webhook.cluster.api import Api, ApiError
from webhook.cluster.kinds import Kind
from webhook.cluster.snapshot import Snapshot

PAGE = 500
TIMEOUT = 30.0
"""Seconds for one page of a list."""


class Whole(NamedTuple):
    """`unreadable`: kind -> why its objects are not in the snapshot."""

    snapshot: Snapshot
    unreadable: dict[str, str]


def read_whole(api: Api, wanted: Iterable[Kind] = kinds.ALL) -> Whole:
    """All objects of these kinds. What we may not read, or is not served, is left out and named.

    Raises ApiError when the API server does not answer or fails otherwise.
    """
    objects: list[dict[str, Any]] = []
    unreadable: dict[str, str] = {}
    for kind in wanted:
        try:
            objects.extend(_list(api, kind))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            unreadable[kind.name] = str(error)
    return Whole(Snapshot.from_objects(objects), unreadable)


def _list(api: Api, kind: Kind) -> list[dict[str, Any]]:
    """The objects of a kind as plain JSON, each with the kind that the API leaves out in lists."""
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": PAGE}
    while True:
        page = msgspec.json.decode(api.get(kind.path(), query, TIMEOUT))
        found += [{"apiVersion": kind.api_version, "kind": kind.name, **item} for item in page.get("items") or ()]
        query["continue"] = (page.get("metadata") or {}).get("continue")
        if not query["continue"]:
            return found
