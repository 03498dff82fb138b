"""`certs ensure` against a fake API over HTTP: one authority however many run, and only caBundle is ever written."""

import base64
import datetime as dt
import threading
from functools import partial
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.certs.conftest import MUTATING, VALIDATING
from tests.certs.fake_api import FakeApi, client_for
from webhook.certs import bundle, issue
from webhook.certs.describe import read_certificates
from webhook.certs.ensure import Outcome, ensure, watch
from webhook.certs.rotate import Action, Plan
from webhook.certs.store import ConflictError, SecretStore

NOW = dt.datetime(2026, 12, 1, 8, tzinfo=dt.UTC)
NAMES = issue.service_names("gpu-webhook", "gpu-webhook")
SECRET = "/api/v1/namespaces/gpu-webhook/secrets/gpu-webhook-tls"


def run(url: str, now: dt.datetime = NOW) -> Outcome:
    api = client_for(url)
    store = SecretStore(client.CoreV1Api(api), "gpu-webhook", "gpu-webhook-tls")
    return ensure(store, partial(bundle.publish, client.AdmissionregistrationV1Api(api), ["gpu-webhook"]), NAMES, now)


def bundles(api: FakeApi) -> list[bytes]:
    return [
        base64.b64decode(webhook["clientConfig"]["caBundle"])
        for path in (MUTATING, VALIDATING)
        for webhook in api.objects[path]["webhooks"]
    ]


def secret(api: FakeApi, key: str) -> bytes:
    return base64.b64decode(api.objects[SECRET]["data"][key])


def test_first_run_stores_a_pair_and_publishes_it_everywhere(api: FakeApi, url: str) -> None:
    assert run(url).plan.action is Action.NEW_CA
    assert api.objects[SECRET]["type"] == "kubernetes.io/tls"
    assert bundles(api) == [secret(api, "ca.crt")] * 3
    (leaf,) = read_certificates(secret(api, "tls.crt"))
    assert leaf.names == NAMES
    assert leaf.issued_by(read_certificates(secret(api, "ca.crt"))[0])


def test_second_run_writes_nothing(api: FakeApi, url: str) -> None:
    run(url)
    api.requests.clear()
    assert run(url).plan.action is Action.KEEP
    assert {method for method, _ in api.requests} == {"GET"}


def test_only_the_bundle_is_patched(api: FakeApi, url: str) -> None:
    before = {path: _without_bundle(api.objects[path]) for path in (MUTATING, VALIDATING)}
    run(url)
    assert {path: _without_bundle(api.objects[path]) for path in (MUTATING, VALIDATING)} == before


def test_b56_a_bundle_that_a_sync_tool_erased_comes_back(api: FakeApi, url: str) -> None:
    run(url)
    for webhook in api.objects[MUTATING]["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
    run(url)
    assert bundles(api) == [secret(api, "ca.crt")] * 3


def test_two_at_once_end_with_one_authority(api: FakeApi, url: str) -> None:
    """Both find no Secret before either creates it."""
    both_looked = threading.Barrier(2, timeout=5)
    looks = iter([True, True])

    def meet(method: str, path: str) -> None:
        if method == "GET" and path == SECRET and next(looks, False):
            both_looked.wait()

    api.on_request = meet
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(run(url))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcome.plan.action.name for outcome in outcomes) == ["KEEP", "NEW_CA"]
    assert bundles(api) == [secret(api, "ca.crt")] * 3
    assert len(read_certificates(secret(api, "ca.crt"))) == 1


def test_a_new_authority_is_published_before_a_leaf_of_it_is_stored(api: FakeApi, url: str) -> None:
    run(url)
    run(url, NOW + dt.timedelta(days=480))
    assert run(url, NOW + dt.timedelta(days=490)).plan.action is Action.NEW_CA
    new, old = read_certificates(secret(api, "ca.crt"))
    assert bundles(api) == [new.pem + old.pem] * 3
    assert read_certificates(secret(api, "tls.crt"))[0].issued_by(old)
    api.objects[MUTATING]["webhooks"][0]["clientConfig"].pop("caBundle")
    api.requests.clear()
    assert run(url, NOW + dt.timedelta(days=492)).plan.action is Action.RENEW_LEAF
    assert [request for request in api.requests if request[0] != "GET"] == [("PATCH", MUTATING), ("PUT", SECRET)]
    assert read_certificates(secret(api, "tls.crt"))[0].issued_by(new)


