"""The HTTP API, as the Python client and plain requests use it."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException

from tests.lab.conftest import Hook, namespace_object, pod, quota, workload
from webhook.lab import resources
from webhook.lab.call import Call
from webhook.lab.resources import Object
from webhook.lab.server import Lab


@pytest.fixture
def core(quiet_lab: Lab) -> kubernetes.client.CoreV1Api:
    configuration = kubernetes.client.Configuration(host=quiet_lab.url)
    return kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))


def fetch(lab: Lab, path: str, body: Object | None = None, **headers: str) -> tuple[int, Any, Any]:
    """(status, JSON, headers) of one request; with a body it is a POST."""
    data = json.dumps(body).encode() if body is not None else None
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(lab.url + path, data, {"Content-Type": "application/json", **names})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read()), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), error.headers


def lines(lab: Lab, query: str, resource: str = "pods") -> Iterator[Object]:
    """The events of a watch that ends by itself."""
    url = f"{lab.url}/api/v1/{resource}?watch=1&{query}"
    with urllib.request.urlopen(url, timeout=10) as response:
        for line in response:
            yield json.loads(line)


# -- the Python client ------------------------------------------------------------------------------------------------


def test_client_creates_reads_patches_and_deletes(core: kubernetes.client.CoreV1Api) -> None:
    made = core.create_namespaced_pod("default", pod("p", gpus="1"))
    assert made.spec.containers[0].resources.requests["nvidia.com/gpu"] == "1"
    core.patch_namespaced_pod("p", "default", {"metadata": {"labels": {"a": "b"}}})
    assert core.read_namespaced_pod("p", "default").metadata.labels == {"a": "b"}
    core.delete_namespaced_pod("p", "default")
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_pod("p", "default")
    assert caught.value.status == 404


def test_a_stale_replace_is_a_conflict(core: kubernetes.client.CoreV1Api) -> None:
    core.create_namespaced_config_map("default", {"metadata": {"name": "c"}, "data": {"a": "1"}})
    stale = core.read_namespaced_config_map("c", "default")
    core.patch_namespaced_config_map("c", "default", {"data": {"a": "2"}})
    stale.data = {"a": "3"}
    with pytest.raises(ApiException) as caught:
        core.replace_namespaced_config_map("c", "default", stale)
    assert caught.value.status == 409
    assert "the object has been modified" in json.loads(caught.value.body)["message"]


def test_lists_come_in_pages(quiet_lab: Lab, core: kubernetes.client.CoreV1Api) -> None:
    quiet_lab.load(namespace_object(f"n{number:02}") for number in range(10))
    first = core.list_namespace(limit=6)
    assert (len(first.items), first.metadata.remaining_item_count) == (6, 8)
    rest = core.list_namespace(limit=20, _continue=first.metadata._continue)
    assert len(rest.items) == 8 and not rest.metadata._continue
    names = [item.metadata.name for item in first.items + rest.items]
    assert names == sorted(names) and rest.metadata.resource_version == first.metadata.resource_version


def test_client_watch_goes_on_from_a_version(quiet_lab: Lab, core: kubernetes.client.CoreV1Api) -> None:
    version = core.list_namespaced_pod("default").metadata.resource_version
    quiet_lab.create(pod("one"))
    quiet_lab.registry.delete(resources.PODS, "default", "one", {}, Call())
    watch = kubernetes.watch.Watch()
    stream = watch.stream(core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=1)
    assert [(event["type"], event["object"].metadata.name) for event in stream] == [
        ("ADDED", "one"),
        ("DELETED", "one"),
    ]


# -- watches ----------------------------------------------------------------------------------------------------------


def test_watch_ends_in_time_with_a_bookmark(quiet_lab: Lab) -> None:
    began = time.monotonic()
    found = list(
        lines(quiet_lab, f"resourceVersion={quiet_lab.store.version}&timeoutSeconds=1&allowWatchBookmarks=true")
    )
    assert 0.9 < time.monotonic() - began < 3
    assert [event["type"] for event in found] == ["BOOKMARK"]
    assert found[0]["object"]["metadata"]["resourceVersion"] == str(quiet_lab.store.version)


def test_watch_without_a_version_starts_with_what_is_there(quiet_lab: Lab) -> None:
    found = list(lines(quiet_lab, "timeoutSeconds=1&fieldSelector=metadata.name=kube-system", "namespaces"))
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in found] == [("ADDED", "kube-system")]


def test_too_old_a_version_is_an_error_inside_the_stream(quiet_lab: Lab) -> None:
    quiet_lab.store.compact()
    (event,) = lines(quiet_lab, "resourceVersion=1")
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 1 (")


def test_objects_enter_and_leave_a_selection(quiet_lab: Lab) -> None:
    version = quiet_lab.store.version
    quiet_lab.create(pod("p"))
    for labels in ({"mine": "yes"}, {}):
        change = {"labels": labels}
        quiet_lab.registry.patch(
            resources.PODS, "default", "p", lambda o, c=change: {**o, "metadata": {**o["metadata"], **c}}, Call()
        )
    found = lines(quiet_lab, f"resourceVersion={version}&labelSelector=mine%3Dyes&timeoutSeconds=1")
    assert [event["type"] for event in found] == ["ADDED", "DELETED"]


def test_watched_tables_hold_rows(quiet_lab: Lab) -> None:
    request = urllib.request.Request(
        f"{quiet_lab.url}/api/v1/namespaces?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=default",
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        event = json.loads(response.readline())
    assert event["object"]["kind"] == "Table"
    assert event["object"]["rows"][0]["cells"][:2] == ["default", "Active"]


def test_stopping_the_lab_ends_watches_at_once() -> None:
    with Lab(tls=False, controllers=False) as lab:
        response = urllib.request.urlopen(f"{lab.url}/api/v1/pods?watch=1", timeout=10)
        began = time.monotonic()
    with response:
        assert response.read() == b""
    assert time.monotonic() - began < 2


# -- the wire ---------------------------------------------------------------------------------------------------------


def test_discovery_is_complete_enough(quiet_lab: Lab) -> None:
    assert fetch(quiet_lab, "/api")[1]["versions"] == ["v1"]
    assert "apps" in [group["name"] for group in fetch(quiet_lab, "/apis")[1]["groups"]]
    assert fetch(quiet_lab, "/version")[1]["gitVersion"] == "v1.36.2-lab"
    for path in fetch(quiet_lab, "/openapi/v3")[1]["paths"].values():
        document = fetch(quiet_lab, path["serverRelativeURL"])[1]
        assert document["paths"]
    (deployment,) = [r for r in fetch(quiet_lab, "/apis/apps/v1")[1]["resources"] if r["name"] == "deployments"]
    assert (deployment["shortNames"], deployment["categories"]) == (["deploy"], ["all"])
    for path in ("/healthz", "/readyz", "/livez", "/openapi/v2"):
        assert urllib.request.urlopen(quiet_lab.url + path, timeout=5).status == 200


@pytest.mark.parametrize("path", ["/api/v1/nothings", "/apis/nobody/v1/x", "/apis/nobody", "/other", "/api/v1/pods/x"])
def test_unknown_paths_are_404_statuses(quiet_lab: Lab, path: str) -> None:
    code, body, _ = fetch(quiet_lab, path)
    assert (code, body["kind"], body["reason"]) == (404, "Status", "NotFound")


def test_broken_bodies_are_400_and_protobuf_is_415(quiet_lab: Lab) -> None:
    pods = "/api/v1/namespaces/default/pods"
    assert fetch(quiet_lab, pods, {"kind": "Service", "apiVersion": "v1"})[0] == 400
    assert fetch(quiet_lab, pods, {**pod("p"), "spec": {"containers": "many"}})[0] == 400
    wrong = pod("p")
    wrong["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "abc"
    code, body, _ = fetch(quiet_lab, pods, wrong)
    assert code == 400 and "quantities must match the regular expression" in body["message"]  # A1
    code, body, _ = fetch(quiet_lab, pods, {}, Content_Type="application/vnd.kubernetes.protobuf")
    assert code == 415 and "kubectl create pod ... --dry-run=client -o yaml | kubectl apply -f -" in body["message"]
    code, body, _ = fetch(quiet_lab, pods, {"metadata": {"annotations": {"a": "x" * 3_200_000}}})
    assert code == 413


def test_impersonation_and_account_tokens_set_the_user(quiet_lab: Lab) -> None:
    with Hook(lambda _: {}) as hook:
        quiet_lab.create(hook.registration())
        pods = "/api/v1/namespaces/default/pods"
        fetch(quiet_lab, pods, pod("a"), Impersonate_User="alice", Impersonate_Group="ml")
        fetch(quiet_lab, pods, pod("b"), Authorization="Bearer system:serviceaccount:team-a:robot")
        fetch(quiet_lab, pods, pod("c"), Authorization="Bearer lab")
        alice, robot, admin = (review["request"]["userInfo"] for review in hook.reviews)
    assert (alice["username"], alice["groups"]) == ("alice", ["ml", "system:authenticated"])
    assert robot["username"] == "system:serviceaccount:team-a:robot"
    assert robot["groups"][1] == "system:serviceaccounts:team-a"
    assert (admin["username"], admin["groups"]) == ("kubernetes-admin", ["system:masters", "system:authenticated"])


def test_v18_warnings_become_headers(quiet_lab: Lab) -> None:
    texts = ['needs "2" GPUs', "two\nlines", "配额", 'needs "2" GPUs']
    with Hook(lambda _: {"warnings": texts}) as hook:
        quiet_lab.create(hook.registration())
        headers = fetch(quiet_lab, "/api/v1/namespaces/default/pods", pod("a"))[2].get_all("Warning")
    assert [h.encode("latin-1").decode() for h in headers] == ['299 - "needs \\"2\\" GPUs"', '299 - "配额"']


def test_v18_long_warnings_are_cut(quiet_lab: Lab) -> None:
    with Hook(lambda _: {"warnings": [letter * 3000 for letter in "abcdefghijklmnopqrst"]}) as hook:
        quiet_lab.create(hook.registration())
        headers = fetch(quiet_lab, "/api/v1/namespaces/default/pods", pod("a"))[2].get_all("Warning")
    assert len(headers) == 16 and headers[0] == f'299 - "{"a" * 256}"'


def test_collections_are_deleted_by_selector(quiet_lab: Lab, core: kubernetes.client.CoreV1Api) -> None:
    for name in ("a", "b"):
        quiet_lab.create({**pod(name), "metadata": {"name": name, "namespace": "default", "labels": {"is": name}}})
    core.delete_collection_namespaced_pod("default", label_selector="is in (a)")
    assert [record.object["metadata"]["name"] for record in quiet_lab.store.records(resources.PODS)] == ["b"]


def test_tls_with_the_kubeconfig_it_writes(tmp_path: Path) -> None:
    with Lab(controllers=False) as lab:
        client = kubernetes.config.new_client_from_config(str(lab.kubeconfig(tmp_path / "sub" / "config")))
        assert len(kubernetes.client.CoreV1Api(client).list_namespace().items) == 4
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(lab.url, context=ssl.create_default_context(), timeout=5)


def test_ten_thousand_namespaces_and_quotas_are_listed_in_time(quiet_lab: Lab) -> None:
    names = [f"n{number:05}" for number in range(10_000)]
    quiet_lab.load(namespace_object(name) for name in names)
    quiet_lab.load(quota("gpu", name, requests_gpu="4") for name in names)
    began = time.monotonic()
    for plural in ("namespaces", "resourcequotas"):
        count, token = 0, ""
        while True:
            page = fetch(quiet_lab, f"/api/v1/{plural}?limit=500&continue={token}")[1]
            count += len(page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
        assert count >= 10_000
    assert time.monotonic() - began < 5


def test_server_side_apply_creates_then_merges(quiet_lab: Lab) -> None:
    web = workload("Deployment", "web", "default", replicas=1)
    url = f"{quiet_lab.url}/apis/apps/v1/namespaces/default/deployments/web?fieldManager=me"
    for replicas, code in ((1, 201), (2, 200)):
        web["spec"]["replicas"] = replicas
        request = urllib.request.Request(
            url, json.dumps(web).encode(), {"Content-Type": "application/apply-patch+yaml"}, method="PATCH"
        )
        with urllib.request.urlopen(request, timeout=5) as response:
            stored = json.loads(response.read())
        assert (response.status, stored["spec"]["replicas"]) == (code, replicas)
    entries = [(e["manager"], e["operation"]) for e in stored["metadata"]["managedFields"]]
    assert entries == [("me", "Apply")]


def test_a_bug_is_a_status_and_a_line_in_the_terminal(quiet_lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    quiet_lab.registry.get = lambda *_: 1 / 0  # type: ignore[method-assign]
    code, body, _ = fetch(quiet_lab, "/api/v1/namespaces/default")
    assert (code, body["message"]) == (500, "Internal error occurred: ZeroDivisionError: division by zero")
    assert "GET /api/v1/namespaces/default failed" in caplog.text


def test_a_method_a_path_does_not_know_is_405(quiet_lab: Lab) -> None:
    assert fetch(quiet_lab, "/version", {})[0] == 405
    assert fetch(quiet_lab, "/api/v1/namespaces/default", {})[0] == 405
