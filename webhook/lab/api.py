"""The HTTP face of the lab: URLs, content types, lists, watches and warnings, as a Flask application."""

import bisect
import json
import logging
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec
import yaml
from flask import Flask, Request, Response, request

from webhook.lab import discovery, errors, patches, queries, resources, tables, warnings
from webhook.lab.call import ADMIN, Call, User, named_user
from webhook.lab.http_server import BODY_LIMIT
from webhook.lab.registry import Registry
from webhook.lab.resources import Object, Resource
from webhook.lab.store import Change, Record

_log: Final = logging.getLogger(__name__)

_BOOKMARK_EVERY: Final = 60.0
_DEFAULT_WATCH_SECONDS: Final = 1800
_JSON: Final = "application/json"
_RETURNED_WHEN_DELETED: Final = ("Pod", "Service", "ServiceAccount", "ResourceQuota", "PersistentVolumeClaim")
"""Kinds whose deletion is answered with the object and not with a Status; typed clients insist."""

_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def create_app(registry: Registry) -> Flask:
    """The application; it keeps no state of its own."""
    app = Flask("webhook.lab")
    app.json.sort_keys = False  # type: ignore[attr-defined]
    api = _Api(registry)
    _add_discovery(app)
    app.add_url_rule("/api/<version>/<path:rest>", "core", api.core, methods=_METHODS)
    app.add_url_rule("/apis/<group>/<version>/<path:rest>", "group", api.grouped, methods=_METHODS)
    app.register_error_handler(errors.ApiError, _failure)
    app.register_error_handler(404, lambda _: _failure(errors.no_such_path()))
    app.register_error_handler(405, lambda _: _failure(_not_allowed()))
    app.register_error_handler(Exception, _bug)
    return app


def _failure(error: errors.ApiError) -> Response:
    response = _json(error.status, error.code)
    seconds = (error.details or {}).get("retryAfterSeconds")
    if seconds:
        response.headers["Retry-After"] = str(seconds)
    return response


def _bug(error: Exception) -> Response:
    """A bug must show in the terminal, and to clients as the Status they can read."""
    _log.exception("lab: %s %s failed", request.method, request.path, exc_info=error)
    return _failure(errors.internal(f"{type(error).__name__}: {error}"))


def _json(document: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(document), code, mimetype=_JSON)


def _add_discovery(app: Flask) -> None:
    documents: dict[str, Callable[[], Any]] = {
        "/version": lambda: discovery.VERSION,
        "/api": lambda: discovery.core_versions(request.host),
        "/apis": discovery.group_list,
        "/openapi/v3": discovery.openapi_index,
    }
    for path, document in documents.items():
        app.add_url_rule(path, path, lambda document=document: _json(document()), strict_slashes=False)
    for path in ("/healthz", "/livez", "/readyz"):
        app.add_url_rule(path, path, lambda: Response("ok", mimetype="text/plain"))
    # kubectl 1.27 and 1.28 insist on v2, but are content with nothing in it
    app.add_url_rule("/openapi/v2", "openapi", lambda: Response(b"", mimetype="application/octet-stream"))
    app.add_url_rule("/api/v1", "v1", lambda: _json(discovery.resource_list("", "v1")), strict_slashes=False)
    app.add_url_rule("/apis/<group>", "a_group", lambda group: _found(discovery.group(group)))
    app.add_url_rule(
        "/apis/<group>/<version>", "a_version", lambda group, version: _found(discovery.resource_list(group, version))
    )
    app.add_url_rule("/openapi/v3/api/v1", "openapi_core", lambda: _found(discovery.openapi("", "v1")))
    app.add_url_rule(
        "/openapi/v3/apis/<group>/<version>",
        "openapi_group",
        lambda group, version: _found(discovery.openapi(group, version)),
    )


def _found(document: Object | None) -> Response:
    if document is None:
        raise errors.no_such_path()
    return _json(document)


