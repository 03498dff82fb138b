"""A file's bytes -> YAML documents that remember where each of their parts stands."""

import codecs
from typing import Any, NamedTuple

import yaml

from webhook.language import Language, say
from webhook.policy.problem import PolicyError, Problem

MAX_BYTES = 1024 * 1024
"""As much as a ConfigMap can hold; a larger file could not be mounted."""

_REFUSED_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (b"+/v", "UTF-7"),
    (b"\x84\x31\x95\x33", "GB 18030"),
)


class Source(NamedTuple):
    """One YAML document of a file, as nodes; the line is that of its first key."""

    file: str
    node: yaml.Node


def read_documents(file: str, data: bytes, language: Language = "en") -> list[Source]:
    """The documents of one file, empty ones left out. Raises PolicyError for what is not YAML."""
    text = _decode(file, data, language)
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        sources = []
        while loader.check_node():
            node = loader.get_node()
            if node is not None and not _is_blank(node):
                sources.append(Source(file, node))
    except yaml.reader.ReaderError as error:
        raise _error(file, text, error.position, say(language, "policy.bad_character", code=error.character)) from None
    except yaml.MarkedYAMLError as error:
        raise PolicyError([_syntax_problem(file, error, language)]) from None
    except RecursionError:
        raise PolicyError([_at_mark(file, loader.get_mark(), say(language, "policy.too_deep"))]) from None
    except (ValueError, OverflowError):  # an escape such as "\UFFFFFFFF" is no character
        raise PolicyError([_at_mark(file, loader.get_mark(), say(language, "policy.bad_escape"))]) from None
    finally:
        loader.dispose()
    if not sources:
        raise PolicyError([Problem(file, 0, 0, "", say(language, "policy.empty_file"))])
    return sources


def _is_blank(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None


def _decode(file: str, data: bytes, language: Language) -> str:
    """UTF-8 (with or without BOM) and UTF-16 with BOM, as editors on Windows save them; everything else is refused."""
    if len(data) > MAX_BYTES:
        message = say(language, "policy.too_large", size=len(data), limit=MAX_BYTES)
        raise PolicyError([Problem(file, 0, 0, "", message)])
    for mark, name in _REFUSED_MARKS:
        if data.startswith(mark):
            raise PolicyError([Problem(file, 1, 1, "", say(language, "policy.encoding", name=name))])
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    if encoding == "utf-8-sig" and b"\0" in data[:4]:
        raise PolicyError([Problem(file, 1, 1, "", say(language, "policy.encoding", name="UTF-16 / UTF-32"))])
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        good = data[: error.start].decode(encoding, errors="ignore")
        bad = "0x" + data[error.start : error.start + 1].hex()
        name = "UTF-16" if encoding == "utf-16" else "UTF-8"
        raise _error(file, good, len(good), say(language, "policy.bad_bytes", bytes=bad, name=name)) from None


def _error(file: str, text: str, index: int, message: str) -> PolicyError:
    before = text[:index]
    line = before.count("\n") + 1
    return PolicyError([Problem(file, line, index - before.rfind("\n"), "", message)])


def _at_mark(file: str, mark: Any, message: str) -> Problem:
    return Problem(file, mark.line + 1, mark.column + 1, "", message)


def _syntax_problem(file: str, error: yaml.MarkedYAMLError, language: Language) -> Problem:
    """PyYAML's own words, which are English in every language, in one line with its position."""
    mark = error.problem_mark or error.context_mark
    words = ", ".join(part for part in (error.context, error.problem) if part)
    if "cannot start any token" in words and "\\t" in words:
        message = say(language, "policy.tab")
    else:
        message = say(language, "policy.syntax", words=words)
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    return Problem(file, line, column, "", message)
