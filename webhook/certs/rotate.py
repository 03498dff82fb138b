"""Decides, from what is stored and the time, whether certificates stay, a leaf is renewed or an authority is replaced.

An authority is replaced in steps, so that at no instant somebody serves what somebody else does not trust yet:
1. at two thirds of its life a new authority joins the bundle (new + old); the leaf stays the old one's;
2. after SETTLE, when the bundle has long been published, the leaf is renewed by the new authority;
3. the old authority leaves the bundle when it has expired, a third of its life later.
The old authority's key is forgotten at step 1: nothing is signed with it again.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from webhook.certs.describe import Certificate, read_certificates, trusted
from webhook.certs.issue import Pair, new_ca, new_leaf

SETTLE = dt.timedelta(days=1)


@dataclass(frozen=True)
class Material:
    """What is kept: the trusted authorities (PEM, newest first), the newest one's key, and the serving pair."""

    bundle: bytes
    ca_key: bytes
    leaf: Pair


class Action(Enum):
    KEEP = "keep"
    RENEW_LEAF = "renew the serving certificate"
    NEW_CA = "add a new authority"


@dataclass(frozen=True)
class Plan:
    """What to do and why, in words for a log line."""

    action: Action
    reason: str


def decide(material: Material | None, names: Sequence[str], now: dt.datetime) -> Plan:
    """The next step. It is a function of its arguments alone, so two helpers that see the same Secret agree."""
    if material is None:
        return Plan(Action.NEW_CA, "nothing is stored yet")
    try:
        authority = read_certificates(material.bundle)[0]
    except ValueError:
        return Plan(Action.NEW_CA, "the stored authority cannot be read")
    if not authority.has_key(material.ca_key):
        return Plan(Action.NEW_CA, "the stored key does not belong to the newest authority")
    if now >= authority.renew_at:
        return Plan(Action.NEW_CA, f"the authority ends at {authority.not_after:%Y-%m-%d}")
    return _decide_leaf(material, authority, names, now)


def apply(plan: Plan, material: Material | None, names: Sequence[str], now: dt.datetime) -> Material:
    """Carry out a plan of `decide` for the same arguments: makes keys and certificates, stores nothing."""
    if plan.action is Action.NEW_CA:
        return _with_new_ca(material, names, now)
    assert material is not None
    if plan.action is Action.KEEP:
        return material
    authorities = read_certificates(material.bundle)
    return replace(
        material,
        bundle=b"".join(ca.pem for ca in _worth_keeping(authorities, now)),
        leaf=new_leaf(Pair(authorities[0].pem, material.ca_key), names, now),
    )


def _decide_leaf(material: Material, authority: Certificate, names: Sequence[str], now: dt.datetime) -> Plan:
    leaf = _usable_leaf(material, now)
    if leaf is None:
        return Plan(Action.RENEW_LEAF, "the stored serving certificate is not valid")
    if set(leaf.names) != set(names):
        return Plan(Action.RENEW_LEAF, f"its names are {', '.join(leaf.names)}; wanted are {', '.join(names)}")
    settled = now >= authority.not_before + SETTLE
    if now >= leaf.renew_at and (settled or leaf.not_after - now <= SETTLE):
        return Plan(Action.RENEW_LEAF, f"it ends at {leaf.not_after:%Y-%m-%d}")
    if settled and not leaf.issued_by(authority):
        return Plan(Action.RENEW_LEAF, "it moves to the new authority")
    return Plan(Action.KEEP, f"good until {leaf.not_after:%Y-%m-%d}, renewed from {leaf.renew_at:%Y-%m-%d}")


def _with_new_ca(material: Material | None, names: Sequence[str], now: dt.datetime) -> Material:
    ca = new_ca(now)
    old = _authorities(material)
    bundle = ca.cert + b"".join(authority.pem for authority in _worth_keeping(old, now))
    if material is None or _usable_leaf(material, now) is None:
        return Material(bundle, ca.key, new_leaf(ca, names, now))
    return Material(bundle, ca.key, material.leaf)


def _usable_leaf(material: Material, now: dt.datetime) -> Certificate | None:
    """The stored leaf, if its key fits and the stored bundle trusts it now."""
    try:
        leaf = read_certificates(material.leaf.cert)[0]
        bundle = read_certificates(material.bundle)
    except ValueError:
        return None
    if not leaf.has_key(material.leaf.key) or not trusted(leaf, bundle, now):
        return None
    return leaf


def _authorities(material: Material | None) -> tuple[Certificate, ...]:
    if material is None:
        return ()
    try:
        return read_certificates(material.bundle)
    except ValueError:
        return ()


def _worth_keeping(authorities: Sequence[Certificate], now: dt.datetime) -> list[Certificate]:
    return [authority for authority in authorities if now <= authority.not_after]
