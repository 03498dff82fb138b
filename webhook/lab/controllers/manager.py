"""All control loops together: started before the first object exists, fed by the store, stopped with the lab."""

from collections.abc import Iterable
from typing import Final

from webhook.lab import resources
from webhook.lab.call import User
from webhook.lab.controllers.daemon_set import DaemonSets
from webhook.lab.controllers.deployment import Deployments
from webhook.lab.controllers.garbage import Garbage
from webhook.lab.controllers.job import Jobs
from webhook.lab.controllers.namespaces import Accounts, Namespaces
from webhook.lab.controllers.quota_status import QuotaStatus
from webhook.lab.controllers.replica_set import ReplicaSets
from webhook.lab.controllers.runtime import Client, Controller, Loop, WorkQueue, controller_client
from webhook.lab.controllers.stateful_set import StatefulSets
from webhook.lab.kubelet import Kubelet
from webhook.lab.registry import Registry
from webhook.lab.scheduler import NAME as SCHEDULER
from webhook.lab.scheduler import Scheduler
from webhook.lab.store import Change

_SCHEDULING_PAUSE: Final = 0.01
"""Seconds between a change and the round of scheduling it causes, so that a burst of changes is one round."""

_KUBELET_MOMENT: Final = 0.05
"""Seconds that starting and stopping a pod take."""


class ControllerManager:
    """One thread and one queue per controller."""

    def __init__(self, registry: Registry) -> None:
        self._store = registry.store
        self._pairs = [(controller, queue) for controller, queue in _controllers(registry)]
        self._loops = [Loop(controller, queue) for controller, queue in self._pairs]

    def start(self) -> None:
        self._store.listen(self._dispatch)
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        for _, queue in self._pairs:
            queue.close()
        for loop in self._loops:
            loop.join(2.0)  # one that waits for a webhook's timeout ends with the process

    def _dispatch(self, change: Change) -> None:
        for controller, queue in self._pairs:
            for key in controller.keys(change):
                queue.add(key)


def _controllers(registry: Registry) -> Iterable[tuple[Controller, WorkQueue]]:
    def client(name: str) -> Client:
        return controller_client(registry, name)

    yield Accounts(client("service-account-controller")), WorkQueue()
    yield QuotaStatus(client("resourcequota-controller")), WorkQueue()
    deployments = WorkQueue()
    yield Deployments(client("deployment-controller"), deployments), deployments
    for resource, name in (
        (resources.REPLICA_SETS, "replicaset-controller"),
        (resources.REPLICATION_CONTROLLERS, "replication-controller"),
    ):
        yield ReplicaSets(client(name), resource, name), WorkQueue()
    yield StatefulSets(client("statefulset-controller")), WorkQueue()
    yield DaemonSets(client("daemon-set-controller")), WorkQueue()
    yield Jobs(client("job-controller")), WorkQueue()
    yield Garbage(client("generic-garbage-collector")), WorkQueue()
    yield Namespaces(client("namespace-controller")), WorkQueue()
    scheduler = User("system:kube-scheduler", ("system:authenticated",))
    yield Scheduler(Client(registry, scheduler, SCHEDULER, "kube-scheduler")), WorkQueue(_SCHEDULING_PAUSE)
    kubelet = WorkQueue(_KUBELET_MOMENT)
    yield Kubelet(registry, kubelet), kubelet
