"""How decisions are told: the layout of a denial (DESIGN 5.4), one-line warnings, and amounts as people write them."""

import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache

import msgspec

from webhook.decision.finding import Note, Notes
from webhook.decision.occupancy import Waiting
from webhook.k8s.quantity import Quantity, counts_bytes, human, whole
from webhook.language import Language, Tell, messages
from webhook.policy.model import Mode, Spec

LONGEST_WARNING = 256
"""Characters; the API server may cut what is longer (V18)."""
_LABEL_COLUMNS = 11
_INDENT = "  "
_MOST_HOLDERS = 3
_REPLICATED = frozenset({"Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"})
_POD_KEYS = frozenset({"pods", "count/pods"})
_WHOLE_GPUS = frozenset({"nvidia.com/gpu", "amd.com/gpu"})

_RANK = {
    "QuotaNeverFits": 0,
    "QuotaExceeded": 1,
    "QuotaMustSpecify": 1,
    "PoolConflict": 2,
    "PriorityConflict": 2,
    "NodeNameOutsidePool": 2,
    "NotPlaced": 3,
    "PriorityClassMissing": 3,
    "RolloutSurge": 4,
    "QuotaUnknown": 5,
    "FactsUnknown": 5,
    "ScaleParentUnknown": 5,
    "QuotaFreeing": 6,
    "AutoscalerCeiling": 7,
}
"""The most important warning comes first (DESIGN 5.4); what is not listed comes last, in the order it was found."""


class Holder(msgspec.Struct, frozen=True):
    """A workload (or bare Pod) that holds some of a quota."""

    name: str
    amount: Quantity
    just_admitted: bool = False


class Shortage(msgspec.Struct, frozen=True):
    """One quota key that does not fit. Amounts are exact, in the key's unit; `pods` of `each` are wanted in all."""

    quota: str
    key: str
    is_gpu: bool
    asks: Quantity
    each: Quantity
    pods: int
    old_total: Quantity
    taken: Quantity
    hard: Quantity
    never: bool
    one_never: bool
    holders: tuple[Holder, ...]

    @property
    def free(self) -> Quantity:
        return max(self.hard - self.taken, 0)

    @property
    def missing(self) -> Quantity:
        return self.asks - self.hard + self.taken

    @property
    def total(self) -> Quantity:
        return self.each * self.pods

    @property
    def resource(self) -> str:
        return resource_of(self.key)

    @property
    def weight(self) -> tuple[bool, bool, float, str]:
        """Sort key, worst first: what never fits, GPUs, the largest share missing."""
        share = float(self.missing / self.hard) if self.hard else float("inf")
        return (not self.never, not self.is_gpu, -share, self.key)


def resource_of(key: str) -> str:
    """A quota key as people name it: GPUs without `requests.` (nvidia.com/gpu), everything else as it is."""
    return key.removeprefix("requests.") if "/" in key else key


def amount(value: Quantity, key: str, is_gpu: bool, tell: Tell) -> str:
    """`2 GPUs`, `3 nvidia.com/mig-1g.10gb`, `4Gi requests.memory`, `1 pod`."""
    if key in _POD_KEYS:
        return tell("pods_one" if value == 1 else "pods_many", count=value)
    if is_gpu and resource_of(key) in _WHOLE_GPUS:
        return tell("unit_gpu_one" if value == 1 else "unit_gpu_many", count=human(value, key))
    return tell("unit_other", count=human(value, key), resource=resource_of(key))


# -- the quota denial -------------------------------------------------------------------------------------------------


def quota_denial(code: str, short: Sequence[Shortage], waiting: Sequence[Waiting], kind: str, tell: Tell) -> Note:
    """The denial for one or more quota keys, worst first."""
    worst, key = short[0], short[0].key
    which = "gpu" if worst.is_gpu else "other"
    asks, free, hard, resource = human(worst.asks, key), human(worst.free, key), human(worst.hard, key), worst.resource
    headline = tell(
        f"quota_{which}_{'never' if code == 'QuotaNeverFits' else 'not_now'}",
        asks=asks,
        wants=human(worst.total, key),
        free=free,
        hard=hard,
        resource=resource,
    )
    first, second = _aligned(
        (tell("asks_total", total=asks, resource=resource), _per_pod(worst, kind, tell)),
        (tell("used_of", used=human(worst.taken, key), hard=hard), tell("used_quota", quota=worst.quota)),
    )
    rows = [("asks", first), ("used", second), ("free", free)]
    rows += [("also_over", _also_over(each, tell)) for each in short[1:]]
    if waiting and (text := _waiting(worst, waiting, tell)):
        rows.append(("waiting", text))
    rows.append(("fix", _fix(code, short, kind, tell)))
    return Note(code, headline, "deny", rows)


def _per_pod(each: Shortage, kind: str, tell: Tell) -> str:
    """Where the amount comes from: pods and their size, or what an update adds to what was there."""
    if each.old_total:
        return tell("asks_more", total=human(each.total, each.key), before=human(each.old_total, each.key))
    return tell("asks_pods", pods=_pods(each.pods, kind, tell), each=human(each.each, each.key))


def _pods(count: int, kind: str, tell: Tell) -> str:
    noun = "replicas" if kind in _REPLICATED else "pods"
    return tell(f"{noun}_one" if count == 1 else f"{noun}_many", count=count)


