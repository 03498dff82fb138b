"""Quantities as apimachinery reads, adds and prints them: exact numbers from "1", "500m", "2e0" or "4Gi".

A quantity is an `int` when it is whole and a `Decimal` otherwise, so that GPUs are plain integers and nothing is ever
a float. `Amount` also keeps how the number was spelled, which only Kubernetes' own messages need (O3, Q9).
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from webhook.k8s.names import cached_by_name

Quantity = int | Decimal
"""An exact number; whole numbers are ints."""

Format = Literal["DecimalSI", "BinarySI", "DecimalExponent"]

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_NAMES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SPELLING = re.compile(
    r"([+-]?)(?=\.?[0-9])0*([0-9]*)(?:\.([0-9]*))?(?:([numkMGTPE]?)|([KMGTPE]i)|[eE]([+-]?[0-9]+))", re.ASCII
)
LONGEST = 100  # characters, and digits before the decimal point: nothing real comes near, hostile text goes past
_MAX_BINARY = 2**63 - 1


class QuantityError(ValueError):
    """A value that Kubernetes would refuse to read as a quantity; the message names it."""

    def __init__(self, value: Any) -> None:
        shown = repr(value)
        super().__init__(f"{shown if len(shown) <= 60 else shown[:57] + '...'} is not a quantity")
        self.value = value


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity with its format: adds, compares and prints as apimachinery's Quantity does."""

    value: Quantity
    format: Format = "DecimalSI"
    text: str | None = None
    """The spelling, where apimachinery keeps it ("2e0"); a sum has none."""

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(whole(self.value + other.value), self.format if self.value else other.format)

    def __gt__(self, other: "Amount") -> bool:
        return self.value > other.value

    def __str__(self) -> str:
        return self.text if self.text is not None else _print(self.value, self.format)

    def __bool__(self) -> bool:
        return bool(self.value)


def parse(value: Any) -> Quantity:
    """The exact number behind `value`: a string as the API server accepts it, or a plain number from YAML.

    Surrounding blanks and leading zeros are accepted; amounts finer than nano are rounded away from zero (B38). Null is
    the caller's matter. Raises QuantityError for booleans, "" and everything else that is no quantity. A lone suffix
    ("Gi"), which apimachinery happens to take for 0, is refused too: it would count silently as nothing.
    """
    try:
        return _value(value)
    except TypeError:  # a list or a map cannot even be looked up in the cache
        raise QuantityError(value) from None


def parse_amount(value: Any) -> Amount:
    """Like `parse`, but keeps format and spelling for printing. Raises QuantityError."""
    return _read(value if type(value) is str else _number_text(value))


def whole(value: Quantity) -> Quantity:
    """`value` as an int if it is whole: sums of halves may have become so."""
    return value if type(value) is int or value != int(value) else int(value)


def canonical(value: Quantity, like: Any = None) -> str:
    """Kubernetes' canonical spelling of `value`, in the format of the quantity `like`, else DecimalSI (R10, O3).

    1000 -> "1k", 1.5 -> "1500m", 1610612736 like "1Gi" -> "1536Mi". Raises QuantityError if `like` is no quantity.
    """
    return _canonical(value, "DecimalSI" if like is None else parse_amount(like).format)


def human(value: Quantity, resource: str = "") -> str:
    """`value` for people: bytes as 4Gi, everything else counted out ("1k" is shown as 1000, half a CPU as 500m).

    `resource` is a resource name or quota key; it only decides whether the number is in bytes.
    """
    if counts_bytes(resource):
        return _print(value, "BinarySI" if value % 1024 == 0 else "DecimalSI")
    if type(value) is int or type(value := whole(value)) is int:
        return str(value)
    return _print(value, "DecimalSI")


@cached_by_name
def counts_bytes(resource: str) -> bool:
    """Whether amounts of this resource name or quota key are bytes."""
    name = resource.removeprefix("requests.").removeprefix("limits.")
    return name in ("memory", "ephemeral-storage", "storage") or name.startswith("hugepages-")


def _number_text(value: Any) -> str:
    """The JSON text of a number; YAML gives us 1 or 1.0 where JSON had a string."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise QuantityError(value)
    return str(value)


@lru_cache(maxsize=4096, typed=True)
def _value(value: Any) -> Quantity:
    if type(value) is int:
        return value
    return _read(value if type(value) is str else _number_text(value)).value


@lru_cache(maxsize=4096)
def _read(text: str) -> Amount:
    match = _SPELLING.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if match is None:
        raise QuantityError(text)
    sign, digits, fraction, decimal, binary, exponent = match.groups(default="")
    number = int(digits + fraction or "0")
    scale = -len(fraction)
    if binary:
        value = _scaled(number << _BINARY[binary], scale)
        format_: Format = "BinarySI" if value >= 1 or not value else "DecimalSI"
        value = min(value, _MAX_BINARY)
    else:
        scale += int(exponent) if exponent else _DECIMAL[decimal]
        format_ = "DecimalExponent" if exponent else "DecimalSI"
        if number and scale + len(str(number)) > LONGEST:
            raise QuantityError(text)
        value = _scaled(number, scale)
    keeps = scale % 3 == 0 and digits and not (digits + fraction).endswith("000") and not binary
    return Amount(-value if sign == "-" else value, format_, text.strip() if keeps or text == "0" else None)


def _scaled(number: int, scale: int) -> Quantity:
    """number x 10^scale, rounded up to a whole nano."""
    if scale >= 0 or not number:
        return int(number * 10**scale) if number else 0
    if scale < -9:
        # -(-a // b) rounds up; beyond the number's own length every amount is one nano
        number, scale = (-(-number // 10 ** (-9 - scale)) if -scale < 2 * LONGEST else 1), -9
    quotient, rest = divmod(number, int(10**-scale))
    if not rest:
        return quotient
    while number % 10 == 0:
        number, scale = number // 10, scale + 1
    return Decimal(f"{number}e{scale}")


@lru_cache(maxsize=4096, typed=True)
def _canonical(value: Quantity, format_: Format) -> str:
    return _print(value, format_)


def _print(value: Quantity, format_: Format) -> str:
    value = whole(value)
    if type(value) is int and -1000 < value < 1000:
        return str(value)
    if format_ == "BinarySI" and type(value) is int and abs(value) >= 1024:
        power = 0
        while value % 1024 == 0 and power < len(_BINARY_NAMES) - 1:
            value, power = value // 1024, power + 1
        return f"{value}{_BINARY_NAMES[power]}"
    number, exponent = _without_thousands(value)
    if format_ == "DecimalExponent" or exponent not in _DECIMAL_NAMES:
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_NAMES[exponent]}"


def _without_thousands(value: Quantity) -> tuple[int, int]:
    """(number, exponent) with value = number x 10^exponent, exponent a multiple of 3 and as large as it can be."""
    number, exponent = (value, 0) if type(value) is int else (int(Decimal(value).scaleb(9)), -9)
    while number % 1000 == 0:
        number, exponent = number // 1000, exponent + 3
    return number, exponent
