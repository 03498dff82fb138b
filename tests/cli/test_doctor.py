"""`gpu-webhook doctor`: what it prints, its exit status, and what it asks of a live cluster."""

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterator
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.cluster.fake_api import FakeApi, Handler, running, silent, status
from tests.cluster.objects import workload
from tests.cluster.test_doctor import POLICY, cluster, own_pod
from webhook.certs.issue import Pair, new_ca, new_leaf, service_names
from webhook.cli.main import main
from webhook.cluster import kinds

ROOT = Path(__file__).parents[2]
NOW = dt.datetime.now(dt.UTC)
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
SECRET = "/api/v1/namespaces/gpu-webhook/secrets/gpu-webhook-tls"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--policy", str(ROOT / "policies"), *arguments])


def lines(result: Result) -> list[dict[str, str]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def by_check(result: Result, check: str) -> list[tuple[str, str]]:
    return [(line["level"], line["message"]) for line in lines(result) if line["check"] == check]


# -- a snapshot --------------------------------------------------------------------------------------------------------


def write(folder: Path, objects: list[dict[str, Any]]) -> str:
    (folder / "cluster.yaml").write_text(yaml.safe_dump_all(objects))
    return str(folder)


def trusting(objects: list[dict[str, Any]], bundle: bytes) -> list[dict[str, Any]]:
    for item in objects:
        for webhook in item.get("webhooks", ()):
            webhook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
    return objects


def test_all_is_well_in_a_snapshot(tmp_path: Path) -> None:
    result = doctor("--cluster", write(tmp_path, trusting(cluster(), new_ca(NOW).cert)))
    assert result.exit_code == 0
    assert all(line.startswith("OK ") for line in result.stdout.splitlines())
    assert "the authorities that the API server was given last" in result.stdout


def test_a_failure_is_printed_with_its_fix_and_ends_with_1(tmp_path: Path) -> None:
    objects = [each for each in cluster() if each["kind"] != "MutatingWebhookConfiguration"]
    result = doctor("--cluster", write(tmp_path, trusting(objects, new_ca(NOW).cert)))
    assert result.exit_code == 1
    assert (
        "FAIL  there is no MutatingWebhookConfiguration gpu-webhook: nothing is placed  [registered]\n"
        "      fix: kubectl apply -k YOUR-OVERLAY; its registration is what `gpu-webhook manifests` prints\n"
    ) in result.stdout


def test_warnings_alone_end_with_0(tmp_path: Path) -> None:
    objects = [each for each in cluster() if each["kind"] != "Deployment"]
    result = doctor("--cluster", write(tmp_path, trusting(objects, new_ca(NOW).cert)), "-o", "json")
    assert result.exit_code == 0
    assert {line["level"] for line in lines(result)} == {"OK", "WARN"}
    assert all(set(line) == {"level", "check", "message", "fix"} for line in lines(result))


@pytest.mark.parametrize(
    ("bundle", "level", "told"),
    [
        (b"no certificate", "FAIL", "is not a list of certificates"),
        (new_ca(NOW - dt.timedelta(days=9), dt.timedelta(days=8)).cert, "FAIL", "the last of its authorities ended at"),
        (new_ca(NOW, dt.timedelta(days=8)).cert, "WARN", "the last of its authorities ends in"),
    ],
)
def test_b54_what_the_api_server_was_given_to_trust(tmp_path: Path, bundle: bytes, level: str, told: str) -> None:
    result = doctor("--cluster", write(tmp_path, trusting(cluster(), bundle)), "-o", "json")
    found = by_check(result, "bundle")
    assert found[0][0] == level
    assert told in found[0][1]
    assert result.exit_code == (1 if level == "FAIL" else 0)


def test_what_cannot_be_read_ends_with_2(tmp_path: Path) -> None:
    missing = doctor("--cluster", str(tmp_path / "nowhere"))
    assert missing.exit_code == 2
    assert "no such file or folder" in missing.stderr
    policy = CliRunner().invoke(main, ["doctor", "--policy", str(tmp_path), "--cluster", str(tmp_path)])
    assert policy.exit_code == 2


def test_b65_a_name_cannot_drive_the_terminal(tmp_path: Path) -> None:
    objects = [each for each in cluster() if each["metadata"]["name"] != "train-1"]
    evil = next(each for each in cluster() if each["metadata"]["name"] == "train-1")
    evil["metadata"] = {"name": "x\x1b[2J", "namespace": "default"}
    result = doctor("--cluster", write(tmp_path, [*trusting(objects, new_ca(NOW).cert), evil]))
    assert "\x1b" not in result.stdout
    assert "x\\x1b[2J" in result.stdout


# -- a live cluster ----------------------------------------------------------------------------------------------------


class Installed:
    """A fake cluster in which we are installed, with certificates, and two replicas that can be asked."""

    def __init__(self, fake: FakeApi) -> None:
        self.fake = fake
        self.ca: Pair = new_ca(NOW)
        self.objects = trusting(cluster(), self.ca.cert)
        self.revisions = {"gpu-webhook-a": POLICY.revision, "gpu-webhook-b": POLICY.revision}
        self.seconds_left = 80 * 86400.0
        self.more = ""
        self.date: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
        self.forbidden: set[tuple[str, str, str]] = set()
        self.serve(new_leaf(self.ca, service_names("gpu-webhook", "gpu-webhook"), NOW))
        fake.extra["/version"] = {"gitVersion": "v1.36.2"}
        fake.extra[REVIEWS] = self.review
        for name in self.revisions:
            fake.every[self.metrics_path(name)] = self.metrics

    def metrics_path(self, name: str) -> str:
        return f"/api/v1/namespaces/gpu-webhook/pods/https:{name}:8443/proxy/metrics"

    def serve(self, leaf: Pair) -> None:
        self.fake.extra[SECRET] = {"data": {"tls.crt": base64.b64encode(leaf.cert).decode()}}

    def store(self) -> None:
        for item in self.objects:
            if kinds.kind_of(item["apiVersion"], item["kind"]):
                self.fake.put(item)
        for phase in ("Mutating", "Validating"):
            items = [item for item in self.objects if item["kind"] == f"{phase}WebhookConfiguration"]
            self.fake.extra[CONFIGURATIONS.format(phase.lower())] = {"items": items}

    def review(self, handler: Handler) -> dict[str, Any]:
        asked = handler.body["spec"]["resourceAttributes"]
        needed = kinds.permissions().get((asked["group"], asked["resource"]), frozenset())
        allowed = asked["verb"] in needed and (asked["group"], asked["resource"], asked["verb"]) not in self.forbidden
        return {"status": {"allowed": allowed}}

    def metrics(self, handler: Handler) -> None:
        name = handler.where.split(":")[1]
        text = (
            f'gpu_webhook_policy_info{{policy="default",revision="{self.revisions[name]}"}} 1\n'
            f'gpu_webhook_certificate_seconds_left{{certificate="leaf"}} {self.seconds_left}\n{self.more}'
        ).encode()
        handler.send_response_only(200)
        handler.send_header("Date", format_datetime(self.date(), usegmt=True))
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    with running() as fake:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": fake.url}}],
            "users": [{"name": "u", "user": {}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield Installed(fake)


def live(installed: Installed) -> Result:
    installed.store()
    return doctor("-o", "json")


def test_all_is_well_in_a_live_cluster(installed: Installed) -> None:
    result = live(installed)
    assert [line for line in lines(result) if line["level"] != "OK"] == []
    assert result.exit_code == 0
    told = {line["check"]: line["message"] for line in lines(result)}
    assert "Secret gpu-webhook/gpu-webhook-tls, tls.crt is trusted through every bundle" in told["served"]
    assert told["version"] == "the API server is v1.36.2"
    assert told["permissions"].endswith("may read what it needs, and no more")
    assert told["revision"].startswith("all 2 replicas run the policy of the files given")
    assert "certificate has 80 days left (6912000 s)" in told["replica"]
    assert {"clock", "reach", "coverage"} <= set(told)


def test_a_certificate_that_the_bundle_does_not_vouch_for(installed: Installed) -> None:
    installed.serve(new_leaf(new_ca(NOW), service_names("gpu-webhook", "gpu-webhook"), NOW))
    result = live(installed)
    assert result.exit_code == 1
    found = by_check(result, "served")
    assert len(found) == 2  # both configurations
    assert all("does not trust the serving certificate" in message for _, message in found)


def test_v25_a_certificate_for_another_name(installed: Installed) -> None:
    installed.serve(new_leaf(installed.ca, ["other.gpu-webhook.svc"], NOW))
    ((level, message),) = by_check(live(installed), "served")
    assert level == "FAIL"
    assert "does not name gpu-webhook.gpu-webhook.svc, which the API server calls" in message


def test_b54_a_certificate_with_little_time_left(installed: Installed) -> None:
    installed.serve(new_leaf(installed.ca, service_names("gpu-webhook", "gpu-webhook"), NOW, dt.timedelta(days=3)))
    installed.seconds_left = 300.0
    result = live(installed)
    ((level, message),) = by_check(result, "served")
    assert (level, "ends in 3.0 days" in message) == ("WARN", True)
    assert ("FAIL", "pod gpu-webhook-a: the certificate it serves ends in 0.0 days (300 s)") in by_check(
        result, "replica"
    )


def test_b55_a_secret_that_holds_no_certificate(installed: Installed) -> None:
    """The pods keep the pair that they have, so nothing else tells before one restarts."""
    installed.serve(Pair(b"garbage", b"garbage"))
    result = live(installed)
    assert result.exit_code == 1
    assert by_check(result, "served") == [
        (
            "FAIL",
            "Secret gpu-webhook/gpu-webhook-tls, tls.crt: holds no certificate, so no pod that starts now can serve",
        )
    ]


def test_a_secret_that_we_may_not_read_is_a_warning(installed: Installed) -> None:
    installed.fake.every[SECRET] = status(403, "forbidden")
    ((level, message),) = by_check(live(installed), "served")
    assert level == "WARN"
    assert "cannot be seen from here" in message


@pytest.mark.parametrize(
    ("version", "level"), [("v1.27.16", "FAIL"), ("v1.28.0", "OK"), ("v1.36.2-eks-1", "OK"), ("odd", "WARN")]
)
def test_the_api_server_version(installed: Installed, version: str, level: str) -> None:
    installed.fake.extra["/version"] = {"gitVersion": version}
    assert [found for found, _ in by_check(live(installed), "version")] == [level]


@pytest.mark.parametrize(("seconds", "level"), [(0, "OK"), (30, "WARN"), (-30, "WARN"), (3600, "FAIL")])
def test_clock_skew_of_a_replica(installed: Installed, seconds: int, level: str) -> None:
    installed.date = lambda: dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    found = [each for each in by_check(live(installed), "clock") if "pod gpu-webhook-a" in each[1]]
    assert [each for each, _ in found] == [level]
    if seconds:
        assert ("ahead of" if seconds > 0 else "behind") in found[0][1]


def test_a_permission_that_is_missing_and_one_too_many(installed: Installed) -> None:
    installed.forbidden = {("apps", "deployments", "watch"), ("", "pods", "list")}
    answer = installed.review

    def generous(handler: Handler) -> dict[str, Any]:
        if handler.body["spec"]["resourceAttributes"]["resource"] == "secrets":
            return {"status": {"allowed": True}}
        return answer(handler)

    installed.fake.extra[REVIEWS] = generous
    found = by_check(live(installed), "permissions")
    account = "system:serviceaccount:gpu-webhook:gpu-webhook"
    assert found == [
        ("FAIL", f"{account} may not watch deployments.apps, list pods"),
        ("WARN", f"{account} may get secrets, list secrets, which it does not need"),
    ]


def test_the_exporters_permissions_where_there_is_one(installed: Installed) -> None:
    installed.objects.append(workload("Deployment", "gpu-webhook", "gpu-webhook-exporter"))
    asked: list[dict[str, Any]] = []

    def answer(handler: Handler) -> dict[str, Any]:
        spec = handler.body["spec"]
        if not spec["user"].endswith("-exporter"):
            return installed.review(handler)
        asked.append(spec["resourceAttributes"])
        return {"status": {"allowed": spec["resourceAttributes"]["verb"] == "watch"}}

    installed.fake.extra[REVIEWS] = answer
    well, poor = by_check(live(installed), "permissions")
    assert well[0] == "OK"
    assert poor[0] == "FAIL"
    assert poor[1].startswith("system:serviceaccount:gpu-webhook:gpu-webhook-exporter may not list namespaces, ")
    log = {"group": "", "resource": "pods", "verb": "get", "subresource": "log", "namespace": "gpu-webhook"}
    assert log in asked


def test_permissions_that_cannot_be_asked(installed: Installed) -> None:
    installed.fake.every[REVIEWS] = status(403, "no")
    ((level, message),) = by_check(live(installed), "permissions")
    assert level == "WARN"
    assert "cannot be asked" in message


def test_replicas_with_different_policies(installed: Installed) -> None:
    installed.revisions["gpu-webhook-b"] = "sha256:" + "0" * 64
    ((level, message),) = by_check(live(installed), "revision")
    assert level == "FAIL"
    assert "sha256:000000000000 on gpu-webhook-b" in message


def test_replicas_with_another_policy_than_the_files_given(installed: Installed) -> None:
    installed.revisions = dict.fromkeys(installed.revisions, "sha256:" + "0" * 64)
    ((level, message),) = by_check(live(installed), "revision")
    assert level == "WARN"
    assert "all replicas run sha256:000000000000, the files given are" in message


def test_a_replica_that_is_not_well(installed: Installed) -> None:
    installed.more = "gpu_webhook_policy_load_ok 0\ngpu_webhook_facts_synced 0\n"
    found = by_check(live(installed), "replica")
    assert ("FAIL", "pod gpu-webhook-a has never known the cluster") in found
    assert any("refused the policy files" in message for _, message in found)


def test_a_replica_that_cannot_be_asked(installed: Installed) -> None:
    installed.objects.append(own_pod("gpu-webhook-c", "research-1"))
    installed.fake.every[installed.metrics_path("gpu-webhook-c")] = status(502, "dial tcp: no route")
    result = live(installed)
    assert any(
        level == "WARN" and "gpu-webhook-c cannot be asked" in message for level, message in by_check(result, "replica")
    )
    assert by_check(result, "revision")[0][0] == "OK"


def test_what_we_may_not_list_is_said_and_the_rest_goes_on(installed: Installed) -> None:
    installed.fake.every["/api/v1/nodes"] = status(403, "nodes is forbidden")
    result = live(installed)
    ((level, message),) = by_check(result, "readable")
    assert level == "WARN"
    assert "Node could not be read" in message
    assert by_check(result, "registered")[0][0] == "OK"


def test_an_api_server_that_does_not_answer_ends_with_2(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.cluster.whole.TIMEOUT", 0.2)
    installed.fake.every["/api/v1/namespaces"] = silent(5)
    result = live(installed)
    assert result.exit_code == 2
    assert "does not answer" in result.stderr


def test_help_names_no_network() -> None:
    result = CliRunner().invoke(main, ["doctor", "--help"])
    assert result.exit_code == 0
    assert "Each line is OK, WARN or FAIL with its fix" in " ".join(result.stdout.split())
