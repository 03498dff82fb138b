"""What people do with kubectl, and what they and the cluster see of the webhook then."""

import copy
import json
import re
import ssl
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import RESCUER, RESCUERS, SRE
from tests.e2e.world import (
    EXEMPT,
    INJECTED,
    POOL,
    TEAM,
    ZONE,
    Object,
    Team,
    World,
    codes,
    deployment,
    placement,
    pod,
    records,
    required,
    until,
    workload,
)
from webhook.cli.stage import Stage
from webhook.lab.kubelet import STOP_AFTER

pytestmark = pytest.mark.e2e

MakeTeam = Callable[..., Team]


# -- applied, and applied again (B58, H9-H12) -------------------------------------------------------------------------


def test_b58_the_second_apply_is_unchanged(team: Team) -> None:
    web = deployment("web")
    assert team.apply(web) == "deployment.apps/web created\n"
    assert placement(team.template("deployment", "web")["spec"]) == team.expected
    before = team.state("web")
    assert team.apply(web) == "deployment.apps/web unchanged\n"
    assert team.state("web") == before
    team.scheduled("web")


def test_b58_a_manifest_with_its_own_affinity_ten_times(team: Team) -> None:
    """kubectl sends its own list without our requirement each time (H11); what is stored must not move."""
    zone = [{"key": team.world.names(ZONE), "operator": "Exists"}]
    web = deployment("web", pod=required(zone, [*zone, {"key": "x.example/fast", "operator": "Exists"}]))
    team.apply(web)
    assert placement(team.template("deployment", "web")["spec"]) == team.expected
    before = team.state("web")
    for _ in range(10):
        team.apply(web)
    assert team.state("web") == before
    assert len(team.replica_sets("web")) == 1


def test_replace_without_our_fields_starts_no_rollout(team: Team) -> None:
    team.apply(deployment("web"))
    before = team.state("web")
    assert "replaced" in team.kubectl("replace", "-f", "-", manifest=deployment("web"))
    assert team.state("web") == before
    assert INJECTED in team.kubectl.get("deployment", "web")["metadata"]["annotations"]
    assert len(team.replica_sets("web")) == 1


def test_server_side_apply_by_another_manager(team: Team) -> None:
    web = deployment("web")
    team.apply(web)
    before = team.state("web")
    labelled = copy.deepcopy(web)
    labelled["metadata"]["labels"]["by"] = "other"
    server_side = ("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-")
    assert "serverside-applied" in team.kubectl(*server_side, manifest=labelled)
    assert team.kubectl.get("deployment", "web")["metadata"]["labels"]["by"] == "other"
    team.kubectl(*server_side, manifest=labelled)
    team.apply(web)
    assert team.state("web") == before
    assert len(team.replica_sets("web")) == 1


def test_restart_set_image_and_undo_keep_the_placement(team: Team) -> None:
    team.apply(deployment("web"))
    first = team.template("deployment", "web")
    for change in (("rollout", "restart", "deployment/web"), ("set", "image", "deployment/web", "main=busybox:1.37")):
        team.kubectl(*change)
        assert placement(team.template("deployment", "web")["spec"]) == team.expected
    until("a ReplicaSet for each template", lambda: len(team.replica_sets("web")) == 3)
    team.kubectl("rollout", "undo", "deployment/web", "--to-revision=1")
    assert team.template("deployment", "web") == first
    until("the observed generation", lambda: _is_observed(team, "web"))
    assert len(team.replica_sets("web")) == 3


def test_w21_the_deployment_controller_knows_its_replica_set_again(team: Team) -> None:
    """O9: a webhook that touches the controller's ReplicaSets makes a new one at every sync, without end."""
    team.apply(deployment("web", replicas=2))
    team.scheduled("web", 2)
    team.kubectl("scale", "deployment/web", "--replicas=1")
    team.scheduled("web", 1)
    (only,) = team.replica_sets("web")
    template = team.template("deployment", "web")
    del only["spec"]["template"]["metadata"]["labels"]["pod-template-hash"]
    assert only["spec"]["template"] == template
    assert "collisionCount" not in team.kubectl.get("deployment", "web")["status"]


# -- dry runs (B57) ---------------------------------------------------------------------------------------------------


def test_b57_diff_and_dry_run_show_and_store_nothing(team: Team, stage: Stage) -> None:
    web = deployment("web", replicas=4)
    shown = team.kubectl.run("diff", "-f", "-", manifest=web)
    assert shown.code == 1, shown.err  # kubectl's way to say that there is a difference
    assert str(team.expected.priority_class) in shown.out and str(team.expected.pool) in shown.out
    dry = team.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", manifest=web)
    assert placement(json.loads(dry)["spec"]["template"]["spec"]) == team.expected
    assert team.kubectl.get("deployments")["items"] == []
    mine = [each for each in records(stage) if each["object"]["namespace"] == team.namespace]
    assert mine and all(each["dryRun"] for each in mine)
    team.apply(deployment("other", replicas=4))  # the dry run holds nothing of the quota
    team.scheduled("other", 4)


