"""A YAML document -> one of our typed documents, with every error of it at its own position.

Duplicate and unknown keys are errors (B69), and so is an empty value where something was meant: `pools:` with nothing
behind it would otherwise switch placement off without a word. `null`, written out, is accepted where absent is.
Merge keys (`<<`) are refused by name: what a policy says should stand where it is read.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import inspect

from webhook.language import Language, say
from webhook.policy.model import DURATION, NO_SLASH
from webhook.policy.problem import Place, Places, PolicyError, Problem

MAX_VALUES = 30_000
"""Values in one document with its anchors expanded: a bomb of a few lines stops here."""
MAX_DEPTH = 60
FORMS = {NO_SLASH: "has_slash", DURATION: "bad_max_age"}
"""Patterns of the types and the messages that say in words what they want."""

T = TypeVar("T")
_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = {_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "value")}


class _Wrong:
    """Stands for a value that could not be converted; its problem has been noted."""


_WRONG = _Wrong()


def convert(file: str, node: yaml.Node, type_: type[T], language: Language) -> tuple[T, Places]:
    """The document and where its parts stand. Raises PolicyError with all its problems."""
    conversion = _Conversion(file, language)
    plain = conversion.value(node, inspect.type_info(type_), "", None)
    if conversion.problems:
        raise PolicyError(conversion.problems)
    places = Places(_place(file, node), conversion.places)
    try:
        return msgspec.convert(plain, type_), places
    except msgspec.ValidationError as error:  # a constraint that this module does not word itself
        words, _, path = str(error).partition(" - at `$.")
        place = places[path.rstrip("`")]
        raise PolicyError([Problem(*place, path.rstrip("`"), words)]) from None


def _place(file: str, node: yaml.Node) -> Place:
    return Place(file, node.start_mark.line + 1, node.start_mark.column + 1)


class _Conversion:
    """The walk through one document; problems and places gather on the way."""

    def __init__(self, file: str, language: Language) -> None:
        self.file = file
        self.language = language
        self.problems: list[Problem] = []
        self.places: dict[str, Place] = {}
        self.values = 0
        self.depth = 0

    def problem(self, node: yaml.Node, path: str, key: str, hint: str = "", **values: Any) -> _Wrong:
        message = say(self.language, f"policy.{key}", **values)
        self.problems.append(Problem(*_place(self.file, node), path, message, hint))
        return _WRONG

    def value(self, node: yaml.Node, type_: inspect.Type, path: str, parent: inspect.StructType | None) -> Any:
        """The plain value of a node that should be of a type, or _WRONG."""
        self.values += 1
        if self.values > MAX_VALUES or self.depth > MAX_DEPTH:
            message = say(self.language, "policy.bomb", values=MAX_VALUES, depth=MAX_DEPTH)
            raise PolicyError([Problem(*_place(self.file, node), path[:200], message)])
        self.depth += 1
        try:
            return self._typed(node, self._choose(node, type_), path, parent)
        finally:
            self.depth -= 1

    def _typed(self, node: yaml.Node, type_: inspect.Type, path: str, parent: inspect.StructType | None) -> Any:
        self.places.setdefault(path, _place(self.file, node))
        if node.tag not in _KNOWN_TAGS:
            return self.problem(node, path, "tag", tag=node.tag.removeprefix(_TAG))
        match type_:
            case inspect.NoneType():
                return None
            case inspect.AnyType():
                return self._anything(node, path)
            case inspect.StructType() if isinstance(node, yaml.MappingNode):
                return self._struct(node, type_, path, parent)
            case inspect.DictType() if isinstance(node, yaml.MappingNode):
                return self._dict(node, type_, path)
            case inspect.VarTupleType() | inspect.ListType() if isinstance(node, yaml.SequenceNode):
                items = [self.value(item, type_.item_type, f"{path}[{i}]", parent) for i, item in enumerate(node.value)]
                return _WRONG if _WRONG in items else items
            case inspect.StructType() | inspect.DictType() | inspect.VarTupleType() | inspect.ListType():
                return self._mismatch(node, type_, path)
        return self._scalar(node, type_, path)

    def _choose(self, node: yaml.Node, type_: inspect.Type) -> inspect.Type:
        """The member of a union that the node's shape asks for; a lone type stays as it is."""
        type_ = _bare(type_)
        if not isinstance(type_, inspect.UnionType):
            return type_
        members = [_bare(member) for member in type_.types]
        if node.tag == _TAG + "null" and node.value and any(isinstance(m, inspect.NoneType) for m in members):
            return inspect.NoneType()
        members = [member for member in members if not isinstance(member, inspect.NoneType)]
        return next((member for member in members if _has_shape(node, member)), members[0])

    # -- mappings ---------------------------------------------------------------------------------------------------

    def _pairs(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Key text, key and value; a merge key, a key that is no text and a second use of a key are problems."""
        seen: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                self.problem(key, path, "merge_key", hint=say(self.language, "policy.merge_key_hint"))
            elif not isinstance(key, yaml.ScalarNode) or key.tag != _TAG + "str":
                text = _excerpt(key)
                self.problem(key, path, "key_not_text", hint=self._quote(key), found=text)
            elif key.value in seen:
                first, second = seen[key.value].start_mark.line + 1, key.start_mark.line + 1
                where = join(path, key.value)
                self.problem(key, where, "duplicate_key", name=_short(key.value), first=first, second=second)
            elif self._is_clean(key, path):
                seen[key.value] = key
                yield key.value, key, value

    def _struct(
        self, node: yaml.MappingNode, type_: inspect.StructType, path: str, parent: inspect.StructType | None
    ) -> Any:
        fields = {field.encode_name: field for field in type_.fields}
        found: dict[str, Any] = {}
        for name, key, value in self._pairs(node, path):
            if name in fields:
                found[name] = self.value(value, fields[name].type, join(path, name), type_)
            else:
                hint = self._hint_for_key(name, type_, path, parent)
                self.problem(key, join(path, name), "unknown_key", hint=hint, name=_short(name))
        for name in fields.keys() - found.keys():
            if fields[name].required and not self._misspelt(node, name, fields):
                self.problem(node, path, "missing_key", name=name)
        return _WRONG if _WRONG in found.values() else found

    def _misspelt(self, node: yaml.MappingNode, name: str, fields: Mapping[str, Any]) -> bool:
        """Whether an unknown key is probably the missing one, or a merge key brings it: then one problem is enough."""
        if any(key.tag == _TAG + "merge" for key, _ in node.value):
            return True
        written = [key.value for key, _ in node.value if isinstance(key.value, str)]
        return name in written or nearest(name, (key for key in written if key not in fields)) is not None

    def _hint_for_key(self, name: str, type_: inspect.StructType, path: str, parent: inspect.StructType | None) -> str:
        """The field that was probably meant: a near name, else a level up or down (a wrong indentation)."""
        own = [field.encode_name for field in type_.fields]
        if near := nearest(name, own):
            return self._mean(near)
        below = [field.encode_name for field in type_.fields if name in _names(field.type)]
        if below:
            return say(self.language, "policy.indent_hint", path=" / ".join(join(path, b) for b in below), name=name)
        if parent is not None and name in {field.encode_name for field in parent.fields}:
            return say(self.language, "policy.outdent_hint", name=name)
        return say(self.language, "policy.known_keys", keys=", ".join(own))

    def _dict(self, node: yaml.MappingNode, type_: inspect.DictType, path: str) -> Any:
        found = {
            name: self.value(value, type_.value_type, f"{path}[{name}]", None)
            for name, _, value in self._pairs(node, path)
        }
        return _WRONG if _WRONG in found.values() else found

    def _anything(self, node: yaml.Node, path: str) -> Any:
        """A Kubernetes manifest inside a policy test: read as kubectl reads it, times stay text."""
        if isinstance(node, yaml.MappingNode):
            return self._dict(node, inspect.DictType(inspect.StrType(), inspect.AnyType()), path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, inspect.AnyType(), f"{path}[{i}]", None) for i, item in enumerate(node.value)]
        kinds = {"null": inspect.NoneType(), "bool": inspect.BoolType(), "int": inspect.IntType()}
        kinds["float"] = inspect.FloatType()
        kind = node.tag.removeprefix(_TAG)
        if kind == "null":
            return None
        return self._scalar(node, kinds.get(kind, inspect.StrType()), path)

    # -- scalars ----------------------------------------------------------------------------------------------------

    def _scalar(self, node: yaml.Node, type_: inspect.Type, path: str) -> Any:
        if not isinstance(node, yaml.ScalarNode) or not self._fits(node, type_):
            return self._mismatch(node, type_, path)
        if not self._is_clean(node, path):
            return _WRONG
        match type_:
            case inspect.StrType():
                return self._text(node, type_, path)
            case inspect.LiteralType():
                if node.value in type_.values:
                    return node.value
                known = [str(value) for value in type_.values]
                near = nearest(node.value, known)
                hint = self._mean(near) if near else ""
                return self.problem(
                    node, path, "not_one_of", hint=hint, found=_short(node.value), known=", ".join(known)
                )
            case inspect.DateTimeType():
                return self._time(node, path)
            case inspect.BoolType():
                return node.value.lower() in ("true", "yes", "on")
        return self._number(node, type_, path)

    def _fits(self, node: yaml.ScalarNode, type_: inspect.Type) -> bool:
        kind = node.tag.removeprefix(_TAG)
        match type_:
            case inspect.StrType():
                # A plain date is text to Kubernetes too; 1, true and nothing are not.
                return kind in ("str", "timestamp", "value")
            case inspect.LiteralType():
                return kind == "str"
            case inspect.DateTimeType():
                return kind in ("str", "timestamp")
            case inspect.BoolType():
                return kind == "bool"
            case inspect.IntType():
                return kind == "int"
        return kind in ("int", "float")

    def _text(self, node: yaml.ScalarNode, type_: inspect.StrType, path: str) -> Any:
        value: str = node.value
        if type_.min_length and not value.strip():
            return self.problem(node, path, "empty_text")
        if type_.max_length is not None and len(value) > type_.max_length:
            return self.problem(node, path, "long_text", length=len(value), limit=type_.max_length)
        if type_.pattern and not re.search(type_.pattern, value):
            return self.problem(node, path, FORMS[type_.pattern], value=_short(value))
        return value

    def _time(self, node: yaml.ScalarNode, path: str) -> Any:
        try:
            time = msgspec.convert(node.value.strip(), datetime)
        except msgspec.ValidationError:
            return self.problem(node, path, "not_a_time", found=_short(node.value))
        return time if time.tzinfo else self.problem(node, path, "no_timezone", found=_short(node.value))

    def _number(self, node: yaml.ScalarNode, type_: inspect.Type, path: str) -> Any:
        constructor = yaml.constructor.SafeConstructor()
        try:
            is_int = node.tag == _TAG + "int"
            number = constructor.construct_yaml_int(node) if is_int else constructor.construct_yaml_float(node)
        except (ValueError, OverflowError, IndexError):
            return self.problem(node, path, "not_a_number", found=_short(node.value))
        low, high = getattr(type_, "ge", None), getattr(type_, "le", None)
        low = -(2**63) if low is None else low
        high = 2**63 - 1 if high is None else high
        if not low <= number <= high:  # not-a-number and infinity fail this, too
            return self.problem(node, path, "out_of_range", found=_short(node.value), low=low, high=high)
        return float(number) if isinstance(type_, inspect.FloatType) else number

    def _is_clean(self, node: yaml.ScalarNode, path: str) -> bool:
        """Control characters would reach terminals and logs through our messages; half characters cannot be encoded."""
        for character in node.value:
            category = unicodedata.category(character)
            if category in ("Cs", "Zl", "Zp") or (category == "Cc" and character not in "\n\t"):
                self.problem(node, path, "control_character", code=ord(character))
                return False
        return True

    # -- words ------------------------------------------------------------------------------------------------------

    def _mismatch(self, node: yaml.Node, type_: inspect.Type, path: str) -> _Wrong:
        expected = say(self.language, f"policy.type_{_type_name(type_)}")
        if isinstance(node, yaml.ScalarNode) and not node.value and node.tag == _TAG + "null":
            empty = {"mapping": "{}", "list": "[]"}.get(_type_name(type_), "")
            hint = say(self.language, "policy.nothing_hint_empty" if empty else "policy.nothing_hint", empty=empty)
            return self.problem(node, path, "nothing", hint=hint, expected=expected)
        hint = ""
        if isinstance(type_, inspect.VarTupleType) and isinstance(node, yaml.ScalarNode):
            hint = say(self.language, "policy.list_hint", value=f"[{_excerpt(node)}]")
        elif isinstance(type_, inspect.StrType) and isinstance(node, yaml.ScalarNode):
            hint = self._quote(node)
        found = say(self.language, f"policy.type_{_node_name(node)}")
        if node.tag == _TAG + "bool":  # "true or false true" would be no help
            found = _excerpt(node)
        elif isinstance(node, yaml.ScalarNode):
            found += f" {_excerpt(node)}"
        return self.problem(node, path, "wrong_type", hint=hint, expected=expected, found=found)

    def _quote(self, node: yaml.Node) -> str:
        return say(self.language, "policy.quote_hint", value=f'"{_excerpt(node)}"')

    def _mean(self, name: str) -> str:
        return say(self.language, "policy.mean_hint", name=name)


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; upper and lower case, `_` and `-` do not count."""
    plain = {_plain(candidate): candidate for candidate in known}
    near = difflib.get_close_matches(_plain(name[:100]), list(plain), n=1, cutoff=0.7)
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _bare(type_: inspect.Type) -> inspect.Type:
    """A type without the descriptions around it."""
    return type_.type if isinstance(type_, inspect.Metadata) else type_


def _has_shape(node: yaml.Node, type_: inspect.Type) -> bool:
    if isinstance(node, yaml.MappingNode):
        return isinstance(type_, inspect.StructType | inspect.DictType)
    if isinstance(node, yaml.SequenceNode):
        return isinstance(type_, inspect.VarTupleType | inspect.ListType)
    return not isinstance(type_, inspect.StructType | inspect.DictType | inspect.VarTupleType | inspect.ListType)


def _names(type_: inspect.Type) -> set[str]:
    """The keys of a struct, also of one inside a union; nothing for other types."""
    type_ = _bare(type_)
    if isinstance(type_, inspect.UnionType):
        return set().union(*(_names(member) for member in type_.types))
    return {field.encode_name for field in type_.fields} if isinstance(type_, inspect.StructType) else set()


def _type_name(type_: inspect.Type) -> str:
    match type_:
        case inspect.StructType() | inspect.DictType():
            return "mapping"
        case inspect.VarTupleType() | inspect.ListType():
            return "list"
        case inspect.BoolType():
            return "boolean"
        case inspect.IntType():
            return "integer"
        case inspect.FloatType():
            return "number"
        case inspect.DateTimeType():
            return "time"
    return "text"


def _node_name(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    if isinstance(node, yaml.SequenceNode):
        return "list"
    kind = node.tag.removeprefix(_TAG)
    return {"bool": "boolean", "int": "integer", "float": "number", "null": "null", "timestamp": "time"}.get(
        kind, "text"
    )


def _excerpt(node: yaml.Node) -> str:
    return _short(node.value) if isinstance(node, yaml.ScalarNode) else "..."


def _short(text: str) -> str:
    """At most 40 characters of what a file holds, printable whatever it is."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= 40 else text[:37] + "..."
