"""Who makes a request and under which options: what travels beside the object through the chain."""

from dataclasses import dataclass, field
from typing import Final

from webhook.lab.resources import Object, Resource


@dataclass(frozen=True, slots=True)
class User:
    """`userInfo` of an AdmissionReview."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict)

    @property
    def info(self) -> Object:
        document: Object = {"username": self.name, "uid": self.uid, "groups": list(self.groups), "extra": self.extra}
        return {key: value for key, value in document.items() if value}


ADMIN: Final = User("kubernetes-admin", ("system:masters", "system:authenticated"))

_ACCOUNT_PREFIX: Final = "system:serviceaccount:"


def service_account(namespace: str, name: str) -> User:
    """The user a service account's token stands for."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"{_ACCOUNT_PREFIX}{namespace}:{name}", groups)


def named_user(name: str, groups: tuple[str, ...] = ()) -> User:
    """An impersonated user; a service account's name brings its groups, as in the real thing."""
    if name.startswith(_ACCOUNT_PREFIX) and not groups:
        namespace, _, account = name.removeprefix(_ACCOUNT_PREFIX).partition(":")
        return service_account(namespace, account)
    return User(name, tuple(dict.fromkeys((*groups, "system:authenticated"))))


@dataclass(frozen=True, slots=True)
class Call:
    """One request's user and options; `warnings` is filled while it is served."""

    user: User = ADMIN
    manager: str = "lab"
    explicit_manager: bool = False
    dry_run: bool = False
    field_validation: str = ""
    apply: bool = False
    warnings: list[str] = field(default_factory=list)

    def options(self, kind: str) -> Object:
        """CreateOptions or UpdateOptions, as a review shows them."""
        options: Object = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
        if self.dry_run:
            options["dryRun"] = ["All"]
        if self.explicit_manager:
            options["fieldManager"] = self.manager
        if self.field_validation:
            options["fieldValidation"] = self.field_validation
        return options


@dataclass(slots=True)
class Attributes:
    """What admission sees of one write (V1)."""

    operation: str
    resource: Resource
    subresource: str
    kind: tuple[str, str, str]
    namespace: str
    name: str
    object: Object | None
    old: Object | None
    call: Call
    options: Object

    @property
    def shown_name(self) -> str:
        """The name in a refusal: before a name exists it is the generateName prefix (P6)."""
        metadata = (self.object or {}).get("metadata", {})
        return self.name or metadata.get("name") or metadata.get("generateName") or ""
