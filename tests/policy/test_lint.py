"""`policy lint`: what is well-formed and still cannot be meant, by itself and against a cluster."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from webhook.k8s.objects import Namespace, Node, PriorityClass, ResourceQuota
from webhook.language import catalogue
from webhook.policy import lint as lint_module
from webhook.policy.active import Policy
from webhook.policy.finding import LintFinding
from webhook.policy.lint import lint
from webhook.policy.lint_cluster import Cluster
from webhook.policy.load import load

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
SHIPPED = Path(__file__).parents[2] / "policies"
DATA = Path(__file__).parents[1] / "data"
TEAM = "namespaceSelector: {matchLabels: {gpu.platform/team: %s}}"


def policy(tmp_path: Path, rules: str, spec: str = "", pricing: str | None = "default: 2.4") -> Policy:
    """A policy of these rules, one a line, with further lines of the spec."""
    lines = "".join(f"    - {{{rule}}}\n" for rule in rules.strip().splitlines())
    text = "apiVersion: gpu.platform/v1\nkind: GpuPolicy\nmetadata: {name: p}\nspec:\n"
    text += (f"  rules:\n{lines}" if lines else "  rules: []\n") + "".join(f"  {line}\n" for line in spec.splitlines())
    (tmp_path / "policy.yaml").write_text(text)
    if pricing is not None:
        (tmp_path / "pricing.yaml").write_text(
            f"apiVersion: gpu.platform/v1\nkind: GpuPricing\nmetadata: {{name: p}}\nspec: {{{pricing}}}\n"
        )
    return load(tmp_path)


def cluster_of(path: Path) -> Cluster:
    items: list[dict[str, Any]] = json.loads(path.read_text())["items"]

    def every(kind: str, type_: Any) -> tuple[Any, ...]:
        return tuple(msgspec.json.decode(msgspec.json.encode(i), type=type_) for i in items if i["kind"] == kind)

    return Cluster(
        every("Namespace", Namespace),
        every("Node", Node),
        every("PriorityClass", PriorityClass),
        every("ResourceQuota", ResourceQuota),
    )


def codes(found: list[LintFinding]) -> list[tuple[str, str]]:
    return [(each.level, each.code) for each in found]


def only(found: list[LintFinding], code: str) -> LintFinding:
    chosen = [each for each in found if each.code == code]
    assert len(chosen) == 1, codes(found)
    return chosen[0]


def rule(name: str, team: str, more: str = "pools: [a]") -> str:
    return f"name: {name}, {TEAM % team}, {more}"


# -- the shipped policy ---------------------------------------------------------------------------------------------


def test_the_shipped_policy_is_clean() -> None:
    assert lint(load(SHIPPED), None, NOW) == []


@pytest.mark.parametrize("name", ["seed-cluster", "busy-cluster"])
def test_the_shipped_policy_against_recorded_clusters_has_no_error(name: str) -> None:
    found = lint(load(SHIPPED), cluster_of(DATA / name / "cluster.json"), NOW)
    assert not [each for each in found if each.level == "error"]


# -- rules ------------------------------------------------------------------------------------------------------------


def test_a_rule_behind_one_that_matches_everything_is_shadowed(tmp_path: Path) -> None:
    found = lint(policy(tmp_path, f"name: all, namespaceSelector: {{}}, pools: [a]\n{rule('late', 'x')}"), None, NOW)
    shadowed = only(found, "RuleShadowed")
    assert (shadowed.level, shadowed.line, shadowed.path) == ("error", 7, "spec.rules[1]")
    assert "all before it matches everything" in shadowed.message


def test_a_rule_that_two_earlier_ones_exhaust_is_shadowed(tmp_path: Path) -> None:
    both = "name: both, namespaceSelector: {matchExpressions: [{key: gpu.platform/team, operator: In, values: [a, b]}]}"
    found = lint(policy(tmp_path, f"{rule('one', 'a')}\n{rule('two', 'b')}\n{both}, pools: [a]"), None, NOW)
    assert "one, two before it" in only(found, "RuleShadowed").message


def test_the_special_case_before_the_general_one_is_meant(tmp_path: Path) -> None:
    text = f"{rule('special', 'x')}\nname: all, namespaceSelector: {{}}, pools: [b]"
    assert codes(lint(policy(tmp_path, text), None, NOW)) == [("info", "CatchAllRule")]


@pytest.mark.parametrize(("pools", "level"), [("[b]", "warning"), ("[a]", "info")])
def test_overlapping_rules_show_an_example_and_weigh_by_outcome(tmp_path: Path, pools: str, level: str) -> None:
    text = rule("one", "x, zone: z") + "\n" + rule("two", "x, tier: t", f"pools: {pools}")
    found = only(lint(policy(tmp_path, text), None, NOW), "RulesOverlap")
    assert found.level == level
    assert "for example namespace gpu.platform/team=x, tier=t, zone=z; one comes first" in found.message


@pytest.mark.parametrize(
    "selector",
    [
        "{matchLabels: {gpu.platform/team: a}, matchExpressions: "
        "[{key: gpu.platform/team, operator: NotIn, values: [a]}]}",
        "{matchLabels: {gpu.platform/team: a, kubernetes.io/metadata.name: kube-system}}",
    ],
)
def test_a_rule_that_contradicts_itself_never_matches(tmp_path: Path, selector: str) -> None:
    found = lint(policy(tmp_path, f"name: r, namespaceSelector: {selector}, pools: [a]"), None, NOW)
    assert codes(found) == [("error", "RuleNeverMatches")]


def test_namespaces_that_the_registration_does_not_cover(tmp_path: Path) -> None:
    text = "name: r, namespaceSelector: {matchLabels: {env: prod}}, pools: [a]"
    found = only(lint(policy(tmp_path, text), None, NOW), "RegistrationGap")
    assert found.level == "error"
    assert "gpu.platform/team" in found.message
    assert codes(lint(policy(tmp_path, text), None, NOW, namespace_label="env")) == []


def test_b05_system_classes_are_an_error_wherever_they_are_named(tmp_path: Path) -> None:
    text = rule("r", "a", "priorityClassName: system-node-critical, allowedPriorityClasses: [system-cluster-critical]")
    found = lint(policy(tmp_path, text), None, NOW)
    assert codes(found) == [("error", "ClassSystem")] * 2
    assert "system-node-critical" in found[0].message


@pytest.mark.parametrize(
    ("more", "spec", "expected"),
    [
        ("allowedPriorityClasses: [b], pools: [a]", "", ("warning", "AllowedClassesWithoutClass")),
        ("onQuotaExceeded: warn", "", ("info", "RuleWithoutPlacement")),
        ("pools: [a], workloadSelector: {matchLabels: {tier: gold}}", "", ("info", "LabelChoosesRule")),
        ("pools: [a], mode: audit", "", ("info", "NotEnforcing")),
        ("pools: [a]", "mode: warn", ("info", "NotEnforcing")),
        ("pools: [a]", "workloads: [Deployment]", ("warning", "PodsNotJudged")),
        (
            "pools: [a]",
            "workloads: [Pod]\nquota: {waitingKinds: [Job]}",
            ("warning", "WaitingKindNotJudged"),
        ),
        ("pools: [a]", "gpuResources: []", ("error", "NoGpuResources")),
        ("pools: [a]", "gpuResources: [gpu]", ("warning", "NotAnExtendedResource")),
    ],
)
def test_settings_without_effect_or_with_another(
    tmp_path: Path, more: str, spec: str, expected: tuple[str, str]
) -> None:
    assert codes(lint(policy(tmp_path, rule("r", "a", more), spec), None, NOW)) == [expected]


def test_a_policy_without_rules(tmp_path: Path) -> None:
    assert codes(lint(policy(tmp_path, ""), None, NOW)) == [("warning", "NoRules")]


# -- who may pass -----------------------------------------------------------------------------------------------------

PLAIN = "reason: r, expires: 2027-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("exemption", "expected"),
    [
        (f"users: [a], {PLAIN}", []),
        ("users: [a], reason: r", [("info", "ExemptionWithoutEnd")]),
        ("users: [a], expires: 2027-01-01T00:00:00Z", [("warning", "ExemptionWithoutReason")]),
        ("users: [a], reason: r, expires: 2026-12-01T14:00:00+02:00", [("warning", "ExemptionExpired")]),
        (f"namespaces: [ai-x], {PLAIN}", [("warning", "ExemptionWholeNamespace")]),
        (f"namespaces: [ai-x], users: [a], {PLAIN}", []),
        (f"groups: ['system:authenticated'], {PLAIN}", [("warning", "ExemptionEverybody")]),
        (f"groups: ['system:authenticated'], users: [a], {PLAIN}", []),
        (f"groups: ['system:serviceaccounts:ai-x'], {PLAIN}", [("warning", "ExemptionByAccount")]),
        (f"serviceAccounts: [ai-x/ci], {PLAIN}", [("warning", "ExemptionByAccount")]),
        (f"serviceAccounts: [kube-system/cleaner], {PLAIN}", []),
        (f"serviceAccounts: [kube-system/job-controller], {PLAIN}", [("warning", "ExemptionController")]),
        (f"users: ['system:kube-controller-manager'], {PLAIN}", [("warning", "ExemptionController")]),
        (f"users: [a], serviceAccounts: [kube-system/b], {PLAIN}", [("error", "ExemptionNeverMatches")]),
        (f"users: ['*'], {PLAIN}", [("warning", "ExemptionWildcard")]),
        (f"users: [a], namespaces: [kube-system], {PLAIN}", [("info", "ExemptionNotNeeded")]),
    ],
)
def test_exemptions(tmp_path: Path, exemption: str, expected: list[tuple[str, str]]) -> None:
    found = lint(policy(tmp_path, rule("r", "a"), f"exemptions: [{{name: e, {exemption}}}]"), None, NOW)
    assert codes(found) == expected


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("breakGlass: {groups: ['system:authenticated']}", "BreakGlassWide"),
        ("breakGlass: {groups: [oncall], maxAge: 2d}", "BreakGlassLong"),
        ("trustedControllers: [alice]", "TrustedControllerNoAccount"),
    ],
)
def test_break_glass_and_trusted_controllers(tmp_path: Path, spec: str, code: str) -> None:
    assert codes(lint(policy(tmp_path, rule("r", "a"), spec), None, NOW)) == [("warning", code)]


# -- against a cluster ------------------------------------------------------------------------------------------------


def node(name: str, pool: str, **gpus: str) -> Node:
    allocatable = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in gpus.items()}
    text = {"metadata": {"name": name, "labels": {"gpu.platform/pool": pool, "accelerator": f"t-{pool}"}}}
    return msgspec.convert(text | {"status": {"allocatable": allocatable}}, Node)


def namespace(name: str, team: str | None) -> Namespace:
    labels = {"gpu.platform/team": team} if team else {}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, Namespace)


def test_b04_class_that_exists_nowhere_has_a_near_name_hint(tmp_path: Path) -> None:
    classes = tuple(msgspec.convert({"metadata": {"name": name}}, PriorityClass) for name in ("gpu-research", "other"))
    text = rule("r", "a", "priorityClassName: gpu-reserch, allowedPriorityClasses: [other, missing]")
    found = lint(policy(tmp_path, text), Cluster(priority_classes=classes), NOW)
    assert codes(found) == [("error", "ClassUnknown")] * 2
    assert found[0].message == "rule r: PriorityClass gpu-reserch does not exist (did you mean gpu-research?)"
    assert found[0].path == "spec.rules[0].priorityClassName"


def test_pools_without_nodes_and_without_gpus(tmp_path: Path) -> None:
    nodes = (node("n1", "training", gpu="8"), node("n2", "cpu"), node("n3", "cpu", gpu="0"))
    found = lint(policy(tmp_path, rule("r", "a", "pools: [training, trainign, cpu]")), Cluster(nodes=nodes), NOW)
    assert codes(found) == [("warning", "PoolUnknown"), ("warning", "PoolWithoutGpu")]
    assert "did you mean training?" in found[0].message


def test_b41_a_pool_of_slices_is_a_pool_with_gpus(tmp_path: Path) -> None:
    nodes = (node("n1", "a", gpu="0", mig_1g="7"),)
    found = lint(policy(tmp_path, rule("r", "a")), Cluster(nodes=nodes), NOW)
    assert "PoolWithoutGpu" not in [each.code for each in found]


def test_gpus_that_the_policy_does_not_list(tmp_path: Path) -> None:
    nodes = (node("n1", "a", gpu="1"), node("n2", "a", gpu_slices="4"))
    found = lint(policy(tmp_path, rule("r", "a")), Cluster(nodes=nodes), NOW)
    assert codes(found) == [("warning", "GpuNotListed")]
    assert "nvidia.com/gpu-slices" in found[0].message


def test_namespaces_that_do_not_exist_or_have_no_rule(tmp_path: Path) -> None:
    exemption = f"exemptions: [{{name: e, users: [x], namespaces: [ai-inferense], {PLAIN}}}]"
    spaces = (namespace("ai-inference", "inference"), namespace("web", None))
    found = lint(policy(tmp_path, rule("r", "inferense"), exemption), Cluster(namespaces=spaces), NOW)
    assert sorted(codes(found)) == [
        ("warning", "NamespaceUnknown"),
        ("warning", "NamespaceWithoutRule"),
        ("warning", "RuleMatchesNoNamespace"),
    ]
    assert "did you mean inference?" in only(found, "RuleMatchesNoNamespace").message
    assert "did you mean ai-inference?" in only(found, "NamespaceUnknown").message
    assert only(found, "NamespaceWithoutRule").path == "Namespace ai-inference"


def test_b30_quota_keys_without_effect_only_where_a_rule_applies(tmp_path: Path) -> None:
    dead = {"limits.nvidia.com/gpu": "1", "nvidia.com/gpu": "1", "requests.nvidia.com/gpu": "1", "requests.cpu": "1"}
    make = {"spec": {"hard": dead}}
    quotas = tuple(
        msgspec.convert({"metadata": {"name": "q", "namespace": where}} | make, ResourceQuota)
        for where in ("one", "two")
    )
    spaces = (namespace("one", "a"), namespace("two", None))
    found = lint(policy(tmp_path, rule("r", "a")), Cluster(namespaces=spaces, quotas=quotas), NOW)
    assert codes(found) == [("warning", "QuotaKeyIneffective")] * 2
    assert {each.path for each in found} == {"ResourceQuota one/q"}
    assert all(each.fix == "use requests.nvidia.com/gpu" for each in found)


# -- prices -----------------------------------------------------------------------------------------------------------

BY_LABEL = "byNodeLabel: [{label: accelerator, value: t-a, price: {nvidia.com/gpu: 3}}]"


def test_prices(tmp_path: Path) -> None:
    nodes = (node("n1", "a", gpu="1"), node("n2", "b", gpu="1", mig_1g="2"), node("n3", "b", mig_1g="2"))
    found = lint(policy(tmp_path, rule("r", "a"), pricing=BY_LABEL), Cluster(nodes=nodes), NOW)
    assert codes(found) == [("warning", "PriceMissing"), ("info", "PriceDefault")]
    assert "nvidia.com/mig-1g of t-b has no price" in found[0].message
    assert Path(found[0].file).name == "pricing.yaml"


def test_prices_for_what_does_not_exist(tmp_path: Path) -> None:
    pricing = "byNodeLabel: [{label: accelerator, value: t_a, price: {nvidia.com/gpus: 3}}]"
    found = lint(policy(tmp_path, rule("r", "a"), pricing=pricing), Cluster(nodes=(node("n", "a", gpu="1"),)), NOW)
    assert "did you mean nvidia.com/gpu?" in only(found, "PriceOfNoGpu").message
    assert "did you mean t-a?" in only(found, "PriceUnused").message


def test_no_price_list_at_all(tmp_path: Path) -> None:
    found = lint(policy(tmp_path, rule("r", "a"), pricing=None), None, NOW)
    assert codes(found) == [("info", "NoPricing")]


# -- how it is said ---------------------------------------------------------------------------------------------------


def test_findings_are_in_the_language_of_the_policy_and_gravest_first(tmp_path: Path) -> None:
    text = rule("r", "a", "priorityClassName: system-x, workloadSelector: {matchLabels: {a: b}}")
    found = lint(policy(tmp_path, text, "language: zh"), None, NOW)
    assert [each.level for each in found] == ["error", "info"]
    assert found[0].message.startswith("规则 r 使用了 system-x")
    assert str(found[0]).startswith(f"{tmp_path / 'policy.yaml'}:6:")


def test_every_code_has_a_message_and_a_fix_and_every_message_a_code() -> None:
    sources = "".join(path.read_text() for path in Path(lint_module.__file__).parent.glob("lint_*.py"))
    for key in catalogue("en"):
        section, _, name = key.partition(".")
        if section == "lint" and not name.endswith("_fix"):
            code = "".join(part.capitalize() for part in name.split("_"))
            assert f'"{code}"' in sources, code
            assert f"lint.{name}_fix" in catalogue("en")
