"""What people read, in English and Chinese: messages are data in `en.toml` and `zh.toml`, looked up by key."""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

Language = Literal["en", "zh"]
Tell = Callable[..., str]
"""`say` for one section: a message's name and its values in, text out."""


def say(language: Language, key: str, /, **values: Any) -> str:
    """The message `key` ("section.name") with its `{placeholders}` filled in.

    Raises KeyError for a key that no catalogue has; tests compare the keys and placeholders of all catalogues.
    """
    return catalogue(language)[key].format_map(values)


def teller(language: Language, section: str, **known: Any) -> Tell:
    """`say` for one section of messages, with what any of them may name already `known`."""
    texts = messages(language, section)

    def tell(name: str, /, **values: Any) -> str:
        values.update(known)
        return texts[name].format_map(values)

    return tell


def messages(language: Language, section: str) -> Mapping[str, str]:
    """The messages of one section by name, placeholders unfilled."""
    return _sections(language)[section]


@cache
def catalogue(language: Language) -> dict[str, str]:
    """All messages of a language, "section.name" -> text."""
    return {f"{section}.{name}": line for section, lines in _sections(language).items() for name, line in lines.items()}


@cache
def _sections(language: Language) -> dict[str, dict[str, str]]:
    text = resources.files(__package__).joinpath(f"{language}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
