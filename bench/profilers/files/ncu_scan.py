"""From a file's bytes to the totals of its tables, in blocks, with threads that read ahead.

A block is cut into lines, lines into rows of cells (`ncu_rows`), the rows of whole launches are
added up (`ncu_sums`), and the sums of a table put together (`ncu_totals`).
"""

from __future__ import annotations

import codecs
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow.compute as pc

from bench.errors import UserError
from bench.profilers.files.ncu_numbers import flags
from bench.profilers.files.ncu_rows import (
    DamagedRowError,
    Fault,
    Layout,
    Lines,
    Rows,
    cells_of,
    decoded,
    explaining_name,
    header_in,
    is_noise,
    is_open,
    read_rows,
    row_in,
)
from bench.profilers.files.ncu_sums import marks_shown, sum_rows
from bench.profilers.files.ncu_totals import SeenLaunches, TableTotals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

BLOCK_BYTES = 8 << 20
_LONGEST_LINE = 64 << 20
_MOST_WORKERS = 8
#: So many rows of one launch, or of one group, are kept until it ends.
_MOST_ROWS = 1 << 20
_MOST_ERRORS = 3
_LONGEST_ERROR = 300

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass
class NcuCsv:
    """The tables of a file and, for one without any, what ncu's `==ERROR==` lines say."""

    tables: list[TableTotals] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def scan(path: Path, block_bytes: int = BLOCK_BYTES) -> NcuCsv:
    """Add up the tables of a file.

    Raises `UserError` naming the line that cannot be read, and `OSError`. Where a table holds
    numbers of two readings, all of its figures are looked at, wanted or not, for the locale.
    """
    found, seen = NcuCsv(), SeenLaunches()
    workers = min(_MOST_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:

        def in_order(work: Callable[[_In], _Out], items: Iterable[_In]) -> Iterator[_Out]:
            """What `work` makes of `items`, a few of them ahead."""
            pending: deque[Future[_Out]] = deque()
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) >= workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

        def needed(lines: Lines) -> Rows:
            return read_rows(lines, lines.layout.needed)

        def printed(lines: Lines) -> Rows:
            columns = {index for pair in lines.layout.printed for index in pair}
            return read_rows(lines, sorted(columns))

        rows = _whole_launches(in_order(needed, _Cut(path, block_bytes, found).lines()))
        for table, sums in in_order(lambda one: (one.source.table, sum_rows(one)), rows):
            found.tables[table].add(sums, seen)
        if any(table.is_doubtful for table in found.tables):
            rows = _whole_rows(in_order(printed, _Cut(path, block_bytes, NcuCsv()).lines()))
            for table, marks in in_order(lambda one: (one.source.table, marks_shown(one)), rows):
                found.tables[table].marks |= marks
    return found


def _whole_rows(pieces: Iterable[Rows]) -> Iterator[Rows]:
    """Read again, with its beginning, what a row goes on in; refuse a row that never ends."""
    last: Rows | None = None
    for rows in pieces:
        if last is not None and last.open and last.source.table == rows.source.table:
            rows = read_rows(rows.source, tuple(rows.cells), last.open)
        elif last is not None and last.open:
            last.fault = Fault(last.open.line, "the row is cut off")
        if last is not None:
            yield last
        last = rows
    if last is not None:
        if last.open:
            last.fault = Fault(last.open.line, "the row is cut off")
        yield last


def _whole_launches(pieces: Iterable[Rows]) -> Iterator[Rows]:
    """Keep back the rows of each piece's last launch until the next piece has come."""
    held: Rows | None = None
    for rows in _whole_rows(pieces):
        if held is not None and held.source.table == rows.source.table:
            rows = rows.after(held)
        elif held is not None:
            yield held
        begin = 0 if rows.fault else _begin_of_last_launch(rows)
        if rows.fault or len(rows) - begin > _MOST_ROWS:
            yield rows
            held = None
        else:
            if begin:
                yield replace(rows.part(0, begin), fault=None)
            held = rows.part(begin, len(rows))
    if held is not None:
        yield held


def _begin_of_last_launch(rows: Rows) -> int:
    """The first of the rows at the end that are of one launch, or group of launches."""
    other = np.zeros(len(rows), bool)
    for index in rows.source.layout.launch if len(rows) else ():
        cells = rows.cells[index]
        other |= flags(pc.not_equal(cells, cells[len(rows) - 1]))
    return int(np.flatnonzero(other)[-1]) + 1 if other.any() else 0


class _Block:
    """The lines of a block, and which of them do not look like a row of quoted cells."""

    def __init__(self, block: bytes, first: int) -> None:
        self.is_ended = block.endswith(b"\n")
        self._text = block if self.is_ended else block + b"\n"
        self.first = first
        text = np.frombuffer(self._text, np.uint8)
        self._ends = np.flatnonzero(text == ord("\n"))
        self._starts = np.concatenate([[0], self._ends[:-1] + 1])
        before = text[self._ends - 1]
        before = np.where(before == ord("\r"), text[np.maximum(self._ends - 2, 0)], before)
        after = text[np.minimum(self._starts + 1, len(text) - 1)]
        regular = (
            (text[self._starts] == ord('"'))
            & (after >= ord("0"))
            & (after <= ord("9"))
            & (before == ord('"'))
        )
        regular[-1] &= self.is_ended
        self.irregular: list[int] = np.flatnonzero(~regular).tolist()

    def __len__(self) -> int:
        return len(self._ends)

    def line(self, line: int) -> str:
        """A line without its end."""
        return decoded(self._text[self._starts[line] : self._ends[line]])

    def text(self, begin: int, end: int) -> bytes:
        """The lines from `begin` to `end`."""
        return self._text[self._starts[begin] : self._ends[end - 1] + 1]

    def without(self, noise: list[int], begin: int, end: int) -> tuple[bytes, Integers]:
        """The lines from `begin` to `end` that are not `noise`, and their numbers."""
        cuts = [begin, *(cut for line in noise for cut in (line, line + 1)), end]
        pairs = zip(cuts[::2], cuts[1::2], strict=True)
        pieces = [self.text(first, last) for first, last in pairs if first < last]
        kept = np.ones(end - begin, bool)
        kept[[line - begin for line in noise]] = False
        return b"".join(pieces), self.first + begin + np.flatnonzero(kept)


