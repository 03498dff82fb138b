"""What a pod asks for: effective requests and limits of a PodSpec, and which of its amounts Kubernetes would refuse.

The sums follow component-helpers' resource package (R2-R6, R11). `pod_requests` and `pod_limits` never fail: a
resource for which any amount is unusable is left out of the answer, because its total is unknown, and
`resource_problems` names the place. Ask both: a missing resource is "none" only where there is no problem.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from webhook.k8s.names import cached_by_name, keep, qualified_name_problem
from webhook.k8s.objects import Container, PodSpec, Quantities, Resources
from webhook.k8s.quantity import LONGEST, Amount, Quantity, QuantityError, parse, parse_amount

Number = TypeVar("Number", Quantity, Amount)
R = TypeVar("R")

Reason = Literal["unparsable", "negative", "fractional", "unequal", "no-limit"]


class ResourceProblem(NamedTuple):
    """One amount that API validation refuses (R8, R9, B38, B39)."""

    container: str
    """The container's name; "" for the pod's own `resources` and `overhead`."""
    field: Literal["requests", "limits", "overhead"]
    resource: str
    reason: Reason
    """unparsable: no quantity. negative. fractional: extended resources are whole (R9). unequal: request and limit of
    an extended resource differ. no-limit: an extended resource is requested without a limit (R8)."""
    value: Any
    """The amount as written."""


_encoder = msgspec.json.Encoder()
_LONGEST_KEPT: Final = 4096
"""Bytes that a spec may write of its resources for an answer to be kept: A1 again."""


def kept_by_resources(function: Callable[[PodSpec], R]) -> Callable[[PodSpec], R]:
    """A cache for a question about a pod spec that only its resources answer, kept under what is written there.

    Pods come from templates, and each is reviewed twice: most write what one before them wrote. JSON tells apart what
    Python takes for equal (1, 1.0 and true).
    """
    kept: dict[bytes, R] = {}

    @wraps(function)
    def look_up(spec: PodSpec) -> R:
        try:
            key = _encoder.encode((spec.containers, spec.init_containers, spec.overhead, spec.resources))
        except RecursionError:  # an "amount" can be nested almost as deep as we can read
            return function(spec)
        answer = kept.get(key)
        if answer is None:
            answer = function(spec)
            if len(key) <= _LONGEST_KEPT:
                keep(kept, key, answer)
        return answer

    return look_up


@cached_by_name
def is_extended(name: str) -> bool:
    """Whether `name` is an extended resource such as nvidia.com/gpu (R7)."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return qualified_name_problem(f"requests.{name}") is None


def pod_requests(spec: PodSpec, from_limits: bool = True) -> dict[str, Quantity]:
    """Effective request of a pod for every resource it names, zeros included (R2-R6, R11, R16).

    With `from_limits`, requests that are missing are taken from the limits, as the API server does for every Pod: the
    right reading of templates too, because the pods made from them get it (R1).
    """
    return _requests(spec, from_limits, _usable)


def pod_limits(spec: PodSpec) -> dict[str, Quantity]:
    """Effective limit of a pod for every resource that it limits (R6, R11)."""
    return _limits(spec, _usable)


def request_amounts(spec: PodSpec) -> dict[str, Amount]:
    """`pod_requests` with formats, for Kubernetes' own messages (O3)."""
    return _requests(spec, True, _usable_amount)


def limit_amounts(spec: PodSpec) -> dict[str, Amount]:
    """`pod_limits` with formats, for Kubernetes' own messages (O3)."""
    return _limits(spec, _usable_amount)


def is_best_effort(spec: PodSpec) -> bool:
    """Whether the pod's QoS class is BestEffort: no positive cpu or memory anywhere; GPUs do not count (R14)."""
    if spec.resources is not None:  # pod-level resources, when set, are all that counts
        return not _has_compute(spec.resources)
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    return not any(c.resources is not None and _has_compute(c.resources) for c in containers)