# -- quota ------------------------------------------------------------------------------------------------------------


def test_b35_scale_is_refused_beyond_the_quota_and_never_on_the_way_down(team: Team) -> None:
    team.apply(deployment("web", replicas=2))
    team.scheduled("web", 2)
    team.apply(deployment("other"))
    complaint = team.kubectl.fails("scale", "deployment/web", "--replicas=4")
    assert "GPU quota exceeded" in complaint and "asks for 2, free 1 of 4" in complaint
    assert "can never fit" in team.kubectl.fails("scale", "deployment/web", "--replicas=5")
    assert team.kubectl.get("deployment", "web")["spec"]["replicas"] == 2
    assert "scaled" in team.kubectl("scale", "deployment/web", "--replicas=3")
    team.scheduled("web", 3)
    team.kubectl("patch", "resourcequota", "gpus", "-p", '{"spec":{"hard":{"requests.nvidia.com/gpu":"1"}}}')
    until("the lower quota", lambda: _hard(team) == "1")
    assert "labeled" in team.kubectl("label", "deployment", "web", "note=over-quota")
    assert "scaled" in team.kubectl("scale", "deployment/web", "--replicas=2")
    assert "scaled" in team.kubectl("scale", "deployment/web", "--replicas=0")


def test_back_to_back_the_second_is_refused_and_told_by_whom(team: Team) -> None:
    done = team.kubectl.run("apply", "-f", "-", manifest=[deployment("first", 3), deployment("second", 2)])
    assert done.code == 1
    assert done.out == "deployment.apps/first created\n"
    assert "asks for 2, free 1 of 4" in done.err
    assert re.search(r"to fix .*first uses 3", done.err)
    team.scheduled("first")


def test_a_rollout_without_headroom_is_allowed_with_a_warning(make_team: MakeTeam) -> None:
    team = make_team(gpus=2)
    team.apply(deployment("web", replicas=2))
    team.scheduled("web", 2)
    told = team.kubectl("set", "image", "deployment/web", "main=busybox:1.37")
    assert "Warning: rollout will be stuck: it needs 1 more nvidia.com/gpu" in told
    assert "maxSurge: 0" in told
    roomy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert "Warning" not in team.apply(deployment("web", replicas=2, strategy=roomy))


def test_deleted_and_applied_again_at_once(team: Team) -> None:
    """The old pods still hold the quota while they stop; their owner is gone, so they do not stand in the way."""
    web = deployment("web", replicas=4)
    web["spec"]["template"]["metadata"]["annotations"] = {STOP_AFTER: "30"}  # a lab's pods stop at once otherwise
    team.apply(web)
    old = {each["metadata"]["name"] for each in team.scheduled("web", 4)}
    team.kubectl("delete", "deployment", "web")
    until("the garbage collector", lambda: all(_is_going(each) for each in team.pods("web")))
    told = team.apply(web)
    assert "Warning: counts 4 GPUs as free that pods being deleted still hold" in told
    assert "created" in told
    team.world.empty(team.namespace)  # no kubelet says that they have stopped
    until("the new pods", lambda: {each["metadata"]["name"] for each in team.pods("web")}.isdisjoint(old))
    team.scheduled("web", 4)


def test_b60_an_object_that_goes_may_go(team: Team) -> None:
    """Its last update removes a finalizer, while it is over quota and in a pool that is no longer allowed."""
    web = deployment("web", 2)
    web["metadata"]["finalizers"] = ["gpu.platform/e2e"]
    team.apply(web)
    team.scheduled("web")
    team.kubectl("patch", "resourcequota", "gpus", "-p", '{"spec":{"hard":{"requests.nvidia.com/gpu":"0"}}}')
    until("the lower quota", lambda: _hard(team) == "0")
    team.kubectl("delete", "deployment", "web", "--wait=false")
    assert _is_going(team.kubectl.get("deployment", "web"))
    elsewhere = {"spec": {"nodeSelector": {POOL: "elsewhere"}}}
    change = {"metadata": {"finalizers": None}, "spec": {"template": elsewhere}}
    team.kubectl("patch", "deployment", "web", "--type=merge", "-p", json.dumps(change))
    assert "NotFound" in team.kubectl.fails("get", "deployment", "web")


def test_a_workload_that_never_runs_is_warned_about(team: Team) -> None:
    told = team.apply(deployment("later", 8, replicas=0))
    assert "Warning: when it runs, one pod can never fit: it wants 8 nvidia.com/gpu" in told
    assert "created" in told


