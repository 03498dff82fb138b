"""Quantities: what the API server reads, adds and prints (R10, O3, B38)."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.k8s.quantity import Amount, QuantityError, canonical, human, parse, parse_amount

EXA = 10**18


@pytest.mark.parametrize(
    ("spelling", "value"),
    [
        (1, 1),
        ("1", 1),
        (1.0, 1),
        ("1e0", 1),
        ("1E0", 1),
        ("1k", 1000),
        ("2000m", 2),
        ("500m", Decimal("0.5")),
        ("1E", EXA),
        ("01", 1),
        (" 1", 1),
        ("-1", -1),
    ],
)
def test_b38_spellings_of_a_number_of_gpus(spelling: Any, value: Any) -> None:
    assert parse(spelling) == value


@pytest.mark.parametrize(
    "garbage",
    ["", " ", "true", True, False, None, [], {}, "abc", "1i", "1.1.M", "1+1", "0.1mi", "1K", "1e", "1e-", "1 G", "１"],
)
def test_b38_what_does_not_parse_is_named_and_never_counted_as_zero(garbage: Any) -> None:
    with pytest.raises(QuantityError) as refused:
        parse(garbage)
    assert repr(garbage) in str(refused.value)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("lone_suffix", ["k", "Gi", "m", "+", "-", ".", "e0"])
def test_a_suffix_without_a_number_is_refused(lone_suffix: str) -> None:
    with pytest.raises(QuantityError):
        parse(lone_suffix)


@pytest.mark.parametrize(
    ("spelling", "value"),
    [
        ("1n", Decimal("1e-9")),
        ("1u", Decimal("1e-6")),
        ("3M", 3 * 10**6),
        ("3G", 3 * 10**9),
        ("3T", 3 * 10**12),
        ("3P", 3 * 10**15),
        ("1Ki", 2**10),
        ("1Mi", 2**20),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        ("1.5Gi", 1536 * 2**20),
        ("+5", 5),
        (".5", Decimal("0.5")),
        ("1.", 1),
        ("2e3", 2000),
        ("2E+3", 2000),
        ("25e-1", Decimal("2.5")),
        ("0e99999999", 0),
        (0.25, Decimal("0.25")),
    ],
)
def test_every_suffix_and_exponent(spelling: Any, value: Any) -> None:
    assert parse(spelling) == value


def test_whole_numbers_are_ints_whatever_their_spelling() -> None:
    assert all(type(parse(spelling)) is int for spelling in ("1", "2000m", "1.0", "1e0", "1.5Gi", 2.0))


def test_finer_than_nano_is_rounded_up_away_from_zero() -> None:
    assert parse("1e-12") == Decimal("1e-9")
    assert parse("-1e-12") == Decimal("-1e-9")
    assert parse("1.0000000001") == Decimal("1.000000001")


def test_binary_amounts_are_capped_like_int64() -> None:
    assert parse("100Ei") == 2**63 - 1


@pytest.mark.parametrize("bomb", ["1e999999999", "9" * 101, "1e-999999999" + "0" * 100])
def test_hostile_lengths_are_refused_quickly(bomb: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse(bomb)
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize(
    ("spelling", "printed"),
    [
        ("1000", "1k"),
        ("2000m", "2"),
        ("1.5", "1500m"),
        ("1500m", "1500m"),
        ("1k", "1k"),
        ("2e0", "2e0"),
        ("1e3", "1e3"),
        ("1e1", "10"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("1000Ki", "1000Ki"),
        ("0.5Gi", "512Mi"),
        ("0Gi", "0"),
        ("0", "0"),
        ("512", "512"),
        ("1000E", "1e21"),
        ("-2000", "-2k"),
    ],
)
def test_r10_o3_canonical_spelling(spelling: str, printed: str) -> None:
    assert str(parse_amount(spelling)) == printed


def test_canonical_prints_in_the_format_of_the_operand() -> None:
    assert canonical(1152 * 2**20, like="128Mi") == "1152Mi"
    assert canonical(4000, like="1") == "4k"
    assert canonical(4000, like="2e0") == "4e3"
    assert canonical(Decimal("4.1"), like="500m") == "4100m"


def test_a_sum_keeps_the_format_of_the_first_unless_that_is_zero() -> None:
    assert str(parse_amount("128Mi") + parse_amount("1G")) == canonical(128 * 2**20 + 10**9, like="1Mi")
    assert str(parse_amount("0") + parse_amount("2Gi")) == "2Gi"
    assert str(parse_amount("3") + parse_amount("1e0")) == "4"
    assert str(parse_amount("500m") + parse_amount("500m")) == "1"
    assert parse_amount("2") > parse_amount("1900m")
    assert not Amount(0)


@pytest.mark.parametrize(
    ("value", "resource", "shown"),
    [
        (1000, "nvidia.com/gpu", "1000"),
        (4 * 2**30, "memory", "4Gi"),
        (4 * 2**30, "requests.memory", "4Gi"),
        (10**9, "limits.memory", "1G"),
        (Decimal("0.5"), "cpu", "500m"),
        (Decimal("2.0"), "cpu", "2"),
        (0, "memory", "0"),
    ],
)
def test_human_spelling(value: Any, resource: str, shown: str) -> None:
    assert human(value, resource) == shown


@given(st.integers(-(10**15), 10**15), st.sampled_from(["1", "1Gi", "2e0"]))
def test_what_is_printed_reads_back_as_the_same_number(nano: int, like: str) -> None:
    value = Decimal(nano).scaleb(-9)
    assert parse(canonical(value, like)) == value
