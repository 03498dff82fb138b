"""Which registered webhooks a write concerns, and what their answers do to it (A6-A10, V1-V33)."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

from webhook.lab import conditions, errors, patches, resources
from webhook.lab.call import Attributes
from webhook.lab.queries import selects
from webhook.lab.resources import Object, copied
from webhook.lab.store import Store
from webhook.lab.webhook_client import Answer, CallError, WebhookClient

Redefault = Callable[[Attributes], None]


@dataclass(slots=True)
class Reinvocation:
    """What the two passes of one mutating chain share (A7-A10)."""

    second_pass: bool = False
    wanted: bool = False
    last_output: Object | None = None
    called: set[str] = field(default_factory=set)
    to_call_again: set[str] = field(default_factory=set)

    def something_changed(self) -> None:
        """Every IfNeeded webhook called so far is due again."""
        self.to_call_again |= self.called
        self.called = set()


class Webhooks:
    """The MutatingAdmissionWebhook and ValidatingAdmissionWebhook plugins."""

    def __init__(self, store: Store, client: WebhookClient, redefault: Redefault) -> None:
        self._store = store
        self._client = client
        self._redefault = redefault

    def mutate(self, attributes: Attributes, passes: Reinvocation, deadline: float) -> None:
        """Call the mutating webhooks that match, one after another, and apply their patches."""
        if passes.second_pass and not equal(passes.last_output, attributes.object):
            passes.something_changed()  # an in-tree plugin did it (A9)
        for uid, hook in self._matching(attributes, resources.MUTATING_CONFIGURATIONS):
            if passes.second_pass and uid not in passes.to_call_again:
                continue
            changed = self._mutate_with(hook, attributes, deadline)
            if changed:
                passes.something_changed()
                passes.wanted = True
            if hook.get("reinvocationPolicy") == "IfNeeded":
                passes.called.add(uid)
        passes.last_output = copied(attributes.object) if attributes.object is not None else None

    def validate(self, attributes: Attributes, deadline: float) -> None:
        """Call the validating webhooks that match, at once; the first error in their order is reported."""
        hooks = [hook for _, hook in self._matching(attributes, resources.VALIDATING_CONFIGURATIONS)]
        if len(hooks) < 2:
            answers = [self._answer(hook, attributes, deadline, mutating=False) for hook in hooks]
        else:
            with ThreadPoolExecutor(len(hooks)) as pool:
                calls = [pool.submit(self._answer, h, attributes, deadline, mutating=False) for h in hooks]
            answers = [call.result() for call in calls]
        for hook, answer in zip(hooks, answers, strict=True):
            if answer:
                _refuse_if_denied(hook, answer)

    # -- one webhook ------------------------------------------------------------------------------------------------

    def _mutate_with(self, hook: Object, attributes: Attributes, deadline: float) -> bool:
        """Whether the object really changed (A8). A patch that does not apply is a 500 whatever the policy (V13)."""
        answer = self._answer(hook, attributes, deadline, mutating=True)
        if answer is None:
            return False
        _refuse_if_denied(hook, answer)
        if answer.patch is None:
            return False
        if attributes.object is None:
            raise errors.internal(f'admission webhook "{hook["name"]}" attempted to modify the object, which is not'
                                  " supported for this operation")  # fmt: skip
        before = attributes.object
        try:
            attributes.object = patches.apply_operations(copied(before), answer.patch)
            self._redefault(attributes)
        except patches.PatchError as error:
            raise errors.internal(str(error)) from error
        except errors.ApiError as error:  # a value of the wrong type
            raise errors.internal(error.message) from error
        return not equal(before, attributes.object)

    def _answer(self, hook: Object, attributes: Attributes, deadline: float, *, mutating: bool) -> Answer | None:
        """The webhook's answer; None if its failurePolicy Ignore swallowed a failed call. Raises 500, 504."""
        review = _review(attributes)
        try:
            answer = self._client.call(hook, review, deadline, mutating=mutating)
        except CallError as error:
            if hook["failurePolicy"] == "Fail":
                raise errors.internal(f'failed calling webhook "{hook["name"]}": {error}') from error
            if mutating and time.monotonic() >= deadline:
                message = "Timeout: request did not complete within requested timeout - context deadline exceeded"
                raise errors.ApiError(HTTPStatus.GATEWAY_TIMEOUT, "Timeout", message) from error
            return None
        attributes.call.warnings.extend(answer.warnings)
        return answer

    # -- matching ---------------------------------------------------------------------------------------------------

    def _matching(self, attributes: Attributes, kind: resources.Resource) -> Iterator[tuple[str, Object]]:
        """Matching webhooks in the order of A6, judged at the moment each is about to be called."""
        if attributes.resource in resources.WEBHOOK_CONFIGURATIONS:  # A20
            return
        for config in self._store.objects(kind):
            for index, hook in enumerate(config.get("webhooks") or []):
                if self._matches(hook, attributes):
                    yield f"{config['metadata']['name']}/{hook['name']}/{index}", hook

    def _matches(self, hook: Object, attributes: Attributes) -> bool:
        if not any(_rule_matches(rule, attributes) for rule in hook.get("rules") or []):
            return False
        if not selects(hook["namespaceSelector"], self._namespace_labels(attributes)):
            return False
        selector = hook["objectSelector"]
        if selector and not any(_object_matches(selector, o) for o in (attributes.object, attributes.old)):
            return False
        return _conditions_hold(hook, attributes)

    def _namespace_labels(self, attributes: Attributes) -> dict[str, str] | None:
        """None for a cluster-scoped object, which every namespaceSelector selects (V30)."""
        if attributes.resource is resources.NAMESPACES:
            if attributes.subresource == "" and attributes.operation in ("CREATE", "UPDATE") and attributes.object:
                return attributes.object["metadata"].get("labels") or {}
            record = self._store.get(resources.NAMESPACES, "", attributes.name)
        elif attributes.resource.namespaced:
            record = self._store.get(resources.NAMESPACES, "", attributes.namespace)
        else:
            return None
        return (record.object["metadata"].get("labels") or {}) if record else {}


