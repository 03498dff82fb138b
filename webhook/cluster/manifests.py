"""Kubernetes objects as people keep them in files: JSON, YAML with several documents, Lists, folders."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SUFFIXES = frozenset({".json", ".yaml", ".yml"})


class ManifestError(ValueError):
    """Input that cannot be read; the text names the file, the place and what to do."""


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: times stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a file or folder, Lists flattened, with the place where it stands.

    Folders are read with their sub-folders, in the order of names. Raises ManifestError.
    """
    for file in _files(path):
        try:
            text = file.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ManifestError(f"{file}: cannot be read: {reason}") from error
        yield from parse(text, str(file))


def parse(text: str, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a text in JSON or YAML (several documents), Lists flattened, with its place in `source`."""
    documents = list(_documents(text, source))
    for number, document in enumerate(documents, 1):
        place = source if len(documents) == 1 else f"{source}, document {number}"
        if document is not None:
            yield from flatten(document, place)


def flatten(document: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object itself, or the items of a `List` or a typed list such as `PodList`. Raises ManifestError."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise ManifestError(f"{place}: is not a Kubernetes object (no `kind`); give a manifest or a List of them")
    kind, items = document["kind"], document.get("items")
    if not kind.endswith("List") or not isinstance(items, list):
        yield place, document
        return
    for number, item in enumerate(items):
        if kind != "List" and isinstance(item, dict):  # the API leaves these out in the items of typed lists
            item = {"apiVersion": document.get("apiVersion", ""), "kind": kind.removesuffix("List"), **item}
        yield from flatten(item, f"{place}, items[{number}]")


def _documents(text: str, source: str) -> Iterator[Any]:
    """JSON values one after another where the text opens with a brace, else YAML documents."""
    if not text.lstrip().startswith(("{", "[")):
        yield from _yaml(text, source)
        return
    try:
        yield from list(_json(text))
    except RecursionError as error:
        raise ManifestError(f"{source}: nests too deeply to be a manifest") from error
    except ValueError as error:
        if source.endswith(".json"):
            raise ManifestError(
                f"{source}: is not JSON: {error}; write it again with kubectl get ... -o json"
            ) from error
        yield from _yaml(text, source)  # YAML may open with a brace too


def _json(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        value, at = decoder.raw_decode(text, at)
        yield value


def _yaml(text: str, source: str) -> Iterator[Any]:
    try:
        yield from yaml.load_all(text, Loader=_Loader)
    except RecursionError as error:
        raise ManifestError(f"{source}: nests too deeply to be a manifest") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        raise ManifestError(
            f"{place}: is not YAML: {getattr(error, 'problem', None) or error}; fix it there"
        ) from error


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ManifestError(f"{path}: no such file or folder; give a List or a folder of manifests")
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not files:
        raise ManifestError(f"{path}: holds no *.json, *.yaml or *.yml; give a List or a folder of manifests")
    return files
