"""What a client reads before its first request: versions, groups, resources, and a stub of OpenAPI."""

from typing import Any, Final

from webhook.lab.resources import RESOURCES, Object, Resource

VERSION: Final[Object] = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2-lab",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "look-alike for demos and tests",
}

_ACTIONS: Final = {
    "post": ("create", ""),
    "put": ("update", "/{name}"),
    "patch": ("patch", "/{name}"),
}


def core_versions(address: str) -> Object:
    """`/api`."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def _groups() -> list[tuple[str, str]]:
    return list(dict.fromkeys((r.group, r.version) for r in RESOURCES if r.group))


def _group(name: str, version: str) -> Object:
    shown = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [shown], "preferredVersion": shown}


def group_list() -> Object:
    """`/apis`."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, version) for name, version in _groups()],
    }


def group(name: str) -> Object | None:
    """`/apis/<group>`, or None."""
    versions = [version for each, version in _groups() if each == name]
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions[0])} if versions else None


def resource_list(group_name: str, version: str) -> Object | None:
    """`/api/v1` and `/apis/<group>/<version>`, or None."""
    found = [r for r in RESOURCES if (r.group, r.version) == (group_name, version)]
    if not found:
        return None
    entries = [entry for resource in found for entry in _entries(resource)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": found[0].api_version, "resources": entries}


def _entries(resource: Resource) -> list[Object]:
    main: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        main["shortNames"] = list(resource.short)
    if resource.categories:
        main["categories"] = list(resource.categories)
    return [main, *(_subresource(resource, name) for name in resource.subresources)]


def _subresource(resource: Resource, name: str) -> Object:
    entry: Object = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
    match name:
        case "scale":
            return {
                **entry,
                "group": "autoscaling",
                "version": "v1",
                "kind": "Scale",
                "verbs": ["get", "patch", "update"],
            }
        case "eviction":
            return {**entry, "group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]}
        case "binding":
            return {**entry, "kind": "Binding", "verbs": ["create"]}
        case "log":
            return {**entry, "kind": resource.kind, "verbs": ["get"]}
    return {**entry, "kind": resource.kind, "verbs": ["get", "patch", "update"]}


# -- OpenAPI ----------------------------------------------------------------------------------------------------------


def openapi_index() -> Object:
    """`/openapi/v3`: where each group version's document lies."""
    paths = {}
    for group_name, version in [("", "v1"), *_groups()]:
        path = f"apis/{group_name}/{version}" if group_name else f"api/{version}"
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash=lab"}
    return {"paths": paths}


def openapi(group_name: str, version: str) -> Object | None:
    """Paths without schemas: from them kubectl learns that dry-run and field validation are served."""
    found = [r for r in RESOURCES if (r.group, r.version) == (group_name, version)]
    if not found:
        return None
    paths: dict[str, Any] = {}
    for resource in found:
        for method, (action, tail) in _ACTIONS.items():
            paths.setdefault(_path(resource) + tail, {})[method] = _operation(resource, action)
    info = {"title": "Kubernetes (lab)", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def _path(resource: Resource) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    return f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


def _operation(resource: Resource, action: str) -> Object:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]
    return {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
    }
