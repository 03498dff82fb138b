"""Sentences of the dashboard data, in both languages at once: the page switches language without asking again."""

from typing import Any

from webhook.language import say


def both(key: str, /, **values: Any) -> dict[str, str]:
    """`{"why": English, "whyZh": Chinese}` of the message `exporter.<key>`."""
    name = f"exporter.{key}"
    return {"why": say("en", name, **values), "whyZh": say("zh", name, **values)}
