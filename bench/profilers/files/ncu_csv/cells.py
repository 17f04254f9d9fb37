"""Pieces of Nsight Compute's tables, and their rows as columns of cells.

pyarrow splits the rows; that each is as many quoted cells as the header has is checked beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from bench.profilers.files.ncu_csv.arrays import characters_of, integers, mask, positions
from bench.profilers.files.ncu_csv.rows import NUMBER, DamagedRowError, Layout, cells_of, decoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: So many bytes at a time stay in a processor's cache.
_CACHED = 1 << 18
#: Of so many groups a table is kept, whether they occur or not.
_MOST_CODES = 1 << 20


class NotPlainError(Exception):
    """A line that looked like a row is none, or not one by itself."""


class Fault(NamedTuple):
    """Why a file is refused, and the line."""

    line: int
    message: str


@dataclass(frozen=True)
class Rows:
    """Rows of one table as text, where in it each ends, and the line where each begins."""

    text: bytes | memoryview
    ends: Integers
    lines: Integers

    def __len__(self) -> int:
        return len(self.lines)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        begins = np.cumsum([0, *(len(part.text) for part in parts)])
        ends = [np.zeros(0, np.int64)]
        ends += [part.ends + begin for part, begin in zip(parts, begins, strict=False)]
        lines = np.concatenate([ends[0], *(part.lines for part in parts)])
        return cls(b"".join(part.text for part in parts), np.concatenate(ends), lines)

    def split(self, row: int) -> tuple[Rows, Rows]:
        """The rows before `row` and those from it on."""
        at = int(self.ends[row - 1]) if row else 0
        text = memoryview(self.text)
        before = Rows(text[:at], self.ends[:row], self.lines[:row])
        return before, Rows(text[at:], self.ends[row:] - at, self.lines[row:])

    def begin_of_last_launch(self, layout: Layout) -> int:
        """The first of the rows at the end that are of one launch, or group of launches."""
        last = None
        for row in range(len(self) - 1, -1, -1):
            begin = int(self.ends[row - 1]) if row else 0
            try:
                cells = cells_of(decoded(bytes(self.text[begin : self.ends[row] - 1])), layout)
            except DamagedRowError:
                return row  # to be refused with its line
            launch = [cells[index] for index in layout.launch]
            if launch != (last := last or launch):
                return row + 1
        return 0


@dataclass(frozen=True)
class Piece:
    """Rows of whole launches of one table.

    `is_checked` says that each is known to be as many quoted cells as the header has; else
    `NotPlainError` is raised for one that is not. `fault` is why no more rows follow.
    """

    table: int
    layout: Layout
    rows: Rows
    is_checked: bool
    fault: Fault | None = None


class Coded:
    """A column as codes of its distinct texts."""

    def __init__(self, column: Any) -> None:
        if _is_one_text(column):
            self.codes: Integers = np.zeros(len(column), np.int64)
            self.texts: list[str] = [column[0].as_py()]
            return
        encoded = column.dictionary_encode()
        self.codes = integers(encoded.indices).astype(np.int64)
        self.texts = encoded.dictionary.to_pylist()

    def at(self, rows: Integers) -> list[str]:
        """The texts of `rows`."""
        return [self.texts[code] for code in self.codes[rows].tolist()]

    def texts_at(self, rows: Integers) -> set[str]:
        """The distinct texts of `rows`."""
        counts = np.bincount(self.codes[rows], minlength=len(self.texts)).tolist()
        return {text for text, count in zip(self.texts, counts, strict=True) if count}

    def each(self, of_text: Callable[[str], Any], kind: type = np.int64) -> NDArray[Any]:
        """What `of_text` is for each text."""
        return np.array([of_text(text) for text in self.texts], kind)[self.codes]

    def grouped(self, rows: Integers, keys: Sequence[Integers]) -> tuple[Integers, Integers]:
        """`grouped` of the texts of `rows` and of `keys`; once for all rows, where keys are 0."""
        is_every = len(rows) == len(self.codes) and bool((np.diff(rows) == 1).all())
        if is_every and not any(key.any() for key in keys):
            return self._groups
        return grouped(self.codes[rows], *keys)

    @cached_property
    def _groups(self) -> tuple[Integers, Integers]:
        return grouped(self.codes)


def _is_one_text(column: Any) -> bool:
    """Whether all rows hold the same; faster than to hash them all."""
    ends, characters = characters_of(column)
    length = int(ends[1]) if len(column) else 0
    if not length or len(characters) != length * len(column) or (np.diff(ends) != length).any():
        return False
    return bool((characters.reshape(-1, length) == characters[:length]).all())


def grouped(*keys: Integers) -> tuple[Integers, Integers]:
    """The group of each position, alike in all keys, and the first position of each group."""
    code, codes = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        most = int(key.max(initial=0))
        if most:
            code, codes = code * (most + 1) + key, codes * (most + 1)
        if codes > _MOST_CODES:
            code = integers(positions(code).dictionary_encode().indices).astype(np.int64)
            codes = int(code.max(initial=0)) + 1
    first = np.full(codes, -1)
    first[code[::-1]] = np.arange(len(code))[::-1]
    present = first >= 0
    return (code if present.all() else (np.cumsum(present) - 1)[code]), first[present]


@dataclass
class Figures:
    """Cells of wanted metrics; `row`, `metric` (of `metrics`) and `unit` (of `units`) of each."""

    row: Integers
    metric: Integers
    unit: Integers
    texts: Any
    metrics: list[str]
    units: list[str]

    def kept(self, which: Flags) -> Figures:
        """Those of `which`."""
        if which.all():
            return self
        row, metric, unit = self.row[which], self.metric[which], self.unit[which]
        texts = self.texts.filter(mask(which))
        return replace(self, row=row, metric=metric, unit=unit, texts=texts)

    def name(self, position: int) -> str:
        """The metric at `position`."""
        return self.metrics[int(self.metric[position])]

    def unit_at(self, position: int) -> str:
        """The unit at `position`."""
        return self.units[int(self.unit[position])]


def cells_of_piece(piece: Piece, columns: Iterable[int]) -> dict[int, Any]:
    """Cut rows into the cells of `columns`."""
    rows, width = len(piece.rows), len(piece.layout.columns)
    names = [str(index) for index in range(width)]
    types = {str(index): pa.string() for index in columns}
    if not piece.is_checked and not _is_well_quoted(piece.rows.text, rows, width):
        raise NotPlainError
    try:
        table = csv.read_csv(
            pa.BufferReader(piece.rows.text),
            csv.ReadOptions(
                column_names=names,
                use_threads=False,
                block_size=len(piece.rows.text) + 1 if piece.is_checked else 4 * _CACHED,
            ),
            csv.ParseOptions(newlines_in_values=piece.is_checked, ignore_empty_lines=False),
            csv.ConvertOptions(
                include_columns=list(types),
                column_types=types,
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        raise NotPlainError from None
    table = table.combine_chunks()
    cells = {int(name): table.column(name).chunk(0) for name in types}
    if table.num_rows != rows or not (piece.is_checked or _are_first_cells(cells[0])):
        raise NotPlainError
    return cells


def _are_first_cells(cells: Any) -> bool:
    if (characters_of(cells)[1] - ord("0") < 10).all():  # unsigned: what is less wraps around
        return True  # the lines are known to hold a digit there
    return bool(pc.all(pc.match_substring_regex(cells, rf"\A{NUMBER}\z")).as_py())


def _is_well_quoted(text: bytes | memoryview, rows: int, columns: int) -> bool:
    """Whether all quotes are around cells, of which each line has as many as the header.

    pyarrow takes `"12"3` for 123. The lines are known to begin and to end with a quote, and rows
    that lack one are found by pyarrow.
    """
    quotes = separators = 0
    characters = np.frombuffer(text, np.uint8)
    for begin in range(0, len(text), _CACHED):
        part = characters[begin : begin + _CACHED + 4]  # what begins in it may end in the next
        quote = part == ord('"')
        between = quote[:-2] & (part[1:-1] == ord(",")) & quote[2:]
        quotes += np.count_nonzero(quote[:_CACHED])
        separators += np.count_nonzero(between[:_CACHED])
        if (between[:-2] & between[2:]).any():
            return False
    return quotes == 2 * rows * columns and separators == rows * (columns - 1)
