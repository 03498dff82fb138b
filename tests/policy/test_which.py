"""Which rule applies to a namespace, and why the others do not."""

from pathlib import Path

from webhook.policy.load import load
from webhook.policy.which import Which, which

LABEL = "gpu.platform/team"
POLICY = """\
apiVersion: gpu.platform/v1
kind: GpuPolicy
metadata: {name: p}
spec:
  rules:
    - name: gold
      namespaceSelector: {matchLabels: {gpu.platform/team: a}}
      workloadSelector: {matchLabels: {tier: gold}}
      pools: [gold]
    - {name: plain, namespaceSelector: {matchLabels: {gpu.platform/team: a}}, pools: [plain], priorityClassName: low}
    - {name: zoned, namespaceSelector: {matchExpressions: [{key: zone, operator: In, values: [x, y]}]}, pools: [z]}
    - {name: rest, namespaceSelector: {}, pools: [rest], mode: audit}
"""


def answer(tmp_path: Path, namespace: str = "ai-a", **labels: str) -> Which:
    (tmp_path / "policy.yaml").write_text(POLICY)
    named = {key.replace("team", LABEL): value for key, value in labels.items()}
    return which(load(tmp_path, "gpu-webhook"), namespace, named, LABEL)


def test_each_rule_says_why_it_applies_or_not(tmp_path: Path) -> None:
    found = answer(tmp_path, team="a", zone="z")
    assert [(each.rule, each.state, each.why) for each in found.rules] == [
        ("gold", "depends", "applies to pods with tier=gold"),
        ("plain", "applies", "mode enforce; priorityClassName low; pools plain"),
        ("zoned", "no", "zone is z, wants In x, y"),
        ("rest", "later", "matches too, but plain comes first"),
    ]
    assert found.is_covered


def test_a_missing_label_and_a_catch_all(tmp_path: Path) -> None:
    found = answer(tmp_path, team="b")
    assert [each.state for each in found.rules] == ["no", "no", "no", "applies"]
    assert found.rules[0].why == "gpu.platform/team is b, wants a"
    assert found.rules[3].why == "mode audit; pools rest"


def test_namespaces_that_are_never_judged_or_never_sent(tmp_path: Path) -> None:
    assert "never judged" in answer(tmp_path, "kube-system", team="a").note
    assert "never judged" in answer(tmp_path, "gpu-webhook", team="a").note
    unlabelled = answer(tmp_path, zone="x")
    assert "has no label gpu.platform/team" in unlabelled.note
    assert not unlabelled.is_covered
