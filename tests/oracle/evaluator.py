"""A second opinion on Kubernetes: affinity, effective requests and quota verdicts, written apart from the product.

It imports nothing from `webhook`, works on plain JSON and counts in Fractions. Where the product sums up and takes a
maximum, this walks through the pod's life; where the product looks keys up, this filters lists.
"""

import re
from fractions import Fraction
from typing import Any

Json = dict[str, Any]
Amounts = dict[str, Fraction]

_UNITS = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{unit: Fraction(1, 1000) ** power for power, unit in enumerate("mun", 1)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


# -- quantities -------------------------------------------------------------------------------------------------------


def number(text: Any) -> Fraction:
    """An exact number from a Kubernetes quantity."""
    text = str(text).strip()
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return Fraction(text[: -len(unit)]) * _UNITS[unit]
    return Fraction(text)  # reads exponents as well


def amounts(quantities: Json | None) -> Amounts:
    return {name: number(value) for name, value in (quantities or {}).items()}


# -- effective requests and limits ------------------------------------------------------------------------------------


def container_amounts(container: Json, field: str) -> Amounts:
    resources = container.get("resources") or {}
    limits = amounts(resources.get("limits"))
    return limits if field == "limits" else {**limits, **amounts(resources.get("requests"))}


def effective(pod: Json, field: str) -> Amounts:
    """The highest that the pod's containers reach at any moment of its life, resource by resource."""
    running: list[Amounts] = []
    moments: list[list[Amounts]] = []
    for init in pod.get("initContainers") or []:
        own = container_amounts(init, field)
        if init.get("restartPolicy") == "Always":
            running = [*running, own]
            moments.append(running)
        else:
            moments.append([*running, own])
    moments.append([*running, *(container_amounts(c, field) for c in pod.get("containers") or [])])
    names = {name for moment in moments for one in moment for name in one}
    peak = {name: max(sum((one.get(name, Fraction(0)) for one in m), Fraction(0)) for m in moments) for name in names}
    return _with_overhead(pod, _with_pod_level(pod, peak, field), field)


def _with_pod_level(pod: Json, peak: Amounts, field: str) -> Amounts:
    own = pod.get("resources") or {}
    allowed = [n for n in ("cpu", "memory") if n] + [n for n in _names(own) if n.startswith("hugepages-")]
    limits, requests = amounts(own.get("limits")), amounts(own.get("requests"))
    for name in allowed:
        if field == "limits" and name in limits:
            peak[name] = limits[name]
        if field == "requests":
            if name in requests:
                peak[name] = requests[name]
            elif name in limits and name not in peak:
                peak[name] = limits[name]
    return peak


def _with_overhead(pod: Json, peak: Amounts, field: str) -> Amounts:
    for name, more in amounts(pod.get("overhead")).items():
        if field == "requests" or peak.get(name):
            peak[name] = peak.get(name, Fraction(0)) + more
    return peak


def _names(resources: Json) -> set[str]:
    return {name for part in ("requests", "limits") for name in resources.get(part) or {}}


# -- quota ------------------------------------------------------------------------------------------------------------

_PLAIN = ["cpu", "memory", "ephemeral-storage"]


def counts_pods(key: str) -> bool:
    if key in ("pods", "count/pods"):
        return True
    bare = re.sub(r"^(requests|limits)\.", "", key)
    if bare in _PLAIN:
        return True
    if bare.startswith("hugepages-"):
        return not key.startswith("limits.")
    return key.startswith("requests.") and "/" in bare and "kubernetes.io/" not in bare


def demand(pod: Json, key: str) -> Fraction:
    """How much of one quota key a pod takes."""
    if key in ("pods", "count/pods"):
        return Fraction(1)
    if not counts_pods(key):
        return Fraction(0)
    field = "limits" if key.startswith("limits.") else "requests"
    return effective(pod, field).get(re.sub(r"^(requests|limits)\.", "", key), Fraction(0))


def best_effort(pod: Json) -> bool:
    own = pod.get("resources")
    every = [*(pod.get("containers") or []), *(pod.get("initContainers") or [])]
    parts = [own] if own is not None else [container.get("resources") or {} for container in every]
    compute = [
        number(value)
        for part in parts
        for field in ("requests", "limits")
        for name, value in (part.get(field) or {}).items()
        if name in ("cpu", "memory")
    ]
    return not any(value > 0 for value in compute)


def in_scope(pod: Json, scope: Json) -> bool:
    name, operator = scope["scopeName"], scope.get("operator", "Exists")
    if name == "PriorityClass":
        chosen, values = pod.get("priorityClassName") or None, scope.get("values") or []
        return {
            "In": chosen is not None and chosen in values,
            "NotIn": chosen is None or chosen not in values,
            "Exists": chosen is not None,
            "DoesNotExist": chosen is None,
        }[operator]
    deadline = pod.get("activeDeadlineSeconds") is not None
    return {
        "Terminating": deadline,
        "NotTerminating": not deadline,
        "BestEffort": best_effort(pod),
        "NotBestEffort": not best_effort(pod),
    }[name]


def applies(quota: Json, pod: Json) -> bool:
    spec = quota["spec"]
    scopes = [{"scopeName": name} for name in spec.get("scopes") or []]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    hard = (quota.get("status") or {}).get("hard") or {}
    return any(counts_pods(key) for key in hard) and all(in_scope(pod, scope) for scope in scopes)


def unnamed(quota: Json, pod: Json) -> dict[str, set[str]]:
    """Which compute keys of the quota which containers do not name."""
    if any(n in ("cpu", "memory") or n.startswith("hugepages-") for n in _names(pod.get("resources") or {})):
        return {}
    found: dict[str, set[str]] = {}
    for key in quota["status"]["hard"]:
        field = "limits" if key.startswith("limits.") else "requests"
        name = re.sub(r"^(requests|limits)\.", "", key)
        if name in ("cpu", "memory"):
            every = [*(pod.get("containers") or []), *(pod.get("initContainers") or [])]
            lacking = {c["name"] for c in every if name not in container_amounts(c, field)}
            if lacking:
                found[key] = lacking
    return found


def refusals(quotas: list[Json], pod: Json, pods: int = 1) -> dict[str, tuple[str, set[str]]]:
    """Quota name -> why it refuses `pods` more of this pod: ("must-specify" | "exceeded", the keys)."""
    found: dict[str, tuple[str, set[str]]] = {}
    for quota in quotas:
        if not pods or not applies(quota, pod):
            continue
        if missing := unnamed(quota, pod):
            found[quota["metadata"]["name"]] = ("must-specify", set(missing))
            continue
        hard, used = amounts(quota["status"]["hard"]), amounts(quota["status"].get("used"))
        wanted = {key: demand(pod, key) * pods for key in hard if counts_pods(key)}
        over = {key for key, more in wanted.items() if more and used[key] + more > hard[key]}
        if over:
            found[quota["metadata"]["name"]] = ("exceeded", over)
    return found


# -- node affinity ----------------------------------------------------------------------------------------------------


def allowed_nodes(pod: Json, nodes: dict[str, Json]) -> set[str]:
    """The names of the nodes (name -> labels) that nodeSelector and required node affinity leave."""
    chosen = {
        name: labels
        for name, labels in nodes.items()
        if all(key in labels and labels[key] == value for key, value in (pod.get("nodeSelector") or {}).items())
    }
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is None:
        return set(chosen)
    reached: set[str] = set()
    for term in required.get("nodeSelectorTerms") or []:
        reached |= _reached(term, chosen)
    return reached


def _reached(term: Json, nodes: dict[str, Json]) -> set[str]:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return set()
    if any(not _parses(e) for e in expressions) or any(len(f.get("values") or []) != 1 for f in fields):
        return set()
    left = set(nodes)
    for expression in expressions:
        left &= {name for name in left if _holds(expression, nodes[name])}
    for field in fields:
        named = set(field["values"])
        left = left & named if field["operator"] == "In" else left - named
    return left


def _parses(expression: Json) -> bool:
    values = expression.get("values") or []
    if expression["operator"] in ("Gt", "Lt"):
        return len(values) == 1 and _integer(values[0]) is not None and values[0][:1] not in ("-", "+")
    return bool(values) if expression["operator"] in ("In", "NotIn") else not values


def _holds(expression: Json, labels: Json) -> bool:
    key, values = expression["key"], expression.get("values") or []
    present = key in labels
    if expression["operator"] in ("Gt", "Lt"):
        mine, bound = _integer(labels.get(key, "")), _integer(values[0])
        if mine is None or bound is None:
            return False
        return mine > bound if expression["operator"] == "Gt" else mine < bound
    return {
        "In": present and labels[key] in values,
        "NotIn": not present or labels[key] not in values,
        "Exists": present,
        "DoesNotExist": not present,
    }[expression["operator"]]


def _integer(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(2**63) <= int(text) < 2**63:
        return None
    return int(text)