# -- every kind -------------------------------------------------------------------------------------------------------


def test_b61_namespace_and_workload_in_one_apply(world: World, stage: Stage) -> None:
    name = f"{world.prefix}-both"
    labels = {world.names(TEAM): world.names("inference")}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    web = deployment("web")
    web["metadata"]["namespace"] = name
    done = world.kubectl.inside(name).run("apply", "-f", "-", manifest=[namespace, web])
    assert done.code == 0, done.err
    team = Team(world, name, "inference")
    assert placement(team.template("deployment", "web")["spec"]) == team.expected
    team.scheduled("web")


def test_a_cron_job_and_the_job_made_from_it(make_team: MakeTeam) -> None:
    team = make_team("training")
    job = workload("Job", "nightly")
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"schedule": "0 3 31 2 *", "jobTemplate": {"spec": job["spec"]}},
    }
    team.apply(cron)
    stored = team.kubectl.get("cronjob", "nightly")["spec"]["jobTemplate"]["spec"]
    assert placement(stored["template"]["spec"]) == team.expected
    made = team.kubectl("create", "job", "now", "--from=cronjob/nightly", "--dry-run=client", "-o", "json")
    team.apply(json.loads(made))
    team.scheduled("nightly")


def test_a_job_runs_where_it_should_and_can_still_be_labelled(make_team: MakeTeam) -> None:
    """H3: its template is immutable, so every later update must come back unpatched."""
    team = make_team("training")
    team.apply(workload("Job", "train", parallelism=2))
    team.scheduled("train", 2)
    assert "labeled" in team.kubectl("label", "job", "train", "note=kept")


def test_a_stateful_set(team: Team) -> None:
    team.apply(workload("StatefulSet", "store", serviceName="store", replicas=2, podManagementPolicy="Parallel"))
    assert {each["metadata"]["name"] for each in team.scheduled("store", 2)} == {"store-0", "store-1"}


def test_a_daemon_set_keeps_to_its_pool(team: Team) -> None:
    """N15, N16: the template carries the pool, so the controller makes pods for nodes of that pool alone."""
    team.apply(workload("DaemonSet", "agent"))
    assert placement(team.template("daemonset", "agent")["spec"]) == team.expected
    (made,) = until("its pod", lambda: [each for each in team.pods("agent") if each["spec"].get("nodeName")])
    (term,) = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert set(term) == {"matchFields"}  # what the controller wrote, left alone


@pytest.mark.parametrize(("group", "value", "preemption"), [("training", 50000, None), ("research", 10000, "Never")])
def test_p7_a_bare_pod_is_stored_with_one_consistent_priority(
    make_team: MakeTeam, group: str, value: int, preemption: str | None
) -> None:
    team = make_team(group)
    team.kubectl("create", "-f", "-", manifest=pod("single"))
    (stored,) = team.scheduled("single")
    assert stored["spec"]["priority"] == value
    assert stored["spec"]["preemptionPolicy"] == preemption or preemption is None


def test_a_pod_with_a_generated_name(team: Team, stage: Stage) -> None:
    single = pod("many")
    single["metadata"] = {"generateName": "many-", "labels": {"app": "many"}}
    for _ in range(2):
        team.kubectl("create", "-f", "-", manifest=single)
    names = {each["metadata"]["name"] for each in team.scheduled("many", 2)}
    validated = [each for each in records(stage) if each["phase"] == "validate"]
    assert names <= {each["object"]["name"] for each in validated}


def test_b21_a_running_pod_may_be_labelled(team: Team) -> None:
    team.kubectl("create", "-f", "-", manifest=pod("single"))
    (before,) = team.scheduled("single")
    assert "labeled" in team.kubectl("label", "pod", "single", "note=kept")
    after = team.kubectl.get("pod", "single")
    assert after["metadata"]["labels"]["note"] == "kept"
    assert after["spec"] == before["spec"]


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields", "headline"),
    [
        ("PoolConflict", {"nodeSelector": {POOL: "elsewhere"}}, "Wrong GPU pool"),
        ("PriorityConflict", {"priorityClassName": "system-node-critical"}, "Priority class not allowed"),
    ],
)
def test_a_refusal_in_kubectl_is_the_one_on_record(
    team: Team, stage: Stage, code: str, fields: Object, headline: str
) -> None:
    complaint = team.kubectl.fails("apply", "-f", "-", manifest=deployment("wrong", pod=fields))
    assert "Error from server (Forbidden)" in complaint
    message = complaint.partition("denied the request: ")[2]
    first, *rest = message.splitlines()
    assert first.startswith(f"{headline} in namespace {team.namespace}")
    assert [line for line in rest if line.startswith("  to fix ")]
    identity = rest[-1].split()
    assert identity[0] == "decision"
    (record,) = [each for each in records(stage) if each["id"] == identity[1]]
    assert record["verdict"] == "deny" and record["findings"][0] == {"code": code, "message": first}
    assert "NotFound" in team.kubectl.fails("get", "deployment", "wrong")


