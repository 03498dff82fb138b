"""What the lab shows admission is what a live kube-apiserver 1.36.2 showed: held to the recorded reviews."""

import json
from typing import Any

import pytest

from tests.lab.conftest import DATA, Hook, allow, namespace_object, pod
from webhook.lab import defaults, errors, managed_fields, resources
from webhook.lab.call import Call, User, service_account
from webhook.lab.resources import Object, copied
from webhook.lab.server import Lab

GOLDEN = sorted((DATA / "golden").glob("*.json"))


def recorded_creates() -> list[Any]:
    """Every CREATE of a main resource that a recorded scenario holds, in both phases."""
    found = []
    for file in GOLDEN:
        reviews = json.loads(file.read_text())["reviews"]
        by_phase: dict[tuple[str, str], list[Object]] = {}
        for each in reviews:
            request = each["review"]["request"]
            if request["operation"] == "CREATE" and "subResource" not in request:
                kind, user = request["kind"]["kind"], request["userInfo"]["username"]
                by_phase.setdefault((kind, user), []).append({each["phase"]: request})
        for (kind, _), phases in by_phase.items():
            merged = {phase: request for entry in phases for phase, request in entry.items()}
            if {"mutate", "validate"} <= set(merged):
                found.append(pytest.param(merged, id=f"{file.stem}-{kind}"))
    return found


def manifest(request: Object) -> Object:
    """What the client must have sent: the recorded object without what server and plugins add."""
    obj = copied(request["object"])
    obj.pop("status", None)
    (entry,) = obj["metadata"].pop("managedFields")
    if obj["kind"] == "Pod":
        _without_plugins(obj)
        for field in ("containers", "initContainers"):
            for container in obj["spec"].get(field, []):
                owned = entry["fieldsV1"]["f:spec"][f"f:{field}"][f'k:{{"name":"{container["name"]}"}}']
                _without_limit_range(container["resources"], owned.get("f:resources", {}))
    return obj


def _without_limit_range(amounts: Object, owned: Object) -> None:
    """What LimitRanger filled in is not in managedFields (H12)."""
    for kind in ("limits", "requests"):
        amounts[kind] = {key: v for key, v in amounts.get(kind, {}).items() if f"f:{key}" in owned.get(f"f:{kind}", {})}
        if not amounts[kind]:
            del amounts[kind]


def _without_plugins(obj: Object) -> None:
    spec = obj["spec"]
    for field in (
        "priority",
        "preemptionPolicy",
        "serviceAccountName",
        "serviceAccount",
        "enableServiceLinks",
        "volumes",
    ):
        if field != "priority" or "priorityClassName" not in spec:
            spec.pop(field, None)
    spec["tolerations"] = [t for t in spec["tolerations"] if t.get("tolerationSeconds") != 300]
    if not spec["tolerations"]:
        del spec["tolerations"]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        container.pop("volumeMounts")
    obj["metadata"].get("annotations", {}).pop("kubernetes.io/limit-ranger", None)
    if not obj["metadata"].get("annotations", True):
        del obj["metadata"]["annotations"]


def comparable(obj: Object) -> Object:
    """Without what differs from one create to the next."""
    text = json.dumps(obj)
    volumes = [
        v["name"] for v in (obj.get("spec") or {}).get("volumes") or [] if v["name"].startswith("kube-api-access")
    ]
    plain: Object = json.loads(text.replace(volumes[0], "kube-api-access-x") if volumes else text)
    for condition in (plain.get("status") or {}).get("conditions", []):
        condition["lastTransitionTime"] = ""
    metadata = plain["metadata"]
    uid = metadata.get("uid")
    for field in ("uid", "creationTimestamp", "managedFields", "name"):
        metadata.pop(field, None)
    if uid:
        plain = json.loads(json.dumps(plain).replace(uid, "uid"))
    if not plain["metadata"].get("annotations", True):
        del plain["metadata"]["annotations"]
    return plain


