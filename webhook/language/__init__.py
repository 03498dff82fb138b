"""What people read, in English and Chinese: messages are data in `en.toml` and `zh.toml`, looked up by key."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any, Literal

Language = Literal["en", "zh"]


def say(language: Language, key: str, /, **values: Any) -> str:
    """The message `key` ("section.name") with its `{placeholders}` filled in.

    Raises KeyError for a key that no catalogue has; tests compare the keys and placeholders of all catalogues.
    """
    return catalogue(language)[key].format_map(values)


@cache
def catalogue(language: Language) -> dict[str, str]:
    """All messages of a language, "section.name" -> text."""
    text = resources.files(__package__).joinpath(f"{language}.toml").read_text(encoding="utf-8")
    return {f"{section}.{name}": line for section, lines in tomllib.loads(text).items() for name, line in lines.items()}
