"""Lint of who may pass: exemptions that ended, that match nobody, or more people than it looks; break-glass."""

from collections.abc import Iterator
from datetime import datetime

from webhook.k8s.workloads import controller_user
from webhook.policy.active import NEVER_JUDGED, Policy
from webhook.policy.finding import LintFinding, finding
from webhook.policy.model import Exemption

_LONG_BREAK_GLASS = 24 * 3600
_EVERYBODY = {"system:authenticated", "system:unauthenticated", "system:serviceaccounts"}
_ACCOUNT = "system:serviceaccount:"
_ACCOUNTS_OF = "system:serviceaccounts:"


def lint_access(policy: Policy, now: datetime) -> Iterator[LintFinding]:
    """All findings about exemptions, break-glass and trusted controllers at a time."""
    for index, exemption in enumerate(policy.spec.exemptions):
        path = f"spec.exemptions[{index}]"
        yield from _time(policy, exemption, path, now)
        yield from _never(policy, exemption, path)
        yield from _wide(policy, exemption, path)
        if not exemption.reason.strip():
            yield finding(policy, "warning", "ExemptionWithoutReason", path, name=exemption.name)
    glass = policy.spec.break_glass
    for index, group in enumerate(glass.groups):
        if group in _EVERYBODY or group.startswith(_ACCOUNTS_OF):
            yield finding(policy, "warning", "BreakGlassWide", f"spec.breakGlass.groups[{index}]", group=group)
    if glass.groups and glass.max_age_seconds > _LONG_BREAK_GLASS:
        yield finding(policy, "warning", "BreakGlassLong", "spec.breakGlass.maxAge", age=glass.max_age)
    for index, user in enumerate(policy.spec.trusted_controllers):
        if not user.startswith(_ACCOUNT):
            where = f"spec.trustedControllers[{index}]"
            yield finding(policy, "warning", "TrustedControllerNoAccount", where, user=user)


def _time(policy: Policy, exemption: Exemption, path: str, now: datetime) -> Iterator[LintFinding]:
    if exemption.expires is None:
        yield finding(policy, "info", "ExemptionWithoutEnd", path, name=exemption.name)
    elif exemption.expires <= now:
        ended = exemption.expires.isoformat().replace("+00:00", "Z")
        yield finding(policy, "warning", "ExemptionExpired", f"{path}.expires", name=exemption.name, ended=ended)


def _never(policy: Policy, exemption: Exemption, path: str) -> Iterator[LintFinding]:
    """Filled fields are ANDed: nobody is a listed user and another listed service account at once; `*` is a name."""
    accounts = {_ACCOUNT + account.replace("/", ":", 1) for account in exemption.service_accounts}
    if exemption.users and accounts and not accounts & set(exemption.users):
        yield finding(policy, "error", "ExemptionNeverMatches", path, name=exemption.name)
    for field, values in (("users", exemption.users), ("groups", exemption.groups)):
        for index, value in enumerate(values):
            if "*" in value:
                yield finding(policy, "warning", "ExemptionWildcard", f"{path}.{field}[{index}]", value=value)
    for index, namespace in enumerate(exemption.namespaces):
        if namespace in NEVER_JUDGED:
            where = f"{path}.namespaces[{index}]"
            yield finding(policy, "info", "ExemptionNotNeeded", where, namespace=namespace)


def _wide(policy: Policy, exemption: Exemption, path: str) -> Iterator[LintFinding]:
    """Entries that match more than it looks: a namespace alone, a group of everybody, an account any pod can use."""
    who = bool(exemption.users or exemption.groups or exemption.service_accounts)
    if not who:
        names = ", ".join(exemption.namespaces)
        yield finding(policy, "warning", "ExemptionWholeNamespace", path, name=exemption.name, namespaces=names)
        return
    if not exemption.users and not exemption.service_accounts:
        for index, group in enumerate(exemption.groups):
            where = f"{path}.groups[{index}]"
            if group in _EVERYBODY or group == "system:masters":
                yield finding(policy, "warning", "ExemptionEverybody", where, name=exemption.name, group=group)
            elif group.startswith(_ACCOUNTS_OF):
                namespace = group.removeprefix(_ACCOUNTS_OF)
                yield finding(policy, "warning", "ExemptionByAccount", where, name=exemption.name, namespace=namespace)
    for index, account in enumerate(exemption.service_accounts):
        namespace = account.partition("/")[0]
        if namespace not in NEVER_JUDGED:
            where = f"{path}.serviceAccounts[{index}]"
            yield finding(policy, "warning", "ExemptionByAccount", where, name=exemption.name, namespace=namespace)
    users = [*exemption.users, *(_ACCOUNT + account.replace("/", ":", 1) for account in exemption.service_accounts)]
    for user in users:
        if controller_user(user) is not None:
            yield finding(policy, "warning", "ExemptionController", path, name=exemption.name, user=user)