class _Api:
    """Dispatches a URL of the resource space to the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def core(self, version: str, rest: str) -> Response:
        return self._serve("", version, rest)

    def grouped(self, group: str, version: str, rest: str) -> Response:
        return self._serve(group, version, rest)

    def _serve(self, group: str, version: str, rest: str) -> Response:
        resource, namespace, name, sub = _target(group, version, rest.strip("/").split("/"))
        call = _call(request)
        handler = self._collection if not name else self._subresource if sub else self._object
        response = handler(resource, namespace, name, sub, call)
        for value in warnings.headers(call.warnings):
            response.headers.add("Warning", value)
        return response

    # -- collections ------------------------------------------------------------------------------------------------

    def _collection(self, resource: Resource, namespace: str, name: str, sub: str, call: Call) -> Response:
        match request.method:
            case "GET" if request.args.get("watch") in ("1", "true"):
                return self._watch(resource, namespace)
            case "GET":
                return self._list(resource, namespace)
            case "POST":
                return self._create(resource, namespace, call)
            case "DELETE":
                return self._delete_collection(resource, namespace, call)
        raise _not_allowed()

    def _create(self, resource: Resource, namespace: str, call: Call) -> Response:
        if resource.verbs == ("create",):
            # the question does not matter, everything is allowed; and kubectl asks it in protobuf
            review = {} if "protobuf" in request.mimetype else _body(resource, request)
            return _json(_answered_review(resource, review, call.user), HTTPStatus.CREATED)
        obj = _body(resource, request)
        if resource.namespaced and not namespace:
            raise errors.bad_request("an empty namespace may not be set during creation")
        stored = self._registry.create(resource, namespace, obj, call)
        return self._one(resource, stored, HTTPStatus.CREATED)

    def _list(self, resource: Resource, namespace: str) -> Response:
        records, version = self._registry.store.snapshot(resource, namespace)
        selected = queries.predicate(request.args.get("labelSelector", ""), request.args.get("fieldSelector", ""))
        chosen = records if selected is queries.EVERYTHING else [r for r in records if selected(r.object)]
        page, meta, version = _page(chosen, version)
        if _wants_table(request):
            return _json(tables.render(resource, [record.object for record in page], version, meta))
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        metadata = {"resourceVersion": str(version), **meta}
        items = [msgspec.Raw(record.raw) for record in page]
        return _json({**head, "metadata": metadata, "items": items})

    def _delete_collection(self, resource: Resource, namespace: str, call: Call) -> Response:
        options = _options(request)
        selected = queries.predicate(request.args.get("labelSelector", ""), request.args.get("fieldSelector", ""))
        for obj in self._registry.store.objects(resource, namespace):
            if selected(obj):
                metadata = obj["metadata"]
                key = metadata.get("namespace", ""), metadata["name"]
                self._registry.delete(resource, *key, options, call, collection=True)
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    # -- one object -------------------------------------------------------------------------------------------------

    def _object(self, resource: Resource, namespace: str, name: str, sub: str, call: Call) -> Response:
        match request.method:
            case "GET":
                return self._one(resource, self._registry.get(resource, namespace, name))
            case "PUT":
                obj = _body(resource, request)
                return self._one(resource, self._registry.update(resource, namespace, name, obj, call, sub))
            case "PATCH":
                return self._patch(resource, namespace, name, sub, call)
            case "DELETE":
                return self._delete(resource, namespace, name, call)
        raise _not_allowed()

    def _patch(self, resource: Resource, namespace: str, name: str, sub: str, call: Call) -> Response:
        content_type, body = request.mimetype, _bytes(request)
        patches.parse(content_type, body)  # a patch that is none is refused before the object is looked up

        def change(current: Object) -> Object:
            return patches.apply(content_type, body, current)

        if content_type == patches.APPLY_PATCH and not sub:
            stored, created = self._registry.apply(resource, namespace, name, change, call)
            return self._one(resource, stored, HTTPStatus.CREATED if created else HTTPStatus.OK)
        return self._one(resource, self._registry.patch(resource, namespace, name, change, call, sub))

    def _delete(self, resource: Resource, namespace: str, name: str, call: Call) -> Response:
        before = self._registry.get(resource, namespace, name)
        after = self._registry.delete(resource, namespace, name, _options(request), call)
        waits = "deletionTimestamp" in after["metadata"] and self._registry.store.get(resource, namespace, name)
        if waits or resource.kind in _RETURNED_WHEN_DELETED:
            return self._one(resource, after)
        details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": before["metadata"]["uid"]}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return _json({**status, "details": {key: value for key, value in details.items() if value}})

    def _one(self, resource: Resource, obj: Object, code: int = 200) -> Response:
        if _wants_table(request) and obj.get("kind") == resource.kind:
            return _json(tables.render(resource, [obj], obj["metadata"].get("resourceVersion", "")), code)
        return _json(obj, code)

    # -- subresources -----------------------------------------------------------------------------------------------

    def _subresource(self, resource: Resource, namespace: str, name: str, sub: str, call: Call) -> Response:
        match request.method, sub:
            case "GET", "scale":
                return _json(self._registry.get_scale(resource, namespace, name))
            case "GET", "log":
                return self._log(namespace, name)
            case "POST", "binding":
                self._registry.bind(namespace, name, _json_body(request), call)
                return _success()
            case "POST", "eviction":
                self._registry.evict(namespace, name, _json_body(request), call)
                return _success()
            case "PUT", "finalize":
                return self._one(resource, self._registry.update(resource, "", name, _json_body(request), call, sub))
            case "PUT", "scale":
                return _json(self._registry.update(resource, namespace, name, _json_body(request), call, sub))
            case (("GET" | "PUT" | "PATCH"), ("status" | "scale" | "ephemeralcontainers")):
                return self._object(resource, namespace, name, sub, call)
        raise _not_allowed()

    def _log(self, namespace: str, name: str) -> Response:
        pod = self._registry.get(resources.PODS, namespace, name)
        if pod["status"].get("phase") not in ("Running", "Succeeded", "Failed"):
            container = pod["spec"]["containers"][0]["name"]
            why = f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating'
            raise errors.bad_request(why)
        node = pod["spec"].get("nodeName", "")
        text = f"the lab runs no containers; {namespace}/{name} only stands on node {node}\n"
        return Response(text, mimetype="text/plain")

    # -- watch ------------------------------------------------------------------------------------------------------

    def _watch(self, resource: Resource, namespace: str) -> Response:
        selected = queries.predicate(request.args.get("labelSelector", ""), request.args.get("fieldSelector", ""))
        seconds = request.args.get("timeoutSeconds", type=float) or _DEFAULT_WATCH_SECONDS
        since = request.args.get("resourceVersion", "")
        if since and not since.isdecimal():
            raise errors.bad_request(f'Invalid value: "{since}": resourceVersion must be a number')
        watch = _Watch(
            self._registry, resource, namespace, selected, _wants_table(request), _flag("allowWatchBookmarks"), seconds
        )
        announced = _flag("sendInitialEvents")
        initial = announced or since in ("", "0")
        return Response(watch.events(int(since or 0), initial, announced), mimetype=_JSON)


class _Watch:
    """One watch: a stream of JSON lines that ends by itself."""

    def __init__(
        self, registry: Registry, resource: Resource, namespace: str, selected: queries.Predicate,
        as_table: bool, bookmarks: bool, seconds: float,
    ) -> None:  # fmt: skip
        self._store = registry.store
        self._resource = resource
        self._namespace = namespace
        self._selected = selected
        self._as_table = as_table
        self._bookmarks = bookmarks
        self._seconds = seconds

    def events(self, since: int, initial: bool, announced: bool) -> Iterator[bytes]:
        """Lines from version `since` on, or, if `initial`, everything there is first; `announced` marks its end."""
        end = time.monotonic() + self._seconds
        yield b""  # sends the headers: client-go waits for them before it can be interrupted
        if initial:
            records, since = self._store.snapshot(self._resource, self._namespace)
            yield from (self._line("ADDED", record) for record in records if self._selected(record.object))
            if announced:
                yield self._bookmark(since, {"k8s.io/initial-events-end": "true"})
        marked = time.monotonic()
        while (left := end - time.monotonic()) > 0:
            try:
                changes = self._store.changes(since, min(left, 1.0))
            except errors.ApiError as error:
                yield _encoded({"type": "ERROR", "object": error.status})
                return
            if changes is None:
                return
            for change in changes:
                since = change.record.version
                yield from self._lines(change)
            if self._bookmarks and time.monotonic() - marked > _BOOKMARK_EVERY:
                marked = time.monotonic()
                yield self._bookmark(since)
        if self._bookmarks:
            yield self._bookmark(since)

    def _lines(self, change: Change) -> Iterator[bytes]:
        """A change as this watch sees it: an object may enter or leave its selection."""
        if change.resource is not self._resource:
            return
        if self._namespace and change.record.object["metadata"].get("namespace") != self._namespace:
            return
        now = change.type != "DELETED" and self._selected(change.record.object)
        before = change.previous is not None and self._selected(change.previous.object)
        if now or before:
            yield self._line("MODIFIED" if now and before else "ADDED" if now else "DELETED", change.record)

    def _line(self, kind: str, record: Record) -> bytes:
        if self._as_table:
            return _encoded({"type": kind, "object": tables.render(self._resource, [record.object], record.version)})
        return _encoded({"type": kind, "object": msgspec.Raw(record.raw)})

    def _bookmark(self, version: int, annotations: Object | None = None) -> bytes:
        metadata: Object = {"resourceVersion": str(version)} | ({"annotations": annotations} if annotations else {})
        obj = {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": metadata}
        if self._as_table:
            obj = tables.render(self._resource, [], version)
        return _encoded({"type": "BOOKMARK", "object": obj})


def _encoded(event: Object) -> bytes:
    return msgspec.json.encode(event) + b"\n"


# -- reading a request ------------------------------------------------------------------------------------------------


def _target(group: str, version: str, parts: list[str]) -> tuple[Resource, str, str, str]:
    """(resource, namespace, name, subresource) of a URL. Raises 404."""
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2 and resources.at(group, version, parts[2]):
        namespace, parts = parts[1], parts[2:]
    resource = resources.at(group, version, parts[0])
    name, sub = [*parts[1:], "", ""][:2]
    if resource is None or len(parts) > 3 or (namespace and not resource.namespaced):
        raise errors.no_such_path()
    if (sub and sub not in resource.subresources) or (name and resource.namespaced and not namespace):
        raise errors.no_such_path()
    return resource, namespace, name, sub


def _call(http: Request) -> Call:
    manager = http.args.get("fieldManager", "")
    agent = (http.user_agent.string or "unknown").partition("/")[0]
    return Call(
        user=_user(http),
        manager=manager or agent,
        explicit_manager=bool(manager),
        dry_run=http.args.get("dryRun") == "All",
        field_validation=http.args.get("fieldValidation", ""),
        apply=http.mimetype == patches.APPLY_PATCH,
    )


def _user(http: Request) -> User:
    """Impersonation first, then a token that names a service account; anybody else is the admin."""
    impersonated = http.headers.get("Impersonate-User")
    if impersonated:
        user = named_user(impersonated, tuple(http.headers.getlist("Impersonate-Group")))
        extra = {
            key.lower().removeprefix("impersonate-extra-"): [value]
            for key, value in http.headers.items()
            if key.lower().startswith("impersonate-extra-")
        }
        return User(user.name, user.groups, http.headers.get("Impersonate-Uid", ""), extra)
    token = http.headers.get("Authorization", "").removeprefix("Bearer ")
    return named_user(token) if token.startswith("system:") else ADMIN


def _flag(name: str) -> bool:
    return request.args.get(name) in ("1", "true")


def _wants_table(http: Request) -> bool:
    return "as=Table" in http.headers.get("Accept", "")


def _bytes(http: Request) -> bytes:
    body: bytes = http.get_data()
    if len(body) > BODY_LIMIT:
        message = f"Request entity too large: limit is {BODY_LIMIT}"
        raise errors.ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLarge", message)
    return body


def _body(resource: Resource, http: Request) -> Object:
    """The object of a POST or PUT. Raises 400, 415."""
    obj = _json_body(http, resource)
    kind, version = obj.get("kind", resource.kind), obj.get("apiVersion", resource.api_version)
    if (kind, version) != (resource.kind, resource.api_version):
        why = f"the object provided is unrecognized (must be of type {resource.kind})"
        raise errors.bad_request(f"{why}: found {version}, Kind={kind}")
    return obj


def _json_body(http: Request, resource: Resource | None = None) -> Object:
    body = _bytes(http)
    if "protobuf" in http.mimetype or body.startswith(b"k8s\x00"):
        raise _protobuf(resource)
    try:
        obj = yaml.safe_load(body) if "yaml" in http.mimetype else json.loads(body)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise errors.bad_request(f"the body of the request does not decode: {error}") from error
    if not isinstance(obj, dict):
        raise errors.bad_request("the body of the request is not an object")
    return obj


def _protobuf(resource: Resource | None) -> errors.ApiError:
    """kubectl's generators send protobuf since 1.32; the message says what works instead."""
    what = f"kubectl create {resource.singular} ..." if resource else "kubectl ..."
    message = (
        "the lab reads JSON and YAML only, and this kubectl subcommand sends protobuf."
        f" Use instead: {what} --dry-run=client -o yaml | kubectl apply -f -"
    )
    return errors.ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)


