"""The workload kinds: where each keeps its pod template, how many pods it wants, and which controllers act for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from webhook.k8s.names import cached_by_name
from webhook.k8s.objects import (
    ObjectMeta,
    PodTemplate,
    RollingUpdate,
    Strategy,
    Workload,
    WorkloadSpec,
)


@dataclass(frozen=True)
class WorkloadKind:
    """One row of the table: a kind, the resource that serves it and the path of its pod template."""

    kind: str
    group: str
    version: str
    resource: str
    """Plural, lower case."""
    template: str
    """JSON pointer of the pod template; "" for a Pod, which is its own."""
    scales: bool = False
    """Whether it has a scale subresource (W26)."""

    @cached_property
    def api_version(self) -> str:
        """group/version, or the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def pod_spec(self) -> str:
        """JSON pointer of the PodSpec (P12, B17)."""
        return f"{self.template}/spec"

    @cached_property
    def dotted(self) -> str:
        """Path of the PodSpec as people write it: `spec.template.spec`."""
        return self.pod_spec.strip("/").replace("/", ".")


KINDS: Mapping[str, WorkloadKind] = {
    row.kind: row
    for row in (
        WorkloadKind("Pod", "", "v1", "pods", ""),
        WorkloadKind("Deployment", "apps", "v1", "deployments", "/spec/template", scales=True),
        WorkloadKind("StatefulSet", "apps", "v1", "statefulsets", "/spec/template", scales=True),
        WorkloadKind("ReplicaSet", "apps", "v1", "replicasets", "/spec/template", scales=True),
        WorkloadKind("ReplicationController", "", "v1", "replicationcontrollers", "/spec/template", scales=True),
        WorkloadKind("DaemonSet", "apps", "v1", "daemonsets", "/spec/template"),
        WorkloadKind("Job", "batch", "v1", "jobs", "/spec/template"),
        WorkloadKind("CronJob", "batch", "v1", "cronjobs", "/spec/jobTemplate/spec/template"),
    )
}

_REPLICATED = frozenset(row.kind for row in KINDS.values() if row.scales)

JOB_CONTROLLER = "kubernetes.io/job-controller"


def by_kind(kind: str, group: str | None = None) -> WorkloadKind | None:
    """The row of `kind`; with `group`, only if it is that API group's (a foreign `Job` is none of ours)."""
    row = KINDS.get(kind)
    return row if row is not None and group in (None, row.group) else None


def group_of(api_version: str) -> str:
    """The group of an apiVersion: "apps/v1" -> "apps", "v1" -> ""."""
    return api_version.rpartition("/")[0]


def template_of(workload: Workload) -> PodTemplate | None:
    """The pod template of a workload; None where it is missing or null, which API validation refuses (W9)."""
    spec = workload.spec
    if workload.kind == "CronJob" or (not workload.kind and spec.job_template is not None):
        if spec.job_template is None:
            return None
        return spec.job_template.spec.template if spec.job_template.spec is not None else None
    return spec.template


# -- how many pods ----------------------------------------------------------------------------------------------------


def pods_wanted(kind: str, workload: Workload | None = None) -> int | None:
    """How many pods the workload's controller will keep, as it stands now; None where nobody can know (DaemonSet, W10).

    A paused Deployment counts its replicas, for scaling it still scales its ReplicaSets (W6, see `is_paused`). A
    suspended Job and a CronJob want none now (W12, W15), a Job that another controller runs none of the built-in one
    (W14). With a status, a Job wants no more than what is left to do (W11).
    """
    if kind == "Pod":
        return 1
    if kind == "DaemonSet":
        return None
    if workload is None or kind == "CronJob":
        return 0
    if kind == "Job":
        return 0 if workload.spec.suspend else _job_pods(workload)
    return replicas_of(workload)


def pods_if_active(kind: str, workload: Workload | None = None) -> int | None:
    """Like `pods_wanted`, but as if nothing were suspended: a Job's pods while it runs, one run of a CronJob (W15)."""
    if kind == "Job" and workload is not None:
        return _job_pods(workload)
    if kind == "CronJob" and workload is not None:
        return _job_pods(run_of(workload))
    return pods_wanted(kind, workload)


def replicas_of(workload: Workload) -> int:
    """`spec.replicas`, 1 where it is missing; an explicit 0 stays 0 (W1)."""
    replicas = workload.spec.replicas
    return 1 if replicas is None else max(0, replicas)


def is_paused(workload: Workload) -> bool:
    """Whether a Deployment is paused: it makes no new ReplicaSet, but scales the ones it has (W6)."""
    return bool(workload.spec.paused)


def run_of(cron_job: Workload) -> Workload:
    """The Job that one run of a CronJob makes (W15)."""
    template = cron_job.spec.job_template
    job = template.spec if template is not None and template.spec is not None else None
    spec = WorkloadSpec()
    if job is not None:
        spec = WorkloadSpec(
            parallelism=job.parallelism,
            completions=job.completions,
            completion_mode=job.completion_mode,
            suspend=job.suspend,
            managed_by=job.managed_by,
            template=job.template,
        )
    metadata = msgspec.structs.replace(cron_job.metadata, name="", generate_name=f"{cron_job.metadata.name}-")
    return Workload(kind="Job", api_version="batch/v1", metadata=metadata, spec=spec)


def is_finished(job: Workload) -> bool:
    """Whether a Job is complete or failed and will make no more pods."""
    conditions = job.status.conditions if job.status is not None else None
    return any(c.type in ("Complete", "Failed") and c.status == "True" for c in conditions or ())


