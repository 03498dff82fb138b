"""A page of sentences and tables, for a terminal of any width, for a pipe, or in Markdown."""

import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from webhook.language import Language, say

SHOWN = 20
"""Rows of one table on a terminal and in Markdown; JSON holds everything."""
_PIPED_WIDTH = 160
_INDENT = 4

Row = tuple[str, ...]


def clean(text: str) -> str:
    """Without control characters: names come from files and clusters that anybody may have written (B65)."""
    return "".join(character if character.isprintable() else "?" for character in text)


class Page:
    """Prints as it goes; its texts come from the catalogues by key."""

    def __init__(self, language: Language, markdown: bool = False) -> None:
        self._language = language
        self._markdown = markdown

    def title(self, key: str) -> None:
        text = say(self._language, key)
        click.echo(f"## {text}\n" if self._markdown else click.style(text, bold=True))

    def say(self, key: str, **values: Any) -> None:
        click.echo(("- " if self._markdown else "") + clean(say(self._language, key, **values)))

    def table(self, key: str, header: Sequence[str], rows: Sequence[Row], shown: int = SHOWN, below: int = 0) -> None:
        """A table with its title; nothing where there are no rows.

        The last `below` columns are sentences: outside Markdown they stand under their row, where they have room.
        """
        if not rows:
            return
        titles = [say(self._language, name) for name in header]
        title = f"{say(self._language, key)} ({len(rows)})"
        click.echo()
        if self._markdown:
            click.echo(f"### {title}\n\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
            for row in rows[:shown]:
                click.echo(f"| {' | '.join(map(_cell, row))} |")
        else:
            click.echo(click.style(title, bold=True))
            _print_below(rows[:shown], below) if below else print_table(titles, rows[:shown])
        if len(rows) > shown:
            click.echo(("\n" if self._markdown else "") + say(self._language, "replay.more", count=len(rows) - shown))

    def end(self) -> None:
        if self._markdown:
            click.echo()


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Columns under their titles; without a terminal wide enough that names stay whole."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(titles))
    for title in titles:
        table.add_column(Text(title), overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(each)) if isinstance(each, str) else each for each in row))
    _print(table)


def print_indented(text: str) -> None:
    """A sentence, or a whole denial, under what it belongs to; every line of it is indented."""
    for line in text.splitlines():
        _print(Padding(Text(clean(line)), (0, 0, 0, _INDENT)))


def _print(shown: Table | Padding) -> None:
    """Without the blanks with which rich fills up every line: they wrap when a window is made smaller."""
    console = _console()
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def _print_below(rows: Sequence[Row], below: int) -> None:
    """Rows whose last columns stand under them; columns are aligned where that fits into the line."""
    heads = [tuple(map(clean, row[:-below])) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*heads, strict=True)]
    aligned = sum(widths) + 2 * len(widths) <= _console().width
    for row, head in zip(rows, heads, strict=True):
        pads = [width - cell_len(cell) if aligned else 0 for width, cell in zip(widths, head, strict=True)]
        click.echo("  ".join(cell + " " * pad for cell, pad in zip(head, pads, strict=True)).rstrip())
        for sentence in filter(None, row[-below:]):
            print_indented(sentence)


def _console() -> Console:
    console = Console(file=sys.stdout)
    return console if console.is_terminal else Console(file=sys.stdout, width=_PIPED_WIDTH)


def _cell(text: str) -> str:
    """A Markdown cell: what would end it, start markup or mention somebody is escaped."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]<>#|~" else c for c in clean(text))
    return escaped.replace("@", "@\u200b")
