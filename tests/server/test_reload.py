"""The policy changes while it serves: whole, soon, and never for the worse (B71, B69, rule 7)."""

import base64
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.clients import Answer
from tests.server.serving import Serving, wait_until
from tests.server.standin import golden
from webhook.audit.replay import Replay, replay
from webhook.certs.issue import LocalFiles
from webhook.policy.load import load as load_policy
from webhook.policy.problem import PolicyError
from webhook.server import reload
from webhook.server.reload import PolicyFolder, lone_mounts

POLICY = """\
apiVersion: gpu.platform/v1
kind: GpuPolicy
metadata: {name: NAME}
spec:
  rules:
    - name: all
      namespaceSelector: {}
      priorityClassName: CLASS
"""


def document(name: str = "one", priority_class: str = "gpu-training") -> str:
    return POLICY.replace("NAME", name).replace("CLASS", priority_class)


def mount(root: Path, version: str, text: str) -> None:
    """What the kubelet does with a ConfigMap: a new folder, then one rename of the `..data` link."""
    data = root / f"..{version}"
    data.mkdir(parents=True)
    (data / "policy.yaml").write_text(text)
    temporary = root / "..data_tmp"
    temporary.symlink_to(data.name)
    temporary.replace(root / "..data")
    if not (root / "policy.yaml").is_symlink():
        (root / "policy.yaml").symlink_to("..data/policy.yaml")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(document())
    return tmp_path


def look(folder: PolicyFolder) -> None:
    """As often as it takes for a change to be live."""
    folder.look()
    folder.look()


def name_after_look(folder: PolicyFolder) -> str:
    look(folder)
    return folder.policy.name


def test_b71_a_swap_of_the_data_link_is_noticed(tmp_path: Path) -> None:
    mount(tmp_path, "first", document("one"))
    folder = PolicyFolder(tmp_path)
    before = folder.policy
    assert name_after_look(folder) == "one"
    assert folder.policy is before
    mount(tmp_path, "second", document("two"))
    assert name_after_look(folder) == "two"
    assert folder.policy.revision != before.revision or folder.policy.name != before.name


def test_b71_two_swaps_within_a_second_end_at_the_last(tmp_path: Path) -> None:
    mount(tmp_path, "first", document("one"))
    folder = PolicyFolder(tmp_path)
    mount(tmp_path, "second", document("two"))
    mount(tmp_path, "third", document("three"))
    assert name_after_look(folder) == "three"


def test_b71_a_plain_folder_of_several_files(plain: Path) -> None:
    folder = PolicyFolder(plain)
    (plain / "pricing.yml").write_text(
        "apiVersion: gpu.platform/v1\nkind: GpuPricing\nmetadata: {name: p}\nspec: {default: 3.0}\n"
    )
    look(folder)
    assert folder.policy.pricing is not None
    (plain / "pricing.yml").unlink()
    look(folder)
    assert folder.policy.pricing is None