# -- exemptions -------------------------------------------------------------------------------------------------------


def test_an_exempt_user_marks_the_template_and_the_pods_follow(team: Team, stage: Stage) -> None:
    _may_edit(team, SRE)
    web = deployment("web", pod={"nodeSelector": {POOL: "elsewhere"}})
    team.kubectl("apply", "--as", SRE, "-f", "-", manifest=web)
    template = team.template("deployment", "web")
    assert template["metadata"]["annotations"] == {EXEMPT: "sre"}
    assert placement(template["spec"]).priority_class is None
    (made,) = until("its pod", lambda: team.pods("web"))
    assert made["metadata"]["annotations"][EXEMPT] == "sre"
    assert placement(made["spec"]).pool is None
    found = [each for each in records(stage) if each["object"]["namespace"] == team.namespace]
    assert {each["object"]["kind"] for each in found if "Exempt" in codes(each)} == {"Deployment", "Pod"}


def test_b46_a_forged_exemption_is_taken_away(team: Team) -> None:
    web = deployment("web")
    web["spec"]["template"]["metadata"]["annotations"] = {EXEMPT: "sre"}
    told = team.apply(web)
    assert f"Warning: annotation {EXEMPT} removed" in told
    template = team.template("deployment", "web")
    assert EXEMPT not in (template["metadata"].get("annotations") or {})
    assert placement(template["spec"]) == team.expected


def test_break_glass_only_for_who_may(team: Team, stage: Stage) -> None:
    _may_edit(team, RESCUER)
    urgent = deployment("urgent", 8)
    urgent["metadata"]["annotations"] = {"gpu.platform/break-glass": "production is down"}
    assert "can never fit" in team.kubectl.fails("apply", "--as", RESCUER, "-f", "-", manifest=urgent)
    team.kubectl("apply", "--as", RESCUER, "--as-group", RESCUERS, "-f", "-", manifest=urgent)
    assert team.template("deployment", "urgent")["metadata"]["annotations"][EXEMPT].startswith("break-glass/20")
    found = [each for each in records(stage) if each["object"]["namespace"] == team.namespace]
    assert [each["user"]["name"] for each in found if "BreakGlass" in codes(each)][:1] == [RESCUER]


# -- at the end -------------------------------------------------------------------------------------------------------


def test_at_the_end_every_answer_is_on_record_and_the_chain_is_intact(world: World, stage: Stage) -> None:
    answered = _answered(stage, _address(world))
    found = records(stage)
    counted = Counter((each["phase"], each["verdict"]) for each in found if not each["dryRun"])
    assert answered == counted and answered[("mutate", "deny")]
    assert {each["lost"] for each in found} == {0}
    assert [each["seq"] for each in found] == list(range(1, len(found) + 1))
    shown_to_users = set(world.kubectl.refused)
    assert shown_to_users and shown_to_users <= {each["id"] for each in found if each["verdict"] == "deny"}
    verify = [sys.executable, "-m", "webhook", "audit", "verify", "--audit", str(stage.audit)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} records (1-{len(found)})" in done.stdout


def _answered(stage: Stage, address: str) -> Counter[Any]:
    """How many decisions the webhook itself says it has given, by phase and verdict; dry runs do not count."""
    context = ssl.create_default_context(cafile=str(stage.authority))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(f"{address}/metrics", timeout=10) as response:
        text = response.read().decode()
    counts: Counter[Any] = Counter()
    for labels, count in re.findall(r"^gpu_webhook_decisions_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        counts[(found["phase"], found["verdict"])] += int(float(count))
    return counts


def _address(world: World) -> str:
    config = world.kubectl.get("mutatingwebhookconfiguration", f"{world.prefix}-webhook")
    url: str = config["webhooks"][0]["clientConfig"]["url"]
    return url.removesuffix("/mutate")


# -- helpers ----------------------------------------------------------------------------------------------------------


def _hard(team: Team) -> str:
    hard: str = team.kubectl.get("resourcequota", "gpus")["status"]["hard"]["requests.nvidia.com/gpu"]
    return hard


def _is_going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _is_observed(team: Team, name: str) -> bool:
    found = team.kubectl.get("deployment", name)
    return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])


def _may_edit(team: Team, user: str) -> None:
    """Whoever kubectl impersonates needs rights of its own where RBAC is on."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    team.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user},
            "roleRef": role,
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
    )
    may = ("auth", "can-i", "create", "deployments.apps", "--as", user)
    until(f"the rights of {user}", lambda: team.kubectl.run(*may).code == 0)
