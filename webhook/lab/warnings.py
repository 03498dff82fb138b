"""Warning headers, with the API server's rules on what of them a client gets to see (V18)."""

from collections.abc import Iterable, Iterator
from typing import Final

_TOTAL: Final = 4096
_EACH: Final = 256


def headers(texts: Iterable[str]) -> list[str]:
    """Values of the Warning header: no control characters, no duplicates, cut once their total is too long."""
    distinct = [text for text in dict.fromkeys(texts) if text and not any(ord(c) < 32 or ord(c) == 127 for c in text)]
    return [_header(text) for text in _within(distinct)]


def _within(texts: list[str]) -> Iterator[str]:
    if sum(map(len, texts)) <= _TOTAL:
        yield from texts
        return
    left = _TOTAL
    for text in texts:
        cut = text[:_EACH]
        if len(cut) > left:
            return
        left -= len(cut)
        yield cut


def _header(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'.encode().decode("latin-1")  # HTTP headers carry UTF-8 as bytes
