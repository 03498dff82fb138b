"""The product against the oracle on random pods, quotas and nodes; a disagreement is shrunk and can be replayed."""

from typing import Any

import msgspec
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.k8s.recorded import typed
from tests.oracle import evaluator
from webhook.k8s import node_affinity, quota
from webhook.k8s.objects import NodeSelectorRequirement, PodSpec, ResourceQuota
from webhook.k8s.pod_resources import is_best_effort, pod_limits, pod_requests

moderate = settings(max_examples=100, deadline=None, print_blob=True)

RESOURCES = ["nvidia.com/gpu", "cpu", "memory", "hugepages-2Mi", "ephemeral-storage", "amd.com/gpu"]
SPELLINGS = ["0", "1", "2", "3", "7", "500m", "2e0", "1.5Gi"]
KEYS = [
    "pods",
    "count/pods",
    "cpu",
    "requests.cpu",
    "limits.cpu",
    "requests.memory",
    "limits.memory",
    "requests.nvidia.com/gpu",
    "limits.nvidia.com/gpu",
    "nvidia.com/gpu",
    "requests.amd.com/gpu",
    "requests.hugepages-2Mi",
    "count/jobs.batch",
]
CLASSES = ["gpu-high", "gpu-batch"]

often_gpus = st.one_of(st.just("nvidia.com/gpu"), st.sampled_from(RESOURCES))  # few names, or sums never meet
quantities = st.dictionaries(often_gpus, st.sampled_from(SPELLINGS), min_size=1, max_size=2)
resources = st.fixed_dictionaries({"limits": quantities}, optional={"requests": quantities})


def containers(*, restartable: bool) -> st.SearchStrategy[list[Any]]:
    optional = {"resources": resources} | ({"restartPolicy": st.just("Always")} if restartable else {})
    one = st.fixed_dictionaries({"name": st.sampled_from(["a", "b", "c"])}, optional=optional)
    return st.lists(one, max_size=4)


pods = st.fixed_dictionaries(
    {"containers": containers(restartable=False)},
    optional={
        "initContainers": containers(restartable=True),
        "overhead": quantities,
        "resources": st.one_of(st.just({}), resources),
        "priorityClassName": st.sampled_from([*CLASSES, ""]),
        "activeDeadlineSeconds": st.integers(0, 9),
    },
)

scopes = st.one_of(
    st.fixed_dictionaries(
        {"scopeName": st.just("PriorityClass"), "operator": st.sampled_from(["In", "NotIn"])},
        optional={"values": st.lists(st.sampled_from(CLASSES), min_size=1, max_size=2)},
    ),
    st.fixed_dictionaries(
        {"scopeName": st.just("PriorityClass"), "operator": st.sampled_from(["Exists", "DoesNotExist"])}
    ),
    st.fixed_dictionaries(
        {
            "scopeName": st.sampled_from(["Terminating", "NotTerminating", "BestEffort", "NotBestEffort"]),
            "operator": st.just("Exists"),
        }
    ),
)


@st.composite
def quotas(draw: st.DrawFn) -> list[Any]:
    found = []
    for index in range(draw(st.integers(1, 3))):
        hard = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(SPELLINGS), min_size=1, max_size=4))
        used = {key: draw(st.sampled_from(SPELLINGS)) for key in hard if evaluator.counts_pods(key)}
        spec: dict[str, Any] = {"hard": hard}
        if draw(st.booleans()):
            spec["scopeSelector"] = {"matchExpressions": draw(st.lists(scopes, max_size=2))}
        found.append({"metadata": {"name": f"q{index}"}, "spec": spec, "status": {"hard": hard, "used": used}})
    return found


@moderate
@given(pods)
def test_effective_requests_limits_and_qos(pod: Any) -> None:
    spec = typed(pod, PodSpec)
    assert pod_requests(spec) == evaluator.effective(pod, "requests")
    assert pod_limits(spec) == evaluator.effective(pod, "limits")
    assert is_best_effort(spec) is evaluator.best_effort(pod)
    assert quota.spec_use(spec).best_effort is evaluator.best_effort(pod)


@moderate
@given(pods, quotas(), st.integers(0, 3))
def test_quota_verdicts(pod: Any, random_quotas: list[Any], wanted: int) -> None:
    spec = typed(pod, PodSpec)
    ours = quota.check(typed(random_quotas, list[ResourceQuota]), quota.Demand(quota.spec_use(spec), wanted), spec=spec)
    note(f"ours: {ours}")
    found = {each.quota: (each.kind, set(each.keys) or set(each.missing)) for each in ours}
    assert found == evaluator.refusals(random_quotas, pod, wanted)


