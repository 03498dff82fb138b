"""`gpu-webhook review`: every sentence of DESIGN 5.2 about it, and set-level judgement (issue 3)."""

import base64
import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from click.testing import CliRunner, Result

from tests.decision.build import POOL, admitted, container, namespace, node, pod, priority_class, quota, workload
from tests.decision.build import review as admission_review
from webhook.cli.review import command
from webhook.decision.request import decision_id

Json = dict[str, Any]

POLICY = """\
apiVersion: gpu.platform/v1
kind: GpuPolicy
metadata: {name: test}
spec:
  rules:
    - name: research
      namespaceSelector: {matchLabels: {gpu.platform/team: research}}
      priorityClassName: gpu-research
      pools: [a100]
  exemptions:
    - {name: sre, users: [root], reason: on call}
    - {name: ops, groups: [ops], reason: on call}
"""
FACTS = [namespace(), priority_class("gpu-research", 1000), node("n1", pool="a100")]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "policy.yaml").write_text(POLICY)
    return folder


class Runner:
    """Runs the command on objects given as stdin, with the facts above unless told otherwise."""

    def __init__(self, policy: Path) -> None:
        self.policy = policy

    def text(self, stdin: str | bytes, *arguments: str) -> Result:
        return CliRunner().invoke(command, ["--policy", str(self.policy), *arguments], input=stdin)

    def on(self, *objects: Json, arguments: tuple[str, ...] = (), facts: list[Json] | None = None) -> Result:
        every = [*(FACTS if facts is None else facts), *objects]
        return self.text("\n---\n".join(json.dumps(each) for each in every), *arguments)

    def lines(self, *objects: Json, arguments: tuple[str, ...] = (), facts: list[Json] | None = None) -> list[Json]:
        result = self.on(*objects, arguments=("-o", "json", *arguments), facts=facts)
        assert result.exit_code in (0, 1), result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def run(policy: Path) -> Runner:
    return Runner(policy)


def placed(obj: Json, where: str = "team-a") -> Json:
    result = copy.deepcopy(obj)
    result["metadata"]["namespace"] = where
    return result


WORKLOAD = placed(workload())


class TestInputs:
    def test_several_documents_in_yaml(self, run: Runner) -> None:
        documents = yaml.safe_dump_all([*FACTS, WORKLOAD, placed(workload(name="x"))])
        result = run.text(documents, "-o", "json")
        assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["w", "x"]

    def test_several_documents_in_json(self, run: Runner) -> None:
        assert [line["verdict"] for line in run.lines(WORKLOAD, placed(pod()))] == ["patch", "patch"]

    def test_lists_are_flattened_and_nested_ones_too(self, run: Runner) -> None:
        inner = {
            "apiVersion": "apps/v1",
            "kind": "DeploymentList",
            "items": [{"metadata": {"name": "i", "namespace": "team-a"}}],
        }
        outer = {"apiVersion": "v1", "kind": "List", "items": [*FACTS, WORKLOAD, inner]}
        assert [line["name"] for line in run.lines(outer, facts=[])] == ["w", "i"]

    def test_files_and_folders_and_stdin_in_the_order_given(self, run: Runner, tmp_path: Path) -> None:
        folder = tmp_path / "chart"
        (folder / "sub").mkdir(parents=True)
        (folder / "facts.yaml").write_text(yaml.safe_dump_all(FACTS))
        (folder / "sub" / "w.json").write_text(json.dumps(placed(workload(name="in-folder"))))
        (folder / "notes.txt").write_text("not a manifest")
        single = tmp_path / "one.yaml"
        single.write_text(yaml.safe_dump(placed(workload(name="in-file"))))
        stdin = json.dumps(placed(workload(name="in-stdin")))
        result = run.text(stdin, "-f", str(single), "-f", str(folder), "-f", "-", "-o", "json")
        assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["in-file", "in-folder", "in-stdin"]

    def test_facts_among_the_inputs_count_wherever_they_stand(self, run: Runner) -> None:
        assert [line["verdict"] for line in run.lines(WORKLOAD, *FACTS, facts=[])] == ["patch"]

    def test_facts_are_not_judged(self, run: Runner) -> None:
        limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": "team-a"}}
        assert run.lines(quota(), limits) == []

    def test_without_a_namespace_object_its_labels_are_unknown(self, run: Runner) -> None:
        (line,) = run.lines(WORKLOAD, facts=[])
        assert (line["verdict"], [f["code"] for f in line["findings"]]) == ("allow", ["FactsUnknown"])

    def test_a_cluster_adds_its_facts(self, run: Runner, tmp_path: Path) -> None:
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*FACTS, quota(gpu=("4", "4"))]}))
        (line,) = run.lines(WORKLOAD, facts=[], arguments=("--cluster", str(path)))
        assert (line["verdict"], line["findings"][0]["code"]) == ("deny", "QuotaExceeded")

    def test_kinds_that_are_not_judged_are_allowed(self, run: Runner) -> None:
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "team-a"}}
        foreign = {"apiVersion": "example.com/v1", "kind": "Job", "metadata": {"name": "j"}}
        assert [line["verdict"] for line in run.lines(config, foreign)] == ["allow", "allow"]
        assert "ConfigMap team-a/c: allowed" in run.on(config).stdout


