"""Cost: what is allocated, what waits, what idles - and what is not known, which is never called idle."""

from typing import Any

import pytest

from tests.exporter.samples import Json, namespace, node, pod, policy, quota
from webhook.exporter.cost import GpuSample, Utilisation, attribute, costs_of, price_of, samples_of
from webhook.exporter.gpu_pods import CountedPod, counted_pods
from webhook.exporter.view import view_of
from webhook.policy.model import LabelPrice, PricingSpec

POOL = "gpu.platform/pool"


def pods(*objects: Json) -> list[CountedPod]:
    extra = [namespace("team-a"), namespace("team-b", "training"), namespace("gpu-operator", None), node()]
    return counted_pods(view_of([*extra, *objects]), policy().policy)


def costs(found: list[CountedPod], utilisation: Utilisation | None = None, pricing: PricingSpec | None = None) -> Json:
    return costs_of(found, pricing or PricingSpec(), utilisation or Utilisation(), {}, POOL).document


def series(value: float | str = 25, **labels: str) -> Json:
    return {"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-1", **labels}, "value": [0, str(value)]}


def prometheus(*vector: Json) -> Utilisation:
    return Utilisation("prometheus", samples_of(vector))


def row(document: Json, table: str, name: str) -> Json:
    found: Json = next(one for one in document[table] if one["name"] == name)
    return found


EXPORTED = {"namespace": "gpu-operator", "pod": "dcgm-x", "exported_namespace": "team-a", "exported_pod": "p"}
PLAIN = {"namespace": "team-a", "pod": "p"}


@pytest.mark.parametrize(
    "vector",
    [
        [series(25, **EXPORTED)],
        [series(25, **PLAIN)],
        [series(25, **EXPORTED), series(25, **PLAIN)],
        [series(25, **PLAIN), series(25, **EXPORTED)],
        [series(25, namespace="gpu-operator", exported_namespace="team-a")],
        [series(25, namespace="team-a")],
    ],
    ids=["exported", "plain", "both", "both, other order", "exported namespace only", "namespace only"],
)
def test_b67_the_cost_lands_on_the_team_once(vector: list[Json]) -> None:
    document = costs(pods(pod("p", 1)), prometheus(*vector))
    assert row(document, "byNamespace", "team-a")["idlePerHour"] == 1.8, "2.40 x (1 - 0.25)"
    assert [one["name"] for one in document["byNamespace"]] == ["team-a"]
    assert document["total"]["utilisation"] == 0.25


def test_b68_a_sample_without_an_owner_is_nobodys() -> None:
    document = costs(pods(pod("p", 1)), prometheus(series(90, UUID="GPU-9")))
    assert document["unattributedGpus"] == 1
    assert document["total"]["idlePerHour"] == "unknown" and document["total"]["unknownPerHour"] == 2.4
    assert "unattributed" in {flag["code"] for flag in document["flags"]}


def test_b68_the_sample_of_the_dcgm_exporter_itself_is_nobodys() -> None:
    document = costs(pods(pod("p", 1)), prometheus(series(90, namespace="gpu-operator", pod="dcgm-x")))
    assert document["unattributedGpus"] == 1


def test_b68_a_mig_instance_says_nothing_about_a_whole_gpu() -> None:
    document = costs(pods(pod("p", 1)), prometheus(series(90, GPU_I_ID="3", **PLAIN)))
    assert (document["unattributedGpus"], document["total"]["utilisation"]) == (1, "unknown")


def test_b68_values_out_of_range_are_cut_off_and_flagged() -> None:
    document = costs(pods(pod("p", 2)), prometheus(series(101, **PLAIN), series(-4, **{**PLAIN, "UUID": "GPU-2"})))
    assert document["clampedValues"] == 2
    assert document["total"]["idlePerHour"] == 2.4 and document["total"]["utilisation"] == 0.5
    assert "clamped" in {flag["code"] for flag in document["flags"]}


