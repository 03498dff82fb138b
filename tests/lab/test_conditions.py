"""The part of CEL that registrations need, and nothing silently else."""

import pytest

from webhook.lab.conditions import EvaluationError, UnsupportedExpressionError, compile_expression

VALUES = {
    "object": {"metadata": {"name": "web-1", "labels": {"a.b/c": "x"}}},
    "oldObject": None,
    "request": {"operation": "CREATE", "userInfo": {"username": "system:serviceaccount:kube-system:x"}, "n": 3},
}


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("oldObject == null || !has(oldObject.metadata.deletionTimestamp)", True),
        ("!has(object.metadata.deletionTimestamp)", True),
        ("has(object.metadata.name)", True),
        ('request.operation == "UPDATE"', False),
        ("request.operation in ['CREATE', 'UPDATE',]", True),
        ('request.userInfo.username.startsWith("system:serviceaccount:")', True),
        ('!(request.operation == "CREATE" && request.n == 3)', False),
        ('object.metadata.labels["a.b/c"] != "x"', False),
        ("'name' in object.metadata", True),
        ("request.operation != 'CREATE' || true", True),
        ("false || false || (true && true)", True),
        ("object.spec.nothing == 1 || true", True),
        ("true || object.spec.nothing == 1", True),
        ("false && object.spec.nothing == 1", False),
        (r'"a\"b" == "a\"b"', True),
    ],
)
def test_supported_expressions(expression: str, result: bool) -> None:
    assert compile_expression(expression)(VALUES) is result


@pytest.mark.parametrize("expression", ["object.spec.x == 1", "request.n && true", "oldObject.metadata.name == 'x'",
                                        "request.n.startsWith('x')", "'x' in request.n", "!request.n"])  # fmt: skip
def test_errors_are_errors(expression: str) -> None:
    with pytest.raises(EvaluationError):
        compile_expression(expression)(VALUES)


UNSUPPORTED = (
    "size(object) == 1",
    "a == 1",
    "object.x > 1",
    "object.all(x, true)",
    "",
    "(true",
    "true true",
    "has(object)",
    "has(other.x)",
    "object[0]",
    "1 + 1 == 2",
    "[1",
)


@pytest.mark.parametrize("expression", UNSUPPORTED)
def test_everything_else_is_refused_by_name(expression: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match="unsupported syntax at"):
        compile_expression(expression)