class TestWho:
    def test_the_namespace_of_objects_that_name_none(self, run: Runner) -> None:
        (line,) = run.lines(workload(), arguments=("-n", "team-a"))
        assert (line["namespace"], line["verdict"]) == ("team-a", "patch")
        assert run.lines(workload())[0]["namespace"] == "default"
        assert run.lines(placed(workload(), "team-a"), arguments=("-n", "other"))[0]["namespace"] == "team-a"

    def test_as_and_as_group(self, run: Runner) -> None:
        wrong = placed(workload(nodeSelector={POOL: "h100"}))
        assert run.lines(wrong)[0]["verdict"] == "deny"
        assert run.lines(wrong, arguments=("--as", "root"))[0]["findings"][0]["code"] == "Exempt"
        assert (
            run.lines(wrong, arguments=("--as-group", "ops", "--as-group", "x"))[0]["findings"][0]["code"] == "Exempt"
        )

    def test_without_as_it_is_the_user_user(self, run: Runner, policy: Path) -> None:
        (policy / "policy.yaml").write_text(
            POLICY.replace("users: [root]", "users: [user], groups: ['system:authenticated']")
        )
        assert run.lines(WORKLOAD)[0]["findings"][0]["code"] == "Exempt"


class TestDefaults:
    """What a real server would have made of a manifest before it asked us."""

    def test_w1_missing_replicas_are_one_and_zero_stays_zero(self, run: Runner) -> None:
        assert run.lines(WORKLOAD)[0]["gpu"] == {"nvidia.com/gpu": "1"}
        assert run.lines(placed(workload(spec={"replicas": 0})))[0]["gpu"] == {}

    @pytest.mark.parametrize(
        ("spec", "gpus"),
        [({}, "1"), ({"parallelism": 3}, "3"), ({"completions": 9}, "1"), ({"parallelism": 8, "completions": 3}, "3")],
    )
    def test_w11_jobs(self, run: Runner, spec: Json, gpus: str) -> None:
        assert run.lines(placed(workload("Job", spec=spec)))[0]["gpu"] == {"nvidia.com/gpu": gpus}

    def test_r1_requests_come_from_limits_and_limit_ranges(self, run: Runner) -> None:
        limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": "team-a"}}
        limits["spec"] = {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "2"}}]}  # type: ignore[assignment]
        (line,) = run.lines(placed(pod(gpus=None)), limits)
        assert line["gpu"] == {"nvidia.com/gpu": "2"}
        patched = yaml.safe_load(run.on(placed(pod(gpus=None)), limits, arguments=("-o", "patched")).stdout)
        assert patched["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2"}

    def test_p2_a_pod_without_a_class_has_the_global_default_which_is_not_its_choice(self, run: Runner) -> None:
        default = priority_class("house-default", 10, default=True)
        (line,) = run.lines(placed(pod()), default)
        assert [each["op"] for each in line["patch"][:3]] == ["remove", "remove", "add"]

    def test_the_uid_is_the_hash_of_the_canonical_manifest(self, run: Runner) -> None:
        text = json.dumps(WORKLOAD, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        uid = hashlib.sha256(text.encode()).hexdigest()
        result = run.on(WORKLOAD, arguments=("-o", "review"))
        assert json.loads(result.stdout)["response"]["uid"] == uid
        full = run.on(WORKLOAD, quota(gpu=("1", "1")))
        assert f"decision   {decision_id(uid, 'mutate')}" in full.stdout


class TestOutputs:
    def test_json_has_every_key_of_the_design(self, run: Runner) -> None:
        (line,) = run.lines(WORKLOAD)
        keys = ["kind", "namespace", "name", "verdict", "would", "rule", "patch", "warnings", "findings", "gpu", "asks"]
        assert list(line) == keys
        assert (line["kind"], line["rule"], line["would"]) == ("Deployment", "research", None)
        assert line["asks"] == {"nvidia.com/gpu": "1"}

    def test_would_is_filled_in_warn_mode(self, run: Runner, policy: Path) -> None:
        (policy / "policy.yaml").write_text(POLICY.replace("spec:\n", "spec:\n  mode: warn\n", 1))
        (line,) = run.lines(placed(workload(nodeSelector={POOL: "h100"})))
        assert (line["verdict"], line["would"]) == ("patch", "deny")

    def test_review_prints_one_response_per_object(self, run: Runner) -> None:
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
        result = run.on(
            WORKLOAD, placed(workload(name="bad", nodeSelector={POOL: "h100"})), config, arguments=("-o", "review")
        )
        responses = [json.loads(line) for line in result.stdout.splitlines()]
        assert [each["response"]["allowed"] for each in responses] == [True, False, True]
        assert {(each["apiVersion"], each["kind"]) for each in responses} == {
            ("admission.k8s.io/v1", "AdmissionReview")
        }
        patch = json.loads(base64.b64decode(responses[0]["response"]["patch"]))
        assert patch[0]["path"] == "/spec/template/spec/priorityClassName"
        assert responses[1]["response"]["status"]["code"] == 403
        assert result.exit_code == 1

    def test_patched_is_the_object_with_our_patch(self, run: Runner) -> None:
        result = run.on(WORKLOAD, placed(pod()), arguments=("-o", "patched"))
        deployment, bare = yaml.safe_load_all(result.stdout)
        (line, _) = run.lines(WORKLOAD, placed(pod()))
        with_defaults = copy.deepcopy(WORKLOAD)
        with_defaults["spec"] |= {"replicas": 1, "strategy": deployment["spec"]["strategy"]}
        assert deployment == jsonpatch.apply_patch(with_defaults, line["patch"])
        assert bare["spec"]["priorityClassName"] == "gpu-research"
        assert "priority" not in bare["spec"]

    def test_patched_leaves_out_what_is_denied_and_says_so(self, run: Runner) -> None:
        result = run.on(placed(workload(nodeSelector={POOL: "h100"})), arguments=("-o", "patched"))
        assert result.stdout == ""
        assert "Deployment team-a/w: denied" in result.stderr
        assert "Wrong GPU pool" in result.stderr

    def test_text_says_what_was_done_and_why_not(self, run: Runner) -> None:
        result = run.on(WORKLOAD, placed(workload(name="bad", nodeSelector={POOL: "h100"})))
        assert "Deployment team-a/w: patched\n  priorityClassName gpu-research set" in result.stdout
        assert "Deployment team-a/bad: denied\n  Wrong GPU pool in namespace team-a" in result.stdout
        assert "1 patched, 1 denied\nbreaks at Deployment team-a/bad" in result.stdout

    def test_generate_name_is_shown(self, run: Runner) -> None:
        nameless = placed(pod(metadata={"generateName": "train-"}))
        del nameless["metadata"]["name"]
        assert run.lines(nameless)[0]["name"] == "train-"


class TestAdmissionReviews:
    """Judged as they are: no defaults, their own user and operation."""

    def test_the_answer_has_its_uid(self, run: Runner) -> None:
        body = admission_review(admitted(pod()))
        result = run.on(body, arguments=("-o", "review"))
        assert json.loads(result.stdout)["response"]["uid"] == body["request"]["uid"]

    def test_its_own_user_counts(self, run: Runner) -> None:
        body = admission_review(workload(nodeSelector={POOL: "h100"}), user={"username": "root", "groups": []})
        assert run.lines(body)[0]["findings"][0]["code"] == "Exempt"

    def test_updates_and_deletes(self, run: Runner) -> None:
        lines = run.lines(
            admission_review(workload(spec={"replicas": 2}), "UPDATE", workload(spec={"replicas": 1})),
            admission_review(None, "DELETE", workload()),
        )
        assert [line["verdict"] for line in lines] == ["allow", "allow"]

    def test_one_that_is_none_is_unreadable(self, run: Runner) -> None:
        body = admission_review(pod()) | {"apiVersion": "admission.k8s.io/v1beta1"}
        result = run.on(body)
        assert result.exit_code == 2
        assert "document 4: apiVersion: expected" in result.stderr


class TestASetAsOneDemand:
    FIVE = tuple(placed(workload(name=f"d{number}")) for number in range(1, 6))

    def test_the_fifth_of_five_that_fit_alone_breaks(self, run: Runner) -> None:
        result = run.on(quota(gpu=("6", "2")), *self.FIVE)
        assert result.exit_code == 1
        assert "Deployment team-a/d4: patched" in result.stdout
        assert "Deployment team-a/d5: denied" in result.stdout
        assert "in use     6 of 6" in result.stdout
        assert "4 patched, 1 denied\nbreaks at Deployment team-a/d5" in result.stdout
        table = result.stdout.splitlines()[-2:]
        assert table[0].split() == ["NAMESPACE", "QUOTA", "KEY", "HARD", "USED", "ASKED", "LEFT"]
        assert table[1].split() == ["team-a", "gpu-quota", "requests.nvidia.com/gpu", "6", "2", "5", "-1"]

    def test_what_was_refused_uses_nothing(self, run: Runner) -> None:
        big = placed(workload(name="big", gpus=9))
        lines = run.lines(quota(gpu=("4", "0")), big, *self.FIVE[:4])
        assert [line["verdict"] for line in lines] == ["deny", "patch", "patch", "patch", "patch"]

    def test_every_namespace_has_its_rows(self, run: Runner) -> None:
        other = [namespace("team-b"), quota("b", "team-b", gpu=("2", "0")), placed(workload(name="e"), "team-b")]
        result = run.on(quota(gpu=("6", "0")), self.FIVE[0], *other)
        assert [line.split()[:2] for line in result.stdout.splitlines()[-2:]] == [
            ["team-a", "gpu-quota"],
            ["team-b", "b"],
        ]

    def test_a_quota_of_the_same_chart_has_no_status_yet(self, run: Runner) -> None:
        written = quota(gpu=("4", "0"))
        del written["status"]
        verdicts = [line["verdict"] for line in run.lines(written, *self.FIVE)]
        assert verdicts == ["patch"] * 4 + ["deny"]

    def test_a_quota_that_the_cluster_has_keeps_its_usage_under_the_new_limit(
        self, run: Runner, tmp_path: Path
    ) -> None:
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*FACTS, quota(gpu=("4", "3"))]}))
        raised = quota(gpu=("5", "0"))
        del raised["status"]
        verdicts = [
            line["verdict"] for line in run.lines(raised, *self.FIVE, facts=[], arguments=("--cluster", str(path)))
        ]
        assert verdicts == ["patch", "patch", "deny", "deny", "deny"]

    def test_classes_that_we_inject_decide_which_quota_is_used(self, run: Runner) -> None:
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["gpu-research"]}
        scoped = quota(scopes={"scopeSelector": {"matchExpressions": [scope]}}, gpu=("1", "0"))
        assert [line["verdict"] for line in run.lines(scoped, *self.FIVE[:2])] == ["patch", "deny"]

    def test_pods_and_cpu_are_used_up_as_well(self, run: Runner) -> None:
        bare = [
            placed(pod(f"p{number}", containers=[container(limits={"nvidia.com/gpu": "1", "cpu": "2"})]))
            for number in (1, 2)
        ]
        assert [line["verdict"] for line in run.lines(quota(requests_cpu=("3", "0")), *bare)] == ["patch", "deny"]


