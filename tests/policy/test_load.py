"""Loading a policy folder: what is wrong is said with file, line, column, path and a hint, all of it at once."""

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webhook.policy.load import load, load_documents
from webhook.policy.model import GpuPolicy
from webhook.policy.problem import PolicyError, Problem

SHIPPED = Path(__file__).parents[2] / "policies"
POLICY = """\
apiVersion: gpu.platform/v1
kind: GpuPolicy
metadata:
  name: default
spec:
  rules:
    - name: training
      namespaceSelector: {matchLabels: {gpu.platform/team: training}}
      priorityClassName: gpu-training
      pools: [training]
  contact: "#gpu-platform"
"""
PRICING = "apiVersion: gpu.platform/v1\nkind: GpuPricing\nmetadata: {name: p}\nspec: {default: 3}\n"


def problems_of(folder: Path, text: str | bytes, name: str = "policy.yaml") -> list[Problem]:
    """The problems of a folder with one file; its name is shown without the folder."""
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PolicyError) as error:
        load(folder)
    return error.value.problems


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


def with_line(text: str, after: str = "  contact: ") -> str:
    """The good policy with one more line before the contact."""
    return POLICY.replace(after, f"{text}\n{after}")


# -- what loads -------------------------------------------------------------------------------------------------------


def test_the_shipped_policy_loads_with_its_pricing_and_its_tests() -> None:
    documents = load_documents(SHIPPED)
    assert [rule.name for rule in documents.policy.value.spec.rules] == ["inference", "training", "research"]
    assert documents.pricing is not None
    assert documents.pricing.value.spec.default == 2.40
    assert documents.tests


def test_only_yaml_files_of_the_folder_itself_are_read(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "pricing.yml").write_text(PRICING)
    (tmp_path / "notes.txt").write_text("kind: nonsense")
    (tmp_path / ".#policy.yaml").write_text("an editor's lock")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.yaml").write_text(POLICY)
    policy = load(tmp_path)
    assert policy.pricing is not None
    assert policy.pricing.spec.default == 3


