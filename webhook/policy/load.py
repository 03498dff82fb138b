"""A folder of YAML files -> the policy that is in force, or everything that is wrong with it at once."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import msgspec
import yaml

from webhook.language import Language, say
from webhook.policy.active import Policy
from webhook.policy.check import check_policy, check_pricing, check_tests
from webhook.policy.convert import convert, nearest
from webhook.policy.model import API_VERSION, GpuPolicy, GpuPricing
from webhook.policy.problem import Place, Places, PolicyError, Problem
from webhook.policy.source import Source, read_documents
from webhook.policy.suite import GpuPolicyTest

T = TypeVar("T")
KINDS: dict[str, type[Any]] = {"GpuPolicy": GpuPolicy, "GpuPricing": GpuPricing, "GpuPolicyTest": GpuPolicyTest}


class Loaded(msgspec.Struct, Generic[T], frozen=True):
    """One document with its file and the places of its parts."""

    value: T
    file: str
    places: Places


class Documents(msgspec.Struct, frozen=True):
    """All documents of a folder: exactly one policy, at most one price list, any number of policy tests."""

    policy: Loaded[GpuPolicy]
    pricing: Loaded[GpuPricing] | None = None
    tests: tuple[Loaded[GpuPolicyTest], ...] = ()

    def active(self, own_namespace: str = "") -> Policy:
        """The policy in the form that `decide` reads."""
        pricing = self.pricing
        return Policy(
            self.policy.value,
            pricing.value if pricing else None,
            own_namespace,
            places=self.policy.places,
            pricing_places=pricing.places if pricing else None,
        )


def load(directory: Path, own_namespace: str = "") -> Policy:
    """The policy of a folder (`*.yaml` and `*.yml`, not recursive). Raises PolicyError with all its problems."""
    return load_documents(directory).active(own_namespace)


def load_documents(directory: Path) -> Documents:
    """All documents of a folder. Raises PolicyError with all its problems, never anything else.

    Where a ConfigMap is mounted, all files are read behind one `..data` link, so that an update in the middle of
    reading never mixes two versions (B71). Messages are in the language that the policy names, else in English.
    """
    problems: list[Problem] = []
    sources: list[Source] = []
    for name, data in _files(directory, problems):
        try:
            sources += read_documents(name, data)
        except PolicyError as error:
            problems += error.problems
    language = _language(sources)
    loaded: list[Loaded[Any]] = []
    for source in sources:
        try:
            loaded.append(_document(source, language))
        except PolicyError as error:
            problems += error.problems
    problems += _count_problems(directory, sources, bool(problems), language)
    if problems:
        raise PolicyError(problems)
    return _sorted(loaded)


def _files(directory: Path, problems: list[Problem]) -> Iterable[tuple[str, bytes]]:
    """Shown name and bytes of each policy file; what cannot be read is a problem, hidden files are none of ours."""
    mounted = directory / "..data"
    try:
        folder = mounted.resolve(strict=True) if mounted.is_symlink() else directory
        paths = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = getattr(error, "strerror", None) or str(error)
        problems.append(Problem(str(directory), 0, 0, "", say("en", "policy.folder_unreadable", reason=reason)))
        return
    for path in paths:
        if path.name.startswith(".") or path.is_dir():
            continue
        shown = str(directory / path.name)
        try:
            yield shown, path.read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            problems.append(Problem(shown, 0, 0, "", say("en", "policy.file_unreadable", reason=reason)))


def _document(source: Source, language: Language) -> Loaded[Any]:
    """One document, typed and checked."""
    kind = _kind(source, language)
    value, places = convert(source.file, source.node, KINDS[kind], language)
    if isinstance(value, GpuPolicy):
        problems = check_policy(value, places, language)
    elif isinstance(value, GpuPricing):
        problems = check_pricing(value, places, language)
    else:
        problems = check_tests(value, places, language)
    if problems:
        raise PolicyError(problems)
    return Loaded(value, source.file, places)


def _kind(source: Source, language: Language) -> str:
    """The document's kind, which must be known before anything else can be said about it."""
    kind = _scalar(source.node, "kind")
    if isinstance(kind, yaml.ScalarNode) and kind.value in KINDS:
        return str(kind.value)
    node = kind or source.node
    place = Place(source.file, node.start_mark.line + 1, node.start_mark.column + 1)
    if not isinstance(source.node, yaml.MappingNode):
        message = say(language, "policy.not_a_document", known=", ".join(KINDS))
    elif not isinstance(kind, yaml.ScalarNode):
        message = say(language, "policy.no_kind", version=API_VERSION, known=", ".join(KINDS))
    else:
        near = nearest(kind.value, KINDS)
        hint = say(language, "policy.mean_hint", name=near) if near else ""
        message = say(language, "policy.unknown_kind", kind=kind.value[:40], known=", ".join(KINDS))
        raise PolicyError([Problem(*place, "kind", message, hint)])
    raise PolicyError([Problem(*place, "", message)])


def _scalar(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """The node at a path of mapping keys."""
    for name in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == name), None)
    return node


def _language(sources: Iterable[Source]) -> Language:
    """The language that a policy among the documents names, read before anything is checked."""
    for source in sources:
        node = _scalar(source.node, "spec", "language")
        for language in get_args(Language):
            if isinstance(node, yaml.ScalarNode) and node.value == language:
                chosen: Language = language
                return chosen
    return "en"


def _count_problems(directory: Path, sources: list[Source], has_others: bool, language: Language) -> Iterable[Problem]:
    """Exactly one GpuPolicy and at most one GpuPricing; a file that could not be read may hold the missing one."""
    for kind in ("GpuPolicy", "GpuPricing"):
        found = [source for source in sources if getattr(_scalar(source.node, "kind"), "value", None) == kind]
        for source in found[1:]:
            first = f"{found[0].file}:{found[0].node.start_mark.line + 1}"
            line = source.node.start_mark.line + 1
            yield Problem(source.file, line, 1, "", say(language, "policy.kind_twice", kind=kind, first=first))
        if kind == "GpuPolicy" and not found and not has_others:
            yield Problem(str(directory), 0, 0, "", say(language, "policy.no_policy"))


def _sorted(loaded: Iterable[Loaded[Any]]) -> Documents:
    of = {kind: [document for document in loaded if document.value.kind == kind] for kind in KINDS}
    pricing = of["GpuPricing"]
    return Documents(of["GpuPolicy"][0], pricing[0] if pricing else None, tuple(of["GpuPolicyTest"]))
