"""Numbers and units as Nsight Compute prints them.

Numbers are spelled by the locale that ncu ran in, which the file does not name: `1.234` is 1234
under de_DE and a fraction under C, and nothing in the text decides. Such a number is doubtful
until another number of the same table shows the locale (`bench.profilers.files.ncu_csv.totals`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.profilers.files.exact_decimals import EXACT
from bench.profilers.files.ncu_csv.arrays import characters_of, integers, mask, texts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: What a text is read as.
REFUSED, MISSING, NUMBER, DOUBTFUL = range(4)
#: Numbers of so many digits are summed by numpy, longer ones one by one.
_MOST_DIGITS = 12
_LONGEST = 60
_MISSING = ("", "n/a", "nan", "-nan", "-nan(ind)", "inf", "-inf")
#: Thousands separators that are never a decimal mark: spaces of every width, apostrophes.
_SPACES = re.compile("[ \u00a0\u2007\u2009\u202f'\u2019]")
#: The no-break space of Windows' and of DOS's code pages, spelled out when the row was decoded.
_SPELLED_SPACES = r"\\xa0|\\xff"
_EXPONENT = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}")
#: The marks by their codes in `Numbers.mark`.
MARKS = ("", ".", ",", " ")


class Numbers:
    """What texts say, an entry each: `kind`, `digits` without their mark, `decimals` behind it.

    `mark` is a code of `MARKS`: what a number proves of the locale, or the mark of a doubtful one.
    Digits too many for that are in `long`, by position. A text is `REFUSED` if it spells no
    count: letters, signs, groups of odd length.
    """

    def __init__(self, texts: Any) -> None:
        count = len(texts)
        self.kind = np.full(count, NUMBER, np.int8)
        self.decimals = np.zeros(count, np.int16)
        self.mark = np.zeros(count, np.int8)
        self.long: dict[int, int] = {}
        self.is_plain = False  # whether all are digits and nothing else, and few
        offsets, characters = characters_of(texts)
        is_digit = characters - ord("0") < 10  # unsigned: what is less wraps around
        lengths = np.diff(offsets)
        if count and is_digit.all() and 1 <= lengths.min() <= lengths.max() <= _MOST_DIGITS:
            self.digits: Integers = integers(texts.cast(pa.int64()))
            self.is_plain = True
            return
        if (characters == ord("\\")).any():
            texts = pc.replace_substring_regex(texts, _SPELLED_SPACES, "'")
            offsets, characters = characters_of(texts)
            is_digit = characters - ord("0") < 10
        self._note_spellings(_shapes(offsets, characters, is_digit))
        ends = np.append(np.int32(0), np.cumsum(is_digit, dtype=np.int32))[offsets]
        digits = texts_of(ends, characters[is_digit])
        is_short = (np.diff(ends) <= _MOST_DIGITS) & (self.kind >= NUMBER)
        if is_short.all():
            self.digits = integers(digits.cast(pa.int64()))
            return
        self.digits = np.zeros(count, np.int64)
        self.digits[is_short] = integers(digits.filter(mask(is_short)).cast(pa.int64()))
        for position in np.flatnonzero(~is_short & (self.kind >= NUMBER)).tolist():
            self.long[position] = int(digits[position].as_py())
        for position in np.flatnonzero(self.kind == REFUSED).tolist():
            text = _bare(texts[position].as_py())
            if len(text) <= _LONGEST and _EXPONENT.fullmatch(text):
                value = Decimal(text)
                decimals = max(0, -int(value.as_tuple().exponent))
                self.kind[position], self.decimals[position] = NUMBER, decimals
                self.long[position] = int(value.scaleb(decimals, EXACT))

    def _note_spellings(self, shapes: Any) -> None:
        """Note kind, mark and decimals of texts, read once for all of the same shape."""
        encoded = shapes.dictionary_encode()
        read = np.array([_spelling(one) for one in encoded.dictionary.to_pylist()], np.int16)
        if len(read):
            self.kind, self.mark, self.decimals = read[integers(encoded.indices)].T.copy()

    def reading(self, position: int) -> Reading | None:
        """The number at `position`, or None where it is missing.

        Raises `ValueError` for a text that is refused.
        """
        kind = self.kind[position]
        if kind == REFUSED:
            raise ValueError("not a number that ncu prints")
        if kind == MISSING:
            return None
        digits = Decimal(self.long.get(position, int(self.digits[position])))
        value = digits.scaleb(-int(self.decimals[position]), EXACT)
        return Reading(value, MARKS[self.mark[position]], doubtful=bool(kind == DOUBTFUL))

    def marks_shown(self) -> set[str]:
        """The marks that some number proves to be the locale's."""
        if not self.mark.any():
            return set()
        counts = np.bincount(self.mark[self.kind == NUMBER], minlength=len(MARKS))
        return {mark for mark, count in zip(MARKS, counts, strict=True) if mark and count}


def _shapes(offsets: Integers, characters: NDArray[np.uint8], is_digit: Flags) -> Any:
    """The texts with nines for their digits; a zero before the other digits stays a zero."""
    follows = np.zeros(len(characters), bool)
    follows[1:] = is_digit[:-1]
    follows[offsets[:-1][np.diff(offsets) > 0]] = False
    nine = is_digit & (follows | (characters != ord("0")))
    return texts_of(offsets, np.where(nine, np.uint8(ord("9")), characters))


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


def whole_numbers(texts: Any) -> tuple[Integers, Flags]:
    """The integers that texts spell, however their thousands are grouped, and where one is none."""
    numbers = Numbers(texts)
    is_none = (numbers.kind < NUMBER) | (numbers.decimals > 0)
    is_none[list(numbers.long)] = True
    return numbers.digits, is_none


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