@pytest.mark.parametrize("recorded", recorded_creates())
def test_both_phases_see_what_the_recorded_ones_saw(quiet_lab: Lab, recorded: dict[str, Object]) -> None:
    request = recorded["mutate"]
    quiet_lab.create(namespace_object("ai-training", **{"gpu.platform/team": "training"}))
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "ai-training"},
    }
    quiet_lab.create(account)
    spec = {
        "limits": [
            {
                "type": "Container",
                "default": {"cpu": "4", "memory": "16Gi"},
                "defaultRequest": {"cpu": "2", "memory": "8Gi"},
            }
        ]
    }
    metadata = {"name": "l", "namespace": "ai-training"}
    quiet_lab.create({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": spec})
    class_name = (request["object"].get("spec") or {}).get("priorityClassName")
    if class_name:
        value, policy = request["object"]["spec"]["priority"], request["object"]["spec"]["preemptionPolicy"]
        quiet_lab.create(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": class_name},
             "value": value, "preemptionPolicy": policy}
        )  # fmt: skip
    name = request["userInfo"]["username"]
    user = service_account("kube-system", name.rpartition(":")[2]) if ":" in name else User(name)
    with Hook(allow) as hook:
        rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}
        quiet_lab.create(hook.registration("Mutating", "first", rules=[rule]))
        quiet_lab.create(hook.registration("Validating", "second", rules=[rule]))
        call = Call(user=user, dry_run=request["dryRun"])
        resource = resources.named(request["resource"]["resource"])
        quiet_lab.registry.create(resource, "ai-training", manifest(request), call)
    for review, phase in zip(hook.reviews, ("mutate", "validate"), strict=True):
        seen, wanted = review["request"], recorded[phase]
        assert comparable(seen["object"]) == comparable(wanted["object"])
        keys = set(seen) - {"name"}
        assert keys == set(wanted) - {"name"}
        for key in ("kind", "resource", "requestKind", "requestResource", "namespace", "operation", "dryRun"):
            assert seen[key] == wanted[key]


def test_managed_fields_of_a_plain_create_are_the_recorded_ones(quiet_lab: Lab) -> None:
    """O2, H12: computed after defaulting and before admission."""
    request = json.loads((DATA / "golden" / "pod-create.json").read_text())["reviews"][0]["review"]["request"]
    (wanted,) = request["object"]["metadata"]["managedFields"]
    plain = manifest(request)
    plain["metadata"]["namespace"] = "default"
    call = Call(manager="kubectl-create", explicit_manager=True, field_validation="Strict")
    (entry,) = quiet_lab.registry.create(resources.PODS, "default", plain, call)["metadata"]["managedFields"]
    assert entry | {"time": ""} == wanted | {"time": ""}
    assert call.options("CreateOptions") == request["options"]


def test_updates_credit_what_they_change(quiet_lab: Lab) -> None:
    quiet_lab.registry.create(resources.PODS, "default", pod("p"), Call(manager="first"))

    def label(obj: Object) -> Object:
        obj["metadata"]["labels"] = {"a": "b"}
        return obj

    quiet_lab.registry.patch(resources.PODS, "default", "p", label, Call(manager="second"))
    stored = quiet_lab.registry.get(resources.PODS, "default", "p")
    by_manager = {e["manager"]: e["fieldsV1"] for e in stored["metadata"]["managedFields"]}
    assert by_manager["second"] == {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}
    assert "f:containers" in by_manager["first"]["f:spec"]


@pytest.mark.parametrize(
    ("image", "policy"),
    [("busybox", "Always"), ("busybox:latest", "Always"), ("r.example:5000/x", "Always"),
     ("busybox:1.36", "IfNotPresent"), ("busybox@sha256:abc", "IfNotPresent")],
)  # fmt: skip
def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    obj = pod("p")
    obj["spec"]["containers"][0]["image"] = image
    defaults.set_defaults(resources.PODS, obj)
    assert obj["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("given", "stored"), [("1000", "1k"), ("2000m", "2"), ("1.5Gi", "1536Mi"), ("2e0", "2e0"), (3, "3")]
)
def test_r10_o3_quantities_are_stored_canonically(given: Any, stored: str) -> None:
    obj = pod("p")
    obj["spec"]["containers"][0]["resources"]["limits"] = {"memory": given}
    defaults.set_defaults(resources.PODS, obj)
    assert obj["spec"]["containers"][0]["resources"]["requests"]["memory"] == stored


def test_null_term_lists_stay_null_and_other_nulls_go() -> None:
    """N9: the one key that is always printed."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": None}}
    obj = pod("p", affinity={"nodeAffinity": required, "podAffinity": None}, nodeSelector=None)
    defaults.set_defaults(resources.PODS, obj)
    assert obj["spec"]["affinity"] == {"nodeAffinity": required} and "nodeSelector" not in obj["spec"]


def test_wrong_types_do_not_decode() -> None:
    with pytest.raises(errors.ApiError, match='Pod in version "v1" cannot be handled as a Pod') as caught:
        defaults.set_defaults(resources.PODS, pod("p", priorityClassName=7))
    assert caught.value.code == 400


def test_lists_are_credited_by_their_keys() -> None:
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"finalizers": ["f"]}, "spec": pod("p")["spec"]}
    found = managed_fields.paths(obj)
    assert ("f:metadata", "f:finalizers", 'v:"f"') in found
    assert ("f:spec", "f:containers", 'k:{"name":"train"}', "f:image") in found