def test_b71_an_invalid_policy_keeps_the_last_good_one_and_says_so_once(
    plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = PolicyFolder(plain)
    good = folder.policy
    (plain / "policy.yaml").write_text(document("two").replace("priorityClassName", "prorityClassName"))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            look(folder)
    assert folder.policy is good
    assert folder.error is not None
    assert "prorityClassName" in folder.error
    assert len([line for line in caplog.records if line.levelno == logging.ERROR]) == 1
    [reason] = folder.reasons()
    assert "stays in force" in reason
    assert "\n" not in reason
    (plain / "policy.yaml").write_text(document("three"))
    assert name_after_look(folder) == "three"
    assert (folder.error, list(folder.reasons())) == (None, [])


@pytest.mark.parametrize("harm", ["missing", "half", "empty", "folder gone", "binary"])
def test_b71_missing_or_half_written_files_keep_the_last_good_one(plain: Path, harm: str) -> None:
    folder = PolicyFolder(plain)
    good, path = folder.policy, plain / "policy.yaml"
    if harm == "missing":
        path.unlink()
    elif harm == "folder gone":
        plain.rename(plain.with_name("elsewhere"))
    else:
        path.write_bytes({"half": document().encode()[:90], "empty": b"", "binary": b"\xff\x00\xfe"}[harm])
    look(folder)
    assert folder.policy is good
    assert folder.error


def test_b71_half_a_file_that_is_a_policy_with_fewer_rules_never_takes_effect(plain: Path) -> None:
    """A writer that pauses between two writes: at the pause the file is good YAML and a good policy."""
    folder = PolicyFolder(plain)
    whole = document("two") + "    - name: second\n      namespaceSelector: {}\n"
    with (plain / "policy.yaml").open("w") as file:
        file.write(document("two"))
        file.flush()
        folder.look()
        assert folder.policy.name == "one"
        file.write(whole.removeprefix(document("two")))
    folder.look()
    assert folder.policy.name == "one", "it has just changed again"
    folder.look()
    assert (folder.policy.name, len(folder.policy.rules), folder.changes) == ("two", 2, 1)


def test_b69_duplicate_keys_never_take_effect(plain: Path) -> None:
    folder = PolicyFolder(plain)
    good = folder.policy
    (plain / "policy.yaml").write_text(document("two") + "      priorityClassName: other\n")
    look(folder)
    assert folder.policy is good
    assert folder.error


def test_what_was_read_in_the_middle_of_a_change_is_read_again(plain: Path) -> None:
    """A file that was good before and after, but not when it was read, must not stay refused."""
    real, fails = reload.load, [False, True, False]

    def flaky(directory: Path, own: str) -> reload.Policy:
        if fails.pop(0):
            (directory / "policy.yaml").write_text(document("three"))  # the next writer was quicker
            raise PolicyError([])
        return real(directory, own)

    folder = PolicyFolder(plain, loader=flaky)
    (plain / "policy.yaml").write_text(document("two"))
    look(folder)
    assert folder.policy.name == "one"
    assert name_after_look(folder) == "three"


def test_a_fault_of_the_loader_does_not_end_the_watch(plain: Path) -> None:
    results: list[Callable[[], None]] = []

    def broken(directory: Path, own: str) -> reload.Policy:
        if results:
            raise ZeroDivisionError
        results.append(lambda: None)
        return reload.load(directory, own)

    folder = PolicyFolder(plain, loader=broken)
    (plain / "policy.yaml").write_text(document("two"))
    look(folder)
    assert folder.error is not None
    assert "ZeroDivisionError" in folder.error


def test_there_must_be_a_good_policy_to_start_with(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        PolicyFolder(tmp_path)


@pytest.fixture
def watched(plain: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PolicyFolder, threading.Event]]:
    monkeypatch.setattr(reload, "LOOK_EVERY", 0.02)
    folder, changed = PolicyFolder(plain), threading.Event()
    folder.start(changed.set)
    yield folder, changed
    folder.stop()


def test_the_watch_takes_changes_over_by_itself_and_tells(
    plain: Path, watched: tuple[PolicyFolder, threading.Event]
) -> None:
    folder, changed = watched
    (plain / "policy.yaml").write_text(document("two"))
    assert changed.wait(5)
    assert (folder.policy.name, folder.changes) == ("two", 1)


def test_no_reader_ever_sees_half_a_policy(plain: Path, watched: tuple[PolicyFolder, threading.Event]) -> None:
    """Name and class change together in the file; whoever takes the reference sees one or the other."""
    folder, _ = watched
    torn: list[str] = []
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            policy = folder.policy
            if policy.spec.rules[0].priority_class_name != f"class-of-{policy.name}" and policy.name != "one":
                torn.append(policy.name)

    readers = [threading.Thread(target=reader) for _ in range(2)]
    for thread in readers:
        thread.start()
    for number in range(20):
        staged = plain / ".staged"
        staged.write_text(document(f"p{number}", f"class-of-p{number}"))
        staged.replace(plain / "policy.yaml")
        look(folder)
    done.set()
    for thread in readers:
        thread.join()
    assert torn == []
    assert folder.changes > 0


SHIPPED = (Path(__file__).parents[2] / "policies" / "default.yaml").read_text()
VERSIONS = {
    "gpu-training": ("training", SHIPPED),
    "gpu-batch-low": ("h100", SHIPPED.replace("gpu-training", "gpu-batch-low").replace("[training]", "[h100]")),
}
"""Injected class -> injected pool and text: two policies that differ in both."""


def test_b71_reload_under_load_no_error_and_no_request_judged_by_half_a_policy(
    tmp_path: Path, files: LocalFiles
) -> None:
    """A mounted ConfigMap is swapped again and again while four clients ask on kept connections."""
    root = tmp_path / "mounted"
    mount(root, "0", VERSIONS["gpu-training"][1])
    answers: list[Answer] = []
    stop = threading.Event()
    with Serving(tmp_path, files, root) as serving, serving.client() as client:

        def load() -> None:
            with serving.client() as mine:
                while not stop.is_set():
                    answers.append(mine.post("/mutate", golden("pod-create")))

        with ThreadPoolExecutor(4) as clients:
            loads = [clients.submit(load) for _ in range(4)]
            try:
                for number, name in enumerate(("gpu-batch-low", "gpu-training", "gpu-batch-low"), start=1):
                    mount(root, str(number), VERSIONS[name][1])
                    wait_until(lambda name=name: placed(client.post("/mutate", golden("pod-create")))[0] == name, 5)
            finally:
                stop.set()
            for each in loads:
                each.result()
    assert {placed(answer) for answer in answers} == {(name, pool) for name, (pool, _) in VERSIONS.items()}
    records = [line for path in serving.audit.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    for version, (_, text) in VERSIONS.items():
        (tmp_path / version).mkdir()
        (tmp_path / version / "policy.yaml").write_text(text)
    old, new = (load_policy(tmp_path / version) for version in VERSIONS)
    found = Replay()
    for piece in replay(records, new, old):
        found.add(piece)
    assert found.in_force == found.judged == len(records) > len(answers)
    assert found.mismatches == []


def placed(answer: Answer) -> tuple[str, str]:
    """The class and the pool that an answer injects."""
    assert answer.status == 200
    patch = json.loads(base64.b64decode(answer.json["response"]["patch"]))
    [name] = [each["value"] for each in patch if each["path"] == "/spec/priorityClassName"]
    [pool] = re.findall(r'"key": "gpu.platform/pool", "operator": "In", "values": \["([^"]+)"\]', json.dumps(patch))
    return name, pool


def test_b71_a_lone_bind_mount_is_warned_of(plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [
        "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
        f"99 22 8:1 /pods/x {plain}/policy.yaml ro - ext4 /dev/sda1 rw",
        f"98 22 8:1 /pods/y {plain}/readme.md ro - ext4 /dev/sda1 rw",
        "97 22 8:1 /pods/z /etc/a\\040b/policy.yaml ro - ext4 /dev/sda1 rw",
        "",
    ]
    table = tmp_path / "mountinfo"
    table.write_text("\n".join(lines))
    assert lone_mounts(plain, table) == [plain / "policy.yaml"]
    assert lone_mounts(Path("/etc/a b"), table) == [Path("/etc/a b/policy.yaml")]
    assert lone_mounts(plain, tmp_path / "no such file") == []
    assert lone_mounts(plain) == []
