"""The quota pre-check: what a request asks of each ResourceQuota, what is taken, and what does not fit (Q, W)."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from webhook.decision import identity, subject, wording
from webhook.decision.answers import Answers
from webhook.decision.apply import Context
from webhook.decision.facts import Note
from webhook.decision.finding import Level, Notes
from webhook.decision.occupancy import Occupancy, Own
from webhook.decision.request import Request
from webhook.decision.subject import Subject
from webhook.decision.wording import Holder, Shortage
from webhook.k8s import limit_range, quota, workloads
from webhook.k8s.objects import PodSpec, ResourceQuota
from webhook.k8s.pod_resources import ResourceProblem
from webhook.k8s.quantity import Quantity, canonical, human, parse
from webhook.k8s.quota import Demand, PodUse
from webhook.language import Language, Tell, say
from webhook.policy.active import Policy

Asking = Sequence[tuple[ResourceQuota, Mapping[str, Quantity]]]
"""Quotas with what they would be charged on top, by key."""

_REQUESTS = "requests."
_BY_USED_ALONE = Occupancy(pods=())
"""How a bare Pod is judged."""


class Ask(msgspec.Struct, frozen=True):
    """What a request wants of the namespace: `pods` of `use` instead of `old_pods` of `old_use`.

    `pods` is what runs at once if nothing is suspended (a CronJob: one run), None for a DaemonSet. `active` and
    `old_active` are the pods that run at once, now or at the next run of a CronJob: 0 while nothing starts any. `gpu`
    and `asks` are resource name -> quantity.
    """

    subject: Subject
    spec: PodSpec
    use: PodUse
    pods: int | None
    active: int
    is_gpu: bool
    gpu: Mapping[str, str]
    asks: Mapping[str, str]
    problems: Sequence[ResourceProblem]
    old_spec: PodSpec | None = None
    old_use: PodUse | None = None
    old_pods: int = 0
    old_active: int = 0


def ask(request: Request, new: Subject, old: Subject | None, facts: Answers, policy: Policy) -> Ask:
    """Read pods and amounts out of the object, with the LimitRange defaults that its pods will get (A13, W1-W15)."""
    limit_ranges = facts.limit_ranges(request.namespace) or ()
    spec = limit_range.apply(new.spec, limit_ranges) if limit_ranges else new.spec
    read = quota.amounts(spec)
    use = quota.use_of(spec, read)
    pods, wanted, active = (1, 1, 1) if new.is_pod else _pods(new)
    gpu = {}
    for key in filter(policy.counts_gpu, use.usage):
        gpu[key] = use.usage[key] * wanted
    spelled = _spelled(gpu)
    asked = Ask(
        subject=new,
        spec=spec,
        use=use,
        pods=pods,
        active=active,
        is_gpu=any(map(use.usage.get, gpu)) or _is_unusable(read.problems, policy),
        gpu=spelled,
        asks={} if new.kind == "CronJob" else spelled,
        problems=read.problems,
    )
    if old is None:
        return asked
    old_spec = limit_range.apply(old.spec, limit_ranges)
    old_use, old_pods = quota.spec_use(old_spec), _old_pods(old)
    more = {key: amount - old_use.usage.get(key, 0) * old_pods for key, amount in gpu.items()}
    return msgspec.structs.replace(
        asked,
        asks={} if new.kind == "CronJob" else _spelled(more),
        old_spec=old_spec,
        old_use=old_use,
        old_pods=old_pods,
        old_active=_active(old, old_pods),
    )


def _is_unusable(problems: Sequence[ResourceProblem], policy: Policy) -> bool:
    """Whether a GPU amount cannot be read: it is no zero, and its author is to be told (B38)."""
    return any(each.reason in ("unparsable", "negative") and policy.is_gpu(each.resource) for each in problems)


def _pods(new: Subject) -> tuple[int | None, int, int]:
    """Pods of a workload: those that run at once if nothing is suspended, those it wants of GPUs, `Ask.active`."""
    assert new.workload is not None
    pods = workloads.pods_if_active(new.kind, new.workload)
    now_wanted = workloads.pods_wanted(new.kind, new.workload) or 0
    idle = pods is not None and (now_wanted == 0 or workloads.is_paused(new.workload))
    wanted = pods or 0 if new.kind == "CronJob" or not idle else now_wanted
    return pods, wanted, _active(new, 0 if idle else now_wanted)


def _old_pods(old: Subject) -> int:
    """Pods that the old object has a right to; one that was paused before it made any has none yet (W6)."""
    pods = workloads.pods_wanted(old.kind, old.workload) or 0
    if old.workload is not None and workloads.is_paused(old.workload) and old.workload.status is not None:
        return min(pods, old.workload.status.replicas or 0)
    return pods


def _active(which: Subject, pods: int) -> int:
    if which.workload is None or which.kind != "CronJob":
        return pods
    return 0 if which.workload.spec.suspend else workloads.pods_if_active(which.kind, which.workload) or 0


def grows(ask: Ask, use: PodUse | None = None, old_use: PodUse | None = None) -> bool:
    """Whether a request asks for more than there was: of anything in all, or pods of another class (H21, H22).

    `use` and `old_use` replace those of `ask` where more is known of the class.
    """
    new, old = use or ask.use, old_use or ask.old_use
    if old is None:
        return True
    if ask.active and _scopes(new) != _scopes(old):
        return True
    return any(one * ask.active > old.usage.get(key, 0) * ask.old_active for key, one in new.usage.items())


def _scopes(use: PodUse) -> tuple[object, ...]:
    return use.priority_class, use.best_effort, use.terminating, use.cross_namespace


def _spelled(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    """Quota keys and amounts as resource names and canonical quantities."""
    spelled = {}
    for key, amount in amounts.items():
        if amount > 0:
            spelled[key[len(_REQUESTS) :]] = canonical(amount)
    return spelled


def note(ask: Ask, request: Request) -> Note | None:
    """What to remember of the request until its pods exist."""
    new, workload = ask.subject, ask.subject.workload
    if workload is None or new.kind == "DaemonSet" or not new.name or new.name.endswith("*"):
        return None
    # managedFields would keep the whole body of the review in memory for as long as the note
    metadata = msgspec.structs.replace(workload.metadata, managed_fields=msgspec.UNSET, annotations=None)
    workload = msgspec.structs.replace(workload, metadata=metadata)
    pods = 0 if new.kind == "CronJob" else ask.active
    return Note(request.namespace, new.kind, new.name, workload.metadata.uid, pods, workload, request.now)


def note_resources(ask: Ask, notes: Notes, language: Language) -> None:
    """Amounts that Kubernetes will refuse are left to it, with a warning that names the place (B38, B39)."""
    for problem in ask.problems:
        reason = say(language, f"resource.{problem.reason.replace('-', '_')}", value=str(problem.value)[:40])
        values = {"container": problem.container or "-", "resource": problem.resource, "reason": reason}
        notes.add("ResourceUnusable", say(language, "decision.resource_unusable", **values), "warn")


class Placed(msgspec.Struct, frozen=True):
    """What placement made of the pods: the class they will have (P16), the class that pods of a template without one
    get here, and whether the template changes (W3)."""

    priority_class: str
    default_class: str
    rolls: bool


def note_claims(quotas: Sequence[ResourceQuota] | None, notes: Notes, language: Language) -> None:
    """Devices asked for through claims are in no sum of ours: never a silent 0 (R15, Q25, B43)."""
    for each in quotas or ():
        keys = [key for key in each.spec.hard or {} if ".deviceclass.resource." in key or "resourceclaims" in key]
        if keys:
            values = {"quota": each.metadata.name, "keys": ", ".join(sorted(keys))}
            notes.add("ClaimsNotCounted", say(language, "decision.claims", **values), "warn")
            return
    notes.add("ClaimsNotCounted", say(language, "decision.claims_note"))


# -- the check --------------------------------------------------------------------------------------------------------


def check(
    ask: Ask, placed: Placed, request: Request, context: Context, policy: Policy, facts: Answers, notes: Notes
) -> bool:
    """Hold the request against every quota of its namespace and note what does not fit.

    No request of a controller is refused for quota, and only its scaling is to be asked about (DESIGN 5.7). Returns
    whether a refusal (or a warning in its place) rests on facts that are not fresh (rule 3).
    """
    if ask.pods is None:
        return False
    quotas = facts.quotas(request.namespace)
    if quotas:
        _note_keys(quotas, policy, context.tell, notes)
    use = _use_with(ask, placed.priority_class)
    return _Check(ask, use, placed, request, context, policy, facts, notes).run(quotas)


def _use_with(ask: Ask, priority_class: str) -> PodUse:
    if priority_class == ask.use.priority_class:
        return ask.use
    return msgspec.structs.replace(ask.use, priority_class=priority_class)


def _note_keys(quotas: Sequence[ResourceQuota], policy: Policy, tell: Tell, notes: Notes) -> None:
    """Keys that were meant to limit GPUs and are never counted (Q2)."""
    for each in quotas:
        ineffective = quota.reading(each).ineffective
        if ineffective and (dead := [key for key in ineffective if policy.counts_gpu(quota.effective_key(key))]):
            effective = ", ".join(dict.fromkeys(map(quota.effective_key, dead)))
            values = {"quota": each.metadata.name, "keys": ", ".join(dead), "effective": effective}
            notes.add("QuotaKeyIneffective", tell("quota_ineffective", **values))


def plainly_fits(ask: Ask, priority_class: str, quotas: Sequence[ResourceQuota] | None, policy: Policy) -> bool:
    """The usual end of a Pod, told in one look: nothing is odd about any quota, and `used` leaves room in each.

    `priority_class` is the one that it will have. Then there is nothing that `check` would say.
    """
    if not quotas:
        return quotas is not None
    usage, checks_all = ask.use.usage, policy.spec.quota.resources == "all"
    for each in quotas:
        found = quota.reading(each)
        if not found.is_sound or found.ineffective:
            return False
        if checks_all and found.demanded and quota.must_specify(each, ask.spec):
            return False
        if found.counts_pods and (not found.has_scopes or quota.matches_scopes(each, _use_with(ask, priority_class))):
            for key, hard in found.hard.items():
                if key in usage and found.used[key] + usage[key] > hard:
                    return False
    return True


class _Check:
    """One request against the quotas of its namespace."""

    def __init__(
        self,
        ask: Ask,
        use: PodUse,
        placed: Placed,
        request: Request,
        context: Context,
        policy: Policy,
        facts: Answers,
        notes: Notes,
    ) -> None:
        self.ask = ask
        self.placed = placed
        self.use = use
        self.request = request
        self.rule = context.rule
        self.tell = context.tell
        self.policy = policy
        self.facts = facts
        self.notes = notes
        self.checks_all = policy.spec.quota.resources == "all"
        self._is_gpu = policy.counts_gpu
        self.old_use = ask.old_use
        if ask.old_use is not None and not ask.old_use.priority_class:
            self.old_use = msgspec.structs.replace(ask.old_use, priority_class=placed.default_class)
        self.grows = grows(ask, self.use, self.old_use)

    def run(self, quotas: Sequence[ResourceQuota] | None) -> bool:
        if quotas is None and self.ask.active and self.grows:
            self._unknown(self.tell("why_read"))
        if not quotas:
            return False
        matching = [each for each in quotas if self._is_readable(each) and quota.matches(each, self.use)]
        self._autoscaler(matching)
        if not self.ask.active:
            self._idle(matching)
            return False
        if self.grows:
            self._note_uncomputed(quotas)
        known = [each for each in matching if self._must_specify(each) and self._is_known(each)]
        return self._one_run(known) if self.ask.subject.kind == "CronJob" else self._compare(known)

    def _is_readable(self, each: ResourceQuota) -> bool:
        """No API server stores amounts that are none; a file may hold them."""
        unreadable = quota.reading(each).unreadable
        if unreadable and self.ask.active and self.grows:
            self._unknown(self.tell("why_status", quota=each.metadata.name, keys=", ".join(sorted(unreadable))))
        return not unreadable

    def _note_uncomputed(self, quotas: Sequence[ResourceQuota]) -> None:
        """A quota whose status is not filled yet is not enforced by Kubernetes, and is unknown to us, not zero (Q5)."""
        for each in quotas:
            if each.status.hard is None and quota.matches_scopes(each, self.use):
                keys = [key for key in each.spec.hard or {} if self.use.usage.get(key) and self._is_checked(key)]
                if keys:
                    self._unknown(self.tell("why_status", quota=each.metadata.name, keys=", ".join(sorted(keys))))

    def _compare(self, quotas: Sequence[ResourceQuota]) -> bool:
        asking = [(each, more) for each in quotas if (more := self._increase(each)) or self._surge()]
        if not asking:
            return False
        occupancy = self._occupancy()
        taken = {each.metadata.name: _Taken(each, occupancy, self.ask.subject) for each, _ in asking}
        short = self._shortages(asking, taken)
        if not short:
            if occupancy.freeing:
                self._note_freeing(asking, taken)
            return self._rollout(asking, taken)
        if self.facts.fresh is None:
            self._unknown(self.tell("why_fresh"))
            return False
        self._refuse(short, occupancy)
        return not self.facts.fresh

    # -- demand --

    def _increase(self, each: ResourceQuota) -> dict[str, Quantity]:
        """What the quota would be charged on top, per key that is checked (Q23, Q30)."""
        old = Demand(self.old_use, self.ask.old_pods) if self.old_use else None
        more = quota.more(each, Demand(self.use, self.ask.pods or 0), old)
        return more if self.checks_all else {key: amount for key, amount in more.items() if self._is_gpu(key)}

    def _is_checked(self, key: str) -> bool:
        return self.checks_all or self._is_gpu(key)

    def _surge(self) -> int:
        """Pods that a rollout makes beyond the wanted number, 0 if this request starts none (W2-W5)."""
        new, old = self.ask.subject.workload, self.old_use
        if new is None or old is None or not self.placed.rolls:
            return 0
        return workloads.rollout(self.ask.subject.kind, new).surge

    def _occupancy(self) -> Occupancy:
        if self.ask.subject.is_pod:
            return _BY_USED_ALONE
        own = Own(self.ask.subject.kind, self.ask.subject.name, self.ask.old_pods)
        return self.facts.occupancy(self.request.namespace, own, self.request.now)

    # -- findings --

    def _shortages(self, asking: Asking, taken: Mapping[str, "_Taken"]) -> list[Shortage]:
        """What does not fit, worst first."""
        short = []
        for each, more in asking:
            hard, held = quota.reading(each).hard, taken[each.metadata.name]
            for key, amount in more.items():
                used = held.of(key)
                if used + amount > hard[key]:
                    short.append(self._shortage(each.metadata.name, key, amount, used, hard[key], held))
        return sorted(short, key=lambda each: each.weight) if len(short) > 1 else short

    def _shortage(
        self, name: str, key: str, amount: Quantity, used: Quantity, hard: Quantity, taken: "_Taken"
    ) -> Shortage:
        one, pods = self.use.usage[key], self.ask.pods or 0
        waits = self.ask.subject.kind in self.policy.spec.quota.waiting_kinds or self.ask.subject.kind == "CronJob"
        never = one > hard or (not waits and one * pods > hard)
        return Shortage(
            quota=name,
            key=key,
            is_gpu=self._is_gpu(key),
            asks=amount,
            each=one,
            pods=pods,
            old_total=self.old_use.usage.get(key, 0) * self.ask.old_pods if self.old_use else 0,
            taken=used,
            hard=hard,
            never=never,
            one_never=one > hard,
            holders=taken.holders(key),
        )

    def _refuse(self, short: Sequence[Shortage], occupancy: Occupancy) -> None:
        never = [each for each in short if each.never]
        code = "QuotaNeverFits" if never else "QuotaExceeded"
        worst = never[0] if never else short[0]
        own = (self.ask.subject.kind, self.ask.subject.name)
        waiting = [each for each in occupancy.waiting if not each.young and (each.kind, each.name) != own]
        note = wording.quota_denial(
            code, [worst, *(each for each in short if each is not worst)], waiting, self.ask.subject.kind, self.tell
        )
        level = self._level(code)
        if level == "deny":
            self.notes.items.append(note)
        else:
            waits = code == "QuotaExceeded" or self._is_recorded()
            self.notes.add(code, self._waits(worst) if waits else note.headline, "warn")

    def _level(self, code: str) -> Level:
        """Whether a quota that would be exceeded denies or only warns."""
        if self._is_recorded():
            return "warn"
        if (self.rule.on_quota_exceeded or self.policy.spec.quota.on_exceeded) == "warn":
            return "warn"
        if code == "QuotaExceeded" and self.ask.subject.kind in self.policy.spec.quota.waiting_kinds:
            return "warn"
        return "deny"

    def _is_recorded(self) -> bool:
        """A scale by a controller: one that is refused would not grow at all, so it is only recorded and told (B36)."""
        return subject.is_scale(self.request) and identity.is_w19(self.request, self.policy.spec)

    def _waits(self, each: Shortage, key: str = "waits") -> str:
        if self._is_recorded():
            key = "scale_recorded"
        return self.tell(
            key,
            asks=human(each.asks, each.key),
            resource=each.resource,
            free=human(each.free, each.key),
            hard=human(each.hard, each.key),
            quota=each.quota,
        )

    def _must_specify(self, each: ResourceQuota) -> bool:
        """Whether every container names what the quota demands (Q17); if not, the pods would all be refused."""
        if not self.checks_all or not quota.reading(each).demanded:
            return True
        missing = quota.must_specify(each, self.ask.spec)
        if not missing or not self._brings(each, missing):
            return not missing
        text = "; ".join(f"{key} for: {', '.join(names)}" for key, names in missing.items())
        headline = self.tell("must_specify", missing=text)
        rows = (
            ("quota", self.tell("must_specify_quota", quota=each.metadata.name)),
            ("fix", self.tell("must_specify_fix")),
        )
        self.notes.add("QuotaMustSpecify", headline, self._level("QuotaMustSpecify"), rows)
        return False

    def _brings(self, each: ResourceQuota, missing: Mapping[str, Sequence[str]]) -> bool:
        """Deny an UPDATE only for what it adds (H21): more pods, or a template that lacks what the old one had."""
        if self.ask.old_spec is None or self.ask.active > self.ask.old_active:
            return True
        return self.placed.rolls and bool(missing.items() - quota.must_specify(each, self.ask.old_spec).items())

    def _is_known(self, each: ResourceQuota) -> bool:
        keys = [key for key in quota.reading(each).unknown if self._is_checked(key)]
        if keys and self.grows and self._increase(each):  # a CronJob has no old pods, its increase is all of a run
            self._unknown(self.tell("why_status", quota=each.metadata.name, keys=", ".join(sorted(keys))))
        return not keys

    def _unknown(self, why: str) -> None:
        denies = self.policy.spec.quota.on_unknown == "deny" and not identity.is_w19(self.request, self.policy.spec)
        if denies:
            rows = (("fix", self.tell("quota_unknown_fix")),)
            self.notes.add("QuotaUnknown", self.tell("quota_unknown_deny", why=why), "deny", rows)
        else:
            self.notes.add("QuotaUnknown", self.tell("quota_unknown", why=why), "warn")

    def _idle(self, quotas: Sequence[ResourceQuota]) -> None:
        """Nothing runs now: never refused, but told if even a single pod can never fit."""
        for each in quotas:
            for key, hard in (each.status.hard or {}).items():
                one = self.use.usage.get(key)
                if one and self._is_checked(key) and one > parse(hard):
                    amounts = {"each": human(one, key), "hard": human(parse(hard), key)}
                    text = self.tell(
                        "idle_never", resource=wording.resource_of(key), quota=each.metadata.name, **amounts
                    )
                    self.notes.add("QuotaNeverFits", text, "warn")
                    return

    def _one_run(self, quotas: Sequence[ResourceQuota]) -> bool:
        """A CronJob is refused only if one run can never fit (W15), and an UPDATE of one only for what it adds."""
        if not self.grows:
            return False
        nothing = Occupancy()
        asking = [(each, self._increase(each)) for each in quotas]
        short = self._shortages(
            asking, {each.metadata.name: _Taken(each, nothing, self.ask.subject) for each in quotas}
        )
        never = [msgspec.structs.replace(each, never=True) for each in short if each.total > each.hard]
        if not never:
            for each in short[:1]:
                self.notes.add("QuotaExceeded", self._waits(each, "cron_waits"), "warn")
            return False
        if self.facts.fresh is None:
            self._unknown(self.tell("why_fresh"))
            return False
        self._refuse(sorted(never, key=lambda each: each.weight), nothing)
        return not self.facts.fresh

    def _rollout(self, asking: Asking, taken: Mapping[str, "_Taken"]) -> bool:
        surge, workload = self._surge(), self.ask.subject.workload
        if not surge or workload is None:
            return False
        missing: list[tuple[bool, Quantity, str, str, bool]] = []
        for each, _ in asking:
            for key, hard in (each.status.hard or {}).items():
                one = self.use.usage.get(key)
                if one and self._is_checked(key):
                    room = parse(hard) - taken[each.metadata.name].of(key)
                    over = self._peak(each, key, surge) - room
                    if over > 0:
                        missing.append((not self._is_gpu(key), -over, key, each.metadata.name, one <= room))
        if not missing:
            return False
        stuck = workloads.rollout(self.ask.subject.kind, workload).unavailable == 0 and not all(m[-1] for m in missing)
        _, over, key, name, _ = min(missing)
        values = {"missing": human(-over, key), "resource": wording.resource_of(key), "quota": name}
        text = self.tell("surge_stuck" if stuck else "surge", fix=self.tell("surge_fix"), **values)
        self.notes.add("RolloutSurge", text, "warn")
        return False

    def _peak(self, each: ResourceQuota, key: str, surge: int) -> Quantity:
        """The most that old and new pods together use during a rollout, beyond what the old ones use (W2, W3).

        It is reached at the start, when new pods join all old ones, or at the end, when few old ones are left.
        """
        pods, old_pods, one = self.ask.pods or 0, self.ask.old_pods, self.use.usage[key]
        charged = self.old_use is not None and quota.matches(each, self.old_use)
        old = self.old_use.usage.get(key, 0) if self.old_use is not None and charged else 0
        joining = min(pods, max(0, pods + surge - old_pods))
        leaving = min(surge, old_pods)
        return max(joining * one, pods * one + leaving * old - old_pods * old)

    def _autoscaler(self, quotas: Sequence[ResourceQuota]) -> None:
        """An HPA whose ceiling is above `hard` will be refused by the quota later (B36)."""
        new = self.ask.subject
        if new.is_pod or not new.row.scales or subject.is_scale(self.request):
            return
        for each in self.facts.autoscalers(self.request.namespace) or ():
            target = each.spec.scale_target_ref
            if (target.kind, target.name) == (new.kind, new.name):
                self._ceiling(each.metadata.name, each.spec.max_replicas, quotas)

    def _ceiling(self, autoscaler: str, replicas: int, quotas: Sequence[ResourceQuota]) -> None:
        for each in quotas:
            for key, hard in (each.status.hard or {}).items():
                wants = self.use.usage.get(key, 0) * replicas
                if self._is_gpu(key) and wants > parse(hard):
                    values = {"wants": human(wants, key), "resource": wording.resource_of(key)}
                    limit = {"quota": each.metadata.name, "hard": human(parse(hard), key)}
                    text = self.tell("autoscaler", autoscaler=autoscaler, replicas=replicas, **values, **limit)
                    self.notes.add("AutoscalerCeiling", text, "warn")
                    return

    def _note_freeing(self, asking: Asking, taken: Mapping[str, "_Taken"]) -> None:
        """Say so where the request fits only because pods that are being deleted count as free."""
        for each, more in asking:
            for key, amount in more.items():
                held, hard = taken[each.metadata.name], quota.reading(each).hard[key]
                freed = held.freeing(key)
                if freed and held.of(key) + freed + amount > hard:
                    unit = wording.amount(freed, key, self._is_gpu(key), self.tell)
                    text = self.tell("freeing", amount=unit, holders=", ".join(held.freeing_names()))
                    self.notes.add("QuotaFreeing", text, "warn")
                    return


class _Taken:
    """What of one quota is taken: max(`used`, charge of live pods + young gaps), less what is on its way out."""

    def __init__(self, each: ResourceQuota, occupancy: Occupancy, new: Subject) -> None:
        self._used = quota.reading(each).used
        self._own = (new.kind, new.name)
        pods, waiting = occupancy.pods, occupancy.waiting
        self._live = [pod for pod in pods if quota.matches_scopes(each, pod)] if pods else []
        self._gaps = [gap for gap in waiting if gap.young and quota.matches_scopes(each, gap.use)] if waiting else []
        self._freeing = [pod for pod in self._live if pod.name in occupancy.freeing] if occupancy.freeing else []
        self._has_pods = pods is not None and not new.is_pod

    def of(self, key: str) -> Quantity:
        """Taken of one key, in its own unit."""
        used = self._used[key]
        if not self._has_pods and not self._gaps:
            return used
        gaps = sum([gap.use.usage.get(key, 0) * gap.pods for gap in self._gaps])
        if not self._has_pods:
            return used + gaps
        freeing = self.freeing(key) if self._freeing else 0
        return max(used, self._charge(self._live, key) + gaps) - freeing

    def freeing(self, key: str) -> Quantity:
        return self._charge(self._freeing, key)

    def freeing_names(self) -> list[str]:
        return [pod.name for pod in self._freeing[:3]]

    def holders(self, key: str) -> tuple[Holder, ...]:
        """Who else holds the key, largest first."""
        held: dict[str, Quantity] = {}
        for pod in self._live:
            if (pod.owner_kind, pod.owner_name) == self._own:
                continue
            name = pod.owner_name or pod.name
            held[name] = held.get(name, 0) + pod.usage.get(key, 0)
        holders = [Holder(name, amount) for name, amount in held.items() if amount > 0]
        for gap in self._gaps:
            amount = gap.use.usage.get(key, 0) * gap.pods
            if amount > 0 and (gap.kind, gap.name) != self._own:
                holders.append(Holder(gap.name, amount, just_admitted=True))
        return tuple(sorted(holders, key=lambda each: (-each.amount, each.name)))

    @staticmethod
    def _charge(pods: Iterable[PodUse], key: str) -> Quantity:
        return sum([pod.usage.get(key, 0) for pod in pods])
