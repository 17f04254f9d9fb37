"""Numbers as Nsight Compute prints them: by the locale it ran in, which the file does not name.

`1.234` is 1234 under de_DE and a fraction under C, and nothing in the text tells which. Such a
number is kept as `Unsure` until another number of the same table shows the locale; a table without
one is refused, except for a lone comma in a whole base unit (see `bench.profilers.files.table`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

#: Thousands separators that are never a decimal mark: spaces of every width, apostrophes. A byte
#: that is not UTF-8 was spelled out when the file was decoded: 0xA0 and 0xFF are the no-break
#: space of Windows' and of DOS's code pages.
_SPACES = re.compile(r"\\xa0|\\xff|[ \u00a0\u2007\u2009\u202f'\u2019]")
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}|[0-9]+")
_ONE_MARK = re.compile(r"([0-9]*)([.,])([0-9]+)")
#: 1,234,567 or, as India groups, 12,34,567.
_GROUPS = r"(?:[0-9]{{1,3}}(?:{0}[0-9]{{3}})+|[0-9]{{1,2}}(?:{0}[0-9]{{2}})+{0}[0-9]{{3}})"
_DOT_GROUPS = re.compile(rf"({_GROUPS.format('[.]')})(?:,([0-9]+))?")
_COMMA_GROUPS = re.compile(rf"({_GROUPS.format(',')})(?:[.]([0-9]+))?")
_SPACE_GROUPS = re.compile(rf"({_GROUPS.format('_')})(?:([.,])([0-9]+))?")
_MISSING = frozenset({"", "n/a", "nan", "-nan", "-nan(ind)", "inf", "-inf"})
_LONGEST = 60


@dataclass(frozen=True)
class Sure:
    """A number of one meaning, and what its spelling proves of the locale.

    `mark` is its decimal mark; a space where spaces group thousands, so that neither dot nor comma
    does; empty where it proves nothing.
    """

    value: Decimal
    mark: str = ""


@dataclass(frozen=True)
class Unsure:
    """`digits` or a thousandth of it, by whether `mark` groups thousands or begins a fraction."""

    digits: int
    mark: str


def read_number(text: str) -> Sure | Unsure | None:
    """Return the number that `text` spells, or None for `n/a`, an empty cell and not-a-number.

    Raises `ValueError` if it spells no count: letters, signs, groups of odd length.
    """
    if len(text) > _LONGEST or "\n" in text:  # a cell over two lines is damaged
        raise ValueError(text[:_LONGEST])
    return _read(text.strip().removeprefix("(!)").strip())


@lru_cache(maxsize=65536)
def _read(text: str) -> Sure | Unsure | None:
    if text.lower() in _MISSING:
        return None
    if _PLAIN.fullmatch(text):
        return Sure(Decimal(text))
    if _SPACES.search(text):
        return _spaced(_SPACES.sub("_", text))
    if one := _ONE_MARK.fullmatch(text):
        return _one_mark(*one.groups())
    for pattern, mark in ((_DOT_GROUPS, ","), (_COMMA_GROUPS, ".")):
        if found := pattern.fullmatch(text):
            whole = re.sub(r"\D", "", found[1])
            return Sure(Decimal(f"{whole}.{found[2] or 0}"), mark)
    raise ValueError(text)


def _spaced(text: str) -> Sure:
    found = _SPACE_GROUPS.fullmatch(text)
    if not found:
        raise ValueError(text)
    return Sure(Decimal(f"{found[1].replace('_', '')}.{found[3] or 0}"), found[2] or " ")


def _one_mark(whole: str, mark: str, rest: str) -> Sure | Unsure:
    """One dot or comma: a fraction, unless what follows could be a group of thousands."""
    if len(rest) == 3 and 1 <= len(whole) <= 3 and not whole.startswith("0"):
        return Unsure(int(whole + rest), mark)
    return Sure(Decimal(f"{whole or 0}.{rest}"), mark)


def between(mean: Unsure, low: str, high: str, *, whole: bool) -> Sure | Unsure:
    """Decide `mean` by the smallest and the largest value, which are `whole` numbers or not."""
    try:
        bounds = [read_number(low), read_number(high)]
    except ValueError:
        return mean
    readings = [Decimal(mean.digits), Decimal(mean.digits).scaleb(-3)]
    for bound, sign in zip(bounds, (1, -1), strict=True):
        if isinstance(bound, Sure):
            readings = [value for value in readings if sign * (value - bound.value) >= 0]
    if len(readings) == 1:
        return Sure(readings[0])
    marked = any(isinstance(bound, Unsure) and bound.mark == mean.mark for bound in bounds)
    if marked and mean.mark == "," and whole:
        return Sure(Decimal(mean.digits))  # whole numbers beside it have the comma too
    return mean
