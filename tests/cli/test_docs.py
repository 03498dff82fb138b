"""The documentation of commands: whatever `gpu-webhook ...` a page or a manifest tells people to type exists."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from webhook.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        ROOT / "certs" / "README.md",
        ROOT / "README.md",
        *(ROOT / "deploy").rglob("*.yaml"),
    ]
)
COMMAND = re.compile(rf"gpu-webhook ((?:{'|'.join(COMMANDS)})\b[^`\n|&#>]*)")


def commands(text: str) -> Iterator[list[str]]:
    """The words after `gpu-webhook`, of commands in code and in prose."""
    for found in COMMAND.finditer(text):
        yield shlex.split(found[1].rstrip(" .,:;)\"'…"))


def unknown(words: list[str]) -> list[str]:
    """Subcommands and options that the program does not have."""
    command: click.Command = importlib.import_module(COMMANDS[words[0]][0]).command
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        if rest[0] not in command.commands:
            return [rest[0]]
        command, rest = command.commands[rest[0]], rest[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in rest if word.startswith("-") and word != "-" and word.partition("=")[0] not in options]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    assert [(words, bad) for words in commands(page.read_text(encoding="utf-8")) if (bad := unknown(words))] == []


def test_commands_are_found() -> None:
    """So that the test above means something."""
    assert sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in PAGES) > 50
    assert unknown(["certs", "reveal"]) == ["reveal"]
    assert unknown(["doctor", "--fix", "-o", "json"]) == ["--fix"]
