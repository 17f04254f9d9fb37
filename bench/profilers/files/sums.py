"""Figures of many rows, added up exactly by kernel, metric and unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.profilers.files.units import unit_power

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_MOST_DIGITS = 12
#: Below it, half the bits of each number of a block leave room for their sum.
_LARGEST = 10**16
#: A dot or a comma before what cannot be a group of thousands.
_FRACTIONS = {
    mark: rf"^([0-9]{{1,9}}[{mark}]([0-9]{{1,2}}|[0-9]{{4,6}})|(0|[0-9]{{4,9}})[{mark}][0-9]{{3}})$"
    for mark in ",."
}
_SPACES = "[ '\u00a0\u2009\u202f\u2019]"
_SPACED = rf"^[1-9][0-9]{{0,2}}({_SPACES}[0-9]{{3}}){{1,4}}$"
_GROUPED = {mark: rf"^[1-9][0-9]{{0,2}}([{mark}][0-9]{{3}}){{1,3}}$" for mark in ",."}


class Label(NamedTuple):
    """What a sum is of."""

    kernel: str
    metric: str
    unit: str


class Sum(NamedTuple):
    """Numbers of one label; `mark` is empty, or the separator whose meaning is in doubt."""

    label: Label
    mark: str
    counted: int
    total: int
    decimals: int  # digits of the total behind its decimal mark
    row: int  # the first
    text: str  # how that one is spelled, where it is in doubt


@dataclass
class Part:
    """What a run of rows adds to a table; `texts` are figures left to read one by one."""

    launches: dict[str, int] = field(default_factory=dict)
    runs: list[tuple[int | str, int, int]] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    texts: list[tuple[Label, str, int]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    capabilities: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)


class Adder:
    """Adds the figures of a column to `part`; `labels[group]` and `row_of` say what each is of."""

    def __init__(self, part: Part, labels: list[Label], group: Integers, row_of: Integers) -> None:
        self._part = part
        self._labels = labels
        self._group = group
        self._row_of = row_of

    def add_column(self, column: Any) -> None:
        """Add integers, but for those that are missing."""
        known = np.flatnonzero(_mask(column.is_valid()))
        self._add(known, column.drop_null().to_numpy())

    def add_texts(self, texts: Any) -> None:
        """Add numbers as they are spelled; unusual ones are left to be read one by one."""
        short = pc.less_equal(pc.binary_length(texts), _MOST_DIGITS)
        plain = _mask(pc.and_(pc.ascii_is_decimal(texts), short))
        picked = texts if plain.all() else texts.filter(pa.array(plain))
        self._add(np.flatnonzero(plain), picked.cast(pa.int64()).to_numpy())
        left = np.flatnonzero(~plain)
        ways = [(mark, _GROUPED[mark], self._add_grouped) for mark in ",."]
        ways += [(mark, _FRACTIONS[mark], self._add_fractions) for mark in ",."]
        for mark, pattern, add in [*ways, (_SPACES, _SPACED, self._add_spaced)]:
            if not len(left):
                return
            others = texts.take(pa.array(left))
            found = _mask(pc.match_substring_regex(others, pattern))
            if found.any():
                add(left[found], others.filter(pa.array(found)), mark)
                left = left[~found]
        for position in left.tolist():
            label = self._labels[self._group[position]]
            self._part.texts.append((label, texts[position].as_py(), int(self._row_of[position])))

    def _add_grouped(self, where: Integers, texts: Any, mark: str) -> None:
        """Add numbers whose groups `mark` parts; those of two groups are in doubt."""
        numbers = _without(f"[{mark}]", texts)
        doubtful = numbers < 10**6
        if doubtful.any():
            first = texts[int(np.argmax(doubtful))].as_py()
            self._add(where[doubtful], numbers[doubtful], mark=mark, text=first)
        if not doubtful.all():
            self._part.marks.add("." if mark == "," else ",")
            self._add(where[~doubtful], numbers[~doubtful])

    def _add_spaced(self, where: Integers, texts: Any, spaces: str) -> None:
        """Add numbers whose groups `spaces` part, which are whole."""
        self._part.marks.add(" ")
        self._add(where, _without(spaces, texts))

    def _add_fractions(self, where: Integers, texts: Any, mark: str) -> None:
        """Add numbers whose decimal mark is `mark`, those of as many decimals together."""
        self._part.marks.add(mark)
        numbers = _without(f"[{mark}]", texts)
        length = pc.subtract(pc.binary_length(texts), pc.find_substring(texts, mark))
        decimals = length.to_numpy() - 1
        for digits in np.unique(decimals).tolist():
            alike = decimals == digits
            self._add(where[alike], numbers[alike], decimals=digits)

    def _add(
        self,
        where: Integers,
        numbers: Integers,
        *,
        mark: str = "",
        text: str = "",
        decimals: int = 0,
    ) -> None:
        """Add `numbers` by label, exactly: half of their bits are summed at a time."""
        if not len(numbers):
            return
        if numbers.min() < 0 or numbers.max() >= _LARGEST:
            raise ValueError("a number out of the range of these sums")
        group = self._group[where]
        counted = np.bincount(group, minlength=len(self._labels))
        low = np.bincount(group, numbers & 0xFFFFFF, len(self._labels))
        high = np.bincount(group, numbers >> 24, len(self._labels))
        row = int(self._row_of[where[0]])
        for index in np.flatnonzero(counted).tolist():
            label, total = self._labels[index], (int(high[index]) << 24) + int(low[index])
            if total:
                unit_power(label.metric, label.unit)
            self._part.sums.append(
                Sum(label, mark, int(counted[index]), total, decimals, row, text)
            )


def _mask(flags: Any) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = flags.to_numpy(zero_copy_only=False)
    return mask


def _without(pattern: str, texts: Any) -> Integers:
    """The numbers that are left without `pattern`."""
    numbers: Integers = pc.replace_substring_regex(texts, pattern, "").cast(pa.int64()).to_numpy()
    return numbers
