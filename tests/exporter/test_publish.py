"""Files that other programs read while they are written: whole, without BOM, and harmless inside a page."""

import json
from pathlib import Path

import pytest

from webhook.exporter import publish

HOSTILE = '</script><script>alert(1)</script><!-- \u2028\u2029 "\\'


def test_b65_no_message_can_end_the_script_or_the_line() -> None:
    script = publish.as_js(publish.as_json({"message": HOSTILE})).decode()
    body = script.removeprefix("window.CLUSTER_STATUS = ").removesuffix(";\n")
    assert not any(character in body for character in "<>\u2028\u2029")
    assert json.loads(body) == {"message": HOSTILE}, "the same object as in the JSON file"


def test_both_files_hold_the_same_object_without_a_bom(tmp_path: Path) -> None:
    publish.publish(tmp_path, publish.as_json({"name": "值", "n": 4.1}))
    raw = (tmp_path / publish.JSON_NAME).read_bytes()
    assert raw[:1] == b"{" and json.loads(raw) == {"name": "值", "n": 4.1}
    script = (tmp_path / publish.JS_NAME).read_text(encoding="utf-8")
    assert script.startswith("window.CLUSTER_STATUS = {") and script.rstrip().endswith("};")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.json"
    publish.write_atomically(target, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        publish.write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_the_dashboard_is_copied_whole(tmp_path: Path) -> None:
    publish.copy_dashboard(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(publish.DASHBOARD)


def test_the_list_of_files_is_what_lies_in_the_folder() -> None:
    folder = Path(publish.__file__).parent / "dashboard"
    assert {path.name for path in folder.iterdir()} == set(publish.DASHBOARD)
    with pytest.raises(FileNotFoundError):
        publish.dashboard_file("../publish.py")
