"""Random quotas and pods on the cluster that KUBECONFIG names: our verdict against ResourceQuota's own.

On the lab, which shares `k8s/` with us, this only tries the plumbing. Pods are created as dry runs, which quota checks
and never charges (Q22), in a namespace that is deleted afterwards. The seed is printed; QUOTA_SEED replays it.
"""

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tests.decision.build import Json, policy, request
from webhook.cluster.snapshot import Snapshot
from webhook.decision.engine import judge

pytestmark = pytest.mark.e2e

ROUNDS, PODS = 6, 8
EVERYTHING = policy(
    rule={"name": "all", "namespaceSelector": {}, "priorityClassName": None, "pools": None}, appliesTo="allWorkloads"
)
KEYS = ["requests.nvidia.com/gpu", "requests.cpu", "limits.memory", "limits.nvidia.com/gpu", "pods", "cpu"]
SCOPES = [None, None, None, ["NotTerminating"], ["Terminating"]]


@pytest.fixture(scope="module")
def dice() -> random.Random:
    seed = int(os.environ.get("QUOTA_SEED") or random.SystemRandom().randrange(10**6))
    print(f"QUOTA_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def core(kubeconfig: Path) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))


@pytest.fixture
def place(core: client.CoreV1Api, dice: random.Random) -> Iterator[str]:
    name = f"gpu-webhook-quota-{dice.randrange(10**6)}"
    core.create_namespace({"metadata": {"name": name}})
    try:
        core.create_namespaced_service_account(name, {"metadata": {"name": "default"}})
    except ApiException as error:  # a controller is quicker where there is one
        assert error.status == 409, error
    yield name
    core.delete_namespace(name)


def random_quota(dice: random.Random, number: int) -> Json:
    hard = {key: str(dice.randrange(4)) for key in dice.sample(KEYS, dice.randint(1, 3))}
    if "limits.memory" in hard:
        hard["limits.memory"] += "Gi"
    scopes = dice.choice(SCOPES)
    return {"metadata": {"name": f"q{number}"}, "spec": {"hard": hard, **({"scopes": scopes} if scopes else {})}}


def random_pod(dice: random.Random, number: int) -> Json:
    def container(name: str) -> Json:
        limits = {"nvidia.com/gpu": str(dice.randrange(3)), "memory": dice.choice(["512Mi", "1Gi"])}
        if dice.random() < 0.7:
            limits["cpu"] = dice.choice(["500m", "1", "2"])
        if dice.random() < 0.2:
            del limits["memory"]
        return {"name": name, "image": "none", "resources": {"limits": limits}}

    spec: Json = {"containers": [container(name) for name in "ab"[: dice.randint(1, 2)]], "restartPolicy": "Never"}
    if dice.random() < 0.4:
        spec["initContainers"] = [container("i")]
    if dice.random() < 0.3:
        spec["activeDeadlineSeconds"] = 60
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}


def computed(core: client.CoreV1Api, place: str) -> list[Json]:
    """The namespace's quotas once their status is filled in; where no controller does it, we do."""
    deadline = time.monotonic() + 5
    while True:
        found = client.ApiClient().sanitize_for_serialization(core.list_namespaced_resource_quota(place).items)
        late = [each for each in found if not (each.get("status") or {}).get("hard")]
        if not late:
            return [{"apiVersion": "v1", "kind": "ResourceQuota", **each} for each in found]
        if time.monotonic() > deadline:
            for each in late:
                hard = each["spec"]["hard"]
                status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
                core.patch_namespaced_resource_quota_status(each["metadata"]["name"], place, {"status": status})
        time.sleep(0.1)


def theirs(core: client.CoreV1Api, place: str, pod: Json) -> tuple[str, Json | None]:
    """The API server's refusal ("" if none), and the pod as it would be stored."""
    try:
        stored = core.create_namespaced_pod(place, pod, dry_run="All")
    except ApiException as error:
        assert error.status == 403, error
        return str(error.body), None
    return "", client.ApiClient().sanitize_for_serialization(stored)


def test_the_api_server_and_we_refuse_the_same_pods(core: client.CoreV1Api, place: str, dice: random.Random) -> None:
    refused = 0
    for _ in range(ROUNDS):
        for number in range(dice.randint(1, 3)):
            core.create_namespaced_resource_quota(place, random_quota(dice, number))
        quotas = computed(core, place)
        labels = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place, "labels": {"any": "thing"}}}
        snapshot = Snapshot.from_objects([labels, *quotas])
        for number in range(PODS):
            pod = random_pod(dice, number)
            refusal, stored = theirs(core, place, pod)
            decision = judge(request(stored or pod, namespace=place), EVERYTHING, snapshot)
            assert (decision.verdict == "deny") == bool(refusal), (refusal, decision.message, pod, quotas)
            refused += bool(refusal)
            _assert_named(refusal, decision.message)
        core.delete_collection_namespaced_resource_quota(place)
    assert refused


def _assert_named(refusal: str, ours: Any) -> None:
    """The quota that the API server named is among ours (it names any one of several, Q10)."""
    named = re.search(r"(?:exceeded quota|failed quota): (q\d)", refusal)
    if refusal:
        assert named is not None, refusal
        assert f"ResourceQuota {named[1]}" in ours
