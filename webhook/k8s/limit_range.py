"""The LimitRanger admission plugin: the amounts it fills into new pods, and why it would refuse them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from webhook.k8s.objects import (
    Container,
    LimitRange,
    LimitRangeItem,
    PodSpec,
    Quantities,
    Resources,
    kept_with_object,
)
from webhook.k8s.pod_resources import container_requests, limit_amounts, request_amounts
from webhook.k8s.quantity import Amount, QuantityError, parse, parse_amount


def apply(spec: PodSpec, limit_ranges: Iterable[LimitRange]) -> PodSpec:
    """The spec a new Pod has after API defaulting and LimitRanger: for templates, what their pods will have (R1, A13).

    Requests are first taken from limits, then every LimitRange fills, in containers and init containers alike, the
    limits and requests that are still missing, whatever the resource. Without LimitRanges the spec comes back as it is.
    """
    filled = [defaults for limit_range in limit_ranges if (defaults := _defaults(limit_range)) != ({}, {})]
    if not filled:
        return spec
    return msgspec.structs.replace(
        spec,
        containers=_fill(spec.containers, filled),
        init_containers=_fill(spec.init_containers, filled),
    )


def defaulted(item: LimitRangeItem) -> LimitRangeItem:
    """An item as stored: default limit from max, default request from default limit, then from min (A14)."""
    if item.type != "Container":
        return item
    default = {**(item.max or {}), **(item.default or {})}
    request = {**(item.min or {}), **default, **(item.default_request or {})}
    return msgspec.structs.replace(item, default=default or None, default_request=request or None)


def violations(spec: PodSpec, limit_ranges: Iterable[LimitRange]) -> list[str]:
    """Why LimitRanger would refuse a pod with this spec, in its own words; empty if it would not.

    `spec` is the pod's after `apply`. Refused pods show these as `pods "x" is forbidden: ...` (see `aggregate`).
    """
    found: list[str] = []
    for limit_range in limit_ranges:
        for item in limit_range.spec.limits or ():
            if item.type == "Container":
                for container in (*(spec.containers or ()), *(spec.init_containers or ())):
                    resources = container.resources or Resources()
                    requests = _amounts(container_requests(resources, from_limits=True))
                    found += _item_violations(item, requests, _amounts(resources.limits))
            elif item.type == "Pod":
                found += _item_violations(item, request_amounts(spec), limit_amounts(spec))
    return found


def aggregate(found: Iterable[str]) -> str:
    """Several refusals as one error text: alone as it is, else in brackets, repeated ones once."""
    distinct = list(dict.fromkeys(found))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


# -- filling ----------------------------------------------------------------------------------------------------------


@kept_with_object
def _defaults(limit_range: LimitRange) -> tuple[dict[str, Any], dict[str, Any]]:
    """(limits, requests) that one LimitRange gives to containers; of several items the last wins."""
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    for item in limit_range.spec.limits or ():
        if item.type == "Container":
            stored = defaulted(item)
            limits.update(stored.default or {})
            requests.update(stored.default_request or {})
    return limits, requests


def _fill(
    containers: tuple[Container, ...] | None, filled: list[tuple[dict[str, Any], dict[str, Any]]]
) -> tuple[Container, ...] | None:
    if not containers:
        return containers
    return tuple(_fill_one(container, filled) for container in containers)


def _fill_one(container: Container, filled: list[tuple[dict[str, Any], dict[str, Any]]]) -> Container:
    given = container.resources or Resources()
    limits: Quantities = given.limits or {}
    requests = container_requests(given, from_limits=True)
    for default_limits, default_requests in filled:
        limits = {**default_limits, **limits}
        requests = {**default_requests, **requests}
    resources = Resources(requests=requests or None, limits=limits or None)
    return msgspec.structs.replace(container, resources=resources)


# -- refusing ---------------------------------------------------------------------------------------------------------


def _item_violations(
    item: LimitRangeItem, requests: Mapping[str, Amount], limits: Mapping[str, Amount]
) -> Iterator[str]:
    for name, enforced in sorted(_amounts(item.min).items()):
        if text := _below(item.type, name, enforced, requests.get(name), limits.get(name)):
            yield text
    for name, enforced in sorted(_amounts(item.max).items()):
        if text := _above(item.type, name, enforced, requests.get(name), limits.get(name)):
            yield text
    for name, enforced in sorted(_amounts(item.max_limit_request_ratio).items()):
        if text := _ratio(item.type, name, enforced, requests.get(name), limits.get(name)):
            yield text


def _below(type_: str, name: str, enforced: Amount, request: Amount | None, limit: Amount | None) -> str | None:
    rule = f"minimum {name} usage per {type_} is {enforced}"
    if request is None:
        return f"{rule}. No request is specified"
    if enforced > request:
        return f"{rule}, but request is {request}"
    if limit is not None and enforced > limit:
        return f"{rule}, but limit is {limit}"
    return None


def _above(type_: str, name: str, enforced: Amount, request: Amount | None, limit: Amount | None) -> str | None:
    rule = f"maximum {name} usage per {type_} is {enforced}"
    if limit is None:
        return f"{rule}. No limit is specified"
    if limit > enforced:
        return f"{rule}, but limit is {limit}"
    if request is not None and request > enforced:
        return f"{rule}, but request is {request}"
    return None


def _ratio(type_: str, name: str, enforced: Amount, request: Amount | None, limit: Amount | None) -> str | None:
    rule = f"{name} max limit to request ratio per {type_} is {enforced}"
    if not request:
        return f"{rule}, but no request is specified or request is 0"
    if not limit:
        return f"{rule}, but no limit is specified or limit is 0"
    if limit.value > enforced.value * request.value:
        return f"{rule}, but provided ratio is {limit.value / request.value:f}"
    return None


def _amounts(quantities: Quantities | None) -> dict[str, Amount]:
    """The readable amounts; API validation refuses the others with better words."""
    amounts: dict[str, Amount] = {}
    for name, value in (quantities or {}).items():
        try:
            parse(value)
            amounts[name] = parse_amount(value)
        except QuantityError:
            continue
    return amounts