def has_pod_level_resources(spec: PodSpec) -> bool:
    """Whether `spec.resources` names one of the resources it may hold (R11)."""
    resources = spec.resources
    return resources is not None and any(
        is_pod_level(name) for name in (*(resources.requests or ()), *(resources.limits or ()))
    )


def is_pod_level(name: str) -> bool:
    """Whether `spec.resources` may hold this resource (R11)."""
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def container_requests(resources: Resources, from_limits: bool = True) -> Quantities:
    """The requests of one container as written, completed from its limits (R1)."""
    requests, limits = resources.requests or {}, resources.limits
    if not (from_limits and limits) or (requests.keys() >= limits.keys() and None not in requests.values()):
        return requests
    return {**limits, **_given(requests)}


def resource_problems(spec: PodSpec) -> tuple[ResourceProblem, ...]:
    """Every amount of `spec` that API validation would refuse; empty for a pod whose amounts are all usable."""
    found: list[ResourceProblem] = []
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if container.resources is not None:
                _add_problems(found, container.name, container.resources)
    if spec.resources is not None:
        _add_problems(found, "", spec.resources)
    if spec.overhead:
        _add_faults(found, "", "overhead", spec.overhead)
    return tuple(found)


# -- sums -------------------------------------------------------------------------------------------------------------


def _requests(spec: PodSpec, from_limits: bool, read: Callable[[Any], Number]) -> dict[str, Number]:
    unusable: set[str] = set()
    total: dict[str, Number] = {}
    for container in spec.containers or ():
        if container.resources is not None:
            _add(total, _read(container_requests(container.resources, from_limits), read, unusable))
    if spec.init_containers:
        _add_init(total, spec.init_containers, lambda r: container_requests(r, from_limits), read, unusable)
    if spec.resources is not None:
        requests = spec.resources.requests or {}
        missing = {} if not from_limits else {k: v for k, v in (spec.resources.limits or {}).items() if k not in total}
        total.update(_read({k: v for k, v in {**missing, **requests}.items() if is_pod_level(k)}, read, unusable))
    if spec.overhead:
        _add(total, _read(spec.overhead, read, unusable))
    return _known(total, unusable) if unusable else total


def _limits(spec: PodSpec, read: Callable[[Any], Number]) -> dict[str, Number]:
    unusable: set[str] = set()
    total: dict[str, Number] = {}
    for container in spec.containers or ():
        if container.resources is not None:
            _add(total, _read(container.resources.limits, read, unusable))
    if spec.init_containers:
        _add_init(total, spec.init_containers, lambda r: r.limits, read, unusable)
    if spec.resources is not None and spec.resources.limits:
        total.update(_read({k: v for k, v in spec.resources.limits.items() if is_pod_level(k)}, read, unusable))
    if spec.overhead:
        # overhead raises a limit, it never makes one (R6)
        _add(total, {k: v for k, v in _read(spec.overhead, read, unusable).items() if total.get(k)})
    return _known(total, unusable) if unusable else total


def _add_init(
    total: dict[str, Number],
    init_containers: Iterable[Container],
    amounts: Callable[[Resources], Quantities | None],
    read: Callable[[Any], Number],
    unusable: set[str],
) -> None:
    """max(containers + all sidecars, the highest point of the init sequence), resource by resource (R2, R3, R5)."""
    sidecars: dict[str, Number] = {}
    peak: dict[str, Number] = {}
    for container in init_containers:
        one = _read(amounts(container.resources), read, unusable) if container.resources is not None else {}
        if container.restart_policy == "Always":
            _add(total, one)
            _add(sidecars, one)  # their own peak is part of the total already
        else:
            _add(one, sidecars)
            _raise(peak, one)
    _raise(total, peak)


def _read(amounts: Quantities | None, read: Callable[[Any], Number], unusable: set[str]) -> dict[str, Number]:
    """A fresh dict of numbers; what cannot be read, or is negative, is noted in `unusable` instead."""
    numbers: dict[str, Number] = {}
    if not amounts:
        return numbers
    try:
        for name, value in amounts.items():
            numbers[name] = read(value)
    except (QuantityError, TypeError):
        return _read_usable(amounts, read, unusable)
    return numbers


