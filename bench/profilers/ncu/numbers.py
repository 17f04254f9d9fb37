"""Numbers and units as Nsight Compute prints them.

Numbers are spelled by the locale that ncu ran in, which the file does not name: `1.234` is 1234
under de_DE and a fraction under C, and nothing in the text decides. Such a number is doubtful
until another number of the same table shows the locale (`bench.profilers.ncu.tables`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from functools import lru_cache

#: Counters are added up in arithmetic that refuses to round.
EXACT = Context(prec=1000, traps=[Inexact])
_LONGEST = 60
_MISSING = ("", "n/a", "nan", "-nan", "-nan(ind)", "inf", "-inf")
#: Separators of thousands that are never a decimal mark: spaces of every width, apostrophes, and
#: the no-break space of Windows' and of DOS's code pages, spelled out when the row was decoded.
_SPACES = re.compile(r"[ \u00a0\u2007\u2009\u202f'\u2019]|\\xa0|\\xff")
_PLAIN = re.compile(r"[0-9]+|[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}")
_DOUBTFUL = re.compile(r"[1-9][0-9]{0,2}([.,])[0-9]{3}")
_FRACTION = re.compile(r"[0-9]*([.,])[0-9]+")
#: In thousands, as 4,195,712, or as in India: 41,95,712.
_GROUPED = re.compile(
    r"(?=[0-9]+(?P<by>[., ]))"
    r"(?:[0-9]{1,3}(?:(?P=by)[0-9]{3})+|[0-9]{1,2}(?:(?P=by)[0-9]{2})+(?P=by)[0-9]{3})"
    r"(?:(?!(?P=by))(?P<mark>[.,])[0-9]+)?"
)
#: The decimal mark of a locale that groups thousands by this one. Spaces show one in which a single
#: dot or comma groups nothing.
_OTHER_MARK = {",": ".", ".": ",", " ": " "}


@dataclass(frozen=True)
class Reading:
    """One number; `mark` is the decimal mark that it shows, " " for one that is no separator.

    A doubtful one is `value`, or a thousandth of it if `mark` is a decimal mark.
    """

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
    plain = _SPACES.sub(" ", text.strip().removeprefix("(!)").strip())
    if len(text) > _LONGEST or "\n" in text:  # a cell over two lines is damaged
        raise ValueError("not a number that ncu prints")
    if plain.lower() in _MISSING:
        return None
    if _PLAIN.fullmatch(plain):
        return Reading(Decimal(plain))
    if found := _DOUBTFUL.fullmatch(plain):
        return Reading(Decimal(plain.replace(found[1], "")), found[1], doubtful=True)
    if found := _FRACTION.fullmatch(plain):
        return Reading(Decimal(plain.replace(",", ".")), found[1])
    if found := _GROUPED.fullmatch(plain):
        digits = plain.replace(found["by"], "").replace(",", ".")
        return Reading(Decimal(digits), found["mark"] or _OTHER_MARK[found["by"]])
    raise ValueError("not a number that ncu prints")


def marks_shown(text: str, unit: str) -> set[str]:
    """The decimal mark that a figure proves; only those with a unit are spelled by the locale."""
    try:
        number = read_number(text) if unit.strip() else None
    except ValueError:
        return set()
    return {number.mark} if number and number.mark and not number.doubtful else set()


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
_PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}


@lru_cache(maxsize=4096)
def unit_power(metric: str, unit: str) -> int | None:
    """Return the power of ten that turns `unit` into the seconds, bytes or counts of `metric`.

    None if `metric` is not measured in `unit`. Nsight Compute scales by 1000.
    """
    unit = unit.strip()
    if _is_duration(metric):
        return _SECONDS.get(unit)
    found = (_BYTES if "_bytes" in metric else _COUNTS).fullmatch(unit)
    return _PREFIXES[found[1]] if found else None


def is_base(metric: str, unit: str) -> bool:
    """Whether one `unit` is the least step of `metric`, so that a sum of it is a whole number."""
    return unit_power(metric, unit) == (-9 if _is_duration(metric) else 0)


def _is_duration(metric: str) -> bool:
    return "time_duration" in metric or metric == "Duration"