@moderate
@given(pods, quotas(), st.integers(0, 4), st.integers(0, 4))
def test_what_fits_at_first_still_fits_as_an_update_and_shrinking_always_does(
    pod: Any, random_quotas: list[Any], before: int, after: int
) -> None:
    typed_quotas, use = typed(random_quotas, list[ResourceQuota]), quota.spec_use(typed(pod, PodSpec))
    update = quota.check(typed_quotas, quota.Demand(use, after), quota.Demand(use, before))
    if after <= before:
        assert update == []
    else:
        rest = quota.check(typed_quotas, quota.Demand(use, after - before))
        assert [(v.quota, v.keys) for v in update] == [(v.quota, v.keys) for v in rest]


LABELS = {
    "gpu.platform/pool": ["training", "inference", ""],
    "zone": ["a", "b"],
    "gpus": ["1", "4", "08", "x", "-2", "9223372036854775808"],
}

nodes = st.dictionaries(
    st.sampled_from(["n0", "n1", "n2", "n3"]),
    st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in LABELS.items()}),
    min_size=2,
    max_size=4,
)


@st.composite
def expressions(draw: st.DrawFn) -> Any:
    key = draw(st.sampled_from(list(LABELS)))
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]))
    values = st.lists(st.sampled_from([*LABELS[key], "3"]), max_size=2)
    return {"key": key, "operator": operator, "values": draw(values)}


fields = st.fixed_dictionaries(
    {
        "key": st.just("metadata.name"),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.lists(st.sampled_from(["n0", "n1", "n9"]), max_size=2),
    }
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.none() | st.lists(expressions(), max_size=3),
        "matchFields": st.none() | st.lists(fields, max_size=1),
    },
)
required = st.fixed_dictionaries({"nodeSelectorTerms": st.one_of(st.none(), st.lists(terms, max_size=3))})
node_affinities = st.one_of(
    st.fixed_dictionaries({"requiredDuringSchedulingIgnoredDuringExecution": required}), st.sampled_from([{}, None])
)
selecting_pods = st.fixed_dictionaries(
    {"affinity": st.one_of(st.fixed_dictionaries({"nodeAffinity": node_affinities}), st.sampled_from([{}, None]))},
    optional={
        "nodeSelector": st.dictionaries(
            st.sampled_from(["zone", "gpu.platform/pool"]), st.sampled_from(["a", "training"])
        )
    },
)


@moderate
@given(selecting_pods, nodes)
def test_allowed_nodes(pod: Any, random_nodes: Any) -> None:
    spec = typed(pod, PodSpec)
    assert node_affinity.allowed_nodes(spec, random_nodes) == evaluator.allowed_nodes(pod, random_nodes)


@moderate
@given(selecting_pods, nodes)
def test_a_pool_that_a_node_of_the_oracle_has_is_possible(pod: Any, random_nodes: Any) -> None:
    """`is_possible` may be kinder than the nodes at hand, never stricter (B16)."""
    pools = LABELS["gpu.platform/pool"]
    reached = {random_nodes[name].get("gpu.platform/pool") for name in evaluator.allowed_nodes(pod, random_nodes)}
    spec = typed(pod, PodSpec)
    terms = node_affinity.required_terms(spec)
    for pool in reached & set(pools):
        assert node_affinity.is_possible(spec.node_selector, terms, "gpu.platform/pool", [pool], random_nodes.get)


@moderate
@given(selecting_pods, nodes, st.lists(st.sampled_from(["training", "inference"]), min_size=1, unique=True))
def test_anded_leaves_exactly_the_allowed_nodes_of_the_pool(pod: Any, random_nodes: Any, pools: list[str]) -> None:
    """DESIGN rule 1: allowed after = allowed before, intersected with the pool, by the oracle's judgement."""
    before = evaluator.allowed_nodes(pod, random_nodes)
    in_pool = {name for name, labels in random_nodes.items() if labels.get("gpu.platform/pool") in pools}
    after = evaluator.allowed_nodes(_edited(pod, pools), random_nodes)
    assert after == before & in_pool


def _edited(pod: Any, pools: list[str]) -> Any:
    """The pod with the pools ANDed into its required node affinity."""
    wanted = NodeSelectorRequirement("gpu.platform/pool", "In", tuple(pools))
    before = node_affinity.required_terms(typed(pod, PodSpec))
    terms = node_affinity.anded(before, wanted)
    if terms == before:
        return pod
    affinity = pod.get("affinity") or {}
    required = {"nodeSelectorTerms": msgspec.to_builtins(terms)}
    node = {**(affinity.get("nodeAffinity") or {}), "requiredDuringSchedulingIgnoredDuringExecution": required}
    return {**pod, "affinity": {**affinity, "nodeAffinity": node}}
