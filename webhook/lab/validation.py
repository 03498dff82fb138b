"""API validation (422): the rules a GPU workload or an admission registration can trip over, and no others."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from webhook.k8s.names import label_value_problem, qualified_name_problem
from webhook.k8s.pod_resources import is_extended
from webhook.k8s.quantity import parse
from webhook.lab import conditions, errors
from webhook.lab.errors import Problem
from webhook.lab.resources import Object, Resource

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_WHY: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_POD_UPDATE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_NATIVE_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_MAX_USER_PRIORITY: Final = 1_000_000_000

Problems = Iterator[Problem]


def validate(resource: Resource, obj: Object, old: Object | None) -> None:
    """Raises 422 with every problem found; `old` is set on update."""
    problems = list(_metadata(resource, obj["metadata"]))
    checker = _CHECKS.get(resource.kind)
    if checker:
        problems += checker(obj)
    if old is not None:
        updater = _UPDATES.get(resource.kind)
        if updater:
            problems += updater(obj, old)
    if problems:
        raise errors.invalid(resource, obj["metadata"].get("name", ""), problems)


def _metadata(resource: Resource, metadata: Object) -> Problems:
    name = metadata.get("name")
    if not name:
        yield Problem.required("metadata.name", "name or generateName is required")
    elif resource.group == "rbac.authorization.k8s.io":
        pass
    elif not _DNS_SUBDOMAIN.fullmatch(name) or len(name) > 253:
        yield Problem.invalid("metadata.name", name, _SUBDOMAIN_WHY)
    for key, value in (metadata.get("labels") or {}).items():
        if why := qualified_name_problem(key):
            yield Problem.invalid("metadata.labels", key, why)
        if why := label_value_problem(value):
            yield Problem.invalid("metadata.labels", value, why)


# -- pods -------------------------------------------------------------------------------------------------------------


def _pod(pod: Object) -> Problems:
    spec = pod["spec"]
    yield from _pod_spec(spec, "spec")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield Problem.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _pod_spec(spec: Object, path: str) -> Problems:
    if not spec.get("containers"):
        yield Problem.required(f"{path}.containers")
    names: set[str] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or []):
            yield from _container(container, f"{path}.{field}[{index}]", names)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield Problem.unsupported(f"{path}.restartPolicy", spec.get("restartPolicy"), ("Always", "Never", "OnFailure"))
    for name in (spec.get("resources") or {}).get("requests", {}) | (spec.get("resources") or {}).get("limits", {}):
        if name not in ("cpu", "memory") and not name.startswith("hugepages-"):  # R11
            yield Problem.unsupported(f"{path}.resources.requests[{name}]", name, ("cpu", "hugepages-", "memory"))
    yield from _affinity(spec.get("affinity") or {}, f"{path}.affinity")
    for index, toleration in enumerate(spec.get("tolerations") or []):
        yield from _toleration(toleration, f"{path}.tolerations[{index}]")


def _container(container: Object, path: str, names: set[str]) -> Problems:
    name = container.get("name")
    if not name:
        yield Problem.required(f"{path}.name")
    elif not _DNS_LABEL.fullmatch(name):
        yield Problem.invalid(f"{path}.name", name, "a lowercase RFC 1123 label must consist of lower case"
                              " alphanumeric characters or '-'")  # fmt: skip
    elif name in names:
        yield Problem.duplicate(f"{path}.name", name)
    names.add(name or "")
    if not container.get("image"):
        yield Problem.required(f"{path}.image")
    yield from _resources(container.get("resources") or {}, f"{path}.resources")


def _resources(resources: Object, path: str) -> Problems:
    """R7-R9: names, whole and positive amounts, extended requests equal to their limits."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _amount(name, amount, f"{path}.{field}")
    for name, amount in requests.items():
        where = f"{path}.requests"
        extended = is_extended(name)
        if extended and name not in limits:
            yield Problem.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif extended and parse(amount) != parse(limits[name]):
            yield Problem.invalid(where, amount, f"must be equal to {name} limit of {limits[name]}")
        elif name in limits and parse(amount) > parse(limits[name]):
            yield Problem.invalid(where, amount, f"must be less than or equal to {name} limit of {limits[name]}")