def _rule_matches(rule: Object, attributes: Attributes) -> bool:
    """V29."""
    resource = attributes.resource
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return (
        _listed(rule.get("operations"), attributes.operation)
        and _listed(rule.get("apiGroups"), resource.group)
        and _listed(rule.get("apiVersions"), resource.version)
        and rule.get("scope", "*") in ("*", scope)
        and any(_resource_matches(text, attributes) for text in rule.get("resources") or [])
    )


def _listed(allowed: list[str] | None, value: str) -> bool:
    return allowed is not None and ("*" in allowed or value in allowed)


def _resource_matches(text: str, attributes: Attributes) -> bool:
    plural, _, subresource = text.partition("/")
    if plural not in ("*", attributes.resource.plural):
        return False
    return subresource == "*" or subresource == attributes.subresource


def _object_matches(selector: Object, obj: Object | None) -> bool:
    """V31."""
    if not obj or "metadata" not in obj:
        return False
    return selects(selector, obj["metadata"].get("labels") or {})


@lru_cache(maxsize=512)
def _compiled(expression: str) -> conditions.Evaluator:
    return conditions.compile_expression(expression)


def _conditions_hold(hook: Object, attributes: Attributes) -> bool:
    """V32: any false skips the webhook, even beside an error. Raises 403 for an error under policy Fail (V13)."""
    found = hook.get("matchConditions") or []
    if not found:
        return True
    values = {"object": attributes.object, "oldObject": attributes.old, "request": _request(attributes)}
    failure: Exception | None = None
    for condition in found:
        try:
            if _compiled(condition["expression"])(values) is not True:
                return False
        except (conditions.EvaluationError, conditions.UnsupportedExpressionError) as error:
            failure = failure or error
    if failure is None:
        return True
    if hook["failurePolicy"] == "Ignore":
        return False
    raise errors.forbidden(attributes.resource, attributes.shown_name, f"expression evaluation failed: {failure}")


# -- the review -------------------------------------------------------------------------------------------------------


def _review(attributes: Attributes) -> Object:
    """V1: what is empty is absent, except `object`, `oldObject` and `options`, which are null."""
    request: Object = {"uid": str(uuid.uuid4()), **_request(attributes)}
    request |= {"object": attributes.object, "oldObject": attributes.old, "dryRun": attributes.call.dry_run}
    request["options"] = attributes.options
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _request(attributes: Attributes) -> Object:
    resource = attributes.resource
    group, version, kind = attributes.kind
    kinds = {"group": group, "version": version, "kind": kind}
    target = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    request: Object = {"kind": kinds, "resource": target, "subResource": attributes.subresource}
    request |= {"requestKind": kinds, "requestResource": target, "requestSubResource": attributes.subresource}
    request |= {"name": attributes.name, "namespace": attributes.namespace, "operation": attributes.operation}
    request["userInfo"] = attributes.call.user.info
    return {key: value for key, value in request.items() if value != ""}


def _refuse_if_denied(hook: Object, answer: Answer) -> None:
    """V14: the text, code and reason of a denial. Raises ApiError."""
    if answer.allowed:
        return
    status = answer.status
    reason, message = status.get("reason") or "", status.get("message") or ""
    shown = f'admission webhook "{hook["name"]}" denied the request'
    text = f"{shown}: {message or reason}" if message or reason else f"{shown} without explanation"
    code = status.get("code") or HTTPStatus.BAD_REQUEST
    raise errors.ApiError(max(int(code), HTTPStatus.BAD_REQUEST), reason, text, status.get("details"))


_EMPTY: Final[tuple[Any, ...]] = (None, [], {})


def equal(left: Any, right: Any) -> bool:
    """Semantic equality: an absent, a null and an empty list or map are the same."""
    if isinstance(left, dict) and isinstance(right, dict):
        return all(equal(left.get(key), right.get(key)) for key in left.keys() | right.keys())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))
    if left in _EMPTY and right in _EMPTY:
        return True
    return bool(left == right)