class _Cut:
    """Cuts a file at its headers and blocks, and notes the tables in `found`."""

    def __init__(self, path: Path, block_bytes: int, found: NcuCsv) -> None:
        self._path = path
        self._block_bytes = block_bytes
        self._found = found
        self._layout: Layout | None = None

    def lines(self) -> Iterator[Lines]:
        """Yield the lines of tables, without headers, units and, where that is plain, noise."""
        first = 1
        for text in _blocks(self._path, self._block_bytes):
            block = _Block(text, first)
            yield from self._lines_of(block)
            first += len(block)

    def _lines_of(self, block: _Block) -> Iterator[Lines]:
        begin, plain = 0, True
        noise: list[int] = []
        line = self._next(block, 0)
        while line < len(block):
            text = block.line(line)
            is_last = not block.is_ended and line == len(block) - 1
            if layout := header_in(text):
                yield from self._piece(block, begin, line, noise if plain else None)
                begin, plain, noise = line + 1, True, []
                self._open(layout)
                if is_last and text.startswith('"'):
                    yield self._unreadable(layout, Fault(block.first + line, "the file is cut off"))
            elif self._layout is None:
                self._note_error(text)
            elif self._layout.awaits_units:
                try:
                    begin = line + self._take_units(text, is_last=is_last)
                except DamagedRowError as error:
                    yield self._unreadable(self._layout, Fault(block.first + line, str(error)))
                    return
                plain = begin > line or line not in block.irregular
            elif is_last:
                yield from self._piece(block, begin, line, noise if plain else None)
                begin, plain = line, False
            elif plain and is_noise(text, self._layout):
                self._note_error(text)
                noise.append(line)
            else:
                plain = False
            line = self._next(block, line + 1)
        yield from self._piece(block, begin, len(block), noise if plain else None)

    def _next(self, block: _Block, line: int) -> int:
        """The next line to look at from `line` on: any while the units are to come."""
        if self._layout and self._layout.awaits_units:
            return line
        position = bisect_left(block.irregular, line)
        return block.irregular[position] if position < len(block.irregular) else len(block)

    def _piece(
        self, block: _Block, begin: int, end: int, noise: list[int] | None
    ) -> Iterator[Lines]:
        """The lines from `begin` to `end`; without `noise` they need a closer look."""
        if self._layout is None or begin >= end:
            return
        text, regular, numbers = block.text(begin, end), None, None
        if noise:
            regular, numbers = block.without(noise, begin, end)
        elif noise is not None:
            regular, numbers = text, np.arange(block.first + begin, block.first + end)
        yield Lines(
            table=len(self._found.tables) - 1,
            layout=self._layout,
            text=text,
            first=block.first + begin,
            regular=regular,
            numbers=numbers,
            cut_off=not block.is_ended and end == len(block),
        )

    def _take_units(self, line: str, *, is_last: bool) -> int:
        """Read the row behind a raw table's header; return how many lines are not a launch's.

        Raises `DamagedRowError` for a row that is not a whole one.
        """
        layout = self._layout
        row = row_in(line, layout, awaits_units=True) if layout else ""
        if layout is None or not row:  # output of the program
            if is_last and line.startswith('"'):
                raise DamagedRowError("the file is cut off")
            return 1
        if is_open(row, layout):
            raise DamagedRowError(
                "the row is cut off" if is_last else f"a damaged row: {row[:60]!r}"
            )
        cells = cells_of(row, layout)
        is_launch = bool(cells[layout.first].strip())  # there are no units
        self._layout = layout.with_units([] if is_launch else cells)
        return 0 if is_launch else 1

    def _unreadable(self, layout: Layout, fault: Fault) -> Lines:
        return Lines(len(self._found.tables) - 1, layout, b"", fault.line, fault=fault)

    def _open(self, layout: Layout) -> None:
        """Begin the table of a header."""
        table = TableTotals(str(self._path), of_means=layout.form == "summary")
        if layout.form == "raw":
            table.names.update(filter(None, map(explaining_name, layout.columns)))
        self._layout = layout
        self._found.tables.append(table)
        self._found.layouts.append(layout)

    def _note_error(self, text: str) -> None:
        if text.startswith("==ERROR==") and len(self._found.errors) < _MOST_ERRORS:
            self._found.errors.append(text.strip()[:_LONGEST_ERROR])


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    """Yield the file in blocks of about `size` bytes; the last one may not end its line."""
    carried = b""
    with path.open("rb") as file:
        for piece in _utf8(file, size):
            end = piece.rfind(b"\n") + 1
            if end:
                yield b"".join([carried, memoryview(piece)[:end]])
                carried = b""
            carried += piece[end:]
            if len(carried) > _LONGEST_LINE:
                raise UserError(f"{path}: a line of 64 MiB: no table of Nsight Compute")
    if carried:
        yield carried


def _utf8(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Read as UTF-8 without its mark; PowerShell's redirection writes UTF-16."""
    start = file.read(size)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        while start:
            yield decoder.decode(start).encode("utf-8", "replace")
            start = file.read(size)
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")
        return
    start = start.removeprefix(codecs.BOM_UTF8)
    while start:
        yield start
        start = file.read(size)
