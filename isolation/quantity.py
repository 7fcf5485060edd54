"""Kubernetes quantities: read exactly, written in the API server's own spelling. Nothing is rounded.

A quantity is a decimal number with a decimal exponent, an SI suffix (``n u m k M G T P E``) or a binary one
(``Ki`` … ``Ei``).
"""

import re
from decimal import Context, Decimal

_FORM = re.compile(r"([+-]?)(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:([eE][+-]?\d{1,3})|([numkKMGTPE]i?))?", re.ASCII)
_SI = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_EXACT = Context(prec=400, traps=[])
"""Precise enough that no product of what ``_FORM`` admits is ever rounded."""

_MIB_SUFFIXES = ((2**20, "Ti"), (2**10, "Gi"), (1, "Mi"))


def parse(value: object) -> Decimal | None:
    """The quantity's exact value, or None when it is no quantity."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    found = _FORM.fullmatch(str(value)) if isinstance(value, str) else _FORM.fullmatch(str(value)[:64])
    if found is None:
        return None
    sign, number, exponent, suffix = found.groups()
    scale = _scale(exponent, suffix)
    return None if scale is None else _EXACT.multiply(Decimal(f"{sign}{number}"), scale)


def _scale(exponent: str | None, suffix: str | None) -> Decimal | None:
    if exponent is not None:
        return Decimal(f"1{exponent}")
    if suffix is None:
        return Decimal(1)
    if suffix in _SI:
        return Decimal(10) ** _SI[suffix]
    return Decimal(2 ** _BINARY[suffix]) if suffix in _BINARY else None


def equal(one: object, other: object) -> bool:
    """True when both are quantities of the same value; False when either is none."""
    left, right = parse(one), parse(other)
    return left is not None and left == right


def cpu(millicores: int) -> str:
    """The server's spelling of so many thousandths of a processor: ``250m``, ``2``."""
    whole, rest = divmod(millicores, 1000)
    return f"{millicores}m" if rest else str(whole)


def mebibytes(amount: int) -> str:
    """The server's spelling of so many MiB: ``512Mi``, ``2Gi``."""
    for factor, suffix in _MIB_SUFFIXES:
        if amount % factor == 0 and amount:
            return f"{amount // factor}{suffix}"
    return str(amount)