def _aligned(one: tuple[str, str], other: tuple[str, str]) -> tuple[str, str]:
    """Two columns: amounts, and what they come from in brackets."""
    wider = columns(one[0]) - columns(other[0])  # less than no blanks are none
    return (
        f"{one[0]}  {' ' * -wider}{one[1]}",
        f"{other[0]}  {' ' * wider}{other[1]}",
    )


def _also_over(each: Shortage, tell: Tell) -> str:
    values = {
        "asks": human(each.asks, each.key),
        "free": human(each.free, each.key),
        "hard": human(each.hard, each.key),
    }
    return f"{tell('over_more', resource=each.resource, **values)}  {tell('used_quota', quota=each.quota)}"


def _waiting(worst: Shortage, waiting: Sequence[Waiting], tell: Tell) -> str:
    wants = [
        tell("waiting_one", name=each.name, amount=human(each.use.usage.get(worst.key, 0) * each.pods, worst.key))
        for each in waiting
        if each.use.usage.get(worst.key)
    ]
    return tell("waiting", waiting=tell("holder_join").join(wants[:_MOST_HOLDERS])) if wants else ""


def _fix(code: str, short: Sequence[Shortage], kind: str, tell: Tell) -> str:
    """The largest request that would fit now (else: ever), and who would have to make room for this one."""
    worst = short[0]
    smaller = _smaller([(each, each.free + each.old_total) for each in short], kind, tell)
    if code == "QuotaNeverFits":
        smaller = smaller or _smaller([(each, each.hard) for each in short], kind, tell)
        other = tell("fix_raise", quota=worst.quota)
    elif worst.holders:
        other = tell("fix_free_by", amount=human(worst.missing, worst.key), holders=_holders(worst, tell))
    else:
        other = tell("fix_free", amount=amount(worst.missing, worst.key, worst.is_gpu, tell))
    return tell("fix_or", one=smaller, other=other) if smaller else other


def _smaller(room: Sequence[tuple[Shortage, Quantity]], kind: str, tell: Tell) -> str:
    """What would fit into every quota's room: fewer pods of this size, else smaller pods; "" if nothing."""
    pods = room[0][0].pods
    fits = min([pods, *[int(available // each.each) for each, available in room]])
    if kind != "Pod" and fits >= 1 and pods > 1:
        if kind in ("Job", "CronJob"):
            return tell("fix_parallelism", count=fits)
        return tell("fix_replicas", replicas=_pods(fits, kind, tell))
    shares: dict[str, tuple[Quantity, Shortage]] = {}
    for each, available in room:
        share = _share(available, pods, each)
        if share <= 0:
            return ""
        if each.key not in _POD_KEYS:
            shares[each.resource] = min(
                shares.get(each.resource, (share, each)), (share, each), key=lambda pair: pair[0]
            )
    sizes = [amount(share, each.key, each.is_gpu, tell) for share, each in shares.values()]
    if not sizes:
        return ""
    return tell("fix_per_replica" if kind in _REPLICATED else "fix_per_pod", amount=tell("and").join(sizes))


def _share(available: Quantity, pods: int, each: Shortage) -> Quantity:
    """What each of `pods` pods may use: whole devices, cpu to the milli, bytes to the Mi, always rounded down."""
    if pods < 1:
        return 0
    if each.key in _POD_KEYS or each.is_gpu:
        return int(available // pods)
    if counts_bytes(each.key):
        fine = int(available // pods)
        return fine // 2**20 * 2**20 or fine
    return whole(Decimal(int(available * 1000 // pods)) / 1000)


def _holders(worst: Shortage, tell: Tell) -> str:
    told = [
        tell("holder_new" if each.just_admitted else "holder", name=each.name, amount=human(each.amount, worst.key))
        for each in worst.holders[:_MOST_HOLDERS]
    ]
    return tell("holder_join").join(told)


# -- layout -----------------------------------------------------------------------------------------------------------


def denial(denials: Sequence[Note], spec: Spec, decision_id: str) -> str:
    """The text of a refusal: every reason with its rows, then the contact, and always the decision id last (5.4)."""
    lines: list[str] = []
    labels = _labels(spec.language)
    for note in denials:
        lines.append(note.headline)
        for label, text in note.rows:
            lines.append(labels[label] + text)
    if spec.contact:
        lines.append(labels["contact"] + spec.contact)
    lines.append(labels["decision"] + decision_id)
    return "\n".join(lines)


@cache
def _labels(language: Language) -> Mapping[str, str]:
    """What rows open with, padded to where their texts begin."""
    padded = {}
    for label, name in messages(language, "label").items():
        padded[label] = f"{_INDENT}{name}{' ' * max(1, _LABEL_COLUMNS - columns(name))}"
    return padded


def columns(text: str) -> int:
    """Terminal columns of a text: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def warnings(notes: Notes, mode: Mode, verdict: str) -> tuple[str, ...]:
    """What the user is told beside the verdict, most important first; in audit mode nothing (DESIGN 5.1)."""
    if mode == "audit":
        return ()
    denied = verdict == "deny"
    told = [each for each in notes.items if each.level == "warn" or (each.level == "deny" and not denied)]
    if not told:
        return ()
    ranked = sorted(told, key=lambda each: (each.level != "deny", _RANK.get(each.code, 9)))
    return tuple(dict.fromkeys(warning(each.headline) for each in ranked))


def warning(text: str) -> str:
    """One line of at most 256 characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_WARNING else f"{line[: LONGEST_WARNING - 1]}…"