def _job_pods(job: Workload) -> int:
    """How many pods an unsuspended Job runs at once (W11, W13, W14)."""
    spec, status = job.spec, job.status
    if spec.managed_by not in (None, "", JOB_CONTROLLER) or is_finished(job):
        return 0
    parallelism = max(0, spec.parallelism if spec.parallelism is not None else 1)
    succeeded = (status.succeeded or 0) if status is not None else 0
    completions = spec.completions
    if completions is None and spec.parallelism is None:
        completions = 1
    if completions is not None:
        return min(parallelism, max(0, completions - succeeded))
    if succeeded and status is not None:  # a work queue starts nothing new after its first success
        return min(parallelism, status.active) if isinstance(status.active, int) else 0
    return parallelism


class Rollout(NamedTuple):
    """How far a rollout may leave the wanted number of pods, in pods."""

    surge: int
    """More than wanted, at once."""
    unavailable: int
    """Fewer than wanted."""


def rollout(kind: str, workload: Workload, replicas: int | None = None) -> Rollout:
    """Surge and unavailability of a template change (W2-W5, W8); `replicas` overrides the workload's own number.

    Only a Deployment makes new pods before old ones go. A percentage that cannot be read counts as the default.
    """
    if kind == "StatefulSet":
        return Rollout(0, 1)
    if kind != "Deployment":
        return Rollout(0, 0)
    wanted = replicas_of(workload) if replicas is None else replicas
    strategy = workload.spec.strategy or Strategy()
    if strategy.type == "Recreate":
        return Rollout(0, wanted)
    rolling = strategy.rolling_update or RollingUpdate()
    surge = _share(rolling.max_surge, wanted, round_up=True)
    unavailable = _share(rolling.max_unavailable, wanted, round_up=False)
    if not surge and not unavailable:
        unavailable = 1  # else no rollout could ever move
    return Rollout(surge, min(unavailable, wanted))


def _share(value: int | str | None, replicas: int, *, round_up: bool) -> int:
    """An int-or-percent of `replicas`; missing means 25 % (W2)."""
    if isinstance(value, int):
        return max(0, value)
    digits = value[:-1] if value is not None and value.endswith("%") else "25"
    percent = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 25
    return -(-percent * replicas // 100) if round_up else percent * replicas // 100


def defaulted(kind: str, workload: Workload) -> Workload:
    """`workload` with the API defaults that decide how many pods it wants, for offline manifests (W1, W11)."""
    spec = workload.spec
    if kind in _REPLICATED and spec.replicas is None:
        spec = msgspec.structs.replace(spec, replicas=1)
    if kind == "Deployment":
        spec = msgspec.structs.replace(spec, strategy=_defaulted_strategy(spec.strategy))
    if kind == "Job":
        unset = spec.parallelism is None and spec.completions is None
        spec = msgspec.structs.replace(
            spec,
            completions=1 if unset else spec.completions,
            parallelism=1 if spec.parallelism is None else spec.parallelism,
            suspend=bool(spec.suspend),
        )
    if kind == "CronJob":
        spec = msgspec.structs.replace(
            spec, concurrency_policy=spec.concurrency_policy or "Allow", suspend=bool(spec.suspend)
        )
    return workload if spec is workload.spec else msgspec.structs.replace(workload, spec=spec)


def _defaulted_strategy(strategy: Strategy | None) -> Strategy:
    given = strategy or Strategy()
    if given.type not in (None, "", "RollingUpdate"):
        return given
    rolling = given.rolling_update or RollingUpdate()
    return Strategy(
        type="RollingUpdate",
        rolling_update=RollingUpdate(
            max_surge="25%" if rolling.max_surge is None else rolling.max_surge,
            max_unavailable="25%" if rolling.max_unavailable is None else rolling.max_unavailable,
        ),
    )


# -- who acts ---------------------------------------------------------------------------------------------------------

_SERVICE_ACCOUNT = "system:serviceaccount:kube-system:"
MANAGER_USER = "system:kube-controller-manager"
"""The user of every controller where the manager runs without per-controller credentials (W19)."""
_CONTROLLERS = frozenset(
    (
        "replicaset-controller",
        "deployment-controller",
        "statefulset-controller",
        "daemon-set-controller",
        "job-controller",
        "cronjob-controller",
        "replication-controller",
        "horizontal-pod-autoscaler",
        "generic-garbage-collector",
    )
)


@cached_by_name
def controller_user(username: str) -> str | None:
    """Which built-in controller this user is ("replicaset-controller"; "kube-controller-manager" is all), see W19."""
    if username == MANAGER_USER:
        return "kube-controller-manager"
    if not username.startswith(_SERVICE_ACCOUNT):
        return None
    name = username[len(_SERVICE_ACCOUNT) :]
    return name if name in _CONTROLLERS else None


def is_deployment_controller(username: str) -> bool:
    """Whether a ReplicaSet written by this user may be the Deployment controller's: never touch it (W21)."""
    return controller_user(username) in ("deployment-controller", "kube-controller-manager")


def controlling_kind(metadata: ObjectMeta) -> WorkloadKind | None:
    """The row of the controller owner's kind, if it is one of ours (W17). Client data: trust it with the user (W18)."""
    owner = metadata.controller
    return None if owner is None else by_kind(owner.kind, group_of(owner.api_version))


def is_mirror(metadata: ObjectMeta) -> bool:
    """Whether a Pod only mirrors one that a kubelet already runs (P15)."""
    owner = metadata.controller
    marked = "kubernetes.io/config.mirror" in (metadata.annotations or {})
    return marked and owner is not None and owner.kind == "Node"
