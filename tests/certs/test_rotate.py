"""Rotation, decided from stored material and time alone: nobody serves what nobody trusts, for years."""

import datetime as dt
import random
from dataclasses import replace

import pytest

from webhook.certs import issue, rotate
from webhook.certs.describe import read_certificates, trusted
from webhook.certs.issue import Pair
from webhook.certs.rotate import Action, Material

NAMES = issue.service_names("gpu-webhook", "gpu-webhook")
START = dt.datetime(2026, 12, 1, 8, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


def step(material: Material | None, now: dt.datetime) -> tuple[Action, Material]:
    plan = rotate.decide(material, NAMES, now)
    return plan.action, rotate.apply(plan, material, NAMES, now)


def fresh(now: dt.datetime = START) -> Material:
    action, material = step(None, now)
    assert action is Action.NEW_CA
    return material


def test_nothing_stored_makes_an_authority_and_a_leaf() -> None:
    material = fresh()
    (authority,) = read_certificates(material.bundle)
    (leaf,) = read_certificates(material.leaf.cert)
    assert leaf.issued_by(authority)
    assert leaf.names == NAMES
    assert leaf.has_key(material.leaf.key)
    assert authority.has_key(material.ca_key)


def test_a_second_look_keeps_everything() -> None:
    material = fresh()
    assert step(material, START + DAY) == (Action.KEEP, material)


def test_leaf_is_renewed_at_two_thirds_of_its_life() -> None:
    material = fresh()
    assert step(material, START + dt.timedelta(days=59))[0] is Action.KEEP
    action, after = step(material, START + dt.timedelta(days=61))
    assert action is Action.RENEW_LEAF
    assert after.bundle == material.bundle


def test_authority_is_joined_by_a_new_one_long_before_its_end() -> None:
    """The leaf stays the old one's until the bundle of both has long been published."""
    now = START + dt.timedelta(days=480)
    material = fresh()
    leaf = issue.new_leaf(Pair(read_certificates(material.bundle)[0].pem, material.ca_key), NAMES, now)
    material = replace(material, leaf=leaf)
    now += dt.timedelta(days=10)
    action, overlap = step(material, now)
    assert action is Action.NEW_CA
    new, old = read_certificates(overlap.bundle)
    assert old.not_after - now > dt.timedelta(days=200)
    assert overlap.leaf == material.leaf
    assert step(overlap, now + dt.timedelta(hours=12))[0] is Action.KEEP
    action, after = step(overlap, now + rotate.SETTLE)
    assert action is Action.RENEW_LEAF
    assert read_certificates(after.leaf.cert)[0].issued_by(new)
    assert read_certificates(after.bundle) == (new, old)


def test_a_leaf_due_while_a_new_authority_settles_waits() -> None:
    overlap = fresh()
    old = read_certificates(overlap.bundle)[0]
    now = START + dt.timedelta(days=61)
    ca = issue.new_ca(now)
    overlap = Material(ca.cert + old.pem, ca.key, overlap.leaf)
    assert step(overlap, now)[0] is Action.KEEP
    assert step(overlap, now + rotate.SETTLE)[0] is Action.RENEW_LEAF


def test_other_names_renew_the_leaf_at_once() -> None:
    plan = rotate.decide(fresh(), ("elsewhere.example",), START)
    assert plan.action is Action.RENEW_LEAF
    assert "wanted are elsewhere.example" in plan.reason


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"bundle": b"garbage"}, Action.NEW_CA),
        ({"bundle": b""}, Action.NEW_CA),
        ({"ca_key": b"garbage"}, Action.NEW_CA),
        ({"ca_key": issue.new_ca(START).key}, Action.NEW_CA),
        ({"leaf": Pair(b"garbage", b"garbage")}, Action.RENEW_LEAF),
        ({"leaf": issue.new_leaf(issue.new_ca(START), NAMES, START)}, Action.RENEW_LEAF),
    ],
)
def test_whatever_was_broken_by_hand_is_mended_in_one_step(broken: dict[str, object], expected: Action) -> None:
    action, mended = step(replace(fresh(), **broken), START)  # type: ignore[arg-type]
    assert action is expected
    assert step(mended, START)[0] is Action.KEEP


def test_after_years_asleep_one_step_serves_a_trusted_leaf_again() -> None:
    now = START + dt.timedelta(days=3000)
    action, material = step(fresh(), now)
    assert action is Action.NEW_CA
    assert len(read_certificates(material.bundle)) == 1
    assert trusted(read_certificates(material.leaf.cert)[0], read_certificates(material.bundle), now)


@pytest.mark.parametrize("seed", range(3))
def test_b54_for_three_years_every_published_bundle_trusts_every_served_leaf(seed: int) -> None:
    """Looks happen now and then; publishing and serving lag behind the Secret by up to hours: no gap at any instant.

    The API server holds the bundle of the last publication, a pod the leaf that the kubelet brought last; each may be
    older than the Secret by a lag of its own.
    """
    random_ = random.Random(seed)
    now, stored = START, fresh()
    history = [(now, stored)]
    end = START + dt.timedelta(days=3 * 365)
    seen = {Action.NEW_CA: 0, Action.RENEW_LEAF: 0, Action.KEEP: 0}
    while now < end:
        now += dt.timedelta(hours=random_.choice([1, 6, 24, 24, 24, 24 * 7]))
        action, stored = step(stored, now)
        seen[action] += 1
        history.append((now, stored))
        serves = _as_of(history, now - dt.timedelta(hours=random_.choice([0, 1, 12])))
        trusts = _as_of(history, now - dt.timedelta(hours=random_.choice([0, 1, 12])))
        for instant in (now, now + dt.timedelta(minutes=30)):
            leaf = read_certificates(serves.leaf.cert)[0]
            assert trusted(leaf, read_certificates(trusts.bundle), instant), (seed, now)
    assert seen[Action.NEW_CA] >= 2
    assert seen[Action.RENEW_LEAF] >= 15


def _as_of(history: list[tuple[dt.datetime, Material]], when: dt.datetime) -> Material:
    return next((material for made, material in reversed(history) if made <= when), history[0][1])
