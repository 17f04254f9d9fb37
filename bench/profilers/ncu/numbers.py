"""Numbers and units as Nsight Compute prints them.

Numbers are spelled by the locale that ncu ran in, which the file does not name: `1.234` is 1234
under de_DE and a fraction under C, and nothing in the text decides. Such a number is doubtful
until another number of the same table shows the locale (`TableTotals`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from functools import lru_cache

#: Counters are added up in arithmetic that refuses to round.
EXACT = Context(prec=1000, traps=[Inexact])
#: What a text is read as.
REFUSED, MISSING, NUMBER, DOUBTFUL = range(4)
_LONGEST = 60
_MISSING = ("", "n/a", "nan", "-nan", "-nan(ind)", "inf", "-inf")
#: Thousands separators that are never a decimal mark: spaces of every width, apostrophes.
_SPACES = re.compile("[ \u00a0\u2007\u2009\u202f'\u2019]")
#: The no-break space of Windows' and of DOS's code pages, spelled out when the row was decoded.
_SPELLED_SPACES = r"\\xa0|\\xff"
_EXPONENT = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}")
#: The marks by their codes in `Numbers.mark`.
MARKS = ("", ".", ",", " ")


def _bare(text: str) -> str:
    """A number without spaces and ncu's warning sign around it."""
    return text.strip().removeprefix("(!)").strip()


@lru_cache(maxsize=4096)
def _spelling(text: str) -> tuple[int, int, int]:
    """Return kind, code of the mark, and decimals of a number.

    1,234,567 is grouped, and 12,34,567 is, as in India. A single mark is a decimal one, unless
    what follows could be a group of thousands: then the number is doubtful. Spaces that group
    thousands show a locale in which neither dot nor comma does.
    """
    if len(text) > _LONGEST or "\n" in text:  # a cell over two lines is damaged
        return REFUSED, 0, 0
    text = _SPACES.sub(" ", _bare(text))
    if text.lower() in _MISSING:
        return MISSING, 0, 0
    parts = re.split("([., ])", text)
    (first, *others), marks = parts[::2], parts[1::2]
    if not re.fullmatch("[0-9]+", "".join([first, *others])) or not all(others):
        return REFUSED, 0, 0
    if not marks:
        return NUMBER, 0, 0
    mark, decimals = marks[-1], len(others[-1])
    if len(marks) == 1 and mark != " ":
        if decimals == 3 and re.fullmatch("[1-9][0-9]{0,2}", first):
            return DOUBTFUL, MARKS.index(mark), 0
        return NUMBER, MARKS.index(mark), decimals
    if len(set(marks)) == 1 and _is_grouped(first, others):
        return NUMBER, MARKS.index({",": ".", ".": ",", " ": " "}[mark]), 0
    if (
        len(set(marks[:-1])) == 1
        and mark not in {" ", marks[0]}
        and _is_grouped(first, others[:-1])
    ):
        return NUMBER, MARKS.index(mark), decimals
    return REFUSED, 0, 0


def _is_grouped(first: str, groups: Sequence[str]) -> bool:
    """Whether digits are in thousands, or in hundreds but for the last thousand."""
    lengths = [len(group) for group in groups]
    by_hundreds = len(first) <= 2 and lengths == [*[2] * (len(lengths) - 1), 3]
    return 1 <= len(first) <= 3 and (set(lengths) == {3} or by_hundreds)


@dataclass(frozen=True)
class Reading:
    """One number. A doubtful one is `value`, or a thousandth of it if `mark` is a decimal mark."""

    value: Decimal
    mark: str = ""
    doubtful: bool = False


@lru_cache(maxsize=4096)
def read_number(text: str) -> Reading | None:
    """Return the number that `text` spells, or None for `n/a`, an empty cell and not-a-number.

    Raises `ValueError` if it spells no count.
    """
    if text.isascii() and text.isdigit() and len(text) <= _LONGEST:
        return Reading(Decimal(text))
    text = re.sub(_SPELLED_SPACES, "'", text)
    kind, mark, decimals = _spelling(text)
    if kind == REFUSED:
        text = _bare(text)
        if len(text) <= _LONGEST and _EXPONENT.fullmatch(text):
            return Reading(Decimal(text))
        raise ValueError("not a number that ncu prints")
    if kind == MISSING:
        return None
    digits = Decimal("".join(re.findall("[0-9]", text)))
    value = digits.scaleb(-decimals, EXACT)
    return Reading(value, MARKS[mark], kind == DOUBTFUL)


def marks_shown(text: str, unit: str) -> set[str]:
    """The decimal mark that a figure proves; only those with a unit are spelled by the locale."""
    if text.isdigit() or not unit.strip():
        return set()
    kind, mark, _ = _spelling(re.sub(_SPELLED_SPACES, "'", text))
    return {MARKS[mark]} if kind == NUMBER and mark else set()


def decided_mean(mean: Reading, bounds: Sequence[str], *, whole: bool) -> Reading:
    """Decide a doubtful mean by the smallest and the largest value, which are `whole` or not."""
    try:
        low_high = [read_number(text) for text in bounds]
    except ValueError:
        return mean
    possible = [mean.value, mean.value.scaleb(-3)]
    for bound, sign in zip(low_high, (1, -1), strict=True):
        if bound and not bound.doubtful:
            possible = [value for value in possible if sign * (value - bound.value) >= 0]
    if len(possible) == 1:
        return Reading(possible[0])
    marked = any(bound and bound.doubtful and bound.mark == mean.mark for bound in low_high)
    return Reading(mean.value) if marked and mean.mark == "," and whole else mean


# Units, old spellings and new, as exact powers of ten

_TIMES = {
    0: ("s", "sec", "second", "seconds"),
    -3: ("ms", "msecond", "millisecond", "milliseconds"),
    -6: ("us", "usecond", "microsecond", "microseconds", "\u00b5s", "\u03bcs"),
    -9: ("ns", "nsecond", "nanosecond", "nanoseconds"),
}
_SECONDS = {name: power for power, names in _TIMES.items() for name in names}
_BYTES = re.compile(r"([kKMGTP]?)(?:[bB]ytes?|B)")
_COUNTS = re.compile(r"([kKMGTP]?)(?:inst|instructions?|(?:math_)?ops?|flops?|threads?|)")
_LONGEST_UNIT = 20
_PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}


def unit_power(metric: str, unit: str) -> int:
    """Return the power of ten that turns `unit` into the seconds, bytes or counts of `metric`.

    Raises `ValueError` if `metric` is not measured in `unit`; Nsight Compute scales by 1000.
    """
    if len(unit) > _LONGEST_UNIT:
        raise ValueError(unit[:_LONGEST_UNIT])
    unit = unit.strip()
    if _is_duration(metric):
        if unit in _SECONDS:
            return _SECONDS[unit]
    elif found := (_BYTES if "_bytes" in metric else _COUNTS).fullmatch(unit):
        return _PREFIXES[found[1]]
    raise ValueError(unit)


@lru_cache(maxsize=4096)
def is_unit(metric: str, unit: str) -> bool:
    """Whether `metric` is measured in `unit`."""
    try:
        unit_power(metric, unit)
    except ValueError:
        return False
    return True


def is_base(metric: str, unit: str) -> bool:
    """Whether one `unit` is the least step of `metric`, so that a sum of it is a whole number."""
    return unit_power(metric, unit) == (-9 if _is_duration(metric) else 0)


def _is_duration(metric: str) -> bool:
    return "time_duration" in metric or metric == "Duration"