def test_b68_missing_utilisation_is_unknown_in_cost_and_idle_only_in_the_upper_bound() -> None:
    found = pods(pod("p", 2))
    result = costs_of(found, PricingSpec(), Utilisation("prometheus"), {"team-a": 2.0}, POOL)
    total = result.document["total"]
    assert (total["idlePerHour"], total["utilisation"], total["unknownPerHour"]) == ("unknown", "unknown", 4.8)
    assert result.idle_upper_bound == 4.8
    half = prometheus(series(100, **PLAIN))
    assert costs_of(found, PricingSpec(), half, {"team-a": 2.0}, POOL).idle_upper_bound == 2.4


def test_b68_a_share_is_never_billed_as_a_whole_gpu() -> None:
    shared = pod("p", 1, resource="nvidia.com/gpu.shared")
    document = costs(pods(shared), prometheus(series(50, **PLAIN)))
    assert document["total"]["allocatedPerHour"] == 0
    assert "nvidia.com/gpu.shared has no price" in document["flags"][0]["why"]
    assert document["unattributedGpus"] == 1


@pytest.mark.parametrize("value", ["NaN", "nonsense", None])
def test_a_sample_without_a_number_is_unknown(value: Any) -> None:
    vector = series(**PLAIN)
    vector["value"] = [0, value]
    assert costs(pods(pod("p", 1)), prometheus(vector))["total"]["utilisation"] == "unknown"


def test_more_samples_than_gpus_do_not_make_idle_negative() -> None:
    samples = tuple(GpuSample(100, "team-a", "p") for _ in range(5))
    document = costs(pods(pod("p", 2)), Utilisation("prometheus", samples))
    assert document["total"]["idlePerHour"] == 0
    assert document["unattributedGpus"] == 3
    assert attribute(samples, pods()).unattributed == 5


def test_prices_by_node_label_beat_the_default() -> None:
    pricing = PricingSpec(
        default=2.0,
        by_node_label=(
            LabelPrice("nvidia.com/gpu.product", "H100", {"nvidia.com/gpu": 9.0, "nvidia.com/mig-1g.10gb": 1.5}),
        ),
    )
    labels = {"nvidia.com/gpu.product": "H100"}
    assert price_of(pricing, "nvidia.com/gpu", labels) == 9.0
    assert price_of(pricing, "nvidia.com/mig-1g.10gb", labels) == 1.5
    assert price_of(pricing, "nvidia.com/mig-1g.10gb", {}) is None
    assert price_of(pricing, "amd.com/gpu", labels) == 2.0


def test_rows_by_team_pool_and_type() -> None:
    extra = node("h1", "training", **{"nvidia.com/gpu.product": "H100"})
    found = pods(
        extra, pod("a", 1), pod("b", 2, namespace="team-b", node="h1"), pod("c", 4, namespace="team-b", phase="Pending")
    )
    document = costs(found)
    assert [(one["name"], one["gpus"], one["pendingGpus"]) for one in document["byTeam"]] == [
        ("training", 2, 4),
        ("inference", 1, 0),
    ]
    assert row(document, "byPool", "training")["allocatedPerHour"] == 4.8
    assert row(document, "byGpuType", "H100")["allocatedPerHour"] == 4.8
    assert document["total"]["pendingPerHour"] == 9.6


def test_a_waiting_pod_counts_for_the_pool_and_type_that_it_asks_for() -> None:
    extra = node("h1", "training", **{"nvidia.com/gpu.product": "H100"})
    waiting = pod("c", 4, phase="Pending", nodeSelector={POOL: "training"})
    document = costs(pods(extra, waiting))
    assert [one["name"] for one in document["byPool"]] == ["training"]
    assert [one["name"] for one in document["byGpuType"]] == ["H100"]


def test_what_quota_still_charges_counts_in_the_upper_bound() -> None:
    found = pods(quota({"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "3"}), pod("p", 1))
    assert costs_of(found, PricingSpec(), Utilisation(), {"team-a": 3.0}, POOL).idle_upper_bound == 7.2
