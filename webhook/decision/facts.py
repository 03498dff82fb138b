"""What a decision asks of a cluster: the boundary behind which live, snapshot and replayed facts look alike."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from webhook.k8s.objects import (
    HorizontalPodAutoscaler,
    LimitRange,
    Pod,
    PriorityClass,
    ResourceQuota,
    Workload,
)


class SeenWorkload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A workload and when its present generation was first seen, in epoch seconds (a list: since its creation)."""

    workload: Workload
    seen_at: float = 0.0


class Note(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What this process has just admitted (validate phase, never a dry run) and whose pods may not exist yet.

    `pods` more pods of `workload` (its template says what each uses) were admitted at `at`, epoch seconds; `generation`
    is None for a CREATE. Taken in `/validate` only; it ends when the pods appear, the object is gone or after 15 s.
    """

    namespace: str
    kind: str
    name: str
    uid: str
    pods: int
    workload: Workload
    at: float


class Facts(Protocol):
    """An immutable view of a cluster. None always means "could not be learned", never "there is none".

    Every method is a plain look-up in memory, except that a miss may cost one bounded live read (H16).
    """

    @property
    def is_fresh(self) -> bool:
        """Whether quotas, workloads and pods come from one read made for this decision (or from a snapshot)."""

    def namespace_labels(self, namespace: str) -> Mapping[str, str] | None: ...

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None: ...

    def limit_ranges(self, namespace: str) -> Sequence[LimitRange] | None: ...

    def priority_classes(self) -> Mapping[str, PriorityClass] | None:
        """All PriorityClasses by name."""

    def pool_sizes(self, label: str) -> Mapping[str, int] | None:
        """How many nodes carry each value of a node label."""

    def node_labels(self, node: str) -> Mapping[str, str] | None:
        """The labels of one node; an empty mapping for a node without labels; None if unknown or missing."""

    def parent(self, namespace: str, kind: str, name: str) -> Workload | None:
        """The workload that a Scale speaks of (W25); None if it could not be read."""

    def autoscalers(self, namespace: str) -> Sequence[HorizontalPodAutoscaler] | None: ...

    def workloads(self, namespace: str) -> Sequence[SeenWorkload] | None:
        """All workloads of a namespace, ReplicaSets included (owners are followed through them)."""

    def pods(self, namespace: str) -> Sequence[Pod] | None:
        """All pods of a namespace; None unless the facts are fresh (pods are never watched)."""

    def notes(self, namespace: str) -> Sequence[Note]:
        """What this process has just admitted in a namespace."""


class MustWaitError(Exception):
    """An answer needs a live read, and whoever asks may not wait for one: to be asked again by somebody who may.

    Asking again costs nothing but time, because `decide` is pure.
    """


class FactSource(Protocol):
    """Who hands out facts: `webhook.cluster.live` or `webhook.cluster.snapshot`."""

    def current(self, may_wait: bool = True) -> Facts:
        """The facts as last published; cheap, never blocks.

        Without `may_wait`, they raise MustWaitError where they would read what was not published (H16).
        """

    def fresh(self, namespace: str, timeout: float = 0.3) -> Facts | None:
        """One bounded read of a namespace's quotas, workloads and pods; None if it failed in time (rule 3)."""

    def note(self, note: Note) -> None:
        """Remember what was just admitted."""
