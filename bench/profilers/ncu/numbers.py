"""Numbers and units as Nsight Compute prints them in the locales C and en_US.

A dot is the decimal mark there, and commas group thousands. The file does not name its locale, and
`1.234` is 1234 under de_DE: such a number is doubtful until another one of its table shows the mark
(`bench.profilers.ncu.tables`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from functools import lru_cache

#: Counters are added up in arithmetic that refuses to round.
EXACT = Context(prec=1000, traps=[Inexact])
_LONGEST = 60
_MISSING = ("", "n/a", "nan", "-nan", "-nan(ind)", "inf", "-inf")
_PLAIN = re.compile(r"[0-9]+|[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}")
_DOUBTFUL = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
_MARKED = re.compile(r"[0-9]*\.[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
#: As other locales spell numbers: thousands by blanks of any width or by apostrophes, or dots and
#: commas in any other order.
_OTHER_LOCALE = re.compile(
    r"[0-9]+(?:[ \u00a0\u2007\u2009\u202f'\u2019][0-9]{3})+(?:[.,][0-9]+)?|[0-9]*(?:[.,][0-9]+)+"
)


class OtherLocaleError(ValueError):
    """A number in the spelling of another locale."""


@dataclass(frozen=True)
class NcuNumber:
    """A number as C and en_US spell it.

    `shows_mark` if no locale with another decimal mark spells it so; `doubtful` if one spells
    another number so.
    """

    value: Decimal
    shows_mark: bool = False
    doubtful: bool = False


@lru_cache(maxsize=4096)
def read_number(text: str) -> NcuNumber | None:
    """Return the number that `text` spells, or None for `n/a`, an empty cell and not-a-number.

    Raises `OtherLocaleError` for a spelling of another locale, `ValueError` if it spells no count.
    """
    if text.isascii() and text.isdigit() and len(text) <= _LONGEST:
        return NcuNumber(Decimal(text))
    plain = text.strip().removeprefix("(!)").strip()
    if len(text) > _LONGEST or "\n" in text:  # a cell over two lines is damaged
        raise ValueError("not a number that ncu prints")
    if plain.lower() in _MISSING:
        return None
    if _PLAIN.fullmatch(plain):
        return NcuNumber(Decimal(plain))
    if _MARKED.fullmatch(plain):
        doubtful = _DOUBTFUL.fullmatch(plain) is not None
        return NcuNumber(Decimal(plain.replace(",", "")), not doubtful, doubtful)
    if _OTHER_LOCALE.fullmatch(plain):
        raise OtherLocaleError("a number in the spelling of another locale")
    raise ValueError("not a number that ncu prints")


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