def _read_usable(amounts: Quantities, read: Callable[[Any], Number], unusable: set[str]) -> dict[str, Number]:
    numbers: dict[str, Number] = {}
    for name, value in amounts.items():
        try:
            numbers[name] = read(value)
        except (QuantityError, TypeError):  # TypeError: lists and maps cannot even be looked up in the cache
            if value is not None:  # null reads as absent
                unusable.add(name)
    return numbers


@lru_cache(maxsize=4096, typed=True)
def _usable(value: Any) -> Quantity:
    number = parse(value)
    if number < 0:
        raise QuantityError(value)
    return number


def _usable_amount(value: Any) -> Amount:
    amount = parse_amount(value)
    if amount.value < 0:
        raise QuantityError(value)
    return amount


def _add(total: dict[str, Number], more: Mapping[str, Number]) -> None:
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


def _raise(total: dict[str, Number], other: Mapping[str, Number]) -> None:
    for name, value in other.items():
        if name not in total or value > total[name]:
            total[name] = value


def _known(total: dict[str, Number], unusable: set[str]) -> dict[str, Number]:
    return {name: value for name, value in total.items() if name not in unusable}


# -- validity ---------------------------------------------------------------------------------------------------------


def _add_problems(found: list[ResourceProblem], container: str, resources: Resources) -> None:
    requests, limits = _given(resources.requests), _given(resources.limits)
    before = len(found)
    _add_faults(found, container, "requests", requests)
    if requests == limits and len(found) == before:
        return  # amounts without fault have none as limits either
    _add_faults(found, container, "limits", limits)
    if requests == limits:
        return
    for name, value in requests.items():
        if not is_extended(name):
            continue
        if name not in limits:
            found.append(ResourceProblem(container, "requests", name, "no-limit", value))
        elif value != limits[name] and _differ(value, limits[name]):
            found.append(ResourceProblem(container, "requests", name, "unequal", value))


def _add_faults(
    found: list[ResourceProblem], container: str, field: Literal["requests", "limits", "overhead"], amounts: Quantities
) -> None:
    try:
        if not any(map(_fault, amounts, amounts.values())):
            return
    except TypeError:  # see below
        pass
    for name, value in amounts.items():
        try:
            reason = _fault(name, value)
        except TypeError:  # a list or a map cannot be looked up in the cache, and is no quantity
            reason = "unparsable"
        if reason is not None:
            found.append(ResourceProblem(container, field, name, reason, value))


def _fault(name: str, value: Any) -> Reason | None:
    """What is wrong with one amount by itself; texts too long for an amount are not kept."""
    fault = _fault_of(value) if type(value) is not str or len(value) <= LONGEST else "unparsable"
    return fault if fault != "fractional" or is_extended(name) else None


@lru_cache(maxsize=4096, typed=True)
def _fault_of(value: Any) -> Reason | None:
    try:
        number = parse(value)
    except QuantityError:
        return "unparsable" if value is not None else None
    if number < 0:
        return "negative"
    return "fractional" if type(number) is not int else None


def _differ(request: Any, limit: Any) -> bool:
    """Whether two readable amounts differ; unreadable ones have their own problem."""
    try:
        return parse(request) != parse(limit)
    except QuantityError:
        return False


def _given(amounts: Quantities | None) -> Quantities:
    """`amounts` without nulls, which read as absent."""
    if not amounts or None not in amounts.values():
        return amounts or {}
    return {name: value for name, value in amounts.items() if value is not None}


def _has_compute(resources: Resources) -> bool:
    for amounts in (resources.requests, resources.limits):
        for name in ("cpu", "memory"):
            try:
                if amounts and amounts.get(name) is not None and parse(amounts[name]) > 0:
                    return True
            except QuantityError:
                continue
    return False
