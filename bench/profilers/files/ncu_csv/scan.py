"""From a file's bytes to the totals of its tables, in blocks, with threads that read ahead.

A file is cut into pieces: rows of whole launches of one table, a line each, without anything else.
Lines that look like rows go into them as they are; Python looks at all others. The pieces are
added up in threads (`sums`), and the sums of a table put together (`totals`).

A line may look like a row and be none. Then the whole file is read again, each line matched.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from bench.profilers.files.ncu_csv.cells import Fault, NotPlainError, Piece, Rows
from bench.profilers.files.ncu_csv.lines import Lines, blocks
from bench.profilers.files.ncu_csv.rows import (
    DamagedRowError,
    Layout,
    cells_of,
    explaining_names,
    header_in,
    is_open,
    quoted,
    row_in,
)
from bench.profilers.files.ncu_csv.sums import marks_shown, sum_rows
from bench.profilers.files.ncu_csv.totals import SeenLaunches, TableTotals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

BLOCK_BYTES = 8 << 20
_MOST_WORKERS = 8
#: So many rows of one launch, or of one group, are kept until it ends.
_MOST_ROWS = 1 << 16
_MOST_ERRORS = 3
_LONGEST_ERROR = 300

_Out = TypeVar("_Out")


@dataclass
class NcuCsv:
    """The tables of a file and, for one without any, what ncu's `==ERROR==` lines say."""

    tables: list[TableTotals] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def scan(path: Path, block_bytes: int = BLOCK_BYTES) -> NcuCsv:
    """Add up the tables of a file.

    Raises `RefusedError` with the line that cannot be read, `UserError` and `OSError`. Where a
    table holds numbers of two readings, all of its figures, wanted or not, may show the locale.
    """
    try:
        return _scan(path, block_bytes, is_checked=False)
    except NotPlainError:
        return _scan(path, block_bytes, is_checked=True)


