"""`gpu-webhook audit`: what is printed, the exit codes, and hostile text."""

import csv
import fcntl
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.audit.samples import NOW, body, write_stream
from webhook.audit import checkpoint as checkpoints
from webhook.audit.ledger import Ledger
from webhook.audit.segments import segments_in
from webhook.cli.audit import printable, spreadsheet_safe
from webhook.cli.main import main


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)], input=stdin)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Ledger(tmp_path, host="pod") as ledger:
        for number in range(1, 11):
            ledger.append(body(number, "deny" if number % 5 == 0 else "allow", now=NOW + number))
    return tmp_path


def only_segment(folder: Path) -> Path:
    return next(iter(segments_in(folder.iterdir()).values()))[0].path


# -- query ------------------------------------------------------------------------------------------------------------


def test_query_prints_a_table_of_matches(folder: Path) -> None:
    result = run("query", "--audit", folder, "--verdict", "deny")
    assert result.exit_code == 0
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["TIME", "VERDICT", "NAMESPACE", "OBJECT", "USER", "RULE", "FINDINGS"]
    assert first.split()[:6] == [
        "2026-12-01T08:15:35.123Z",
        "deny",
        "ai-training",
        "Deployment/train-5",
        "alice",
        "training",
    ]
    assert first.endswith("QuotaExceeded: about 5")
    assert "train-10" in second


def test_query_prints_records_as_they_are_with_json(folder: Path) -> None:
    result = run("query", "--audit", folder, "-o", "json")
    assert result.stdout_bytes == only_segment(folder).read_bytes()


def test_query_prints_csv_with_a_header(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("query", "--audit", folder, "-n", "ai-training", "-o", "csv").stdout)))
    assert len(rows) == 10
    assert (rows[4]["verdict"], rows[4]["name"], rows[4]["codes"]) == ("deny", "train-5", "QuotaExceeded")


def test_query_by_time_and_the_other_conditions(folder: Path) -> None:
    options = (
        "--since",
        "2026-12-01T08:15:33Z",
        "--until",
        "2026-12-01T08:15:36Z",
        "--user",
        "alice",
        "--kind",
        "Deployment",
    )
    result = run("query", "--audit", folder, *options, "--rule", "training", "-o", "json")
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [3, 4, 5]
    assert run("query", "--audit", folder, "--code", "NotPlaced").stdout.count("\n") == 1


def test_query_reads_stdin_and_several_sources(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_stream(other, 3)
    result = run("query", "--audit", "-", "--audit", other, "-o", "json", stdin=only_segment(folder).read_bytes())
    assert len(result.stdout.splitlines()) == 13


def test_query_tells_damaged_lines_on_stderr(folder: Path) -> None:
    with only_segment(folder).open("ab") as file:
        file.write(b'{"schema":"gpu.platform/audit.v1","time":\n')
    result = run("query", "--audit", folder)
    assert result.exit_code == 0
    assert "1 damaged lines were skipped" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("query",),
        ("query", "--audit", "/nowhere/at/all"),
        ("query", "--audit", ".", "--since", "yesterday"),
        ("query", "--audit", ".", "--verdict", "perhaps"),
        ("verify", "--audit", "/nowhere/at/all"),
        ("summary", "--audit", "/nowhere/at/all"),
        ("tail", "--audit", "/nowhere/at/all"),
    ],
)
def test_bad_usage_and_unreadable_input_exit_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


# -- summary ----------------------------------------------------------------------------------------------------------


def test_summary_as_a_table_and_as_json(folder: Path) -> None:
    text = run("summary", "--audit", folder).stdout
    assert "10 records, 2026-12-01T08:15:31.123Z to 2026-12-01T08:15:40.123Z (0 dry runs, not counted)" in text
    assert "admitted 8, denied 2" in text
    assert "Deployment/train-5" in text
    data = json.loads(run("summary", "--audit", folder, "-o", "json").stdout)
    assert (data["admitted"], data["denied"]) == (8, 2)
    assert data["refusedUsers"] == [{"name": "alice", "count": 2}]
    assert data["codes"] == [{"name": "QuotaExceeded", "count": 2}]


# -- tail -------------------------------------------------------------------------------------------------------------


def test_tail_shows_the_latest(folder: Path) -> None:
    result = run("tail", "--audit", folder, "--lines", "3", "-o", "json")
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [8, 9, 10]
    assert run("tail", "--audit", folder, "--lines", "0").stdout.count("\n") == 1


def test_tail_of_stdin(folder: Path) -> None:
    result = run("tail", "--audit", "-", "--lines", "2", "-o", "json", stdin=only_segment(folder).read_bytes())
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [9, 10]


def test_tail_f_follows_through_rename_rotation_and_ends_with_0(folder: Path) -> None:
    path = folder / "audit.jsonl"
    lines = only_segment(folder).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    command = [
        sys.executable,
        "-m",
        "webhook",
        "audit",
        "tail",
        "-f",
        "--lines",
        "1",
        "--audit",
        str(path),
        "-o",
        "json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["seq"] == 4
        path.rename(folder / "audit.jsonl.1")
        path.write_bytes(b"".join(lines[4:8]))
        assert [json.loads(process.stdout.readline())["seq"] for _ in range(4)] == [5, 6, 7, 8]
        path.write_bytes(lines[9])  # truncated, and one is missing
        assert json.loads(process.stdout.readline())["seq"] == 10
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=10)
    assert process.returncode == 0
    assert b"records 9 to 9 are missing" in told


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verify_says_intact_and_exits_0(folder: Path) -> None:
    result = run("verify", "--audit", folder)
    assert result.exit_code == 0
    assert result.stdout.startswith("intact    pod-")
    assert "10 records (1-10), 1 checkpoints, signatures checked" in result.stdout


