"""matchConditions: the small part of CEL that admission registrations need; anything else is refused by name.

Supported: `object`, `oldObject`, `request` with dotted paths and `["key"]`; string, integer, list, `true`, `false`
and `null` literals; `==`, `!=`, `in`, `!`, `&&`, `||`, parentheses, `has(a.b)` and `a.startsWith("x")`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Variables = Mapping[str, Any]
Evaluator = Callable[[Variables], Any]


class UnsupportedExpressionError(ValueError):
    """The expression uses CEL that the lab does not know; the message says where."""


class EvaluationError(ValueError):
    """The expression could not be evaluated on these values, say a key is missing (V32)."""


class _Token(NamedTuple):
    kind: str
    text: str


_TOKENS: Final = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<operator>==|!=|&&|\|\||[!().,\[\]]))"""
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ROOTS: Final = ("object", "oldObject", "request")


def compile_expression(text: str) -> Evaluator:
    """A function of `object`, `oldObject` and `request`. Raises UnsupportedExpressionError."""
    parser = _Parser(text)
    evaluate = parser.disjunction()
    if parser.peek().kind != "end":
        raise parser.unsupported()
    return evaluate


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None or match.lastgroup is None:
            raise UnsupportedExpressionError(f"unsupported syntax at {text[position:].strip()[:30]!r}")
        found.append(_Token(match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return [*found, _Token("end", "")]


class _Parser:
    """Recursive descent, one method per precedence level."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0

    def peek(self) -> _Token:
        return self._tokens[self._next]

    def unsupported(self) -> UnsupportedExpressionError:
        return UnsupportedExpressionError(f"unsupported syntax at {self.peek().text or 'its end'!r}")

    def _take(self, *texts: str) -> str | None:
        token = self.peek()
        if token.kind in ("operator", "name") and token.text in texts:
            self._next += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self.unsupported()

    def disjunction(self) -> Evaluator:
        return self._chain(self._conjunction, "||", True)

    def _conjunction(self) -> Evaluator:
        return self._chain(self._relation, "&&", False)

    def _chain(self, operand: Callable[[], Evaluator], operator: str, decisive: bool) -> Evaluator:
        parts = [operand()]
        while self._take(operator):
            parts.append(operand())
        return parts[0] if len(parts) == 1 else _logic(parts, decisive)

    def _relation(self) -> Evaluator:
        left = self._unary()
        operator = self._take("==", "!=", "in")
        if operator is None:
            return left
        right = self._unary()
        if operator == "in":
            return lambda values: _contains(right(values), left(values))
        wanted = operator == "=="
        return lambda values: (left(values) == right(values)) is wanted

    def _unary(self) -> Evaluator:
        if self._take("!"):
            operand = self._unary()
            return lambda values: not _boolean(operand(values))
        return self._member()

    def _member(self) -> Evaluator:
        value = self._primary()
        while True:
            if self._take("."):
                name = self._name()
                if name == "startsWith" and self._take("("):
                    prefix = self.disjunction()
                    self._expect(")")
                    value = _starts_with(value, prefix)
                else:
                    value = _field(value, name)
            elif self._take("["):
                token = self.peek()
                if token.kind != "string":
                    raise self.unsupported()
                self._next += 1
                self._expect("]")
                value = _field(value, _unquoted(token.text))
            else:
                return value

    def _name(self) -> str:
        token = self.peek()
        if token.kind != "name":
            raise self.unsupported()
        self._next += 1
        return token.text

    def _primary(self) -> Evaluator:
        token = self.peek()
        if self._take("("):
            value = self.disjunction()
            self._expect(")")
            return value
        if self._take("["):
            return self._list()
        if self._take("has"):
            return self._has()
        if token.kind == "name" and token.text not in (*_CONSTANTS, *_ROOTS):
            raise self.unsupported()
        if token.kind not in ("name", "string", "number"):
            raise self.unsupported()
        self._next += 1
        if token.text in _ROOTS:
            return lambda values: values[token.text]
        constant = _constant(token)
        return lambda _: constant

    def _list(self) -> Evaluator:
        items: list[Evaluator] = []
        while not self._take("]"):
            items.append(self.disjunction())
            if not self._take(","):
                self._expect("]")
                break
        return lambda values: [item(values) for item in items]

    def _has(self) -> Evaluator:
        self._expect("(")
        path = [self._name()]
        if path[0] not in _ROOTS:
            raise self.unsupported()
        while self._take("."):
            path.append(self._name())
        if len(path) < 2:
            raise self.unsupported()
        self._expect(")")

        def has(values: Variables) -> bool:
            value: Any = values[path[0]]
            for name in path[1:-1]:
                value = _lookup(value, name)
            return isinstance(value, dict) and value.get(path[-1]) is not None

        return has


def _constant(token: _Token) -> Any:
    if token.kind == "string":
        return _unquoted(token.text)
    return int(token.text) if token.kind == "number" else _CONSTANTS[token.text]


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _field(value: Evaluator, name: str) -> Evaluator:
    return lambda values: _lookup(value(values), name)


def _lookup(value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise EvaluationError(f"no such key: {name}")
    return value[name]


def _starts_with(value: Evaluator, prefix: Evaluator) -> Evaluator:
    def starts_with(values: Variables) -> bool:
        text, start = value(values), prefix(values)
        if not isinstance(text, str) or not isinstance(start, str):
            raise EvaluationError("no such overload: startsWith")
        return text.startswith(start)

    return starts_with


def _contains(container: Any, item: Any) -> bool:
    if not isinstance(container, list | dict):
        raise EvaluationError("no such overload: in")
    return item in container


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise EvaluationError("no such overload: a condition must be true or false")
    return value


def _logic(parts: list[Evaluator], decisive: bool) -> Evaluator:
    """`||` (decisive True) and `&&` (decisive False); as in CEL an error counts only if no side decides."""

    def evaluate(values: Variables) -> bool:
        failure: EvaluationError | None = None
        for part in parts:
            try:
                if _boolean(part(values)) is decisive:
                    return decisive
            except EvaluationError as error:
                failure = failure or error
        if failure:
            raise failure
        return not decisive

    return evaluate
