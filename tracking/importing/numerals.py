"""Numbers as people and spreadsheets write them; what could be read two ways is refused."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone

_PLAIN = re.compile(r"\+?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_DECIMAL_COMMA = re.compile(r"[0-9]{1,30},[0-9]{1,30}")
_THOUSANDS = re.compile(r"[0-9]{1,3}([,.' ][0-9]{3})+")


def positive(text: str, *, decimal_comma: bool = False) -> float:
    """Return a finite number above zero.

    `decimal_comma`: the file's cells are parted by something else, so that `12,5` can be one
    number. Raises `ValueError` with the reason: a formula, a word, a negative or ambiguous number.
    """
    number = not_negative(text, decimal_comma=decimal_comma)
    if number == 0:
        raise ValueError(f"{text!r} is not above zero")
    return number


def not_negative(text: str, *, decimal_comma: bool = False) -> float:
    """Return a finite number from zero; otherwise like `positive`."""
    text = text.strip()
    shown = text[:40]
    if text.startswith(("=", "@")):
        raise ValueError(f"{shown!r} is a formula: save the file with its values")
    if text.startswith("-") and _PLAIN.fullmatch(text[1:]):
        raise ValueError(f"{shown!r} is negative")
    if "," in text:
        if _THOUSANDS.fullmatch(text):
            raise ValueError(f"{shown!r} can be read two ways: write it without the comma")
        if not decimal_comma or not _DECIMAL_COMMA.fullmatch(text):
            raise ValueError(f"{shown!r} is not a number: write a decimal point")
        text = text.replace(",", ".")
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"{shown!r} is not a number")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{shown!r} is too large")
    return number


def count(text: str) -> int:
    """Return a whole number from zero; a spreadsheet's `64.0` is one. Raises `ValueError`."""
    number = not_negative(text)
    if number != int(number) or number > 2**53:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(number)


def instant(text: str) -> datetime:
    """Return an ISO 8601 instant that names its time zone, in UTC. Raises `ValueError`."""
    found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError("no time zone")
    if not 2000 <= found.year <= 2200:
        raise ValueError("no year of a benchmark")
    return found.astimezone(timezone.utc)
