"""Numbers and units as Nsight Compute prints them.

Numbers are spelled by the locale that ncu ran in, which the file does not name: `1.234` is 1234
under de_DE and a fraction under C, and nothing in the text decides. Such a number is doubtful
until another number of the same table shows the locale (`bench.profilers.files.ncu_totals`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: Decimal arithmetic that refuses to round.
EXACT = Context(prec=1000, traps=[Inexact])
#: What a text is read as.
REFUSED, MISSING, NUMBER, DOUBTFUL = range(4)
#: Numbers of so many digits are summed by numpy, longer ones one by one.
_MOST_DIGITS = 12
_LONGEST = 60
_LONGEST_INTEGER = 18
_MISSING = ("", "n/a", "nan", "-nan", "-nan(ind)", "inf", "-inf")
#: Thousands separators that are never a decimal mark: spaces of every width, apostrophes. A byte
#: that is not UTF-8 was spelled out when the file was decoded: 0xA0 and 0xFF are the no-break
#: space of Windows' and of DOS's code pages.
_SPACES = "\\\\xa0|\\\\xff|[ \u00a0\u2007\u2009\u202f'\u2019]"
_WHOLE_NUMBER = "^(?:[0-9]+ *|[0-9]{1,3}(?:[ .,\u00a0\u202f][0-9]{3})+)$"
_EXPONENT = r"[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}"


class _Spelling(NamedTuple):
    """One way to spell a number; `mark` is its decimal mark if it has one, and the proof of it.

    A space stands for a locale whose spaces group thousands, so that neither dot nor comma does.
    """

    pattern: str
    mark: str
    kind: int = NUMBER


def _spellings() -> tuple[_Spelling, ...]:
    """Every spelling; the first that fits decides. Spaces of all kinds come as plain ones.

    1,234,567 is grouped, and 12,34,567 is, as in India. A single mark is a decimal one, unless
    what follows could be a group of thousands: then the number is doubtful.
    """
    groups = "(?:[0-9]{{1,3}}(?:{0}[0-9]{{3}})+|[0-9]{{1,2}}(?:{0}[0-9]{{2}})+{0}[0-9]{{3}})"
    several = "(?:[0-9]{{1,3}}(?:{0}[0-9]{{3}}){{2,}}|[0-9]{{1,2}}(?:{0}[0-9]{{2}})+{0}[0-9]{{3}})"
    spellings = []
    for mark, other in (("[,]", "."), ("[.]", ",")):
        spellings += [
            _Spelling(f"[1-9][0-9]{{0,2}}{mark}[0-9]{{3}}", mark[1], DOUBTFUL),
            _Spelling(several.format(mark), other),
            _Spelling(f"{groups.format(mark)}[{other}][0-9]+", other),
            _Spelling(f"[0-9]*{mark}[0-9]+", mark[1]),
        ]
    spaced = groups.format(" ")
    return (
        *spellings,
        _Spelling(spaced, " "),
        *(_Spelling(f"{spaced}[{mark}][0-9]+", mark) for mark in ".,"),
        _Spelling("[0-9]+", ""),
    )


_SPELLINGS = _spellings()
#: The marks by their codes in `Numbers.mark`.
MARKS = ("", ".", ",", " ")


class Numbers:
    """What texts say, an entry each: `kind`, `digits` without their mark, `decimals` behind it.

    `mark` is a code of `MARKS`: what a number proves of the locale, or the mark of a doubtful one.
    Numbers too long for `digits` are in `long`, by position. A text is `REFUSED` if it spells no
    count: letters, signs, groups of odd length.
    """

    def __init__(self, texts: Any) -> None:
        count = len(texts)
        self.kind = np.full(count, REFUSED, np.int8)
        self.digits = np.zeros(count, np.int64)
        self.decimals = np.zeros(count, np.int8)
        self.mark = np.zeros(count, np.int8)
        self.long: dict[int, Decimal] = {}
        if _all_plain(texts):
            self.kind[:] = NUMBER
            self.digits = texts.cast(pa.int64()).to_numpy()
            return
        short = pc.less_equal(pc.binary_length(texts), _MOST_DIGITS)
        plain = pc.and_(pc.ascii_is_decimal(texts), short)
        where = flags(plain)
        self.kind[where] = NUMBER
        self.digits[where] = texts.filter(plain).cast(pa.int64()).to_numpy()
        self._read_others(np.flatnonzero(~where), texts.filter(pc.invert(plain)))

    def _read_others(self, where: Integers, texts: Any) -> None:
        short = pc.less_equal(pc.utf8_length(texts), _LONGEST)
        where, texts = self._read_spelled(where[flags(short)], texts.filter(short))
        whole = pc.invert(pc.match_substring(texts, "\n"))  # a cell over two lines is damaged
        where, texts = where[flags(whole)], pc.utf8_trim_whitespace(texts.filter(whole))
        texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, r"\A\(!\)", ""))
        missing = pc.is_in(pc.utf8_lower(texts), pa.array(_MISSING))
        self.kind[where[flags(missing)]] = MISSING
        where, texts = where[~flags(missing)], texts.filter(pc.invert(missing))
        texts = pc.replace_substring_regex(texts, _SPACES, " ")
        where, texts = self._read_spelled(where, texts)
        for position, text in zip(where.tolist(), texts.to_pylist(), strict=True):
            if re.fullmatch(_EXPONENT, text):
                self.kind[position] = NUMBER
                self.long[position] = Decimal(text)

    def _read_spelled(self, where: Integers, texts: Any) -> tuple[Integers, Any]:
        """Read texts of known spelling; return the others."""
        for spelling in _SPELLINGS:
            if not len(where):
                break
            fits = pc.match_substring_regex(texts, rf"\A(?:{spelling.pattern})\z")
            fitting = flags(fits)
            if fitting.any():
                self._note(spelling, where[fitting], texts.filter(fits))
                where, texts = where[~fitting], texts.filter(pc.invert(fits))
        return where, texts

    def _note(self, spelling: _Spelling, where: Integers, texts: Any) -> None:
        self.kind[where] = spelling.kind
        self.mark[where] = MARKS.index(spelling.mark)
        if spelling.kind == NUMBER and spelling.mark in (".", ","):
            at = pc.find_substring(texts, spelling.mark)
            behind = pc.subtract(pc.subtract(pc.binary_length(texts), at), 1)
            self.decimals[where] = pc.if_else(pc.less(at, 0), 0, behind).to_numpy()
        digits = texts
        for mark in ",. ":
            digits = pc.replace_substring(digits, mark, "")
        short = flags(pc.less_equal(pc.binary_length(digits), _MOST_DIGITS))
        self.digits[where[short]] = digits.filter(pa.array(short)).cast(pa.int64()).to_numpy()
        for index in np.flatnonzero(~short).tolist():
            position = int(where[index])
            value = Decimal(digits[index].as_py()).scaleb(-int(self.decimals[position]), EXACT)
            self.long[position] = value

    def reading(self, position: int) -> Reading | None:
        """The number at `position`, or None where it is missing.

        Raises `ValueError` for a text that is refused.
        """
        kind = self.kind[position]
        if kind == REFUSED:
            raise ValueError("not a number that ncu prints")
        if kind == MISSING:
            return None
        value = Decimal(int(self.digits[position])).scaleb(-int(self.decimals[position]), EXACT)
        mark = MARKS[self.mark[position]]
        return Reading(self.long.get(position, value), mark, doubtful=bool(kind == DOUBTFUL))

    def is_plain_zero(self) -> Flags:
        """Where a zero is spelled without a mark; it is one in any unit."""
        zero: Flags = (self.digits == 0) & (self.mark == 0) & (self.kind == NUMBER)
        for position, value in self.long.items():
            zero[position] = not value and not self.mark[position]
        return zero


@dataclass(frozen=True)
class Reading:
    """One number. A doubtful one is `value`, or a thousandth of it if `mark` is a decimal mark."""

    value: Decimal
    mark: str = ""
    doubtful: bool = False


def read_number(text: str) -> Reading | None:
    """Return the number that `text` spells, or None for `n/a`, an empty cell and not-a-number.

    Raises `ValueError` if it spells no count.
    """
    return Numbers(pa.array([text])).reading(0)


def decimals_of_mean(
    digits: Decimal, mark: str, bounds: tuple[str, str], *, whole: bool
) -> int | None:
    """Decide a doubtful mean by the smallest and the largest value, which are `whole` or not.

    Return how many of its `digits` are decimals, 0 or 3, or None where the bounds do not decide.
    """
    try:
        low_high = [read_number(text) for text in bounds]
    except ValueError:
        return None
    possible = {0: digits, 3: digits.scaleb(-3)}
    for bound, sign in zip(low_high, (1, -1), strict=True):
        if bound and not bound.doubtful:
            possible = {n: v for n, v in possible.items() if sign * (v - bound.value) >= 0}
    if len(possible) == 1:
        return next(iter(possible))
    marked = any(bound and bound.doubtful and bound.mark == mark for bound in low_high)
    return 0 if marked and mark == "," and whole else None  # whole numbers beside it have it too


def _all_plain(texts: Any) -> bool:
    """Whether all texts are of few digits and nothing else, from their bytes."""
    if not len(texts):
        return False
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(ends)
    if not 1 <= lengths.min() <= lengths.max() <= _MOST_DIGITS:
        return False
    characters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return bool((characters - ord("0") < 10).all())  # unsigned: what is less wraps around


def whole_numbers(texts: Any) -> tuple[Integers, Flags]:
    """The integers that texts spell, and where a text is none."""
    known = pc.less_equal(pc.utf8_length(texts), _LONGEST_INTEGER)
    if not pc.all(pc.and_(known, pc.ascii_is_decimal(texts))).as_py():
        known = pc.and_(known, pc.match_substring_regex(texts, _WHOLE_NUMBER))
        texts = pc.replace_substring_regex(pc.if_else(known, texts, "0"), "[^0-9]", "")
    numbers: Integers = texts.cast(pa.int64()).to_numpy().copy()
    return numbers, ~flags(known)


def flags(array: Any) -> Flags:
    """Arrow's booleans as numpy's."""
    mask: Flags = array.to_numpy(zero_copy_only=False)
    return mask


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
    return _power(metric, unit.strip())


@lru_cache(maxsize=4096)
def _power(metric: str, unit: str) -> int:
    if is_duration(metric):
        if unit in _SECONDS:
            return _SECONDS[unit]
    elif found := (_BYTES if is_bytes(metric) else _COUNTS).fullmatch(unit):
        return _PREFIXES[found[1]]
    raise ValueError(unit)


def is_base(metric: str, unit: str) -> bool:
    """Whether one `unit` is the least step of `metric`, so that a sum of it is a whole number."""
    return unit_power(metric, unit) == (-9 if is_duration(metric) else 0)


def is_duration(metric: str) -> bool:
    """Whether `metric` is a time."""
    return "time_duration" in metric or metric == "Duration"


def is_bytes(metric: str) -> bool:
    """Whether `metric` is a size."""
    return "_bytes" in metric