def _amount(name: str, amount: Any, path: str) -> Problems:
    where = f"{path}[{name}]"
    if "/" not in name and name not in _NATIVE_RESOURCES and not name.startswith("hugepages-"):
        yield Problem.invalid(where, name, "must be a standard resource type or fully qualified")
        yield Problem.invalid(where, name, "must be a standard resource for containers")
    value = parse(amount)
    if value < 0:
        yield Problem.invalid(where, amount, "must be greater than or equal to 0")
    if is_extended(name) and value != int(value):
        yield Problem.invalid(where, amount, "must be an integer")


def _affinity(affinity: Object, path: str) -> Problems:
    node = affinity.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return
    where = f"{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    terms = required.get("nodeSelectorTerms")
    if not terms:
        yield Problem.required(where, "must have at least one node selector term")  # N2, N9
    for index, term in enumerate(terms or []):
        for number, requirement in enumerate((term or {}).get("matchExpressions") or []):
            yield from _requirement(requirement, f"{where}[{index}].matchExpressions[{number}]")
        for number, requirement in enumerate((term or {}).get("matchFields") or []):
            yield from _field_requirement(requirement, f"{where}[{index}].matchFields[{number}]")


def _requirement(requirement: Object, path: str) -> Problems:
    """N4."""
    operator, values = requirement.get("operator"), requirement.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield Problem.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield Problem.forbidden(f"{path}.values", why)
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield Problem.required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield Problem.invalid(f"{path}.operator", operator, "not a valid selector operator")
    if problem := qualified_name_problem(requirement.get("key", "")):
        yield Problem.invalid(f"{path}.key", requirement.get("key", ""), problem)


def _field_requirement(requirement: Object, path: str) -> Problems:
    """N5."""
    if requirement.get("key") != "metadata.name":
        yield Problem.invalid(f"{path}.key", requirement.get("key"), "not a valid field selector key")
    if requirement.get("operator") not in ("In", "NotIn"):
        yield Problem.invalid(f"{path}.operator", requirement.get("operator"), "not a valid selector operator")
    elif len(requirement.get("values") or []) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield Problem.required(f"{path}.values", why)


def _toleration(toleration: Object, path: str) -> Problems:
    operator = toleration.get("operator") or "Equal"
    if not toleration.get("key") and operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield Problem.invalid(f"{path}.operator", operator, why)
    if operator == "Exists" and toleration.get("value"):
        yield Problem.invalid(f"{path}.operator", toleration, "value must be empty when `operator` is 'Exists'")
    if operator not in ("Equal", "Exists"):
        yield Problem.unsupported(f"{path}.operator", operator, ("Equal", "Exists"))


def _pod_update(pod: Object, old: Object) -> Problems:
    """P10, N13, N14: images and added tolerations may change; a gated pod may be narrowed further."""
    new_spec, old_spec = _mutable_removed(pod["spec"]), _mutable_removed(old["spec"])
    gates, old_gates = new_spec.pop("schedulingGates", []), old_spec.pop("schedulingGates", [])
    if any(gate not in old_gates for gate in gates):
        why = "only deletion is allowed, but found new scheduling gate"
        yield Problem.forbidden("spec.schedulingGates", why)
    if old_gates:
        yield from _gated_update(new_spec, old_spec)
    old_tolerations, tolerations = old_spec.pop("tolerations", []), new_spec.pop("tolerations", [])
    if any(toleration not in tolerations for toleration in old_tolerations):
        yield Problem.forbidden(
            "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
        )
    if new_spec != old_spec:
        yield Problem.forbidden("spec", _POD_UPDATE)


def _mutable_removed(spec: Object) -> Object:
    plain = {key: value for key, value in spec.items() if key != "activeDeadlineSeconds"}
    for field in ("containers", "initContainers"):
        if field in plain:
            plain[field] = [{k: v for k, v in item.items() if k != "image"} for item in plain[field]]
    return plain


