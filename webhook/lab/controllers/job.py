"""Jobs: as many pods as still needed, until enough succeeded (W11-W14); finished pods lose their finalizer (H2)."""

from collections.abc import Iterable, Iterator
from typing import Final

from webhook.k8s import workloads
from webhook.k8s.objects import Workload
from webhook.lab import errors, resources, strategy, typed
from webhook.lab.controllers.runtime import (
    Client,
    Key,
    condition,
    create_pod,
    find_condition,
    is_active,
    is_finished,
    is_ready,
    is_terminating,
    key_of,
    owned,
    owner_of,
    pod_from,
    with_condition,
)
from webhook.lab.resources import Object, copied
from webhook.lab.store import Change

TRACKING: Final = "batch.kubernetes.io/job-tracking"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"


class Jobs:
    """The job controller. It counts finished pods when it takes their finalizer away, and never twice."""

    name = "job-controller"

    def __init__(self, client: Client) -> None:
        self._client = client

    def keys(self, change: Change) -> Iterator[Key]:
        obj = change.record.object
        if change.resource is resources.JOBS:
            yield key_of(obj)
        elif change.resource is resources.PODS:
            owner = owner_of(obj, "Job")
            if owner:
                yield obj["metadata"]["namespace"], owner

    def sync(self, key: Key) -> None:
        job = self._client.get(resources.JOBS, key)
        if job is None:
            self._release(self._pods_of(key))
            return
        if job["spec"].get("managedBy", workloads.JOB_CONTROLLER) != workloads.JOB_CONTROLLER:
            return  # W14
        pods = owned(self._client.store, resources.PODS, job)
        job = self._count(job, pods)
        failure: errors.ApiError | None = None
        if "deletionTimestamp" not in job["metadata"] and not _finished(job):
            failure = self._manage(job)
        self._report(job)
        if failure is not None and not is_terminating(failure):
            raise failure

    def _pods_of(self, key: Key) -> list[Object]:
        return [p for p in self._client.store.objects(resources.PODS, key[0]) if owner_of(p, "Job") == key[1]]

    # -- finished pods ----------------------------------------------------------------------------------------------

    def _count(self, job: Object, pods: list[Object]) -> Object:
        """Add tracked pods that ended to the status, then let them go."""
        ended = [pod for pod in pods if _tracked(pod) and (is_finished(pod) or "deletionTimestamp" in pod["metadata"])]
        if not ended:
            return job
        succeeded = sum(pod["status"].get("phase") == "Succeeded" for pod in ended)
        status = copied(job["status"])
        for field, more in (("succeeded", succeeded), ("failed", len(ended) - succeeded)):
            if more:
                status[field] = status.get(field, 0) + more
        job = self._client.update_status(resources.JOBS, job, status)
        self._release(ended)
        return job

    def _release(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            if not _tracked(pod):
                continue
            changed = copied(pod)
            changed["metadata"]["finalizers"].remove(TRACKING)
            try:
                self._client.update(resources.PODS, changed)
            except errors.ApiError as error:
                if error.reason != "NotFound":
                    raise

    # -- active pods ------------------------------------------------------------------------------------------------

    def _manage(self, job: Object) -> errors.ApiError | None:
        pods = owned(self._client.store, resources.PODS, job)
        active = [pod for pod in pods if is_active(pod)]
        if job["status"].get("failed", 0) > job["spec"].get("backoffLimit", 6):
            self._delete(active)
            return None
        wanted = workloads.pods_wanted("Job", typed.read({**job, "status": _known(job, active)}, Workload)) or 0
        if len(active) > wanted:
            self._delete(active[wanted:])
        free = _free_indexes(job, pods)
        for _ in range(wanted - len(active)):
            try:
                create_pod(self._client, job, _pod(job, next(free, None)))
            except errors.ApiError as error:
                return error
        return None

    def _delete(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            self._client.delete(resources.PODS, pod)

    # -- status -----------------------------------------------------------------------------------------------------

    def _report(self, job: Object) -> None:
        current = self._client.get(resources.JOBS, key_of(job))
        if current is None:
            return
        pods = owned(self._client.store, resources.PODS, current)
        active = [pod for pod in pods if is_active(pod)]
        status = copied(current["status"])
        now = strategy.now()
        if not current["spec"].get("suspend") and not _finished(current):
            status.setdefault("startTime", now)
        status["ready"] = sum(map(is_ready, active))
        status["terminating"] = sum("deletionTimestamp" in p["metadata"] and not is_finished(p) for p in pods)
        status["uncountedTerminatedPods"] = {}
        status.pop("active", None)
        if active:
            status["active"] = len(active)
        conditions = _conditions(current, status, active, now)
        if conditions:
            status["conditions"] = conditions
        newly = _finished({**current, "status": status}) and not _finished(current)
        if newly and find_condition(status, "Complete"):
            status["completionTime"] = now
        self._client.update_status(resources.JOBS, current, status)
        if newly:
            self._announce(current, status)

    def _announce(self, job: Object, status: Object) -> None:
        if find_condition(status, "Complete"):
            self._client.events.record(job, "Normal", "Completed", "Job completed")
        else:
            text = "Job has reached the specified backoff limit"
            self._client.events.record(job, "Warning", "BackoffLimitExceeded", text)


def _tracked(pod: Object) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or [])


def _finished(job: Object) -> bool:
    return any(
        c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in job["status"].get("conditions") or []
    )


def _known(job: Object, active: list[Object]) -> Object:
    """The status that decides how many pods are wanted (W11)."""
    return {"succeeded": job["status"].get("succeeded", 0), "active": len(active)}


def _free_indexes(job: Object, pods: list[Object]) -> Iterator[int | None]:
    """For an Indexed job the completion indexes that no pod has or had success with (W13)."""
    if job["spec"].get("completionMode") != "Indexed":
        return
    taken = {
        pod["metadata"].get("annotations", {}).get(_INDEX)
        for pod in pods
        if is_active(pod) or pod["status"].get("phase") == "Succeeded"
    }
    yield from (index for index in range(job["spec"].get("completions", 0)) if str(index) not in taken)


def _pod(job: Object, index: int | None) -> Object:
    name = job["metadata"]["name"]
    pod = pod_from(job["spec"]["template"], job, f"{name}-" if index is None else f"{name}-{index}-")
    metadata = pod["metadata"]
    metadata["finalizers"] = [*metadata.get("finalizers", []), TRACKING]
    if index is not None:
        metadata["annotations"] = {**metadata.get("annotations", {}), _INDEX: str(index)}
        metadata["labels"] = {**metadata.get("labels", {}), _INDEX: str(index)}
        pod["spec"]["hostname"] = f"{name}-{index}"
    return pod


def _conditions(job: Object, status: Object, active: list[Object], now: str) -> list[Object]:
    conditions = list(status.get("conditions") or [])
    if _finished(job):
        return conditions
    spec, succeeded = job["spec"], status.get("succeeded", 0)
    wanted = spec.get("completions")
    done = succeeded >= wanted if wanted is not None else bool(succeeded) and not active
    if status.get("failed", 0) > spec.get("backoffLimit", 6):
        text = "Job has reached the specified backoff limit"
        for kind in ("FailureTarget", "Failed"):
            conditions = with_condition(conditions, condition(kind, "True", "BackoffLimitExceeded", text, now))
    elif done:
        text = "Reached expected number of succeeded pods"
        for kind in ("SuccessCriteriaMet", "Complete"):
            conditions = with_condition(conditions, condition(kind, "True", "CompletionsReached", text, now))
    elif spec.get("suspend"):
        conditions = with_condition(conditions, condition("Suspended", "True", "JobSuspended", "Job suspended", now))
    elif find_condition(status, "Suspended"):
        conditions = with_condition(conditions, condition("Suspended", "False", "JobResumed", "Job resumed", now))
    return conditions