def _options(http: Request) -> Object:
    """DeleteOptions, from the body or the query."""
    body = _bytes(http)
    options: Object = {}
    if body and "protobuf" not in http.mimetype:
        try:
            options = json.loads(body)
        except ValueError as error:
            raise errors.bad_request(f"the DeleteOptions do not decode: {error}") from error
    for key in ("propagationPolicy", "gracePeriodSeconds", "orphanDependents"):
        if key in http.args and options.get(key) is None:
            value = http.args[key]
            options[key] = int(value) if key == "gracePeriodSeconds" else value == "true" if key[0] == "o" else value
    return options


def _page(records: list[Record], version: int) -> tuple[list[Record], Object, int]:
    """One page of a list by `limit` and `continue`; a token is the version and key to go on after."""
    token, limit = request.args.get("continue", ""), request.args.get("limit", type=int) or 0
    if token:
        try:
            known, namespace, name = json.loads(bytes.fromhex(token))
        except ValueError as error:
            raise errors.bad_request("continue key is not valid") from error
        version = int(known)
        records = records[bisect.bisect_right(records, (namespace, name), key=_key) :]
    if not limit or len(records) <= limit:
        return records, {}, version
    page = records[:limit]
    following = json.dumps([version, *_key(page[-1])]).encode().hex()
    return page, {"continue": following, "remainingItemCount": len(records) - limit}, version


def _key(record: Record) -> tuple[str, str]:
    metadata = record.object["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


# -- small answers ----------------------------------------------------------------------------------------------------


def _success() -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return _json(status, HTTPStatus.CREATED)


def _not_allowed() -> errors.ApiError:
    message = "the server does not allow this method on the requested resource"
    return errors.ApiError(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message, {})


def _answered_review(resource: Resource, review: Object, user: User) -> Object:
    """Everybody may do everything here; RBAC objects are only stored."""
    review |= {"kind": resource.kind, "apiVersion": resource.api_version}
    review.setdefault("metadata", {})
    if resource.kind == "SelfSubjectReview":
        review["status"] = {"userInfo": user.info}
    elif resource.kind == "SelfSubjectRulesReview":
        every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        urls = {"verbs": ["*"], "nonResourceURLs": ["*"]}
        review["status"] = {"resourceRules": [every], "nonResourceRules": [urls], "incomplete": False}
    else:
        review["status"] = {"allowed": True, "reason": "the lab allows everything"}
    return review