def _gated_update(spec: Object, old: Object) -> Problems:
    """N13: nodeSelector may gain keys, required terms may be extended at their end."""
    selector, old_selector = spec.pop("nodeSelector", {}), old.pop("nodeSelector", {})
    if any(selector.get(key) != value for key, value in old_selector.items()):
        why = "only additions are allowed (no mutations or deletions)"
        yield Problem.invalid("spec.nodeSelector", selector, why)
    affinity, old_affinity = spec.pop("affinity", {}), old.pop("affinity", {})
    terms, old_terms = _required_terms(affinity), _required_terms(old_affinity)
    if not old_terms:
        return
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if len(terms) != len(old_terms):
        yield Problem.invalid(path, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    for index, (term, before) in enumerate(zip(terms, old_terms, strict=True)):
        for field in ("matchExpressions", "matchFields"):
            prefix = before.get(field) or []
            if (term.get(field) or [])[: len(prefix)] != prefix or (not before and term):
                yield Problem.invalid(f"{path}[{index}].{field}", term, "only additions are allowed")


def _required_terms(affinity: Object) -> list[Object]:
    node = (affinity or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return required.get("nodeSelectorTerms") or []


# -- workloads --------------------------------------------------------------------------------------------------------


def _template(spec: Object, restart: tuple[str, ...], path: str = "spec") -> Problems:
    template = spec.get("template")
    if not isinstance(template, dict):
        yield Problem.required(f"{path}.template")
        return
    yield from _pod_spec(template["spec"], f"{path}.template.spec")
    policy = template["spec"].get("restartPolicy")
    if policy not in restart:
        yield Problem.unsupported(f"{path}.template.spec.restartPolicy", policy, restart)


def _selected_template(obj: Object) -> Problems:
    spec = obj["spec"]
    yield from _template(spec, ("Always",))
    if (spec.get("replicas") or 0) < 0:
        yield Problem.invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
    template = spec.get("template") or {}
    if "activeDeadlineSeconds" in (template.get("spec") or {}):  # Q15
        kind = obj["kind"]
        yield Problem.forbidden(
            "spec.template.spec.activeDeadlineSeconds", f"activeDeadlineSeconds in {kind} is not Supported"
        )
    selector = spec.get("selector")
    if not selector:
        yield Problem.required("spec.selector")
        return
    labels = (template.get("metadata") or {}).get("labels") or {}
    wanted = selector if obj["kind"] == "ReplicationController" else selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        why = "`selector` does not match template `labels`"
        yield Problem.invalid("spec.template.metadata.labels", labels, why)


def _job(job: Object) -> Problems:
    yield from _template(job["spec"], ("OnFailure", "Never"))
    yield from _job_counts(job["spec"], "spec")


def _job_counts(spec: Object, path: str) -> Problems:
    for field in ("parallelism", "completions", "backoffLimit"):
        if (spec.get(field) or 0) < 0:
            yield Problem.invalid(f"{path}.{field}", spec[field], "must be greater than or equal to 0")
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:  # W13
        yield Problem.required(f"{path}.completions", "when completion mode is Indexed")


def _cron_job(cron: Object) -> Problems:
    spec = cron["spec"]
    if not spec.get("schedule"):
        yield Problem.required("spec.schedule")
    yield from _template(spec["jobTemplate"]["spec"], ("OnFailure", "Never"), "spec.jobTemplate.spec")
    yield from _job_counts(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")


def _selector_update(obj: Object, old: Object) -> Problems:
    if obj["spec"].get("selector") != old["spec"].get("selector"):
        yield Problem.invalid("spec.selector", obj["spec"].get("selector"), "field is immutable")


def _stateful_set_update(obj: Object, old: Object) -> Problems:
    changeable = (
        "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
    )  # fmt: skip
    if any(obj["spec"].get(k) != old["spec"].get(k) for k in obj["spec"] | old["spec"] if k not in changeable):
        names = "'" + "', '".join(changeable) + "'"
        yield Problem.forbidden("spec", f"updates to statefulset spec for fields other than {names} are forbidden")


def _job_update(job: Object, old: Object) -> Problems:
    """H3: a template that ever ran is fixed; a suspended Job's scheduling directives and resources are not."""
    spec, before = job["spec"], old["spec"]
    for field in ("selector", "completionMode", "podFailurePolicy", "managedBy"):
        if spec.get(field) != before.get(field):
            yield Problem.invalid(f"spec.{field}", spec.get(field), "field is immutable")
    if spec.get("completions") != before.get("completions") and spec.get("completionMode") != "Indexed":
        yield Problem.invalid("spec.completions", spec.get("completions"), "field is immutable")
    template, old_template = spec.get("template"), before.get("template")
    if _unstarted(old):
        template, old_template = _directives_removed(template), _directives_removed(old_template)
    if template != old_template:
        yield Problem.invalid("spec.template", "...", "field is immutable")


def _unstarted(job: Object) -> bool:
    status = job.get("status") or {}
    suspended = any(c["type"] == "Suspended" and c["status"] == "True" for c in status.get("conditions") or [])
    return bool(job["spec"].get("suspend")) and (suspended or not status.get("startTime")) and not status.get("active")


def _directives_removed(template: Any) -> Object:
    spec = {k: v for k, v in template["spec"].items() if k not in ("nodeSelector", "tolerations", "schedulingGates")}
    affinity = {k: v for k, v in (spec.pop("affinity", None) or {}).items() if k != "nodeAffinity"}
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{k: v for k, v in item.items() if k != "resources"} for item in spec[field]]
    metadata = {k: v for k, v in (template.get("metadata") or {}).items() if k not in ("labels", "annotations")}
    return {"metadata": metadata, "spec": spec, "affinity": affinity}


# -- the control layer ------------------------------------------------------------------------------------------------


def _namespace(namespace: Object) -> Problems:
    name = namespace["metadata"].get("name", "")
    if name and not _DNS_LABEL.fullmatch(name):
        yield Problem.invalid("metadata.name", name, "a lowercase RFC 1123 label must consist of lower case"
                              " alphanumeric characters or '-', and must start and end with an alphanumeric"
                              " character")  # fmt: skip


def _quota(quota: Object) -> Problems:
    for name, amount in (quota["spec"].get("hard") or {}).items():
        where, value = f"spec.hard[{name}]", parse(amount)
        if value < 0:
            yield Problem.invalid(where, amount, "must be greater than or equal to 0")
        if "/" in name and not name.startswith("requests.") and value != int(value):  # Q3
            yield Problem.invalid(where, amount, "must be an integer")


def _quota_update(quota: Object, old: Object) -> Problems:
    if sorted(quota["spec"].get("scopes") or []) != sorted(old["spec"].get("scopes") or []):  # Q7
        yield Problem.invalid("spec.scopes", quota["spec"].get("scopes"), "field is immutable")


def _priority_class(cls: Object) -> Problems:
    """P14."""
    name, value = cls["metadata"].get("name", ""), cls.get("value", 0)
    if name.startswith("system-") and name not in ("system-node-critical", "system-cluster-critical"):
        why = "priority class names with 'system-' prefix are reserved for system use only"
        yield Problem.forbidden("metadata.name", f"{why}. error: {name} is not a known system priority class")
    elif value > _MAX_USER_PRIORITY and not name.startswith("system-"):
        why = f"maximum allowed value of a user defined priority is {_MAX_USER_PRIORITY}"
        yield Problem.forbidden("value", why)
    if cls.get("preemptionPolicy") not in ("Never", "PreemptLowerPriority"):
        yield Problem.unsupported("preemptionPolicy", cls.get("preemptionPolicy"), ("Never", "PreemptLowerPriority"))


def _priority_class_update(cls: Object, old: Object) -> Problems:
    if cls.get("value") != old.get("value"):
        yield Problem.forbidden("value", "may not be changed in an update.")
    if cls.get("preemptionPolicy") != old.get("preemptionPolicy"):
        yield Problem.invalid("preemptionPolicy", cls.get("preemptionPolicy"), "field is immutable")


def _webhook_configuration(config: Object) -> Problems:
    """V23."""
    names: set[str] = set()
    for index, hook in enumerate(config.get("webhooks") or []):
        path, name = f"webhooks[{index}]", hook.get("name", "")
        if len(name.split(".")) < 3 or not _DNS_SUBDOMAIN.fullmatch(name):
            yield Problem.invalid(
                f"{path}.name", name, "should be a domain with at least three segments separated by dots"
            )
        if name in names:
            yield Problem.duplicate(f"{path}.name", name)
        names.add(name)
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            yield Problem.unsupported(f"{path}.sideEffects", hook.get("sideEffects", ""), ("None", "NoneOnDryRun"))
        if not {"v1", "v1beta1"} & set(hook.get("admissionReviewVersions") or []):
            why = "must include at least one of v1, v1beta1"
            yield Problem.invalid(f"{path}.admissionReviewVersions", hook.get("admissionReviewVersions"), why)
        if not 1 <= hook["timeoutSeconds"] <= 30:
            why = "the timeout value must be between 1 and 30 seconds"
            yield Problem.invalid(f"{path}.timeoutSeconds", hook["timeoutSeconds"], why)
        if hook["failurePolicy"] not in ("Fail", "Ignore"):
            yield Problem.unsupported(f"{path}.failurePolicy", hook["failurePolicy"], ("Fail", "Ignore"))
        yield from _client_config(hook.get("clientConfig") or {}, f"{path}.clientConfig")
        yield from _match_conditions(hook.get("matchConditions") or [], f"{path}.matchConditions")


def _client_config(client: Object, path: str) -> Problems:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        yield Problem.required(path, "exactly one of url or service is required")
    elif url is not None:
        parts = urlsplit(url)
        if parts.scheme != "https":
            yield Problem.invalid(
                f"{path}.url",
                parts.scheme,
                "'https' is the only allowed URL scheme; desired format: https://host[/path]",
            )
        for piece, found in (("user info", parts.username), ("query", parts.query), ("fragment", parts.fragment)):
            if found:
                yield Problem.invalid(f"{path}.url", found, f"{piece} is not permitted in the URL")
    elif service is not None and not (service.get("name") and service.get("namespace")):
        yield Problem.required(f"{path}.service.name", "service name and namespace are required")


def _match_conditions(found: list[Object], path: str) -> Problems:
    for index, condition in enumerate(found):
        try:
            conditions.compile_expression(condition.get("expression", ""))
        except conditions.UnsupportedExpressionError as error:
            why = f"the lab knows a small part of CEL only (see docs/lab.md): {error}"
            yield Problem.invalid(f"{path}[{index}].expression", condition.get("expression", ""), why)


_CHECKS: Final[dict[str, Callable[[Object], Problems]]] = {
    "Pod": _pod,
    "Deployment": _selected_template,
    "ReplicaSet": _selected_template,
    "ReplicationController": _selected_template,
    "StatefulSet": _selected_template,
    "DaemonSet": _selected_template,
    "Job": _job,
    "CronJob": _cron_job,
    "Namespace": _namespace,
    "ResourceQuota": _quota,
    "PriorityClass": _priority_class,
    "MutatingWebhookConfiguration": _webhook_configuration,
    "ValidatingWebhookConfiguration": _webhook_configuration,
}
_UPDATES: Final[dict[str, Callable[[Object, Object], Problems]]] = {
    "Pod": _pod_update,
    "Deployment": _selector_update,
    "ReplicaSet": _selector_update,
    "DaemonSet": _selector_update,
    "StatefulSet": _stateful_set_update,
    "Job": _job_update,
    "ResourceQuota": _quota_update,
    "PriorityClass": _priority_class_update,
}
