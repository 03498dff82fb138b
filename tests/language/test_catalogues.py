"""The catalogues agree: the same keys, the same placeholders, and nothing that no code asks for."""

import re
from pathlib import Path
from string import Formatter

import pytest

from webhook.language import catalogue, say, teller

EN, ZH = catalogue("en"), catalogue("zh")


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_both_languages_have_the_same_keys() -> None:
    assert EN.keys() == ZH.keys()


@pytest.mark.parametrize("key", EN)
def test_both_languages_fill_in_the_same_values(key: str) -> None:
    assert placeholders(EN[key]) == placeholders(ZH[key])


@pytest.mark.parametrize("key", [key for key in EN if key.startswith("decision.")])
def test_every_message_of_a_decision_is_used(key: str) -> None:
    name = key.removeprefix("decision.")
    source = "".join(path.read_text() for room in ("decision", "server") for path in Path("webhook", room).glob("*.py"))
    composed = re.sub(r"^(quota)_(gpu|other)_(never|not_now)$|^(replicas|pods)_(one|many)$", "", name)
    assert not composed or re.search(rf'["\'.]{name}["\']', source)


def test_a_message_is_looked_up_by_key_and_filled_in() -> None:
    assert say("en", "decision.used_of", used="3", hard="4") == "3 of 4"
    assert say("zh", "decision.used_of", used="3", hard="4") == "3，上限 4"
    with pytest.raises(KeyError):
        say("en", "decision.nothing_like_it")


def test_a_teller_knows_what_every_message_of_a_section_may_name() -> None:
    tell = teller("en", "decision", namespace="ai-training", rule="training")
    assert tell("used_of", used="3", hard="4") == say("en", "decision.used_of", used="3", hard="4")
    assert "ai-training" in tell("class_conflict", wants="x", allowed="y")
    with pytest.raises(KeyError):
        tell("nothing_like_it")