class TestExitCodes:
    def test_0_if_everything_is_admitted(self, run: Runner) -> None:
        assert run.on(WORKLOAD).exit_code == 0

    def test_1_if_anything_is_denied(self, run: Runner) -> None:
        assert run.on(WORKLOAD, placed(workload(nodeSelector={POOL: "h100"}))).exit_code == 1

    @pytest.mark.parametrize(
        ("stdin", "told"),
        [
            ("a: [", "stdin, line 2, column 1: is not YAML"),
            ("hello: 1", "stdin: is not a Kubernetes object (no `kind`)"),
            ("just text", "stdin: is not a Kubernetes object"),
            (b"\xff\xfe\x00a", "stdin: cannot be read: it is not UTF-8 text"),
            ("{" * 9000, "stdin"),
            ("kind: ConfigMap\nmetadata: 7\n", "stdin: ConfigMap: metadata is not a mapping"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: 7\n", "stdin: Pod p: Expected `object | null`"),
            (
                "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: 7\n",
                "ResourceQuota q is not what v1 defines",
            ),
            (
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, labels: [x]}\n",
                "stdin: Deployment d: Expected",
            ),
        ],
    )
    def test_2_and_the_place_for_what_cannot_be_read(self, run: Runner, stdin: str | bytes, told: str) -> None:
        result = run.text(stdin)
        assert result.exit_code == 2
        assert result.stderr.startswith("gpu-webhook: ")
        assert told in result.stderr
        assert len(result.stderr.splitlines()) == 1

    def test_2_names_the_file_and_the_document(self, run: Runner, tmp_path: Path) -> None:
        broken = tmp_path / "two.yaml"
        broken.write_text(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n"
            "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: []\n"
        )
        result = run.text("", "-f", str(broken))
        assert result.exit_code == 2
        assert f"{broken}, document 2: Pod b: Expected" in result.stderr

    def test_2_for_missing_files_folders_policies_and_clusters(self, run: Runner, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing")
        for arguments in (["-f", missing], ["--policy", missing], ["--cluster", missing]):
            result = CliRunner().invoke(command, ["--policy", str(run.policy), *arguments], input="")
            assert (result.exit_code, missing in result.stderr) == (2, True), arguments

    def test_2_for_a_bad_policy(self, run: Runner, policy: Path) -> None:
        (policy / "policy.yaml").write_text(POLICY.replace("priorityClassName", "prorityClassName"))
        result = run.on(WORKLOAD)
        assert result.exit_code == 2
        assert "policy.yaml" in result.stderr
        assert "priorityClassName" in result.stderr

    def test_2_for_bad_usage(self, run: Runner) -> None:
        assert run.text("", "-o", "xml").exit_code == 2
        assert run.text("", "--no-such").exit_code == 2

    def test_b65_control_characters_reach_no_terminal(self, run: Runner) -> None:
        named = placed(workload(name="a\x1b[31mb", nodeSelector={POOL: "h\x1b]0;x\x07"}))
        for arguments in ((), ("-o", "patched")):
            result = run.on(named, arguments=arguments)
            assert "\x1b" not in result.stdout.replace("\x1b[0m", "") + result.stderr
            assert result.exit_code == 1
        unreadable = run.text('apiVersion: v1\nkind: Pod\nmetadata: {name: "a\\x1b[31mb"}\nspec: 7\n')
        assert "\x1b" not in unreadable.stderr
        assert unreadable.exit_code == 2

    def test_nothing_at_all_is_no_bad_news(self, run: Runner) -> None:
        result = run.text("")
        assert (result.exit_code, result.stdout.strip()) == (0, "nothing to judge")