def _scan(path: Path, block_bytes: int, *, is_checked: bool) -> NcuCsv:
    found, seen = NcuCsv(), SeenLaunches()
    workers = min(_MOST_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:

        def in_order(
            work: Callable[[Piece], _Out], pieces: Iterable[Piece]
        ) -> Iterator[tuple[int, _Out]]:
            """Table and what `work` makes of each of `pieces`, a few of them ahead."""
            pending: deque[tuple[int, Future[_Out]]] = deque()
            for piece in pieces:
                pending.append((piece.table, pool.submit(work, piece)))
                if len(pending) > workers:
                    table, result = pending.popleft()
                    yield table, result.result()
            for table, result in pending:
                yield table, result.result()

        cutter = _Cutter(path, block_bytes, found, is_checked=is_checked)
        for table, sums in in_order(sum_rows, cutter.pieces()):
            seen.add(sums)
            found.tables[table].add(sums)
        seen.refuse_repeated()
        if any(table.is_doubtful for table in found.tables):
            cutter = _Cutter(path, block_bytes, NcuCsv(), is_checked=is_checked, of_all=True)
            for table, marks in in_order(marks_shown, cutter.pieces()):
                found.tables[table].marks |= marks
    return found


class _Cutter:
    """Cuts a file into pieces; notes tables and errors in `found`.

    `is_checked` says that lines are matched before they are taken for rows, `of_all` that the cells
    of all figures are needed.
    """

    def __init__(
        self, path: Path, block_bytes: int, found: NcuCsv, *, is_checked: bool, of_all: bool = False
    ) -> None:
        self._path = path
        self._block_bytes = block_bytes
        self._found = found
        self._is_checked = is_checked
        self._of_all = of_all
        self._layout: Layout | None = None
        self._open: tuple[int, str] | None = None  # line and text of a row that goes on
        self._rows: list[Rows] = []

    def pieces(self) -> Iterator[Piece]:
        """Yield the file up to the first line that cannot be read, whose piece says why."""
        first = 1
        for text in blocks(self._path, self._block_bytes):
            is_ended = text[-1:] == b"\n"
            lines = Lines(text if is_ended else bytes(text) + b"\n", first)
            line = 0
            odd = self._odd_lines(lines, 0, is_ended=is_ended)
            while line < len(lines):
                at = line
                if self._open is None and not (self._layout and self._layout.awaits_units):
                    position = bisect_left(odd, line)
                    at = odd[position] if position < len(odd) else len(lines)
                    if self._layout and at > line:
                        self._rows.append(lines.part(line, at))
                if at == len(lines):
                    break
                shown = lines.line(at)
                layout = header_in(shown)
                if layout:
                    yield from self._flush(self._fault_of_open_row())
                    self._begin_table(layout)
                    if self._is_checked:
                        odd = self._odd_lines(lines, at + 1, is_ended=is_ended)
                begin = self._open[0] if self._open else first + at
                is_cut_off = not is_ended and at == len(lines) - 1 and shown.startswith('"')
                try:
                    is_row = not layout and self._look(shown, first + at)
                    if is_cut_off and not is_row:
                        raise DamagedRowError("the file is cut off")
                except DamagedRowError as error:
                    yield from self._flush(Fault(begin, str(error)))
                    return
                line = at + 1
            first += len(lines)
            yield from self._flush_whole_launches(len(text))
        yield from self._flush(self._fault_of_open_row())

    def _odd_lines(self, lines: Lines, begin: int, *, is_ended: bool) -> list[int]:
        """The lines from `begin` on that are not plainly rows."""
        if self._is_checked and self._layout:
            plain = lines.matching(len(self._layout.columns), begin)
        else:
            plain = lines.likely()[begin:]
        plain[-1:] &= is_ended
        odd: list[int] = (begin + np.flatnonzero(~plain)).tolist()
        return odd

    def _look(self, text: str, line: int) -> bool:
        """Read a line that may be a row, or a part of one; return whether it is.

        Raises `DamagedRowError`.
        """
        layout = self._layout
        row = (f"{self._open[1]}\n{text}" if self._open else row_in(text, layout)) if layout else ""
        if layout is None or not row:
            if text.startswith("==ERROR==") and len(self._found.errors) < _MOST_ERRORS:
                self._found.errors.append(text.strip()[:_LONGEST_ERROR])
            return False
        begin = self._open[0] if self._open else line
        if is_open(row, layout):
            if layout.awaits_units:
                raise DamagedRowError(f"a damaged row: {row[:60]!r}")
            self._open = (begin, row)
            return True
        cells, self._open = cells_of(row, layout), None
        if layout.awaits_units:
            has_units = not cells[layout.first].strip()
            self._layout = layout.with_units(cells if has_units else [])
            return has_units or self._look(text, line)  # there are no units: a launch, or output
        kept = layout.printed if self._of_all else layout.needed
        whole = quoted(cells, layout, kept)
        self._rows.append(Rows(whole, np.array([len(whole)]), np.array([begin])))
        return True

    def _begin_table(self, layout: Layout) -> None:
        table = TableTotals(layout.form)
        if layout.form == "raw":
            table.names |= explaining_names(layout.columns)
        self._layout, self._open = layout, None
        self._found.tables.append(table)

    def _fault_of_open_row(self) -> Fault | None:
        return Fault(self._open[0], "the file is cut off") if self._open else None

    def _flush(self, fault: Fault | None = None) -> Iterator[Piece]:
        """Yield all rows that are left; after `fault` come no more."""
        if self._layout and (self._rows or fault):
            yield self._piece(self._layout, Rows.joined(self._rows), fault)
        self._rows = []

    def _flush_whole_launches(self, size: int) -> Iterator[Piece]:
        """Yield the rows but for those of the last launch, which may go on.

        After `size` bytes of text; after few, such as a single line, all rows are kept.
        """
        if self._layout and self._rows and 2 * size >= self._block_bytes:
            rows = Rows.joined(self._rows)
            begin = rows.begin_of_last_launch(self._layout)
            whole, last = rows.split(begin if len(rows) - begin <= _MOST_ROWS else len(rows))
            if len(whole):
                yield self._piece(self._layout, whole)
            self._rows = [last] if len(last) else []

    def _piece(self, layout: Layout, rows: Rows, fault: Fault | None = None) -> Piece:
        return Piece(len(self._found.tables) - 1, layout, rows, self._is_checked, fault)