def test_every_rule_knows_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    places = load(tmp_path).places
    assert places["spec.rules[0].pools[0]"] == (str(tmp_path / "policy.yaml"), 10, 15)
    assert places["spec.rules[0].tolerations[3].key"].line == 7, "what is not written has the place of its parent"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_from_windows_load_the_same(tmp_path: Path, encoding: str) -> None:
    """BOM, CRLF and UTF-16 with BOM: the revision is that of the plain file."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    plain = load(tmp_path).revision
    (tmp_path / "policy.yaml").write_bytes(POLICY.replace("\n", "\r\n").encode(encoding))
    assert load(tmp_path).revision == plain


def test_the_revision_is_that_of_the_meaning_not_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    before = load(tmp_path).revision
    (tmp_path / "policy.yaml").write_text("# a comment\n" + with_line("  mode: enforce"))
    assert load(tmp_path).revision == before
    (tmp_path / "policy.yaml").write_text(with_line("  mode: audit"))
    assert load(tmp_path).revision != before


def test_a_mounted_config_map_is_read_behind_one_data_link(tmp_path: Path) -> None:
    """B71: all files come from the same version, whatever the links in the folder say at that moment."""
    for version, text in (("..1", POLICY), ("..2", POLICY.replace("training", "research"))):
        (tmp_path / version).mkdir()
        (tmp_path / version / "policy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..2")
    (tmp_path / "policy.yaml").symlink_to("..1/policy.yaml")
    policy = load(tmp_path)
    assert policy.rules[0].rule.name == "research"
    assert policy.places["spec"].file == str(tmp_path / "policy.yaml"), "the admin's name for it, not the version's"


def test_explicit_null_means_absent_where_absent_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.replace("pools: [training]", "pools: null"))
    assert load(tmp_path).rules[0].rule.pools is None


# -- B69: keys --------------------------------------------------------------------------------------------------------


def test_b69_unknown_key_names_place_and_nearest_key(tmp_path: Path) -> None:
    problem = only(problems_of(tmp_path, POLICY.replace("priorityClassName", "prorityClassName")))
    assert (problem.line, problem.column, problem.path) == (9, 7, "spec.rules[0].prorityClassName")
    assert problem.hint == "did you mean priorityClassName?"
    assert str(problem).startswith(f"{tmp_path / 'policy.yaml'}:9:7: spec.rules[0].prorityClassName: unknown key")


@pytest.mark.parametrize("spelling", ["priority_class_name", "PriorityClassName", "priority-class-name"])
def test_b69_other_spellings_are_recognised(tmp_path: Path, spelling: str) -> None:
    assert "priorityClassName" in only(problems_of(tmp_path, POLICY.replace("priorityClassName", spelling))).hint


def test_b69_duplicate_key_names_both_lines(tmp_path: Path) -> None:
    problem = only(problems_of(tmp_path, with_line("      pools: [other]")))
    assert problem.message == "key pools appears twice: line 10 and line 11"
    assert problem.line == 11


def test_b69_duplicate_labels_are_duplicates_too(tmp_path: Path) -> None:
    text = POLICY.replace("{gpu.platform/team: training}", "{gpu.platform/team: a, gpu.platform/team: b}")
    assert "appears twice" in only(problems_of(tmp_path, text)).message


def test_b69_mis_indented_selector_never_matches_everything(tmp_path: Path) -> None:
    text = POLICY.replace("{matchLabels: {gpu.platform/team: training}}", "\n      matchLabels: {a: b}")
    problems = problems_of(tmp_path, text)
    assert [problem.path for problem in problems] == ["spec.rules[0].namespaceSelector", "spec.rules[0].matchLabels"]
    assert "found nothing" in problems[0].message
    assert problems[1].hint.startswith("write matchLabels below spec.rules[0].namespaceSelector")


def test_b69_key_indented_too_far(tmp_path: Path) -> None:
    problem = only(problems_of(tmp_path, with_line("      trustedControllers: [x]")))
    assert problem.hint == "trustedControllers belongs one level up: it is indented too far"


def test_b69_merge_keys_are_refused_by_name(tmp_path: Path) -> None:
    problem = only(problems_of(tmp_path, with_line("      <<: {mode: audit}")))
    assert "merge keys (<<) are not supported" in problem.message
    assert problem.line == 11
    merged = "    - &first\n      name: a\n      namespaceSelector: {}\n    - <<: *first\n      name: b\n"
    problem = only(problems_of(tmp_path, POLICY[: POLICY.index("    - ")] + merged))
    assert problem.hint == "write the keys out where they apply", "what it would have brought is not missing as well"


def test_b69_anchors_may_be_used_but_a_bomb_stops(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        POLICY.replace("pools: [training]", "pools: [&pool training]\n      allowedPriorityClasses: [*pool]")
    )
    assert load(tmp_path).rules[0].rule.allowed_priority_classes == ("training",)
    levels = ", ".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefg", "bcdefgh", strict=True))
    bomb = (
        "apiVersion: gpu.platform/v1\nkind: GpuPolicyTest\nmetadata: {name: t}\nspec:\n  cases:\n"
        f"    - {{name: c, expect: {{}}, given: {{objects: [{{a: &a [1, 1], {levels}}}]}}}}\n"
    )
    assert "with anchors expanded" in only(problems_of(tmp_path, bomb, "tests.yaml")).message


def test_b69_an_anchor_that_holds_itself_stops(tmp_path: Path) -> None:
    text = "apiVersion: gpu.platform/v1\nkind: GpuPolicyTest\nmetadata: {name: t}\nspec:\n  cases:\n"
    text += "    - {name: c, expect: {}, given: {objects: [&a {a: *a}]}}\n"
    assert "levels" in only(problems_of(tmp_path, text, "tests.yaml")).message


# -- types ------------------------------------------------------------------------------------------------------------


def test_several_errors_are_reported_at_once_in_order_of_the_file(tmp_path: Path) -> None:
    text = POLICY.replace("pools: [training]", "pools: training").replace("name: training", "name: 7")
    problems = problems_of(tmp_path, text.replace("contact", "contct"))
    assert [(problem.line, problem.hint) for problem in problems] == [
        (7, 'put it in quotes: "7"'),
        (10, "write [training]"),
        (11, "did you mean contact?"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  mode: enforced", "enforced is not one of audit, enforce, warn"),
        ("  mode: [audit]", "expected text, found a list"),
        ("  quota: deny", "expected a mapping, found text deny"),
        ("  workloads: {Pod: true}", "expected a list, found a mapping"),
        ("  contact: true", "expected text, found true"),
        ("  gpuResources:", "expected a list, found nothing"),
        ("  breakGlass: {maxAge: 4 hours}", "4 hours is no usable time; write for example 4h"),
        ("  breakGlass: {maxAge: 0s}", "0s is no usable time"),
        ("  breakGlass: {maxAge: 999999999d}", "999999999d is no usable time"),
        ("  exemptions: [{name: a, users: [b], expires: tomorrow}]", "tomorrow is not a time"),
        ("  exemptions: [{name: a, users: [b], expires: 2027-01-01T00:00:00}]", "has no time zone"),
        ("  exemptions: [{name: a, users: [b], expires: 2027-01-01}]", "2027-01-01 is not a time"),
        ("  poolLabel: !!python/name:os.system x", "the tag python/name:os.system is not supported"),
        ('  contact: "a\\e[31mb"', "control character U+001B is not allowed here"),
        ('  contact: "\\ud800"', "control character U+D800 is not allowed here"),
        ('  contact: "\\UFFFFFFFF"', "an escape in this text is no character"),
        ("  1: 2", "the key 1 is not text"),
    ],
)
def test_wrong_types_say_what_was_expected(tmp_path: Path, line: str, message: str) -> None:
    text = POLICY.replace('  contact: "#gpu-platform"\n', "") + line + "\n"
    assert message in only(problems_of(tmp_path, text)).message


@pytest.mark.parametrize("value", [".nan", ".inf", "-1", "1e400", "0b", "free"])
def test_prices_are_finite_and_not_negative(tmp_path: Path, value: str) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert problems_of(tmp_path, PRICING.replace("3", value), "pricing.yaml")[0].path == "spec.default"


def test_problems_are_in_the_language_of_the_policy(tmp_path: Path) -> None:
    problem = only(problems_of(tmp_path, with_line("  language: zh\n  mod: audit")))
    assert problem.message == "未知的键 mod"
    assert problem.hint == "是否想写 mode？"


# -- what no policy may say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "path", "message"),
    [
        ("  exemptions: [{name: all, reason: r}]", "spec.exemptions[0]", "would exempt everybody"),
        ("  exemptions: [{name: a, users: ['']}]", "spec.exemptions[0].users[0]", "must not be empty"),
        ("  exemptions: [{name: a, serviceAccounts: [b]}]", "spec.exemptions[0].serviceAccounts[0]", "namespace/name"),
        ("  exemptions: [{name: break-glass/x, users: [b]}]", "spec.exemptions[0].name", "must not contain a /"),
        ("  exemptions: [{name: a, users: [b]}, {name: a, users: [c]}]", "spec.exemptions[1].name", "already used"),
        ("  poolLabel: gpu platform", "spec.poolLabel", "is not a label key"),
        ("  gpuResources: ['*']", "spec.gpuResources[0]", "is not a resource name"),
        ("  gpuResources: ['nvidia.com/*-gpu']", "spec.gpuResources[0]", "is not a resource name"),
        ("      tolerations: [{operator: Equal}]", "spec.rules[0].tolerations[0]", "needs operator: Exists"),
        ("      tolerations: [{key: a, operator: Exists, value: b}]", "spec.rules[0].tolerations[0].value", "no value"),
        (
            "      tolerations: [{key: a, tolerationSeconds: 3}]",
            "spec.rules[0].tolerations[0].tolerationSeconds",
            "needs effect: NoExecute",
        ),
        ("      allowedPriorityClasses: [GPU]", "spec.rules[0].allowedPriorityClasses[0]", "object name"),
        (
            "      workloadSelector: {matchExpressions: [{key: a, operator: In}]}",
            "spec.rules[0].workloadSelector.matchExpressions[0]",
            "operator In needs at least one value",
        ),
        (
            "      workloadSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
            "spec.rules[0].workloadSelector.matchExpressions[0].values",
            "operator Exists takes no values",
        ),
        ("      workloadSelector: {matchLabels: {a: b c}}", "spec.rules[0].workloadSelector.matchLabels[a]", "value"),
        ("    - {name: training, namespaceSelector: {}}", "spec.rules[1].name", "already used by spec.rules[0]"),
    ],
)
def test_semantic_errors(tmp_path: Path, line: str, path: str, message: str) -> None:
    problem = only(problems_of(tmp_path, with_line(line)))
    assert problem.path == path
    assert message in problem.message


def test_a_rule_without_any_pool_is_not_a_rule_that_leaves_placement_alone(tmp_path: Path) -> None:
    assert "no pool is named" in only(problems_of(tmp_path, POLICY.replace("[training]", "[]"))).message


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"", (0, 0), "the file holds no document"),
        (b"# only a comment\n", (0, 0), "the file holds no document"),
        (POLICY.encode("utf-16-le"), (1, 1), "the file is in UTF-16 / UTF-32"),
        (POLICY.encode("utf-32"), (1, 1), "the file is in UTF-32"),
        (POLICY.encode() + b"  # caf\xe9\n", (12, 8), "byte 0xe9 is not UTF-8"),
        (POLICY.encode() + b"\x00", (12, 1), "character U+0000 is not allowed"),
        (POLICY.encode() + b"\tmode: audit\n", (12, 1), "tab"),
        (POLICY.encode()[:180] + b" {", (9, 6), "not valid YAML"),
        (b"[" * 3_000, (1, None), "nested too deeply"),
        (b"- a\n- b\n", (1, 1), "expected a mapping with apiVersion and kind"),
        (b"a: b\n", (1, 1), "kind is missing"),
        (POLICY.replace("kind: GpuPolicy", "kind: GpuPolicies").encode(), (2, 7), "unknown kind GpuPolicies"),
        (POLICY.replace("gpu.platform/v1", "gpu.platform/v2").encode(), (1, 13), "gpu.platform/v2 is not one of"),
        (b"x: '" + b"a" * 1_100_000 + b"'", (0, 0), "at most 1048576"),
    ],
)
def test_files_that_are_no_policy(tmp_path: Path, data: bytes, place: tuple[int, int | None], message: str) -> None:
    problem = only(problems_of(tmp_path, data))
    assert message in problem.message
    assert problem.line == place[0]
    assert place[1] is None or problem.column == place[1]


@pytest.mark.parametrize("length", range(0, len(POLICY), 7))
def test_b71_a_half_written_file_is_refused_or_is_shorter_but_whole(tmp_path: Path, length: int) -> None:
    """Cut anywhere, a file either fails with a problem that names it, or was whole without what was cut off."""
    (tmp_path / "policy.yaml").write_text(POLICY[:length])
    try:
        policy = load(tmp_path)
    except PolicyError as error:
        assert all(problem.file.startswith(str(tmp_path)) for problem in error.problems)
    else:
        assert policy.rules[0].rule.priority_class_name is not None or "priorityClassName" not in POLICY[:length]


def test_b71_missing_folder_empty_folder_and_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="could not be read: No such file or directory"):
        load(tmp_path / "missing")
    with pytest.raises(PolicyError, match="no GpuPolicy in this folder"):
        load(tmp_path)
    (tmp_path / "policy.yaml").symlink_to("gone.yaml")
    with pytest.raises(PolicyError, match=r"policy\.yaml: the file could not be read"):
        load(tmp_path)
    (tmp_path / "policy.yaml").unlink()
    (tmp_path / "..data").symlink_to("..data")
    with pytest.raises(PolicyError, match="could not be read"):
        load(tmp_path)


def test_a_folder_holds_one_policy_and_at_most_one_price_list(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POLICY + "---\n" + PRICING)
    (tmp_path / "b.yaml").write_text(PRICING)
    problem = only(problems_of(tmp_path, POLICY, "c.yaml")[1:])
    assert (
        problem.message == f"a second GpuPolicy; the first is at {tmp_path / 'a.yaml'}:1, and a folder holds only one"
    )


def test_problems_of_all_files_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [\n")
    problems = problems_of(tmp_path, with_line("  mod: audit") + "---\n" + PRICING.replace("3", "free"), "b.yaml")
    assert [Path(problem.file).name for problem in problems] == ["a.yaml", "b.yaml", "b.yaml"]


# -- whatever an editor leaves behind ---------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        "<<: *x",
        "&x ",
        "*x",
        "!!int ",
        "? ",
        "- ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        "\n",
        "\n\n  ",
        "\t",
        "#",
        ">",
        "null",
        "~",
        "yes",
        "0x1F",
        "4:30",
        "1e999",
        ".nan",
        "2027-01-01",
        "\x00",
        "\x85",
        "\u2028",
        "\ufeff",
        "\ud7ff",
        "%YAML 1.1\n",
        "---\n",
        "...\n",
        "=",
        "\\UFFFFFFFF",
        '"\\ud800"',
        "spec:",
        "kind: GpuPolicy\n",
    ]
)
_RICH = with_line(
    "  exemptions:\n    - {name: sre, users: [a], groups: [b], expires: 2027-01-01T00:00:00Z}\n"
    "  breakGlass: {maxAge: 4h}\n  quota: {onExceeded: warn, waitingKinds: [Job]}"
)


@settings(max_examples=500, deadline=None)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(_RICH)), st.integers(0, 12), _PIECES | st.text(alphabet=string.printable, max_size=4)
        ),
        min_size=1,
        max_size=5,
    ),
    tail=st.binary(max_size=3),
)
def test_random_mutations_never_crash_the_loader(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int, str]], tail: bytes
) -> None:
    """Only PolicyError, with problems that print; never a stack trace, never a document of another type."""
    text = _RICH
    for position, removed, inserted in edits:
        text = text[:position] + inserted + text[position + removed :]
    folder = tmp_path_factory.mktemp("mutated")
    (folder / "policy.yaml").write_bytes(text.encode("utf-8", errors="surrogatepass") + tail)
    try:
        assert isinstance(load(folder).document, GpuPolicy)
    except PolicyError as error:
        assert error.problems
        assert str(error).encode()