def test_verify_names_the_first_bad_line_and_exits_1(folder: Path) -> None:
    path = only_segment(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b'"deny"', b'"allow"')
    path.write_bytes(b"".join(lines))
    result = run("verify", "--audit", folder)
    assert result.exit_code == 1
    assert f"{path} line 5: edited: record 5 is not what was written" in result.stdout
    data = json.loads(run("verify", "--audit", folder, "-o", "json").stdout)
    (stream,) = data["streams"]
    assert (stream["state"], stream["problem"]["kind"], stream["problem"]["line"]) == ("bad", "edited", 5)


def test_verify_an_unclosed_stream_exits_0(tmp_path: Path) -> None:
    write_stream(tmp_path, 3, closed=False)
    result = run("verify", "--audit", tmp_path)
    assert (result.exit_code, result.stdout.split()[0]) == (0, "unclosed")


def test_verify_with_a_public_key_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    (tmp_path / "other.pem").write_bytes(checkpoints.public_pem(checkpoints.load_or_create_key(other)))
    own = next(folder.glob("audit-*.pub"))
    assert run("verify", "--audit", folder, "--public-key", own).exit_code == 0
    result = run("verify", "--audit", folder, "--public-key", tmp_path / "other.pem")
    assert result.exit_code == 1
    assert "was not signed by the key that was given" in result.stdout
    assert run("verify", "--audit", folder, "--public-key", other).exit_code == 2


def test_verify_a_copy_with_a_gap(folder: Path) -> None:
    path = only_segment(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[5:]))
    copy, own = run("verify", "--audit", folder, "--copy"), run("verify", "--audit", folder)
    assert copy.stdout.startswith("gap")
    assert "records 4 to 5 are missing in this copy" in copy.stdout
    assert own.stdout.startswith("bad")
    assert (copy.exit_code, own.exit_code) == (1, 1)
    assert run("verify", "--audit", "-", stdin=path.read_bytes()).stdout.startswith("gap")


def test_verify_a_folder_without_records_exits_2(tmp_path: Path) -> None:
    assert run("verify", "--audit", tmp_path).exit_code == 2


# -- hostile text -----------------------------------------------------------------------------------------------------

HOSTILE = "x\x1b[31m\x07\x9b2J\u202eevil\u2028\n<img src=x onerror=alert(1)>"


def test_b65_control_characters_never_reach_a_terminal(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(body(1, "deny", name=HOSTILE, user=HOSTILE, message=HOSTILE))
    for output in ("table", "csv", "json"):
        text = run("query", "--audit", tmp_path, "-o", output).stdout
        assert "\x1b" not in text
        assert output == "json" or not set("\x07\x9b\u202e\u2028") & set(text)
    assert not set("\x1b\x07\x9b\u202e\u2028") & set(run("summary", "--audit", tmp_path).stdout)


def test_b65_json_on_a_terminal_is_stripped_as_well(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(body(1, "deny", name="x\x9b2Jy"))
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "webhook", "audit", "query", "--audit", str(tmp_path), "-o", "json"]
    subprocess.run(command, stdout=terminal, stderr=subprocess.DEVNULL, timeout=20, check=True)
    shown = os.read(controller, 1 << 16).decode()
    os.close(terminal)
    os.close(controller)
    assert "x2Jy" in shown


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_of_any_width_shows_who_and_why(tmp_path: Path, columns: int) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(body(1, "deny", message="\x1b[31masks for 2, free 1"))
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "webhook", "audit", "query", "--audit", str(tmp_path)]
    subprocess.run(command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment, timeout=20, check=True)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", os.read(controller, 1 << 16).decode()).splitlines()
    os.close(terminal)
    os.close(controller)
    assert max(map(len, shown)) <= columns
    for words in ("deny", "ai-training", "Deployment/train-1", "alice", "QuotaExceeded: [31masks for 2, free 1"):
        assert any(words in line for line in shown), words


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", " =", "\r@"])
def test_b65_a_csv_cell_is_never_a_formula(tmp_path: Path, start: str) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(body(1, "deny", user=f"{start}cmd|' /C calc'!A0"))
    (row,) = csv.DictReader(io.StringIO(run("query", "--audit", tmp_path, "-o", "csv").stdout))
    assert row["user"].startswith("'")


def test_b65_plain_text_and_numbers_are_left_alone() -> None:
    assert printable("Grüße 你好 👋") == "Grüße 你好 👋"
    assert spreadsheet_safe("a-b=c") == "a-b=c"
    assert spreadsheet_safe(-1.5) == -1.5
    assert spreadsheet_safe("") == ""


def test_the_progress_bar_is_for_terminals_only(folder: Path) -> None:
    assert run("verify", "--audit", folder).stderr == ""
    assert run("query", "--audit", folder).stderr == ""


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = "{'rich', 'kubernetes', 'cryptography', 'msgspec'}"
    script = f"import sys, webhook.cli.audit; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"[]\n"
