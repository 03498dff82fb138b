"""Errors of the API, as the `metav1.Status` documents that kubectl and client libraries understand."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from webhook.lab.resources import Object, Resource


class ApiError(Exception):
    """A request that ends with something else than success; `status` is what the client is sent."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    @property
    def status(self) -> Object:
        """The `metav1.Status` document; keys that hold nothing are left out, as in the real thing."""
        document: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }
        return {key: value for key, value in document.items() if value not in (None, "")}


def _details(resource: Resource, name: str, **more: Any) -> Object:
    return {"name": name, "group": resource.group, "kind": resource.plural, **more}


def not_found(resource: Resource, name: str) -> ApiError:
    message = f'{resource.qualified} "{name}" not found'
    return ApiError(HTTPStatus.NOT_FOUND, "NotFound", message, _details(resource, name))


def no_such_path() -> ApiError:
    message = "the server could not find the requested resource"
    return ApiError(HTTPStatus.NOT_FOUND, "NotFound", message, {})


def already_exists(resource: Resource, name: str) -> ApiError:
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(HTTPStatus.CONFLICT, "AlreadyExists", message, _details(resource, name))


def conflict(resource: Resource, name: str, why: str = "") -> ApiError:
    why = why or ("the object has been modified; please apply your changes to the latest version and try again")
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(HTTPStatus.CONFLICT, "Conflict", message, _details(resource, name))


def forbidden(resource: Resource, name: str, why: str, causes: Sequence[Object] = ()) -> ApiError:
    """A refusal by an admission plugin. `name` may be a generateName prefix (P6)."""
    details = _details(resource, name, **({"causes": list(causes)} if causes else {}))
    message = f'{resource.qualified} "{name}" is forbidden: {why}'
    return ApiError(HTTPStatus.FORBIDDEN, "Forbidden", message, details)


def invalid(resource: Resource, name: str, problems: Sequence["Problem"]) -> ApiError:
    """A 422 of API validation; several problems are printed as a bracketed list."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    texts = [problem.text for problem in problems]
    shown = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [{"reason": p.reason, "message": p.text.partition(": ")[2], "field": p.field} for p in problems]
    details = {"name": name, "group": resource.group, "kind": resource.kind, "causes": causes}
    message = f'{kind} "{name}" is invalid: {shown}'
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details)


def bad_request(message: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def internal(message: str) -> ApiError:
    """A 500; the API server puts the same prefix before every such message (V13, O6)."""
    causes = {"causes": [{"message": message}]}
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", f"Internal error occurred: {message}", causes)


def expired(wanted: int, oldest: int) -> ApiError:
    """The 410 that sends a watcher back to a fresh list."""
    return ApiError(HTTPStatus.GONE, "Expired", f"too old resource version: {wanted} ({oldest})")


class Problem:
    """One finding of API validation: the field's path and the sentence about it."""

    def __init__(self, field: str, reason: str, text: str) -> None:
        self.field = field
        self.reason = reason
        self.text = f"{field}: {text}"

    @classmethod
    def required(cls, field: str, why: str = "") -> "Problem":
        return cls(field, "FieldValueRequired", "Required value" + (f": {why}" if why else ""))

    @classmethod
    def invalid(cls, field: str, value: Any, why: str) -> "Problem":
        return cls(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}")

    @classmethod
    def forbidden(cls, field: str, why: str) -> "Problem":
        return cls(field, "FieldValueForbidden", f"Forbidden: {why}")

    @classmethod
    def unsupported(cls, field: str, value: Any, supported: Sequence[str]) -> "Problem":
        options = ", ".join(f'"{option}"' for option in supported)
        text = f"Unsupported value: {_shown(value)}: supported values: {options}"
        return cls(field, "FieldValueNotSupported", text)

    @classmethod
    def duplicate(cls, field: str, value: Any) -> "Problem":
        return cls(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return f'"{value}"' if isinstance(value, str) else str(value)