def test_a_lost_race_on_renewal_reads_again(api: FakeApi, url: str) -> None:
    run(url)
    late = NOW + dt.timedelta(days=70)
    changed = iter([True])

    def somebody_writes(method: str, path: str) -> None:
        if method == "PUT" and next(changed, False):
            api.put(SECRET, api.objects[SECRET])

    api.on_request = somebody_writes
    assert run(url, late).plan.action is Action.RENEW_LEAF
    assert [method for method, path in api.requests if path == SECRET].count("PUT") == 2


def test_gives_up_when_the_secret_never_stops_changing(api: FakeApi, url: str) -> None:
    run(url)

    def somebody_writes(method: str, path: str) -> None:
        if method == "PUT":
            api.put(SECRET, api.objects[SECRET])

    api.on_request = somebody_writes
    with pytest.raises(ConflictError, match="kept changing"):
        run(url, NOW + dt.timedelta(days=70))


def test_what_else_is_in_the_secret_stays(api: FakeApi, url: str) -> None:
    run(url)
    api.objects[SECRET]["metadata"]["labels"]["team"] = "platform"
    api.objects[SECRET]["data"]["note"] = "aGk="
    run(url, NOW + dt.timedelta(days=70))
    assert api.objects[SECRET]["metadata"]["labels"]["team"] == "platform"
    assert api.objects[SECRET]["data"]["note"] == "aGk="


def test_a_new_authority_on_demand_keeps_the_old_one_trusted(api: FakeApi, url: str) -> None:
    """The drill of docs/operations.md: somebody deletes `ca.key` from the Secret."""
    run(url)
    old, leaf = secret(api, "ca.crt"), secret(api, "tls.crt")
    del api.objects[SECRET]["data"]["ca.key"]
    assert run(url).plan.action is Action.NEW_CA
    assert secret(api, "ca.crt").endswith(old)
    assert secret(api, "tls.crt") == leaf


def test_a_secret_without_keys_is_filled(api: FakeApi, url: str) -> None:
    api.put(SECRET, {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": "gpu-webhook-tls"}})
    assert run(url).plan.action is Action.NEW_CA
    assert bundles(api) == [secret(api, "ca.crt")] * 3


def test_a_configuration_that_is_not_there_is_named(api: FakeApi, url: str) -> None:
    del api.objects[VALIDATING]
    assert run(url).missing == ("ValidatingWebhookConfiguration/gpu-webhook",)


def test_patch_tests_the_name_before_it_writes() -> None:
    configuration = {"webhooks": [{"name": "a.b.c", "clientConfig": {}}]}
    assert bundle.bundle_patch(configuration, b"pem") == [
        {"op": "test", "path": "/webhooks/0/name", "value": "a.b.c"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "cGVt"},
    ]


def test_a_list_of_webhooks_that_changed_meanwhile_is_read_again(api: FakeApi, url: str) -> None:
    changed = iter([True])

    def reorder(method: str, path: str) -> None:
        if method == "PATCH" and path == VALIDATING and next(changed, False):
            api.objects[VALIDATING]["webhooks"].reverse()

    api.on_request = reorder
    run(url)
    assert bundles(api) == [secret(api, "ca.crt")] * 3


def test_watch_reports_changes_once_and_retries_ever_more_slowly() -> None:
    refused = ApiException(status=403, reason="Forbidden")
    refused.body = '{"message": "secrets is forbidden"}'
    kept = Outcome(Plan(Action.KEEP, "good"), ())
    rounds: list[Outcome | ApiException] = [
        refused,
        refused,
        kept,
        kept,
        Outcome(kept.plan, ("MutatingWebhookConfiguration/x",)),
    ]
    pauses: list[float] = []
    said: list[str] = []

    def once() -> Outcome:
        result = rounds.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return not rounds

    watch(once, wait, said.append)
    assert pauses == [5, 10, 60, 60, 5]
    assert said == [
        "will try again: the API server said 403: secrets is forbidden",
        "keep: good",
        "keep: good; not found, so not told: MutatingWebhookConfiguration/x",
    ]


def _without_bundle(configuration: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {**webhook, "clientConfig": {k: v for k, v in webhook["clientConfig"].items() if k != "caBundle"}}
        for webhook in configuration["webhooks"]
    ]
