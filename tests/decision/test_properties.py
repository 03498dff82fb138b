"""What holds for every object: rule 1 against an independent evaluator, determinism, idempotence, no crash."""

import copy
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decision.build import POOL, Json, admitted, cluster, node, patched, pod, pod_spec, policy, request, workload
from tests.oracle import evaluator as oracle
from webhook.decision.engine import decide

KEYS = st.sampled_from([POOL, "zone", "gpus", "name"])
VALUES = st.sampled_from(["a100", "h100", "a", "b", "4", "8", "", "x"])


def requirements() -> st.SearchStrategy[Json]:
    listed = st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        KEYS,
        st.sampled_from(["In", "NotIn"]),
        st.lists(VALUES, min_size=1, max_size=3),
    )
    bare = st.builds(lambda k, o: {"key": k, "operator": o}, KEYS, st.sampled_from(["Exists", "DoesNotExist"]))
    compared = st.builds(
        lambda key, operator, value: {"key": key, "operator": operator, "values": [value]},
        KEYS,
        st.sampled_from(["Gt", "Lt"]),
        st.sampled_from(["3", "5", "x"]),
    )
    return listed | bare | compared


FIELDS = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(["n0", "n1", "n2", "n9"]),
)
TERMS = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(requirements(), max_size=3),
        "matchFields": st.lists(FIELDS, max_size=1),
    },
)
REQUIRED = st.fixed_dictionaries({"nodeSelectorTerms": st.none() | st.lists(TERMS, max_size=3)})
AFFINITY = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.none()
        | st.fixed_dictionaries({}, optional={"requiredDuringSchedulingIgnoredDuringExecution": REQUIRED}),
        "podAffinity": st.just({}),
    },
)
SPEC = st.fixed_dictionaries(
    {}, optional={"affinity": AFFINITY, "nodeSelector": st.dictionaries(KEYS, VALUES, max_size=1)}
)
LABELS = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=3, max_size=3)
OBJECTS = SPEC.flatmap(
    lambda spec: st.sampled_from([admitted(pod(**spec)), workload(**spec), workload("CronJob", **spec)])
)


@settings(max_examples=300, deadline=None)
@given(obj=OBJECTS, labels=LABELS, pools=st.lists(st.sampled_from(["a100", "h100"]), min_size=1, unique=True))
def test_allowed_after_is_allowed_before_and_in_the_pool(obj: Json, labels: list[Json], pools: list[str]) -> None:
    nodes = [node(f"n{number}") for number in range(3)]
    for each, carried in zip(nodes, labels, strict=True):
        each["metadata"]["labels"] = carried
    before = _allowed(obj, nodes)
    in_pool = {n["metadata"]["name"] for n in nodes if n["metadata"]["labels"].get(POOL) in pools}
    facts = cluster(*nodes).current()
    asking = policy(rule={"pools": pools})
    decision = decide(request(obj), asking, facts)
    if decision.verdict == "deny":
        assert before & in_pool == set()
        return
    after = patched(obj, decision) if decision.patch else copy.deepcopy(obj)
    assert _allowed(after, nodes) == before & in_pool or _is_invalid(obj)
    again = decide(request(after), asking, facts)
    assert (again.verdict, again.patch) == ("allow", ())
    assert msgspec.json.encode(decide(request(obj), asking, facts).patch) == msgspec.json.encode(decision.patch)


def _allowed(obj: Json, nodes: list[Json]) -> set[str]:
    return oracle.allowed_nodes(pod_spec(obj), {n["metadata"]["name"]: n["metadata"]["labels"] for n in nodes})


def _is_invalid(obj: Json) -> bool:
    """A null or empty term list, which API validation refuses before anything runs (N9)."""
    affinity: Any = (pod_spec(obj).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is not None and not required["nodeSelectorTerms"]
